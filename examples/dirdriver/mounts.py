"""A mount: what the kernel's mount table says, and the few changes a driver makes to it.

Whether a path is a mount point is read from /proc/self/mountinfo: asking the path itself hangs on a dead filesystem.
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

_CAP_SYS_ADMIN = 21
"""The capability that mount(2) asks for (capabilities(7))."""

BUSY_WAIT_S = 1.0
"""How long a mount may be in use while it is unmounted: whoever only looks into it is gone sooner."""

_OCTAL = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of the mount table.

    Attributes:
        path: the mount point.
        root: which part of the filesystem is mounted there.
        options: of this mount alone, e.g. `ro`, `noexec`.
        source: the device, or what the filesystem calls itself.
    """

    path: str
    root: str
    options: frozenset[str]
    source: str


def parse_mountinfo(text: str) -> Iterator[Mount]:
    """The lines of a mountinfo file (proc_pid_mountinfo(5)), in the order in which things were mounted."""
    # Not splitlines(): of all that it cuts at, the kernel escapes nothing but the newline.
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
    """A path as the mount table has it: without symbolic links above it. The path itself is not touched."""
    return path.parent.resolve() / path.name


def mounted_at(path: Path) -> Mount | None:
    """The uppermost mount at a path."""
    path = canonical(path)
    table = parse_mountinfo(os.fsdecode(MOUNTINFO.read_bytes()))
    found = [mount for mount in table if mount.path == str(path)]
    return found[-1] if found else None


def require_mount_right(purpose: str) -> None:
    """Refuse early, and clearly, what needs root.

    Raises:
        CsiError: FAILED_PRECONDITION naming what is missing.
    """
    found = re.search(r"^CapEff:\s*([0-9a-f]+)$", STATUS.read_text(), re.MULTILINE)
    if not found or not int(found[1], 16) >> _CAP_SYS_ADMIN & 1:
        raise errors.precondition(f"the driver may not {purpose}: run it as root (it needs CAP_SYS_ADMIN)")


def require_free(path: Path, field: str) -> None:
    """Refuse a path where something is mounted that is not ours: we would undo it with our own mount later.

    Raises:
        CsiError: FAILED_PRECONDITION naming the request's field.
    """
    if mounted_at(path) is not None:
        raise errors.precondition(f"something else is mounted at {field}; unmount it, or choose another path")


def bind(source: Path, target: Path, *, flags: Iterable[str] = ()) -> None:
    """Mount a file or directory at a second place. Done already: only the flags are set, as after a crash before that.

    Args:
        source: what to mount.
        target: an existing file or directory.
        flags: of the new mount alone, e.g. `ro`.
    """
    require_mount_right("mount")
    if mounted_at(target) is None:
        run("mount", "--no-canonicalize", "--bind", str(source), str(target))
    if wanted := sorted(set(flags)):
        run("mount", "--options", ",".join(["remount", "bind", *wanted]), str(target), tell=False)


def mount_device(device: Path, target: Path, *, fs_type: str, flags: Iterable[str] = ()) -> None:
    """Mount the filesystem on a device. Done already: nothing happens."""
    require_mount_right("mount")
    if mounted_at(target) is not None:
        return
    options = ["--options", ",".join(flags)] if flags else []
    run("mount", "--types", fs_type, *options, str(device), str(target), tell=not flags)


def unmount(path: Path) -> None:
    """Take every mount off a path. No error if there is none; one that stays in use is an error after a while."""
    deadline = time.monotonic() + BUSY_WAIT_S
    while mounted_at(path) is not None:
        require_mount_right("unmount")
        try:
            run("umount", "--no-canonicalize", str(path))
        except errors.CsiError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
