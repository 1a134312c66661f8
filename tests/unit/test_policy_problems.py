"""The problems with offline policies: what the hub can know of a wrong value, and of a fence that does not count."""

from typing import Any

import pytest

from cloud.detach.policy_problems import PolicyProblems
from common.objects import offline_policy
from tests.kit.cluster_objects import storage_class, volume
from tests.kit.guarded import IN_USE, Guarded


@pytest.fixture
def world() -> Guarded:
    return Guarded()


class Users:
    """The nodes that use each volume (`cloud.sync.fact_table.FactTable`)."""

    def __init__(self, world: Guarded) -> None:
        self._world = world

    def nodes_using(self, name: str) -> list[str]:
        return [node for node in self._world.facts if name in (self._world.mounts.in_use(node) or ())]


def problems(world: Guarded) -> list[str]:
    return list(PolicyProblems(world.source, world.mounts, Users(world)).problems())  # type: ignore[arg-type]  # the part of a fact table that is asked


def ask(world: Guarded, value: str) -> None:
    body: Any = volume("pv-1")
    body["metadata"]["annotations"] = {offline_policy.ANNOTATION: value}
    world.put(body)


def test_a_wrong_value_is_told_of_a_class_and_of_a_volume(world: Guarded) -> None:
    world.put(storage_class("fast", "fenced"), storage_class("slow", "keep"), storage_class("plain"))
    ask(world, "kept")
    rest = "it can be keep or fence, and counts as keep"
    assert problems(world) == [
        f"StorageClass fast: the class parameter csi-bridge.io/offline is 'fenced'; {rest}",
        f"PersistentVolume pv-1: the annotation csi-bridge.io/offline is 'kept'; {rest}",
    ]


def test_a_node_that_has_a_volume_and_does_not_fence_it_is_told(world: Guarded) -> None:
    world.agent("n1", IN_USE)
    ask(world, "fence")
    (problem,) = problems(world)
    assert problem == (
        "node n1 keeps volumes with csi-bridge.io/offline: fence (pv-1), because its agent has not told that it fences "
        "them; an Event NotFenced of each claim has the reason"
    )
    world.tell("n1", IN_USE, fence=offline_policy.write(60, 30, [], [IN_USE]))
    assert problems(world) == []


def test_a_node_with_a_kubelet_fences_nothing(world: Guarded) -> None:
    world.put(storage_class("fast", "fence"))
    world.kubelet("k1", IN_USE)
    world.attach("k1")
    world.put(volume("pv-1", storageClassName="fast"))
    (problem,) = problems(world)
    assert problem == (
        "node k1 keeps volumes with csi-bridge.io/offline: fence (pv-1), because it has a kubelet, and only the agents "
        "of nodes without one fence"
    )


@pytest.mark.parametrize("value", ["keep", "fence"])
def test_a_volume_that_no_node_has_is_no_problem(world: Guarded, value: str) -> None:
    world.agent("n1")
    ask(world, value)
    assert problems(world) == []


def test_a_held_detach_is_a_problem_until_it_passes_or_nobody_asks_for_it_any_more(world: Guarded) -> None:
    world.agent("n1", IN_USE)
    world.attach("n1")
    why = world.held("n1")
    assert list(world.guard.problems()) == [why]
    world.monotonic = 601.0
    assert list(world.guard.problems()) == []
    world.held("n1")
    world.agent("n1")
    assert world.held("n1") == ""
    assert list(world.guard.problems()) == []
