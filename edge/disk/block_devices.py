"""A block device: how a pod gets one, and what keeps it from being exchanged meanwhile.

As the kubelet does it (pkg/volume/util MapBlockVolume, volumepathhandler): the device that the driver published is
bound to a file of the pod's, a link in the pod's directory leads to the device, and a loop device on that file holds
it open, so that its number is not given to another device.

What differs: whether something is bound is read from the mount table, so that a driver which publishes an ordinary
file works too (the kubelet cannot take such a file down again), and a bind to a device that is not the published one
any more is made anew, with its loop device.
"""

import errno
import fcntl
import os
import stat
import time
from contextlib import suppress
from pathlib import Path

from edge.disk.layout import Layout
from edge.disk.mounts import bind, read_table, unmount
from edge.disk.root_dir import DIR_MODE, RootDir
from edge.fault_points import reach

_LOOP_SET_FD = 0x4C00
_LOOP_CLR_FD = 0x4C01
_LOOP_CTL_GET_FREE = 0x4C82
"""loop(4)."""

_MOST_TRIES = 50
"""A free loop device may be taken by somebody else before we have it."""

_DETACH_WAIT_S = 2.0
"""A detached loop device stays while others, like udev, have it open."""

_SYSFS = Path("/sys/block")


class BlockDevices:
    """The block devices of pods below one root directory. Everything here blocks, and may hang for ever.

    `map` and `unmap` open and close devices, which may be dead; what a driver published may lie on a dead server.
    """

    def __init__(self, root: RootDir, layout: Layout) -> None:
        self._root, self._layout = root, layout

    def device(self, name: str, pod_uid: str) -> str:
        """The path of what the driver published, without symbolic links.

        Raises:
            OSError: it published nothing.
        """
        return os.path.realpath(self._layout.block_target(name, pod_uid), strict=True)

    def map(self, name: str, pod_uid: str) -> None:
        """Give a pod its published device. Done already: nothing changes.

        Raises:
            OSError: something could not be made; `unmap` undoes what was.
        """
        device = self.device(name, pod_uid)
        place = self._layout.device_map(name, pod_uid)
        self._root.make_dir(place.parent)
        self._root.touch(place, DIR_MODE)
        reach("publish.before-bind")
        if not (self._bound(place) and _is_same(device, place)):
            _detach_loops(place)  # first: the kernel unmounts nothing that a loop device holds open
            self._unbind(place)
            bind(Path(device), place)
        reach("publish.after-bind")
        link = self._layout.device_link(pod_uid, name)
        self._root.make_dir(link.parent)
        self._root.link(link, device)
        reach("publish.after-link")
        if not loops_on(place):
            _attach_loop(place)
        reach("publish.after-loop")

    def unmap(self, name: str, pod_uid: str) -> None:
        """Take a device away from a pod, as far as it has it.

        Raises:
            OSError: something could not be undone.
        """
        place = self._layout.device_map(name, pod_uid)
        reach("unpublish.before-loop")
        _detach_loops(place)
        reach("unpublish.after-loop")
        link = self._layout.device_link(pod_uid, name)
        if self._root.read_link(link) is not None:
            self._root.remove_file(link)
        reach("unpublish.after-link")
        self._unbind(place)
        reach("unpublish.after-unbind")
        self._root.remove_file(place)
        reach("unpublish.after-map")

    def _unbind(self, place: Path) -> None:
        while self._bound(place):
            unmount(place)

    def _bound(self, place: Path) -> bool:
        return read_table(self._root.path).is_mount_point(place)


def loops_on(file: Path) -> list[Path]:
    """The loop devices on a file, which may be gone: asked of the kernel, never remembered."""
    names = {str(file), str(file.parent.resolve() / file.name)}
    found = []
    for backing in _SYSFS.glob("loop*/loop/backing_file"):
        with suppress(OSError):  # detached meanwhile
            if os.fsdecode(backing.read_bytes()).rstrip("\n").removesuffix(" (deleted)") in names:
                found.append(Path("/dev") / backing.parent.parent.name)
    return found


def _attach_loop(file: Path) -> None:
    backing = _open_backing(file)
    try:
        control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
        try:
            for _ in range(_MOST_TRIES):
                if _take_loop(fcntl.ioctl(control, _LOOP_CTL_GET_FREE), backing):
                    return
        finally:
            os.close(control)
    finally:
        os.close(backing)
    raise OSError(errno.EBUSY, f"cannot hold {file} open: every free loop device was taken by somebody else")


def _take_loop(number: int, backing: int) -> bool:
    device = os.open(f"/dev/loop{number}", os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.ioctl(device, _LOOP_SET_FD, backing)
    except OSError as error:
        if error.errno == errno.EBUSY:
            return False
        raise
    finally:
        os.close(device)
    return True


def _open_backing(file: Path) -> int:
    try:
        return os.open(file, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in {errno.EROFS, errno.EACCES, errno.EPERM}:
            raise
        return os.open(file, os.O_RDONLY | os.O_CLOEXEC)


def _detach_loops(file: Path) -> None:
    for device in loops_on(file):
        opened = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.ioctl(opened, _LOOP_CLR_FD)
        except OSError as error:
            if error.errno != errno.ENXIO:  # it is detached already
                raise
        finally:
            os.close(opened)
    deadline = time.monotonic() + _DETACH_WAIT_S
    while loops_on(file):
        if time.monotonic() > deadline:
            raise OSError(errno.EBUSY, f"a loop device on {file} is still in use by another program")
        time.sleep(0.01)


def _is_same(one: str, other: Path) -> bool:
    """Whether two paths show the same device, or the same file."""
    first, second = os.stat(one), os.stat(other)  # noqa: PTH116  # devices' files: the kernel's own, which answer
    if stat.S_ISBLK(first.st_mode) and stat.S_ISBLK(second.st_mode):
        return first.st_rdev == second.st_rdev
    return (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino)
