"""SnapshotMetadata: allocated and changed ranges of block volumes."""

from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from common.csi import csi_pb2 as pb
from tests.integration.testdriver.support import MIB, Running, block, refused, size

if TYPE_CHECKING:
    from pathlib import Path

SIZE = 16 * MIB


def put(driver: Running, volume: pb.Volume, offset: int, data: bytes) -> None:
    image: Path = driver.state / "volumes" / volume.volume_id / "image"
    with image.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def cut(driver: Running, volume: pb.Volume, name: str) -> str:
    snapshot_id: str = driver.call("CreateSnapshot", name=name, source_volume_id=volume.volume_id).snapshot.snapshot_id
    return snapshot_id


def spans(messages: list[Any]) -> list[tuple[int, int]]:
    return [(item.byte_offset, item.size_bytes) for message in messages for item in message.block_metadata]


def test_the_allocated_ranges_are_those_that_were_written(driver: Running) -> None:
    volume = driver.create("a", block(), capacity_range=size(SIZE))
    put(driver, volume, 4096, b"x" * 4096)
    put(driver, volume, 3 * MIB, b"y" * 8192)
    snapshot = cut(driver, volume, "s")

    messages = driver.call("GetMetadataAllocated", snapshot_id=snapshot)

    assert spans(messages) == [(4096, 4096), (3 * MIB, 8192)]
    assert {(item.block_metadata_type, item.volume_capacity_bytes) for item in messages} == {(pb.VARIABLE_LENGTH, SIZE)}


def test_the_delta_holds_what_changed_and_nothing_else(driver: Running) -> None:
    volume = driver.create("a", block(), capacity_range=size(SIZE))
    put(driver, volume, 0, b"x" * 16384)
    base = cut(driver, volume, "base")
    put(driver, volume, 4096, b"y" * 4096)  # changed
    put(driver, volume, 8192, b"x" * 4096)  # written, and the same as before
    put(driver, volume, 12288, b"\0" * 4096)  # zeroed
    put(driver, volume, 5 * MIB, b"z")  # new
    target = cut(driver, volume, "target")

    messages = driver.call("GetMetadataDelta", base_snapshot_id=base, target_snapshot_id=target)

    assert spans(messages) == [(4096, 4096), (12288, 4096), (5 * MIB, 4096)]
    with refused("INVALID_ARGUMENT", "younger"):
        driver.call("GetMetadataDelta", base_snapshot_id=target, target_snapshot_id=base)


def test_equal_snapshots_have_no_delta_but_one_message_that_tells_the_size(driver: Running) -> None:
    volume = driver.create("a", block(), capacity_range=size(SIZE))
    base, target = cut(driver, volume, "base"), cut(driver, volume, "target")

    [message] = driver.call("GetMetadataDelta", base_snapshot_id=base, target_snapshot_id=target)

    assert (list(message.block_metadata), message.volume_capacity_bytes) == ([], SIZE)


@pytest.mark.parametrize("streams", [1, 3])
def test_200_000_ranges_are_streamed_in_order_without_overlap(start: Callable[..., Running], streams: int) -> None:
    driver = start("--metadata-ranges=200000")
    snapshot = cut(driver, driver.create("a", block()), "s")

    running = [driver.begin("GetMetadataAllocated", snapshot_id=snapshot) for _ in range(streams)]

    for stream in running:
        found = spans(list(stream))
        assert len(found) == 200_000
        assert all(first[0] + first[1] < second[0] for first, second in pairwise(found))


def test_a_stream_is_resumed_at_the_next_byte_and_keeps_to_max_results(start: Callable[..., Running]) -> None:
    driver = start("--metadata-ranges=10")
    snapshot = cut(driver, driver.create("a", block()), "s")
    whole = spans(driver.call("GetMetadataAllocated", snapshot_id=snapshot))

    messages = driver.call("GetMetadataAllocated", snapshot_id=snapshot, starting_offset=sum(whole[3]), max_results=4)

    assert spans(messages) == whole[4:]
    assert [len(message.block_metadata) for message in messages] == [4, 2]


def test_a_caller_that_goes_away_ends_its_stream_and_no_other(start: Callable[..., Running]) -> None:
    driver = start("--metadata-ranges=200000")
    snapshot = cut(driver, driver.create("a", block()), "s")
    left, kept = (driver.begin("GetMetadataAllocated", snapshot_id=snapshot) for _ in range(2))

    next(left)
    left.cancel()

    assert len(spans(list(kept))) == 200_000
    with pytest.raises(grpc.RpcError):
        list(left)
    assert sorted(call.code for call in driver.calls("GetMetadataAllocated")) == ["CANCELLED", "OK"]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"snapshot_id": ""}, "INVALID_ARGUMENT"),
        ({"snapshot_id": "snap-none"}, "NOT_FOUND"),
        ({"starting_offset": -1}, "OUT_OF_RANGE"),
        ({"starting_offset": SIZE + 1}, "OUT_OF_RANGE"),
        ({"max_results": -1}, "INVALID_ARGUMENT"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(driver: Running, fields: dict[str, Any], code: str) -> None:
    snapshot = cut(driver, driver.create("a", block(), capacity_range=size(SIZE)), "s")

    with refused(code):
        driver.call("GetMetadataAllocated", **{"snapshot_id": snapshot} | fields)


def test_a_snapshot_of_a_directory_has_no_blocks(driver: Running) -> None:
    snapshot = cut(driver, driver.create("a"), "s")

    with refused("INVALID_ARGUMENT", "not a snapshot of a block volume"):
        driver.call("GetMetadataAllocated", snapshot_id=snapshot)
