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
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from edge.disk.mounts import Mount, parse
from edge.fencing.plan import FileSystem

_SHUTDOWN: Final = 0x8004587D
"""FS_IOC_SHUTDOWN: _IOR('X', 125, u32)."""
_FREEZE_FIRST: Final = struct.pack("I", 0)

_PROC: Final = Path("/proc")
_DEVICES: Final = Path("/sys/dev/block")

_MAKE: Final = {"ext4": ("16M", "mkfs.ext4", "-q", "-F"), "xfs": ("300M", "mkfs.xfs", "-q", "-f")}
"""The file systems that can be fenced: the size of the scratch image (mkfs.xfs wants 300 MB), and how it is made."""
FS_TYPES: Final = tuple(_MAKE)

_TOOL_LIMIT_S: Final = 20.0


class NotShutDown(Exception):
    """A file system could not be shut down; the text says why."""


def shut_down(file_system: FileSystem, is_own: Callable[[str], bool]) -> str:
    """Shut a volume's file system down. May hang. It can be done again.

    Args:
        file_system: as it was recorded.
        is_own: tells the volume's paths on this host.

    Returns:
        What was done, for people.

    Raises:
        NotShutDown: it is not certain that nobody writes.
        OSError: the kernel refused.
    """
    of_host = _mounts("self", file_system.device)
    if foreign := [mount.path for mount in of_host if not is_own(mount.path) or mount.fs_type != file_system.fs_type]:
        raise NotShutDown(f"device {file_system.device} is mounted at {foreign[0]}, which is not the volume's")
    is_called = False
    for place, mount in _reachable(of_host, file_system):
        descriptor = _opened(place, mount)
        if descriptor is None:
            continue
        try:
            fcntl.ioctl(descriptor, _SHUTDOWN, _FREEZE_FIRST)
            is_called = True
            if _refuses_files(descriptor):
                return "its file system is shut down"
        finally:
            os.close(descriptor)
    if is_called:
        raise NotShutDown("its file system still takes new files after the shutdown")
    if is_held(file_system):
        raise NotShutDown(f"something holds device {file_system.device}, and no mount of it can be reached")
    return "its file system was unmounted already"


def is_held(file_system: FileSystem) -> bool:
    """Whether the kernel still has the file system, as O_EXCL on its device tells (open(2)).

    That is a mount in any namespace, also one that was unmounted lazily. True if there is no way to ask.
    """
    device = _DEVICES / file_system.device
    if sequence_of(file_system.device) != file_system.sequence or not device.exists():
        return False  # the disk is gone
    try:
        told = dict(line.split("=", 1) for line in (device / "uevent").read_text().splitlines())
        descriptor = os.open(Path("/dev") / told["DEVNAME"], os.O_RDONLY | os.O_EXCL | os.O_NONBLOCK | os.O_CLOEXEC)
    except (KeyError, ValueError):
        return True
    except OSError as error:
        return error.errno not in {errno.ENXIO, errno.ENODEV, errno.ENOMEDIUM}
    os.close(descriptor)
    return False


def sequence_of(device: str) -> str:
    """The number of a disk in this boot, that of its disk for a partition; empty before Linux 5.15."""
    folder = (_DEVICES / device).resolve()
    for path in (folder / "diskseq", folder.parent / "diskseq"):
        with suppress(OSError):
            return path.read_text().strip()
    return ""


def holders(file_system: FileSystem) -> list[str]:
    """The processes that keep a file system: a mount in a namespace of their own, or an open or mapped file.

    It may hang at a file of another dead file system.
    """
    device, own, found = file_system.device, _namespace("self"), []
    mapped = " {:02x}:{:02x} ".format(*map(int, device.split(":")))
    for pid in _pids():
        with suppress(OSError):
            mounts = parse(os.fsdecode((_PROC / pid / "mountinfo").read_bytes()))
            ids, others = (
                {it.id for it in mounts if it.device == device},
                {it.id for it in mounts if it.device != device},
            )
            name = f"process {pid} {(_PROC / pid / 'comm').read_text(errors='replace').strip()!a}"
            if ids and _namespace(pid) != own:
                found.append(f"{name} (has it mounted)")
            elif any(_is_on(path, device) for path in _opened_files(pid, others)):
                found.append(f"{name} (has a file of it open)")
            elif mapped in (_PROC / pid / "maps").read_text(errors="replace"):
                found.append(f"{name} (has a file of it mapped)")
    return found


def _opened_files(pid: str, mount_ids: set[str]) -> Iterator[str]:
    """The open files of a process, but for those on some mounts."""
    for info in (_PROC / pid / "fdinfo").iterdir():
        if _mount_id(info) not in mount_ids:
            yield f"/proc/{pid}/fd/{info.name}"


def _is_on(path: str, device: str) -> bool:
    try:
        number = os.stat(path).st_dev  # noqa: PTH116  # as in `_pids`
    except OSError as error:
        return error.errno == errno.EIO  # an xfs that is shut down tells nothing
    return f"{os.major(number)}:{os.minor(number)}" == device


def prove(fs_type: str, directory: Path) -> str:
    """Try on a scratch image whether this kernel keeps its word. Blocks for a second.

    A file system is made there, shut down and unmounted. The unmount must change no byte: another node may have the
    device by then (ext4 before Linux 6.15 writes its superblock). Then it must be mountable again.

    Args:
        fs_type: one of `FS_TYPES`.
        directory: for the image and the mount.

    Returns:
        Why file systems of this type cannot be fenced here; empty if they can.
    """
    image, point = directory.resolve() / fs_type, directory.resolve() / "mount"
    size, *make = _MAKE[fs_type]
    point.mkdir(parents=True, exist_ok=True)
    try:
        _unmount_if_mounted(point)  # by a proof that was killed
        with image.open("wb") as file:
            file.truncate(int(size[:-1]) << 20)
        _run(*make, image)
        _run("mount", "-o", "loop", image, point)
        (point / "file").write_bytes(b"kept")
        (mount,) = (mount for mount in parse(Path("/proc/self/mountinfo").read_text()) if mount.path == str(point))
        shut_down(FileSystem(device=mount.device, sequence="", fs_type=fs_type), str(point).__eq__)
        before = _bytes_of(image)
        _run("umount", point)
        if _bytes_of(image) != before:
            return f"this kernel writes to a {fs_type} that was shut down when it is unmounted"
        _run("mount", "-o", "loop", image, point)
        return "" if (point / "file").read_bytes() == b"kept" else f"{fs_type} loses files in a shutdown"
    except (NotShutDown, OSError, ValueError, subprocess.SubprocessError) as error:
        return f"a scratch image of {fs_type} cannot be shut down here: {error}"
    finally:
        _unmount_if_mounted(point)
        image.unlink(missing_ok=True)


def _reachable(of_host: list[Mount], file_system: FileSystem) -> Iterator[tuple[Path, Mount]]:
    """The mounts of a file system, each with the root below which it is: the host's first, the writable first."""
    yield from ((Path("/"), mount) for mount in sorted(of_host, key=lambda mount: "ro" in mount.options))
    seen = {_namespace("self")}
    for pid in _pids():
        if (namespace := _namespace(pid)) not in seen:
            seen.add(namespace)
            for mount in _mounts(pid, file_system.device):
                if mount.fs_type == file_system.fs_type:
                    yield _PROC / pid / "root", mount


def _opened(root: Path, mount: Mount) -> int | None:
    """The root directory of a mount; None if something else is there by now.

    The path is looked up first without a touch at the file system, and the mount's id compared: a path of a container
    may lead anywhere.

    Raises:
        OSError: the file system does not open its directory.
    """
    try:
        place = os.open(f"{root}{mount.path}", os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if _mount_id(_PROC / f"self/fdinfo/{place}") != mount.id:
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
    """The mounts of a device that a process sees."""
    try:
        text = os.fsdecode((_PROC / pid / "mountinfo").read_bytes())
    except OSError:
        return []
    return [mount for mount in parse(text) if mount.device == device] if f" {device} " in text else []


def _mount_id(fdinfo: Path) -> str:
    with suppress(OSError):
        for line in fdinfo.read_text().splitlines():
            if line.startswith("mnt_id:"):
                return line.split()[1]
    return ""


def _pids() -> Iterator[str]:
    return filter(str.isdigit, os.listdir(_PROC))  # noqa: PTH208  # a Path for each takes long


def _namespace(pid: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/mnt")  # noqa: PTH115  # as in `_pids`
    except OSError:
        return ""


def _unmount_if_mounted(point: Path) -> None:
    with suppress(OSError, subprocess.SubprocessError):
        _run("umount", point)


def _run(*words: str | Path) -> None:
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=_TOOL_LIMIT_S, check=False)  # noqa: S603
    if done.returncode:
        raise OSError(f"{words[0]}: {done.stderr.strip()[-200:]}")


def _bytes_of(image: Path) -> list[tuple[int, bytes]]:
    """The written parts of an image, without its holes."""
    found, at = [], 0
    with image.open("rb") as file, suppress(OSError):  # ENXIO: only a hole is left
        while True:
            begin = os.lseek(file.fileno(), at, os.SEEK_DATA)
            at = os.lseek(file.fileno(), begin, os.SEEK_HOLE)
            found.append((begin, os.pread(file.fileno(), at - begin, begin)))
    return found
