"""Shuts a file system down: from then on nobody can write to its device through it.

`FS_IOC_SHUTDOWN` with flag 0 freezes the file system first. The freeze ends only when all I/O under way has reached the
device. From then on the kernel refuses new I/O of open files, new files, direct I/O and mapped files with EIO. No
process needs to be found or killed. Source: fs/ext4/ioctl.c, fs/xfs/xfs_fsops.c of Linux.

The freeze hangs while the storage hangs, and while somebody else has frozen the file system. So the callers run
`shut_down` in a thread of its own.
"""

import errno
import fcntl
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from edge.disk.mounts import Mount, parse
from edge.fencing.plan import FileSystem

FS_TYPES: Final = ("ext4", "xfs")

_SHUTDOWN: Final = 0x8004587D  # FS_IOC_SHUTDOWN: _IOR('X', 125, u32)
_FREEZE_FIRST: Final = struct.pack("I", 0)

_PROC: Final = Path("/proc")
_DEVICES: Final = Path("/sys/dev/block")


def shut_down(file_system: FileSystem, is_own: Callable[[str], bool]) -> None:
    """Shut a volume's file system down, if the kernel still has it. May hang. It can be done again.

    `is_own` tells the volume's paths on this host. Raises OSError unless it is certain that nobody writes.
    """
    if not _is_there(file_system):
        return
    of_host = _mounts("self", file_system.device)
    if foreign := [mount.path for mount in of_host if not is_own(mount.path) or mount.fs_type != file_system.fs_type]:
        raise OSError(f"device {file_system.device} is mounted at {foreign[0]}, which is not the volume's")
    is_called = False
    for place, mount in _reachable(of_host, file_system):
        descriptor = _opened(place, mount)
        if descriptor is None:
            continue
        try:
            fcntl.ioctl(descriptor, _SHUTDOWN, _FREEZE_FIRST)
            is_called = True
            if _refuses_files(descriptor):  # some kernels return 0 although the freeze has failed
                return
        finally:
            os.close(descriptor)
    if is_called:
        raise OSError("its file system still takes new files after the shutdown")
    if has_holders(file_system):
        raise OSError(f"something holds device {file_system.device}, and no mount of it can be reached")


def has_holders(file_system: FileSystem) -> bool:
    """Whether any mount namespace still has the file system, as O_EXCL on its device tells (open(2)); True in doubt."""
    if not _is_there(file_system):
        return False
    try:
        lines = (_DEVICES / file_system.device / "uevent").read_text().splitlines()
        name = dict(line.split("=", 1) for line in lines)["DEVNAME"]
        os.close(os.open(Path("/dev") / name, os.O_RDONLY | os.O_EXCL | os.O_NONBLOCK | os.O_CLOEXEC))
    except (KeyError, ValueError):
        return True
    except OSError as error:
        return error.errno not in {errno.ENXIO, errno.ENODEV, errno.ENOMEDIUM}
    return False


def sequence_of(device: str) -> str:
    """The number of a disk in this boot, that of its disk for a partition; empty before Linux 5.15."""
    folder = (_DEVICES / device).resolve()
    for path in (folder / "diskseq", folder.parent / "diskseq"):
        with suppress(OSError):
            return path.read_text().strip()
    return ""


def _is_there(file_system: FileSystem) -> bool:
    # The kernel gives no other device the number of one that is mounted.
    device = file_system.device
    return (_DEVICES / device).exists() and sequence_of(device) == file_system.sequence


def _reachable(of_host: list[Mount], file_system: FileSystem) -> Iterator[tuple[Path, Mount]]:
    # Writable mounts first: a mount that may only be read refuses new files with EROFS, which proves nothing.
    yield from ((Path("/"), mount) for mount in sorted(of_host, key=lambda mount: "ro" in mount.options))
    seen = {_namespace("self")}
    for pid in filter(str.isdigit, os.listdir(_PROC)):  # noqa: PTH208  # a Path for each takes long
        if (namespace := _namespace(pid)) not in seen:
            seen.add(namespace)
            for mount in _mounts(pid, file_system.device):
                if mount.fs_type == file_system.fs_type:
                    yield _PROC / pid / "root", mount


def _opened(root: Path, mount: Mount) -> int | None:
    # The path is looked up first without a touch at the file system, and the mount's id compared: a path of a container
    # may lead anywhere.
    try:
        place = os.open(f"{root}{mount.path}", os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if f"mnt_id:\t{mount.id}\n" not in (_PROC / f"self/fdinfo/{place}").read_text():
            return None
        return os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        os.close(place)


def _refuses_files(directory: int) -> bool:
    try:
        os.close(os.open(f"/proc/self/fd/{directory}", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600))
    except OSError as error:
        return error.errno == errno.EIO
    return False


def _mounts(pid: str, device: str) -> list[Mount]:
    try:
        text = os.fsdecode((_PROC / pid / "mountinfo").read_bytes())
    except OSError:
        return []
    return [mount for mount in parse(text) if mount.device == device] if f" {device} " in text else []


def _namespace(pid: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/mnt")  # noqa: PTH115  # as in `_reachable`
    except OSError:
        return ""
