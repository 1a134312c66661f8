"""The Node service's publications: a volume mounted at a pod's target path.

Its record is written before the mount and removed after it, like a staging's.
"""

import hashlib
from pathlib import Path

from common.csi import csi_pb2 as pb
from examples.dirdriver import errors, mounts
from tests.kit.testdriver import access, local, names, stagings
from tests.kit.testdriver.access import Layout, Use
from tests.kit.testdriver.calls import Routes
from tests.kit.testdriver.driver import Driver
from tests.kit.testdriver.inline import inline_volume, is_inline
from tests.kit.testdriver.records import Publication, Volume
from tests.kit.testdriver.state import Tables

FOLDER_MODE = 0o750
"""Of the directory made at a target path; the mount hides it."""


class Publications:
    """The part of csi.v1.Node that is about publishing."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def routes(self) -> Routes:
        """The methods of this part."""
        return {"NodePublishVolume": self.publish, "NodeUnpublishVolume": self.unpublish}

    def publish(self, request: pb.NodePublishVolumeRequest) -> pb.NodePublishVolumeResponse:
        """Mount a volume at a target path; OK if it is mounted there in the same way."""
        volume_id = names.require("volume_id", request.volume_id)
        target = Path(names.require_path("target_path", request.target_path))
        if not request.HasField("volume_capability"):
            raise errors.invalid("volume_capability is missing: the CSI spec requires it")
        if not target.parent.is_dir():
            raise errors.precondition("the parent of target_path is not a directory; the caller makes it (CSI spec)")
        if is_inline(request):
            mounts.require_mount_right("publish a volume")
            volume = inline_volume(self._driver, request)
        else:
            volume = self._driver.volume(volume_id, request.volume_capability)
        access.check_capability(request.volume_capability, volume.layout, volume.fs_type)
        try:
            self._publish(volume, self._staged(volume, request), target, request)
        except BaseException:
            self._tidy(volume)
            raise
        return pb.NodePublishVolumeResponse()

    def _staged(self, volume: Volume, request: pb.NodePublishVolumeRequest) -> Path:
        """Where the volume is up on this node; brings it up if that is not the caller's task."""
        driver = self._driver
        if self._stages_itself(volume):
            path = driver.staging_path(volume.volume_id)
            path.mkdir(parents=True, exist_ok=True)
            stagings.bring_up(driver, volume, path, request.volume_capability)
            return path
        if not request.staging_target_path:
            raise errors.precondition(
                "staging_target_path is missing, and this driver stages (CSI spec, NodePublishVolume)"
            )
        path = Path(names.require_path("staging_target_path", request.staging_target_path))
        with driver.state.reading() as tables:
            stagings.check_right(driver, tables, volume)
            staging = tables.stagings.get(volume_id=volume.volume_id, node_id=driver.node)
        if staging is None or staging.path != str(path) or not local.is_up(driver, volume, path):
            raise errors.precondition(f"volume {volume.volume_id} is not staged at staging_target_path; stage it first")
        return path

    def _stages_itself(self, volume: Volume) -> bool:
        return volume.ephemeral or not self._driver.settings.stage

    def _publish(self, volume: Volume, staged: Path, target: Path, request: pb.NodePublishVolumeRequest) -> None:
        driver = self._driver
        capability = request.volume_capability
        with driver.state.writing() as tables:
            attached = tables.attachments.get(volume_id=volume.volume_id, node_id=driver.node)
            wanted = Publication(
                node_id=driver.node,
                target=str(target),
                volume_id=volume.volume_id,
                mode=capability.access_mode.mode,
                readonly=request.readonly or (attached is not None and attached.readonly),
                arguments=_arguments(capability, staged, readonly=request.readonly),
            )
            known = _check_others(tables, wanted)
            if not known:
                local.require_free(Path(wanted.target), "target_path")
            tables.publications.put(wanted)
        try:
            self._mount(volume, staged, wanted, capability.mount)
        except BaseException:
            if not known:
                self._undo(wanted, volume)
            raise

    def _mount(self, volume: Volume, staged: Path, wanted: Publication, mount: pb.VolumeCapability.MountVolume) -> None:
        mounts.require_mount_right("publish a volume")
        target = Path(wanted.target)
        if volume.layout is Layout.BLOCK:
            target.touch()
        else:
            target.mkdir(FOLDER_MODE, exist_ok=True)
        flags = set(mount.mount_flags) if volume.layout is Layout.DIRECTORY else set()
        if wanted.readonly:
            flags = flags - {"rw"} | {"ro"}
        source = local.bind_source(self._driver, volume, staged, readonly=wanted.readonly)
        mounts.bind(source, target, flags=flags)

    def unpublish(self, request: pb.NodeUnpublishVolumeRequest) -> pb.NodeUnpublishVolumeResponse:
        """Unmount a target path and remove it; OK if the volume is not there.

        OK as well if the volume does not exist: the retry of an inline volume's unpublish finds it gone.
        """
        driver = self._driver
        volume_id = names.require("volume_id", request.volume_id)
        target = names.require_path("target_path", request.target_path)
        with driver.state.reading() as tables:
            volume = tables.volumes.get(volume_id=volume_id)
            publication = tables.publications.get(node_id=driver.node, target=target, volume_id=volume_id)
        if publication is not None:
            self._undo(publication, volume)
        if volume is not None:
            self._tidy(volume)
        return pb.NodeUnpublishVolumeResponse()

    def _undo(self, publication: Publication, volume: Volume | None) -> None:
        """Undo a publication, whatever of it was done; the record goes last."""
        driver = self._driver
        target = Path(publication.target)
        mounts.unmount(target)
        _remove(target)
        with driver.state.reading() as tables:
            left = tables.publications.all(volume_id=publication.volume_id, node_id=driver.node)
        if volume is not None and not any(other.readonly for other in left if other.target != publication.target):
            local.drop_readonly(driver, volume)
        with driver.state.writing() as tables:
            tables.publications.delete(node_id=driver.node, target=publication.target)

    def _tidy(self, volume: Volume) -> None:
        """Take down what this driver staged by itself when no publication needs it; an inline volume ends with that."""
        driver = self._driver
        with driver.state.reading() as tables:
            needed = tables.publications.get(volume_id=volume.volume_id, node_id=driver.node)
        if needed is not None or not self._stages_itself(volume):
            return
        path = driver.staging_path(volume.volume_id)
        stagings.take_down(driver, volume, path)
        _remove(path)
        if volume.ephemeral:
            driver.forget(volume)


def _arguments(capability: pb.VolumeCapability, staged: Path, *, readonly: bool) -> str:
    """A hash of what repeated calls must have in common. Contexts are left out: the kubelet renews tokens in them."""
    parts = (access.fingerprint(capability), str(staged), str(readonly))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _check_others(tables: Tables, wanted: Publication) -> bool:
    """Whether this publication is known already.

    Raises:
        CsiError: ALREADY_EXISTS or FAILED_PRECONDITION (CSI spec, table of NodePublishVolume).
    """
    there = tables.publications.get(node_id=wanted.node_id, target=wanted.target)
    if there is not None and there.volume_id != wanted.volume_id:
        raise errors.precondition(f"volume {there.volume_id} is published at target_path; unpublish it first")
    existing = tables.publications.all(node_id=wanted.node_id, volume_id=wanted.volume_id)
    return access.may_publish(_use(wanted), [_use(other) for other in existing])


def _use(publication: Publication) -> Use:
    return Use(target=publication.target, arguments=publication.arguments, mode=publication.mode)


def _remove(path: Path) -> None:
    """Remove what was made for a mount. Never more than one empty directory or one file: nothing of a volume can go."""
    if path.is_dir():
        path.rmdir()
    else:
        path.unlink(missing_ok=True)
