"""The Controller service's attachments: which node may use which volume."""

from common.csi import csi_pb2 as pb
from examples.dirdriver import errors
from tests.kit.testdriver import access, names
from tests.kit.testdriver.calls import Routes
from tests.kit.testdriver.driver import Driver, ready_volume
from tests.kit.testdriver.records import Attachment, Node, Volume
from tests.kit.testdriver.state import Tables

CONTEXT_KEY = "dirdriver/attached-to"
"""The one key of a publish context. The node service asks the state instead; it shows that contexts arrive."""


class Attachments:
    """The part of csi.v1.Controller that is about attaching."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def routes(self) -> Routes:
        """The methods of this part; none with `--no-attach`."""
        if not self._driver.settings.attach:
            return {}
        return {"ControllerPublishVolume": self.publish, "ControllerUnpublishVolume": self.unpublish}

    def publish(self, request: pb.ControllerPublishVolumeRequest) -> pb.ControllerPublishVolumeResponse:
        """Give a volume to a node; OK if the node has it in the same way.

        Raises:
            CsiError: as the CSI spec lists them, ControllerPublishVolume Errors.
        """
        volume_id = names.require("volume_id", request.volume_id)
        node_id = names.require("node_id", request.node_id, limits=False)
        if not request.HasField("volume_capability"):
            raise errors.invalid("volume_capability is missing: the CSI spec requires it")
        wanted = Attachment(
            volume_id=volume_id,
            node_id=node_id,
            mode=request.volume_capability.access_mode.mode,
            readonly=request.readonly,
            fingerprint=access.fingerprint(request.volume_capability),
        )
        with self._driver.state.writing() as tables:
            volume = ready_volume(tables, volume_id)
            node = tables.nodes.get(node_id=node_id)
            if node is None:
                raise errors.not_found(
                    f"node {node_id} does not exist: no driver was started as it on this state directory"
                )
            access.check_capability(request.volume_capability, volume.layout, volume.fs_type)
            self._check_reachable(volume, node_id)
            if not _check_others(tables, wanted):
                _check_limit(tables, node)
                tables.attachments.put(wanted)
        return pb.ControllerPublishVolumeResponse(publish_context={CONTEXT_KEY: node_id})

    def _check_reachable(self, volume: Volume, node_id: str) -> None:
        if self._driver.settings.topology and volume.node != node_id:
            raise errors.precondition(
                f"volume {volume.volume_id} lives on node {volume.node}; node {node_id} cannot reach it"
            )

    def unpublish(self, request: pb.ControllerUnpublishVolumeRequest) -> pb.ControllerUnpublishVolumeResponse:
        """Take a volume from a node, or from all if none is named; OK if it is not there, or does not exist."""
        volume_id = names.require("volume_id", request.volume_id)
        node = {"node_id": request.node_id} if request.node_id else {}
        with self._driver.state.writing() as tables:
            tables.attachments.delete(volume_id=volume_id, **node)
        return pb.ControllerUnpublishVolumeResponse()


def _check_others(tables: Tables, wanted: Attachment) -> bool:
    """Whether the node has the volume in this way already.

    Raises:
        CsiError: ALREADY_EXISTS if it has it in another way, FAILED_PRECONDITION if another node has it for itself.
    """
    for found in tables.attachments.all(volume_id=wanted.volume_id):
        if found == wanted:
            return True
        if found.node_id == wanted.node_id:
            raise errors.already_exists(
                f"volume {wanted.volume_id} is published to node {wanted.node_id} in another way; unpublish it first"
            )
        if {found.mode, wanted.mode} & access.SINGLE_NODE:
            raise errors.precondition(
                f"volume {wanted.volume_id} is published to node {found.node_id}; unpublish it first"
            )
    return False


def _check_limit(tables: Tables, node: Node) -> None:
    attached = len(tables.attachments.all(node_id=node.node_id))
    if node.max_volumes and attached >= node.max_volumes:
        raise errors.exhausted(f"node {node.node_id} has its {node.max_volumes} volumes; unpublish one first")
