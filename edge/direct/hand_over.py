"""The disk's part of a handover: the device, the guard at the target, and the mount info for the runtime.

Rules:

* The runtime gets the path of the device itself, found by its number. The path of the driver's publication would do for
  a process on the host only.
* A guard is mounted at the target before the mount info is written, and stays until it is removed. A runtime that does
  not know direct volumes shares the target with its guest: it then shows an empty directory that cannot be written to,
  and no data ends on the host's disk.
* As soon as there may be a mount info, a guest may use the device. The agent then changes nothing on it.
* A volume is not taken back while the sandbox of a guest runs: the next pod's guest, or a check of the file system,
  would destroy what this one still writes. Only Kata's Go runtime leaves the ids of its sandboxes.
* All work blocks. It runs in threads of its own, because a device may be dead.
"""

import errno
import logging
import os
import stat
from collections.abc import Iterable
from pathlib import Path

from common.errors import BridgeError
from common.observe.metrics import VolumeStats
from common.store.fault_points import reach
from edge.direct import file_systems
from edge.direct.file_systems import Content
from edge.direct.mount_info import FS_GROUP, FS_GROUP_POLICY, mount_info
from edge.direct.shim_client import ShimClient
from edge.direct.store import KATA_ROOT, DirectVolumeStore
from edge.disk.found_volumes import Published
from edge.disk.layout import PLUGIN, Layout
from edge.disk.mounts import mount_guard, read_table, unmount
from edge.disk.own_thread import apart
from edge.disk.root_dir import RootDir
from edge.volume_errors import Uncertain
from edge.volumes import PodVolume

log = logging.getLogger("csi_bridge.edge.volumes")

_SYSFS = Path("/sys/dev/block")


class DirectVolumes:
    """The deferred volumes below one root directory, for runtimes of a host whose /run is `run_dir`.

    `devices`: the root directory below which the driver publishes their devices.
    Every failure is `Uncertain`: these steps come after the driver's publication, or before its end.
    """

    def __init__(self, root: Path, run_dir: Path, *, devices: Path | None = None) -> None:
        self._root, self._layout = RootDir(root), Layout(root)
        self._devices = Layout(devices or root)
        self._store, self._shim = DirectVolumeStore(run_dir / KATA_ROOT), ShimClient(run_dir)
        self._real = self._layout.real

    # ---- the device --------------------------------------------------------------------------------------------------

    async def device(self, published: Published) -> Path:
        return await apart(Uncertain, self._device, published)

    async def look(self, device: Path) -> Content:
        return await apart(Uncertain, file_systems.look, device)

    async def is_sound(self, device: Path, fs_type: str) -> bool:
        return await apart(Uncertain, file_systems.is_sound, device, fs_type)

    async def make(self, device: Path, fs_type: str, uuid: str, *, begun: bool) -> None:
        await apart(Uncertain, file_systems.finish if begun else file_systems.make, device, fs_type, uuid)
        reach("format.after-make")

    async def wait_idle(self, published: Published) -> None:
        """Return once no tool of an earlier agent works on the device; at once if the device is gone."""
        try:
            device = await self.device(published)
        except Uncertain:
            return
        await apart(Uncertain, file_systems.wait_idle, device)

    async def grow(self, device: Path, fs_type: str) -> bool:
        return await apart(Uncertain, file_systems.grow, device, fs_type)

    async def size_bytes(self, published: Published) -> int:
        return await apart(Uncertain, file_systems.size_bytes, await self.device(published))

    def _device(self, published: Published) -> Path:
        place = self._devices.device_map(published.name, published.pod_uid)
        number = place.stat().st_rdev
        if not stat.S_ISBLK(place.stat().st_mode):
            raise OSError(errno.ENOTBLK, f"driver {published.driver} has published no block device, but a file")
        found = _SYSFS / f"{os.major(number)}:{os.minor(number)}" / "uevent"
        told = dict(line.partition("=")[::2] for line in found.read_text().splitlines())
        device = Path("/dev") / told["DEVNAME"]
        if not device.exists() or device.stat().st_rdev != number:
            raise OSError(
                errno.ENODEV, f"{device} is not the published device; check that the agent sees the host's /dev"
            )
        return device

    # ---- the running guest -------------------------------------------------------------------------------------------

    async def stats(self, published: Published) -> VolumeStats:
        """Return the usage as the guest sees it. Without a guest that can tell, only the device's size is known."""
        path = self.volume_path(published)
        device = await apart(Uncertain, self._store.device, path)
        if device is None:
            raise Uncertain(f"the runtime does not know direct volume {path}")
        sandbox_ids = await apart(Uncertain, self._store.sandbox_ids, path)
        try:
            return await self._shim.stats(sandbox_ids, device)
        except BridgeError as error:
            log.debug("the usage of %s is not known: %s", published.key, error)
        size = await apart(Uncertain, file_systems.size_bytes, Path(device))
        return VolumeStats(capacity_bytes=size, is_size_only=True)

    # ---- the runtime's view ------------------------------------------------------------------------------------------

    async def hand_over(self, want: PodVolume, published: Published, device: Path) -> None:
        """Guard the target, and tell the runtime of the device. If that is done already, nothing changes."""
        await apart(Uncertain, self._guard, published)
        reach("handover.after-guard")
        info = _mount_info(want, device)
        await apart(Uncertain, self._store.add, self.volume_path(published), info, is_live=self._shim.is_live)
        reach("handover.after-info")

    async def take_back(self, published: Published) -> None:
        """Undo `hand_over`, whatever of it was done, unless a guest still runs. The guard's directories stay."""
        reach("unpublish.before-info")
        path = self.volume_path(published)
        if sandbox := await apart(Uncertain, self._running, path):
            raise Uncertain(f"sandbox {sandbox} still uses direct volume {path}; stop its containers")
        await apart(Uncertain, self._store.remove, path)
        reach("unpublish.after-info")
        await apart(Uncertain, self._unguard, self._target(published))
        reach("unpublish.after-guard")

    async def forget(self, published: Published) -> None:
        """Remove a mount info that a driver has written, and left behind when it unpublished."""
        if await apart(Uncertain, self._store.remove, self.volume_path(published)):
            log.warning("driver %s has left the mount info of %s; it is removed", published.driver, published.key)

    async def is_told(self, published: Published) -> bool:
        return self.volume_path(published) in await apart(Uncertain, self._store.volume_paths)

    async def standing(self) -> frozenset[str]:
        """Return the paths of the volumes that the runtime knows, and that have a guard or another mount in place."""
        return await apart(Uncertain, self._standing)

    async def sweep(self, kept: Iterable[Published]) -> None:
        """Remove the mount infos and guards below the root directory that belong to no volume of `kept`."""
        await apart(Uncertain, self._sweep, frozenset(map(self.volume_path, kept)))

    def volume_path(self, published: Published) -> str:
        """Return the path that the runtime knows the volume by: the target's, without symbolic links."""
        return str(self._real.target(published.pod_uid, published.name))

    def _target(self, published: Published) -> Path:
        return self._layout.target(published.pod_uid, published.name)

    def _guard(self, published: Published) -> None:
        target = self._target(published)
        mounts = read_table(self._root.path)
        if mounts.is_guard(target):
            return
        if mounts.is_mount_point(target):
            raise OSError(errno.EBUSY, f"something is mounted at {target}")
        self._root.drop_link(target)
        self._root.make_dir(target)
        with self._root.held(target) as held:
            mount_guard(held)

    def _unguard(self, target: Path) -> None:
        while read_table(self._root.path).is_guard(target):
            with self._root.parent(target) as folder:
                unmount(Path(f"/proc/self/fd/{folder}", target.name))

    def _running(self, volume_path: str) -> str:
        return next(filter(self._shim.is_live, self._store.sandbox_ids(volume_path)), "")

    def _standing(self) -> frozenset[str]:
        points = {mount.path for mount in read_table(self._root.path).mounts}
        return frozenset(path for path in self._store.volume_paths() if path in points)

    def _sweep(self, kept: frozenset[str]) -> None:
        self._store.sweep()
        for path in self._store.volume_paths():
            if path in kept or not self._is_own(path):
                continue
            if sandbox := self._running(path):
                log.warning("direct volume %s stays: no pod accounts for it, but sandbox %s runs", path, sandbox)
            else:
                log.warning("direct volume %s is removed: no pod's volume accounts for it", path)
                self._store.remove(path)
        for target in read_table(self._root.path).guards():
            if self._real_path(target) not in kept and self._real_path(target) not in self._store.volume_paths():
                self._unguard(target)

    def _is_own(self, volume_path: str) -> bool:
        # Other paths are other programs' volumes.
        path = Path(volume_path)
        if not path.is_relative_to(self._real.pods):
            return False
        _, *rest = path.relative_to(self._real.pods).parts or ("",)
        return rest == ["volumes", PLUGIN, path.parent.name, "mount"]

    def _real_path(self, target: Path) -> str:
        return str(self._real.root / target.relative_to(self._layout.root))


def _mount_info(want: PodVolume, device: Path) -> bytes:
    deferral = want.deferral
    assert deferral is not None
    metadata = {}
    if deferral.fs_group is not None:
        metadata[FS_GROUP] = str(deferral.fs_group)
        metadata[FS_GROUP_POLICY] = "OnRootMismatch" if want.pod.fs_group_on_root_mismatch else "Always"
    options = want.volume.mount_options
    if want.read_only and "ro" not in options:
        options = (*(option for option in options if option != "rw"), "ro")
    return mount_info(str(device), deferral.fs_type, options, metadata)
