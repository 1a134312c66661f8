"""Volumes through the driver's socket. Needs no root."""

from collections.abc import Callable
from typing import Any

import pytest

from common.csi import csi_pb2 as pb
from tests.integration.testdriver.support import MIB, Running, block, mount, refused, size

GIB = 1024 * MIB


def snapshot_source(snapshot_id: str) -> pb.VolumeContentSource:
    return pb.VolumeContentSource(snapshot=pb.VolumeContentSource.SnapshotSource(snapshot_id=snapshot_id))


def volume_source(volume_id: str) -> pb.VolumeContentSource:
    return pb.VolumeContentSource(volume=pb.VolumeContentSource.VolumeSource(volume_id=volume_id))


def test_a_volume_is_a_directory_from_create_to_delete(driver: Running) -> None:
    volume = driver.create("a")

    assert (driver.state / "volumes" / volume.volume_id / "data").is_dir()
    assert driver.volumes() == [volume.volume_id]

    driver.call("DeleteVolume", volume_id=volume.volume_id)

    assert (driver.volumes(), driver.on_disk()) == ([], [])


def test_a_block_volume_is_a_sparse_file_of_its_size(driver: Running) -> None:
    volume = driver.create("a", block(), capacity_range=size(GIB))

    image = (driver.state / "volumes" / volume.volume_id / "image").stat()
    assert (image.st_size, image.st_blocks) == (GIB, 0)


def test_creating_a_volume_again_answers_with_the_same_one(driver: Running) -> None:
    assert driver.create("a") == driver.create("a")
    assert len(driver.on_disk()) == 1


def test_a_name_may_be_used_again_after_its_volume_was_deleted(driver: Running) -> None:
    first = driver.create("a")
    driver.call("DeleteVolume", volume_id=first.volume_id)

    assert driver.create("a").volume_id != first.volume_id


def test_a_name_with_other_arguments_already_exists(driver: Running) -> None:
    driver.create("a")

    with refused("ALREADY_EXISTS", "another capacity_range"):
        driver.create("a", capacity_range=size(GIB))


def test_the_answer_names_topology_and_context(driver: Running) -> None:
    volume = driver.create("a")

    assert [dict(term.segments) for term in volume.accessible_topology] == [{"topology.dirdriver.csi/node": "n1"}]
    assert dict(volume.volume_context) == {"dirdriver/layout": "directory"}


def test_a_place_that_is_no_node_of_this_driver_exhausts_the_resource(driver: Running) -> None:
    elsewhere = pb.Topology(segments={"topology.dirdriver.csi/node": "elsewhere"})

    with refused("RESOURCE_EXHAUSTED", "allow none of the nodes n1"):
        driver.create("a", accessibility_requirements=pb.TopologyRequirement(requisite=[elsewhere]))

    assert driver.on_disk() == []


def test_capacity_goes_down_with_each_volume_and_ends_with_resource_exhausted(start: Callable[..., Running]) -> None:
    driver = start("--capacity=10Mi")
    driver.create("a", capacity_range=size(8 * MIB))

    assert driver.call("GetCapacity").available_capacity == 2 * MIB
    with refused("RESOURCE_EXHAUSTED", "not enough free capacity"):
        driver.create("b", capacity_range=size(3 * MIB))
    with refused("OUT_OF_RANGE", "at most 10485760 bytes"):
        driver.create("b", capacity_range=size(11 * MIB))
    driver.create("b", capacity_range=size(2 * MIB))


def test_capacity_is_nothing_where_nothing_can_be_made(driver: Running) -> None:
    elsewhere = pb.Topology(segments={"topology.dirdriver.csi/node": "elsewhere"})

    assert driver.call("GetCapacity", accessible_topology=elsewhere).available_capacity == 0
    assert driver.call("GetCapacity", volume_capabilities=[mount(fs_type="ext4")]).available_capacity == 0


def test_a_volume_of_the_largest_size_can_be_larger_than_one_of_its_kind_before(start: Callable[..., Running]) -> None:
    driver = start("--max-volume-size=4Mi")

    with refused("OUT_OF_RANGE", "at most 4194304 bytes"):
        driver.create("a", capacity_range=size(5 * MIB))


def test_volumes_are_listed_in_pages_each_once(driver: Running) -> None:
    made = [driver.create(f"v{number}").volume_id for number in range(5)]
    seen, token, pages = [], "", 0
    while pages == 0 or token:
        answer = driver.call("ListVolumes", max_entries=2, starting_token=token)
        seen += [entry.volume.volume_id for entry in answer.entries]
        token, pages = answer.next_token, pages + 1

    assert (seen, pages) == (made, 3)
    with refused("ABORTED", "starting_token"):
        driver.call("ListVolumes", starting_token="invalid-token")


def test_the_nodes_of_a_volume_are_listed_with_it(driver: Running) -> None:
    volume = driver.create("a")
    driver.call("ControllerPublishVolume", volume_id=volume.volume_id, node_id="n1", volume_capability=mount())

    [entry] = driver.call("ListVolumes").entries
    assert list(entry.status.published_node_ids) == ["n1"]
    got = driver.call("ControllerGetVolume", volume_id=volume.volume_id)
    assert (got.volume, list(got.status.published_node_ids)) == (entry.volume, ["n1"])


def test_a_clone_and_a_restored_snapshot_hold_what_their_source_held(driver: Running) -> None:
    source = driver.create("source")
    data = driver.state / "volumes" / source.volume_id / "data"
    (data / "folder").mkdir()
    (data / "folder" / "file").write_text("before")
    (data / "link").symlink_to("folder/file")
    (data / "folder").chmod(0o2770)
    snapshot = driver.call("CreateSnapshot", name="s", source_volume_id=source.volume_id).snapshot
    (data / "folder" / "file").write_text("after")

    restored = driver.create("restored", volume_content_source=snapshot_source(snapshot.snapshot_id))
    clone = driver.create("clone", volume_content_source=volume_source(source.volume_id))

    copies = {
        name: driver.state / "volumes" / copy.volume_id / "data"
        for name, copy in {"restored": restored, "clone": clone}.items()
    }
    assert (copies["restored"] / "link").read_text() == "before"
    assert (copies["clone"] / "link").read_text() == "after"
    assert (copies["clone"] / "folder").stat().st_mode & 0o7777 == 0o2770
    assert restored.content_source.snapshot.snapshot_id == snapshot.snapshot_id
    assert clone.content_source.volume.volume_id == source.volume_id


def test_a_block_clone_may_be_larger_and_stays_sparse(driver: Running) -> None:
    source = driver.create("source", block())
    image = driver.state / "volumes" / source.volume_id / "image"
    with image.open("r+b") as file:
        file.seek(512 * 1024)
        file.write(b"x" * 4096)

    clone = driver.create(
        "clone", block(), capacity_range=size(GIB), volume_content_source=volume_source(source.volume_id)
    )

    copy = driver.state / "volumes" / clone.volume_id / "image"
    assert (copy.stat().st_size, copy.stat().st_blocks * 512) == (GIB, image.stat().st_blocks * 512)
    with copy.open("rb") as file:
        file.seek(512 * 1024)
        assert file.read(4096) == b"x" * 4096


def test_a_snapshot_outlives_its_volume(driver: Running) -> None:
    volume = driver.create("a")
    snapshot = driver.call("CreateSnapshot", name="s", source_volume_id=volume.volume_id).snapshot
    driver.call("DeleteVolume", volume_id=volume.volume_id)

    assert driver.call("GetSnapshot", snapshot_id=snapshot.snapshot_id).snapshot == snapshot
    driver.create("b", volume_content_source=snapshot_source(snapshot.snapshot_id))
    driver.call("DeleteSnapshot", snapshot_id=snapshot.snapshot_id)
    assert driver.on_disk("snapshots") == []


def test_a_group_snapshot_is_made_and_deleted_as_a_whole(driver: Running) -> None:
    volumes = [driver.create(name).volume_id for name in ("a", "b")]

    group = driver.call("CreateVolumeGroupSnapshot", name="g", source_volume_ids=volumes).group_snapshot
    again = driver.call("CreateVolumeGroupSnapshot", name="g", source_volume_ids=volumes[::-1]).group_snapshot

    assert group == again
    assert {member.source_volume_id for member in group.snapshots} == set(volumes)
    assert {member.group_snapshot_id for member in group.snapshots} == {group.group_snapshot_id}
    with refused("ALREADY_EXISTS"):
        driver.call("CreateVolumeGroupSnapshot", name="g", source_volume_ids=volumes[:1])
    with refused("INVALID_ARGUMENT", "belongs to group"):
        driver.call("DeleteSnapshot", snapshot_id=group.snapshots[0].snapshot_id)
    with refused("INVALID_ARGUMENT", "not the members"):
        driver.call("DeleteVolumeGroupSnapshot", group_snapshot_id=group.group_snapshot_id, snapshot_ids=["snap-other"])

    driver.call(
        "DeleteVolumeGroupSnapshot",
        group_snapshot_id=group.group_snapshot_id,
        snapshot_ids=[member.snapshot_id for member in group.snapshots],
    )

    assert driver.on_disk("snapshots") == []
    with refused("NOT_FOUND"):
        driver.call("GetVolumeGroupSnapshot", group_snapshot_id=group.group_snapshot_id)


def test_a_group_with_a_source_that_does_not_exist_leaves_nothing(driver: Running) -> None:
    volume = driver.create("a")

    with refused("NOT_FOUND", "vol-none"):
        driver.call("CreateVolumeGroupSnapshot", name="g", source_volume_ids=[volume.volume_id, "vol-none"])

    assert driver.on_disk("snapshots") == []
    assert not driver.call("ListSnapshots").entries


def test_a_volume_grows_and_never_shrinks(driver: Running) -> None:
    volume = driver.create("a", block())

    grown = driver.call("ControllerExpandVolume", volume_id=volume.volume_id, capacity_range=size(3 * MIB))
    again = driver.call("ControllerExpandVolume", volume_id=volume.volume_id, capacity_range=size(2 * MIB))

    assert (grown.capacity_bytes, grown.node_expansion_required) == (3 * MIB, True)
    assert again.capacity_bytes == 3 * MIB
    assert (driver.state / "volumes" / volume.volume_id / "image").stat().st_size == 3 * MIB


def test_only_named_parameters_can_be_modified(start: Callable[..., Running]) -> None:
    driver = start("--mutable-parameter=iops")
    volume = driver.create("a", mutable_parameters={"iops": "1"})

    driver.call("ControllerModifyVolume", volume_id=volume.volume_id, mutable_parameters={"iops": "2"})
    with refused("INVALID_ARGUMENT", "color cannot be modified; accepted: iops"):
        driver.call("ControllerModifyVolume", volume_id=volume.volume_id, mutable_parameters={"color": "s3cret"})

    assert driver.create("a", mutable_parameters={"iops": "1"}) == volume


def test_what_a_switch_turns_off_is_unimplemented(start: Callable[..., Running]) -> None:
    driver = start("--no-attach", "--no-stage", "--no-metadata")

    for method in (
        "ControllerPublishVolume",
        "ControllerModifyVolume",
        "NodeStageVolume",
        "NodeUnstageVolume",
    ):
        with refused("UNIMPLEMENTED"):
            driver.call(method)
    with refused("UNIMPLEMENTED"):
        driver.call("GetMetadataAllocated")


def test_a_volume_in_use_is_not_deleted(driver: Running) -> None:
    volume = driver.create("a")
    driver.call("ControllerPublishVolume", volume_id=volume.volume_id, node_id="n1", volume_capability=mount())

    with refused("FAILED_PRECONDITION", "published to node n1"):
        driver.call("DeleteVolume", volume_id=volume.volume_id)

    driver.call("ControllerUnpublishVolume", volume_id=volume.volume_id)
    driver.call("DeleteVolume", volume_id=volume.volume_id)


def test_an_attachment_is_repeated_with_the_same_arguments_only(driver: Running) -> None:
    volume = driver.create("a")
    attach: dict[str, Any] = {"volume_id": volume.volume_id, "node_id": "n1", "volume_capability": mount()}

    assert driver.call("ControllerPublishVolume", **attach) == driver.call("ControllerPublishVolume", **attach)
    with refused("ALREADY_EXISTS"):
        driver.call("ControllerPublishVolume", **attach, readonly=True)


def test_a_node_takes_no_more_than_its_volumes(start: Callable[..., Running]) -> None:
    driver = start("--max-volumes-per-node=1")
    first, second = driver.create("a"), driver.create("b")
    driver.call("ControllerPublishVolume", volume_id=first.volume_id, node_id="n1", volume_capability=mount())

    assert driver.call("NodeGetInfo").max_volumes_per_node == 1
    with refused("RESOURCE_EXHAUSTED", "node n1 has its 1 volumes"):
        driver.call("ControllerPublishVolume", volume_id=second.volume_id, node_id="n1", volume_capability=mount())


def test_capabilities_are_confirmed_or_the_reason_is_told(driver: Running) -> None:
    volume = driver.create("a")

    good = driver.call("ValidateVolumeCapabilities", volume_id=volume.volume_id, volume_capabilities=[mount()])
    bad = driver.call("ValidateVolumeCapabilities", volume_id=volume.volume_id, volume_capabilities=[mount(), block()])

    assert list(good.confirmed.volume_capabilities) == [mount()]
    assert not bad.HasField("confirmed")
    assert bad.message == "a directory volume cannot be accessed as block"


def test_a_volume_whose_data_is_gone_is_told_as_data_loss(driver: Running) -> None:
    well, lost = driver.create("a"), driver.create("b", block())
    (driver.state / "volumes" / lost.volume_id / "image").unlink()

    [entry] = driver.call("ControllerListVolumeHealth").entries
    assert (entry.volume_id, entry.health_statuses[0].status) == (lost.volume_id, pb.DATA_LOSS)
    assert not driver.call("ControllerGetVolumeHealth", volume_id=well.volume_id).volume_health.health_statuses
    [status] = driver.call("NodeGetVolumeHealth", volume_id=lost.volume_id).volume_health.health_statuses
    assert status.reason == "DataMissing"


@pytest.mark.parametrize("field", ["name", "parameters"])
def test_the_specs_limits_are_kept_unless_the_switch_says_otherwise(start: Callable[..., Running], field: str) -> None:
    long = {"name": "x" * 200} if field == "name" else {"name": "a", "parameters": {"k": "v" * 5000}}
    with refused("INVALID_ARGUMENT", "bytes that the CSI spec allows"):
        start(node="strict").create(**long)

    start("--no-limits", node="lax").create(**long)
