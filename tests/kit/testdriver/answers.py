"""An answer's parts: records as messages of csi.proto."""

from google.protobuf.timestamp_pb2 import Timestamp

from common.csi import csi_pb2 as pb
from examples.dirdriver.topology import topology_of
from tests.kit.testdriver.driver import Driver
from tests.kit.testdriver.records import Group, Snapshot, Volume

CONTEXT_KEY = "dirdriver/layout"
"""The one key of a volume's context. The node service does not need it; it shows that contexts arrive."""


def volume_message(driver: Driver, volume: Volume) -> pb.Volume:
    """A volume as CreateVolume and ListVolumes tell of it."""
    return pb.Volume(
        volume_id=volume.volume_id,
        capacity_bytes=volume.size_bytes,
        volume_context={CONTEXT_KEY: volume.layout},
        content_source=_source(volume),
        accessible_topology=_topology(driver, volume.node),
    )


def _source(volume: Volume) -> pb.VolumeContentSource | None:
    match volume.source_kind:
        case "snapshot":
            return pb.VolumeContentSource(snapshot=pb.VolumeContentSource.SnapshotSource(snapshot_id=volume.source_id))
        case "volume":
            return pb.VolumeContentSource(volume=pb.VolumeContentSource.VolumeSource(volume_id=volume.source_id))
    return None


def snapshot_message(driver: Driver, snapshot: Snapshot) -> pb.Snapshot:
    """A snapshot; it is a whole copy, so it is ready as soon as anyone hears of it."""
    return pb.Snapshot(
        snapshot_id=snapshot.snapshot_id,
        source_volume_id=snapshot.source_volume_id,
        size_bytes=snapshot.size_bytes,
        creation_time=_timestamp(snapshot.created_ns),
        ready_to_use=True,
        group_snapshot_id=snapshot.group_id,
        accessible_topology=_topology(driver, snapshot.node) if driver.settings.snapshot_topology else [],
    )


def group_message(driver: Driver, group: Group, members: list[Snapshot]) -> pb.VolumeGroupSnapshot:
    """A group snapshot with its members."""
    return pb.VolumeGroupSnapshot(
        group_snapshot_id=group.group_id,
        snapshots=[snapshot_message(driver, member) for member in members],
        creation_time=_timestamp(group.created_ns),
        ready_to_use=True,
    )


def _topology(driver: Driver, node: str) -> list[pb.Topology]:
    return [topology_of(driver.topology_key, node)] if driver.settings.topology else []


def _timestamp(nanoseconds: int) -> Timestamp:
    stamp = Timestamp()
    stamp.FromNanoseconds(nanoseconds)
    return stamp
