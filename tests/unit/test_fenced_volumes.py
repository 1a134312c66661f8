"""The volume manager and volumes that are fenced when the lease ends: held before they are staged, taken from their
pods, unstaged by their driver, and given back.
"""

from typing import Any

import pytest

from common.objects.objects import Ref
from common.objects.offline_policy import ANNOTATION
from edge.volume_errors import NotReady, Uncertain
from edge.volumes import VolumeKey
from tests.kit.cluster_objects import storage_class
from tests.kit.edge_volumes import DRIVER, MOUNTED, TAKEN_DOWN, EdgeVolumes, persistent_claim, persistent_volume
from tests.kit.waiting import settle

KEY = VolumeKey(DRIVER, "h-data")


def edge_with(value: str | None) -> EdgeVolumes:
    """A pod with an attached volume that asks for a policy."""
    edge = EdgeVolumes()
    edge.add_driver(attachRequired=True)
    body: dict[str, Any] = persistent_volume()
    if value is not None:
        body["metadata"]["annotations"] = {ANNOTATION: value}
    edge.store.put(body)
    edge.store.put(persistent_claim())
    edge.attach()
    edge.add_pod()
    return edge


async def test_a_volume_that_asks_for_fence_is_held_before_the_hub_is_asked_and_the_driver_stages_it() -> None:
    edge = edge_with("fence")
    edge.acked.clear()
    await edge.start()
    assert (edge.fencing.held, edge.take_calls()) == ([KEY], [])
    edge.acked.set()
    await settle()
    assert edge.take_calls() == MOUNTED


@pytest.mark.parametrize("value", [None, "keep", "wrong"])
async def test_any_other_volume_is_not_held(value: str | None) -> None:
    edge = edge_with(value)
    await edge.start()
    assert (edge.fencing.held, edge.take_calls()) == ([], MOUNTED)


@pytest.mark.parametrize(
    ("value", "why"),
    [("wrong", "it can be keep or fence, and counts as keep"), ("fence", "is kept on this node: its agent is off")],
)
async def test_a_policy_that_does_not_count_is_told_at_the_claim(value: str, why: str) -> None:
    edge = edge_with(value)
    edge.fencing.why_not = "its agent is off"
    await edge.start()
    assert edge.fencing.held == []
    ((_, message),) = [event for event in edge.facts.events() if event[0] == "NotFenced"]
    assert why in message


@pytest.mark.parametrize(("annotation", "is_held"), [(None, True), ("keep", False), ("fence", True)])
async def test_the_class_of_a_volume_asks_for_fence_unless_the_annotation_says_keep(
    annotation: str | None, is_held: bool
) -> None:
    edge = edge_with(annotation)
    body = edge.store.body(Ref("PersistentVolume", "", "pv-data"))
    edge.store.put({**body, "spec": {**body["spec"], "storageClassName": "fast"}})
    edge.store.put(storage_class("fast", "fence"))
    await edge.start()
    assert (edge.fencing.held == [KEY], edge.take_calls()) == (
        is_held,
        MOUNTED,
    )


async def test_a_class_that_comes_or_goes_later_counts_for_the_next_staging_alone() -> None:
    edge = edge_with(None)
    body = edge.store.body(Ref("PersistentVolume", "", "pv-data"))
    edge.store.put({**body, "spec": {**body["spec"], "storageClassName": "fast"}})
    await edge.start()
    assert edge.take_calls() == MOUNTED
    edge.store.put(storage_class("fast", "fence"))
    await settle()
    assert (edge.fencing.held, edge.take_calls()) == ([], [])


async def test_a_volume_waits_for_the_lease_and_is_mounted_when_the_hub_answers() -> None:
    edge = edge_with("fence")
    edge.fencing.waits = "no answer yet"
    await edge.start()
    assert (edge.take_calls(), edge.entry().error) == ([], "no answer yet")
    edge.fencing.waits = ""
    edge.fencing.tell()
    await settle()
    assert edge.take_calls() == MOUNTED


async def test_each_step_that_mounts_a_held_volume_waits_for_the_lease_and_no_pod_is_told_of_a_short_wait() -> None:
    edge = edge_with("fence")
    edge.plugin.fails("stage", Uncertain("it hangs"))
    await edge.start()
    edge.take_calls()
    told, edge.fencing.waits = edge.facts.events(), "no answer yet"
    await edge.clock.turn(1.0)
    assert (edge.take_calls(), edge.entry().error, edge.facts.events()) == ([], "no answer yet", told)
    edge.fencing.waits = ""
    edge.fencing.tell()
    await settle()
    assert edge.take_calls() == MOUNTED
    edge.fencing.waits = "no answer yet"
    edge.add_pod("more")
    await settle()
    assert (edge.take_calls(), edge.entry("more").error, edge.facts.events()) == ([], "no answer yet", told)


async def test_a_volume_that_was_staged_before_it_asked_for_fence_is_published_without_a_lease() -> None:
    edge = edge_with(None)
    await edge.start()
    edge.take_calls()
    edge.fencing.waits = "no answer yet"
    body = edge.store.body(Ref("PersistentVolume", "", "pv-data"))
    edge.store.put({**body, "metadata": {**body["metadata"], "annotations": {ANNOTATION: "fence"}}})
    edge.add_pod("more")
    await settle()
    assert edge.take_calls() == ["publish h-data more-uid"]


async def test_a_volume_with_fence_is_staged_only_when_the_hubs_objects_are_known_on_this_link() -> None:
    edge = edge_with("fence")
    edge.store.in_step = False
    await edge.start()
    assert (edge.take_calls(), "objects are complete" in edge.entry().error) == ([], True)
    edge.store.in_step = True
    edge.store.tell()
    await settle()
    assert edge.take_calls() == MOUNTED


async def test_a_fenced_volume_is_unstaged_when_it_is_shut_down_and_then_given_back() -> None:
    edge = edge_with("fence")
    await edge.start()
    edge.take_calls()
    edge.fencing.waits = "no answer yet"
    edge.fencing.fence(KEY, "")
    await settle()
    assert (edge.take_calls(), edge.entry().state) == ([], "fenced")
    edge.fencing.fence(KEY, "its file system is shut down")
    await settle()
    assert edge.take_calls() == TAKEN_DOWN
    assert edge.fencing.held == []
    assert ("Fenced", 'volume "pv-data" was fenced, because the hub did not answer: its file system is shut down') in (
        edge.facts.events()
    )
    edge.fencing.waits = ""
    edge.fencing.tell()
    await settle()
    assert edge.take_calls() == MOUNTED
    assert (edge.fencing.held, edge.entry().state) == ([KEY], "published")


async def test_a_volume_that_turns_out_to_be_one_that_cannot_be_fenced_is_told_at_the_claim_and_mounted() -> None:
    edge = edge_with("fence")
    edge.fencing.kept[KEY] = "its file system is nfs4"
    await edge.start()
    ((_, message),) = [event for event in edge.facts.events() if event[0] == "NotFenced"]
    assert message.endswith("it asks for fence, and is kept on this node: its file system is nfs4")
    assert edge.entry().state == "published"


async def test_a_volume_stays_fenced_while_something_holds_its_file_system() -> None:
    edge = edge_with("fence")
    await edge.start()
    edge.take_calls()
    edge.fencing.holding = "it is fenced, and still held by process 7"
    edge.fencing.fence(KEY, "its file system is shut down")
    await settle()
    assert (edge.take_calls(), edge.entry().state) == (TAKEN_DOWN, "fenced")
    edge.fencing.holding = ""
    edge.fencing.tell(KEY)
    await settle()
    assert edge.take_calls() == ["unstage h-data", "stage h-data", "publish h-data web-uid"]


async def test_a_fenced_volume_whose_driver_fails_stays_fenced() -> None:
    edge = edge_with("fence")
    await edge.start()
    edge.plugin.fails("unpublish", NotReady("busy"))
    edge.fencing.fence(KEY, "its file system is shut down")
    await settle()
    assert edge.entry().state == "fenced"
    assert "the agent fenced it: its file system is shut down" in edge.entry().error
    assert edge.fencing.held == [KEY]


@pytest.mark.parametrize(
    ("why_not", "held"), [("", [KEY]), ("its agent runs with --fence=off", [])], ids=["held anew", "fenced no more"]
)
async def test_after_a_reboot_the_hub_hears_first_whether_a_volume_is_fenced(
    why_not: str, held: list[VolumeKey]
) -> None:
    edge = edge_with("fence")
    await edge.start()
    edge.fencing.held.clear()
    edge.plugin.mounted.clear()
    edge.acked.clear()
    edge.fencing.why_not = why_not
    await edge.restart(boot="boot-2")
    assert (edge.fencing.held, edge.take_calls()) == (held, [])
    edge.acked.set()
    await settle()
    assert edge.take_calls() == MOUNTED


async def test_after_a_reboot_a_volume_that_is_kept_now_waits_until_the_hub_has_heard_that_it_is_not_fenced() -> None:
    edge = edge_with(None)
    await edge.start()
    edge.take_calls()
    edge.plugin.mounted.clear()
    edge.acked.clear()
    edge.fencing.held.append(KEY)
    edge.store.in_step = False
    await edge.restart(boot="boot-2")
    assert (edge.take_calls(), "objects are complete" in edge.entry().error) == ([], True)
    edge.store.in_step = True
    edge.store.tell()
    await settle()
    assert (edge.take_calls(), edge.fencing.held) == ([], [KEY])
    edge.acked.set()
    await settle()
    assert edge.take_calls() == MOUNTED
    assert edge.fencing.held == []


async def test_a_pod_that_goes_before_the_staging_leaves_nothing_held() -> None:
    edge = edge_with("fence")
    edge.acked.clear()
    await edge.start()
    assert edge.fencing.held == [KEY]
    (pod,) = edge.store.refs("Pod")
    edge.store.drop(pod)
    await settle()
    assert edge.fencing.held == []
