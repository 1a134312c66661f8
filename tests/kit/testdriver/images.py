"""An image: a sparse file that is a volume's block device, and the ranges of it that hold data."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

from examples.dirdriver.sizes import BLOCK_BYTES, MIB
from tests.kit.testdriver.ranges import Range, merged, union

COMPARE_BYTES = MIB
"""How much of two images is compared at once."""


def create_image(path: Path, size_bytes: int) -> None:
    """Make an image that reads as zeros and takes no space. One that is there is only grown."""
    with path.open("ab") as file:
        if os.fstat(file.fileno()).st_size < size_bytes:
            file.truncate(size_bytes)
        os.fsync(file.fileno())


def allocated(path: Path) -> Iterator[Range]:
    """The ranges that hold data, as the filesystem below keeps them (SEEK_DATA, lseek(2)); whole blocks, ascending."""
    with path.open("rb") as file:
        descriptor = file.fileno()
        position, size = 0, os.fstat(descriptor).st_size
        while position < size:
            try:
                start = os.lseek(descriptor, position, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:  # nothing but a hole up to the end
                    return
                raise
            position = os.lseek(descriptor, start, os.SEEK_HOLE)
            yield Range(start, position)


def changed(base: Path, target: Path) -> Iterator[Range]:
    """The ranges in which two images differ, ascending, without overlap, in whole blocks.

    Only what holds data in either is read. What lies beyond the end of the shorter one counts as zeros.
    """
    return merged(_differences(base, target))


def _differences(base: Path, target: Path) -> Iterator[Range]:
    with base.open("rb") as old, target.open("rb") as new:
        for extent in union(allocated(base), allocated(target)):
            for start in range(extent.start, extent.end, COMPARE_BYTES):
                length = min(COMPARE_BYTES, extent.end - start)
                before = os.pread(old.fileno(), length, start).ljust(length, b"\0")
                after = os.pread(new.fileno(), length, start).ljust(length, b"\0")
                if before != after:
                    yield from _different_blocks(before, after, start)


def _different_blocks(before: bytes, after: bytes, offset: int) -> Iterator[Range]:
    for start in range(0, len(after), BLOCK_BYTES):
        end = min(start + BLOCK_BYTES, len(after))
        if before[start:end] != after[start:end]:
            yield Range(offset + start, offset + end)
