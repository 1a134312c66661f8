"""An ownership: a pod's fsGroup given to all that a volume holds, as the kubelet does it (pkg/volume/volume_linux.go).

Rules:

* Every entry gets the group; what is no symbolic link also gets `rw` for it, a directory also `x` and setgid. A
  directory comes after what it holds, and the root last: OnRootMismatch, which looks at the root alone, never takes
  a change that was broken off for a finished one.
* The pods that use the volume may change it meanwhile: entries are reached through directories held open, so that
  no link put in the way leads out of the volume. Other file systems mounted inside are left alone.
* One entry that refuses is logged and passed over, as by the kubelet; a directory that cannot be read is an error.
"""

import asyncio
import logging
import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from edge.disk.own_thread import in_own_thread

log = logging.getLogger("csi_bridge.edge.disk.ownership")

FIRST_WORD_S = 30.0
"""After so long the pod's owner is told why the pod does not start (the kubelet's firstEventReportDuration)."""

NEXT_WORD_S = 60.0
"""And again and again after so long (its progressReportDuration)."""

_STOP_WAIT_S = 5.0
"""A walk that was told to stop does so at its next entry, unless the file system is dead."""

_GROUP_RW = 0o660
_GROUP_X = 0o110
_NOT_FOLLOWED = os.O_NOFOLLOW | os.O_CLOEXEC


class _Stopped(Exception):
    """The walk was told to stop."""


@dataclass(slots=True)
class Walk:
    """One change of ownership, in a thread.

    Attributes:
        root: where the volume is mounted.
        gid: the group.
        entries: how many have been seen.
        refused: how many of them refused.
    """

    root: Path
    gid: int
    entries: int = 0
    refused: int = 0
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Change everything.

        Raises:
            OSError: a directory cannot be read, or was moved away meanwhile.
        """
        try:
            folder = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | _NOT_FOLLOWED)
        except NotADirectoryError:
            parent = os.open(self.root.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                self._change(parent, self.root.name, os.lstat(self.root))
            finally:
                os.close(parent)
            return
        with suppress(_Stopped):
            self._tree(folder)

    def _tree(self, folder: int) -> None:
        """All below an open directory, and then itself. One descriptor is open at a time, however deep it is."""
        status = os.fstat(folder)
        mount = _mount_id(folder)
        above: list[tuple[Iterator[str], os.stat_result]] = []
        names = _names(folder)
        try:
            while True:
                found = self._next_dir(folder, names, status, mount)
                if found is not None:
                    above.append((names, status))
                    folder = _replace(folder, found)
                    status = os.fstat(folder)
                    names = _names(folder)
                    continue
                self._change_dir(folder, status)
                if not above:
                    return
                names, status = above.pop()
                folder = _replace(folder, _up(folder, status))
        finally:
            os.close(folder)

    def _next_dir(self, folder: int, names: Iterator[str], status: os.stat_result, mount: int) -> int | None:
        """Change a directory's entries up to the next directory, which comes opened."""
        for name in names:
            if self.stop.is_set():
                raise _Stopped
            try:
                entry = os.lstat(name, dir_fd=folder)
                if not stat.S_ISDIR(entry.st_mode):
                    self._change(folder, name, entry)
                    continue
                below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | _NOT_FOLLOWED, dir_fd=folder)
            except FileNotFoundError:
                continue  # removed meanwhile
            # A btrfs subvolume has a device number of its own, but the same mount.
            if entry.st_dev == status.st_dev or _mount_id(below) == mount:
                return below
            os.close(below)
        return None

    def _change(self, folder: int, name: str, entry: os.stat_result) -> None:
        self.entries += 1
        try:
            os.chown(name, -1, self.gid, dir_fd=folder, follow_symlinks=False)
            if not stat.S_ISLNK(entry.st_mode):
                held = os.open(name, os.O_PATH | _NOT_FOLLOWED, dir_fd=folder)
                try:
                    os.chmod(f"/proc/self/fd/{held}", stat.S_IMODE(entry.st_mode) | _GROUP_RW)  # noqa: PTH101
                finally:
                    os.close(held)
        except OSError as error:
            self._refuse(error)

    def _change_dir(self, folder: int, status: os.stat_result) -> None:
        self.entries += 1
        try:
            os.fchown(folder, -1, self.gid)
            os.fchmod(folder, stat.S_IMODE(status.st_mode) | _GROUP_RW | _GROUP_X | stat.S_ISGID)
        except OSError as error:
            self._refuse(error)

    def _refuse(self, error: OSError) -> None:
        self.refused += 1
        if self.refused == 1:
            log.warning("an entry below %s did not take the group %d: %s", self.root, self.gid, error.strerror)


def matches(root: Path, gid: int) -> bool:
    """Whether a volume's root has the group and the modes already (OnRootMismatch)."""
    try:
        found = root.stat()
    except OSError:
        return False
    wanted = _GROUP_RW | _GROUP_X | stat.S_ISGID
    return found.st_gid == gid and stat.S_ISDIR(found.st_mode) and found.st_mode & wanted == wanted


async def give(
    root: Path,
    gid: int,
    *,
    on_root_mismatch: bool,
    tell: Callable[[str], None] | None = None,
    first_word_s: float = FIRST_WORD_S,
    next_word_s: float = NEXT_WORD_S,
) -> None:
    """Give a volume to a group, in a thread of its own: a slow volume keeps nobody waiting but its pod.

    Cancelling stops it at the next entry.

    Args:
        root: where the volume is mounted.
        gid: the pod's fsGroup.
        on_root_mismatch: leave it alone if its root looks right.
        tell: gets a text for people, while it takes long.
        first_word_s: when the first one is due.
        next_word_s: when the next ones are due.

    Raises:
        OSError: something of it could not be read.
    """
    walk = Walk(root, gid)
    work = in_own_thread(lambda: None if on_root_mismatch and matches(root, gid) else walk.run(), name="ownership")
    due_s, words = first_word_s, _slow(root)
    try:
        while not (await asyncio.wait({work}, timeout=due_s))[0]:
            log.warning("%s", words)
            if tell is not None:
                tell(words)
            due_s, words = (
                next_word_s,
                f"still giving {_place(root)} to the pod's fsGroup: {walk.entries} entries so far",
            )
    except asyncio.CancelledError:
        walk.stop.set()
        await asyncio.wait({work}, timeout=_STOP_WAIT_S)
        raise
    work.result()


def _slow(root: Path) -> str:
    return (
        f"giving {_place(root)} to the pod's fsGroup takes long, because every file of the volume is visited; "
        f"fsGroupChangePolicy: OnRootMismatch in the pod's securityContext visits them only when the root differs"
    )


def _place(root: Path) -> str:
    """The path from the pod's uid on: what people can find in their own objects."""
    parts = root.parts
    return "/".join(parts[parts.index("pods") + 1 :]) if "pods" in parts else str(root)


def _names(folder: int) -> Iterator[str]:
    return iter(os.listdir(folder))  # of an open directory: it has no path that could be trusted


def _replace(folder: int, other: int) -> int:
    os.close(folder)
    return other


def _up(folder: int, expected: os.stat_result) -> int:
    """The directory above, if it is still the one that we came from."""
    above = os.open("..", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    found = os.fstat(above)
    if (found.st_dev, found.st_ino) != (expected.st_dev, expected.st_ino):
        os.close(above)
        raise OSError("a directory was moved away while its group was changed")
    return above


def _mount_id(folder: int) -> int:
    """Which mount an open directory is on (proc_pid_fdinfo(5))."""
    for line in Path(f"/proc/self/fdinfo/{folder}").read_text().splitlines():
        key, _, value = line.partition(":")
        if key == "mnt_id":
            return int(value)
    return -1
