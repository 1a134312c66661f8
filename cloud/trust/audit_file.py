"""The audit log's files: `audit.log`, and its older parts from `audit.log.1` to `audit.log.9`, the oldest one.

Rules:

* A line is a JSON object of ASCII characters, so that no peer's name reaches a terminal as a control sequence.
* A line is whole or absent: what a full disk or a crash has cut off is removed, or ended with a line break.
* All files together take at most the size that the operator allows. The oldest part goes first.
* The files belong to the hub's user alone (mode 0600).
"""

import os
from collections.abc import Iterator
from pathlib import Path

from common.files import sync_directory

NAME = "audit.log"

PARTS = 10
"""The files among which the size is divided: the one that grows, and the older ones."""


def paths(state_dir: Path) -> Iterator[Path]:
    """The paths of all files that there can be, the newest first."""
    return (state_dir / (f"{NAME}.{number}" if number else NAME) for number in range(PARTS))


class AuditFile:
    """Appends lines to the audit log of one state directory. It does blocking I/O; one thread uses it."""

    def __init__(self, state_dir: Path, *, largest_bytes: int) -> None:
        """For a directory, which need not exist yet.

        Args:
            state_dir: the hub's state directory.
            largest_bytes: the size of all files together.
        """
        self.path = state_dir / NAME
        self._part_bytes = largest_bytes // PARTS

    def append(self, lines: bytes) -> None:
        """Write some lines, each with its line break. Returns once the disk has them.

        Raises:
            OSError: the disk does not take them. None of them is in the file then, or the disk does not answer.
        """
        descriptor = self._open()
        try:
            size = os.fstat(descriptor).st_size
            if size and size + len(lines) > self._part_bytes:
                self._rotate()
                newer = self._open()  # if it fails, nobody closes the older one twice: its number may be another file's
                os.close(descriptor)
                descriptor, size = newer, 0
            self._write(descriptor, lines, size)
        finally:
            os.close(descriptor)

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(self.path, flags, 0o600)

    def _write(self, descriptor: int, lines: bytes, size: int) -> None:
        if size and os.pread(descriptor, 1, size - 1) != b"\n":  # a hub was killed while it wrote
            lines = b"\n" + lines
        try:
            _write_all(descriptor, lines)
            os.fsync(descriptor)
        except OSError:
            os.ftruncate(descriptor, size)
            raise

    def _rotate(self) -> None:
        """Give each file the next number. The oldest one is replaced."""
        for older in range(PARTS - 1, 0, -1):
            newer = self.path.with_name(f"{NAME}.{older - 1}") if older > 1 else self.path
            if newer.exists():
                newer.replace(self.path.with_name(f"{NAME}.{older}"))
        sync_directory(self.path.parent)


def _write_all(descriptor: int, data: bytes) -> None:
    if os.write(descriptor, data) < len(data):
        raise OSError("no room")
