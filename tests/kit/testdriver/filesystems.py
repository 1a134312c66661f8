"""A filesystem on a device: making it, and growing it to the device's size."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from examples.dirdriver import errors, mounts, sizes
from examples.dirdriver.commands import run
from examples.dirdriver.errors import CsiError


@dataclass(frozen=True, slots=True)
class Kind:
    """What one type of filesystem needs.

    Attributes:
        smallest_bytes: what its mkfs takes at least.
        make: the command that makes it, without the device.
        flags: mount options that it always needs.
        grows_unmounted: whether it is grown before it is mounted, or only afterwards.
    """

    smallest_bytes: int
    make: tuple[str, ...]
    flags: tuple[str, ...]
    grows_unmounted: bool


KINDS = {
    # Lazy: a new filesystem on a sparse file stays sparse, and a large one is made at once.
    "ext4": Kind(
        smallest_bytes=sizes.SMALLEST_BYTES,
        make=("mkfs.ext4", "-F", "-q", "-m0", "-Elazy_itable_init=1,lazy_journal_init=1"),
        flags=(),
        grows_unmounted=True,
    ),
    # A clone has its source's UUID, and xfs refuses to mount the same UUID twice.
    "xfs": Kind(
        smallest_bytes=300 * sizes.MIB, make=("mkfs.xfs", "-f", "-q"), flags=("nouuid",), grows_unmounted=False
    ),
}
"""What `access.FS_TYPES` need."""


def smallest_bytes(fs_type: str) -> int:
    """The smallest volume that can hold a filesystem; without one, the smallest volume."""
    return KINDS[fs_type].smallest_bytes if fs_type else sizes.SMALLEST_BYTES


def make(device: Path, fs_type: str) -> None:
    """Make an empty filesystem, whatever the device holds: the state says that nothing of worth is there."""
    run(*KINDS[fs_type].make, str(device))


def mount(device: Path, target: Path, *, fs_type: str, flags: Iterable[str] = ()) -> None:
    """Mount the filesystem on a device. OK if it is mounted."""
    mounts.require_mount_right("mount")
    if mounts.mounted_at(target) is not None:
        return
    options = ["--options", ",".join(flags)] if flags else []
    run("mount", "--types", fs_type, *options, str(device), str(target), tell=not flags)


def grow_unmounted(device: Path, fs_type: str) -> bool:
    """Grow before mounting, if the filesystem can do that; returns whether it can."""
    if not KINDS[fs_type].grows_unmounted:
        return False
    run("e2fsck", "-f", "-p", str(device), accept=(0, 1))  # resize2fs insists on it; 1 says that something was mended
    run("resize2fs", str(device))
    return True


def grow_mounted(device: Path, mount_point: Path, fs_type: str) -> None:
    """Grow while mounted.

    Raises:
        CsiError: FAILED_PRECONDITION if the kernel refuses: ext4 asks for CAP_SYS_RESOURCE, which containers often
            lack.
    """
    if fs_type == "xfs":
        run("xfs_growfs", "-d", str(mount_point))
        return
    try:
        run("resize2fs", str(device))
    except CsiError as error:
        if "Permission denied" not in error.message:
            raise
        raise errors.precondition(
            "ext4 cannot be grown while mounted: the driver lacks CAP_SYS_RESOURCE. Give it that capability, or stage "
            "the volume anew: that grows it"
        ) from error
