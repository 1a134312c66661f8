"""The Controller service's snapshots. A snapshot is a whole copy of its volume's data, and outlives it.

The copy is taken while pods may write. Files that a pod writes during the copy can be half written in the snapshot: a
vendor's storage does this better.
"""

import logging

from google.protobuf.timestamp_pb2 import Timestamp

from common.csi import csi_pb2 as pb
from examples.dirdriver import errors, names, paging
from examples.dirdriver.commands import run
from examples.dirdriver.loops import devices
from examples.dirdriver.store import Store, Volume

log = logging.getLogger("dirdriver.snapshots")


class Snapshots:
    """The part of csi.v1.Controller for snapshots."""

    def __init__(self, store: Store) -> None:
        self._volumes = store.volumes
        self._snapshots = store.snapshots

    def CreateSnapshot(self, request: pb.CreateSnapshotRequest) -> pb.CreateSnapshotResponse:
        """Copy a volume. If the name exists, return that snapshot; ALREADY_EXISTS if it is of another volume."""
        volume_id = names.require("source_volume_id", request.source_volume_id)
        name = names.require("name", request.name)
        snapshot = self._snapshots.named(name)
        if snapshot is None:
            snapshot = self._take(name, self._volumes.get(volume_id))
            log.info("created %s of %s", snapshot.volume_id, volume_id)
        elif snapshot.source_volume_id != volume_id:
            raise errors.already_exists(f"a snapshot of this name exists as {snapshot.volume_id}, of another volume")
        return pb.CreateSnapshotResponse(snapshot=_message(snapshot))

    def _take(self, name: str, volume: Volume) -> Volume:
        data = self._volumes.data(volume)
        for device, _readonly in devices(data):  # empty for a directory: a bind mount has no cache of its own
            run("blockdev", "--flushbufs", str(device))
        snapshot = Volume(
            volume_id=names.new_id("snap"),
            name=name,
            layout=volume.layout,
            size_bytes=volume.size_bytes,
            parameters={},
            source_volume_id=volume.volume_id,
        )
        return self._snapshots.make(snapshot, source=data)

    def DeleteSnapshot(self, request: pb.DeleteSnapshotRequest) -> pb.DeleteSnapshotResponse:
        snapshot = self._snapshots.find(names.require("snapshot_id", request.snapshot_id))
        if snapshot is not None:
            self._snapshots.remove(snapshot)
            log.info("deleted %s", snapshot.volume_id)
        return pb.DeleteSnapshotResponse()

    def ListSnapshots(self, request: pb.ListSnapshotsRequest) -> pb.ListSnapshotsResponse:
        """A page of all snapshots, of one volume's, or the one with an id. An unknown id gives no error (CSI spec)."""
        found = [
            snapshot
            for snapshot in self._snapshots.all()
            if request.snapshot_id in ("", snapshot.volume_id)
            and request.source_volume_id in ("", snapshot.source_volume_id)
        ]
        page, token = paging.page(found, request.max_entries, request.starting_token)
        entries = [pb.ListSnapshotsResponse.Entry(snapshot=_message(snapshot)) for snapshot in page]
        return pb.ListSnapshotsResponse(entries=entries, next_token=token)


def _message(snapshot: Volume) -> pb.Snapshot:
    created = Timestamp()
    created.FromMicroseconds(snapshot.created_us)
    return pb.Snapshot(
        snapshot_id=snapshot.volume_id,
        source_volume_id=snapshot.source_volume_id,
        size_bytes=snapshot.size_bytes,
        creation_time=created,
        ready_to_use=True,
    )
