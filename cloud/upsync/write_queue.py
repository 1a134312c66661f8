"""A write queue: what is to be brought into line with what was told, each key by itself, until it is.

Rules:

* A key is worked on by one task at a time; several at a time are worked on in all.
* Only the newest state counts: a key that is added ten times while it waits is written once.
* What fails is tried again with growing distance, for ever: a key is done, discarded, or named among the problems.
* Of many that fail for one reason, as in an outage, the first and their number are told, and the log has one line.
* What is done may be due again by itself, after a while.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable
from functools import partial
from typing import Final, Generic, TypeVar

from cloud.kube import KubeError
from common.backoff import Backoff

log = logging.getLogger("csi_bridge.hub.upsync")

K = TypeVar("K", bound=Hashable)

_Reason = tuple[object, ...]
"""What failures that are one trouble have in common: no text, which has the name of its object."""

_OBJECTS_OWN: Final = {400, 422}
"""Codes of the API server that speak of one object, whatever others have the same."""

_AT_ONCE: Final = 8
"""Keys that are worked on at once: the API server is everybody's."""

_BACKOFF: Final = Backoff(first_s=0.5, most_s=60.0)
"""Between two tries of one key."""


class WriteQueue(Generic[K]):
    """Writes keys. `add` from the loop; `close` ends it."""

    def __init__(
        self,
        write: Callable[[K], Awaitable[float | None]],
        *,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        later: Callable[[float, Callable[[], None]], object] | None = None,
    ) -> None:
        """Nothing is to be written yet.

        Args:
            write: brings what a key stands for into line. It reads what is to be there itself, and does nothing if
                that is so. It gives the seconds after which the key is to be looked at again, if it is, and raises
                KubeError for another try.
            pause: waits for so many seconds.
            later: calls back after so many seconds; the running loop does, if it is not given.
        """
        self._write, self._pause, self._later = write, pause, later
        self._closed = False
        self._added: dict[K, int] = {}
        """By key that is to be written: how often it was added."""
        self._tasks: dict[K, asyncio.Task[None]] = {}
        self._problems: dict[_Reason, dict[K, str]] = {}
        """By why they cannot be written: keys, and what to say of each."""
        self._slots = asyncio.Semaphore(_AT_ONCE)

    def add(self, key: K) -> None:
        """What the key stands for may have changed."""
        if self._closed:
            return
        self._added[key] = self._added.get(key, 0) + 1
        if key not in self._tasks:
            self._tasks[key] = asyncio.get_running_loop().create_task(self._work(key), name=f"write {key}")

    def discard(self, key: K) -> None:
        """What the key stands for is not to be written any more; a try that is under way is broken off."""
        self._added.pop(key, None)
        self._settled(key)
        if (task := self._tasks.pop(key, None)) is not None:
            task.cancel()

    def problems(self) -> list[str]:
        """What cannot be written, in sentences."""
        return [_in_words(list(failing.values())) for failing in self._problems.values()]

    async def close(self) -> None:
        """End all tries."""
        self._closed = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _work(self, key: K) -> None:
        try:
            failures = 0
            while key in self._added:
                failures = 0 if await self._try(key) else failures + 1
                if failures:
                    await self._pause(_BACKOFF.wait_s(failures))
        finally:
            if self._tasks.get(key) is asyncio.current_task():
                del self._tasks[key]

    async def _try(self, key: K) -> bool:
        """Write it as it is now. Whether that was done."""
        async with self._slots:
            added = self._added[key]
            try:
                again_s = await self._write(key)
            except KubeError as error:
                whose = key if error.code in _OBJECTS_OWN else None
                self._note(key, (error.code, error.reason, whose), str(error))
                return False
            except Exception as error:
                why = f"writing {key} failed because of a bug in CSI Bridge; see the hub's log"
                if self._note(key, (type(error),), why):
                    log.exception("writing %s failed because of a bug; it is tried again", key)
                return False
        if self._settled(key):
            log.info("written at last: %s", key)
        if self._added[key] == added:
            del self._added[key]
        if again_s is not None:
            later = self._later or asyncio.get_running_loop().call_later
            later(again_s, partial(self.add, key))
        return True

    def _note(self, key: K, reason: _Reason, text: str) -> bool:
        """It failed. Whether it is the first for this reason."""
        is_first = reason not in self._problems
        if key not in self._problems.get(reason, ()):
            self._settled(key)
        self._problems.setdefault(reason, {})[key] = text
        if is_first:
            log.warning("not written yet: %s", text)
        return is_first

    def _settled(self, key: K) -> bool:
        """It fails no more. Whether it was the last for its reason."""
        for reason, failing in self._problems.items():
            if failing.pop(key, None) is not None:
                if not failing:
                    del self._problems[reason]
                return not failing
        return False


def _in_words(texts: list[str]) -> str:
    return texts[0] if len(texts) == 1 else f"not written yet: {len(texts)} objects, the first: {texts[0]}"
