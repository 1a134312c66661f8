"""The Identity service, and the Controller service but for snapshots and health."""

import logging
from collections.abc import Iterable
from dataclasses import replace

from google.protobuf.wrappers_pb2 import Int64Value

from common.csi import csi_pb2 as pb
from examples.dirdriver import access as base_access
from examples.dirdriver import errors, identity, names, paging, sizes
from examples.dirdriver.topology import allowed, matches, topology_key, topology_of
from examples.dirdriver.volumes import CONTEXT_KEY, source_message
from tests.kit.testdriver import access, health, local
from tests.kit.testdriver.settings import Settings
from tests.kit.testdriver.state import ATTACHED, Book, State, Use, Volume

log = logging.getLogger("dirdriver.volumes")

Plugin = pb.PluginCapability.Service
RPC = pb.ControllerServiceCapability.RPC

CONTROLLER_SERVICES = (Plugin.CONTROLLER_SERVICE, Plugin.GROUP_CONTROLLER_SERVICE, Plugin.SNAPSHOT_METADATA_SERVICE)

ATTACHED_KEY = "dirdriver/attached-to"
"""The one key of a publish context. The node service asks the state instead; it shows that contexts arrive."""

RESERVED_PREFIX = "csi.storage.k8s.io/"
"""Kubernetes' own keys: `--extra-create-metadata` adds them to parameters, the kubelet to volume contexts."""

CAPABILITIES = (
    RPC.CREATE_DELETE_VOLUME,
    RPC.LIST_VOLUMES,
    RPC.GET_VOLUME,
    RPC.GET_CAPACITY,
    RPC.CREATE_DELETE_SNAPSHOT,
    RPC.LIST_SNAPSHOTS,
    RPC.GET_SNAPSHOT,
    RPC.CLONE_VOLUME,
    RPC.EXPAND_VOLUME,
    RPC.GET_VOLUME_HEALTH,
    RPC.LIST_VOLUME_HEALTH,
)


class Driver:
    """What every service works on. `topology` is that of this node's volumes; empty without topology."""

    def __init__(self, settings: Settings) -> None:
        """Open the state directory. Raises SettingsError if it cannot be used."""
        self.settings = settings
        self.node = settings.node_id
        self.key = topology_key(settings.driver_name)
        self.topology = [topology_of(self.key, self.node)] if settings.topology else []
        self.state = State(settings.state_dir, self.node, max_volumes=settings.max_volumes_per_node)

    def free_bytes(self, book: Book) -> int:
        return max(0, self.settings.capacity_bytes - sum(volume.size_bytes for volume in book.volumes.values()))

    def serves(self, wanted: pb.TopologyRequirement) -> bool:
        """Whether the topology of this node's volumes satisfies a requirement."""
        return not self.topology or allowed(wanted, self.key, self.node)

    def check_place(self, wanted: pb.TopologyRequirement) -> None:
        """Refuse a requirement that leaves this node out.

        Raises:
            CsiError: RESOURCE_EXHAUSTED, which lets the provisioner try another node (CSI spec, CreateVolume Errors).
        """
        if not self.serves(wanted):
            raise errors.exhausted(f"accessibility_requirements do not allow node {self.node}")

    def volume(self, volume_id: str, capability: pb.VolumeCapability | None = None) -> Volume:
        """A volume. With `--raw`, an image that was made for mounting serves as a block device, too.

        Raises:
            CsiError: NOT_FOUND.
        """
        volume = self.state.read().volume(volume_id)
        is_raw = self.settings.raw and capability is not None and capability.HasField("block")
        return replace(volume, layout=base_access.BLOCK, fs_type="") if is_raw else volume


class Identity(identity.Identity):
    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._switches = settings

    def services(self) -> list[pb.PluginCapability.Service.Type]:
        found = [*CONTROLLER_SERVICES] if self._switches.controller else []
        if self._switches.topology:
            found.append(Plugin.VOLUME_ACCESSIBILITY_CONSTRAINTS)
            if self._switches.snapshot_topology:
                found.append(Plugin.SNAPSHOT_ACCESSIBILITY_CONSTRAINTS)
        return found


class Volumes:
    """The part of csi.v1.Controller for volumes."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._settings = driver.settings
        self._state = driver.state

    def ControllerGetCapabilities(
        self, _request: pb.ControllerGetCapabilitiesRequest
    ) -> pb.ControllerGetCapabilitiesResponse:
        kinds = [*CAPABILITIES]
        if self._settings.attach:
            kinds += [RPC.PUBLISH_UNPUBLISH_VOLUME, RPC.PUBLISH_READONLY, RPC.LIST_VOLUMES_PUBLISHED_NODES]
        if self._settings.volume_condition:
            kinds.append(health.VOLUME_CONDITION)
        if self._settings.mutable_parameters:
            kinds.append(RPC.MODIFY_VOLUME)
        if self._settings.multi_writer:
            kinds.append(RPC.SINGLE_NODE_MULTI_WRITER)
        found = [pb.ControllerServiceCapability(rpc=RPC(type=kind)) for kind in kinds]
        return pb.ControllerGetCapabilitiesResponse(capabilities=found)

    def CreateVolume(self, request: pb.CreateVolumeRequest) -> pb.CreateVolumeResponse:
        name = names.require("name", request.name)
        book = self._state.read()
        if (volume := _named(book, name)) is None:
            wanted, source = self._planned(book, request)
            with self._state.made(wanted, source) as folder, self._state.writing() as book:
                volume = _named(book, name)  # another process' call may have made it meanwhile
                if volume is None:
                    made = self._state.settle(book, wanted, folder)
                    log.info("created %s", made.volume_id)
                    return pb.CreateVolumeResponse(volume=self._message(made))
        self._check_same(request, volume)
        return pb.CreateVolumeResponse(volume=self._message(volume))

    def _planned(self, book: Book, request: pb.CreateVolumeRequest) -> tuple[Volume, Volume | None]:
        self._check_mutable(request.mutable_parameters)
        layout, fs_type = self._kind(request)
        source = _source(book, request.volume_content_source)
        if source is not None and (source.layout, source.fs_type) != (layout, fs_type):
            raise errors.invalid(
                f"volume_content_source is a {source.layout} volume {source.fs_type}, not {layout} {fs_type}"
            )
        self._driver.check_place(request.accessibility_requirements)
        size = self._size(request.capacity_range, layout, fs_type, source.size_bytes if source else 0)
        if size > self._driver.free_bytes(book):
            raise errors.exhausted(f"not enough free capacity on {self._driver.node}")
        return Volume(
            volume_id=names.new_id("vol"),
            name=request.name,
            layout=layout,
            size_bytes=size,
            fs_type=fs_type,
            fs_bytes=source.fs_bytes if source else 0,
            parameters=dict(request.parameters),
            mutable_parameters=dict(request.mutable_parameters),
            snapshot_id=request.volume_content_source.snapshot.snapshot_id,
            source_volume_id=request.volume_content_source.volume.volume_id,
        ), source

    def _kind(self, request: pb.CreateVolumeRequest | pb.GetCapacityRequest) -> tuple[str, str]:
        layout = base_access.layout_of(request.volume_capabilities, filesystem=self._settings.filesystem)
        fs_type = access.fs_type_of(request.volume_capabilities, layout)
        for capability in request.volume_capabilities:
            access.check_capability(capability, layout, fs_type)
        return layout, fs_type

    def _size(self, wanted: pb.CapacityRange, layout: str, fs_type: str, smallest: int) -> int:
        return sizes.choose_size(
            wanted,
            smallest=max(local.KINDS[fs_type].smallest_bytes if fs_type else sizes.SMALLEST_BYTES, smallest),
            largest=self._settings.capacity_bytes,
            default=sizes.DEFAULT_BYTES,
            step=1 if layout == base_access.DIRECTORY else sizes.BLOCK_BYTES,
        )

    def _check_same(self, request: pb.CreateVolumeRequest, volume: Volume) -> None:
        """Refuse a name that a different volume has. Mutable parameters may have been modified since."""
        sizes.check_range(request.capacity_range)
        source = request.volume_content_source
        layout, _fs_type = self._kind(request)
        differences = {
            "capacity_range": not sizes.fits(volume.size_bytes, request.capacity_range),
            "volume_capabilities": layout != volume.layout
            or any(access.unfit(it, volume.layout, volume.fs_type) for it in request.volume_capabilities),
            "parameters": volume.parameters != dict(request.parameters),
            "volume_content_source": (volume.snapshot_id, volume.source_volume_id)
            != (source.snapshot.snapshot_id, source.volume.volume_id),
            "accessibility_requirements": not self._driver.serves(request.accessibility_requirements),
        }
        if different := [name for name, differs in differences.items() if differs]:
            raise errors.already_exists(
                f"a volume of this name exists as {volume.volume_id}, with another {', '.join(different)}; "
                "delete it or use another name"
            )

    def _check_mutable(self, parameters: Iterable[str]) -> None:
        """Refuse mutable parameters that `--mutable-parameter` does not name; Kubernetes' own keys are let through."""
        asked = {name for name in parameters if not name.startswith(RESERVED_PREFIX)}
        if unknown := sorted(asked - set(self._settings.mutable_parameters)):
            raise errors.invalid(f"mutable_parameters: {', '.join(unknown)} cannot be modified")

    def DeleteVolume(self, request: pb.DeleteVolumeRequest) -> pb.DeleteVolumeResponse:
        """Remove a volume and its data; OK if there is none (CSI spec). Its snapshots are copies, and stay.

        Raises:
            CsiError: FAILED_PRECONDITION while a node uses it.
        """
        volume_id = names.require("volume_id", request.volume_id)
        book = self._state.read()
        for use in book.found(volume_id=volume_id):
            raise errors.precondition(f"volume {volume_id} is {use.kind} on node {use.node}; undo that first")
        if volume_id in book.volumes:
            self._state.remove(book.volumes[volume_id])
            log.info("deleted %s", volume_id)
        return pb.DeleteVolumeResponse()

    def ListVolumes(self, request: pb.ListVolumesRequest) -> pb.ListVolumesResponse:
        book = self._state.read()
        page, token = paging.page(book.listed(), request.max_entries, request.starting_token)
        entries = []
        for volume in page:
            status = pb.ListVolumesResponse.VolumeStatus(published_node_ids=_nodes_of(book, volume))
            if self._settings.volume_condition:
                status.MergeFromString(health.condition(self._state, volume))
            entries.append(pb.ListVolumesResponse.Entry(volume=self._message(volume), status=status))
        return pb.ListVolumesResponse(entries=entries, next_token=token)

    def ControllerGetVolume(self, request: pb.ControllerGetVolumeRequest) -> pb.ControllerGetVolumeResponse:
        book = self._state.read()
        volume = book.volume(names.require("volume_id", request.volume_id))
        status = pb.ControllerGetVolumeResponse.VolumeStatus(published_node_ids=_nodes_of(book, volume))
        return pb.ControllerGetVolumeResponse(volume=self._message(volume), status=status)

    def ValidateVolumeCapabilities(
        self, request: pb.ValidateVolumeCapabilitiesRequest
    ) -> pb.ValidateVolumeCapabilitiesResponse:
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

    def GetCapacity(self, request: pb.GetCapacityRequest) -> pb.GetCapacityResponse:
        """The free capacity of this node; 0 for another node, and for capabilities that no volume can serve."""
        free = self._driver.free_bytes(self._state.read())
        if self._driver.topology and not matches(request.accessible_topology, self._driver.key, self._driver.node):
            free = 0
        try:
            if request.volume_capabilities:
                self._kind(request)
        except errors.CsiError:
            free = 0
        return pb.GetCapacityResponse(
            available_capacity=free,
            maximum_volume_size=Int64Value(value=free),
            minimum_volume_size=Int64Value(value=sizes.SMALLEST_BYTES),
        )

    def ControllerExpandVolume(self, request: pb.ControllerExpandVolumeRequest) -> pb.ControllerExpandVolumeResponse:
        volume_id = names.require("volume_id", request.volume_id)
        if not request.HasField("capacity_range"):
            raise errors.invalid("capacity_range is missing: the CSI spec requires it")
        with self._state.writing() as book:
            volume = book.volume(volume_id)
            if request.HasField("volume_capability"):
                access.check_capability(request.volume_capability, volume.layout, volume.fs_type)
            size = self._size(request.capacity_range, volume.layout, volume.fs_type, volume.size_bytes)
            if size - volume.size_bytes > self._driver.free_bytes(book):
                raise errors.exhausted(f"not enough free capacity on {self._driver.node}")
            volume = book.volumes[volume_id] = replace(volume, size_bytes=size)
        self._state.grow(volume)  # also if nothing grew: a crash may have come between record and data
        return pb.ControllerExpandVolumeResponse(
            capacity_bytes=size, node_expansion_required=volume.layout != base_access.DIRECTORY
        )

    def ControllerModifyVolume(self, request: pb.ControllerModifyVolumeRequest) -> pb.ControllerModifyVolumeResponse:
        volume_id = names.require("volume_id", request.volume_id)
        with self._state.writing() as book:
            volume = book.volume(volume_id)
            self._check_mutable(request.mutable_parameters)
            book.volumes[volume_id] = replace(volume, mutable_parameters=dict(request.mutable_parameters))
        return pb.ControllerModifyVolumeResponse()

    def ControllerPublishVolume(self, request: pb.ControllerPublishVolumeRequest) -> pb.ControllerPublishVolumeResponse:
        """Give a volume to a node; OK if the node has it in the same way.

        Raises:
            CsiError: as the CSI spec lists them, ControllerPublishVolume Errors.
        """
        volume_id = names.require("volume_id", request.volume_id)
        node = names.require("node_id", request.node_id)
        capability = request.volume_capability
        if not request.HasField("volume_capability"):
            raise errors.invalid("volume_capability is missing: the CSI spec requires it")
        wanted = Use(
            kind=ATTACHED,
            volume_id=volume_id,
            node=node,
            mode=capability.access_mode.mode,
            readonly=request.readonly,
            arguments=access.fingerprint(capability),
        )
        with self._state.writing() as book:
            volume = book.volume(volume_id)
            if node not in book.nodes:
                raise errors.not_found(f"node {node} does not exist: no driver was started as it")
            access.check_capability(capability, volume.layout, volume.fs_type)
            if wanted not in book.uses:
                _check_attachable(book, wanted)
                book.uses.append(wanted)
        return pb.ControllerPublishVolumeResponse(publish_context={ATTACHED_KEY: node})

    def ControllerUnpublishVolume(
        self, request: pb.ControllerUnpublishVolumeRequest
    ) -> pb.ControllerUnpublishVolumeResponse:
        volume_id = names.require("volume_id", request.volume_id)
        with self._state.writing() as book:
            node = {"node": request.node_id} if request.node_id else {}
            book.drop(*book.found(ATTACHED, volume_id=volume_id, **node))
        return pb.ControllerUnpublishVolumeResponse()

    def _message(self, volume: Volume) -> pb.Volume:
        return pb.Volume(
            volume_id=volume.volume_id,
            capacity_bytes=volume.size_bytes,
            volume_context={CONTEXT_KEY: volume.layout},
            content_source=source_message(volume),
            accessible_topology=self._driver.topology,
        )


def _named(book: Book, name: str) -> Volume | None:
    return next((volume for volume in book.listed() if volume.name == name), None)


def _source(book: Book, source: pb.VolumeContentSource) -> Volume | None:
    match source.WhichOneof("type"):
        case "snapshot":
            return book.snapshot(names.require("snapshot_id", source.snapshot.snapshot_id))
        case "volume":
            return book.volume(names.require("volume_id", source.volume.volume_id))
    return None


def _nodes_of(book: Book, volume: Volume) -> list[str]:
    return sorted(use.node for use in book.found(ATTACHED, volume_id=volume.volume_id))


def _check_attachable(book: Book, wanted: Use) -> None:
    """Refuse a second attachment that the first, or the node's limit, does not allow.

    Raises:
        CsiError: ALREADY_EXISTS, FAILED_PRECONDITION or RESOURCE_EXHAUSTED.
    """
    for found in book.found(ATTACHED, volume_id=wanted.volume_id):
        if found.node == wanted.node:
            raise errors.already_exists(f"volume {wanted.volume_id} is published to {wanted.node} in another way")
        if access.serves_one_node(found, wanted):
            raise errors.precondition(f"volume {wanted.volume_id} is published to node {found.node}; unpublish it")
    limit = book.nodes[wanted.node]
    if limit and len(book.found(ATTACHED, node=wanted.node)) >= limit:
        raise errors.exhausted(f"node {wanted.node} has its {limit} volumes; unpublish one first")
