"""The Node service: stage, publish, and back.

The driver remembers nothing of mounts and loop devices. It asks the kernel each time, so every call can be repeated or
undone after a crash or a reboot (CSI spec, RPC Interactions).
"""

from pathlib import Path

from common.csi import csi_pb2 as pb
from examples.dirdriver import access, errors, loops, mounts, names, sizes
from examples.dirdriver.settings import Settings
from examples.dirdriver.store import Store, Volume
from examples.dirdriver.topology import topology_key, topology_of

FOLDER_MODE = 0o750  # The mode of the directory at a target path. The mount hides it.

RPC = pb.NodeServiceCapability.RPC


class Node:
    """csi.v1.Node."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self._settings = settings
        self._volumes = store.volumes

    def NodeGetCapabilities(self, _request: pb.NodeGetCapabilitiesRequest) -> pb.NodeGetCapabilitiesResponse:
        kinds = (RPC.STAGE_UNSTAGE_VOLUME, RPC.EXPAND_VOLUME)
        return pb.NodeGetCapabilitiesResponse(
            capabilities=[pb.NodeServiceCapability(rpc=RPC(type=kind)) for kind in kinds]
        )

    def NodeGetInfo(self, _request: pb.NodeGetInfoRequest) -> pb.NodeGetInfoResponse:
        node, key = self._settings.node_id, topology_key(self._settings.driver_name)
        return pb.NodeGetInfoResponse(node_id=node, accessible_topology=topology_of(key, node))

    def NodeStageVolume(self, request: pb.NodeStageVolumeRequest) -> pb.NodeStageVolumeResponse:
        """Bind-mount a volume's directory at the staging path, or attach a block volume's loop device."""
        volume_id = names.require("volume_id", request.volume_id)
        path = Path(names.require_path("staging_target_path", request.staging_target_path))
        volume = self._usable(volume_id, request)
        if not path.is_dir():
            raise errors.precondition("staging_target_path is not a directory; the caller makes it (CSI spec)")
        mounts.require_mount_right("stage a volume")
        data = self._volumes.data(volume)
        if volume.layout == access.BLOCK:
            loops.attach(data)
        elif self._mounted(volume, path, "staging_target_path") is None:
            mounts.bind(data, path)
        return pb.NodeStageVolumeResponse()

    def NodeUnstageVolume(self, request: pb.NodeUnstageVolumeRequest) -> pb.NodeUnstageVolumeResponse:
        """Undo `stage`. OK if the volume is not staged there, or does not exist."""
        volume = self._volumes.find(names.require("volume_id", request.volume_id))
        path = Path(names.require_path("staging_target_path", request.staging_target_path))
        if volume is not None:
            others = (it for it in self._volumes.mounts(volume) if not mounts.is_one_place(Path(it.path), path))
            if other := next(others, None):
                raise errors.precondition(f"volume {volume.volume_id} is published at {other.path}; unpublish it first")
            if volume.layout == access.BLOCK:
                for readonly in (True, False):
                    loops.detach(self._volumes.data(volume), readonly=readonly)
            elif self._volumes.mounts(volume):
                mounts.unmount(path)
        return pb.NodeUnstageVolumeResponse()

    def NodePublishVolume(self, request: pb.NodePublishVolumeRequest) -> pb.NodePublishVolumeResponse:
        """Bind-mount a staged volume at the target path. OK if it is mounted there in the same way."""
        volume_id = names.require("volume_id", request.volume_id)
        target = Path(names.require_path("target_path", request.target_path))
        volume = self._usable(volume_id, request)
        if not target.parent.is_dir():
            raise errors.precondition("the parent of target_path is not a directory; the caller makes it (CSI spec)")
        source = self._staged(volume, request)
        found = self._mounted(volume, target, "target_path")
        flags = set(request.volume_capability.mount.mount_flags)
        if request.readonly:
            flags = flags - {"rw"} | {"ro"}
        # A crash between the two mount commands leaves a read-write mount of a read-only volume: `bind` mends it.
        if found is not None and "ro" in found.options and "ro" not in flags:
            raise errors.already_exists("the volume is published read-only at target_path; unpublish it first")
        if volume.layout == access.BLOCK:
            target.touch()
        else:
            target.mkdir(FOLDER_MODE, exist_ok=True)
        mounts.bind(source, target, flags=flags)
        return pb.NodePublishVolumeResponse()

    def _staged(self, volume: Volume, request: pb.NodePublishVolumeRequest) -> Path:
        """The directory or the device to bind-mount.

        A read-only block volume has a read-only device of its own: a read-only mount does not stop writes to a device.
        """
        if not request.staging_target_path:
            raise errors.precondition("staging_target_path is missing, and this driver stages (CSI spec)")
        path = Path(names.require_path("staging_target_path", request.staging_target_path))
        data = self._volumes.data(volume)
        if volume.layout == access.BLOCK and loops.find(data) is not None:
            return loops.attach(data, readonly=request.readonly)
        if volume.layout == access.BLOCK or self._mounted(volume, path, "staging_target_path") is None:
            raise errors.precondition(f"volume {volume.volume_id} is not staged at staging_target_path; stage it first")
        return path

    def NodeUnpublishVolume(self, request: pb.NodeUnpublishVolumeRequest) -> pb.NodeUnpublishVolumeResponse:
        """Unmount the target path and remove it. OK if the volume is not there, or does not exist."""
        volume = self._volumes.find(names.require("volume_id", request.volume_id))
        target = Path(names.require_path("target_path", request.target_path))
        found = mounts.mounted_at(target)
        if volume is not None and (found is None or found in self._volumes.mounts(volume)):
            mounts.unmount(target)
            if target.is_dir():
                target.rmdir()
            elif target.is_file() and not target.stat().st_size:
                target.unlink()
        return pb.NodeUnpublishVolumeResponse()

    def NodeExpandVolume(self, request: pb.NodeExpandVolumeRequest) -> pb.NodeExpandVolumeResponse:
        """Let a staged block volume's devices take the size of its image. A directory needs nothing."""
        volume_id = names.require("volume_id", request.volume_id)
        path = Path(names.require("volume_path", request.volume_path))
        volume = self._volumes.get(volume_id)
        sizes.check_range(request.capacity_range)
        if volume.layout != access.BLOCK and self._mounted(volume, path, "volume_path") is None:
            raise errors.not_found(f"volume {volume_id} is neither staged nor published at volume_path")
        if request.capacity_range.required_bytes > volume.size_bytes:
            raise errors.out_of_range(f"volume {volume_id} is smaller than that; ControllerExpandVolume comes first")
        for device, _readonly in loops.devices(self._volumes.data(volume)):
            loops.refresh(device)
        return pb.NodeExpandVolumeResponse(capacity_bytes=volume.size_bytes)

    def _usable(self, volume_id: str, request: pb.NodeStageVolumeRequest | pb.NodePublishVolumeRequest) -> Volume:
        if not request.HasField("volume_capability"):
            raise errors.invalid("volume_capability is missing: the CSI spec requires it")
        volume = self._volumes.get(volume_id)
        access.check_capability(request.volume_capability, volume.layout)
        return volume

    def _mounted(self, volume: Volume, path: Path, field: str) -> mounts.Mount | None:
        """The volume's mount at a path, or None. FAILED_PRECONDITION if something else is mounted there."""
        found = mounts.mounted_at(path)
        if found is not None and found not in self._volumes.mounts(volume):
            raise errors.precondition(f"something else is mounted at {field}; unmount it, or choose another path")
        return found
