"""Mounts: the kernel's mount table, bind mounts, and unmounting.

The driver reads /proc/self/mountinfo to learn whether a path is a mount point: a `stat` hangs on a dead filesystem.
"""

import os
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from examples.dirdriver import errors
from examples.dirdriver.commands import run

MOUNTINFO = Path("/proc/self/mountinfo")
STATUS = Path("/proc/self/status")

_CAP_SYS_ADMIN = 21  # the capability that mount(2) needs (capabilities(7))

BUSY_WAIT_S = 1.0
"""The time for which `unmount` retries a mount in use. A program that only lists the directory ends sooner."""

_OCTAL = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of the mount table."""

    path: str  # the mount point
    root: str  # the path inside the filesystem that is mounted there
    options: frozenset[str]  # of this mount alone, e.g. `ro`, `noexec`
    source: str  # the device, or the filesystem's own name for it


def parse_mountinfo(text: str) -> Iterator[Mount]:
    """The mounts of a mountinfo file (proc_pid_mountinfo(5)), oldest first."""
    # Not splitlines(): it also cuts at characters that the kernel does not escape.
    for line in filter(None, text.split("\n")):
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        yield Mount(
            path=_unescaped(fields[4]),
            root=_unescaped(fields[3]),
            options=frozenset(fields[5].split(",")),
            source=_unescaped(after.split(" ")[1]),
        )


def _unescaped(text: str) -> str:
    return _OCTAL.sub(lambda found: chr(int(found[1], 8)), text)


def canonical(path: Path) -> Path:
    """A path as the mount table has it: without symbolic links above it. Does not access the path itself."""
    return path.parent.resolve() / path.name


def is_one_place(one: Path, other: Path) -> bool:
    """Whether two paths are one entry of one directory, which may be mounted at several paths.

    A mount there shows up at each of them, and goes from all at once.
    """
    exist = one.parent.exists() and other.parent.exists()
    return one.name == other.name and exist and one.parent.samefile(other.parent)


def table() -> Iterator[Mount]:
    return parse_mountinfo(os.fsdecode(MOUNTINFO.read_bytes()))


def mounted_at(path: Path) -> Mount | None:
    """The uppermost mount at a path."""
    path = canonical(path)
    found = [mount for mount in table() if mount.path == str(path)]
    return found[-1] if found else None


def require_mount_right(purpose: str) -> None:
    """Check that this process may mount. FAILED_PRECONDITION if not."""
    found = re.search(r"^CapEff:\s*([0-9a-f]+)$", STATUS.read_text(), re.MULTILINE)
    if not found or not int(found[1], 16) >> _CAP_SYS_ADMIN & 1:
        raise errors.precondition(f"the driver may not {purpose}: run it as root (it needs CAP_SYS_ADMIN)")


def bind(source: Path, target: Path, *, flags: Iterable[str] = ()) -> None:
    """Bind-mount a file or directory at an existing one. If the target is a mount already, only set the flags."""
    require_mount_right("mount")
    if mounted_at(target) is None:
        run("mount", "--no-canonicalize", "--bind", str(source), str(target))
    if wanted := sorted(set(flags)):
        run("mount", "--options", ",".join(["remount", "bind", *wanted]), str(target), tell=False)


def unmount(path: Path) -> None:
    """Unmount everything at a path. OK if there is no mount. INTERNAL if one stays in use."""
    deadline = time.monotonic() + BUSY_WAIT_S
    while mounted_at(path) is not None:
        require_mount_right("unmount")
        try:
            run("umount", "--no-canonicalize", str(path))
        except errors.CsiError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
