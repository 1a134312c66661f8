"""Gives a volume's files to a pod's fsGroup, as the kubelet does (pkg/volume/volume_linux.go).

Rules:

* Every entry gets the group. All but symbolic links also get `rw` for the group; directories also get `x` and setgid.
* A directory is changed after its entries, and the root last. OnRootMismatch looks only at the root, so it never takes
  an interrupted change for a finished one.
* No symbolic link leads to the volume (`RootDir.parent`).
* Pods may change the volume meanwhile. Entries are reached through open directories, so no symbolic link leads out of
  the volume. Other file systems mounted inside the volume are not changed.
* An entry that cannot be changed is logged and skipped, as in the kubelet; a directory that cannot be read is an error.
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

from common.store.files import opened
from edge.disk.own_thread import in_own_thread
from edge.disk.root_dir import RootDir

log = logging.getLogger("csi_bridge.edge.disk.ownership")

# After this time the pod's owner learns why the pod does not start (the kubelet's firstEventReportDuration).
FIRST_WORD_S = 30.0

NEXT_WORD_S = 60.0  # further reports come at this interval (the kubelet's progressReportDuration)

_STOP_WAIT_S = 5.0  # a stopped walk ends at its next entry, unless the file system is dead

_GROUP_RW = 0o660
_GROUP_X = 0o110
_NOT_FOLLOWED = os.O_NOFOLLOW | os.O_CLOEXEC

MayGoOn = Callable[[], bool]  # tells whether a volume may be changed at this moment


def always() -> bool:
    return True


class _Stopped(Exception):
    pass


@dataclass(slots=True)
class Walk:
    """One change of ownership below the mount point `root`, run in a thread. `may_go_on` is asked before each entry."""

    root: Path
    gid: int
    within: RootDir
    may_go_on: MayGoOn = always
    entries: int = 0
    refused: int = 0
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Change every entry. Raises OSError if a directory cannot be read, or the walk may not go on."""
        with self.within.parent(self.root) as parent:
            try:
                folder = os.open(self.root.name, os.O_RDONLY | os.O_DIRECTORY | _NOT_FOLLOWED, dir_fd=parent)
            except NotADirectoryError:
                self._change(parent, self.root.name, os.lstat(self.root.name, dir_fd=parent))
                return
        with suppress(_Stopped):
            self._tree(folder)

    def is_done(self) -> bool:
        """Whether the volume's root already has the group and the modes (OnRootMismatch)."""
        try:
            with self.within.parent(self.root) as parent:
                found = os.lstat(self.root.name, dir_fd=parent)
        except OSError:
            return False
        wanted = _GROUP_RW | _GROUP_X | stat.S_ISGID
        return found.st_gid == self.gid and stat.S_ISDIR(found.st_mode) and found.st_mode & wanted == wanted

    def _tree(self, folder: int) -> None:
        # One descriptor is open at any depth.
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
        for name in names:
            if self.stop.is_set():
                raise _Stopped
            if not self.may_go_on():
                raise OSError("the volume may not be changed any more: the lease of the agent has ended")
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
                with opened(name, os.O_PATH | _NOT_FOLLOWED, folder=folder) as held:
                    os.chmod(f"/proc/self/fd/{held}", stat.S_IMODE(entry.st_mode) | _GROUP_RW)  # noqa: PTH101
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


async def give(
    root: Path,
    gid: int,
    *,
    within: RootDir,
    on_root_mismatch: bool,
    tell: Callable[[str], None] | None = None,
    may_go_on: MayGoOn = always,
) -> None:
    """Give a volume to a group in a thread of its own. Cancelling stops the change at the next entry.

    `tell` gets a text for people while the change takes long. Raises OSError if a directory cannot be read.
    """
    walk = Walk(root, gid, within, may_go_on)
    work = in_own_thread(lambda: None if on_root_mismatch and walk.is_done() else walk.run(), name="ownership")
    due_s = FIRST_WORD_S
    words = (
        f"giving {_place(root)} to the pod's fsGroup takes long, because every file of the volume is visited; "
        f"fsGroupChangePolicy: OnRootMismatch in the pod's securityContext visits them only when the root differs"
    )
    try:
        while not (await asyncio.wait({work}, timeout=due_s))[0]:
            log.warning("%s", words)
            if tell is not None:
                tell(words)
            words = f"still giving {_place(root)} to the pod's fsGroup: {walk.entries} entries so far"
            due_s = NEXT_WORD_S
    except asyncio.CancelledError:
        walk.stop.set()
        await asyncio.wait({work}, timeout=_STOP_WAIT_S)
        raise
    work.result()


def _place(root: Path) -> str:
    # People find the part from the pod's uid on in their own objects.
    parts = root.parts
    return "/".join(parts[parts.index("pods") + 1 :]) if "pods" in parts else str(root)


def _names(folder: int) -> Iterator[str]:
    return iter(os.listdir(folder))  # an open directory has no path that could be trusted


def _replace(folder: int, other: int) -> int:
    os.close(folder)
    return other


def _up(folder: int, expected: os.stat_result) -> int:
    above = os.open("..", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    found = os.fstat(above)
    if (found.st_dev, found.st_ino) != (expected.st_dev, expected.st_ino):
        os.close(above)
        raise OSError("a directory was moved away while its group was changed")
    return above


def _mount_id(folder: int) -> int:
    # -1 if the kernel does not tell it (proc_pid_fdinfo, section 5)
    for line in Path(f"/proc/self/fdinfo/{folder}").read_text().splitlines():
        key, _, value = line.partition(":")
        if key == "mnt_id":
            return int(value)
    return -1
