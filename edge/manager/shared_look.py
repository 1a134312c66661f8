"""A shared look: concurrent callers share one reading, and each gets a reading that began after its call.

A reading that is under way does not serve later callers: it may miss their latest changes. They share the next one.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class SharedLook(Generic[T]):
    """Reads for concurrent callers. Calling an instance is like calling the function that it shares."""

    def __init__(self, look: Callable[[], Awaitable[T]]) -> None:
        self._look = look
        self._turn = asyncio.Lock()
        self._begun = 0
        # The number and the result of the last successful reading, as long as a caller waits.
        self._found: tuple[int, T] | None = None
        self._waiting = 0

    async def __call__(self) -> T:
        """Return a reading that begins after this call. If it fails, the next waiting caller reads again."""
        wanted = self._begun + 1
        self._waiting += 1
        try:
            async with self._turn:
                if self._found is None or self._found[0] < wanted:
                    self._begun += 1
                    self._found = self._begun, await self._look()
                return self._found[1]
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._found = None
