"""A work queue: works on keys until each work has succeeded, and again when a key is due.

Rules:

* One task works on a key; several keys are worked on at the same time.
* Only the newest state counts: a key that is added ten times while it waits is worked on once.
* A failed key is tried again at growing intervals, without end. Every key is done, discarded, or among the problems.
* If many keys fail for one reason, as in an outage, there is one problem with the first and their number, and one log
  line.
* A key that is done may become due again after a while. It waits for one time, the earliest: what a node sends may add
  its key any number of times.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Hashable
from functools import partial
from typing import Final, Generic, TypeVar

from cloud.kube.client import KubeError
from common.links.backoff import Backoff

log = logging.getLogger("csi_bridge.hub.upsync")

K = TypeVar("K", bound=Hashable)

_Reason = tuple[object, ...]  # The common parts of failures with one cause. No text: that has the object's name.

_OBJECTS_OWN: Final = {400, 422}  # codes of the API server that concern one object only
_AT_ONCE: Final = 8  # keys that are worked on at the same time: the API server has other clients, too
_BACKOFF: Final = Backoff(first_s=0.5, most_s=60.0)  # the waits between the tries of one key


class WorkQueue(Generic[K]):
    """Works on keys. `add` from the loop; `close` ends it."""

    def __init__(
        self,
        work: Callable[[K], Awaitable[float | None]],
        *,
        at_once: int = _AT_ONCE,
        backoff: Backoff = _BACKOFF,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        later: Callable[[float, Callable[[], None]], object] | None = None,
    ) -> None:
        """`work` writes the present state of a key, or reads it, and raises KubeError for another try.

        It returns the seconds until the key is due again, or None. It may discard the key, and add it again.
        """
        self._do = work
        self._backoff = backoff
        self._pause = pause
        self._later = later
        self._closed = False
        self._added: dict[K, int] = {}  # how often each waiting key was added
        self._tasks: dict[K, asyncio.Task[None]] = {}
        self._due: dict[K, float] = {}  # when each key is due again, in the loop's clock
        self._problems: dict[_Reason, dict[K, str]] = {}  # the failing keys and their texts, by reason
        self._slots = asyncio.Semaphore(at_once)

    def add(self, key: K) -> None:
        if self._closed:
            return
        self._added[key] = self._added.get(key, 0) + 1
        if key not in self._tasks:
            self._tasks[key] = asyncio.get_running_loop().create_task(self._work(key), name=f"write {key}")

    def discard(self, key: K) -> None:
        """Work on a key no more, and cancel a running try."""
        self._added.pop(key, None)
        self._due.pop(key, None)
        self._settled(key)
        if (task := self._tasks.pop(key, None)) is not None:
            task.cancel()

    def problems(self) -> list[str]:
        found = [list(failing.values()) for failing in self._problems.values()]
        return [it[0] if len(it) == 1 else f"not written yet: {len(it)} objects, the first: {it[0]}" for it in found]

    async def close(self) -> None:
        self._closed = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _work(self, key: K) -> None:
        try:
            failures = 0
            while key in self._added and not self._is_discarded(key):
                failures = 0 if await self._try(key) else failures + 1
                if failures:
                    await self._pause(self._backoff.wait_s(failures))
        finally:
            if not self._is_discarded(key):
                del self._tasks[key]

    def _is_discarded(self, key: K) -> bool:
        # Another task may work on the key by now.
        return self._tasks.get(key) is not asyncio.current_task()

    async def _try(self, key: K) -> bool:
        async with self._slots:
            added = self._added[key]
            failure: Exception | None = None
            again_s: float | None = None
            try:
                again_s = await self._do(key)
            except Exception as error:  # noqa: BLE001  # `_failed` tells of it
                failure = error
        if self._is_discarded(key):
            return True
        if failure is not None:
            self._failed(key, failure)
            return False
        if self._settled(key):
            log.info("written at last: %s", key)
        # Else it was added again meanwhile, and the work may have read an older state.
        if self._added[key] == added:
            del self._added[key]
        loop = asyncio.get_running_loop()
        if again_s is not None and (due := loop.time() + again_s) < self._due.get(key, math.inf):
            self._due[key] = due
            (self._later or loop.call_later)(again_s, partial(self._add_if_due, key, due))
        return True

    def _add_if_due(self, key: K, due: float) -> None:
        if self._due.get(key) == due:
            del self._due[key]
            self.add(key)

    def _failed(self, key: K, error: Exception) -> None:
        if isinstance(error, KubeError):
            whose = key if error.code in _OBJECTS_OWN else None
            self._note(key, (error.code, error.reason, whose), str(error))
            return
        why = f"writing {key} failed because of a bug in CSI Bridge; see the hub's log"
        if self._note(key, (type(error),), why):
            log.error("writing %s failed because of a bug; it is tried again", key, exc_info=error)

    def _note(self, key: K, reason: _Reason, text: str) -> bool:
        is_first = reason not in self._problems
        if key not in self._problems.get(reason, ()):
            self._settled(key)
        self._problems.setdefault(reason, {})[key] = text
        if is_first:
            log.warning("not written yet: %s", text)
        return is_first

    def _settled(self, key: K) -> bool:
        # True: it was the last key for its reason.
        for reason, failing in self._problems.items():
            if failing.pop(key, None) is not None:
                if not failing:
                    del self._problems[reason]
                return not failing
        return False
