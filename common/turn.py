"""A turn: bytes that came in one go, and all that they cause at once. Each connection that they touch writes once.

While a turn is under way, a connection that has something to write joins it with `add()`, and writes at its end. So
answers to several frames share a write, also on another connection, and no extra turn of the event loop is needed.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol
from weakref import WeakKeyDictionary


class Joiner(Protocol):
    """A connection."""

    def flush(self) -> None:
        """Write now."""


class Turn:
    """The turns of one event loop, one after the other. `is_on`: one is under way."""

    __slots__ = ("_joined", "is_on")

    def __init__(self) -> None:
        self._joined: dict[Joiner, None] = {}
        self.is_on = False

    def run(self, receive: Callable[[bytes], None], data: bytes) -> None:
        """Give the bytes to `receive`, then let all that have joined write. In another turn they write at its end."""
        if self.is_on:
            receive(data)
            return
        self.is_on = True
        try:
            receive(data)
        finally:
            self.is_on = False
            while self._joined:
                self._joined.popitem()[0].flush()

    def add(self, joiner: Joiner) -> None:
        """Let it write at the end of this turn."""
        self._joined[joiner] = None


_TURNS: WeakKeyDictionary[asyncio.AbstractEventLoop, Turn] = WeakKeyDictionary()


def turn_of(loop: asyncio.AbstractEventLoop) -> Turn:
    """The turns of a loop: all its connections share them."""
    return _TURNS.setdefault(loop, Turn())
