"""A shared look: for many who want to see the same thing as it is from now on, one looks.

A look that is under way serves nobody who came after its beginning: what they did meanwhile may not be in it. They
share the next one.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class SharedLook(Generic[T]):
    """Call it like the look that it shares."""

    def __init__(self, look: Callable[[], Awaitable[T]]) -> None:
        """Nobody has looked yet; `look` is never under way twice at a time."""
        self._look = look
        self._turn = asyncio.Lock()
        self._begun = 0
        self._found: tuple[int, T] | None = None
        """What the last look that succeeded found, and its number, as long as anybody waits for it."""
        self._waiting = 0

    async def __call__(self) -> T:
        """What there is to see, by a look that begins from now on.

        Raises what the look raises: then who waits as well looks again. So they do if the one who looks is cancelled.
        """
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
