"""A reader on demand: gets the objects that closures need one by one, again and again: Secrets and tokens.

Rules:

* Nobody lists or watches them: the hub needs no permission for that, and holds none that no node needs.
* A new one is got at once, and each again when it is due.
* One is known when the API server has given it, or has said that there is none. Any other answer says nothing of it:
  a refusal is a role that is missing, and an error a key or a webhook that does not work.
* What fails is tried again with growing distance. What was got before is still good; of what never was nodes keep what
  they have, and those that have nothing are told why, if the kind has words for that.
* What nobody foresaw ends a try and not the hub, which carries calls as well.
"""

import asyncio
import contextlib
import heapq
import itertools
import logging
from collections.abc import Callable
from typing import Any, Final, Protocol

from cloud.kube import KubeError
from common.backoff import Backoff
from common.objects import Ref

log = logging.getLogger("csi_bridge.hub.cluster")

_BACKOFF: Final = Backoff(first_s=1.0, most_s=60.0)
"""After a failure. The kubelet tries a mount again after 0.5 s, and after two minutes at most."""

_AT_ONCE: Final = 4
"""Objects that are got at once: of 10,000 pods that start with their hub, with 10 ms for each, in half a minute."""

Body = dict[str, Any]


class Getter(Protocol):
    """Gets objects of one kind."""

    async def get(self, ref: Ref) -> tuple[Body | None, float]:
        """An object, None if there is none; and in how many seconds it is to be got again. KubeError if that fails."""

    def stand_in(self, ref: Ref, error: KubeError) -> Body | None:
        """What nodes that have nothing are told in its place, with an empty UID (`common.sync`); None: nothing."""

    def in_words(self, ref: Ref, error: KubeError) -> str:
        """What that means, in a sentence."""


class OnDemand:
    """Gets what is in use: `run` it."""

    def __init__(self, getter: Getter, found: Callable[[Ref, Body | None], None], *, now: Callable[[], float]) -> None:
        """Nothing is in use yet.

        Args:
            getter: gets one.
            found: called with each one, None if there is none of that name; and with stand-ins. It raises KubeError
                if what was got is no object.
            now: the monotonic clock.
        """
        self._getter, self._found, self._now = getter, found, now
        self._turns = itertools.count()
        self._due: dict[Ref, tuple[float, int]] = {}
        self._order: list[tuple[tuple[float, int], Ref]] = []
        """A heap of all that is or was due; what `_due` does not say counts no more."""
        self._known: set[Ref] = set()
        self._failures: dict[Ref, int] = {}
        self._problems: dict[Ref, str] = {}
        self._woken = asyncio.Event()

    def use(self, ref: Ref) -> None:
        """It is needed from now on, and to be got at once."""
        self._plan(ref, 0.0)

    def release(self, ref: Ref) -> None:
        """No closure needs it any more."""
        for kept in (self._due, self._failures, self._problems):
            kept.pop(ref, None)
        self._known.discard(ref)

    def knows(self, ref: Ref) -> bool:
        """Whether the API server has said what there is."""
        return ref in self._known

    def problems(self) -> list[str]:
        """Which ones cannot be got, in sentences."""
        return list(self._problems.values())

    async def run(self) -> None:
        """Get them until cancelled."""
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
        self._woken.set()  # whoever waits may wait for a later one
        return due

    async def _get(self, ref: Ref) -> None:
        try:
            await self._try(ref)
        except Exception:  # the hub carries calls as well
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
            if self._due.get(ref) != due:  # released, or to be got anew
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
        """Say what there is. It is known to those who hear of it, and no longer if that fails."""
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
