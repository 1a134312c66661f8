"""The Controller service's snapshots. A snapshot is a whole copy of its volume's data, and outlives it.

It is taken while the volume may be in use: what the node has written but not synced is flushed first, but a writer that
goes on writing can leave its traces in the copy. A vendor's storage does this better; a directory cannot.
"""

import logging
import time
from dataclasses import replace

from common.csi import csi_pb2 as pb
from examples.dirdriver import errors
from tests.kit.testdriver import local, names, paging, placing
from tests.kit.testdriver.answers import snapshot_message
from tests.kit.testdriver.calls import Routes
from tests.kit.testdriver.driver import Driver, ready_volume
from tests.kit.testdriver.records import Phase, Snapshot, Volume, in_force
from tests.kit.testdriver.state import Tables

log = logging.getLogger("dirdriver.snapshots")


class Snapshots:
    """The part of csi.v1.Controller that is about snapshots."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def routes(self) -> Routes:
        """The methods of this part."""
        return {
            "CreateSnapshot": self.create,
            "DeleteSnapshot": self.delete,
            "ListSnapshots": self.list,
            "GetSnapshot": self.get,
        }

    def create(self, request: pb.CreateSnapshotRequest) -> pb.CreateSnapshotResponse:
        """Take a snapshot; one that has the name already is the answer if it is of the same volume."""
        driver = self._driver
        limits = driver.settings.limits
        source_id = names.require("source_volume_id", request.source_volume_id)
        name = names.require_name(request.name, limits=limits)
        names.check_map("parameters", request.parameters, limits=limits)
        with driver.state.writing() as tables:
            found = in_force(tables.snapshots.all(name=name, group_id=""))
            if found is None:
                volume = ready_volume(tables, source_id)
                self._check_place(request.accessibility_requirements, volume)
                snapshot = planned(driver, volume, name)
                tables.snapshots.put(snapshot)
        if found is not None:
            return self._known(found, source_id) or self.create(request)
        take(driver, volume, snapshot)
        with driver.state.writing() as tables:
            tables.snapshots.put(replace(snapshot, phase=Phase.READY))
        log.info("created %s of %s", snapshot.snapshot_id, source_id)
        return pb.CreateSnapshotResponse(snapshot=snapshot_message(driver, snapshot))

    def _known(self, found: Snapshot, source_id: str) -> pb.CreateSnapshotResponse | None:
        """The answer that is there already; None if it was only half made, and is gone now."""
        if found.source_volume_id != source_id:
            raise errors.already_exists(f"a snapshot of this name exists as {found.snapshot_id}, of another volume")
        if not self._driver.is_made(found, lambda: self._driver.forget(found)):
            return None
        return pb.CreateSnapshotResponse(snapshot=snapshot_message(self._driver, found))

    def _check_place(self, wanted: pb.TopologyRequirement, volume: Volume) -> None:
        if self._driver.settings.topology and self._driver.settings.snapshot_topology:
            placing.place(
                wanted, self._driver.topology_key, [volume.node], has_room=lambda _node: True, what="snapshot"
            )

    def delete(self, request: pb.DeleteSnapshotRequest) -> pb.DeleteSnapshotResponse:
        """Remove a snapshot; OK if there is none (CSI spec).

        Raises:
            CsiError: INVALID_ARGUMENT for a group's member (CSI spec), ABORTED while a volume is made from it.
        """
        snapshot_id = names.require("snapshot_id", request.snapshot_id)
        with self._driver.state.writing() as tables:
            snapshot = tables.snapshots.get(snapshot_id=snapshot_id)
            if snapshot is None:
                return pb.DeleteSnapshotResponse()
            if snapshot.group_id:
                raise errors.invalid(f"snapshot {snapshot_id} belongs to group {snapshot.group_id}; delete the group")
            check_not_copied(tables, snapshot_id)
            tables.snapshots.put(replace(snapshot, phase=Phase.DELETING, owner=self._driver.node))
        self._driver.forget(snapshot)
        log.info("deleted %s", snapshot_id)
        return pb.DeleteSnapshotResponse()

    def list(self, request: pb.ListSnapshotsRequest) -> pb.ListSnapshotsResponse:
        """A page of all snapshots, of one volume's, or the one named; unknown ids give an empty list (CSI spec)."""
        length = paging.page_length(request.max_entries)
        after = paging.start_after(request.starting_token)
        filters = {"snapshot_id": request.snapshot_id, "source_volume_id": request.source_volume_id}
        where = {column: value for column, value in filters.items() if value}
        with self._driver.state.reading() as tables:
            found = tables.snapshots.page(after, length + 1, phase=Phase.READY, **where)
        page, token = paging.cut(found, length)
        entries = [pb.ListSnapshotsResponse.Entry(snapshot=snapshot_message(self._driver, item)) for item in page]
        return pb.ListSnapshotsResponse(entries=entries, next_token=token)

    def get(self, request: pb.GetSnapshotRequest) -> pb.GetSnapshotResponse:
        """One snapshot."""
        snapshot_id = names.require("snapshot_id", request.snapshot_id)
        with self._driver.state.reading() as tables:
            snapshot = ready_snapshot(tables, snapshot_id)
        return pb.GetSnapshotResponse(snapshot=snapshot_message(self._driver, snapshot))


def ready_snapshot(tables: Tables, snapshot_id: str) -> Snapshot:
    """A snapshot that callers know of.

    Raises:
        CsiError: NOT_FOUND.
    """
    snapshot = tables.snapshots.get(snapshot_id=snapshot_id, phase=Phase.READY)
    if snapshot is None:
        raise errors.not_found(f"snapshot {snapshot_id} does not exist")
    return snapshot


def planned(driver: Driver, volume: Volume, name: str, *, group_id: str = "") -> Snapshot:
    """The record of a snapshot that is to be taken now."""
    return Snapshot(
        snapshot_id=names.new_id("snap"),
        name=name,
        phase=Phase.CREATING,
        owner=driver.node,
        layout=volume.layout,
        size_bytes=volume.size_bytes,
        fs_type=volume.fs_type,
        fs_bytes=volume.fs_bytes,
        node=volume.node,
        source_volume_id=volume.volume_id,
        group_id=group_id,
        created_ns=time.time_ns(),
    )


def take(driver: Driver, volume: Volume, snapshot: Snapshot) -> None:
    """Copy the data. A failure leaves neither data nor record."""
    try:
        local.flush(driver, volume)
        driver.pool.make(snapshot, volume)
    except BaseException:
        driver.forget(snapshot)
        raise


def check_not_copied(tables: Tables, snapshot_id: str) -> None:
    """Refuse to remove a snapshot that a volume is being made from.

    Raises:
        CsiError: ABORTED.
    """
    if tables.volumes.get(source_kind="snapshot", source_id=snapshot_id, phase=Phase.CREATING):
        raise errors.aborted(f"snapshot {snapshot_id} is being copied; try again")
