"""The Node service but for health: staging, publishing, inline volumes, stats, growing."""

from pathlib import Path

from common.csi import csi_pb2 as pb
from examples.dirdriver import errors, loops, mounts, names, sizes
from examples.dirdriver.access import BLOCK, DIRECTORY, layout_of
from examples.dirdriver.node import FOLDER_MODE
from tests.kit.testdriver import access, local
from tests.kit.testdriver.controller import RESERVED_PREFIX, Driver
from tests.kit.testdriver.state import ATTACHED, PUBLISHED, STAGED, Book, Use, Volume

RPC = pb.NodeServiceCapability.RPC

EPHEMERAL_KEY = RESERVED_PREFIX + "ephemeral"
"""The kubelet's mark of an inline volume in volume_context (CSIDriver.spec.podInfoOnMount)."""

SIZE_KEY = "size"  # the one attribute that a pod may give to an inline volume: its size in Mi


class Node:
    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._settings = driver.settings
        self._state = driver.state
        self._node = driver.node

    def NodeGetCapabilities(self, _request: pb.NodeGetCapabilitiesRequest) -> pb.NodeGetCapabilitiesResponse:
        switches = {
            RPC.EXPAND_VOLUME: self._settings.node_expand,
            RPC.STAGE_UNSTAGE_VOLUME: self._settings.stage,
            RPC.SINGLE_NODE_MULTI_WRITER: self._settings.multi_writer,
            RPC.VOLUME_MOUNT_GROUP: self._settings.mount_group,
        }
        kinds = [RPC.GET_VOLUME_STATS, RPC.GET_VOLUME_HEALTH, RPC.GET_STORAGE_HEALTH]
        kinds += [kind for kind, on in switches.items() if on]
        found = [pb.NodeServiceCapability(rpc=RPC(type=kind)) for kind in kinds]
        return pb.NodeGetCapabilitiesResponse(capabilities=found)

    def NodeGetInfo(self, _request: pb.NodeGetInfoRequest) -> pb.NodeGetInfoResponse:
        return pb.NodeGetInfoResponse(
            node_id=self._node,
            max_volumes_per_node=self._settings.max_volumes_per_node,
            accessible_topology=next(iter(self._driver.topology), None),
        )

    # ---- staging ----

    def NodeStageVolume(self, request: pb.NodeStageVolumeRequest) -> pb.NodeStageVolumeResponse:
        volume_id = names.require("volume_id", request.volume_id)
        path = Path(names.require_path("staging_target_path", request.staging_target_path))
        _require_capability(request)
        volume = self._driver.volume(volume_id, request.volume_capability)
        if not path.is_dir():
            raise errors.precondition("staging_target_path is not a directory; the caller makes it (CSI spec)")
        self._bring_up(volume, path, request.volume_capability)
        return pb.NodeStageVolumeResponse()

    def _bring_up(self, volume: Volume, path: Path, capability: pb.VolumeCapability) -> None:
        """Bring a volume up, with the record that says so. A failure leaves nothing of a new staging."""
        access.check_capability(capability, volume.layout, volume.fs_type)
        wanted = Use(
            kind=STAGED,
            volume_id=volume.volume_id,
            node=self._node,
            path=str(path),
            mode=capability.access_mode.mode,
            arguments=access.fingerprint(capability),
        )
        with self._state.writing() as book:
            self._check_right(book, volume)
            known = wanted in book.uses
            if not known:
                _check_stageable(book, wanted)
                local.require_free(path, "staging_target_path")
                book.uses.append(wanted)
        try:
            local.bring_up(self._state, volume, path, capability.mount.mount_flags)
            if self._settings.mount_group and capability.mount.volume_mount_group:
                local.give_to_group(path, capability.mount.volume_mount_group)
        except BaseException:
            if not known:
                self._take_down(volume, wanted)
            raise

    def _check_right(self, book: Book, volume: Volume) -> None:
        """Refuse a volume that this node was not given."""
        needed = self._settings.attach and self._settings.controller and not volume.ephemeral
        if needed and not book.found(ATTACHED, volume_id=volume.volume_id, node=self._node):
            raise errors.precondition(
                f"volume {volume.volume_id} is not published to node {self._node}; ControllerPublishVolume comes first"
            )

    def NodeUnstageVolume(self, request: pb.NodeUnstageVolumeRequest) -> pb.NodeUnstageVolumeResponse:
        volume_id = names.require("volume_id", request.volume_id)
        path = names.require_path("staging_target_path", request.staging_target_path)
        book = self._state.read()
        for staged in book.found(STAGED, volume_id=volume_id, node=self._node, path=path):
            for use in book.found(PUBLISHED, volume_id=volume_id, node=self._node):
                raise errors.precondition(f"volume {volume_id} is published at {use.path}; unpublish it first")
            self._take_down(book.volume(volume_id), staged)
        return pb.NodeUnstageVolumeResponse()

    def _take_down(self, volume: Volume, staged: Use) -> None:
        local.take_down(self._state, volume, Path(staged.path))
        with self._state.writing() as book:
            book.drop(staged)

    # ---- publishing ----

    def NodePublishVolume(self, request: pb.NodePublishVolumeRequest) -> pb.NodePublishVolumeResponse:
        volume_id = names.require("volume_id", request.volume_id)
        target = Path(names.require_path("target_path", request.target_path))
        _require_capability(request)
        if not target.parent.is_dir():
            raise errors.precondition("the parent of target_path is not a directory; the caller makes it (CSI spec)")
        if request.volume_context.get(EPHEMERAL_KEY) == "true":
            mounts.require_mount_right("publish a volume")
            volume = self._inline_volume(request)
        else:
            volume = self._driver.volume(volume_id, request.volume_capability)
        access.check_capability(request.volume_capability, volume.layout, volume.fs_type)
        try:
            self._publish(volume, self._staged(volume, request), target, request)
        except BaseException:
            self._tidy(volume)
            raise
        return pb.NodePublishVolumeResponse()

    def _inline_volume(self, request: pb.NodePublishVolumeRequest) -> Volume:
        """The inline volume of a publication, which makes it; it ends with its last publication.

        The kubelet neither creates, attaches nor stages it (Kubernetes, CSI ephemeral volumes).
        """
        volume_id = request.volume_id
        volume = self._state.read().volumes.get(volume_id)
        if volume is not None:
            return volume
        layout = layout_of([request.volume_capability], filesystem=self._settings.filesystem)
        fs_type = access.fs_type_of([request.volume_capability], layout)
        wanted = Volume(
            volume_id=volume_id,
            name=volume_id,
            layout=layout,
            size_bytes=int(request.volume_context.get(SIZE_KEY, "1024Mi").removesuffix("Mi")) * sizes.MIB,
            fs_type=fs_type,
            parameters={},
            ephemeral=True,
        )
        access.check_capability(request.volume_capability, layout, fs_type)
        with self._state.made(wanted) as folder, self._state.writing() as book:
            return self._state.settle(book, wanted, folder)

    def _staged(self, volume: Volume, request: pb.NodePublishVolumeRequest) -> Path:
        """Where the volume is up on this node; brings it up if that is not the caller's task."""
        if self._stages_itself(volume):
            path = self._own_staging_path(volume)
            path.mkdir(parents=True, exist_ok=True)
            self._bring_up(volume, path, request.volume_capability)
            return path
        if not request.staging_target_path:
            raise errors.precondition("staging_target_path is missing, and this driver stages (NodePublishVolume)")
        path = Path(names.require_path("staging_target_path", request.staging_target_path))
        book = self._state.read()
        self._check_right(book, volume)
        staged = book.found(STAGED, volume_id=volume.volume_id, node=self._node, path=str(path))
        if not staged or not local.is_up(self._state, volume, path):
            raise errors.precondition(f"volume {volume.volume_id} is not staged at staging_target_path; stage it first")
        return path

    def _stages_itself(self, volume: Volume) -> bool:
        return volume.ephemeral or not self._settings.stage

    def _own_staging_path(self, volume: Volume) -> Path:
        return self._state.root / "nodes" / self._node / "staged" / volume.volume_id

    def _publish(self, volume: Volume, staged: Path, target: Path, request: pb.NodePublishVolumeRequest) -> None:
        capability = request.volume_capability
        with self._state.writing() as book:
            attached = book.found(ATTACHED, volume_id=volume.volume_id, node=self._node)
            wanted = Use(
                kind=PUBLISHED,
                volume_id=volume.volume_id,
                node=self._node,
                path=str(target),
                mode=capability.access_mode.mode,
                readonly=request.readonly or any(use.readonly for use in attached),
                # Contexts are left out: the kubelet renews tokens in them.
                arguments=access.fingerprint(capability, staged, request.readonly),
            )
            for other in book.found(PUBLISHED, node=self._node, path=str(target)):
                if other.volume_id != volume.volume_id:
                    raise errors.precondition(f"volume {other.volume_id} is published at target_path")
            known = access.may_publish(wanted, book.found(PUBLISHED, node=self._node, volume_id=volume.volume_id))
            if not known:
                local.require_free(target, "target_path")
                book.uses.append(wanted)
        try:
            mounts.require_mount_right("publish a volume")
            if volume.layout == BLOCK:
                target.touch()
            else:
                target.mkdir(FOLDER_MODE, exist_ok=True)
            flags = set(capability.mount.mount_flags) if volume.layout == DIRECTORY else set()
            if wanted.readonly:
                flags = flags - {"rw"} | {"ro"}
            source = local.bind_source(self._state, volume, staged, readonly=wanted.readonly)
            mounts.bind(source, target, flags=flags)
        except BaseException:
            if not known:
                self._undo(wanted, volume)
            raise

    def NodeUnpublishVolume(self, request: pb.NodeUnpublishVolumeRequest) -> pb.NodeUnpublishVolumeResponse:
        """Unmount a target path and remove it; OK if the volume is not there, or does not exist.

        The retry of an inline volume's unpublish finds it gone.
        """
        volume_id = names.require("volume_id", request.volume_id)
        target = names.require_path("target_path", request.target_path)
        book = self._state.read()
        volume = book.volumes.get(volume_id)
        if volume is not None:
            for use in book.found(PUBLISHED, volume_id=volume_id, node=self._node, path=target):
                self._undo(use, volume)
            self._tidy(volume)
        return pb.NodeUnpublishVolumeResponse()

    def _undo(self, published: Use, volume: Volume) -> None:
        """Undo a publication, whatever of it was done; the record goes last."""
        target = Path(published.path)
        mounts.unmount(target)
        _remove(target)
        others = self._state.read().found(PUBLISHED, volume_id=volume.volume_id, node=self._node)
        if volume.layout == BLOCK and not any(use.readonly for use in others if use != published):
            loops.detach(self._state.data(volume), readonly=True)
        with self._state.writing() as book:
            book.drop(published)

    def _tidy(self, volume: Volume) -> None:
        """Take down what this driver staged by itself when no publication needs it; an inline volume ends with that."""
        book = self._state.read()
        if not self._stages_itself(volume) or book.found(PUBLISHED, volume_id=volume.volume_id, node=self._node):
            return
        path = self._own_staging_path(volume)
        local.take_down(self._state, volume, path)
        with self._state.writing() as book:
            book.drop(*book.found(STAGED, volume_id=volume.volume_id, node=self._node))
        _remove(path)
        if volume.ephemeral:
            self._state.remove(volume)

    # ---- a volume that is up ----

    def NodeGetVolumeStats(self, request: pb.NodeGetVolumeStatsRequest) -> pb.NodeGetVolumeStatsResponse:
        volume_id = names.require("volume_id", request.volume_id)
        path = Path(names.require("volume_path", request.volume_path))
        volume = self._driver.volume(volume_id)
        if not self._is_at(volume, path) or (volume.layout != BLOCK and mounts.mounted_at(path) is None):
            raise errors.not_found(f"volume {volume_id} is neither staged nor published at volume_path")
        return pb.NodeGetVolumeStatsResponse(usage=local.usage_of(volume, path))

    def NodeExpandVolume(self, request: pb.NodeExpandVolumeRequest) -> pb.NodeExpandVolumeResponse:
        """Let a volume that is in use take the size that ControllerExpandVolume gave it; OK if it has it."""
        volume_id = names.require("volume_id", request.volume_id)
        path = Path(names.require("volume_path", request.volume_path))
        volume = self._driver.volume(volume_id, request.volume_capability)
        staged = self._state.read().found(STAGED, volume_id=volume_id, node=self._node)
        # The kubelet names a block volume's device or its own link to it: any path will do.
        if not staged or not (volume.layout == BLOCK or self._is_at(volume, path)):
            raise errors.not_found(f"volume {volume_id} is neither staged nor published at volume_path")
        sizes.check_range(request.capacity_range)
        if request.capacity_range.required_bytes > volume.size_bytes:
            raise errors.out_of_range(f"volume {volume_id} is smaller than that; ControllerExpandVolume comes first")
        local.grow(self._state, volume, Path(staged[0].path))
        return pb.NodeExpandVolumeResponse(capacity_bytes=volume.size_bytes)

    def _is_at(self, volume: Volume, path: Path) -> bool:
        """Whether the volume was staged or published at a path. Only links above it are followed."""
        uses = self._state.read().found(volume_id=volume.volume_id, node=self._node)
        return mounts.canonical(path) in {mounts.canonical(Path(use.path)) for use in uses if use.path}


def _require_capability(request: pb.NodeStageVolumeRequest | pb.NodePublishVolumeRequest) -> None:
    if not request.HasField("volume_capability"):
        raise errors.invalid("volume_capability is missing: the CSI spec requires it")


def _check_stageable(book: Book, wanted: Use) -> None:
    """Refuse a second staging.

    Raises:
        CsiError: ALREADY_EXISTS for the same path with another capability, FAILED_PRECONDITION for another place.
    """
    for found in book.found(STAGED, volume_id=wanted.volume_id):
        if found.node != wanted.node:
            if access.serves_one_node(found, wanted):
                raise errors.precondition(f"volume {wanted.volume_id} is staged on node {found.node}; unstage it there")
        elif found.path == wanted.path:
            raise errors.already_exists(f"volume {wanted.volume_id} is staged at this path with another capability")
        else:
            raise errors.precondition(f"volume {wanted.volume_id} is staged at {found.path}; unstage it there first")


def _remove(path: Path) -> None:
    """Remove what was made for a mount. Never more than one empty directory or one file: nothing of a volume can go."""
    if path.is_dir():
        path.rmdir()
    else:
        path.unlink(missing_ok=True)
