"""A cutter: cuts a fuzzer's bytes into the numbers and parts that a target needs.

All bytes give something, and the same bytes give the same: past the end there are only zeros.
"""

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Cutter:
    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, count: int) -> bytes:
        part = self._data[self._at : self._at + count]
        self._at += len(part)
        return part

    def part(self) -> bytes:
        """Some bytes, as many as a number before them says."""
        return self.take(self.number(2))

    def number(self, size: int = 1) -> int:
        return int.from_bytes(self.take(size), "little")

    def choose(self, among: Sequence[T]) -> T:
        return among[self.number() % len(among)]

    def text(self) -> str:
        """A short text; any character may be in it, also one that UTF-8 cannot encode."""
        return self.take(self.number()).decode("utf-8", "surrogateescape")

    def rest(self) -> bytes:
        return self.take(self.left)
