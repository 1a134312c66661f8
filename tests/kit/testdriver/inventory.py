"""The Controller service's inventory: what there is, what it can do, what is free."""

from google.protobuf.wrappers_pb2 import Int64Value

from common.csi import csi_pb2 as pb
from examples.dirdriver import errors, sizes, topology
from tests.kit.testdriver import access, capabilities, names, paging
from tests.kit.testdriver.answers import volume_message
from tests.kit.testdriver.calls import Routes
from tests.kit.testdriver.driver import Driver
from tests.kit.testdriver.health import condition
from tests.kit.testdriver.records import Phase
from tests.kit.testdriver.state import Tables


class Inventory:
    """The part of csi.v1.Controller that changes nothing."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def routes(self) -> Routes:
        """The methods of this part."""
        return {
            "ControllerGetCapabilities": self.get_capabilities,
            "ValidateVolumeCapabilities": self.validate,
            "ListVolumes": self.list,
            "ControllerGetVolume": self.get,
            "GetCapacity": self.get_capacity,
        }

    def get_capabilities(self, _request: pb.ControllerGetCapabilitiesRequest) -> pb.ControllerGetCapabilitiesResponse:
        """What the switches add up to."""
        rpc = pb.ControllerServiceCapability.RPC
        chosen = capabilities.chosen(capabilities.CONTROLLER, self._driver.settings)
        return pb.ControllerGetCapabilitiesResponse(
            capabilities=[pb.ControllerServiceCapability(rpc=rpc(type=kind)) for kind in chosen]
        )

    def validate(self, request: pb.ValidateVolumeCapabilitiesRequest) -> pb.ValidateVolumeCapabilitiesResponse:
        """Confirm what the volume can do, or say in `message` why it cannot."""
        volume_id = names.require("volume_id", request.volume_id)
        if not request.volume_capabilities:
            raise errors.invalid("volume_capabilities is missing: the CSI spec requires it")
        for capability in request.volume_capabilities:
            volume = self._driver.volume(volume_id, capability)
            if reason := access.unfit(capability, volume.layout, volume.fs_type):
                return pb.ValidateVolumeCapabilitiesResponse(message=reason)
        confirmed = pb.ValidateVolumeCapabilitiesResponse.Confirmed(
            volume_context=request.volume_context,
            volume_capabilities=request.volume_capabilities,
            parameters=request.parameters,
            mutable_parameters=request.mutable_parameters,
        )
        return pb.ValidateVolumeCapabilitiesResponse(confirmed=confirmed)

    def list(self, request: pb.ListVolumesRequest) -> pb.ListVolumesResponse:
        """A page of all volumes; inline ones are their pod's affair and are not listed."""
        length = paging.page_length(request.max_entries)
        after = paging.start_after(request.starting_token)
        with self._driver.state.reading() as tables:
            found = tables.volumes.page(after, length + 1, phase=Phase.READY, ephemeral=False)
            page, token = paging.cut(found, length)
            entries = [
                pb.ListVolumesResponse.Entry(
                    volume=volume_message(self._driver, volume),
                    status=pb.ListVolumesResponse.VolumeStatus(published_node_ids=_nodes_of(tables, volume.volume_id)),
                )
                for volume in page
            ]
        if self._driver.settings.volume_condition:
            for volume, entry in zip(page, entries, strict=True):
                entry.status.MergeFromString(condition(self._driver, volume))
        return pb.ListVolumesResponse(entries=entries, next_token=token)

    def get(self, request: pb.ControllerGetVolumeRequest) -> pb.ControllerGetVolumeResponse:
        """One volume and the nodes it is published to."""
        volume = self._driver.volume(names.require("volume_id", request.volume_id))
        with self._driver.state.reading() as tables:
            nodes = _nodes_of(tables, volume.volume_id)
        return pb.ControllerGetVolumeResponse(
            volume=volume_message(self._driver, volume),
            status=pb.ControllerGetVolumeResponse.VolumeStatus(published_node_ids=nodes),
        )

    def get_capacity(self, request: pb.GetCapacityRequest) -> pb.GetCapacityResponse:
        """What is free on a node, or without a topology on the node with most of it; 0 where nothing can be made."""
        driver = self._driver
        with driver.state.reading() as tables:
            nodes = driver.nodes(tables)
            if driver.settings.topology and request.HasField("accessible_topology"):
                nodes = [n for n in nodes if topology.matches(request.accessible_topology, driver.topology_key, n)]
            free = max((driver.free_bytes(tables, node) for node in nodes), default=0)
        if request.volume_capabilities and not self._can_make(request):
            free = 0
        return pb.GetCapacityResponse(
            available_capacity=free,
            maximum_volume_size=Int64Value(value=min(free, driver.settings.largest_volume_bytes)),
            minimum_volume_size=Int64Value(value=sizes.SMALLEST_BYTES),
        )

    def _can_make(self, request: pb.GetCapacityRequest) -> bool:
        layout = access.layout_of(request.volume_capabilities, filesystem=self._driver.settings.filesystem)
        fs_type = access.fs_type_of(request.volume_capabilities, layout)
        known = not fs_type or fs_type in access.FS_TYPES
        return known and not any(access.unfit(item, layout, fs_type) for item in request.volume_capabilities)


def _nodes_of(tables: Tables, volume_id: str) -> list[str]:
    return sorted(attachment.node_id for attachment in tables.attachments.all(volume_id=volume_id))
