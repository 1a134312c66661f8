"""The node's mount table, and the changes that the agent makes to it: bind, guard and unmount.

Rules:

* /proc/self/mountinfo tells whether a path is a mount point. The path itself is never opened: a dead NFS or FUSE mount
  would block the calling thread for ever (docs/csi-contract.md#a-dead-mount-can-block-stat).
* The agent binds and unmounts only block devices, whose files the kernel serves, and its guards: empty read-only
  directories in the place of file systems that a pod's runtime mounts. The vendor's driver mounts all else.
"""

import ctypes
import os
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

MOUNTINFO = Path("/proc/self/mountinfo")

_OCTAL = re.compile(r"\\([0-7]{3})")

# The table is read at most this often, until two readings are equal: one reading is no snapshot while others mount.
_MOST_READS = 5

GUARD = "csi-bridge-guard"  # the source of a guard in the mount table

# From mount(2) and umount2(2). A guard is MS_RDONLY, MS_NOSUID, MS_NODEV and MS_NOEXEC.
_MS_BIND = 0x1000
_MS_GUARD = 0x1 | 0x2 | 0x4 | 0x8
_UMOUNT_NOFOLLOW = 8

_PLUGINS = "/plugins/kubernetes.io/"


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of the mount table (proc_pid_mountinfo(5))."""

    device: str  # `major:minor` of the file system
    root: str  # the part of the file system that is mounted
    path: str
    # The file system's name for its source: a device, a server's path, `GUARD`. Two directories of one NFS server may
    # have the same device and the same root, and differ in this alone.
    source: str = field(default="", compare=False)
    fs_type: str = field(default="", compare=False)
    id: str = field(default="", compare=False)
    options: frozenset[str] = field(default=frozenset(), compare=False)


class MountTable:
    """The mount table at one moment, in its order: a later mount covers an earlier one at the same path.

    `root` is the root directory as configured; callers pass paths below it. The kernel writes `real_root`.
    """

    def __init__(self, mounts: Iterable[Mount], *, root: Path = Path("/"), real_root: Path = Path("/")) -> None:
        self.mounts = tuple(mounts)
        self._root = root
        self._real_root = real_root
        self._points = Counter(mount.path for mount in self.mounts)

    def is_mount_point(self, path: Path) -> bool:
        return self._real(path) in self._points

    def is_guard(self, path: Path) -> bool:
        real = self._real(path)
        upmost = next((mount for mount in reversed(self.mounts) if mount.path == real), None)
        return upmost is not None and upmost.source == GUARD

    def guards(self) -> list[Path]:
        found = (Path(mount.path) for mount in self.mounts if mount.source == GUARD)
        return [self._root / path.relative_to(self._real_root) for path in found if self._real_root in path.parents]

    def within(self, path: Path) -> list[str]:
        real = self._real(path)
        return [mount.path for mount in self.mounts if _is_within(mount.path, real)]

    def references(self, path: Path) -> list[str]:
        """Return the other places where the mount at `path` is visible, and so may be in use.

        Like the kubelet's GetMountRefs and HasMountRefs, this finds mounts of the same part of the same file system.
        The same directory under another path of the root directory does not count.
        """
        real = self._real(path)
        covering = next((mount for mount in reversed(self.mounts) if _is_within(real, mount.path)), None)
        if covering is None:
            return []
        below = real[len(covering.path.rstrip("/")) :]
        part = (covering.root.rstrip("/") + below) or "/"
        same = [mount.path for mount in self.mounts if (mount.device, mount.root) == (covering.device, part)]
        plugins = real.find(_PLUGINS)
        own = real[plugins:] if plugins >= 0 else real
        return [found for found in same if own not in found]

    def _real(self, path: Path) -> str:
        try:
            return str(self._real_root / path.relative_to(self._root))
        except ValueError:
            return str(path)


def parse(text: str) -> list[Mount]:
    """Parse a mountinfo file, decoded with `os.fsdecode`: text mode would end a line at a carriage return."""
    found = []
    # Not splitlines(): it also cuts at characters that the kernel does not escape. The kernel escapes the newline.
    for line in filter(None, text.split("\n")):
        number, _, device, root, path, rest = line.split(" ", 5)
        fields, _, file_system = rest.partition(" - ")
        own = fields.split(" ")[0]
        fs_type, source, super_options = file_system.split(" ", 2)
        options = frozenset(f"{own},{super_options}".split(","))
        place = (device, _unescaped(root), _unescaped(path))
        found.append(Mount(*place, _unescaped(source), fs_type, number, options))
    return found


def read_table(root: Path, *, whole: bool = False) -> MountTable:
    """Read the mount table of this process's namespace. Blocks for some milliseconds.

    `whole`: read until two readings are equal, for callers to whom an overlooked mount would do harm. If one reading
    misses a mount, the kernel refuses to remove the mount point.
    """
    text = MOUNTINFO.read_bytes()
    for _ in range(_MOST_READS * whole):
        before = text
        text = MOUNTINFO.read_bytes()
        if text == before:
            break
    return MountTable(parse(os.fsdecode(text)), root=root, real_root=Path(os.path.realpath(root)))


def bind(source: Path, target: Path) -> None:
    _call("mount", os.fsencode(source), os.fsencode(target), None, _MS_BIND, None, what=f"bind {source} to {target}")


def mount_guard(target: Path) -> None:
    """Mount an empty directory that nobody can write to. Raises OSError if the kernel refused."""
    options = b"size=4k,nr_inodes=1,mode=555"
    _call("mount", GUARD.encode(), os.fsencode(target), b"tmpfs", _MS_GUARD, options, what=f"mount a guard at {target}")


def unmount(path: Path) -> None:
    """Unmount the uppermost mount at a path, and follow no symbolic link. Raises OSError if the kernel refused."""
    _call("umount2", os.fsencode(path), _UMOUNT_NOFOLLOW, what=f"unmount {path}")


def _call(function: str, *arguments: bytes | int | None, what: str) -> None:
    # System calls instead of mount(8): no process for each block device, and error texts without a locale.
    if getattr(ctypes.CDLL(None, use_errno=True), function)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot {what}: {os.strerror(number)}")


def _is_within(path: str, base: str) -> bool:
    return base in {path, "/"} or path.startswith(base + "/")


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text
    return _OCTAL.sub(lambda found: chr(int(found[1], 8)), text)
