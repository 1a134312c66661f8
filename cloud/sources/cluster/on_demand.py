"""A reader on demand: gets the Secrets and tokens that closures need, one by one, and refreshes them.

Rules:

* The hub does not list or watch these kinds. So it needs no permission for that, and holds no object that no node
  needs.
* It gets a new object at once, and again whenever it is due.
* An object is known when the API server has sent it, or has answered that it does not exist. Other answers prove
  nothing: a role may be missing, or a key or a webhook may not work.
* After a failure, the next tries come at growing intervals. An earlier result stays good. If there is none, nodes keep
  their copies; nodes without a copy get the reason, if the kind has a stand-in for it.
* A bug in one try ends this try and not the hub, which also carries calls.
"""

import logging
from collections.abc import Callable
from contextvars import copy_context
from typing import Final, Protocol

from cloud.kube.client import RESOURCES, Body, Kube, KubeError, find
from cloud.kube.work_queue import WorkQueue
from common.links.backoff import Backoff
from common.objects.objects import Ref

log = logging.getLogger("csi_bridge.hub.cluster")

_BACKOFF: Final = Backoff(first_s=1.0, most_s=60.0)  # The kubelet tries a mount again after 0.5 s to two minutes

# With 10 ms for each request, the objects of 10,000 pods that start with their hub take 30 s.
_AT_ONCE: Final = 4

REFRESH_S: Final = 60.0  # the time between two reads of one Secret, as in a kubelet that does not watch Secrets


class Getter(Protocol):
    """Gets objects of one kind."""

    async def get(self, ref: Ref) -> tuple[Body | None, float]:
        """Get an object, None if there is none, and the seconds until it is due again. Raises KubeError."""

    def stand_in(self, ref: Ref, error: KubeError) -> Body | None:
        """A stand-in with an empty UID for nodes without a copy (`common.objects.sync`); None if the kind has none."""

    def in_words(self, ref: Ref, error: KubeError) -> str:
        """The failure as a sentence."""


class SecretReader:
    """Reads Secrets (`Getter`)."""

    def __init__(self, api: Kube) -> None:
        self._api = api

    async def get(self, ref: Ref) -> tuple[Body | None, float]:
        return await find(self._api, RESOURCES["Secret"], ref.name, ref.namespace), REFRESH_S

    def stand_in(self, _ref: Ref, _error: KubeError) -> None:
        """None: a node would take a stand-in for a Secret without values."""

    def in_words(self, ref: Ref, error: KubeError) -> str:
        return f"{ref} cannot be read, and nodes keep their copy of it: {error}"


class OnDemand:
    """Gets the objects in use, until `close`."""

    def __init__(
        self,
        getter: Getter,
        found: Callable[[Ref, Body | None], None],
        *,
        later: Callable[[float, Callable[[], None]], object] | None = None,
    ) -> None:
        """`found` gets each result: an object, a stand-in, or None. It raises KubeError if that is no valid object."""
        self._getter = getter
        self._found = found
        self._queue: WorkQueue[Ref] = WorkQueue(self._get, at_once=_AT_ONCE, later=later)
        self.close = self._queue.close
        self._context = copy_context()  # of the reads: their log lines are not of the node that used an object first
        self._uses: dict[Ref, object] = {}  # a mark of the last `use` of each object
        self._known: set[Ref] = set()
        self._failures: dict[Ref, int] = {}
        self._problems: dict[Ref, str] = {}

    def use(self, ref: Ref) -> None:
        self._uses[ref] = object()
        self._context.run(self._queue.add, ref)

    def release(self, ref: Ref) -> None:
        self._queue.discard(ref)
        for kept in (self._uses, self._failures, self._problems):
            kept.pop(ref, None)
        self._known.discard(ref)

    def knows(self, ref: Ref) -> bool:
        return ref in self._known

    def problems(self) -> list[str]:
        return list(self._problems.values())

    async def _get(self, ref: Ref) -> float | None:
        use = self._uses[ref]
        try:
            body, good_for_s = await self._getter.get(ref)
            if self._uses.get(ref) is use:
                self._tell(ref, body)
        except Exception as error:  # noqa: BLE001  # `_failed` tells of it
            return self._failed(ref, error) if self._uses.get(ref) is use else None
        self._failures.pop(ref, None)
        self._problems.pop(ref, None)
        return good_for_s

    def _tell(self, ref: Ref, body: Body | None) -> None:
        # Known while `found` runs, because its subscribers ask; not if it fails, because then no node has the result.
        was_known = ref in self._known
        self._known.add(ref)
        try:
            self._found(ref, body)
        except Exception:
            if not was_known:
                self._known.discard(ref)
            raise

    def _failed(self, ref: Ref, error: Exception) -> float:
        failures = self._failures[ref] = self._failures.get(ref, 0) + 1
        wait_s = _BACKOFF.wait_s(failures)
        if not isinstance(error, KubeError):  # the hub also carries calls
            text = f"{ref} cannot be read because of a bug in CSI Bridge; see the hub's log"
            if self._problems.get(ref) != text:
                log.error("reading %s failed because of a bug; it is tried again", ref, exc_info=error)
            self._problems[ref] = text
        elif self._problems.get(ref) != (text := self._getter.in_words(ref, error)):
            log.warning("%s", text)
            self._problems[ref] = text
            if ref not in self._known and (body := self._getter.stand_in(ref, error)) is not None:
                self._found(ref, body)
        return wait_s
