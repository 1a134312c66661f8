"""The SnapshotMetadata service: which blocks of a snapshot hold data, and which differ between two snapshots.

It reads the images, so it costs a read of each. Snapshots of directories have no blocks.
"""

from collections.abc import Iterator
from itertools import chain, islice, repeat
from typing import Any

from common.csi import csi_pb2 as pb
from examples.dirdriver import access, errors, names
from examples.dirdriver.sizes import BLOCK_BYTES
from tests.kit.testdriver.state import Book, State, Volume

_IN_A_MESSAGE = 256  # blocks, if the caller names no limit

_NO_BLOCK = bytes(BLOCK_BYTES)


class SnapshotMetadata:
    def __init__(self, state: State) -> None:
        self._state = state

    def GetMetadataAllocated(
        self, request: pb.GetMetadataAllocatedRequest
    ) -> Iterator[pb.GetMetadataAllocatedResponse]:
        snapshot = _snapshot(self._state.read(), "snapshot_id", request.snapshot_id)
        return self._told(pb.GetMetadataAllocatedResponse, request, snapshot, None)

    def GetMetadataDelta(self, request: pb.GetMetadataDeltaRequest) -> Iterator[pb.GetMetadataDeltaResponse]:
        book = self._state.read()
        base = _snapshot(book, "base_snapshot_id", request.base_snapshot_id)
        target = _snapshot(book, "target_snapshot_id", request.target_snapshot_id)
        if base.source_volume_id != target.source_volume_id:
            raise errors.invalid(f"{base.volume_id} and {target.volume_id} are snapshots of different volumes")
        return self._told(pb.GetMetadataDeltaResponse, request, target, base)

    def _told(self, response: Any, request: Any, snapshot: Volume, base: Volume | None) -> Iterator[Any]:
        if not 0 <= request.starting_offset <= snapshot.size_bytes:
            raise errors.out_of_range(f"starting_offset is outside the volume of {snapshot.size_bytes} bytes")
        if request.max_results < 0:
            raise errors.invalid("max_results must not be negative")
        first = request.starting_offset // BLOCK_BYTES
        found = (it for it, is_other in enumerate(self._others(snapshot, base)) if is_other and it >= first)
        while numbers := list(islice(found, request.max_results or _IN_A_MESSAGE)):
            yield response(
                block_metadata_type=pb.BlockMetadataType.FIXED_LENGTH,
                volume_capacity_bytes=snapshot.size_bytes,
                block_metadata=[{"byte_offset": it * BLOCK_BYTES, "size_bytes": BLOCK_BYTES} for it in numbers],
            )

    def _others(self, snapshot: Volume, base: Volume | None) -> Iterator[bool]:
        """For each block of a snapshot, whether it is another than the base's; without base, whether it holds data."""
        blocks = self._blocks(snapshot)
        if base is None:
            return (block != _NO_BLOCK for block in blocks)
        # The volume may have grown since.
        befores = chain(self._blocks(base), repeat(_NO_BLOCK))
        return (block != before for block, before in zip(blocks, befores, strict=False))

    def _blocks(self, snapshot: Volume) -> Iterator[bytes]:
        with self._state.data(snapshot).open("rb") as file:
            while block := file.read(BLOCK_BYTES):
                yield block


def _snapshot(book: Book, field: str, snapshot_id: str) -> Volume:
    snapshot = book.snapshot(names.require(field, snapshot_id))
    if snapshot.layout == access.DIRECTORY:
        raise errors.precondition(f"snapshot {snapshot_id} is of a directory: its blocks are not known")
    return snapshot
