"""A fence by time: a volume goes by time only if its agent has told that it fences it, and its volume asks for that."""

from typing import Any

import pytest

from common.objects import offline_policy
from common.objects.objects import Ref
from tests.kit.audit import Line
from tests.kit.cluster_objects import DRIVER, storage_class, volume
from tests.kit.guarded import HANDLE, IN_USE, LEFT, LEFT_TEXT, Guarded

TOLD = offline_policy.write(60, 30, [IN_USE], [])
BOUND_S = 60 * 1.01 + 30 * 1.1 + 5
AT_TEXT = "2027-01-15T07:44:58Z"


@pytest.fixture
def world() -> Guarded:
    world = Guarded()
    world.agent("n2", IN_USE, away=LEFT)
    world.attach("n2")
    ask(world)
    world.tell("n2", IN_USE, fence=TOLD)
    return world


def ask(world: Guarded, value: str = "fence") -> None:
    """The volume asks for a policy."""
    body: Any = volume("pv-1")
    body["metadata"]["annotations"] = {offline_policy.ANNOTATION: value}
    world.put(body)


def test_a_volume_is_held_until_the_agent_has_surely_fenced_it(world: Guarded) -> None:
    world.monotonic = BOUND_S - 0.01
    assert world.held("n2").startswith(
        f"volume {HANDLE} of driver {DRIVER} is not detached from node n2: it is offline since {LEFT_TEXT}, and had it "
        f"mounted; its agent fences the volume, which can be detached from {AT_TEXT} on; bring the node back"
    )
    world.monotonic = BOUND_S
    assert not world.held("n2")


def test_a_volume_that_is_let_go_is_in_the_audit_log_once(audit_lines: list[Line], world: Guarded) -> None:
    world.monotonic = BOUND_S
    assert [world.held("n2") for _ in range(3)] == ["", "", ""]
    assert [(who, more["volume"]) for _, who, _, more in audit_lines] == [("n2", IN_USE)]


def test_a_volume_that_its_agent_does_not_fence_is_kept_however_long(world: Guarded) -> None:
    world.monotonic = 1e9
    world.tell("n2", IN_USE)
    assert "csi-bridge.io/offline: fence does not count, because its agent has not told" in world.held("n2")
    world.tell("n2", IN_USE, fence=offline_policy.write(60, 30, ["kubernetes.io/csi/d.example^other"], []))
    assert "csi-bridge.io/offline: fence does not count, because its agent has not told" in world.held("n2")


@pytest.mark.parametrize("staged", [[], [IN_USE]])
def test_a_volume_that_is_being_staged_does_not_go_by_time(world: Guarded, staged: list[str]) -> None:
    world.monotonic = 1e9
    world.tell("n2", IN_USE, fence=offline_policy.write(60, 30, staged, [IN_USE]))
    assert "its agent has not told how a call ended that may mount it, so it does not go by time" in world.held("n2")


@pytest.mark.parametrize("value", ["keep", "Fence", ""])
def test_a_volume_that_does_not_ask_for_it_is_kept_although_its_agent_fences_it(world: Guarded, value: str) -> None:
    world.monotonic = 1e9
    ask(world, value)
    assert "and had it mounted; bring the node back" in world.held("n2")


def test_a_volume_goes_by_time_if_its_class_asks_for_that_and_stays_once_the_class_is_gone(world: Guarded) -> None:
    world.monotonic = BOUND_S
    world.put(volume("pv-1", storageClassName="fast"), storage_class("fast", "fence"))
    assert not world.held("n2")
    world.drop(Ref("StorageClass", "", "fast"))
    assert "and had it mounted; bring the node back" in world.held("n2")


def test_a_class_that_is_made_after_the_staging_frees_no_volume_that_the_agent_keeps(world: Guarded) -> None:
    world.monotonic = 1e9
    world.tell("n2", IN_USE)
    world.put(volume("pv-1", storageClassName="fast"), storage_class("fast", "fence"))
    assert "csi-bridge.io/offline: fence does not count, because its agent has not told" in world.held("n2")


def test_the_annotation_keeps_a_volume_whose_class_asks_for_fence(world: Guarded) -> None:
    world.monotonic = BOUND_S
    body: Any = volume("pv-1", storageClassName="fast")
    body["metadata"]["annotations"] = {offline_policy.ANNOTATION: "keep"}
    world.put(body, storage_class("fast", "fence"))
    assert world.held("n2")


@pytest.mark.parametrize("numbers", [(0, 20), (60, 0), (-1, 20), (2**63, 20), (60, 2**63)])
def test_an_agent_without_usable_numbers_fences_nothing(world: Guarded, numbers: tuple[int, int]) -> None:
    world.monotonic = 1e9
    world.tell("n2", IN_USE, fence=offline_policy.write(*numbers, [IN_USE], []))
    assert world.held("n2")


def test_nobody_knows_when_a_node_that_is_being_forgotten_has_left(world: Guarded) -> None:
    world.monotonic = 1e9
    del world.links.away["n2"]
    assert "does not count" in world.held("n2")


def test_a_node_that_is_here_keeps_its_volume(world: Guarded) -> None:
    world.monotonic = 1e9
    world.links.away["n2"] = None
    assert "it still has it mounted" in world.held("n2")


def test_the_volume_of_a_kubelet_is_kept_while_its_node_is_not_ready() -> None:
    world = Guarded()
    world.kubelet("n2", IN_USE, ready="Unknown")
    world.attach("n2")
    ask(world)
    world.monotonic = 1e9
    assert "its Node is not Ready" in world.held("n2")
