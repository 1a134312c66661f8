"""The volume manager and volumes that are fenced when the lease ends: held before they are staged, taken from their
pods, unstaged by their driver, and given back.
"""

from __future__ import annotations

from typing import Any

import pytest

from common.objects import Ref
from common.offline_policy import ANNOTATION
from edge.volume_errors import NotReady
from edge.volumes import VolumeKey
from tests.kit.cluster_objects import storage_class
from tests.kit.volume_world import DRIVER, World, persistent_claim, persistent_volume
from tests.kit.waiting import settle

KEY = VolumeKey(DRIVER, "h-data")


def world_with(value: str | None) -> World:
    """A pod with an attached volume that asks for a policy."""
    world = World()
    world.add_driver(attachRequired=True)
    body: dict[str, Any] = persistent_volume()
    if value is not None:
        body["metadata"]["annotations"] = {ANNOTATION: value}
    world.store.put(body)
    world.store.put(persistent_claim())
    world.attach()
    world.add_pod()
    return world


async def test_a_volume_that_asks_for_fence_is_held_before_the_hub_is_asked_and_the_driver_stages_it() -> None:
    world = world_with("fence")
    world.acked.clear()
    await world.start()
    assert (world.fencing.held, world.take_calls()) == ([KEY], [])
    world.acked.set()
    await settle()
    assert world.take_calls() == ["stage h-data", "publish h-data web-uid"]


@pytest.mark.parametrize("value", [None, "keep", "wrong"])
async def test_any_other_volume_is_not_held(value: str | None) -> None:
    world = world_with(value)
    await world.start()
    assert (world.fencing.held, world.take_calls()) == ([], ["stage h-data", "publish h-data web-uid"])


@pytest.mark.parametrize(
    ("value", "why"),
    [("wrong", "it can be keep or fence, and counts as keep"), ("fence", "is kept on this node: its agent is off")],
)
async def test_a_policy_that_does_not_count_is_told_at_the_claim(value: str, why: str) -> None:
    world = world_with(value)
    world.fencing.why_not = "its agent is off"
    await world.start()
    assert world.fencing.held == []
    ((_, message),) = [event for event in world.store.events() if event[0] == "NotFenced"]
    assert why in message


@pytest.mark.parametrize(("annotation", "is_held"), [(None, True), ("keep", False), ("fence", True)])
async def test_the_class_of_a_volume_asks_for_fence_unless_the_annotation_says_keep(
    annotation: str | None, is_held: bool
) -> None:
    world = world_with(annotation)
    body = world.store.body(Ref("PersistentVolume", "", "pv-data"))
    world.store.put({**body, "spec": {**body["spec"], "storageClassName": "fast"}})
    world.store.put(storage_class("fast", "fence"))
    await world.start()
    assert (world.fencing.held == [KEY], world.take_calls()) == (
        is_held,
        ["stage h-data", "publish h-data web-uid"],
    )


async def test_a_class_that_comes_or_goes_later_counts_for_the_next_staging_alone() -> None:
    world = world_with(None)
    body = world.store.body(Ref("PersistentVolume", "", "pv-data"))
    world.store.put({**body, "spec": {**body["spec"], "storageClassName": "fast"}})
    await world.start()
    assert world.take_calls() == ["stage h-data", "publish h-data web-uid"]
    world.store.put(storage_class("fast", "fence"))
    await settle()
    assert (world.fencing.held, world.take_calls()) == ([], [])


async def test_a_volume_waits_for_the_lease_and_is_mounted_when_the_hub_answers() -> None:
    world = world_with("fence")
    world.fencing.waits = "no answer yet"
    await world.start()
    assert (world.take_calls(), world.entry()["error"]) == ([], "no answer yet")
    world.fencing.waits = ""
    world.fencing.tell()
    await settle()
    assert world.take_calls() == ["stage h-data", "publish h-data web-uid"]


async def test_a_volume_with_fence_is_staged_only_when_the_hubs_objects_are_known_on_this_link() -> None:
    world = world_with("fence")
    world.store.in_step = False
    await world.start()
    assert (world.take_calls(), "objects are complete" in world.entry()["error"]) == ([], True)
    world.store.in_step = True
    world.store.tell()
    await settle()
    assert world.take_calls() == ["stage h-data", "publish h-data web-uid"]


async def test_a_fenced_volume_is_unstaged_when_it_is_shut_down_and_then_given_back() -> None:
    world = world_with("fence")
    await world.start()
    world.take_calls()
    world.fencing.waits = "no answer yet"
    world.fencing.fence(KEY, "")
    await settle()
    assert (world.take_calls(), world.entry()["state"]) == ([], "fenced")
    world.fencing.fence(KEY, "its file system is shut down")
    await settle()
    assert world.take_calls() == ["unpublish h-data web-uid", "unstage h-data"]
    assert world.fencing.held == []
    assert ("Fenced", 'volume "pv-data" was fenced, because the hub did not answer: its file system is shut down') in (
        world.store.events()
    )
    world.fencing.waits = ""
    world.fencing.tell()
    await settle()
    assert world.take_calls() == ["stage h-data", "publish h-data web-uid"]
    assert (world.fencing.held, world.entry()["state"]) == ([KEY], "published")


async def test_a_volume_that_turns_out_to_be_one_that_cannot_be_fenced_is_told_at_the_claim_and_mounted() -> None:
    world = world_with("fence")
    world.fencing.kept[KEY] = "its file system is nfs4"
    await world.start()
    ((_, message),) = [event for event in world.store.events() if event[0] == "NotFenced"]
    assert message.endswith("it asks for fence, and is kept on this node: its file system is nfs4")
    assert world.entry()["state"] == "published"


async def test_a_volume_stays_fenced_while_something_holds_its_file_system() -> None:
    world = world_with("fence")
    await world.start()
    world.take_calls()
    world.fencing.holding = "it is fenced, and still held by process 7"
    world.fencing.fence(KEY, "its file system is shut down")
    await settle()
    assert (world.take_calls(), world.entry()["state"]) == (["unpublish h-data web-uid", "unstage h-data"], "fenced")
    world.fencing.holding = ""
    world.fencing.tell(KEY)
    await settle()
    assert world.take_calls() == ["unstage h-data", "stage h-data", "publish h-data web-uid"]


async def test_a_fenced_volume_whose_driver_fails_stays_fenced() -> None:
    world = world_with("fence")
    await world.start()
    world.plugin.fails("unpublish", NotReady("busy"))
    world.fencing.fence(KEY, "its file system is shut down")
    await settle()
    assert world.entry()["state"] == "fenced"
    assert "the agent fenced it: its file system is shut down" in world.entry()["error"]
    assert world.fencing.held == [KEY]


async def test_after_a_reboot_a_volume_is_held_anew_and_the_hub_is_asked_again() -> None:
    world = world_with("fence")
    await world.start()
    world.fencing.held.clear()
    world.plugin.mounted.clear()
    world.acked.clear()
    await world.restart(boot="boot-2")
    assert (world.fencing.held, world.take_calls()) == ([KEY], [])
    world.acked.set()
    await settle()
    assert world.take_calls() == ["stage h-data", "publish h-data web-uid"]


async def test_after_a_reboot_the_hub_hears_first_that_a_volume_is_not_fenced_any_more() -> None:
    world = world_with("fence")
    await world.start()
    world.fencing.held.clear()
    world.plugin.mounted.clear()
    world.acked.clear()
    world.fencing.why_not = "its agent runs with --fence=off"
    await world.restart(boot="boot-2")
    assert (world.fencing.held, world.take_calls()) == ([], [])
    world.acked.set()
    await settle()
    assert world.take_calls() == ["stage h-data", "publish h-data web-uid"]


async def test_after_a_reboot_a_volume_that_is_kept_now_waits_until_the_hub_has_heard_that_it_is_not_fenced() -> None:
    world = world_with(None)
    await world.start()
    world.take_calls()
    world.plugin.mounted.clear()
    world.acked.clear()
    world.fencing.earlier.add(KEY)
    await world.restart(boot="boot-2")
    assert world.take_calls() == []
    world.acked.set()
    await settle()
    assert world.take_calls() == ["stage h-data", "publish h-data web-uid"]
    assert world.fencing.earlier == set()


async def test_a_pod_that_goes_before_the_staging_leaves_nothing_held() -> None:
    world = world_with("fence")
    world.acked.clear()
    await world.start()
    assert world.fencing.held == [KEY]
    (pod,) = world.store.refs("Pod")
    world.store.drop(pod)
    await settle()
    assert world.fencing.held == []
