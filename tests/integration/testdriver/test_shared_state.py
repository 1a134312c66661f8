"""Several nodes on one state directory."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from common.csi import csi_pb2 as pb
from tests.integration.testdriver.support import MIB, Mode, Running, ended, mount, needs_mounts, refused, size, write

KEY = "topology.dirdriver.csi/node"


def at(node: str) -> pb.TopologyRequirement:
    return pb.TopologyRequirement(requisite=[pb.Topology(segments={KEY: node})])


def test_each_node_sees_the_others_volumes_and_their_place(start: Callable[..., Running]) -> None:
    first = start()
    second = start(node="n2")

    here = first.create("a")
    there = first.create("b", accessibility_requirements=at("n2"))

    assert first.volumes() == second.volumes() == [here.volume_id, there.volume_id]
    assert dict(there.accessible_topology[0].segments) == {KEY: "n2"}
    assert second.create("a").volume_id == here.volume_id


def test_with_topology_each_node_has_a_capacity_of_its_own(start: Callable[..., Running]) -> None:
    first = start("--capacity=4Mi")
    start("--capacity=8Mi", node="n2")
    first.create("a")

    free = {
        node: first.call("GetCapacity", accessible_topology=pb.Topology(segments={KEY: node})).available_capacity
        for node in ("n1", "n2")
    }

    assert free == {"n1": 3 * MIB, "n2": 8 * MIB}
    assert first.call("GetCapacity").available_capacity == 8 * MIB
    assert dict(first.create("b", capacity_range=size(4 * MIB)).accessible_topology[0].segments) == {KEY: "n2"}


def test_a_volume_is_attached_only_where_it_lives(start: Callable[..., Running]) -> None:
    first = start()
    start(node="n2")
    volume = first.create("a")

    with refused("FAILED_PRECONDITION", "lives on node n1; node n2 cannot reach it"):
        first.call("ControllerPublishVolume", volume_id=volume.volume_id, node_id="n2", volume_capability=mount())
    with refused("NOT_FOUND", "node n3 does not exist"):
        first.call("ControllerPublishVolume", volume_id=volume.volume_id, node_id="n3", volume_capability=mount())


def test_a_volume_for_one_node_is_not_given_to_a_second(start: Callable[..., Running]) -> None:
    first = start("--no-topology")
    start("--no-topology", node="n2")
    volume = first.attached("a")

    with refused("FAILED_PRECONDITION", "published to node n1; unpublish it first"):
        first.call("ControllerPublishVolume", volume_id=volume.volume_id, node_id="n2", volume_capability=mount())


@needs_mounts
def test_without_topology_what_one_node_writes_the_other_reads(start: Callable[..., Running], pod: Path) -> None:
    first = start("--no-topology")
    second = start("--no-topology", node="n2")
    shared = mount(Mode.MULTI_NODE_MULTI_WRITER)
    volume = first.attached("a", shared)
    assert second.attached("a", shared) == volume
    for driver in (first, second):
        driver.stage(volume, pod / driver.node / "staging", shared)
        driver.publish(volume, pod / driver.node / "staging", pod / driver.node / "target", shared)

    write(pod / "n1" / "target" / "file", "hello")

    assert (pod / "n2" / "target" / "file").read_text() == "hello"


def test_a_second_process_of_one_node_is_refused(driver: Running) -> None:
    second = Running(driver.root, "--node-id=n1", node="again", state=driver.state)

    assert "another process runs as node 'n1'" in ended(second)


def test_what_a_dead_node_left_half_made_is_taken_over_by_another(start: Callable[..., Running]) -> None:
    first = start("--fault=CreateSnapshot=hang")
    second = start(node="n2")
    source = first.create("source")
    data = first.state / "volumes" / source.volume_id / "data"
    for number in range(2000):
        (data / str(number)).touch()
    first.set_faults("CreateSnapshot=off")
    copying = first.begin("CreateSnapshot", name="s", source_volume_id=source.volume_id)
    while not first.on_disk("snapshots"):
        assert not copying.done()
    first.kill()

    snapshot = second.call("CreateSnapshot", name="s", source_volume_id=source.volume_id).snapshot

    assert second.on_disk("snapshots") == [snapshot.snapshot_id]


def test_two_nodes_that_create_the_same_name_at_once_make_one_volume(start: Callable[..., Running]) -> None:
    nodes = start(), start(node="n2")
    wanted: dict[str, Any] = {"volume_capabilities": [mount()], "capacity_range": size(MIB)}
    for number in range(30):
        calls = [driver.begin("CreateVolume", name=f"v{number}", **wanted) for driver in nodes]
        ends = {call.code().name for call in calls}
        assert ends <= {"OK", "ABORTED"}
        assert "OK" in ends

    assert len(nodes[0].on_disk()) == 30


def test_two_nodes_that_snapshot_the_same_name_at_once_make_one_snapshot(start: Callable[..., Running]) -> None:
    nodes = start(), start(node="n2")
    source = nodes[0].create("source").volume_id
    for number in range(10):
        calls = [driver.begin("CreateSnapshot", name=f"s{number}", source_volume_id=source) for driver in nodes]
        calls += [
            driver.begin("CreateVolumeGroupSnapshot", name=f"g{number}", source_volume_ids=[source]) for driver in nodes
        ]
        assert {call.code().name for call in calls} <= {"OK", "ABORTED"}

    assert len(nodes[0].on_disk("snapshots")) == 20
