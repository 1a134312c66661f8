"""Gives a pod its block device, and keeps the device from being replaced meanwhile.

The steps are the kubelet's (pkg/volume/util MapBlockVolume, volumepathhandler):

* The agent binds the driver's device to a file for the pod.
* It makes a link to the device in the pod's directory.
* It attaches a loop device to the bound file. This holds it open, so the kernel cannot give its number to another
  device.

Two things differ from the kubelet. The mount table tells whether a file is bound, so a driver that publishes an
ordinary file works too; the kubelet cannot unmap such a file. And if a file is bound to another device than the one
published now, the agent binds it again and replaces its loop device.
"""

import os
import stat
from pathlib import Path

from common.store.fault_points import reach
from edge.disk.layout import Layout
from edge.disk.loop_devices import attach_loop, detach_loops, loops_on
from edge.disk.mounts import bind, read_table, unmount
from edge.disk.root_dir import DIR_MODE, RootDir


class BlockDevices:
    """The block devices of pods below one root directory. Methods may hang for ever on a dead device."""

    def __init__(self, root: RootDir, layout: Layout) -> None:
        self._root = root
        self._layout = layout

    def device(self, name: str, pod_uid: str) -> str:
        """Return the real path of the driver's publication. Raises OSError if the driver published nothing."""
        return os.path.realpath(self._layout.block_target(name, pod_uid), strict=True)

    def map(self, name: str, pod_uid: str) -> None:
        """Give a pod its published device. If the pod has it already, nothing changes. `unmap` undoes a part of it."""
        device = self.device(name, pod_uid)
        place = self._layout.device_map(name, pod_uid)
        self._root.make_dir(place.parent)
        # The kubelet gives this file the mode of its directories (mapBindMountDevice). The device covers it.
        self._root.touch(place, DIR_MODE)
        reach("publish.before-bind")
        if not (self._bound(place) and _is_same(device, place)):
            detach_loops(place)  # first: the kernel unmounts nothing that a loop device holds open
            self._unbind(place)
            with self._root.held(place) as held:
                bind(Path(device), held)
        reach("publish.after-bind")
        link = self._layout.device_link(pod_uid, name)
        self._root.make_dir(link.parent)
        self._root.link(link, device)
        reach("publish.after-link")
        if not loops_on(place):
            with self._root.held(place) as held:
                attach_loop(place, held)
        reach("publish.after-loop")

    def unmap(self, name: str, pod_uid: str) -> None:
        """Take a device away from a pod. Steps that `map` has not done are skipped."""
        place = self._layout.device_map(name, pod_uid)
        reach("unpublish.before-loop")
        detach_loops(place)
        reach("unpublish.after-loop")
        self._root.drop_link(self._layout.device_link(pod_uid, name))
        reach("unpublish.after-link")
        self._unbind(place)
        reach("unpublish.after-unbind")
        self._root.remove_file(place)
        reach("unpublish.after-map")

    def _unbind(self, place: Path) -> None:
        while self._bound(place):
            with self._root.parent(place) as folder:
                unmount(Path(f"/proc/self/fd/{folder}", place.name))

    def _bound(self, place: Path) -> bool:
        return read_table(self._root.path).is_mount_point(place)


def _is_same(one: str, other: Path) -> bool:
    first, second = os.stat(one), os.stat(other)  # noqa: PTH116  # the kernel serves these files, so stat does not hang
    if stat.S_ISBLK(first.st_mode) and stat.S_ISBLK(second.st_mode):
        return first.st_rdev == second.st_rdev
    return (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino)
