"""The volume manager: in which order what is done, and what it does about failures, restarts and pods that go."""

import asyncio

import pytest

from common.objects.objects import Ref
from common.observe.metrics import VolumeStats
from common.status import Code
from edge.disk.found_volumes import Found, Staged
from edge.manager.host import READINGS_AT_ONCE
from edge.volume_errors import Uncertain, VolumeRefused
from edge.wanted.states import State
from tests.kit.edge_volumes import DRIVER, FOUND, GI, MOUNTED, TAKEN_DOWN, EdgeVolumes, FakeDriver, pod, secret
from tests.kit.waiting import settle

CLAIM = Ref("PersistentVolumeClaim", "default", "data")
VOLUME = Ref("PersistentVolume", "", "pv-data")
IN_USE = f"kubernetes.io/csi/{DRIVER}^h-data"


# ---- mounting --------------------------------------------------------------------------------------------------------


async def test_what_is_about_to_be_done_is_written_before_it_is_done_and_the_result_after(edge: EdgeVolumes) -> None:
    await edge.mount()
    assert edge.states.writes == ["device uncertain", "device done", "publication uncertain", "publication done"]
    device, (publication,) = edge.states.device(), edge.states.publications()
    assert device is not None
    assert device.mount_point
    assert device.boot == "boot-1"
    assert (publication.pod_namespace, publication.pod_name, publication.volume_name) == ("default", "web", "data")


async def test_the_stage_secret_is_not_read_for_a_driver_that_does_not_stage(edge: EdgeVolumes) -> None:
    edge.drivers.by_name[DRIVER] = FakeDriver(capabilities=frozenset())
    edge.add_volume(nodeStageSecretRef={"namespace": "default", "name": "gone"})
    edge.add_pod()
    await edge.start()
    assert edge.plugin.calls == MOUNTED


# ---- waiting ---------------------------------------------------------------------------------------------------------


async def test_a_driver_that_comes_and_goes_hurries_its_own_volumes_alone(edge: EdgeVolumes) -> None:
    other = edge.drivers.by_name["other.csi"] = FakeDriver("other.csi")
    edge.plugin.fails("stage", *[Uncertain("slow")] * 100)
    edge.add_pod()
    await edge.start()
    await edge.clock.turn(100)
    edge.take_calls()
    for _ in range(10):
        other.registered = not other.registered
        edge.drivers.tell()
        await settle()
    assert edge.take_calls() == []
    edge.drivers.by_name[DRIVER].file = "another socket"
    edge.drivers.tell()
    await settle()
    assert edge.take_calls() == ["stage h-data"]


async def test_a_missing_secret_is_told_at_once_and_its_coming_is_noticed_at_once(edge: EdgeVolumes) -> None:
    edge.add_volume(nodePublishSecretRef={"namespace": "default", "name": "p"})
    edge.add_pod()
    await edge.start()
    assert edge.plugin.calls == ["stage h-data"]
    assert edge.facts.events() == [
        ("FailedMount", 'MountVolume.SetUp failed for volume "pv-data": secret default/p is not known to this node')
    ]
    edge.store.put(secret("p", key="value"))
    await settle()
    assert edge.plugin.calls == MOUNTED


# ---- failures --------------------------------------------------------------------------------------------------------


async def test_a_clock_that_was_put_back_delays_no_event(edge: EdgeVolumes, monkeypatch: pytest.MonkeyPatch) -> None:
    edge.store.put(pod("web", claims=("missing",)))
    await edge.start()
    right = edge.clock.time
    monkeypatch.setattr(edge.clock, "time", lambda: right() - 30 * 86400.0)
    await edge.clock.turn(130)
    assert [reason for reason, _ in edge.facts.events()] == ["FailedMount"]


async def test_a_result_that_cannot_be_written_is_written_later_and_nothing_is_repeated(edge: EdgeVolumes) -> None:
    go = asyncio.Event()
    edge.plugin.fails("publish", go)
    edge.add_pod()
    await edge.start()
    edge.states.trouble = "the disk is full"
    go.set()
    await settle()
    assert edge.entry().state == "published"
    assert edge.states.publications()[0].state is State.UNCERTAIN
    edge.states.trouble = ""
    await edge.clock.turn(200)
    assert edge.states.publications()[0].state is State.DONE
    assert edge.plugin.calls == MOUNTED


async def test_a_bug_in_a_step_ends_no_task(edge: EdgeVolumes, caplog: pytest.LogCaptureFixture) -> None:
    edge.plugin.fails("stage", ZeroDivisionError("ups"))
    edge.add_pod()
    await edge.start()
    await edge.clock.turn(1)
    assert edge.plugin.calls == ["stage h-data", *MOUNTED]
    assert "failed because of a bug" in caplog.text


# ---- taking down -----------------------------------------------------------------------------------------------------


async def test_a_pod_that_is_being_deleted_gets_no_volume_any_more(edge: EdgeVolumes) -> None:
    await edge.start()
    leaving = {"namespace": "default", "name": "web", "uid": "web-uid", "deletionTimestamp": "2099-01-01T00:00:00Z"}
    edge.add_pod(metadata=leaving)
    await settle()
    assert edge.plugin.calls == []


async def test_a_pod_that_is_being_deleted_has_its_volumes_again_after_a_reboot(edge: EdgeVolumes) -> None:
    pod = await edge.mount()
    edge.change(pod, metadata={**edge.store.body(pod)["metadata"], "deletionTimestamp": "2099-01-01T00:00:00Z"})
    edge.plugin.mounted.clear()
    await edge.restart(boot="boot-2")
    assert edge.plugin.calls == MOUNTED


async def test_another_volume_under_the_old_names_is_not_mounted_over_the_first_one(edge: EdgeVolumes) -> None:
    pod = await edge.mount()
    body = edge.store.body(VOLUME)
    body["spec"]["csi"]["volumeHandle"] = "h-other"
    edge.store.put(body)
    await settle()
    assert edge.plugin.calls == []
    waiting, published = sorted(edge.manager.describe(), key=lambda one: one.state, reverse=True)
    assert (published.state, published.handle) == ("published", "h-data")
    assert "another volume is still mounted in the place of pv-data" in waiting.error
    edge.store.drop(pod)
    await settle()
    assert edge.plugin.calls == TAKEN_DOWN


async def test_a_volume_whose_claim_is_lost_stays_mounted_and_goes_with_its_pod(edge: EdgeVolumes) -> None:
    pod = await edge.mount()
    edge.store.drop(CLAIM, VOLUME)
    await settle()
    assert edge.plugin.calls == []
    assert edge.entry().state == "published"
    assert edge.entry().error == "PVC default/data is not known to this node"
    edge.store.drop(pod)
    await settle()
    assert edge.plugin.calls == TAKEN_DOWN


async def test_a_driver_that_does_not_let_go_is_told_of_at_the_node(edge: EdgeVolumes) -> None:
    pod = await edge.mount()
    edge.plugin.fails("unpublish", *[VolumeRefused("busy", code=Code.INTERNAL)] * 5)
    edge.store.drop(pod)
    await settle()
    await edge.clock.turn(5)
    assert [reason for reason, _ in edge.facts.events()] == ["FailedUnMount"]
    assert next(body for ref, body in edge.facts.told if ref.kind == "Event")["involvedObject"]["kind"] == "Node"


# ---- restarts --------------------------------------------------------------------------------------------------------


async def test_with_a_store_that_was_lost_nothing_is_taken_down_before_it_is_complete(edge: EdgeVolumes) -> None:
    pod = await edge.mount()
    body = edge.store.body(pod)
    edge.store.in_step = edge.store.ever_in_step = False
    edge.store.drop(pod)
    await edge.restart()
    await edge.clock.turn(100)
    assert edge.plugin.calls == []
    assert {one.state for one in edge.manager.describe()} == {"left over"}
    edge.store.put(body)
    edge.store.in_step = edge.store.ever_in_step = True
    edge.store.tell()
    await settle()
    assert edge.plugin.calls == []
    assert edge.entry().state == "published"


async def test_what_only_the_disk_tells_of_is_taken_down_when_the_store_is_complete(edge: EdgeVolumes) -> None:
    edge.plugin.found = FOUND
    edge.store.in_step = False
    await edge.start()
    await edge.clock.turn(100)
    assert edge.plugin.calls == []
    edge.store.in_step = True
    edge.store.tell()
    await settle()
    assert edge.plugin.calls == TAKEN_DOWN
    assert edge.states.kept == {}


async def test_a_volume_that_is_staged_for_no_pod_is_unstaged(edge: EdgeVolumes) -> None:
    edge.plugin.found = Found(staged=(Staged(driver=DRIVER, handle="h-data"),))
    await edge.start()
    assert edge.plugin.calls == ["unstage h-data"]
    assert edge.plugin.given == [{"staged": Staged(driver=DRIVER, handle="h-data"), "recorded": False}]


# ---- a store that does not give everything ---------------------------------------------------------------------------


async def test_a_pod_that_the_disk_does_not_give_at_start_keeps_its_mounts_and_holds_up_no_other(
    edge: EdgeVolumes,
) -> None:
    web = await edge.mount()
    edge.add_pod("other", claims=("other",))
    edge.store.withheld = {web}
    await edge.restart()
    assert edge.take_calls() == ["stage h-other", "publish h-other other-uid"]
    assert {one.error for one in edge.manager.describe() if one.pod == "web"} == {
        "",
        "the disk does not give web",
    }


async def test_a_pod_that_the_disk_did_not_give_has_its_volume_soon_after_without_being_told_again(
    edge: EdgeVolumes,
) -> None:
    await edge.start()
    edge.store.withheld = {Ref("Pod", "default", "web")}
    edge.add_pod()
    await settle()
    await edge.clock.turn(100)
    assert edge.plugin.calls == []
    edge.store.withheld.clear()
    await edge.clock.turn(10)
    assert edge.plugin.calls == MOUNTED
    await edge.clock.turn(100)
    assert edge.clock.waiting == 0


async def test_a_driver_whose_rules_the_disk_does_not_give_ends_no_start(edge: EdgeVolumes) -> None:
    edge.plugin.found = Found(staged=(Staged(driver=DRIVER, handle="h-data"),))
    edge.store.withheld = {Ref("CSIDriver", "", DRIVER)}
    edge.store.in_step = False
    await edge.start()
    assert edge.manager.volumes_in_use() == [IN_USE]


# ---- expanding -------------------------------------------------------------------------------------------------------


def grow(edge: EdgeVolumes, size: str = "2Gi") -> None:
    body = edge.store.body(VOLUME)
    edge.change(VOLUME, spec={**body["spec"], "capacity": {"storage": size}})


def resize(edge: EdgeVolumes, status: str, size: str = "2Gi") -> None:
    told = {"phase": "Bound", "capacity": {"storage": "1Gi"}, "allocatedResources": {"storage": size}}
    edge.change(CLAIM, status={**told, "allocatedResourceStatuses": {"storage": status}})


def claim_facts(edge: EdgeVolumes) -> list[dict[str, object]]:
    return [body["status"] for ref, body in edge.facts.told if ref == CLAIM]


FINISHED = {"capacity": {"storage": "2Gi"}, "allocatedResourceStatuses": {}, "conditions": []}


async def test_an_expansion_is_not_repeated_because_the_claim_has_not_heard_of_it(edge: EdgeVolumes) -> None:
    await edge.mount()
    grow(edge)
    resize(edge, "NodeResizePending")
    await settle()
    assert edge.take_calls() == ["expand h-data web-uid"]
    resize(edge, "NodeResizeInProgress")
    await settle()
    await edge.restart()
    assert edge.plugin.calls == []
    assert claim_facts(edge)[-1] == FINISHED


async def test_a_claim_that_waits_only_after_the_refusal_is_told_that_the_volume_is_in_use(edge: EdgeVolumes) -> None:
    await edge.mount()
    edge.plugin.fails("expand", VolumeRefused("in use", code=Code.FAILED_PRECONDITION))
    grow(edge)  # the volume comes before its claim, which looks like that of a resizer without statuses
    await settle()
    assert claim_facts(edge) == []
    resize(edge, "NodeResizePending")
    await settle()
    told = claim_facts(edge)[-1]
    assert told["conditions"][0]["type"] == "NodeResizeError"  # type: ignore[index]  # a list of dictionaries
    resize(edge, "NodeResizeInProgress")
    await edge.clock.turn(1000)
    assert claim_facts(edge)[-1] == told
    assert edge.plugin.calls == ["expand h-data web-uid"]


async def test_an_infeasible_expansion_keeps_no_pod_waiting_for_a_claim_that_comes_back_late(edge: EdgeVolumes) -> None:
    edge.add_volume(pv={"size": "2Gi"})
    resize(edge, "NodeResizePending")
    edge.plugin.fails("expand", VolumeRefused("too large", code=Code.OUT_OF_RANGE))
    edge.add_pod()
    await edge.start()
    assert edge.entry().state == "waiting"
    resize(edge, "NodeResizeInProgress")  # it was told first that the expansion begins
    await edge.clock.turn(1)
    assert edge.plugin.calls == [*MOUNTED, "expand h-data web-uid", "publish h-data web-uid"]
    assert edge.entry().state == "published"
    await edge.clock.turn(60)
    resize(edge, "NodeResizeInfeasible")
    await edge.clock.turn(1000)
    assert edge.take_calls() == [*MOUNTED, "expand h-data web-uid", "publish h-data web-uid"]
    resize(edge, "NodeResizePending")  # the resizer wants it tried again
    await settle()
    assert edge.take_calls() == ["expand h-data web-uid"]


async def test_an_infeasible_expansion_is_tried_again_after_long_if_the_claim_never_hears_of_it(
    edge: EdgeVolumes,
) -> None:
    await edge.mount()
    edge.plugin.fails("expand", VolumeRefused("too large", code=Code.OUT_OF_RANGE))
    grow(edge)
    resize(edge, "NodeResizePending")
    await settle()
    await edge.clock.turn(120)
    assert edge.take_calls() == ["expand h-data web-uid"]
    await edge.clock.turn(2)
    assert edge.take_calls() == ["expand h-data web-uid"]
    assert claim_facts(edge)[-1] == FINISHED


async def test_another_size_is_asked_for_at_once_after_one_that_is_infeasible(edge: EdgeVolumes) -> None:
    await edge.mount()
    edge.plugin.fails("expand", VolumeRefused("too large", code=Code.OUT_OF_RANGE))
    grow(edge, "3Gi")
    resize(edge, "NodeResizePending", "3Gi")
    await settle()
    resize(edge, "NodeResizePending", "2Gi")
    await settle()
    assert edge.take_calls() == ["expand h-data web-uid"] * 2
    assert edge.plugin.given[-1]["required_bytes"] == 2 * GI


async def test_a_volume_mounted_read_only_is_not_expanded(edge: EdgeVolumes) -> None:
    edge.add_volume(pv={"size": "2Gi"})
    edge.add_pod(read_only=True)
    await edge.start()
    await edge.clock.turn(10)
    assert edge.plugin.calls == MOUNTED
    assert edge.facts.events()[0][0] == "FileSystemResizeFailed"


async def test_what_nobody_expanded_is_not_told_as_expanded_where_the_volume_is_heard_of_before_its_claim(
    edge: EdgeVolumes,
) -> None:
    edge.drivers.by_name[DRIVER] = FakeDriver(capabilities=frozenset({1}))
    await edge.mount()
    grow(edge)
    await settle()
    assert edge.entry().error == "", "nobody waits for the node"
    resize(edge, "NodeResizePending")
    await settle()
    assert edge.plugin.calls == []
    assert "EXPAND_VOLUME" in edge.entry().error
    (told, *_) = claim_facts(edge)
    assert told["capacity"] == {"storage": "1Gi"}


@pytest.mark.parametrize(("complete", "left"), [(True, []), (False, [Ref("PersistentVolumeClaim", "default", "gone")])])
async def test_what_an_earlier_life_told_of_a_claim_that_is_gone_is_void_if_the_store_was_complete(
    edge: EdgeVolumes, complete: bool, left: list[Ref]
) -> None:
    for name in ("data", "gone"):
        edge.facts.put(Ref("PersistentVolumeClaim", "default", name), {"status": {}})
    edge.add_volume()
    edge.store.in_step, edge.store.ever_in_step = False, complete
    await edge.start()
    assert list(edge.facts.kept) == [CLAIM, *left]


async def test_what_was_told_of_a_claim_is_void_when_it_is_gone(edge: EdgeVolumes) -> None:
    await edge.mount()
    grow(edge)
    await settle()
    assert CLAIM in edge.facts.kept
    edge.store.drop(CLAIM)
    assert CLAIM not in edge.facts.kept


# ---- refreshing, use and health --------------------------------------------------------------------------------------


def token(until: str = "2023-11-14T23:00:00Z") -> dict[str, object]:
    return {
        "kind": "ServiceAccountToken",
        "metadata": {"namespace": "default", "name": "web-uid"},
        "tokens": {"a": {"token": "t", "expirationTimestamp": until}},
    }


async def test_a_refresh_without_a_valid_token_is_left_out_quietly(edge: EdgeVolumes) -> None:
    edge.add_driver(attachRequired=False, requiresRepublish=True, tokenRequests=[{"audience": "a"}])
    edge.store.put(token("2023-11-14T22:14:00Z"))
    await edge.mount()
    await edge.clock.turn(1000)
    assert edge.plugin.calls == []
    assert edge.facts.events() == []
    assert edge.entry().error == ""


async def test_use_and_health_are_read_every_interval_and_told_if_abnormal() -> None:
    edge = EdgeVolumes(stats_interval_s=60.0)
    await edge.mount()
    edge.plugin.told_stats = VolumeStats(capacity_bytes=5, used_bytes=2, abnormal=True, message="the disk is on fire")
    await edge.clock.turn(60)
    assert edge.take_calls() == ["stats h-data web-uid"]
    entry = edge.entry()
    assert (entry.size_bytes, entry.used_bytes, entry.abnormal) == (5, 2, "the disk is on fire")
    fire = "the disk is on fire"
    assert edge.facts.events() == [
        ("VolumeConditionAbnormal", f"Volume data: {fire}"),
        ("VolumeConditionAbnormal", f"Volume pv-data of d.csi: {fire}"),
    ]
    await edge.clock.turn(60)
    assert edge.take_calls() == ["stats h-data web-uid"]
    assert len(edge.facts.events()) == 2
    edge.plugin.told_stats = VolumeStats(capacity_bytes=5, used_bytes=2, abnormal=False)
    for _ in range(2):
        await edge.clock.turn(60)
    well = "the driver finds it healthy again"
    assert edge.facts.events()[2:] == [
        ("VolumeConditionNormal", f"Volume data: {well}"),
        ("VolumeConditionNormal", f"Volume pv-data of d.csi: {well}"),
    ]
    await edge.manager.close(0.0)


async def test_whoever_follows_the_volumes_is_not_told_of_each_reading() -> None:
    edge = EdgeVolumes(stats_interval_s=60.0)
    pod = await edge.mount()
    told: list[int] = []
    edge.manager.subscribe(lambda: told.append(1))
    await edge.clock.turn(60)
    assert edge.take_calls() == ["stats h-data web-uid"]
    assert told == []
    edge.store.drop(pod)
    await settle()
    assert told
    await edge.manager.close(0.0)


async def test_a_driver_that_does_not_answer_about_health_holds_nothing_up() -> None:
    edge = EdgeVolumes(stats_interval_s=60.0)
    pod = await edge.mount()
    edge.plugin.fails("stats", asyncio.Event())
    await edge.clock.turn(60)
    edge.store.drop(pod)
    await settle()
    assert edge.plugin.calls == ["stats h-data web-uid", *TAKEN_DOWN]
    await edge.manager.close(0.0)


async def test_usage_is_told_by_claim_and_only_while_the_last_reading_holds() -> None:
    edge = EdgeVolumes(stats_interval_s=60.0)
    pod = await edge.mount()
    assert edge.manager.usage() == {}
    told = edge.plugin.told_stats = VolumeStats(capacity_bytes=5, used_bytes=2)
    await edge.clock.turn(60)
    assert edge.manager.usage() == {("default", "data"): told}
    edge.plugin.fails("stats", Uncertain("the driver did not answer in time"))
    await edge.clock.turn(60)
    assert edge.manager.usage() == {}
    await edge.clock.turn(60)
    assert edge.manager.usage() == {("default", "data"): told}
    edge.drivers.by_name["d.csi"].registered = False
    await edge.clock.turn(60)
    assert edge.manager.usage() == {}
    edge.drivers.by_name["d.csi"].registered = True
    await edge.clock.turn(60)
    edge.store.drop(pod)
    await settle()
    assert edge.manager.usage() == {}
    await edge.manager.close(0.0)


async def test_a_driver_that_hangs_is_asked_about_few_volumes_at_a_time() -> None:
    edge = EdgeVolumes(stats_interval_s=60.0)
    for number in range(20):
        edge.add_pod(f"p{number}", claims=(f"c{number}",))
    await edge.start()
    for _ in range(10):
        await settle()
    edge.take_calls()
    edge.plugin.fails("stats", *(asyncio.Event() for _ in range(1000)))
    for _ in range(90):
        await edge.clock.turn(1)
    assert len(edge.take_calls()) == READINGS_AT_ONCE
    for _ in range(120):
        await edge.clock.turn(1)
    assert len(edge.take_calls()) > READINGS_AT_ONCE, "a reading that hangs ends after its time"
    assert all(at_once == 1 for at_once in edge.plugin.at_once.values())
    await edge.manager.close(0.0)


# ---- all in all ------------------------------------------------------------------------------------------------------


async def test_who_watches_hears_of_every_change(edge: EdgeVolumes) -> None:
    heard: list[str] = []
    edge.add_pod()
    edge.manager.subscribe(lambda: heard.append(edge.entry().state))
    await edge.start()
    assert list(dict.fromkeys(heard)) == ["waiting", "staging", "publishing", "published"]


async def test_no_secret_is_in_a_row_an_event_or_what_is_shown(edge: EdgeVolumes) -> None:
    edge.add_driver(attachRequired=True)
    ref = {"namespace": "default", "name": "s"}
    edge.add_volume(pv={"mountOptions": ["password=hidden1"]}, nodeStageSecretRef=ref, nodePublishSecretRef=ref)
    edge.store.put(secret("s", key="hidden2"))
    edge.attach(status={"attachmentMetadata": {"x": "hidden3"}})
    edge.add_pod()
    await edge.start()
    await edge.restart()
    shown = repr((edge.states.kept, edge.facts.told, edge.manager.describe(), edge.manager.describe_pods()))
    assert "hidden" not in shown
