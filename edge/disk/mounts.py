"""A mount: what the kernel's mount table says of this node's directories, and the two changes made to it.

Rules:

* Whether something is a mount point is read from /proc/self/mountinfo. The path is never asked: a dead NFS or FUSE
  mount does not answer, and takes the thread that asked with it (contract.md C.9).
* Only block devices are bound and unbound here, whose files are the kernel's own. All else mounts the driver.
"""

import ctypes
import os
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

MOUNTINFO = Path("/proc/self/mountinfo")

_OCTAL = re.compile(r"\\([0-7]{3})")

_MOST_READS = 5
"""So often the table is read until two readings are equal: one reading is no snapshot while others mount."""

_MS_BIND = 0x1000
_UMOUNT_NOFOLLOW = 8
"""mount(2), umount2(2)."""

_PLUGINS = "/plugins/kubernetes.io/"


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of the mount table (proc_pid_mountinfo(5)).

    Attributes:
        device: `major:minor` of the file system.
        root: which part of the file system is mounted.
        path: the mount point.
        shared: what is mounted below it is seen in other mount namespaces.
    """

    device: str
    root: str
    path: str
    shared: bool = False


class MountTable:
    """The mount table at one moment.

    Args:
        mounts: in the table's order: a later one covers an earlier one.
        root: the root directory, as everybody calls it.
        real_root: the same without symbolic links: the kernel's table has only these.
    """

    def __init__(self, mounts: Iterable[Mount], *, root: Path = Path("/"), real_root: Path = Path("/")) -> None:
        self.mounts = tuple(mounts)
        self._root, self._real_root = root, real_root
        self._points = Counter(mount.path for mount in self.mounts)

    def is_mount_point(self, path: Path) -> bool:
        """Whether something is mounted there."""
        return self._real(path) in self._points

    def within(self, path: Path) -> list[str]:
        """The mount points at a path and below it."""
        real = self._real(path)
        return [mount.path for mount in self.mounts if _is_within(mount.path, real)]

    def references(self, path: Path) -> list[str]:
        """Where else what is at `path` is mounted, and in use by somebody.

        It is the kubelet's GetMountRefs and HasMountRefs: mounts of the same part of the same file system. The same
        directory seen through another path of the root directory does not count.
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
    """The lines of a mountinfo file.

    Args:
        text: as `os.fsdecode` gives it: a text file's reader would take a carriage return in a path for a line's end.
    """
    found = []
    # Not splitlines(): of all that it cuts at, the kernel escapes nothing but the newline.
    for line in filter(None, text.split("\n")):
        _, _, device, root, path, rest = line.split(" ", 5)
        _, *optional = rest.partition(" - ")[0].split(" ")
        shared = any(field.startswith("shared:") for field in optional)
        found.append(Mount(device, _unescaped(root), _unescaped(path), shared))
    return found


def read_table(root: Path, *, whole: bool = False) -> MountTable:
    """The mounts of this process's namespace. Blocks for some milliseconds.

    Args:
        root: the root directory whose paths will be asked for.
        whole: read until it is surely no mixture: a mount that is overlooked would do harm. Without, whoever takes a
            mount point for a directory is told by the kernel, which does not remove it.
    """
    text = MOUNTINFO.read_bytes()
    for _ in range(_MOST_READS * whole):
        before, text = text, MOUNTINFO.read_bytes()
        if text == before:
            break
    return MountTable(parse(os.fsdecode(text)), root=root, real_root=Path(os.path.realpath(root)))


def bind(source: Path, target: Path) -> None:
    """Let a file be seen at a second place.

    Raises:
        OSError: the kernel refused.
    """
    _call("mount", os.fsencode(source), os.fsencode(target), None, _MS_BIND, None, what=f"bind {source} to {target}")


def unmount(path: Path) -> None:
    """Take the uppermost mount off a path, which is never followed if it is a link.

    Raises:
        OSError: the kernel refused.
    """
    _call("umount2", os.fsencode(path), _UMOUNT_NOFOLLOW, what=f"unmount {path}")


def _call(function: str, *arguments: bytes | int | None, what: str) -> None:
    # The calls themselves rather than mount(8): no process per block device, and no locale in the errors.
    if getattr(ctypes.CDLL(None, use_errno=True), function)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot {what}: {os.strerror(number)}")


def _is_within(path: str, base: str) -> bool:
    return base in {path, "/"} or path.startswith(base + "/")


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text
    return _OCTAL.sub(lambda found: chr(int(found[1], 8)), text)
