"""A volume on this node: brought up from its data to something that can be bind-mounted, and taken down again.

Each step asks the kernel what is there already, so every function here can be repeated after a crash or a reboot.
"""

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from common.csi import csi_pb2 as pb
from examples.dirdriver import errors, loops, mounts, sizes
from examples.dirdriver.access import BLOCK, DIRECTORY
from examples.dirdriver.commands import run
from examples.dirdriver.errors import CsiError
from tests.kit.testdriver.state import STAGED, Book, State, Volume

SECTOR_BYTES = 512  # what st_blocks counts (stat(2)), whatever the filesystem

_GROUP_BITS = stat.S_ISGID | stat.S_IRWXG


@dataclass(frozen=True, slots=True)
class Kind:
    """What one type of filesystem needs: the command that makes it, and mount options beside the caller's."""

    smallest_bytes: int
    make: tuple[str, ...]
    flags: tuple[str, ...] = ()


KINDS = {
    # Lazy: a new filesystem on a sparse file stays sparse, and a large one is made at once.
    "ext4": Kind(sizes.SMALLEST_BYTES, ("mkfs.ext4", "-F", "-q", "-m0", "-Elazy_itable_init=1,lazy_journal_init=1")),
    # A clone has its source's UUID, and xfs refuses to mount the same UUID twice.
    "xfs": Kind(300 * sizes.MIB, ("mkfs.xfs", "-f", "-q"), ("nouuid",)),
}
"""By fs_type."""


def bring_up(state: State, volume: Volume, path: Path, flags: Iterable[str]) -> None:
    """Make a volume usable: its directory or filesystem mounted at `path`, a block volume as a loop device.

    A directory takes its mount flags when it is published. After a CsiError nothing is left mounted or attached.
    """
    if volume.layout == DIRECTORY:
        mounts.bind(state.data(volume), path)
        return
    device = loops.attach(state.data(volume))
    if volume.layout == BLOCK or mounts.mounted_at(path) is not None:
        return
    kind = KINDS[volume.fs_type]
    try:
        # That a filesystem was made or grown is recorded when it is done, not before.
        if not volume.fs_bytes:
            run(*kind.make, str(device))
            _remember(state, volume)
        elif volume.fs_bytes < volume.size_bytes:
            loops.refresh(device)
            if volume.fs_type == "ext4":  # resize2fs insists on a check; 1 says that something was mended
                run("e2fsck", "-f", "-p", str(device), accept=(0, 1))
                run("resize2fs", str(device))
                _remember(state, volume)
        options = ",".join([*kind.flags, *flags])
        mounts.require_mount_right("mount")
        run(
            "mount",
            "--types",
            volume.fs_type,
            *(["-o", options] if options else []),
            str(device),
            str(path),
            tell=False,
        )
        if 0 < volume.fs_bytes < volume.size_bytes and volume.fs_type == "xfs":
            grow(state, volume, path)
    except BaseException:
        take_down(state, volume, path)
        raise


def grow(state: State, volume: Volume, path: Path) -> None:
    """Let a volume that is up take its grown size.

    Raises:
        CsiError: FAILED_PRECONDITION if the kernel refuses: ext4 asks for CAP_SYS_RESOURCE, which containers often
            lack.
    """
    data = state.data(volume)
    for device, _readonly in loops.devices(data):
        loops.refresh(device)
    attached = loops.find(data)
    if not volume.fs_type or attached is None:
        return
    try:
        run(*(("xfs_growfs", "-d", str(path)) if volume.fs_type == "xfs" else ("resize2fs", str(attached))))
    except CsiError as error:
        if "Permission denied" not in error.message:
            raise
        raise errors.precondition(
            "ext4 cannot be grown while mounted: the driver lacks CAP_SYS_RESOURCE. Stage the volume anew"
        ) from error
    _remember(state, volume)


def _remember(state: State, volume: Volume) -> None:
    with state.writing() as book:
        if volume.volume_id in book.volumes:
            book.volumes[volume.volume_id] = replace(book.volumes[volume.volume_id], fs_bytes=volume.size_bytes)


def require_free(path: Path, field: str) -> None:
    """Refuse a path with a foreign mount: unmounting ours later would unmount it too.

    Raises:
        CsiError: FAILED_PRECONDITION naming the request's field.
    """
    if mounts.mounted_at(path) is not None:
        raise errors.precondition(f"something else is mounted at {field}; unmount it, or choose another path")


def give_to_group(path: Path, group: str) -> None:
    """Let a group write to the root directory of a volume that is up, and own what is made there (VOLUME_MOUNT_GROUP).

    Raises:
        CsiError: INVALID_ARGUMENT if the group is no number.
    """
    if not group.isascii() or not group.isdigit():
        raise errors.invalid("volume_mount_group must be a group's number: this driver knows no group by name")
    os.chown(path, -1, int(group))
    path.chmod(stat.S_IMODE(path.stat().st_mode) | _GROUP_BITS)


def is_up(state: State, volume: Volume, path: Path) -> bool:
    """Whether `bring_up` has done its work, and no reboot undid it."""
    if volume.layout == BLOCK:
        return loops.find(state.data(volume)) is not None
    return mounts.mounted_at(path) is not None


def bind_source(state: State, volume: Volume, path: Path, *, readonly: bool) -> Path:
    """What to bind to a target path.

    A read-only block volume gets a device of its own: a read-only mount does not stop writes to a device.
    """
    return loops.attach(state.data(volume), readonly=readonly) if volume.layout == BLOCK else path


def take_down(state: State, volume: Volume, path: Path) -> None:
    """Undo `bring_up`, whatever of it was done."""
    mounts.unmount(path)
    if volume.layout != DIRECTORY:
        for readonly in (True, False):
            loops.detach(state.data(volume), readonly=readonly)


def flush(state: State, book: Book, volume: Volume) -> None:
    """Bring what was written through mounts and devices on this machine into the volume's data, before it is copied."""
    if volume.layout == DIRECTORY:
        return
    for use in book.found(STAGED, volume_id=volume.volume_id):
        if mounts.mounted_at(Path(use.path)) is not None:
            run("sync", "--file-system", use.path)
    for device, _readonly in loops.devices(state.data(volume)):
        run("blockdev", "--flushbufs", str(device))


def usage_of(volume: Volume, path: Path) -> list[pb.VolumeUsage]:
    if volume.layout == BLOCK:
        return [pb.VolumeUsage(unit=pb.VolumeUsage.BYTES, total=volume.size_bytes)]
    whole = os.statvfs(path)
    free_bytes = whole.f_bavail * whole.f_frsize
    if volume.layout == DIRECTORY:
        # A share of a filesystem that it does not have for itself: nothing holds a pod to its size.
        used_bytes, inodes = _tree_usage(path)
        total_bytes, total_inodes = volume.size_bytes, inodes + whole.f_favail
        free_bytes = max(0, min(total_bytes - used_bytes, free_bytes))
    else:
        total_bytes, total_inodes = whole.f_blocks * whole.f_frsize, whole.f_files
        used_bytes, inodes = (whole.f_blocks - whole.f_bfree) * whole.f_frsize, whole.f_files - whole.f_ffree
    usage = pb.VolumeUsage
    return [
        usage(unit=usage.BYTES, total=total_bytes, used=used_bytes, available=free_bytes),
        usage(unit=usage.INODES, total=total_inodes, used=inodes, available=whole.f_favail),
    ]


def _tree_usage(path: Path) -> tuple[int, int]:
    """Bytes and inodes of a directory tree, itself included. What vanishes meanwhile is left out."""
    total_bytes, inodes = path.stat().st_blocks * SECTOR_BYTES, 1
    for folder, folders, files in os.walk(path):
        for name in (*folders, *files):
            try:
                total_bytes += os.lstat(Path(folder, name)).st_blocks * SECTOR_BYTES
            except FileNotFoundError:
                continue
            inodes += 1
    return total_bytes, inodes
