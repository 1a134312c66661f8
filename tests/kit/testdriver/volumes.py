"""The Controller service's volumes: create, delete, expand, modify."""

import logging
from dataclasses import replace

from common.csi import csi_pb2 as pb
from examples.dirdriver import errors, sizes
from tests.kit.testdriver import access, names, placing, wishes
from tests.kit.testdriver.answers import volume_message
from tests.kit.testdriver.calls import Routes
from tests.kit.testdriver.driver import Driver, ready_volume
from tests.kit.testdriver.records import Content, Phase, Snapshot, Volume, in_force
from tests.kit.testdriver.state import Tables
from tests.kit.testdriver.wishes import Wish

log = logging.getLogger("dirdriver.volumes")


class Volumes:
    """The part of csi.v1.Controller that changes volumes."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def routes(self) -> Routes:
        """The methods of this part; ControllerModifyVolume only if some parameter can be modified."""
        routes: Routes = {
            "CreateVolume": self.create,
            "DeleteVolume": self.delete,
            "ControllerExpandVolume": self.expand,
        }
        modify = {"ControllerModifyVolume": self.modify} if self._driver.settings.mutable_parameters else {}
        return {**routes, **modify}

    def create(self, request: pb.CreateVolumeRequest) -> pb.CreateVolumeResponse:
        """Make a volume, empty or as a copy; one that has the name already is the answer if it grants the request.

        Three steps, so that a crash in any of them leaves nothing that the next start cannot remove: a record with the
        id, the data, the record made READY.
        """
        driver = self._driver
        wish = wishes.parse_wish(request, driver.settings)
        with driver.state.writing() as tables:
            found = in_force(tables.volumes.all(name=wish.name, ephemeral=False))
            if found is None:
                source = _find_source(tables, wish)
                volume = self._plan(tables, wish, source)
                tables.volumes.put(volume)
        if found is not None:
            return self._known(found, wish) or self.create(request)
        try:
            driver.pool.make(volume, source)
        except BaseException:
            driver.forget(volume)
            raise
        with driver.state.writing() as tables:
            tables.volumes.put(replace(volume, phase=Phase.READY))
        log.info("created %s", volume.volume_id)
        return pb.CreateVolumeResponse(volume=volume_message(driver, volume))

    def _known(self, found: Volume, wish: Wish) -> pb.CreateVolumeResponse | None:
        """The answer that is there already; None if it was only half made, and is gone now."""
        if not self._driver.is_made(found, lambda: self._driver.forget(found)):
            return None
        wishes.check_granted(wish, found, self._driver.topology_key)
        return pb.CreateVolumeResponse(volume=volume_message(self._driver, found))

    def _plan(self, tables: Tables, wish: Wish, source: Content | None) -> Volume:
        """The volume to be made: its size and its place."""
        driver = self._driver
        if source is not None:
            wishes.check_source(wish, source)
        size = wishes.wished_size(wish, source, driver.settings)
        node = placing.place(
            wish.places,
            driver.topology_key,
            [source.node] if source else driver.nodes(tables),  # a copy lives where its source lives
            has_room=lambda node: driver.free_bytes(tables, node) >= size,
            what="volume",
        )
        return Volume(
            volume_id=names.new_id("vol"),
            name=wish.name,
            phase=Phase.CREATING,
            owner=driver.node,
            layout=wish.layout,
            size_bytes=size,
            fs_type=wish.fs_type,
            fs_bytes=source.fs_bytes if source else 0,
            node=node,
            parameters=wish.parameters,
            mutable_parameters=wish.mutable_parameters,
            source_kind=wish.source_kind,
            source_id=wish.source_id,
        )

    def delete(self, request: pb.DeleteVolumeRequest) -> pb.DeleteVolumeResponse:
        """Remove a volume and its data; OK if there is none (CSI spec). Its snapshots are copies, and stay.

        Raises:
            CsiError: FAILED_PRECONDITION while a node uses it, ABORTED while it is being copied.
        """
        volume_id = names.require("volume_id", request.volume_id)
        with self._driver.state.writing() as tables:
            volume = tables.volumes.get(volume_id=volume_id)
            if volume is None:
                return pb.DeleteVolumeResponse()
            _check_unused(tables, volume_id)
            tables.volumes.put(replace(volume, phase=Phase.DELETING, owner=self._driver.node))
        self._driver.forget(volume)
        log.info("deleted %s", volume_id)
        return pb.DeleteVolumeResponse()

    def expand(self, request: pb.ControllerExpandVolumeRequest) -> pb.ControllerExpandVolumeResponse:
        """Grow a volume; OK if it is large enough already. What is on a loop device must grow on the node as well."""
        volume_id = names.require("volume_id", request.volume_id)
        if not request.HasField("capacity_range"):
            raise errors.invalid("capacity_range is missing: the CSI spec requires it")
        with self._driver.state.writing() as tables:
            volume = ready_volume(tables, volume_id)
            if request.HasField("volume_capability"):
                access.check_capability(request.volume_capability, volume.layout, volume.fs_type)
            size = max(volume.size_bytes, self._grown_size(volume, request.capacity_range))
            if size - volume.size_bytes > self._driver.free_bytes(tables, volume.node):
                raise errors.exhausted(f"volume {volume_id}: not enough free capacity on {volume.node}")
            tables.volumes.put(replace(volume, size_bytes=size))
        self._driver.pool.grow(volume, size)  # also if nothing grew: a crash may have come between record and data
        return pb.ControllerExpandVolumeResponse(
            capacity_bytes=size, node_expansion_required=volume.layout is not access.Layout.DIRECTORY
        )

    def _grown_size(self, volume: Volume, wanted: pb.CapacityRange) -> int:
        return sizes.choose_size(
            wanted,
            smallest=volume.size_bytes,
            largest=self._driver.settings.largest_volume_bytes,
            default=volume.size_bytes,
            step=1 if volume.layout is access.Layout.DIRECTORY else sizes.BLOCK_BYTES,
        )

    def modify(self, request: pb.ControllerModifyVolumeRequest) -> pb.ControllerModifyVolumeResponse:
        """Take mutable parameters; all of them or none."""
        volume_id = names.require("volume_id", request.volume_id)
        with self._driver.state.writing() as tables:
            volume = ready_volume(tables, volume_id)
            wishes.check_mutable(request.mutable_parameters, self._driver.settings)
            tables.volumes.put(replace(volume, mutable_parameters=wishes.canonical(request.mutable_parameters)))
        return pb.ControllerModifyVolumeResponse()


def _find_source(tables: Tables, wish: Wish) -> Content | None:
    source: Volume | Snapshot | None = None
    match wish.source_kind:
        case "":
            return None
        case "snapshot":
            source = tables.snapshots.get(snapshot_id=wish.source_id, phase=Phase.READY)
        case "volume":
            source = tables.volumes.get(volume_id=wish.source_id, phase=Phase.READY)
    if source is None:
        raise errors.not_found(f"volume_content_source: {wish.source_kind} {wish.source_id} does not exist")
    return source


def _check_unused(tables: Tables, volume_id: str) -> None:
    if (attachment := tables.attachments.get(volume_id=volume_id)) is not None:
        raise errors.precondition(f"volume {volume_id} is published to node {attachment.node_id}; unpublish it first")
    for table in (tables.stagings, tables.publications):
        if (use := table.get(volume_id=volume_id)) is not None:
            raise errors.precondition(
                f"volume {volume_id} is in use on node {use.node_id}; unpublish and unstage it first"
            )
    copies = tables.volumes.get(source_kind="volume", source_id=volume_id, phase=Phase.CREATING)
    if copies or tables.snapshots.get(source_volume_id=volume_id, phase=Phase.CREATING):
        raise errors.aborted(f"volume {volume_id} is being copied; try again")
