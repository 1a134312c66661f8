"""A node fact: what the node has and is; and how often its drivers are asked for that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from common.left_over import LeftOver
from common.objects import Object, Ref, Stamp, encode_body
from common.sole_use import sole_use
from edge.machine import Machine
from edge.node_facts import LeftOverFacts, NodeFacts, UpdatePeriods
from edge.volumes import VolumeKey

if TYPE_CHECKING:
    from collections.abc import Callable

DRIVER = Ref("CSIDriver", "", "d.csi")


class Store:
    """What is told."""

    def __init__(self) -> None:
        self.told: dict[Ref, dict[str, Any]] = {}

    def put_fact(self, ref: Ref, body: dict[str, Any]) -> None:
        self.told[ref] = body

    def drop_fact(self, ref: Ref) -> None:
        del self.told[ref]

    def fact_refs(self, kind: str) -> list[Ref]:
        return [ref for ref in self.told if ref.kind == kind]

    async def wait_acked(self, ref: Ref) -> None:
        pass


class Drivers:
    """One driver."""

    def csi_node(self) -> list[dict[str, Any]]:
        return [{"name": "d.csi", "nodeID": "id", "topologyKeys": ["zone"], "allocatable": {"count": 3}}]

    def node_annotations(self) -> dict[str, str]:
        return {"csi.volume.kubernetes.io/nodeid": '{"d.csi":"id"}'}

    def node_labels(self) -> dict[str, str]:
        return {"zone": "a"}


def test_the_node_is_told_with_its_machine_its_drivers_and_what_is_in_use() -> None:
    store = Store()
    machine = Machine({"cpu": "2", "pods": "110"}, {"architecture": "arm64"})
    NodeFacts("n1", store, Drivers(), machine).tell(["kubernetes.io/csi/d.csi^v"], [])
    assert store.told[Ref("CSINode", "", "n1")]["spec"]["drivers"] == Drivers().csi_node()
    node = store.told[Ref("Node", "", "n1")]
    assert node["metadata"] == {
        "name": "n1",
        "annotations": {"csi.volume.kubernetes.io/nodeid": '{"d.csi":"id"}'},
        "labels": {"zone": "a"},
    }
    assert node["status"] == {
        "volumesInUse": ["kubernetes.io/csi/d.csi^v"],
        "leftOver": {"more": 0, "volumes": []},
        "capacity": {"cpu": "2", "pods": "110"},
        "nodeInfo": {"architecture": "arm64"},
    }


async def test_a_volume_that_is_one_nodes_is_claimed_while_it_is_in_use_and_anew_for_each_first_staging() -> None:
    store, key = Store(), VolumeKey("d.csi", "v")
    facts, ref = NodeFacts("n1", store, Drivers(), Machine({}, {})), sole_use("d.csi", "v")
    facts.tell([str(key)], [key])
    first = store.told[ref]
    assert first["spec"] == {"driver": "d.csi", "volumeHandle": "v"}
    facts.tell([str(key)], [key])
    assert store.told[ref] is first
    await facts.in_use_acked(key, sole=True)
    assert store.told[ref] != first
    facts.tell([], [])
    assert ref not in store.told


def test_the_node_tells_what_its_agent_fences_and_nothing_of_it_otherwise() -> None:
    store, fence = Store(), dict[str, Any]()
    facts = NodeFacts("n1", store, Drivers(), Machine({}, {}), lambda: fence)
    facts.tell([], [])
    assert "fence" not in store.told[Ref("Node", "", "n1")]["status"]
    fence = {"leaseSeconds": 60, "watchdogSeconds": 60, "staged": ["kubernetes.io/csi/d.csi^v"], "staging": []}
    facts.tell([], [])
    assert store.told[Ref("Node", "", "n1")]["status"]["fence"] == fence


def test_a_mount_that_no_pod_wants_stays_in_the_nodes_fact_until_the_next_word_of_them() -> None:
    store = Store()
    facts = NodeFacts("n1", store, Drivers(), Machine({}, {}))
    facts.tell([], [], [LeftOver(driver="d.csi", handle="v", why="busy")])
    facts.tell(["kubernetes.io/csi/d.csi^w"], [])
    told = {"more": 0, "volumes": [{"driver": "d.csi", "handle": "v", "why": "busy"}]}
    assert store.told[Ref("Node", "", "n1")]["status"]["leftOver"] == told
    facts.tell([], [], [])
    assert store.told[Ref("Node", "", "n1")]["status"]["leftOver"]["volumes"] == []


def test_mounts_without_a_pod_are_told_once_the_volumes_have_settled() -> None:
    timers: list[Callable[[], None]] = []
    told: list[str] = []
    facts = LeftOverFacts(lambda: told.append("told"), later=lambda _, callback: timers.append(callback))
    facts.changed()
    facts.changed()
    assert told == []
    timers.pop()()
    assert (told, timers) == (["told"], [])
    facts.changed()
    facts.close()
    timers.pop()()
    assert told == ["told"]


class Objects:
    """CSIDrivers."""

    def __init__(self) -> None:
        self.objects: dict[Ref, Object] = {}
        self.trouble = False

    def put(self, **spec: Any) -> None:
        self.objects[DRIVER] = Object(DRIVER, Stamp("u", "1"), encode_body({"spec": spec}))

    def get(self, ref: Ref) -> Object | None:
        if self.trouble:
            raise OSError("disk on fire")
        return self.objects.get(ref)

    def refs(self, kind: str) -> list[Ref]:
        return [ref for ref in self.objects if ref.kind == kind]


class Askers:
    def __init__(self) -> None:
        self.asked: list[tuple[str, float | None]] = []

    def ask_every(self, name: str, seconds: float | None) -> None:
        self.asked.append((name, seconds))


def test_a_driver_is_asked_as_often_as_its_object_says_and_not_more_often_than_every_ten_seconds() -> None:
    objects, askers = Objects(), Askers()
    objects.put(nodeAllocatableUpdatePeriodSeconds=30)
    periods = UpdatePeriods(objects, askers)
    objects.put(nodeAllocatableUpdatePeriodSeconds=1)
    periods.changed([DRIVER, Ref("Pod", "default", "web")])
    objects.put()
    periods.changed([DRIVER])
    objects.objects.clear()
    periods.changed([DRIVER])
    assert askers.asked == [("d.csi", 30.0), ("d.csi", 10.0), ("d.csi", None), ("d.csi", None)]


@pytest.mark.parametrize("value", ["often", [], {}])
def test_an_object_that_makes_no_sense_or_cannot_be_read_is_passed_over(value: object) -> None:
    objects, askers = Objects(), Askers()
    objects.put(nodeAllocatableUpdatePeriodSeconds=value)
    periods = UpdatePeriods(objects, askers)
    objects.trouble = True
    periods.changed([DRIVER])
    assert askers.asked == [("d.csi", None)] * 2
