"""Snapshots: the Controller's methods, and GroupController.

A snapshot is a whole copy of its volume's data, and outlives it. It is taken while the volume may be in use: the driver
flushes first, but a writer that goes on writing can leave its traces in the copy. A vendor's storage does this better.
"""

import logging
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from google.protobuf.timestamp_pb2 import Timestamp

from common.csi import csi_pb2 as pb
from examples.dirdriver import errors, names, paging
from tests.kit.testdriver import local
from tests.kit.testdriver.controller import Driver
from tests.kit.testdriver.state import Book, Group, Volume

log = logging.getLogger("dirdriver.snapshots")


class Snapshots:
    """The part of csi.v1.Controller for snapshots, and csi.v1.GroupController: all of a group's members, or none."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._state = driver.state

    def CreateSnapshot(self, request: pb.CreateSnapshotRequest) -> pb.CreateSnapshotResponse:
        volume_id = names.require("source_volume_id", request.source_volume_id)
        name = names.require("name", request.name)
        book = self._state.read()
        if (found := _named(book, name)) is None:
            volume = book.volume(volume_id)
            if self._says_where:
                self._driver.check_place(request.accessibility_requirements)
            with self._taken(book, volume, name) as (wanted, folder), self._state.writing() as book:
                found = _named(book, name)  # another process' call may have made it meanwhile
                if found is None:
                    found = self._state.settle(book, wanted, folder)
                    log.info("created %s of %s", found.volume_id, volume_id)
        if found.source_volume_id != volume_id:
            raise errors.already_exists(f"a snapshot of this name exists as {found.volume_id}, of another volume")
        return pb.CreateSnapshotResponse(snapshot=self._message(found))

    @contextmanager
    def _taken(self, book: Book, volume: Volume, name: str, group_id: str = "") -> Iterator[tuple[Volume, Path]]:
        """A copy of a volume, and the folder where it is made; see `State.made`."""
        local.flush(self._state, book, volume)
        wanted = replace(
            volume,
            volume_id=names.new_id("snap"),
            name=name,
            source_volume_id=volume.volume_id,
            snapshot_id="",
            is_snapshot=True,
            group_id=group_id,
        )
        with self._state.made(wanted, volume) as folder:
            yield wanted, folder

    def DeleteSnapshot(self, request: pb.DeleteSnapshotRequest) -> pb.DeleteSnapshotResponse:
        """Remove a snapshot; OK if there is none (CSI spec). A group's member is INVALID_ARGUMENT (CSI spec)."""
        snapshot = self._state.read().snapshots.get(names.require("snapshot_id", request.snapshot_id))
        if snapshot is not None:
            if snapshot.group_id:
                raise errors.invalid(f"the snapshot belongs to group {snapshot.group_id}; delete the group")
            self._state.remove(snapshot)
            log.info("deleted %s", snapshot.volume_id)
        return pb.DeleteSnapshotResponse()

    def ListSnapshots(self, request: pb.ListSnapshotsRequest) -> pb.ListSnapshotsResponse:
        found = [
            snapshot
            for snapshot in self._state.read().snapshots.values()
            if request.snapshot_id in ("", snapshot.volume_id)
            and request.source_volume_id in ("", snapshot.source_volume_id)
        ]
        found.sort(key=lambda snapshot: snapshot.created_us)
        page, token = paging.page(found, request.max_entries, request.starting_token)
        entries = [pb.ListSnapshotsResponse.Entry(snapshot=self._message(snapshot)) for snapshot in page]
        return pb.ListSnapshotsResponse(entries=entries, next_token=token)

    def GetSnapshot(self, request: pb.GetSnapshotRequest) -> pb.GetSnapshotResponse:
        snapshot = self._state.read().snapshot(names.require("snapshot_id", request.snapshot_id))
        return pb.GetSnapshotResponse(snapshot=self._message(snapshot))

    def GroupControllerGetCapabilities(
        self, _request: pb.GroupControllerGetCapabilitiesRequest
    ) -> pb.GroupControllerGetCapabilitiesResponse:
        rpc = pb.GroupControllerServiceCapability.RPC
        kind = rpc(type=rpc.CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT)
        return pb.GroupControllerGetCapabilitiesResponse(capabilities=[pb.GroupControllerServiceCapability(rpc=kind)])

    def CreateVolumeGroupSnapshot(
        self, request: pb.CreateVolumeGroupSnapshotRequest
    ) -> pb.CreateVolumeGroupSnapshotResponse:
        name = names.require("name", request.name)
        if not request.source_volume_ids:
            raise errors.invalid("source_volume_ids is missing: the CSI spec requires it")
        sources = sorted(set(request.source_volume_ids))
        book = self._state.read()
        group = next((group for group in book.groups.values() if group.name == name), None)
        if group is None:
            volumes = [book.volume(volume_id) for volume_id in sources]
            group_id = names.new_id("group")
            with ExitStack() as stack:
                taken = [stack.enter_context(self._taken(book, volume, name, group_id)) for volume in volumes]
                with self._state.writing() as book:
                    group = Group(group_id=group_id, name=name, sources=sources, created_us=book.new_time_us())
                    book.groups[group_id] = group
                    for wanted, folder in taken:
                        self._state.settle(book, wanted, folder)
        elif group.sources != sources:
            raise errors.already_exists(f"a group snapshot of this name exists as {group.group_id}, of other volumes")
        return pb.CreateVolumeGroupSnapshotResponse(group_snapshot=self._group_message(book, group))

    def DeleteVolumeGroupSnapshot(
        self, request: pb.DeleteVolumeGroupSnapshotRequest
    ) -> pb.DeleteVolumeGroupSnapshotResponse:
        group_id = names.require("group_snapshot_id", request.group_snapshot_id)
        with self._state.writing() as book:
            if group_id not in book.groups:
                return pb.DeleteVolumeGroupSnapshotResponse()
            members = _members(book, group_id)
            _check_members(request.snapshot_ids, members)
            del book.groups[group_id]
            for member in members:
                del book.snapshots[member.volume_id]
        self._state.remove(*members)
        return pb.DeleteVolumeGroupSnapshotResponse()

    def GetVolumeGroupSnapshot(self, request: pb.GetVolumeGroupSnapshotRequest) -> pb.GetVolumeGroupSnapshotResponse:
        group_id = names.require("group_snapshot_id", request.group_snapshot_id)
        book = self._state.read()
        if group_id not in book.groups:
            raise errors.not_found(f"group snapshot {group_id} does not exist")
        _check_members(request.snapshot_ids, _members(book, group_id))
        return pb.GetVolumeGroupSnapshotResponse(group_snapshot=self._group_message(book, book.groups[group_id]))

    @property
    def _says_where(self) -> bool:
        return bool(self._driver.topology) and self._driver.settings.snapshot_topology

    def _message(self, snapshot: Volume) -> pb.Snapshot:
        return pb.Snapshot(
            snapshot_id=snapshot.volume_id,
            source_volume_id=snapshot.source_volume_id,
            size_bytes=snapshot.size_bytes,
            creation_time=_timestamp(snapshot.created_us),
            ready_to_use=True,
            group_snapshot_id=snapshot.group_id,
            accessible_topology=self._driver.topology if self._says_where else [],
        )

    def _group_message(self, book: Book, group: Group) -> pb.VolumeGroupSnapshot:
        return pb.VolumeGroupSnapshot(
            group_snapshot_id=group.group_id,
            snapshots=[self._message(member) for member in _members(book, group.group_id)],
            creation_time=_timestamp(group.created_us),
            ready_to_use=True,
        )


def _named(book: Book, name: str) -> Volume | None:
    found = (snapshot for snapshot in book.snapshots.values() if snapshot.name == name and not snapshot.group_id)
    return next(found, None)


def _members(book: Book, group_id: str) -> list[Volume]:
    return [snapshot for snapshot in book.snapshots.values() if snapshot.group_id == group_id]


def _check_members(asked: Iterable[str], members: list[Volume]) -> None:
    """Refuse a list of members that is not the group's (CSI spec); an empty one passes, as csi-sanity sends it."""
    ids = set(asked)
    if ids and ids != {member.volume_id for member in members}:
        raise errors.invalid("snapshot_ids are not the members of this group snapshot")


def _timestamp(microseconds: int) -> Timestamp:
    stamp = Timestamp()
    stamp.FromMicroseconds(microseconds)
    return stamp
