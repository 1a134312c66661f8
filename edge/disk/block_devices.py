"""A block device: how a pod gets one, and what keeps it from being exchanged meanwhile.

As the kubelet does it (pkg/volume/util MapBlockVolume, volumepathhandler): the device that the driver published is
bound to a file of the pod's, a link in the pod's directory leads to the device, and a loop device on that file holds
it open, so that its number is not given to another device.

What differs: whether something is bound is read from the mount table, so that a driver which publishes an ordinary
file works too (the kubelet cannot take such a file down again), and a bind to a device that is not the published one
any more is made anew, with its loop device.
"""

import os
import stat
from pathlib import Path

from edge.disk.layout import Layout
from edge.disk.loop_devices import attach_loop, detach_loops, loops_on
from edge.disk.mounts import bind, read_table, unmount
from edge.disk.root_dir import DIR_MODE, RootDir
from edge.fault_points import reach

__all__ = ["BlockDevices", "loops_on"]


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
            detach_loops(place)  # first: the kernel unmounts nothing that a loop device holds open
            self._unbind(place)
            bind(Path(device), place)
        reach("publish.after-bind")
        link = self._layout.device_link(pod_uid, name)
        self._root.make_dir(link.parent)
        self._root.link(link, device)
        reach("publish.after-link")
        if not loops_on(place):
            attach_loop(place)
        reach("publish.after-loop")

    def unmap(self, name: str, pod_uid: str) -> None:
        """Take a device away from a pod, as far as it has it.

        Raises:
            OSError: something could not be undone.
        """
        place = self._layout.device_map(name, pod_uid)
        reach("unpublish.before-loop")
        detach_loops(place)
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


def _is_same(one: str, other: Path) -> bool:
    """Whether two paths show the same device, or the same file."""
    first, second = os.stat(one), os.stat(other)  # noqa: PTH116  # devices' files: the kernel's own, which answer
    if stat.S_ISBLK(first.st_mode) and stat.S_ISBLK(second.st_mode):
        return first.st_rdev == second.st_rdev
    return (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino)
