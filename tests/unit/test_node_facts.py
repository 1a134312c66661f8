"""A node fact: what the node has and is; and how often its drivers are asked for that."""

import asyncio
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from common.objects.left_over import LeftOver
from common.objects.objects import Ref
from common.objects.sole_use import sole_use
from edge.registry.registration import NodeInfo, Registration
from edge.reports.machine import Machine
from edge.reports.node_facts import NodeFacts, ask_as_said
from edge.reports.settling import Settling
from edge.volumes import VolumeKey
from tests.kit.edge_volumes import FakeFacts, FakeStore

DRIVER = Ref("CSIDriver", "", "d.csi")


class Drivers:
    """One driver."""

    registrations = (Registration("d.csi", "/d.sock", "", (1,), NodeInfo("id", 3, {"zone": "a"})),)


def test_the_node_is_told_with_its_machine_its_drivers_and_what_is_in_use() -> None:
    store = FakeFacts()
    machine = Machine({"cpu": "2", "pods": "110"}, {"architecture": "arm64"})
    NodeFacts("n1", store, Drivers(), machine).tell(["kubernetes.io/csi/d.csi^v"], [])
    assert store.kept[Ref("CSINode", "", "n1")]["spec"]["drivers"] == [
        {"name": "d.csi", "nodeID": "id", "topologyKeys": ["zone"], "allocatable": {"count": 3}}
    ]
    node = store.kept[Ref("Node", "", "n1")]
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
    store, key = FakeFacts(), VolumeKey("d.csi", "v")
    facts, ref = NodeFacts("n1", store, Drivers(), Machine({}, {})), sole_use("d.csi", "v")
    facts.tell([str(key)], [key])
    first = store.kept[ref]
    assert first["spec"] == {"driver": "d.csi", "volumeHandle": "v"}
    facts.tell([str(key)], [key])
    assert store.kept[ref] is first
    await facts.in_use_acked(key)
    assert store.kept[ref] != first
    facts.tell([], [])
    assert ref not in store.kept


def test_the_node_tells_what_its_agent_fences_and_nothing_of_it_otherwise() -> None:
    store, fence = FakeFacts(), dict[str, Any]()
    facts = NodeFacts("n1", store, Drivers(), Machine({}, {}), lambda: fence)
    facts.tell([], [])
    assert "fence" not in store.kept[Ref("Node", "", "n1")]["status"]
    fence = {"leaseSeconds": 60, "watchdogSeconds": 60, "staged": ["kubernetes.io/csi/d.csi^v"], "staging": []}
    facts.tell([], [])
    assert store.kept[Ref("Node", "", "n1")]["status"]["fence"] == fence


def test_a_mount_that_no_pod_wants_stays_in_the_nodes_fact_until_the_next_word_of_them() -> None:
    store = FakeFacts()
    facts = NodeFacts("n1", store, Drivers(), Machine({}, {}))
    facts.tell([], [], [LeftOver(driver="d.csi", handle="v", why="busy")])
    facts.tell(["kubernetes.io/csi/d.csi^w"], [])
    told = {"more": 0, "volumes": [{"driver": "d.csi", "handle": "v", "why": "busy"}]}
    assert store.kept[Ref("Node", "", "n1")]["status"]["leftOver"] == told
    facts.tell([], [], [])
    assert store.kept[Ref("Node", "", "n1")]["status"]["leftOver"]["volumes"] == []


async def test_changes_that_come_together_are_told_once_they_have_settled() -> None:
    told: list[str] = []
    settling = Settling(lambda: told.append("told"), 0.01)
    settling.changed()
    settling.changed()
    assert told == []
    await asyncio.sleep(0.02)
    assert told == ["told"]
    settling.changed()
    settling.close()
    settling.changed()
    await asyncio.sleep(0.02)
    assert told == ["told"]


def asked(*periods: object, withheld: bool = False) -> list[tuple[str, float | None]]:
    """How often a driver is asked, as its CSIDriver object comes and changes, and in the end goes or is withheld."""
    store, told = FakeStore(), list[tuple[str, float | None]]()
    askers: Any = SimpleNamespace(ask_every=lambda name, seconds: told.append((name, seconds)))
    driver = {"kind": "CSIDriver", "metadata": {"name": "d.csi"}}
    store.put({**driver, "spec": {"nodeAllocatableUpdatePeriodSeconds": periods[0]}})
    ask_as_said(store, askers, [DRIVER])
    store.subscribe(partial(ask_as_said, store, askers))
    for period in periods[1:]:
        store.put({**driver, "spec": {"nodeAllocatableUpdatePeriodSeconds": period}})
    if withheld:
        store.withheld = {DRIVER}
        store.tell(DRIVER)
    else:
        store.drop(DRIVER)
    return told


def test_a_driver_is_asked_as_often_as_its_object_says_and_not_more_often_than_every_ten_seconds() -> None:
    assert asked(30, 1, None) == [("d.csi", 30.0), ("d.csi", 10.0), ("d.csi", None), ("d.csi", None)]


@pytest.mark.parametrize("value", ["often", [], {}])
def test_an_object_that_makes_no_sense_or_cannot_be_read_is_passed_over(value: object) -> None:
    assert asked(value, withheld=True) == [("d.csi", None)] * 2
