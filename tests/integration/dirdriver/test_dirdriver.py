"""The example driver: every method, repeated calls, and what a `kill -9` leaves."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from common.csi import csi_pb2 as pb
from tests.integration.testdriver.support import (
    MIB,
    Mode,
    Running,
    block,
    ended,
    mount,
    needs_loops,
    needs_mounts,
    refused,
    size,
    write,
)

GIB = 1024 * MIB


# ---- volumes ---------------------------------------------------------------------------------------------------------


def test_a_volume_is_a_directory_and_the_same_request_again_gets_the_same_volume(driver: Running) -> None:
    volume = driver.create("one")

    assert driver.create("one") == volume
    assert volume.capacity_bytes == MIB
    assert dict(volume.volume_context) == {"dirdriver/layout": "directory"}
    assert volume.accessible_topology[0].segments == {"topology.dirdriver.csi/node": "n1"}
    assert driver.volumes() == driver.on_disk() == [volume.volume_id]
    assert (driver.state / "volumes" / volume.volume_id / "data").is_dir()


@pytest.mark.parametrize(
    ("fields", "different"),
    [
        ({"capacity_range": size(2 * MIB)}, "capacity_range"),
        ({"parameters": {"a": "b"}}, "parameters"),
        ({"volume_capabilities": [block()]}, "layout"),
    ],
)
def test_a_name_of_a_different_volume_already_exists(driver: Running, fields: dict[str, Any], different: str) -> None:
    driver.create("one")
    with refused("ALREADY_EXISTS", different):
        driver.create("one", **fields)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"name": ""}, "INVALID_ARGUMENT"),
        ({"volume_capabilities": []}, "INVALID_ARGUMENT"),
        ({"volume_capabilities": [mount(fs_type="ext4")]}, "INVALID_ARGUMENT"),
        ({"capacity_range": size(200 * GIB)}, "OUT_OF_RANGE"),
        ({"capacity_range": size(2 * MIB, MIB)}, "OUT_OF_RANGE"),
        (
            {"volume_content_source": {"volume": {"volume_id": "vol-nowhere"}}},
            "NOT_FOUND",
        ),
        (
            {"accessibility_requirements": {"requisite": [{"segments": {"topology.dirdriver.csi/node": "n2"}}]}},
            "RESOURCE_EXHAUSTED",
        ),
    ],
)
def test_a_volume_that_cannot_be_made_is_refused_and_leaves_nothing(
    driver: Running, fields: dict[str, Any], code: str
) -> None:
    request = {"name": "one", "volume_capabilities": [mount()], **fields}
    with refused(code):
        driver.call("CreateVolume", **request)
    assert driver.on_disk() == driver.on_disk("unfinished") == []


def test_volumes_take_capacity_until_none_is_left(driver: Running) -> None:
    driver.create("large", capacity_range=size(99 * GIB))
    assert driver.call("GetCapacity").available_capacity == GIB
    with refused("RESOURCE_EXHAUSTED"):
        driver.create("another", capacity_range=size(2 * GIB))


def test_a_node_that_is_not_this_one_has_no_capacity(driver: Running) -> None:
    elsewhere = pb.Topology(segments={"topology.dirdriver.csi/node": "n2"})
    assert driver.call("GetCapacity", accessible_topology=elsewhere).available_capacity == 0
    here = pb.Topology(segments={"topology.dirdriver.csi/node": "n1"})
    assert driver.call("GetCapacity", accessible_topology=here).available_capacity == 100 * GIB


def test_lists_have_pages(driver: Running) -> None:
    ids = [driver.create(name).volume_id for name in ("a", "b", "c")]
    first = driver.call("ListVolumes", max_entries=2)
    rest = driver.call("ListVolumes", starting_token=first.next_token)
    assert [entry.volume.volume_id for entry in (*first.entries, *rest.entries)] == ids
    assert rest.next_token == ""
    with refused("ABORTED"):
        driver.call("ListVolumes", starting_token="foreign")


def test_a_deleted_volume_is_gone_and_may_be_deleted_again(driver: Running) -> None:
    volume = driver.create("one")
    for _ in range(2):
        driver.call("DeleteVolume", volume_id=volume.volume_id)
    assert driver.volumes() == driver.on_disk() == driver.on_disk("unfinished") == []
    assert driver.create("one").volume_id != volume.volume_id


def test_an_id_that_climbs_out_of_the_directory_names_no_volume(driver: Running) -> None:
    driver.call("DeleteVolume", volume_id="../volumes")
    driver.call("DeleteVolume", volume_id="..")
    assert driver.on_disk() == []


def test_validation_confirms_or_says_why_not(driver: Running) -> None:
    volume = driver.create("one")
    ask = {"volume_id": volume.volume_id, "volume_context": dict(volume.volume_context)}
    fits = driver.call("ValidateVolumeCapabilities", volume_capabilities=[mount(Mode.MULTI_NODE_MULTI_WRITER)], **ask)
    assert fits.HasField("confirmed")
    wrong = driver.call("ValidateVolumeCapabilities", volume_capabilities=[block()], **ask)
    assert not wrong.HasField("confirmed")
    assert "block" in wrong.message


def test_a_volume_grows_and_never_shrinks(driver: Running) -> None:
    volume = driver.create("one")
    grown = driver.call("ControllerExpandVolume", volume_id=volume.volume_id, capacity_range=size(3 * MIB))
    assert (grown.capacity_bytes, grown.node_expansion_required) == (3 * MIB, False)
    again = driver.call("ControllerExpandVolume", volume_id=volume.volume_id, capacity_range=size(2 * MIB))
    assert again.capacity_bytes == 3 * MIB
    assert driver.call("ListVolumes").entries[0].volume.capacity_bytes == 3 * MIB


# ---- copies ----------------------------------------------------------------------------------------------------------


def _data(driver: Running, volume: pb.Volume) -> Path:
    return driver.state / "volumes" / volume.volume_id / "data"


def test_a_snapshot_outlives_its_volume_and_is_restored(driver: Running) -> None:
    volume = driver.create("one")
    write(_data(driver, volume) / "file", "before")
    snapshot = driver.call("CreateSnapshot", name="s", source_volume_id=volume.volume_id).snapshot
    write(_data(driver, volume) / "file", "after")
    assert driver.call("CreateSnapshot", name="s", source_volume_id=volume.volume_id).snapshot == snapshot
    driver.call("DeleteVolume", volume_id=volume.volume_id)

    source = {"snapshot": {"snapshot_id": snapshot.snapshot_id}}
    restored = driver.create("two", volume_content_source=source, capacity_range=size(2 * MIB))

    assert (_data(driver, restored) / "file").read_text() == "before"
    assert restored.content_source.snapshot.snapshot_id == snapshot.snapshot_id
    (entry,) = driver.call("ListSnapshots", source_volume_id=volume.volume_id).entries
    assert (entry.snapshot, snapshot.ready_to_use) == (snapshot, True)
    driver.call("DeleteSnapshot", snapshot_id=snapshot.snapshot_id)
    assert not driver.call("ListSnapshots").entries


def test_a_snapshots_name_belongs_to_one_volume(driver: Running) -> None:
    one, two = driver.create("one"), driver.create("two")
    driver.call("CreateSnapshot", name="s", source_volume_id=one.volume_id)
    with refused("ALREADY_EXISTS"):
        driver.call("CreateSnapshot", name="s", source_volume_id=two.volume_id)


def test_a_clone_is_at_least_as_large_as_its_source(driver: Running) -> None:
    volume = driver.create("one", capacity_range=size(2 * MIB))
    source = {"volume": {"volume_id": volume.volume_id}}
    assert driver.create("two", volume_content_source=source, capacity_range=size(MIB)).capacity_bytes == 2 * MIB
    with refused("INVALID_ARGUMENT"):
        driver.create("three", block(), volume_content_source=source)


# ---- the node --------------------------------------------------------------------------------------------------------


@needs_mounts
def test_a_pod_writes_into_a_published_volume_and_all_calls_may_be_repeated(driver: Running, pod: Path) -> None:
    volume, staged, target = driver.create("one"), pod / "staged", pod / "target"
    for _ in range(2):
        driver.stage(volume, staged)
    for _ in range(2):
        driver.publish(volume, staged, target)
    write(target / "file", "hello")
    assert (_data(driver, volume) / "file").read_text() == "hello"
    with refused("FAILED_PRECONDITION", "mounted"):
        driver.call("DeleteVolume", volume_id=volume.volume_id)
    with refused("FAILED_PRECONDITION", "published"):
        driver.unstage(volume, staged)

    for _ in range(2):
        driver.unpublish(volume, target)
    for _ in range(2):
        driver.unstage(volume, staged)
    assert not target.exists()
    assert not list(staged.iterdir())
    driver.call("DeleteVolume", volume_id=volume.volume_id)


@needs_mounts
def test_a_read_only_publication_takes_no_writes_and_is_not_the_same_as_a_writable_one(
    driver: Running, pod: Path
) -> None:
    volume, staged, target = driver.create("one"), pod / "staged", pod / "target"
    driver.stage(volume, staged)
    driver.publish(volume, staged, target, readonly=True)
    with pytest.raises(OSError, match="Read-only"):
        (target / "file").touch()
    with refused("ALREADY_EXISTS"):
        driver.publish(volume, staged, target)


@needs_mounts
def test_nothing_is_published_that_is_not_staged_nor_where_something_else_is_mounted(
    driver: Running, pod: Path
) -> None:
    one, two = driver.create("one"), driver.create("two")
    with refused("FAILED_PRECONDITION", "not staged"):
        driver.publish(one, pod / "staged", pod / "target")
    driver.stage(one, pod / "staged")
    driver.publish(one, pod / "staged", pod / "target")
    driver.stage(two, pod / "other")
    with refused("FAILED_PRECONDITION", "something else"):
        driver.publish(two, pod / "other", pod / "target")
    driver.unpublish(two, pod / "target")
    write(pod / "target" / "file", "still published")
    assert (_data(driver, one) / "file").exists()


@needs_loops
def test_a_block_volume_is_a_device_that_grows_while_it_is_published(driver: Running, pod: Path) -> None:
    volume, staged, target = driver.create("one", block()), pod / "staged", pod / "target"
    driver.stage(volume, staged, block())
    for _ in range(2):
        driver.publish(volume, staged, target, block())
    assert target.is_block_device()
    with target.open("r+b") as device:
        device.write(b"hello")
    answer = driver.call("ControllerExpandVolume", volume_id=volume.volume_id, capacity_range=size(2 * MIB))
    assert answer.node_expansion_required
    driver.call("NodeExpandVolume", volume_id=volume.volume_id, volume_path=str(target))
    with target.open("rb") as device:
        assert device.seek(0, 2) == 2 * MIB
    snapshot = driver.call("CreateSnapshot", name="s", source_volume_id=volume.volume_id).snapshot
    assert (driver.state / "snapshots" / snapshot.snapshot_id / "image").read_bytes()[:5] == b"hello"

    driver.publish(volume, staged, pod / "read-only", block(), readonly=True)
    with pytest.raises(OSError, match="not permitted"):
        (pod / "read-only").write_bytes(b"never")
    with refused("FAILED_PRECONDITION"):
        driver.unstage(volume, staged)
    for path in (target, pod / "read-only"):
        driver.unpublish(volume, path)
        assert not path.exists()
    with refused("FAILED_PRECONDITION", "attached"):
        driver.call("DeleteVolume", volume_id=volume.volume_id)
    driver.unstage(volume, staged)
    driver.call("DeleteVolume", volume_id=volume.volume_id)


# ---- crashes and restarts --------------------------------------------------------------------------------------------


@needs_mounts
def test_after_kill_9_the_driver_finds_volumes_and_mounts_again(driver: Running, pod: Path) -> None:
    volume, staged, target = driver.create("one"), pod / "staged", pod / "target"
    driver.stage(volume, staged)
    driver.publish(volume, staged, target)
    driver.kill()
    driver.start()
    assert driver.create("one") == volume
    driver.publish(volume, staged, target)
    driver.unpublish(volume, target)
    driver.unstage(volume, staged)
    assert not target.exists()


def test_a_volume_that_was_half_made_is_removed_at_the_next_start(driver: Running) -> None:
    driver.stop()
    half = driver.state / "unfinished" / "vol-1" / "data"
    half.mkdir(parents=True)
    driver.start()
    assert driver.volumes() == driver.on_disk("unfinished") == []


def test_two_drivers_do_not_share_a_state_directory(driver: Running, root: Path) -> None:
    second = Running(root, node="n2", state=driver.state, example=True)
    assert "--state-dir" in ended(second)


def test_a_state_directory_of_the_driver_before_is_refused_untouched(root: Path) -> None:
    (root / "state").mkdir()
    (root / "state" / "state.db").touch()
    assert "older dirdriver" in ended(Running(root, example=True))
    assert [path.name for path in (root / "state").iterdir()] == ["state.db"]


@pytest.mark.parametrize(
    ("flags", "named"),
    [(["--node-id", "a b"], "--node-id"), (["--endpoint", "x"], "--endpoint")],
)
def test_a_flag_that_cannot_work_is_refused_with_its_name(
    start: Callable[..., Running], root: Path, flags: list[str], named: str
) -> None:
    assert named in ended(Running(root, *flags, example=True))
