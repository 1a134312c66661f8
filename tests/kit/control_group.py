"""A control group of the kernel: limits the memory and the processor time of the processes that start in it.

    with ControlGroup("small", memory_mb=128, cores=0.25) as group:
        process.command[:0] = group.words

It is below the root of the machine's groups, of version 1 or 2, and needs root. It goes with the context.
"""

import re
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from tests.kit.waiting import wait_for

_ROOT = Path("/sys/fs/cgroup")
_PERIOD_US = 100_000
_MIB = 1 << 20

_ENTER = 'for file in $0; do echo $$ >"$file" || exit; done; exec "$@"'


class OutOfMemoryError(AssertionError):
    """The kernel has killed processes of the group for want of memory."""


class ControlGroup:
    """The group; a context manager."""

    def __init__(self, name: str, *, memory_mb: int | None = None, cores: float | None = None) -> None:
        """Describe a group; None: no limit."""
        self.memory_mb, self._cores = memory_mb, cores
        self._newer = (_ROOT / "cgroup.controllers").exists()
        self._memory, self._cpu = (_ROOT / ("" if self._newer else kind) / name for kind in ("memory", "cpu"))
        files = " ".join(str(path / "cgroup.procs") for path in self._places)
        # The words before a command that run it in the group, with all its children.
        self.words = ("sh", "-c", _ENTER, files)

    @property
    def peak_mb(self) -> float:
        """The most memory so far: the processes', the kernel's for them, and files that they were the first to read."""
        name = "memory.peak" if self._newer else "memory.max_usage_in_bytes"
        return int((self._memory / name).read_text()) / _MIB

    @property
    def killed(self) -> int:
        """The number of its processes that the kernel has killed for want of memory."""
        name = "memory.events" if self._newer else "memory.oom_control"
        found = re.search(r"^oom_kill (\d+)$", (self._memory / name).read_text(), re.MULTILINE)
        return int(found[1]) if found else 0

    @property
    def _places(self) -> list[Path]:
        return sorted({self._memory, self._cpu})

    def __enter__(self) -> Self:
        """Make the group.

        Raises:
            OSError: this machine or this user can make none.
        """
        with ExitStack() as stack:
            for path in self._places:
                path.mkdir()
                stack.callback(_remove, path)
            self._limit()
            self._made = stack.pop_all()
        return self

    def __exit__(self, *_failure: object) -> None:
        """Remove it, after its last process.

        Raises:
            OutOfMemoryError: in place of the failure that came of it.
        """
        with self._made:
            if killed := self.killed:
                raise OutOfMemoryError(
                    f"{self.memory_mb} MB of memory were too little: the kernel killed processes of the group: {killed}"
                )

    def _limit(self) -> None:
        if self.memory_mb is not None:
            name = "memory.max" if self._newer else "memory.limit_in_bytes"
            (self._memory / name).write_text(str(self.memory_mb * _MIB))
            for swap in ("memory.swap.max", "memory.swappiness"):
                if (self._memory / swap).exists():
                    (self._memory / swap).write_text("0")
        if self._cores is not None:
            quota_us = int(self._cores * _PERIOD_US)
            if self._newer:
                (self._cpu / "cpu.max").write_text(f"{quota_us} {_PERIOD_US}")
            else:
                (self._cpu / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
                (self._cpu / "cpu.cfs_quota_us").write_text(str(quota_us))


def _remove(path: Path) -> None:
    """Remove a group as soon as its last process has ended."""

    def removed() -> bool:
        try:
            path.rmdir()
        except OSError:
            return False
        return True

    wait_for(removed, what=f"end of {path}", instead=(path / "cgroup.procs").read_text)
