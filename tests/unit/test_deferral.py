"""The deferral of a volume in the task: what is recorded before each step, and what a failure leaves."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from edge.direct.file_systems import Content
from edge.disk.layout import Layout
from edge.manager.opt_in import ANNOTATION, OptIn
from edge.manager.states import BY_DRIVER, Handover, Publication, State
from edge.node_requests import VolumeStats
from edge.runtimes import direct_runtime
from edge.volume_errors import NotReady, Uncertain
from tests.kit.volume_world import World
from tests.kit.waiting import settle

if TYPE_CHECKING:
    from collections.abc import Iterable

    from common.objects import Ref
    from edge.disk.found_volumes import Published
    from edge.volumes import PodVolume, Volume

DEVICE = Path("/dev/vdb")
OPT_IN = OptIn({"kata": direct_runtime("kata=go:3.20")}, Layout(Path("/root")))


@dataclass
class FakeDirect:
    """Records each step with the row of that moment, and fails as a test says.

    Attributes:
        content: what the device holds.
        fills: whether its file system has the size of the device after `grow`.
        done: the steps, each with the row's `handover`.
        failures: by step, the error that it raises.
        told: the volumes that the runtime knows.
    """

    world: World
    content: Content = field(default_factory=Content)
    sound: bool = True
    fills: bool = True
    can_resize: bool = False
    done: list[str] = field(default_factory=list)
    failures: dict[str, Exception] = field(default_factory=dict)
    told: set[str] = field(default_factory=set)

    def _step(self, name: str) -> None:
        (row,) = self.world.states.publications()
        self.done.append(f"{name} while {row.handover or 'nothing'}")
        if name in self.failures:
            raise self.failures[name]

    async def device(self, _published: Published) -> Path:
        return DEVICE

    async def look(self, _device: Path) -> Content:
        return self.content

    async def is_sound(self, _device: Path, _fs_type: str) -> bool:
        return self.sound

    async def make(self, _device: Path, fs_type: str, uuid: str, *, begun: bool) -> None:
        self._step("finish" if begun else "make")
        self.content = Content(f"the file system {fs_type} {uuid}", fs_type, uuid)

    async def grow(self, _device: Path, _fs_type: str) -> bool:
        self._step("grow")
        return self.fills

    async def wait_idle(self, _published: Published) -> None:
        self._step("wait")

    async def hand_over(self, _want: PodVolume, published: Published, _device: Path) -> None:
        self._step("hand over")
        self.told.add(self.volume_path(published))

    async def take_back(self, published: Published) -> None:
        self._step("take back")
        self.told.discard(self.volume_path(published))

    async def forget(self, published: Published) -> None:
        self.done.append("forget")
        self.told.discard(self.volume_path(published))

    async def stats(self, _published: Published) -> VolumeStats:
        return VolumeStats(capacity_bytes=1000, used_bytes=10)

    async def resize(self, _published: Published) -> bool:
        self.done.append("resize")
        return self.can_resize

    async def is_told(self, published: Published) -> bool:
        return self.volume_path(published) in self.told

    async def standing(self) -> frozenset[str]:
        return frozenset(self.told)

    async def sweep(self, kept: Iterable[Published]) -> None:
        self.told &= {self.volume_path(one) for one in kept}

    def volume_path(self, published: Published) -> str:
        return f"{published.pod_uid}/{published.name}"


class DeferringWorld(World):
    """A node whose agent may defer, with a pod that asks for it."""

    direct: FakeDirect
    counted: list[str]
    unfit: NotReady | None = None

    def __post_init__(self) -> None:
        self.direct, self.counted = FakeDirect(self), []
        super().__post_init__()
        self.store.put({"kind": "CSIDriver", "metadata": {"name": "d.csi", "annotations": {ANNOTATION: "true"}},
                        "spec": {"attachRequired": False}})  # fmt: skip

    def more(self) -> dict[str, Any]:
        return {
            "opt_in": OPT_IN,
            "direct": lambda: self.direct,
            "validate_block": self._validate,
            "count_deferred": self.count,
        }

    def count(self, by: str) -> None:
        self.counted.append(by)

    async def _validate(self, _volume: Volume) -> None:
        if self.unfit is not None:
            raise self.unfit

    def ask(self, name: str = "web", **more: Any) -> Ref:
        annotations = {ANNOTATION: "data"}
        spec = {"runtimeClassName": "kata"}
        return self.add_pod(name, metadata={"annotations": annotations}, spec=spec, **more)

    @property
    def row(self) -> Publication:
        (row,) = self.states.publications()
        return row


@pytest.fixture
def world() -> DeferringWorld:
    return DeferringWorld()


async def test_a_pod_that_goes_is_taken_back_before_the_driver_unpublishes(world: DeferringWorld) -> None:
    ref = world.ask()
    await world.start()
    world.direct.done.clear()
    world.take_calls()
    world.store.drop(ref)
    await settle()
    assert world.direct.done == ["take back while handed over"]
    assert world.take_calls() == ["unpublish h-data web-uid", "unstage h-data"]
    assert not world.states.kept


async def test_an_unfinished_file_system_of_somebody_else_is_refused(world: DeferringWorld) -> None:
    world.direct.content, world.direct.sound = Content("the file system ext4 u", "ext4", "u"), False
    world.ask()
    await world.start()
    assert "unfinished ext4" in world.entry()["error"]
    assert world.direct.done == ["take back while nothing", "wait while nothing"]


async def test_a_killed_mkfs_is_finished_by_the_next_agent(world: DeferringWorld) -> None:
    world.direct.failures["make"] = Uncertain("mkfs.ext4 was killed")
    world.ask()
    await world.start()
    before = world.row
    assert (before.state, before.handover) == (State.UNCERTAIN, Handover.FORMATTING)
    world.direct.done.clear()
    await world.restart(boot="boot-2")
    assert world.direct.done == ["finish while formatting", "hand over while handed over"]
    assert (world.row.state, world.row.fs_uuid) == (State.DONE, before.fs_uuid)


async def test_a_killed_mkfs_whose_pod_is_gone_is_waited_for_and_not_finished(world: DeferringWorld) -> None:
    world.direct.failures["make"] = Uncertain("the agent was killed")
    pod = world.ask()
    await world.start()
    world.direct.done.clear()
    world.store.drop(pod)
    await settle()
    assert world.direct.done == ["take back while formatting", "wait while formatting"]
    assert world.states.publications() == []


async def test_a_blank_device_that_a_guest_may_have_is_not_formatted(world: DeferringWorld) -> None:
    world.ask()
    await world.start()
    row = world.row
    await world.states.put(replace(row, state=State.UNCERTAIN, fs_uuid="", handover=Handover.NONE))
    world.direct.content = Content()
    world.direct.done.clear()
    await world.restart()
    assert world.direct.told
    assert "make" not in " ".join(world.direct.done)


async def test_a_volume_that_its_owner_mounts_read_only_is_not_formatted(world: DeferringWorld) -> None:
    world.add_volume(pv={"mountOptions": ["ro"]})
    world.ask()
    await world.start()
    assert world.direct.done == ["take back while nothing", "wait while nothing"]
    assert "holds no file system, and the pod may only read the volume" in world.entry()["error"]


async def test_after_a_reboot_another_file_system_is_not_handed_over_and_the_uuid_stays_known(
    world: DeferringWorld,
) -> None:
    world.ask()
    await world.start()
    before = world.row
    world.direct.told.clear()
    world.plugin.mounted.clear()
    world.direct.content = Content("the file system ext4 other", "ext4", "other")
    await world.restart(boot="boot-2")
    assert "check which device" in world.entry()["error"]
    assert not world.direct.told
    assert (world.row.state, world.row.fs_uuid) == (State.UNCERTAIN, before.fs_uuid)


async def test_a_failure_while_a_guest_may_run_undoes_nothing(world: DeferringWorld) -> None:
    world.ask()
    await world.start()
    world.direct.told.clear()
    world.direct.failures["hand over"] = Uncertain("no room")
    world.direct.done.clear()
    await world.restart()
    assert world.direct.done == ["hand over while handed over"]
    assert world.plugin.calls == ["publish h-data web-uid"]


async def test_a_handover_that_fails_is_rolled_back_and_tried_again(world: DeferringWorld) -> None:
    world.direct.failures["hand over"] = Uncertain("no room")
    world.ask()
    await world.start()
    assert world.plugin.calls[:3] == ["stage h-data", "publish h-data web-uid", "unpublish h-data web-uid"]
    assert (world.row.state, world.row.handover) == (State.UNCERTAIN, Handover.NONE)
    world.direct.failures.clear()
    await world.clock.turn(200)
    assert world.row.state is State.DONE


async def test_a_volume_that_cannot_be_a_block_device_is_not_staged(world: DeferringWorld) -> None:
    world.unfit = NotReady("the driver says no")
    world.ask()
    await world.start()
    assert world.plugin.calls == []
    assert world.entry()["error"] == "the driver says no"


async def test_a_second_pod_waits_and_learns_why(world: DeferringWorld) -> None:
    world.ask()
    world.ask("other")
    await world.start()
    assert [call for call in world.plugin.calls if call.startswith("publish")] == ["publish h-data web-uid"] or (
        [call for call in world.plugin.calls if call.startswith("publish")] == ["publish h-data other-uid"]
    )
    errors = sorted(world.entry(name)["error"] for name in ("web", "other"))
    assert errors[0] == ""
    assert "one pod's alone" in errors[1]


async def test_an_asked_volume_that_cannot_be_deferred_is_refused_at_once_by_an_event(world: DeferringWorld) -> None:
    world.add_pod(metadata={"annotations": {ANNOTATION: "data"}})
    await world.start()
    assert world.plugin.calls == []
    (event,) = [message for _, message in world.store.events()]
    assert "the pod has no runtimeClassName" in event


async def test_an_annotation_that_names_no_volume_of_the_pod_is_refused(world: DeferringWorld) -> None:
    world.add_pod(metadata={"annotations": {ANNOTATION: "dta"}})
    await world.start()
    assert world.entry("web", "dta")["error"].startswith("the pod asks to defer 'dta'")
    assert world.entry("web", "data")["state"] == "published"


async def test_a_volume_that_its_driver_has_deferred_is_recognised_and_its_leftovers_go(world: DeferringWorld) -> None:
    ref = world.add_pod()
    publish = world.plugin.publish

    async def told_by_driver(wanted: PodVolume, **given: Any) -> None:
        await publish(wanted, **given)
        world.direct.told = {"web-uid/pv-data"}

    world.plugin.publish = told_by_driver  # type: ignore[method-assign]  # the driver writes the mount info meanwhile
    await world.start()
    assert world.row.runtime == BY_DRIVER
    assert world.entry()["runtime"] == BY_DRIVER
    assert world.counted == ["driver"]
    assert world.direct.done == []
    world.store.drop(ref)
    await settle()
    assert world.take_calls()[-2:] == ["unpublish h-data web-uid", "unstage h-data"]
    assert world.direct.done == ["forget"]
    assert world.direct.told == set()


async def test_the_usage_of_a_deferred_volume_is_the_guests() -> None:
    world = DeferringWorld(stats_interval_s=60.0)
    world.ask()
    await world.start()
    await world.clock.turn(200)
    assert world.entry()["used_bytes"] == 10
    assert "stats h-data web-uid" not in world.plugin.calls


async def test_a_guest_that_cannot_grow_its_file_system_leaves_the_claim_waiting(world: DeferringWorld) -> None:
    world.add_volume(pv={"size": "2Gi"}, claim={"status": {"capacity": {"storage": "2Gi"}}})
    world.ask()
    await world.start()
    world.direct.done.clear()
    world.add_volume(
        pv={"size": "3Gi"},
        claim={
            "status": {
                "capacity": {"storage": "2Gi"},
                "allocatedResources": {"storage": "3Gi"},
                "allocatedResourceStatuses": {"storage": "NodeResizePending"},
            }
        },
    )
    await settle()
    assert world.plugin.calls[-1] == "expand h-data web-uid"
    assert world.direct.done == ["resize"]
    reasons = [reason for reason, _ in world.store.events()]
    assert "FileSystemResizeRequired" in reasons
    assert "FileSystemResizeSuccessful" not in reasons
    await world.clock.turn(600)
    assert world.plugin.calls.count("expand h-data web-uid") == 1


GROWN = {"status": {"capacity": {"storage": "2Gi"}, "allocatedResources": {"storage": "3Gi"},
                    "allocatedResourceStatuses": {"storage": "NodeResizePending"}}}  # fmt: skip


async def test_a_volume_that_grows_while_it_is_published_is_told_when_its_file_system_has_grown(
    world: DeferringWorld,
) -> None:
    world.direct.content = Content("the file system ext4 u", "ext4", "u")
    world.add_volume(pv={"size": "3Gi"}, claim=GROWN)
    world.direct.failures["grow"] = Uncertain("resize2fs has failed")
    world.ask()
    await world.start()
    assert "FileSystemResizeSuccessful" not in [reason for reason, _ in world.store.events()]
    world.direct.failures.clear()
    await world.clock.turn(200)
    assert world.row.state is State.DONE
    assert [reason for reason, _ in world.store.events()].count("FileSystemResizeSuccessful") == 2  # pod and claim


@pytest.mark.parametrize(
    ("fs_type", "options"), [("xfs", []), ("ext4", ["ro"])], ids=["xfs-needs-a-guest", "its-owner-mounts-it-read-only"]
)
async def test_a_file_system_that_does_not_grow_before_the_handover_leaves_the_claim_waiting(
    world: DeferringWorld, fs_type: str, options: list[str]
) -> None:
    world.direct.content, world.direct.fills = Content(f"the file system {fs_type} u", fs_type, "u"), False
    world.add_volume(pv={"size": "3Gi", "mountOptions": options}, claim=GROWN, fsType=fs_type)
    world.ask()
    await world.start()
    assert world.row.state is State.DONE
    reasons = [reason for reason, _ in world.store.events()]
    assert "FileSystemResizeRequired" in reasons
    assert "FileSystemResizeSuccessful" not in reasons
    await world.clock.turn(600)
    assert world.plugin.calls.count("expand h-data web-uid") == 1
