"""The volume manager: what must not be forgotten, mixed up or repeated when several things go wrong at once."""

import asyncio
from typing import Any

import pytest

from common.objects.objects import Ref
from common.status import Code
from edge.disk.found_volumes import Found, Unreadable
from edge.volume_errors import NotReady, Uncertain, VolumeRefused
from edge.wanted.states import Row
from tests.kit.edge_volumes import DRIVER, FOUND, MOUNTED, TAKEN_DOWN, EdgeVolumes, persistent_volume
from tests.kit.waiting import settle, until

POD = Ref("Pod", "default", "web")


def block_volume(edge: EdgeVolumes) -> None:
    """Let the volume of `add_pod` be a block volume."""
    edge.add_volume(pv={"volumeMode": "Block"})


# ---- one place, one volume -------------------------------------------------------------------------------------------


async def test_an_inline_volume_and_a_claims_of_the_same_name_are_never_published_to_one_place(
    edge: EdgeVolumes,
) -> None:
    edge.add_driver("i.csi", volumeLifecycleModes=["Ephemeral"], attachRequired=False)
    edge.drivers.by_name["i.csi"] = edge.drivers.by_name[DRIVER]
    edge.add_pod("other")
    await edge.start()
    edge.take_calls()
    edge.add_pod(volumes=[{"name": "pv-data", "csi": {"driver": "i.csi"}}])
    await settle()
    assert len(edge.take_calls()) == 1


async def test_two_block_volumes_whose_pvs_had_the_same_name_never_share_their_directories(edge: EdgeVolumes) -> None:
    block_volume(edge)
    ref = edge.add_pod(devices=("data",))
    await edge.start()
    assert edge.take_calls() == MOUNTED
    edge.plugin.fails("unstage", Uncertain("it hangs"))
    edge.store.drop(ref)
    edge.store.put(persistent_volume("data", csi={"volumeHandle": "h-new"}, volumeMode="Block"))
    edge.add_pod("two", devices=("data",))
    await settle()
    assert edge.take_calls() == TAKEN_DOWN
    await edge.clock.turn(2.0)
    assert edge.take_calls() == ["unstage h-data", "stage h-new", "publish h-new two-uid"]


async def test_two_pods_that_claim_one_uid_do_not_take_each_others_volumes_away(edge: EdgeVolumes) -> None:
    edge.add_pod("web", uid="one")
    copy = edge.add_pod("copy", uid="one")
    await edge.start()
    edge.take_calls()
    edge.store.drop(copy)
    await settle()
    assert edge.take_calls() == []
    edge.manager.describe()
    edge.store.drop(POD)
    await settle()
    assert edge.take_calls() == ["unpublish h-data one", "unstage h-data"]


async def test_a_pod_that_must_wait_for_a_volume_for_one_pod_only_does_not_keep_it_from_its_owner(
    edge: EdgeVolumes,
) -> None:
    edge.add_volume(pv={"accessModes": ["ReadWriteOncePod"]})
    await edge.mount()
    edge.add_pod("second", uid="a-second")  # it sorts before web-uid
    edge.plugin.mounted.clear()
    await edge.restart(boot="boot-2")
    assert edge.take_calls() == MOUNTED
    assert edge.entry().error == ""
    assert "ReadWriteOncePod" in edge.entry("second").error


async def test_pods_that_had_a_volume_before_it_was_for_one_pod_only_have_it_again_after_a_reboot(
    edge: EdgeVolumes,
) -> None:
    await edge.mount()
    edge.add_pod("two")
    await settle()
    edge.add_volume(pv={"accessModes": ["ReadWriteOncePod"]})
    await settle()
    edge.plugin.mounted.clear()
    edge.take_calls()
    await edge.restart(boot="boot-2")
    assert edge.take_calls() == ["stage h-data", "publish h-data two-uid", "publish h-data web-uid"]


@pytest.mark.parametrize(("step", "undone"), [("stage", TAKEN_DOWN[1:]), ("publish", TAKEN_DOWN)])
async def test_a_step_of_unknown_outcome_is_undone_before_it_is_tried_with_other_arguments(
    edge: EdgeVolumes, step: str, undone: list[str]
) -> None:
    edge.plugin.fails(step, Uncertain("it hangs"))
    edge.add_pod()
    await edge.start()
    assert edge.take_calls()[-1].startswith(step)
    edge.store.put(persistent_volume("data", mountOptions=["noatime"]))
    await settle()
    assert edge.take_calls() == [*undone, *MOUNTED]


async def test_a_mounted_file_system_of_which_the_disk_alone_tells_is_taken_down_before_it_is_a_block_volume(
    edge: EdgeVolumes,
) -> None:
    ref = edge.add_pod()
    await edge.start()
    await edge.manager.close(0.0)
    edge.states.kept.clear()
    edge.plugin.found = FOUND
    block_volume(edge)
    edge.add_pod(devices=("data",))
    edge.take_calls()
    await edge.restart()
    assert edge.take_calls()[:2] == TAKEN_DOWN
    edge.store.drop(ref)
    await settle()
    await edge.clock.turn(500.0)
    assert not edge.plugin.mounted


async def test_of_two_block_volumes_of_one_name_only_one_is_asked_for_though_both_are_written_down(
    edge: EdgeVolumes,
) -> None:
    """The PV is written anew while the intent to stage the old one is on its way to the disk."""
    block_volume(edge)
    put = edge.states.put

    async def rewrite(row: Row) -> None:
        if row.handle == "h-data":
            edge.states.put = put  # type: ignore[method-assign]  # as it was
            edge.store.put(persistent_volume("data", csi={"volumeHandle": "h-new"}, volumeMode="Block"))
            await until(edge.states.rows, "row of the new volume")
        await put(row)

    edge.states.put = rewrite  # type: ignore[method-assign]  # the same signature, and it takes its time
    edge.add_pod(devices=("data",))
    await edge.start()
    await edge.clock.turn(5.0)
    assert edge.take_calls() == ["stage h-new", "publish h-new web-uid"]
    assert [row.handle for row in edge.states.rows()] == ["h-new", "h-new"]


# ---- objects that were written anew, with the same handle ------------------------------------------------------------


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
    edge: EdgeVolumes, change: dict[str, Any]
) -> None:
    ref = await edge.mount()
    edge.store.put(persistent_volume("data", **change))
    await settle()
    assert edge.take_calls() == []  # not under a pod that has it
    edge.store.drop(ref)
    edge.take_calls()
    edge.add_pod(uid="again")
    await settle()
    assert "stage h-data" in edge.take_calls()


async def test_a_pod_does_not_get_a_volume_while_what_is_staged_otherwise_cannot_be_unstaged(edge: EdgeVolumes) -> None:
    ref = await edge.mount()
    edge.store.put(persistent_volume("data", mountOptions=["noatime"]))
    edge.plugin.fails("unstage", *[NotReady("it is still in use")] * 3)
    del edge.store.objects[ref]
    edge.add_pod(uid="again")
    await settle()
    await edge.clock.turn(60.0)
    assert edge.take_calls() == [ANEW[0], *["unstage h-data"] * 3, *ANEW[1:]]


async def test_the_next_pods_fs_group_is_no_reason_to_stage_a_volume_again(edge: EdgeVolumes) -> None:
    ref = await edge.mount()
    del edge.store.objects[ref]
    edge.add_pod(uid="again", spec={"securityContext": {"fsGroup": 7}})
    await settle()
    assert edge.take_calls() == ["unpublish h-data web-uid", "publish h-data again"]


# ---- a driver that stages since its update ---------------------------------------------------------------------------


def begin_to_stage(edge: EdgeVolumes) -> None:
    edge.drivers.by_name[DRIVER].capabilities = frozenset({1, 2, 3})
    edge.drivers.tell()


async def test_a_driver_that_stages_since_its_update_is_not_asked_to_under_a_pod(edge: EdgeVolumes) -> None:
    edge.drivers.by_name[DRIVER].capabilities = frozenset({2, 3})
    ref = await edge.mount()
    begin_to_stage(edge)
    edge.add_pod("two")
    await edge.clock.turn(60.0)
    assert edge.take_calls() == []
    assert "could not when another pod got the volume" in edge.entry("two").error
    edge.store.drop(ref)
    await settle()
    assert edge.take_calls() == ["unpublish h-data web-uid", "stage h-data", "publish h-data two-uid"]


# ---- attachments -----------------------------------------------------------------------------------------------------


async def staged_for_the_next_pod(edge: EdgeVolumes) -> Ref:
    """A node on which a pod wants what was staged for an earlier one, and does not get it; and the attachment."""
    edge.add_driver(attachRequired=True)
    attachment = edge.attach(metadata={"uid": "first"})
    ref = await edge.mount()
    edge.plugin.fails("publish", *[NotReady("not yet")] * 2)
    edge.store.drop(ref)
    edge.add_pod("two")
    await settle()
    assert edge.take_calls() == ["unpublish h-data web-uid", "publish h-data two-uid"]
    return attachment


async def test_a_volume_that_was_detached_by_force_is_unstaged_before_it_is_attached_again(edge: EdgeVolumes) -> None:
    """What it has not written yet must not reach the volume when another node has written to it."""
    attachment = await staged_for_the_next_pod(edge)
    edge.store.drop(attachment)
    await settle()
    assert edge.take_calls() == ["unstage h-data"]
    assert edge.manager.volumes_in_use() == [f"kubernetes.io/csi/{DRIVER}^h-data"]
    edge.attach(metadata={"uid": "second"})
    await settle()
    assert edge.take_calls() == ["stage h-data", "publish h-data two-uid"]


@pytest.mark.parametrize(
    "change",
    [
        {"metadata": {"uid": "first", "deletionTimestamp": "2026-01-01T00:00:00Z"}},
        {"metadata": {"uid": "second"}, "status": {"attached": False}},
    ],
)
async def test_a_volume_is_unstaged_while_it_is_being_detached_or_attached_anew(
    edge: EdgeVolumes, change: dict[str, Any]
) -> None:
    await staged_for_the_next_pod(edge)
    edge.attach(**change)
    await settle()
    assert edge.take_calls() == ["unstage h-data"]


async def test_a_volume_that_was_detached_by_force_is_not_unstaged_under_a_pod(edge: EdgeVolumes) -> None:
    edge.add_driver(attachRequired=True)
    attachment = edge.attach(metadata={"uid": "first"})
    await edge.mount()
    edge.add_pod("two", claims=())
    edge.store.drop(attachment)
    edge.add_pod("two")
    await edge.clock.turn(60.0)
    assert edge.take_calls() == []


async def test_an_attachment_that_no_store_was_told_of_is_not_taken_for_gone(edge: EdgeVolumes) -> None:
    attachment = await staged_for_the_next_pod(edge)
    del edge.store.objects[attachment]  # the node's knowledge was lost, and is being told again
    edge.store.in_step = edge.store.ever_in_step = False
    await edge.restart()
    assert edge.take_calls() == []
    edge.store.in_step = edge.store.ever_in_step = True
    edge.store.tell()
    await settle()
    assert edge.take_calls() == ["unstage h-data"]


async def test_an_attachment_that_the_disk_does_not_give_is_not_taken_for_gone(edge: EdgeVolumes) -> None:
    edge.store.withheld = {await staged_for_the_next_pod(edge)}
    await edge.clock.turn(60.0)
    assert edge.take_calls() == []


async def test_what_the_hub_confirmed_for_one_pod_is_void_for_the_next_one(edge: EdgeVolumes) -> None:
    """docs/csi-contract.md#volumesinuse-comes-before-staging: in between, the volume was not in use."""
    edge.add_driver(attachRequired=True)
    edge.attach()
    refused = asyncio.Event()
    edge.plugin.fails("stage", refused)
    edge.plugin.mounts_something = False
    stage = edge.plugin.stage

    async def refuse(*args: Any, **given: Any) -> None:
        await stage(*args, **given)
        edge.states.trouble = "the disk is full"
        raise VolumeRefused("no", code=Code.INTERNAL)

    edge.plugin.stage = refuse  # type: ignore[method-assign]  # the same signature, and it fails
    ref = edge.add_pod()
    await edge.start()
    edge.store.drop(ref)
    refused.set()
    await settle()
    assert edge.take_calls() == ["stage h-data"]
    assert edge.manager.volumes_in_use() == []
    edge.acked.clear()
    edge.plugin.stage = stage  # type: ignore[method-assign]  # as it was
    edge.add_pod("two")
    await settle()
    edge.states.trouble = ""
    await edge.clock.turn(60.0)
    assert edge.take_calls() == []
    edge.acked.set()
    await settle()
    assert edge.take_calls() == ["stage h-data", "publish h-data two-uid"]


async def test_a_pod_that_goes_while_the_hub_is_asked_is_no_bug(
    edge: EdgeVolumes, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    edge.add_driver(attachRequired=True)
    edge.attach()
    ref = edge.add_pod()

    async def lose() -> bool:
        edge.store.drop(ref)
        return True

    monkeypatch.setattr(edge.acked, "wait", lose)
    await edge.start()
    assert edge.take_calls() == []
    assert [record.message for record in caplog.records if record.exc_info] == []


async def test_a_pod_that_goes_while_the_intent_is_written_gets_no_volume_staged(edge: EdgeVolumes) -> None:
    """docs/csi-contract.md#volumesinuse-comes-before-staging: the agent no longer reports the volume."""
    edge.add_driver(attachRequired=True)
    edge.attach()
    ref = edge.add_pod()
    put = edge.states.put

    async def lose(row: Row) -> None:
        edge.states.put = put  # type: ignore[method-assign]  # as it was
        edge.store.drop(ref)
        await put(row)

    edge.states.put = lose  # type: ignore[method-assign]  # the same signature, and the pod goes meanwhile
    await edge.start()
    await edge.clock.turn(5.0)
    assert edge.take_calls() == []
    assert edge.states.kept == {}
    assert edge.manager.volumes_in_use() == []


# ---- what would go on for ever ---------------------------------------------------------------------------------------


async def test_a_shared_volume_that_is_larger_than_was_asked_for_is_not_expanded_again_and_again(
    edge: EdgeVolumes,
) -> None:
    """The driver had rounded up: the PV is larger than what the claim was allocated, and stays so."""
    status = {"capacity": {"storage": "2Gi"}, "allocatedResources": {"storage": "2Gi"}}
    edge.add_volume(
        pv={"size": "3Gi", "accessModes": ["ReadWriteMany"]},
        claim={"status": status, "accessModes": ["ReadWriteMany"]},
    )
    edge.add_pod()
    await edge.start()
    await edge.clock.turn(300.0)
    assert edge.take_calls().count("expand h-data web-uid") <= 1


async def test_pods_that_never_got_a_volume_leave_nothing_of_themselves_in_memory(edge: EdgeVolumes) -> None:
    await edge.mount()
    (task,) = edge.manager._volumes.values()  # what is held, not what is told, is the question
    before = len(task._tries)
    for number in range(10):
        edge.plugin.fails("publish", VolumeRefused("no", code=Code.INTERNAL))
        ref = edge.add_pod(f"pod-{number}")
        await settle()
        edge.store.drop(ref)
        await settle()
    assert len(task._tries) == before


async def test_a_block_volume_does_not_wait_for_tokens_which_no_kubelet_gives_with_one(edge: EdgeVolumes) -> None:
    edge.add_driver(attachRequired=False, tokenRequests=[{"audience": "a"}])
    edge.add_volume(pv={"volumeMode": "Block"})
    edge.add_pod(devices=("data",))
    await edge.start()
    assert edge.take_calls() == MOUNTED


# ---- objects that make no sense, and a disk that gives none ----------------------------------------------------------


async def test_a_number_without_end_in_one_pod_holds_up_no_other(edge: EdgeVolumes) -> None:
    edge.add_pod("mad", spec={"securityContext": {"fsGroup": float("inf")}})
    edge.add_pod()
    await edge.start()
    assert edge.take_calls() == MOUNTED


async def test_a_disk_that_does_not_give_an_object_takes_no_volume_and_ends_no_task(edge: EdgeVolumes) -> None:
    await edge.mount()
    claim = Ref("PersistentVolumeClaim", "default", "data")
    edge.store.withheld = {claim}
    edge.store.tell(claim)
    edge.store.tell(POD)
    edge.add_pod("other", claims=())
    await settle()
    assert edge.take_calls() == []
    assert [one.name for one in edge.manager.describe_pods()] == ["other", "web"]
    edge.store.withheld.clear()
    edge.store.tell(POD)
    await settle()
    assert edge.take_calls() == []
    assert edge.entry().state == "published"


async def test_what_a_row_tells_of_is_left_to_its_task_also_if_its_directory_is_unreadable(edge: EdgeVolumes) -> None:
    ref = await edge.mount()
    (publication,) = edge.states.publications()
    path = edge.plugin.path(publication)  # type: ignore[arg-type]  # it has what is asked of it
    edge.plugin.found = Found(unreadable=(Unreadable(path=path, reason="bad", pod_uid="web-uid", name="pv-data"),))
    edge.plugin.fails("unpublish", NotReady("not now"))
    edge.change(ref, status={"phase": "Succeeded"})
    await edge.restart(boot="boot-2")
    assert edge.take_calls() == ["unpublish h-data web-uid"]
    assert edge.plugin.cleaned == []
