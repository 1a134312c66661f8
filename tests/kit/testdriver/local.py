"""A volume on this node: brought up from its data to something that can be bind-mounted, and taken down again.

Each step asks the kernel what is there already, so every function here can be repeated after a crash or a reboot.
"""

import os
import stat
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from examples.dirdriver import errors, loops, mounts
from examples.dirdriver.commands import run
from tests.kit.testdriver import filesystems
from tests.kit.testdriver.access import Layout
from tests.kit.testdriver.driver import Driver
from tests.kit.testdriver.records import Volume

_GROUP_BITS = stat.S_ISGID | stat.S_IRWXG


def bring_up(driver: Driver, volume: Volume, path: Path, flags: Iterable[str]) -> None:
    """Make a volume usable: its directory or filesystem mounted at `path`, a block volume as a loop device.

    Args:
        driver: whose pool and state.
        volume: which one.
        path: the staging path, an existing directory.
        flags: mount flags of the capability; a directory takes them when it is published.

    Raises:
        CsiError: it could not be done; nothing is left mounted or attached.
    """
    data = driver.pool.data(volume)
    if volume.layout is Layout.DIRECTORY:
        mounts.bind(data, path)
        return
    device = loops.attach(data)
    if volume.layout is Layout.BLOCK or mounts.mounted_at(path) is not None:
        return
    kind = filesystems.KINDS[volume.fs_type]
    try:
        _prepare(driver, volume, device)
        filesystems.mount(device, path, fs_type=volume.fs_type, flags=[*kind.flags, *flags])
        if 0 < volume.fs_bytes < volume.size_bytes and not kind.grows_unmounted:
            grow(driver, volume, path)
    except BaseException:
        take_down(driver, volume, path)
        raise


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


def _prepare(driver: Driver, volume: Volume, device: Path) -> None:
    """Make the filesystem, or grow it to the device. That it was done is recorded when it is done, not before."""
    if not volume.fs_bytes:
        filesystems.make(device, volume.fs_type)
        _remember(driver, volume)
    elif volume.fs_bytes < volume.size_bytes:
        loops.refresh(device)
        if filesystems.grow_unmounted(device, volume.fs_type):
            _remember(driver, volume)


def grow(driver: Driver, volume: Volume, path: Path) -> None:
    """Let what is up take the volume's grown size.

    Raises:
        CsiError: FAILED_PRECONDITION if the filesystem cannot be grown while it is mounted.
    """
    data = driver.pool.data(volume)
    for device, _readonly in loops.devices(data):
        loops.refresh(device)
    attached = loops.find(data)
    if volume.layout is Layout.FILESYSTEM and attached is not None:
        filesystems.grow_mounted(attached, path, volume.fs_type)
        _remember(driver, volume)


def _remember(driver: Driver, volume: Volume) -> None:
    with driver.state.writing() as tables:
        current = tables.volumes.get(volume_id=volume.volume_id)
        if current is not None:
            tables.volumes.put(replace(current, fs_bytes=volume.size_bytes))


def is_up(driver: Driver, volume: Volume, path: Path) -> bool:
    """Whether `bring_up` has done its work, and no reboot undid it."""
    if volume.layout is Layout.BLOCK:
        return loops.find(driver.pool.data(volume)) is not None
    return mounts.mounted_at(path) is not None


def bind_source(driver: Driver, volume: Volume, path: Path, *, readonly: bool) -> Path:
    """What to bind to a target path.

    A read-only block volume gets a device of its own: a read-only mount does not stop writes to a device.
    """
    if volume.layout is Layout.BLOCK:
        return loops.attach(driver.pool.data(volume), readonly=readonly)
    return path


def drop_readonly(driver: Driver, volume: Volume) -> None:
    """Let go of the device that `bind_source` made for read-only publications."""
    if volume.layout is Layout.BLOCK:
        loops.detach(driver.pool.data(volume), readonly=True)


def take_down(driver: Driver, volume: Volume, path: Path) -> None:
    """Undo `bring_up`, whatever of it was done."""
    mounts.unmount(path)
    if volume.layout is not Layout.DIRECTORY:
        for readonly in (True, False):
            loops.detach(driver.pool.data(volume), readonly=readonly)


def flush(driver: Driver, volume: Volume) -> None:
    """Bring what was written through mounts and devices on this machine into the volume's data, before it is copied."""
    if volume.layout is Layout.DIRECTORY:
        return
    with driver.state.reading() as tables:
        staged = [staging.path for staging in tables.stagings.all(volume_id=volume.volume_id)]
    for path in staged:
        if mounts.mounted_at(Path(path)) is not None:
            run("sync", "--file-system", path)
    for device, _readonly in loops.devices(driver.pool.data(volume)):
        run("blockdev", "--flushbufs", str(device))
