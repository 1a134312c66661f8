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

import asyncio
import contextlib
import heapq
import itertools
import logging
from collections.abc import Callable
from typing import Final, Protocol

from cloud.kube.client import RESOURCES, Body, Kube, KubeError, find
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
    """Gets the objects in use. `run()` does the work."""

    def __init__(self, getter: Getter, found: Callable[[Ref, Body | None], None], *, now: Callable[[], float]) -> None:
        """`found` gets each result: an object, a stand-in, or None. It raises KubeError if that is no valid object."""
        self._getter, self._found, self._now = getter, found, now
        self._turns = itertools.count()
        self._due: dict[Ref, tuple[float, int]] = {}
        # A heap of all due times; entries that differ from `_due` no longer count
        self._order: list[tuple[tuple[float, int], Ref]] = []
        self._known: set[Ref] = set()
        self._failures: dict[Ref, int] = {}
        self._problems: dict[Ref, str] = {}
        self._woken = asyncio.Event()

    def use(self, ref: Ref) -> None:
        self._plan(ref, 0.0)

    def release(self, ref: Ref) -> None:
        for kept in (self._due, self._failures, self._problems):
            kept.pop(ref, None)
        self._known.discard(ref)

    def knows(self, ref: Ref) -> bool:
        return ref in self._known

    def problems(self) -> list[str]:
        return list(self._problems.values())

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(_AT_ONCE):
                tasks.create_task(self._work())

    async def _work(self) -> None:
        while True:
            self._woken.clear()
            wait_s = self._order[0][0][0] - self._now() if self._order else None
            if wait_s is not None and wait_s <= 0:
                due, ref = heapq.heappop(self._order)
                if self._due.get(ref) == due:
                    await self._get(ref)
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._woken.wait()

    def _plan(self, ref: Ref, in_s: float) -> tuple[float, int]:
        self._due[ref] = due = self._now() + in_s, next(self._turns)
        heapq.heappush(self._order, (due, ref))
        self._woken.set()  # a worker may be waiting for a later one
        return due

    async def _get(self, ref: Ref) -> None:
        try:
            await self._try(ref)
        except Exception:  # the hub also carries calls
            text = f"{ref} cannot be read because of a bug in CSI Bridge; see the hub's log"
            if self._problems.get(ref) != text:
                log.exception("reading %s failed because of a bug; it is tried again", ref)
            if ref in self._due:  # not released meanwhile
                self._problems[ref] = text
                self._try_later(ref)

    async def _try(self, ref: Ref) -> None:
        due = self._due[ref]
        try:
            body, good_for_s = await self._getter.get(ref)
            if self._due.get(ref) != due:  # released, or planned anew
                return
            due = self._plan(ref, good_for_s)
            self._tell(ref, body)
        except KubeError as error:
            if self._due.get(ref) == due:
                self._failed(ref, error)
            return
        self._failures.pop(ref, None)
        self._problems.pop(ref, None)

    def _tell(self, ref: Ref, body: Body | None) -> None:
        """Report a result. The object is known while `found` runs; if `found` fails, it is not known any more."""
        was_known = ref in self._known
        self._known.add(ref)
        try:
            self._found(ref, body)
        except Exception:
            if not was_known:
                self._known.discard(ref)
            raise

    def _try_later(self, ref: Ref) -> None:
        failures = self._failures[ref] = self._failures.get(ref, 0) + 1
        self._plan(ref, _BACKOFF.wait_s(failures))

    def _failed(self, ref: Ref, error: KubeError) -> None:
        self._try_later(ref)
        text = self._getter.in_words(ref, error)
        if self._problems.get(ref) == text:
            return
        log.warning("%s", text)
        self._problems[ref] = text
        if ref not in self._known and (body := self._getter.stand_in(ref, error)) is not None:
            self._found(ref, body)
