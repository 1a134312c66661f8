"""Deadlines: those of many calls, for one timer. Pure: the owner has the clock.

A call that ends in time is not taken out, because most do: the owner says at the end which calls still live.
"""

import heapq
from collections.abc import Collection

_SPARE = 64  # the deadlines of ended calls that may stay

_WAY_BACK_S, _WAY_BACK = 1.0, 0.05  # the time of the answer's way back; of a short call this part of its time


def before_the_caller(timeout_s: float | None) -> float | None:
    """The time after which to give a call up: a little before its caller, who so hears where the call was."""
    return None if timeout_s is None else timeout_s - min(_WAY_BACK_S, timeout_s * _WAY_BACK)


class Deadlines:
    """The deadlines of calls with numbers, in any clock."""

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[tuple[float, int]] = []

    @property
    def first(self) -> float | None:
        """The earliest deadline, perhaps of a call that has ended."""
        return self._heap[0][0] if self._heap else None

    def add(self, deadline: float, stream_id: int, living: Collection[int]) -> None:
        """Add a call's deadline. `living` has the stream ids of all calls that have not ended."""
        if len(self._heap) > _SPARE + 2 * len(living):
            self._heap = [entry for entry in self._heap if entry[1] in living]
            heapq.heapify(self._heap)
        heapq.heappush(self._heap, (deadline, stream_id))

    def passed(self, now: float) -> list[int]:
        """Take out the calls whose deadline has passed, the earliest first. They may have ended."""
        found = []
        while self._heap and self._heap[0][0] <= now:
            found.append(heapq.heappop(self._heap)[1])
        return found

    def clear(self) -> None:
        self._heap.clear()
