"""The Controller service's volumes: create, delete, list, expand, validate, and the free capacity."""

import logging
from typing import Any

from google.protobuf.wrappers_pb2 import Int64Value

from common.csi import csi_pb2 as pb
from examples.dirdriver import access, errors, names, paging, sizes, topology
from examples.dirdriver.loops import devices
from examples.dirdriver.settings import Settings
from examples.dirdriver.store import Shelf, Store, Volume

log = logging.getLogger("dirdriver.volumes")

CONTEXT_KEY = "dirdriver/layout"
"""The key of a volume's context. The driver does not read it; it shows that contexts arrive at the node."""

RPC = pb.ControllerServiceCapability.RPC
CAPABILITIES = (
    RPC.CREATE_DELETE_VOLUME,
    RPC.LIST_VOLUMES,
    RPC.GET_CAPACITY,
    RPC.CREATE_DELETE_SNAPSHOT,
    RPC.LIST_SNAPSHOTS,
    RPC.CLONE_VOLUME,
    RPC.EXPAND_VOLUME,
)


class Volumes:
    """The part of csi.v1.Controller for volumes."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self._settings = settings
        self._store = store
        self._volumes = store.volumes
        self._key = topology.topology_key(settings.driver_name)

    def ControllerGetCapabilities(
        self, _request: pb.ControllerGetCapabilitiesRequest
    ) -> pb.ControllerGetCapabilitiesResponse:
        found = [pb.ControllerServiceCapability(rpc=RPC(type=kind)) for kind in CAPABILITIES]
        return pb.ControllerGetCapabilitiesResponse(capabilities=found)

    def CreateVolume(self, request: pb.CreateVolumeRequest) -> pb.CreateVolumeResponse:
        """Make a volume, empty or as a copy. If the name exists, return that volume; ALREADY_EXISTS if it differs."""
        name = names.require("name", request.name)
        layout = access.layout_of(request.volume_capabilities)
        for capability in request.volume_capabilities:
            access.check_capability(capability, layout)
        sizes.check_range(request.capacity_range)
        source = request.volume_content_source
        wanted = {
            "layout": layout,
            "parameters": dict(request.parameters),
            "snapshot_id": source.snapshot.snapshot_id,
            "source_volume_id": source.volume.volume_id,
        }
        volume = self._volumes.named(name)
        if volume is None:
            volume = self._make(request, name, wanted)
            log.info("created %s", volume.volume_id)
        else:
            self._check_same(request, volume, wanted)
        return pb.CreateVolumeResponse(volume=self._message(volume))

    def _make(self, request: pb.CreateVolumeRequest, name: str, wanted: dict[str, Any]) -> Volume:
        if not topology.allowed(request.accessibility_requirements, self._key, self._settings.node_id):
            raise errors.exhausted(f"accessibility_requirements do not allow node {self._settings.node_id}")
        shelf, source = self._source(request.volume_content_source)
        if source is not None and source.layout != wanted["layout"]:
            raise errors.invalid(f"volume_content_source is a {source.layout} volume, not {wanted['layout']}")
        size = self._size(request.capacity_range, wanted["layout"], source.size_bytes if source else 0)
        if size > self._free_bytes():
            raise errors.exhausted(f"not enough free capacity on {self._settings.node_id}")
        volume = Volume(volume_id=names.new_id("vol"), name=name, size_bytes=size, **wanted)
        return self._volumes.make(volume, source=shelf.data(source) if source else None)

    def _source(self, source: pb.VolumeContentSource) -> tuple[Shelf, Volume | None]:
        match source.WhichOneof("type"):
            case "snapshot":
                return self._store.snapshots, self._store.snapshots.get(source.snapshot.snapshot_id)
            case "volume":
                return self._volumes, self._volumes.get(source.volume.volume_id)
        return self._volumes, None

    def _size(self, wanted: pb.CapacityRange, layout: str, smallest: int) -> int:
        return sizes.choose_size(
            wanted,
            smallest=max(smallest, sizes.SMALLEST_BYTES),
            largest=self._settings.capacity_bytes,
            default=max(smallest, sizes.DEFAULT_BYTES),
            step=sizes.BLOCK_BYTES if layout == access.BLOCK else 1,
        )

    def _free_bytes(self) -> int:
        return max(0, self._settings.capacity_bytes - sum(volume.size_bytes for volume in self._volumes.all()))

    def _check_same(self, request: pb.CreateVolumeRequest, volume: Volume, wanted: dict[str, Any]) -> None:
        different = [field for field, value in wanted.items() if getattr(volume, field) != value]
        if not sizes.fits(volume.size_bytes, request.capacity_range):
            different.append("capacity_range")
        if not topology.allowed(request.accessibility_requirements, self._key, self._settings.node_id):
            different.append("accessibility_requirements")
        if different:
            raise errors.already_exists(
                f"a volume of this name exists as {volume.volume_id}, with another {', '.join(different)}; "
                "delete it or use another name"
            )

    def DeleteVolume(self, request: pb.DeleteVolumeRequest) -> pb.DeleteVolumeResponse:
        """Remove a volume and its data. OK if it does not exist (CSI spec). Its snapshots are copies, and stay."""
        volume = self._volumes.find(names.require("volume_id", request.volume_id))
        if volume is not None:
            if found := self._volumes.mounts(volume):
                raise errors.precondition(f"volume {volume.volume_id} is mounted at {found[0].path}; unmount it first")
            for device, _readonly in devices(self._volumes.data(volume)):
                raise errors.precondition(f"volume {volume.volume_id} is attached to {device}; unstage it first")
            self._volumes.remove(volume)
            log.info("deleted %s", volume.volume_id)
        return pb.DeleteVolumeResponse()

    def ListVolumes(self, request: pb.ListVolumesRequest) -> pb.ListVolumesResponse:
        page, token = paging.page(self._volumes.all(), request.max_entries, request.starting_token)
        entries = [pb.ListVolumesResponse.Entry(volume=self._message(volume)) for volume in page]
        return pb.ListVolumesResponse(entries=entries, next_token=token)

    def ValidateVolumeCapabilities(
        self, request: pb.ValidateVolumeCapabilitiesRequest
    ) -> pb.ValidateVolumeCapabilitiesResponse:
        """Confirm the capabilities that the volume can serve, or give the reason in `message`."""
        volume_id = names.require("volume_id", request.volume_id)
        if not request.volume_capabilities:
            raise errors.invalid("volume_capabilities is missing: the CSI spec requires it")
        volume = self._volumes.get(volume_id)
        for capability in request.volume_capabilities:
            if reason := access.unfit(capability, volume.layout):
                return pb.ValidateVolumeCapabilitiesResponse(message=reason)
        confirmed = pb.ValidateVolumeCapabilitiesResponse.Confirmed(
            volume_context=request.volume_context,
            volume_capabilities=request.volume_capabilities,
            parameters=request.parameters,
        )
        return pb.ValidateVolumeCapabilitiesResponse(confirmed=confirmed)

    def GetCapacity(self, request: pb.GetCapacityRequest) -> pb.GetCapacityResponse:
        """The free capacity of this node. 0 for another node, and for capabilities that no volume can serve."""
        free = self._free_bytes()
        if not topology.matches(request.accessible_topology, self._key, self._settings.node_id):
            free = 0
        if wanted := request.volume_capabilities:
            layout = access.layout_of(wanted)
            free = 0 if any(access.unfit(capability, layout) for capability in wanted) else free
        return pb.GetCapacityResponse(
            available_capacity=free,
            maximum_volume_size=Int64Value(value=free),
            minimum_volume_size=Int64Value(value=sizes.SMALLEST_BYTES),
        )

    def ControllerExpandVolume(self, request: pb.ControllerExpandVolumeRequest) -> pb.ControllerExpandVolumeResponse:
        """Grow a volume. OK if it is large enough already. The node must then grow a block volume's loop device."""
        volume_id = names.require("volume_id", request.volume_id)
        if not request.HasField("capacity_range"):
            raise errors.invalid("capacity_range is missing: the CSI spec requires it")
        volume = self._volumes.get(volume_id)
        if request.HasField("volume_capability"):
            access.check_capability(request.volume_capability, volume.layout)
        size = self._size(request.capacity_range, volume.layout, volume.size_bytes)
        if size - volume.size_bytes > self._free_bytes():
            raise errors.exhausted(f"not enough free capacity on {self._settings.node_id}")
        if size > volume.size_bytes:
            self._volumes.grow(volume, size)
        return pb.ControllerExpandVolumeResponse(
            capacity_bytes=size, node_expansion_required=volume.layout == access.BLOCK
        )

    def _message(self, volume: Volume) -> pb.Volume:
        return pb.Volume(
            volume_id=volume.volume_id,
            capacity_bytes=volume.size_bytes,
            volume_context={CONTEXT_KEY: volume.layout},
            content_source=source_message(volume),
            accessible_topology=[topology.topology_of(self._key, self._settings.node_id)],
        )


def source_message(volume: Volume) -> pb.VolumeContentSource | None:
    source = pb.VolumeContentSource
    if volume.snapshot_id:
        return source(snapshot=source.SnapshotSource(snapshot_id=volume.snapshot_id))
    if volume.source_volume_id:
        return source(volume=source.VolumeSource(volume_id=volume.source_volume_id))
    return None
