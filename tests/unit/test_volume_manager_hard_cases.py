"""The volume manager: what must not be forgotten, mixed up or repeated when several things go wrong at once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from common.objects import Object, Ref
from common.status import Code
from edge.disk.found_volumes import Found, Published, Staged, Unreadable
from edge.volume_errors import NotReady, Refused, Uncertain
from tests.kit.volume_world import DRIVER, World, persistent_claim, persistent_volume
from tests.kit.waiting import settle, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from edge.manager.states import Row

POD = Ref("Pod", "default", "web")


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    yield made
    await made.manager.close(0.0)


async def mounted(world: World) -> Ref:
    """A world in which a pod has its volume."""
    ref = world.add_pod()
    await world.start()
    assert world.take_calls() == ["stage h-data", "publish h-data web-uid"]
    return ref


# ---- one place, one volume -------------------------------------------------------------------------------------------


async def test_an_inline_volume_and_a_claims_of_the_same_name_are_never_published_to_one_place(world: World) -> None:
    world.add_driver("i.csi", volumeLifecycleModes=["Ephemeral"], attachRequired=False)
    world.drivers.by_name["i.csi"] = world.drivers.by_name[DRIVER]
    world.add_pod("other")
    await world.start()
    world.take_calls()
    world.add_pod(volumes=[{"name": "pv-data", "csi": {"driver": "i.csi"}}])
    await settle()
    assert len(world.take_calls()) == 1


async def test_two_block_volumes_whose_pvs_had_the_same_name_never_share_their_directories(world: World) -> None:
    world.store.put(persistent_volume("data", volumeMode="Block"))
    world.store.put(persistent_claim("data"))
    ref = world.add_pod(devices=("data",))
    await world.start()
    assert world.take_calls() == ["stage h-data", "publish h-data web-uid"]
    world.plugin.fails("unstage", Uncertain("it hangs"))
    world.store.drop(ref)
    world.store.put(persistent_volume("data", csi={"volumeHandle": "h-new"}, volumeMode="Block"))
    world.add_pod("two", devices=("data",))
    await settle()
    assert world.take_calls() == ["unpublish h-data web-uid", "unstage h-data"]
    await world.clock.turn(2.0)
    assert world.take_calls() == ["unstage h-data", "stage h-new", "publish h-new two-uid"]


async def test_two_pods_that_claim_one_uid_do_not_take_each_others_volumes_away(world: World) -> None:
    world.add_pod("web", uid="one")
    copy = world.add_pod("copy", uid="one")
    await world.start()
    world.take_calls()
    world.store.drop(copy)
    await settle()
    assert world.take_calls() == []
    world.manager.describe()
    world.store.drop(POD)
    await settle()
    assert world.take_calls() == ["unpublish h-data one", "unstage h-data"]


async def test_a_pod_that_must_wait_for_a_volume_for_one_pod_only_does_not_keep_it_from_its_owner(world: World) -> None:
    world.add_volume(pv={"accessModes": ["ReadWriteOncePod"]})
    await mounted(world)
    world.add_pod("second", uid="a-second")  # it sorts before web-uid
    world.plugin.mounted.clear()
    await world.restart(boot="boot-2")
    assert world.take_calls() == ["stage h-data", "publish h-data web-uid"]
    assert world.entry()["error"] == ""
    assert "ReadWriteOncePod" in world.entry("second")["error"]


async def test_pods_that_had_a_volume_before_it_was_for_one_pod_only_have_it_again_after_a_reboot(world: World) -> None:
    await mounted(world)
    world.add_pod("two")
    await settle()
    world.add_volume(pv={"accessModes": ["ReadWriteOncePod"]})
    await settle()
    world.plugin.mounted.clear()
    world.take_calls()
    await world.restart(boot="boot-2")
    assert world.take_calls() == ["stage h-data", "publish h-data two-uid", "publish h-data web-uid"]


async def test_a_publication_of_unknown_outcome_is_undone_before_it_is_asked_for_with_other_arguments(
    world: World,
) -> None:
    world.plugin.fails("publish", Uncertain("it hangs"))
    world.add_pod()
    await world.start()
    assert world.take_calls() == ["stage h-data", "publish h-data web-uid"]
    world.store.put(persistent_volume("data", mountOptions=["noatime"]))
    await settle()
    assert world.take_calls() == [
        "unpublish h-data web-uid",
        "unstage h-data",
        "stage h-data",
        "publish h-data web-uid",
    ]


async def test_a_mounted_file_system_of_which_the_disk_alone_tells_is_taken_down_before_it_is_a_block_volume(
    world: World,
) -> None:
    ref = world.add_pod()
    await world.start()
    await world.manager.close(0.0)
    world.states.kept.clear()
    world.plugin.found = Found(
        (Published(driver=DRIVER, handle="h-data", name="pv-data", pod_uid="web-uid"),),
        (Staged(driver=DRIVER, handle="h-data"),),
    )
    block_volume(world)
    world.add_pod(devices=("data",))
    world.take_calls()
    await world.restart()
    assert world.take_calls()[:2] == ["unpublish h-data web-uid", "unstage h-data"]
    world.store.drop(ref)
    await settle()
    await world.clock.turn(500.0)
    assert not world.plugin.mounted


async def test_of_two_block_volumes_of_one_name_only_one_is_asked_for_though_both_are_written_down(
    world: World,
) -> None:
    """The PV is written anew while the intent to stage the old one is on its way to the disk."""
    block_volume(world)
    put = world.states.put

    async def rewrite(row: Row) -> None:
        if row.handle == "h-data":
            world.states.put = put  # type: ignore[method-assign]  # as it was
            world.store.put(persistent_volume("data", csi={"volumeHandle": "h-new"}, volumeMode="Block"))
            await until(world.states.rows, "row of the new volume")
        await put(row)

    world.states.put = rewrite  # type: ignore[method-assign]  # the same signature, and it takes its time
    world.add_pod(devices=("data",))
    await world.start()
    await world.clock.turn(5.0)
    assert world.take_calls() == ["stage h-new", "publish h-new web-uid"]
    assert [row.handle for row in world.states.rows()] == ["h-new", "h-new"]


# ---- objects that were written anew, with the same handle ------------------------------------------------------------


def block_volume(world: World, name: str = "data", handle: str = "h-data") -> None:
    """A block volume; its PV is called after the claim."""
    world.store.put(persistent_volume(name, csi={"volumeHandle": handle}, volumeMode="Block"))
    world.store.put(persistent_claim(name))


ANEW = ["unpublish h-data web-uid", "unstage h-data", "stage h-data", "publish h-data again"]


@pytest.mark.parametrize(
    "change",
    [
        {"csi": {"fsType": "xfs"}},
        {"csi": {"volumeAttributes": {"share": "other"}}},
        {"mountOptions": ["noatime"]},
        {"accessModes": ["ReadWriteMany"]},
    ],
)
async def test_a_volume_whose_pv_asks_for_something_else_is_staged_again_for_the_next_pod(
    world: World, change: dict[str, Any]
) -> None:
    ref = await mounted(world)
    world.store.put(persistent_volume("data", **change))
    await settle()
    assert world.take_calls() == []  # not under a pod that has it
    world.store.drop(ref)
    world.take_calls()
    world.add_pod(uid="again")
    await settle()
    assert "stage h-data" in world.take_calls()


async def test_a_pod_does_not_get_a_volume_while_what_is_staged_otherwise_cannot_be_unstaged(world: World) -> None:
    ref = await mounted(world)
    world.store.put(persistent_volume("data", mountOptions=["noatime"]))
    world.plugin.fails("unstage", *[NotReady("it is still in use")] * 3)
    del world.store.objects[ref]
    world.add_pod(uid="again")
    await settle()
    await world.clock.turn(60.0)
    assert world.take_calls() == [ANEW[0], *["unstage h-data"] * 3, *ANEW[1:]]


async def test_a_stage_of_unknown_outcome_is_undone_before_it_is_tried_with_other_arguments(world: World) -> None:
    world.plugin.fails("stage", Uncertain("it hangs"))
    world.add_pod()
    await world.start()
    world.store.put(persistent_volume("data", mountOptions=["noatime"]))
    await settle()
    assert world.take_calls() == ["stage h-data", "unstage h-data", "stage h-data", "publish h-data web-uid"]


async def test_the_next_pods_fs_group_is_no_reason_to_stage_a_volume_again(world: World) -> None:
    ref = await mounted(world)
    del world.store.objects[ref]
    world.add_pod(uid="again", spec={"securityContext": {"fsGroup": 7}})
    await settle()
    assert world.take_calls() == ["unpublish h-data web-uid", "publish h-data again"]


# ---- a driver that stages since its update ---------------------------------------------------------------------------


def begin_to_stage(world: World) -> None:
    world.drivers.by_name[DRIVER].capabilities = frozenset({1, 2, 3})
    world.drivers.tell()


async def test_a_driver_that_stages_since_its_update_is_not_asked_to_under_a_pod(world: World) -> None:
    world.drivers.by_name[DRIVER].capabilities = frozenset({2, 3})
    ref = await mounted(world)
    begin_to_stage(world)
    world.add_pod("two")
    await world.clock.turn(60.0)
    assert world.take_calls() == []
    assert "could not when another pod got the volume" in world.entry("two")["error"]
    world.store.drop(ref)
    await settle()
    assert world.take_calls() == ["unpublish h-data web-uid", "stage h-data", "publish h-data two-uid"]


# ---- attachments -----------------------------------------------------------------------------------------------------


async def staged_for_the_next_pod(world: World) -> Ref:
    """A world in which a pod wants what was staged for an earlier one, and does not get it; and the attachment."""
    world.add_driver(attachRequired=True)
    attachment = world.attach(metadata={"uid": "first"})
    ref = await mounted(world)
    world.plugin.fails("publish", *[NotReady("not yet")] * 2)
    world.store.drop(ref)
    world.add_pod("two")
    await settle()
    assert world.take_calls() == ["unpublish h-data web-uid", "publish h-data two-uid"]
    return attachment


async def test_a_volume_that_was_detached_by_force_is_unstaged_before_it_is_attached_again(world: World) -> None:
    """What it has not written yet must not reach the volume when another node has written to it."""
    attachment = await staged_for_the_next_pod(world)
    world.store.drop(attachment)
    await settle()
    assert world.take_calls() == ["unstage h-data"]
    assert world.manager.volumes_in_use() == [f"kubernetes.io/csi/{DRIVER}^h-data"]
    world.attach(metadata={"uid": "second"})
    await settle()
    assert world.take_calls() == ["stage h-data", "publish h-data two-uid"]


@pytest.mark.parametrize(
    "change",
    [
        {"metadata": {"uid": "first", "deletionTimestamp": "2026-01-01T00:00:00Z"}},
        {"metadata": {"uid": "second"}, "status": {"attached": False}},
    ],
)
async def test_a_volume_is_unstaged_while_it_is_being_detached_or_attached_anew(
    world: World, change: dict[str, Any]
) -> None:
    await staged_for_the_next_pod(world)
    world.attach(**change)
    await settle()
    assert world.take_calls() == ["unstage h-data"]


async def test_a_volume_that_was_detached_by_force_is_not_unstaged_under_a_pod(world: World) -> None:
    world.add_driver(attachRequired=True)
    attachment = world.attach(metadata={"uid": "first"})
    await mounted(world)
    world.add_pod("two", claims=())
    world.store.drop(attachment)
    world.add_pod("two")
    await world.clock.turn(60.0)
    assert world.take_calls() == []


async def test_an_attachment_that_no_store_was_told_of_is_not_taken_for_gone(world: World) -> None:
    attachment = await staged_for_the_next_pod(world)
    del world.store.objects[attachment]  # the node's knowledge was lost, and is being told again
    world.store.in_step = world.store.ever_in_step = False
    await world.restart()
    assert world.take_calls() == []
    world.store.in_step = world.store.ever_in_step = True
    world.store.tell()
    await settle()
    assert world.take_calls() == ["unstage h-data"]


async def test_an_attachment_that_the_disk_does_not_give_is_not_taken_for_gone(world: World) -> None:
    attachment = await staged_for_the_next_pod(world)
    get = world.store.get

    def fail(ref: Ref) -> Object | None:
        if ref == attachment:
            raise OSError("the disk does not give it")
        return get(ref)

    world.store.get = fail  # type: ignore[method-assign]  # the same signature, and it fails
    await world.clock.turn(60.0)
    assert world.take_calls() == []


async def test_what_the_hub_confirmed_for_one_pod_is_void_for_the_next_one(world: World) -> None:
    """docs/csi-contract.md#volumesinuse-comes-before-staging: in between, the volume was not in use."""
    world.add_driver(attachRequired=True)
    world.attach()
    refused = asyncio.Event()
    world.plugin.fails("stage", refused)
    world.plugin.mounts_something = False
    stage = world.plugin.stage

    async def refuse(*args: Any, **given: Any) -> None:
        await stage(*args, **given)
        world.states.trouble = "the disk is full"
        raise Refused("no", code=Code.INTERNAL)

    world.plugin.stage = refuse  # type: ignore[method-assign]  # the same signature, and it fails
    ref = world.add_pod()
    await world.start()
    world.store.drop(ref)
    refused.set()
    await settle()
    assert world.take_calls() == ["stage h-data"]
    assert world.manager.volumes_in_use() == []
    world.acked.clear()
    world.plugin.stage = stage  # type: ignore[method-assign]  # as it was
    world.add_pod("two")
    await settle()
    world.states.trouble = ""
    await world.clock.turn(60.0)
    assert world.take_calls() == []
    world.acked.set()
    await settle()
    assert world.take_calls() == ["stage h-data", "publish h-data two-uid"]


async def test_a_pod_that_goes_while_the_hub_is_asked_is_no_bug(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.add_driver(attachRequired=True)
    world.attach()
    ref = world.add_pod()

    async def lose() -> bool:
        world.store.drop(ref)
        return True

    monkeypatch.setattr(world.acked, "wait", lose)
    await world.start()
    assert world.take_calls() == []
    assert [record.message for record in caplog.records if record.exc_info] == []


async def test_a_pod_that_goes_while_the_intent_is_written_gets_no_volume_staged(world: World) -> None:
    """docs/csi-contract.md#volumesinuse-comes-before-staging: the agent no longer reports the volume."""
    world.add_driver(attachRequired=True)
    world.attach()
    ref = world.add_pod()
    put = world.states.put

    async def lose(row: Row) -> None:
        world.states.put = put  # type: ignore[method-assign]  # as it was
        world.store.drop(ref)
        await put(row)

    world.states.put = lose  # type: ignore[method-assign]  # the same signature, and the pod goes meanwhile
    await world.start()
    await world.clock.turn(5.0)
    assert world.take_calls() == []
    assert world.states.kept == {}
    assert world.manager.volumes_in_use() == []


# ---- what would go on for ever ---------------------------------------------------------------------------------------


async def test_a_shared_volume_that_is_larger_than_was_asked_for_is_not_expanded_again_and_again(world: World) -> None:
    """The driver had rounded up: the PV is larger than what the claim was allocated, and stays so."""
    status = {"capacity": {"storage": "2Gi"}, "allocatedResources": {"storage": "2Gi"}}
    world.add_volume(
        pv={"size": "3Gi", "accessModes": ["ReadWriteMany"]},
        claim={"status": status, "accessModes": ["ReadWriteMany"]},
    )
    world.add_pod()
    await world.start()
    await world.clock.turn(300.0)
    assert world.take_calls().count("expand h-data web-uid") <= 1


async def test_pods_that_never_got_a_volume_leave_nothing_of_themselves_in_memory(world: World) -> None:
    await mounted(world)
    (task,) = world.manager._volumes.values()  # what is held, not what is told, is the question
    before = len(task._tries)
    for number in range(10):
        world.plugin.fails("publish", Refused("no", code=Code.INTERNAL))
        ref = world.add_pod(f"pod-{number}")
        await settle()
        world.store.drop(ref)
        await settle()
    assert len(task._tries) == before


async def test_a_block_volume_does_not_wait_for_tokens_which_no_kubelet_gives_with_one(world: World) -> None:
    world.add_driver(attachRequired=False, tokenRequests=[{"audience": "a"}])
    world.add_volume(pv={"volumeMode": "Block"})
    world.add_pod(devices=("data",))
    await world.start()
    assert world.take_calls() == ["stage h-data", "publish h-data web-uid"]


# ---- objects that make no sense, and a disk that gives none ----------------------------------------------------------


async def test_a_number_without_end_in_one_pod_holds_up_no_other(world: World) -> None:
    world.add_pod("mad", spec={"securityContext": {"fsGroup": float("inf")}})
    world.add_pod()
    await world.start()
    assert world.take_calls() == ["stage h-data", "publish h-data web-uid"]


async def test_a_disk_that_does_not_give_an_object_takes_no_volume_and_ends_no_task(world: World) -> None:
    await mounted(world)
    get, broken = world.store.get, Ref("PersistentVolumeClaim", "default", "data")

    def fail(ref: Ref) -> object:
        if ref == broken:
            raise OSError("the disk does not give it")
        return get(ref)

    world.store.get = fail  # type: ignore[assignment, method-assign]  # the same signature, and it fails
    world.store.tell(broken)
    world.store.tell(POD)
    world.add_pod("other", claims=())
    await settle()
    assert world.take_calls() == []
    assert [one["name"] for one in world.manager.describe_pods()] == ["other", "web"]
    del world.store.get  # type: ignore[attr-defined]  # as it was
    world.store.tell(POD)
    await settle()
    assert world.take_calls() == []
    assert world.entry()["state"] == "published"


async def test_what_a_row_tells_of_is_left_to_its_task_also_if_its_directory_is_unreadable(world: World) -> None:
    ref = await mounted(world)
    (publication,) = world.states.publications()
    path = world.plugin.path(publication)  # type: ignore[arg-type]  # it has what is asked of it
    world.plugin.found = Found(unreadable=(Unreadable(path=path, reason="bad", pod_uid="web-uid", name="pv-data"),))
    world.plugin.fails("unpublish", NotReady("not now"))
    world.change(ref, status={"phase": "Succeeded"})
    await world.restart(boot="boot-2")
    assert world.take_calls() == ["unpublish h-data web-uid"]
    assert world.plugin.cleaned == []
