"""The Node service's stagings: a volume brought up on this node, once, for all its publications.

What was asked is written down before the first mount, and forgotten after the last one is gone; what is mounted is read
from the kernel. So any call can be repeated, or undone, after a crash between the two (CSI spec, RPC Interactions).
"""

from pathlib import Path

from common.csi import csi_pb2 as pb
from examples.dirdriver import errors
from tests.kit.testdriver import access, local, names
from tests.kit.testdriver.calls import Routes
from tests.kit.testdriver.driver import Driver
from tests.kit.testdriver.records import Staging, Volume
from tests.kit.testdriver.state import Tables


class Stagings:
    """The part of csi.v1.Node that is about staging."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def routes(self) -> Routes:
        """The methods of this part; none with `--no-stage`."""
        if not self._driver.settings.stage:
            return {}
        return {"NodeStageVolume": self.stage, "NodeUnstageVolume": self.unstage}

    def stage(self, request: pb.NodeStageVolumeRequest) -> pb.NodeStageVolumeResponse:
        """Bring a volume up at the staging path; OK if it is up there in the same way."""
        volume_id = names.require("volume_id", request.volume_id)
        path = names.require_path("staging_target_path", request.staging_target_path)
        if not request.HasField("volume_capability"):
            raise errors.invalid("volume_capability is missing: the CSI spec requires it")
        volume = self._driver.volume(volume_id, request.volume_capability)
        if not Path(path).is_dir():
            raise errors.precondition("staging_target_path is not a directory; the caller makes it (CSI spec)")
        bring_up(self._driver, volume, Path(path), request.volume_capability)
        return pb.NodeStageVolumeResponse()

    def unstage(self, request: pb.NodeUnstageVolumeRequest) -> pb.NodeUnstageVolumeResponse:
        """Take a volume down; OK if it is not up, or does not exist."""
        driver = self._driver
        volume_id = names.require("volume_id", request.volume_id)
        path = names.require_path("staging_target_path", request.staging_target_path)
        with driver.state.reading() as tables:
            volume = tables.volumes.get(volume_id=volume_id)
            staging = tables.stagings.get(volume_id=volume_id, node_id=driver.node)
            published = tables.publications.get(volume_id=volume_id, node_id=driver.node)
        if volume is None or staging is None or staging.path != path:
            return pb.NodeUnstageVolumeResponse()
        if published is not None:
            raise errors.precondition(f"volume {volume_id} is published at {published.target}; unpublish it first")
        take_down(driver, volume, Path(path))
        return pb.NodeUnstageVolumeResponse()


def bring_up(driver: Driver, volume: Volume, path: Path, capability: pb.VolumeCapability) -> None:
    """Bring a volume up, with the record that says so. A failure leaves nothing of a new staging.

    Raises:
        CsiError: as the CSI spec lists them, NodeStageVolume Errors.
    """
    access.check_capability(capability, volume.layout, volume.fs_type)
    wanted = Staging(
        volume_id=volume.volume_id,
        node_id=driver.node,
        path=str(path),
        mode=capability.access_mode.mode,
        fingerprint=access.fingerprint(capability),
    )
    with driver.state.writing() as tables:
        check_right(driver, tables, volume)
        known = _check_others(tables, wanted)
        if not known:
            local.require_free(path, "staging_target_path")
        tables.stagings.put(wanted)
    try:
        local.bring_up(driver, volume, path, capability.mount.mount_flags)
        if driver.settings.mount_group and capability.mount.volume_mount_group:
            local.give_to_group(path, capability.mount.volume_mount_group)
    except BaseException:
        if not known:
            take_down(driver, volume, path)
        raise


def take_down(driver: Driver, volume: Volume, path: Path) -> None:
    """Undo `bring_up`; the record goes last."""
    local.take_down(driver, volume, path)
    with driver.state.writing() as tables:
        tables.stagings.delete(volume_id=volume.volume_id, node_id=driver.node)


def check_right(driver: Driver, tables: Tables, volume: Volume) -> None:
    """Refuse a volume that this node was not given, or cannot reach.

    Raises:
        CsiError: FAILED_PRECONDITION.
    """
    if volume.ephemeral:
        return
    if driver.settings.topology and volume.node != driver.node:
        raise errors.precondition(f"volume {volume.volume_id} lives on node {volume.node}, and this is {driver.node}")
    if driver.settings.attach and tables.attachments.get(volume_id=volume.volume_id, node_id=driver.node) is None:
        raise errors.precondition(
            f"volume {volume.volume_id} is not published to node {driver.node}; ControllerPublishVolume comes first"
        )


def _check_others(tables: Tables, wanted: Staging) -> bool:
    """Whether this staging is known already.

    Raises:
        CsiError: ALREADY_EXISTS for the same path with another capability, FAILED_PRECONDITION for another place.
    """
    for found in tables.stagings.all(volume_id=wanted.volume_id):
        if found == wanted:
            return True
        if found.node_id != wanted.node_id:
            if {found.mode, wanted.mode} & access.SINGLE_NODE:
                raise errors.precondition(
                    f"volume {wanted.volume_id} is staged on node {found.node_id}; unstage it there"
                )
        elif found.path == wanted.path:
            raise errors.already_exists(f"volume {wanted.volume_id} is staged at this path with another capability")
        else:
            raise errors.precondition(f"volume {wanted.volume_id} is staged at {found.path}; unstage it there first")
    return False
