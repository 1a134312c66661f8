"""The SnapshotMetadata service: which ranges of a block volume's snapshot hold data, or differ from an earlier one."""

from collections.abc import Iterable, Iterator
from typing import TypeVar

from common.csi import csi_pb2 as pb
from examples.dirdriver import errors
from tests.kit.testdriver import images, names, ranges, snapshots
from tests.kit.testdriver.access import Layout
from tests.kit.testdriver.calls import Routes
from tests.kit.testdriver.driver import Driver
from tests.kit.testdriver.ranges import Range
from tests.kit.testdriver.records import Snapshot

MESSAGE_RANGES = 4096
"""Ranges in one message where the caller sets no max_results: about 80 KiB."""

Answer = TypeVar("Answer", pb.GetMetadataAllocatedResponse, pb.GetMetadataDeltaResponse)


class Metadata:
    """csi.v1.SnapshotMetadata."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def routes(self) -> Routes:
        """The methods of this service; none with `--no-metadata`."""
        if not self._driver.settings.metadata:
            return {}
        return {"GetMetadataAllocated": self.allocated, "GetMetadataDelta": self.delta}

    def allocated(self, request: pb.GetMetadataAllocatedRequest) -> Iterator[pb.GetMetadataAllocatedResponse]:
        """The ranges that hold data."""
        snapshot = self._snapshot("snapshot_id", request.snapshot_id)
        size = self._size(snapshot)
        _check_window(request.starting_offset, request.max_results, size)
        found = self._pretended() or images.allocated(self._driver.pool.data(snapshot))
        return _answers(pb.GetMetadataAllocatedResponse, found, request.starting_offset, request.max_results, size)

    def delta(self, request: pb.GetMetadataDeltaRequest) -> Iterator[pb.GetMetadataDeltaResponse]:
        """The ranges in which the target differs from the base, an earlier snapshot of the same volume."""
        base = self._snapshot("base_snapshot_id", request.base_snapshot_id)
        target = self._snapshot("target_snapshot_id", request.target_snapshot_id)
        if base.source_volume_id != target.source_volume_id:
            raise errors.invalid("base_snapshot_id and target_snapshot_id are snapshots of different volumes")
        if base.created_ns > target.created_ns:
            raise errors.invalid("base_snapshot_id is younger than target_snapshot_id")
        size = self._size(target)
        _check_window(request.starting_offset, request.max_results, size)
        pool = self._driver.pool
        found = self._pretended() or images.changed(pool.data(base), pool.data(target))
        return _answers(pb.GetMetadataDeltaResponse, found, request.starting_offset, request.max_results, size)

    def _snapshot(self, field: str, snapshot_id: str) -> Snapshot:
        names.require(field, snapshot_id)
        with self._driver.state.reading() as tables:
            snapshot = snapshots.ready_snapshot(tables, snapshot_id)
        if snapshot.layout is not Layout.BLOCK:
            raise errors.invalid(f"{field}: {snapshot_id} is not a snapshot of a block volume")
        return snapshot

    def _pretended(self) -> Iterable[Range] | None:
        count = self._driver.settings.metadata_ranges
        return ranges.comb(count) if count else None

    def _size(self, snapshot: Snapshot) -> int:
        return max(snapshot.size_bytes, ranges.comb_size(self._driver.settings.metadata_ranges))


def _check_window(offset: int, max_results: int, size: int) -> None:
    if offset < 0 or offset > size:
        raise errors.out_of_range(f"starting_offset is not within the volume's {size} bytes")
    if max_results < 0:
        raise errors.invalid("max_results must not be negative")


def _answers(kind: type[Answer], found: Iterable[Range], offset: int, max_results: int, size: int) -> Iterator[Answer]:
    length = min(max_results or MESSAGE_RANGES, MESSAGE_RANGES)
    for batch in ranges.batches(ranges.starting_at(found, offset), length):
        yield kind(
            block_metadata_type=pb.BlockMetadataType.VARIABLE_LENGTH,
            volume_capacity_bytes=size,
            block_metadata=[pb.BlockMetadata(byte_offset=item.start, size_bytes=item.size) for item in batch],
        )
