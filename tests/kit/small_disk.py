"""A small disk: a file system of its own, which a test can fill, or have read-only. Only root can mount it."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit import needs


@contextlib.contextmanager
def small_disk(directory: Path, options: str) -> Iterator[Path]:
    """Make a directory, and mount a tmpfs with these options there; skip the test where that is not possible."""
    if missing := needs.root():
        pytest.skip(missing)
    directory.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", directory]
    mount = subprocess.run(command, check=False, capture_output=True, text=True)
    if mount.returncode:
        pytest.skip(f"needs a machine that lets root mount: {mount.stderr.strip()}")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "--lazy", directory], check=True)


def fill(disk: Path) -> None:
    """Write until the disk takes no more."""
    hog = os.open(disk / "hog", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for size in (1 << 20, 4096):
        with contextlib.suppress(OSError):
            while True:
                os.write(hog, bytes(size))
    os.close(hog)


def make_room(disk: Path) -> None:
    (disk / "hog").unlink()
