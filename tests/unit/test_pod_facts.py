"""A pod fact: whether a pod has its volumes, and that nothing of them is left once it is over."""

import asyncio
from typing import Any

import pytest

from common.objects.objects import Ref, encode_body
from common.objects.pod_fact import MOST_BYTES, ToldVolume, VolumeState, read_volumes
from edge.reports.pod_facts import PodFacts, PodState
from edge.volume_errors import VolumeRefused
from edge.volumes import Pod
from edge.wanted.states import Publication, Row
from tests.kit.edge_volumes import EdgeVolumes, FakeFacts
from tests.kit.waiting import settle

WEB = Ref("Pod", "ns", "web")
MOUNTED = {"type": "csi-bridge.io/VolumesMounted", "status": "True", "reason": "Mounted"}
UNMOUNTING = {"type": "csi-bridge.io/VolumesMounted", "status": "False", "reason": "Unmounting"}
UNMOUNTED = {**UNMOUNTING, "reason": "Unmounted"}
RELEASED = {"type": "csi-bridge.io/VolumesReleased", "status": "True", "reason": "Unmounted"}


class Told:
    """Facts of pods whose states a test sets, told at once."""

    def __init__(self, store: FakeFacts | None = None) -> None:
        self.store = store or FakeFacts()
        self.states: list[PodState] = []
        self.facts = PodFacts(self.store, lambda: self.states)

    def be(self, *states: PodState) -> None:
        self.states = list(states)
        self.facts.tell()

    def volumes(self) -> dict[str, ToldVolume] | None:
        return read_volumes(self.store.kept[WEB]["status"])

    def conditions(self) -> list[dict[str, Any]]:
        conditions: list[dict[str, Any]] = self.store.kept[WEB]["status"]["conditions"]
        return conditions


def volumes(*names: str, state: VolumeState = VolumeState.WAITING, why: str = "") -> tuple[ToldVolume, ...]:
    return tuple(ToldVolume(name, state, why) for name in names)


HAS_ALL = volumes("data", state=VolumeState.MOUNTED)
WAITING = {**MOUNTED, "status": "False", "reason": "Waiting"}


def state(*, uid: str = "u", gone: bool = False, **more: Any) -> PodState:
    return PodState(pod=Pod(uid=uid, namespace="ns", name="web", gone=gone), **more)


def test_what_is_told_of_a_pod_names_it_and_its_uid() -> None:
    told = Told()
    told.be(state(volumes=HAS_ALL))
    assert told.store.kept[WEB]["metadata"] == {"namespace": "ns", "name": "web", "uid": "u"}
    assert told.conditions() == [MOUNTED]


def test_each_volume_is_told_with_its_state_and_its_reason() -> None:
    told = Told()
    told.be(state(volumes=(*volumes("b", why="no driver"), *volumes("a"), *HAS_ALL)))
    assert told.conditions() == [WAITING]
    assert told.store.kept[WEB]["status"]["volumes"] == [
        {"name": "a", "state": "waiting"},
        {"name": "b", "state": "waiting", "reason": "no driver"},
        {"name": "data", "state": "mounted"},
    ]


def test_a_volume_that_may_be_mounted_does_not_make_the_pod_have_its_volumes() -> None:
    told = Told()
    told.be(state(volumes=(*HAS_ALL, *volumes("logs", state=VolumeState.UNKNOWN))))
    assert told.conditions() == [WAITING]


@pytest.mark.parametrize("character", ["x", "\N{MOUSE FACE}", "\0"])
def test_reasons_are_cut_until_the_fact_has_room_for_all_volumes_and_say_so(character: str) -> None:
    told, names = Told(), [f"{'v' * 57}-{number}" for number in range(100)]
    told.be(state(volumes=volumes(*names, why=character * 5_000)))
    assert len(encode_body(told.store.kept[WEB])) <= MOST_BYTES
    found = told.volumes()
    assert found is not None
    assert list(found) == sorted(names)
    assert all(one.reason.endswith(" … (cut)") for one in found.values())


def test_a_fact_without_room_for_the_bare_names_has_no_list_rather_than_a_part_of_it() -> None:
    told, names = Told(), [f"{'v' * 57}-{number}" for number in range(500)]
    told.be(state(volumes=volumes(*names)))
    assert told.volumes() is None
    assert told.conditions() == [WAITING]


def test_a_pods_whole_life_is_told_and_then_no_more() -> None:
    told = Told()
    told.be(state(volumes=HAS_ALL))
    told.be(state(volumes=HAS_ALL, deleted=True))
    assert told.conditions() == [MOUNTED]
    told.be(state(gone=True, deleted=True, left=True))
    assert told.conditions() == [UNMOUNTING]
    told.be(state(gone=True, deleted=True))
    assert told.conditions() == [UNMOUNTED, RELEASED]
    told.be()
    assert told.store.kept == {}


def test_a_pod_that_has_ended_is_released_only_when_it_is_deleted_as_well() -> None:
    told = Told()
    told.be(state(volumes=HAS_ALL))
    told.be(state(gone=True))
    assert told.conditions() == [UNMOUNTED]
    told.be(state(gone=True, deleted=True))
    assert told.conditions() == [UNMOUNTED, RELEASED]


def test_a_pod_without_volumes_is_told_of_only_at_its_end() -> None:
    told = Told()
    told.be(state())
    told.be(state(deleted=True))
    told.be(state(gone=True))
    assert told.store.kept == {}
    told.be(state(gone=True, deleted=True))
    assert told.conditions() == [UNMOUNTED, RELEASED]


def test_the_same_is_told_once() -> None:
    told = Told()
    told.be(state(volumes=HAS_ALL))
    told.be(state(volumes=HAS_ALL))
    assert len(told.store.told) == 1


def test_a_pod_that_went_while_the_agent_was_away_is_told_of_no_more() -> None:
    store = FakeFacts()
    Told(store).be(state(volumes=HAS_ALL))
    assert list(store.kept) == [WEB]
    Told(store).be()
    assert store.kept == {}


def test_another_pod_of_the_name_is_another_fact() -> None:
    told = Told()
    told.be(state(gone=True, deleted=True))
    told.be(state(uid="another", volumes=volumes("a")))
    assert told.store.kept[WEB]["metadata"]["uid"] == "another"
    assert told.conditions() == [WAITING]


def pod_state(edge: EdgeVolumes) -> PodState:
    (found,) = edge.manager.pod_states()
    return found


async def test_a_pod_has_its_volumes_when_all_are_published(edge: EdgeVolumes) -> None:
    edge.plugin.fails("publish", VolumeRefused("no room"))
    edge.add_pod()
    await edge.start()
    assert pod_state(edge).volumes == volumes("data", why="no room")
    await edge.clock.turn(5)
    assert pod_state(edge).volumes == HAS_ALL


async def test_a_mount_that_is_uncertain_and_cannot_be_resolved_any_more_is_not_told_as_mounted(
    edge: EdgeVolumes,
) -> None:
    hang = asyncio.Event()
    edge.plugin.fails("publish", hang)
    edge.add_pod()
    await edge.start()
    edge.store.drop(Ref("PersistentVolumeClaim", "default", "data"))
    await settle()
    (found,) = pod_state(edge).volumes
    assert (found.name, found.state) == ("data", VolumeState.UNKNOWN)
    assert "data" in found.reason


async def test_a_mount_stays_told_when_its_claim_cannot_be_resolved_any_more(edge: EdgeVolumes) -> None:
    edge.add_pod()
    await edge.start()
    edge.store.drop(Ref("PersistentVolumeClaim", "default", "data"))
    await settle()
    (found,) = pod_state(edge).volumes
    assert (found.name, found.state) == ("data", VolumeState.MOUNTED)


async def test_a_pod_is_released_when_it_is_deleted_over_and_unpublished(edge: EdgeVolumes) -> None:
    ref = edge.add_pod()
    await edge.start()
    deleted = {"deletionTimestamp": "2026-11-22T00:00:00Z", "deletionGracePeriodSeconds": 10}
    edge.change(ref, metadata={**edge.store.body(ref)["metadata"], **deleted})
    await settle()
    assert (pod_state(edge).deleted, pod_state(edge).pod.gone, pod_state(edge).is_released) == (True, False, False)
    edge.plugin.fails("unpublish", VolumeRefused("busy"))
    await edge.clock.turn(10.1)
    assert (pod_state(edge).pod.gone, pod_state(edge).left, pod_state(edge).is_released) == (True, True, False)
    await edge.clock.turn(5)
    assert "unpublish h-data web-uid" in edge.plugin.calls
    assert pod_state(edge).is_released


@pytest.mark.parametrize("where", ["in the driver", "on the disk before"])
async def test_a_publish_under_way_keeps_a_pod_that_is_over(edge: EdgeVolumes, where: str) -> None:
    ref = edge.add_pod()
    hang = asyncio.Event()
    if where == "in the driver":
        edge.plugin.fails("publish", hang)
    else:
        put = edge.states.put

        async def put_late(row: Row) -> None:
            if isinstance(row, Publication):
                await hang.wait()
            await put(row)

        edge.states.put = put_late  # type: ignore[method-assign]  # a slow disk
    await edge.start()
    deleted = {"deletionTimestamp": "2026-11-22T00:00:00Z", "deletionGracePeriodSeconds": 1}
    edge.change(ref, metadata={**edge.store.body(ref)["metadata"], **deleted})
    await edge.clock.turn(2)
    assert (pod_state(edge).pod.gone, pod_state(edge).is_released) == (True, False)
    hang.set()
    await settle()
    await edge.clock.turn(5)
    assert pod_state(edge).is_released


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
async def test_a_pod_that_has_ended_is_not_released_before_it_is_deleted(edge: EdgeVolumes, phase: str) -> None:
    ref = edge.add_pod()
    await edge.start()
    edge.change(ref, status={"phase": phase})
    await settle()
    await edge.clock.turn(5)
    assert (pod_state(edge).pod.gone, pod_state(edge).left, pod_state(edge).is_released) == (True, False, False)
