"""The volume manager: in which order what is done, and what it does about failures, restarts and pods that go."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from common.objects import Ref
from common.status import Code
from edge.disk.found_volumes import Found, Published, Staged, Unreadable
from edge.manager.host import READINGS_AT_ONCE
from edge.manager.states import Device, Publication, State
from edge.node_requests import VolumeStats
from edge.volume_errors import NotReady, Refused, Uncertain
from tests.kit.volume_world import DRIVER, GI, FakeDriver, World, pod, secret
from tests.kit.waiting import settle

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from typing import Any

    from common.objects import Object

CLAIM = Ref("PersistentVolumeClaim", "default", "data")
VOLUME = Ref("PersistentVolume", "", "pv-data")
IN_USE = f"kubernetes.io/csi/{DRIVER}^h-data"

MOUNTED = ["stage h-data", "publish h-data web-uid"]
TAKEN_DOWN = ["unpublish h-data web-uid", "unstage h-data"]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    yield made
    await made.manager.close(0.0)


async def mounted(world: World) -> Ref:
    """A world in which a pod has its volume."""
    ref = world.add_pod()
    await world.start()
    assert world.take_calls() == MOUNTED
    return ref


# ---- mounting --------------------------------------------------------------------------------------------------------


async def test_what_is_about_to_be_done_is_written_before_it_is_done_and_the_result_after(world: World) -> None:
    await mounted(world)
    assert world.states.writes == ["device uncertain", "device done", "publication uncertain", "publication done"]
    device, (publication,) = world.states.device(), world.states.publications()
    assert device is not None
    assert device.mount_point
    assert device.boot == "boot-1"
    assert (publication.pod_namespace, publication.pod_name, publication.volume_name) == ("default", "web", "data")


async def test_an_inline_volume_is_neither_attached_nor_staged(world: World) -> None:
    world.add_driver(volumeLifecycleModes=["Ephemeral"])
    world.add_pod(claims=(), volumes=[{"name": "tmp", "csi": {"driver": DRIVER, "readOnly": True}}])
    await world.start()
    (call,) = world.plugin.calls
    assert call.startswith("publish csi-")
    assert world.plugin.given[0]["wanted"].read_only
    world.store.drop(Ref("Pod", "default", "web"))
    await settle()
    assert [call.split()[0] for call in world.plugin.calls] == ["publish", "unpublish"]
    assert world.states.kept == {}


async def test_secrets_and_the_attachments_context_are_handed_on(world: World) -> None:
    world.add_driver(attachRequired=True)
    ref = {"namespace": "default", "name": "s"}
    world.add_volume(nodeStageSecretRef=ref, nodePublishSecretRef={**ref, "name": "p"})
    world.store.put(secret("s", key="stage"))
    world.store.put(secret("p", key="publish"))
    world.attach()
    world.add_pod(spec={"securityContext": {"fsGroup": 42}})
    await world.start()
    stage, publish = world.plugin.given
    assert stage == {
        "publish_context": {"lun": "7"},
        "secrets": {"key": "stage"},
        "fs_group": 42,
        "selinux_label": "",
        "reconstructed": False,
    }
    assert (publish["publish_context"], publish["secrets"]) == ({"lun": "7"}, {"key": "publish"})


async def test_the_stage_secret_is_not_read_for_a_driver_that_does_not_stage(world: World) -> None:
    world.drivers.by_name[DRIVER] = FakeDriver(capabilities=frozenset())
    world.add_volume(nodeStageSecretRef={"namespace": "default", "name": "gone"})
    world.add_pod()
    await world.start()
    assert world.plugin.calls == MOUNTED


# ---- waiting ---------------------------------------------------------------------------------------------------------


async def test_a_driver_that_comes_and_goes_hurries_its_own_volumes_alone(world: World) -> None:
    other = world.drivers.by_name["other.csi"] = FakeDriver("other.csi")
    world.plugin.fails("stage", *[Uncertain("slow")] * 100)
    world.add_pod()
    await world.start()
    await world.clock.turn(100)
    world.take_calls()
    for _ in range(10):
        other.registered = not other.registered
        world.drivers.tell()
        await settle()
    assert world.take_calls() == []
    world.drivers.by_name[DRIVER].file = "another socket"
    world.drivers.tell()
    await settle()
    assert world.take_calls() == ["stage h-data"]


@pytest.mark.parametrize(
    "change",
    [
        {"status": {"attached": False}},
        {"spec": {"nodeName": "other"}},
        {"spec": {"attacher": "other"}},
        {"spec": {"source": {"persistentVolumeName": "pv-other"}}},
        {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}},
    ],
)
async def test_a_stale_attachment_is_not_trusted(world: World, change: Mapping[str, Any]) -> None:
    world.add_driver(attachRequired=True)
    world.attach(**change)
    world.add_pod()
    await world.start()
    assert world.plugin.calls == []
    assert world.entry()["state"] == "waiting"
    assert world.entry()["error"]


async def test_the_first_stage_waits_until_the_hub_knows_that_the_volume_is_in_use(world: World) -> None:
    world.acked.clear()
    world.add_driver(attachRequired=True)
    world.attach()
    world.add_pod()
    await world.start()
    assert world.in_use == [[IN_USE]]
    assert world.plugin.calls == []
    assert "volumesInUse" in world.entry()["error"]
    world.acked.set()
    await settle()
    assert world.plugin.calls == MOUNTED


async def test_a_missing_secret_is_told_at_once_and_its_coming_is_noticed_at_once(world: World) -> None:
    world.add_volume(nodePublishSecretRef={"namespace": "default", "name": "p"})
    world.add_pod()
    await world.start()
    assert world.plugin.calls == ["stage h-data"]
    assert world.store.events() == [
        ("FailedMount", 'MountVolume.SetUp failed for volume "pv-data": secret default/p is not known to this node')
    ]
    world.store.put(secret("p", key="value"))
    await settle()
    assert world.plugin.calls == MOUNTED


# ---- failures --------------------------------------------------------------------------------------------------------


async def test_a_refused_stage_leaves_nothing_and_is_tried_again_with_growing_distance(world: World) -> None:
    world.plugin.fails("stage", *[Refused("no", code=Code.INTERNAL)] * 4)
    world.add_pod()
    await world.start()
    assert world.take_calls() == ["stage h-data"]
    assert world.states.kept == {}
    for wait in (0.5, 1.0, 2.0):
        await world.clock.turn(wait - 0.25)
        assert world.take_calls() == []
        await world.clock.turn(0.25)
        assert world.take_calls() == ["stage h-data"]
    await world.clock.turn(4.0)
    assert world.take_calls() == MOUNTED


async def test_a_clock_that_was_put_back_delays_no_event(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.store.put(pod("web", claims=("missing",)))
    await world.start()
    right = world.clock.time
    monkeypatch.setattr(world.clock, "time", lambda: right() - 30 * 86400.0)
    await world.clock.turn(130)
    assert [reason for reason, _ in world.store.events()] == ["FailedMount"]


async def test_an_uncertain_stage_is_repeated_while_the_pod_wants_it(world: World) -> None:
    world.plugin.fails("stage", Uncertain("who knows"))
    world.add_pod()
    await world.start()
    device = world.states.device()
    assert device is not None
    assert device.state is State.UNCERTAIN
    await world.clock.turn(0.5)
    assert world.plugin.calls == ["stage h-data", *MOUNTED]


async def test_what_was_not_asked_of_the_driver_changes_no_state(world: World) -> None:
    world.plugin.fails("stage", NotReady("the directory cannot be made"))
    world.add_pod()
    await world.start()
    assert world.states.kept == {}
    assert world.store.events()


async def test_a_result_that_cannot_be_written_is_written_later_and_nothing_is_repeated(world: World) -> None:
    go = asyncio.Event()
    world.plugin.fails("publish", go)
    world.add_pod()
    await world.start()
    world.states.trouble = "the disk is full"
    go.set()
    await settle()
    assert world.entry()["state"] == "published"
    assert world.states.publications()[0].state is State.UNCERTAIN
    world.states.trouble = ""
    await world.clock.turn(200)
    assert world.states.publications()[0].state is State.DONE
    assert world.plugin.calls == MOUNTED


async def test_a_bug_in_a_step_ends_no_task(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.plugin.fails("stage", ZeroDivisionError("ups"))
    world.add_pod()
    await world.start()
    await world.clock.turn(1)
    assert world.plugin.calls == ["stage h-data", *MOUNTED]
    assert "failed because of a bug" in caplog.text


# ---- taking down -----------------------------------------------------------------------------------------------------


async def test_a_deleted_pod_loses_its_volume_as_soon_as_its_containers_have_ended(world: World) -> None:
    pod = await mounted(world)
    world.change(
        pod,
        metadata={**world.store.body(pod)["metadata"], "deletionTimestamp": "2099-01-01T00:00:00Z"},
        status={"phase": "Running", "containerStatuses": [{"name": "c", "state": {"terminated": {}}}]},
    )
    await settle()
    assert world.plugin.calls == TAKEN_DOWN


async def test_a_pod_that_is_being_deleted_gets_no_volume_any_more(world: World) -> None:
    await world.start()
    leaving = {"namespace": "default", "name": "web", "uid": "web-uid", "deletionTimestamp": "2099-01-01T00:00:00Z"}
    world.add_pod(metadata=leaving)
    await settle()
    assert world.plugin.calls == []


async def test_a_pod_that_is_being_deleted_has_its_volumes_again_after_a_reboot(world: World) -> None:
    pod = await mounted(world)
    world.change(pod, metadata={**world.store.body(pod)["metadata"], "deletionTimestamp": "2099-01-01T00:00:00Z"})
    world.plugin.mounted.clear()
    await world.restart(boot="boot-2")
    assert world.plugin.calls == MOUNTED


async def test_another_volume_under_the_old_names_is_not_mounted_over_the_first_one(world: World) -> None:
    pod = await mounted(world)
    body = world.store.body(VOLUME)
    body["spec"]["csi"]["volumeHandle"] = "h-other"
    world.store.put(body)
    await settle()
    assert world.plugin.calls == []
    waiting, published = sorted(world.manager.describe(), key=lambda one: one["state"], reverse=True)
    assert (published["state"], published["handle"]) == ("published", "h-data")
    assert "another volume is still mounted in the place of pv-data" in waiting["error"]
    world.store.drop(pod)
    await settle()
    assert world.plugin.calls == TAKEN_DOWN


async def test_a_volume_whose_claim_is_lost_stays_mounted(world: World) -> None:
    await mounted(world)
    world.store.drop(CLAIM, VOLUME)
    await settle()
    assert world.plugin.calls == []
    assert world.entry()["state"] == "published"
    assert world.entry()["error"] == "PVC default/data is not known to this node"


async def test_taking_down_needs_neither_claim_nor_volume_nor_secret(world: World) -> None:
    pod = await mounted(world)
    world.store.drop(CLAIM, VOLUME, pod)
    await settle()
    assert world.plugin.calls == TAKEN_DOWN


async def test_a_driver_that_does_not_let_go_is_told_of_at_the_node(world: World) -> None:
    pod = await mounted(world)
    world.plugin.fails("unpublish", *[Refused("busy", code=Code.INTERNAL)] * 5)
    world.store.drop(pod)
    await settle()
    await world.clock.turn(5)
    assert [reason for reason, _ in world.store.events()] == ["FailedUnMount"]
    assert next(body for ref, body in world.store.told if ref.kind == "Event")["involvedObject"]["kind"] == "Node"


# ---- restarts --------------------------------------------------------------------------------------------------------


async def test_after_a_restart_without_the_hub_everything_that_is_gone_is_mounted_again(world: World) -> None:
    await mounted(world)
    world.store.in_step = False
    world.plugin.mounted.clear()
    await world.restart()
    assert world.plugin.calls == MOUNTED


async def test_a_graceful_end_lets_the_step_under_way_finish(world: World) -> None:
    go = asyncio.Event()
    world.plugin.fails("stage", go)
    world.add_pod()
    await world.start()
    asyncio.get_running_loop().call_soon(go.set)
    await world.manager.close(5.0)
    device = world.states.device()
    assert world.plugin.calls == ["stage h-data"]
    assert device is not None
    assert device.state is State.DONE


async def test_with_a_store_that_was_lost_nothing_is_taken_down_before_it_is_complete(world: World) -> None:
    pod = await mounted(world)
    bodies = [world.store.body(pod)]
    world.store.drop(pod)
    world.store.in_step = world.store.ever_in_step = False
    await world.manager.close(0.0)
    world = await again(world, published=True)
    await world.clock.turn(100)
    assert world.plugin.calls == []
    assert {one["state"] for one in world.manager.describe()} == {"left over"}
    world.store.put(bodies[0])
    world.store.in_step = world.store.ever_in_step = True
    world.store.tell()
    await settle()
    assert world.plugin.calls == []
    assert world.entry()["state"] == "published"
    await world.manager.close(0.0)


async def again(world: World, *, published: bool) -> World:
    """Another agent in a world where a pod's volume is mounted."""
    device = Device(
        driver=DRIVER, handle="h-data", name="pv-data", state=State.DONE, mount_point=True, boot="boot-1", since=1.0
    )
    row = Publication(
        driver=DRIVER,
        handle="h-data",
        name="pv-data",
        pod_uid="web-uid",
        pod_namespace="default",
        pod_name="web",
        volume_name="data",
        state=State.DONE,
        mount_point=True,
        boot="boot-1",
        since=1.0,
    )
    made = World(store=world.store, clock=world.clock)
    for one in (device, row):
        await made.states.put(one)
    made.plugin.mounted = {
        Staged(driver=DRIVER, handle="h-data", name="pv-data"),
        Published(driver=DRIVER, handle="h-data", name="pv-data", pod_uid="web-uid"),
    }
    await made.start()
    return made


FOUND = Found(
    published=(Published(driver=DRIVER, handle="h-data", name="pv-data", pod_uid="web-uid"),),
    staged=(Staged(driver=DRIVER, handle="h-data"),),
)


async def test_what_only_the_disk_tells_of_is_taken_down_when_the_store_is_complete(world: World) -> None:
    world.plugin.found = FOUND
    world.store.in_step = False
    await world.start()
    await world.clock.turn(100)
    assert world.plugin.calls == []
    world.store.in_step = True
    world.store.tell()
    await settle()
    assert world.plugin.calls == TAKEN_DOWN
    assert world.states.kept == {}


async def test_a_volume_that_is_staged_for_no_pod_is_unstaged(world: World) -> None:
    world.plugin.found = Found(staged=(Staged(driver=DRIVER, handle="h-data"),))
    await world.start()
    assert world.plugin.calls == ["unstage h-data"]
    assert world.plugin.given == [{"staged": Staged(driver=DRIVER, handle="h-data"), "recorded": False}]


async def test_an_unreadable_directory_is_shown_and_cleaned_when_its_pod_is_gone(world: World) -> None:
    one = Unreadable(path=Path("/root/x"), reason="vol_data.json is no JSON", pod_uid="web-uid", name="pv-data")
    world.plugin.found = Found(unreadable=(one,))
    world.store.in_step = False
    await world.start()
    (entry,) = world.manager.describe()
    assert (entry["state"], entry["error"]) == ("left over", "vol_data.json is no JSON")
    assert world.plugin.cleaned == []
    world.store.in_step = True
    world.store.tell()
    await settle()
    assert world.plugin.cleaned == [one]
    assert world.manager.describe() == []


async def test_a_root_directory_that_cannot_be_read_is_told_and_the_start_can_be_repeated(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse() -> Found:
        raise NotReady("input/output error")

    world.add_pod()
    with monkeypatch.context() as patch:
        patch.setattr(world.plugin, "scan", refuse)
        with pytest.raises(NotReady):
            await world.start()
    await world.start()
    assert world.plugin.calls == MOUNTED


# ---- a store that does not give everything ---------------------------------------------------------------------------


def withhold(world: World, monkeypatch: pytest.MonkeyPatch, withheld: Ref) -> None:
    """The disk does not give this object."""
    get = world.store.get

    def fail(ref: Ref) -> Object | None:
        if ref == withheld:
            raise OSError("locked for a moment")
        return get(ref)

    monkeypatch.setattr(world.store, "get", fail)


async def test_a_pod_that_the_disk_does_not_give_at_start_keeps_its_mounts_and_holds_up_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    web = await mounted(world)
    world.add_pod("other", claims=("other",))
    withhold(world, monkeypatch, web)
    await world.restart()
    assert world.take_calls() == ["stage h-other", "publish h-other other-uid"]
    assert {one["error"] for one in world.manager.describe() if one["pod"] == "web"} == {"", "locked for a moment"}


async def test_a_pod_that_the_disk_did_not_give_has_its_volume_soon_after_without_being_told_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.start()
    with monkeypatch.context() as patch:
        withhold(world, patch, Ref("Pod", "default", "web"))
        world.add_pod()
        await settle()
        await world.clock.turn(100)
        assert world.plugin.calls == []
    await world.clock.turn(10)
    assert world.plugin.calls == MOUNTED
    await world.clock.turn(100)
    assert world.clock.waiting == 0


async def test_a_driver_whose_rules_the_disk_does_not_give_ends_no_start(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.plugin.found = Found(staged=(Staged(driver=DRIVER, handle="h-data"),))
    withhold(world, monkeypatch, Ref("CSIDriver", "", DRIVER))
    world.store.in_step = False
    await world.start()
    assert world.manager.volumes_in_use() == [IN_USE]


# ---- expanding -------------------------------------------------------------------------------------------------------


def grow(world: World, size: str = "2Gi") -> None:
    body = world.store.body(VOLUME)
    world.change(VOLUME, spec={**body["spec"], "capacity": {"storage": size}})


def resize(world: World, status: str, size: str = "2Gi", have: str = "1Gi") -> None:
    told = {"phase": "Bound", "capacity": {"storage": have}, "allocatedResources": {"storage": size}}
    if status:
        told["allocatedResourceStatuses"] = {"storage": status}
    world.change(CLAIM, status=told)


def claim_facts(world: World) -> list[dict[str, object]]:
    return [body["status"] for ref, body in world.store.told if ref == CLAIM]


FINISHED = {"capacity": {"storage": "2Gi"}, "allocatedResourceStatuses": {}, "conditions": []}
BEGUN = {
    "capacity": {"storage": "1Gi"},
    "allocatedResources": {"storage": "2Gi"},
    "allocatedResourceStatuses": {"storage": "NodeResizeInProgress"},
    "conditions": [],
}


async def test_a_volume_that_grew_is_expanded_online_when_it_is_the_nodes_turn(world: World) -> None:
    await mounted(world)
    resize(world, "ControllerResizeInProgress")
    grow(world)
    await settle()
    assert world.plugin.calls == []
    resize(world, "NodeResizePending")
    await settle()
    assert world.plugin.calls == ["expand h-data web-uid"]
    assert world.plugin.given[-1]["required_bytes"] == 2 * GI
    assert claim_facts(world)[:2] == [BEGUN, FINISHED]
    assert world.store.events()[0][0] == "FileSystemResizeSuccessful"
    device = world.states.device()
    assert device is not None
    assert device.size_bytes == 2 * GI


async def test_an_expansion_is_not_repeated_because_the_claim_has_not_heard_of_it(world: World) -> None:
    await mounted(world)
    grow(world)
    resize(world, "NodeResizePending")
    await settle()
    assert world.take_calls() == ["expand h-data web-uid"]
    resize(world, "NodeResizeInProgress")
    await settle()
    await world.restart()
    assert world.plugin.calls == []
    assert claim_facts(world)[-1] == FINISHED


async def test_a_claim_that_waits_only_after_the_refusal_is_told_that_the_volume_is_in_use(world: World) -> None:
    await mounted(world)
    world.plugin.fails("expand", Refused("in use", code=Code.FAILED_PRECONDITION))
    grow(world)  # the volume comes before its claim, which looks like that of a resizer without statuses
    await settle()
    assert claim_facts(world) == []
    resize(world, "NodeResizePending")
    await settle()
    told = claim_facts(world)[-1]
    assert told["conditions"][0]["type"] == "NodeResizeError"  # type: ignore[index]  # a list of dictionaries
    resize(world, "NodeResizeInProgress")
    await world.clock.turn(1000)
    assert claim_facts(world)[-1] == told
    assert world.plugin.calls == ["expand h-data web-uid"]


@pytest.mark.parametrize("code", [Code.INVALID_ARGUMENT, Code.OUT_OF_RANGE, Code.NOT_FOUND])
async def test_an_infeasible_expansion_is_given_up(world: World, code: Code) -> None:
    await mounted(world)
    world.plugin.fails("expand", Refused("too large", code=code))
    grow(world)
    resize(world, "NodeResizePending")
    await settle()
    told = claim_facts(world)[-1]
    assert told["allocatedResourceStatuses"] == {"storage": "NodeResizeInfeasible"}
    assert told["conditions"][0]["type"] == "NodeResizeError"  # type: ignore[index]  # a list of dictionaries
    resize(world, "NodeResizeInfeasible")
    await world.clock.turn(1000)
    assert world.plugin.calls == ["expand h-data web-uid"]
    assert world.entry()["state"] == "published"


async def test_an_infeasible_expansion_keeps_no_pod_waiting_for_a_claim_that_comes_back_late(world: World) -> None:
    world.add_volume(pv={"size": "2Gi"})
    resize(world, "NodeResizePending")
    world.plugin.fails("expand", Refused("too large", code=Code.OUT_OF_RANGE))
    world.add_pod()
    await world.start()
    assert world.entry()["state"] == "waiting"
    resize(world, "NodeResizeInProgress")  # it was told first that the expansion begins
    await world.clock.turn(1)
    assert world.plugin.calls == [*MOUNTED, "expand h-data web-uid", "publish h-data web-uid"]
    assert world.entry()["state"] == "published"
    await world.clock.turn(60)
    resize(world, "NodeResizeInfeasible")
    await world.clock.turn(1000)
    assert world.take_calls() == [*MOUNTED, "expand h-data web-uid", "publish h-data web-uid"]
    resize(world, "NodeResizePending")  # the resizer wants it tried again
    await settle()
    assert world.take_calls() == ["expand h-data web-uid"]


async def test_an_infeasible_expansion_is_tried_again_after_long_if_the_claim_never_hears_of_it(world: World) -> None:
    await mounted(world)
    world.plugin.fails("expand", Refused("too large", code=Code.OUT_OF_RANGE))
    grow(world)
    resize(world, "NodeResizePending")
    await settle()
    await world.clock.turn(120)
    assert world.take_calls() == ["expand h-data web-uid"]
    await world.clock.turn(2)
    assert world.take_calls() == ["expand h-data web-uid"]
    assert claim_facts(world)[-1] == FINISHED


async def test_another_size_is_asked_for_at_once_after_one_that_is_infeasible(world: World) -> None:
    await mounted(world)
    world.plugin.fails("expand", Refused("too large", code=Code.OUT_OF_RANGE))
    grow(world, "3Gi")
    resize(world, "NodeResizePending", "3Gi")
    await settle()
    resize(world, "NodeResizePending", "2Gi")
    await settle()
    assert world.take_calls() == ["expand h-data web-uid"] * 2
    assert world.plugin.given[-1]["required_bytes"] == 2 * GI


async def test_a_volume_mounted_read_only_is_not_expanded(world: World) -> None:
    world.add_volume(pv={"size": "2Gi"})
    world.add_pod(read_only=True)
    await world.start()
    await world.clock.turn(10)
    assert world.plugin.calls == MOUNTED
    assert world.store.events()[0][0] == "FileSystemResizeFailed"


async def test_a_driver_that_cannot_expand_has_nothing_to_do_unless_the_claim_waits_for_it(world: World) -> None:
    world.drivers.by_name[DRIVER] = FakeDriver(capabilities=frozenset({1}))
    await mounted(world)
    grow(world)
    await settle()
    assert world.plugin.calls == []
    assert world.entry()["error"] == ""
    grow(world, "3Gi")
    resize(world, "NodeResizePending", "3Gi")
    await settle()
    assert world.plugin.calls == []
    assert "EXPAND_VOLUME" in world.entry()["error"]


async def test_what_nobody_expanded_is_not_told_as_expanded_where_the_volume_is_heard_of_before_its_claim(
    world: World,
) -> None:
    world.drivers.by_name[DRIVER] = FakeDriver(capabilities=frozenset({1}))
    await mounted(world)
    grow(world)
    await settle()
    resize(world, "NodeResizePending")
    await settle()
    assert world.plugin.calls == []
    assert "EXPAND_VOLUME" in world.entry()["error"]
    (told, *_) = claim_facts(world)
    assert told["capacity"] == {"storage": "1Gi"}


@pytest.mark.parametrize(("complete", "left"), [(True, []), (False, [Ref("PersistentVolumeClaim", "default", "gone")])])
async def test_what_an_earlier_life_told_of_a_claim_that_is_gone_is_void_if_the_store_was_complete(
    world: World, complete: bool, left: list[Ref]
) -> None:
    for name in ("data", "gone"):
        world.store.put_fact(Ref("PersistentVolumeClaim", "default", name), {"status": {}})
    world.add_volume()
    world.store.in_step, world.store.ever_in_step = False, complete
    await world.start()
    assert list(world.store.facts) == [CLAIM, *left]


async def test_what_was_told_of_a_claim_is_void_when_it_is_gone(world: World) -> None:
    await mounted(world)
    grow(world)
    await settle()
    assert CLAIM in world.store.facts
    world.store.drop(CLAIM)
    assert CLAIM not in world.store.facts


# ---- refreshing, use and health --------------------------------------------------------------------------------------


async def test_a_driver_that_asks_for_it_is_asked_to_refresh_every_minute_or_so(world: World) -> None:
    world.add_driver(attachRequired=False, requiresRepublish=True)
    await mounted(world)
    world.plugin.fails("republish", Refused("no", code=Code.INTERNAL))
    await world.clock.turn(59)
    assert world.plugin.calls == []
    await world.clock.turn(31)
    assert world.take_calls() == ["republish h-data web-uid"]
    assert world.entry()["state"] == "published"
    assert world.states.publications()[0].state is State.DONE
    await world.clock.turn(91)
    assert world.take_calls() == ["republish h-data web-uid"]


def token(until: str = "2023-11-14T23:00:00Z") -> dict[str, object]:
    return {
        "kind": "ServiceAccountToken",
        "metadata": {"namespace": "default", "name": "web-uid"},
        "tokens": {"a": {"token": "t", "expirationTimestamp": until}},
    }


async def test_tokens_are_handed_on_and_an_expired_one_lets_the_first_publish_wait(world: World) -> None:
    world.add_driver(attachRequired=False, tokenRequests=[{"audience": "a"}])
    world.store.put(token("2023-11-14T22:00:00Z"))
    world.add_pod()
    await world.start()
    assert world.plugin.calls == ["stage h-data"]
    assert "expired at 2023-11-14T22:00:00Z" in world.entry()["error"]
    world.store.put(token())
    await settle()
    assert world.plugin.given[-1]["tokens"] == {"a": {"token": "t", "expirationTimestamp": "2023-11-14T23:00:00Z"}}


async def test_a_refresh_without_a_valid_token_is_left_out_quietly(world: World) -> None:
    world.add_driver(attachRequired=False, requiresRepublish=True, tokenRequests=[{"audience": "a"}])
    world.store.put(token("2023-11-14T22:14:00Z"))
    await mounted(world)
    await world.clock.turn(1000)
    assert world.plugin.calls == []
    assert world.store.events() == []
    assert world.entry()["error"] == ""


async def test_use_and_health_are_read_every_interval_and_told_if_abnormal() -> None:
    world = World(stats_interval_s=60.0)
    await mounted(world)
    world.plugin.told_stats = VolumeStats(capacity_bytes=5, used_bytes=2, abnormal=True, message="the disk is on fire")
    await world.clock.turn(60)
    assert world.take_calls() == ["stats h-data web-uid"]
    entry = world.entry()
    assert (entry["size_bytes"], entry["used_bytes"], entry["abnormal"]) == (5, 2, "the disk is on fire")
    fire = "the disk is on fire"
    assert world.store.events() == [
        ("VolumeConditionAbnormal", f"Volume data: {fire}"),
        ("VolumeConditionAbnormal", f"Volume pv-data of d.csi: {fire}"),
    ]
    await world.clock.turn(60)
    assert world.take_calls() == ["stats h-data web-uid"]
    assert len(world.store.events()) == 2
    world.plugin.told_stats = VolumeStats(capacity_bytes=5, used_bytes=2, abnormal=False)
    for _ in range(2):
        await world.clock.turn(60)
    well = "the driver finds it healthy again"
    assert world.store.events()[2:] == [
        ("VolumeConditionNormal", f"Volume data: {well}"),
        ("VolumeConditionNormal", f"Volume pv-data of d.csi: {well}"),
    ]
    await world.manager.close(0.0)


async def test_whoever_follows_the_volumes_is_not_told_of_each_reading() -> None:
    world = World(stats_interval_s=60.0)
    pod = await mounted(world)
    told: list[int] = []
    world.manager.subscribe(lambda: told.append(1))
    await world.clock.turn(60)
    assert world.take_calls() == ["stats h-data web-uid"]
    assert told == []
    world.store.drop(pod)
    await settle()
    assert told
    await world.manager.close(0.0)


async def test_a_driver_that_does_not_answer_about_health_holds_nothing_up() -> None:
    world = World(stats_interval_s=60.0)
    pod = await mounted(world)
    world.plugin.fails("stats", asyncio.Event())
    await world.clock.turn(60)
    world.store.drop(pod)
    await settle()
    assert world.plugin.calls == ["stats h-data web-uid", *TAKEN_DOWN]
    await world.manager.close(0.0)


async def test_usage_is_told_by_claim_and_only_while_the_last_reading_holds() -> None:
    world = World(stats_interval_s=60.0)
    pod = await mounted(world)
    assert world.manager.usage() == {}
    told = world.plugin.told_stats = VolumeStats(capacity_bytes=5, used_bytes=2)
    await world.clock.turn(60)
    assert world.manager.usage() == {("default", "data"): told}
    world.plugin.fails("stats", Uncertain("the driver did not answer in time"))
    await world.clock.turn(60)
    assert world.manager.usage() == {}
    await world.clock.turn(60)
    assert world.manager.usage() == {("default", "data"): told}
    world.drivers.by_name["d.csi"].registered = False
    await world.clock.turn(60)
    assert world.manager.usage() == {}
    world.drivers.by_name["d.csi"].registered = True
    await world.clock.turn(60)
    world.store.drop(pod)
    await settle()
    assert world.manager.usage() == {}
    await world.manager.close(0.0)


async def test_a_driver_that_hangs_is_asked_about_few_volumes_at_a_time() -> None:
    world = World(stats_interval_s=60.0)
    for number in range(20):
        world.add_pod(f"p{number}", claims=(f"c{number}",))
    await world.start()
    for _ in range(10):
        await settle()
    world.take_calls()
    world.plugin.fails("stats", *(asyncio.Event() for _ in range(1000)))
    for _ in range(90):
        await world.clock.turn(1)
    assert len(world.take_calls()) == READINGS_AT_ONCE
    for _ in range(120):
        await world.clock.turn(1)
    assert len(world.take_calls()) > READINGS_AT_ONCE, "a reading that hangs ends after its time"
    assert all(at_once == 1 for at_once in world.plugin.at_once.values())
    await world.manager.close(0.0)


# ---- all in all ------------------------------------------------------------------------------------------------------


async def test_volumes_are_served_beside_each_other(world: World) -> None:
    world.plugin.fails("stage", asyncio.Event())
    world.add_pod(claims=("a", "b"))
    await world.start()
    assert "publish h-b web-uid" in world.plugin.calls or "publish h-a web-uid" in world.plugin.calls


async def test_the_nodes_status_changing_wakes_no_volume(world: World) -> None:
    node = {"kind": "Node", "metadata": {"name": "n1", "labels": {"zone": "a"}}}
    world.store.put(node)
    await mounted(world)
    reads = world.store.reads
    world.store.put({**node, "status": {"volumesInUse": ["x"]}})
    assert world.store.reads == reads + 1


async def test_who_watches_hears_of_every_change(world: World) -> None:
    heard: list[str] = []
    world.add_pod()
    stop = world.manager.subscribe(lambda: heard.append(world.entry()["state"]))
    await world.start()
    assert list(dict.fromkeys(heard)) == ["waiting", "staging", "publishing", "published"]
    stop()


async def test_no_secret_is_in_a_row_an_event_or_what_is_shown(world: World) -> None:
    world.add_driver(attachRequired=True)
    ref = {"namespace": "default", "name": "s"}
    world.add_volume(pv={"mountOptions": ["password=hidden1"]}, nodeStageSecretRef=ref, nodePublishSecretRef=ref)
    world.store.put(secret("s", key="hidden2"))
    world.attach(status={"attachmentMetadata": {"x": "hidden3"}})
    world.add_pod()
    await world.start()
    await world.restart()
    shown = repr((world.states.kept, world.store.told, world.manager.describe(), world.manager.describe_pods()))
    assert "hidden" not in shown
