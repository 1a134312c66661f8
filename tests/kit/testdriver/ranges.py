"""A range of bytes of a block volume, and the arithmetic of sorted ranges. Half open: `end` is not in it."""

import heapq
import itertools
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from examples.dirdriver.sizes import BLOCK_BYTES


class Range(NamedTuple):
    """Bytes from `start` up to and without `end`."""

    start: int
    end: int

    @property
    def size(self) -> int:
        """How many bytes."""
        return self.end - self.start


def merged(ranges: Iterable[Range]) -> Iterator[Range]:
    """Sorted ranges with those that touch or overlap made one (CSI spec: ascending, without overlap)."""
    last: Range | None = None
    for item in ranges:
        if last is None:
            last = item
        elif item.start <= last.end:
            last = Range(last.start, max(last.end, item.end))
        else:
            yield last
            last = item
    if last is not None:
        yield last


def union(first: Iterable[Range], second: Iterable[Range]) -> Iterator[Range]:
    """What is in either of two sorted sequences."""
    return merged(heapq.merge(first, second))


def starting_at(ranges: Iterable[Range], offset: int) -> Iterator[Range]:
    """What lies at or behind `offset`; a range that it cuts is shortened, so a resumed stream repeats nothing."""
    for item in ranges:
        if item.end > offset:
            yield Range(max(item.start, offset), item.end)


def batches(ranges: Iterable[Range], length: int) -> Iterator[list[Range]]:
    """The ranges in lists of at most `length`; one empty list if there is none: a stream always tells the size."""
    iterator = iter(ranges)
    yield list(itertools.islice(iterator, length))
    while batch := list(itertools.islice(iterator, length)):
        yield batch


def comb(count: int) -> Iterator[Range]:
    """`count` ranges of one block, each followed by a hole of one block: the longest answer for its volume's size."""
    for index in range(count):
        yield Range(2 * index * BLOCK_BYTES, (2 * index + 1) * BLOCK_BYTES)


def comb_size(count: int) -> int:
    """Bytes that a comb of `count` ranges spans."""
    return 2 * count * BLOCK_BYTES
