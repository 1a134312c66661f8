"""A disk of a fenced volume: whether anything still uses it, and how it is cut off.

A device is named `major:minor`, as in the mount table. Only block devices have a disk; network file systems have none.
"""

import errno
import os
import stat
from collections.abc import Collection
from pathlib import Path
from typing import Final

_SYS_DEVICES: Final = Path("/sys/dev/block")
_DEV: Final = Path("/dev")
_SWAPS: Final = Path("/proc/swaps")


def block_of(device: str, source: str) -> str:
    """The block device of a mount: its own, or its source if the file system has a number without a device (btrfs)."""
    if device.startswith("0:") and source.startswith("/dev/"):
        try:
            found = os.stat(source)  # noqa: PTH116  # a source is a text of the mount table
        except OSError:
            return device
        if stat.S_ISBLK(found.st_mode):
            return f"{os.major(found.st_rdev)}:{os.minor(found.st_rdev)}"
    return device


def is_in_use(device: str) -> bool:
    """Whether anything has a block device for itself, as O_EXCL tells (open(2)).

    That is a mount in any namespace, also one that was unmounted lazily while a file is open; a device on top of it; or
    a tool that makes or checks a file system. False if there is no such block device, or no way to ask.
    """
    name = _name(device)
    if not name:
        return False
    try:
        descriptor = os.open(_DEV / name, os.O_RDONLY | os.O_EXCL | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return error.errno == errno.EBUSY
    try:
        return False
    finally:
        os.close(descriptor)


def switch_of(device: str, others: Collection[str]) -> Path | None:
    """The file that deletes the disk of a device; None if it has none, or if anything else uses the disk.

    Others may use it by a mount in any namespace, by swap, or through a device on top of it (LVM, MD, dm-crypt).

    Args:
        device: the device.
        others: the block devices of all other mounts.
    """
    real = (_SYS_DEVICES / device).resolve()
    disk = real.parent if (real / "partition").exists() else real
    switch = disk / "device/delete"
    if not switch.exists():
        return None
    blocks = [disk, *(found.parent for found in disk.glob("*/dev"))]
    if any(holder for block in blocks for holder in (block / "holders").glob("*")):
        return None
    swaps = {Path(line.split()[0]).name for line in _SWAPS.read_text().splitlines()[1:]}
    own = {(block / "dev").read_text().strip() for block in blocks if (block / "dev").exists()}
    if own & set(others) or swaps & {block.name for block in blocks}:
        return None
    whole = (disk / "dev").read_text().strip()  # in use whenever one of its partitions is
    return None if any(is_in_use(block) for block in own - {device, whole}) else switch


def _name(device: str) -> str:
    """The name of a block device below /dev; empty if it has none there, or if that is another device."""
    try:
        told = dict(line.split("=", 1) for line in (_SYS_DEVICES / device / "uevent").read_text().splitlines())
        name = told.get("DEVNAME", "")
        number = (_DEV / name).stat().st_rdev
    except (OSError, ValueError):
        return ""
    return name if f"{os.major(number)}:{os.minor(number)}" == device else ""
