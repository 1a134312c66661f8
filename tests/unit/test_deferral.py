"""The deferral of a volume in the task: what is recorded before each step, and what a failure leaves."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from common.objects.objects import Ref
from common.observe.metrics import Metrics
from edge.calls.node_requests import Inputs
from edge.direct.file_systems import Content
from edge.disk.found_volumes import Published
from edge.disk.layout import Layout
from edge.disk.runtimes import direct_runtime
from edge.volume_errors import Uncertain
from edge.volumes import PodVolume
from edge.wanted.opt_in import ANNOTATION, OptIn
from edge.wanted.states import BY_DRIVER, Handover, Publication, State
from tests.kit.edge_volumes import EdgeVolumes
from tests.kit.waiting import settle

DEVICE = Path("/dev/vdb")
OPT_IN = OptIn({"kata": direct_runtime("kata=go:3.20")}, Layout(Path("/root")))


@dataclass
class FakeDirect:
    """Records each step with the row of that moment, and fails as a test says."""

    edge: EdgeVolumes
    content: Content = field(default_factory=Content)  # what the device holds
    sound: bool = True
    fills: bool = True  # whether its file system has the size of the device after `grow`
    done: list[str] = field(default_factory=list)  # the steps, each with the row's `handover`
    failures: dict[str, Exception] = field(default_factory=dict)  # by step, the error that it raises
    told: set[str] = field(default_factory=set)  # the volumes that the runtime knows

    def _step(self, name: str) -> None:
        (row,) = self.edge.states.publications()
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

    async def is_told(self, published: Published) -> bool:
        return self.volume_path(published) in self.told

    async def standing(self) -> frozenset[str]:
        return frozenset(self.told)

    async def sweep(self, kept: Iterable[Published]) -> None:
        self.told &= {self.volume_path(one) for one in kept}

    def volume_path(self, published: Published) -> str:
        return f"{published.pod_uid}/{published.name}"


class DeferringEdge(EdgeVolumes):
    """A node whose agent may defer, with a pod that asks for it."""

    direct: FakeDirect

    def __post_init__(self) -> None:
        self.direct, self.metrics = FakeDirect(self), Metrics()
        super().__post_init__()
        self.store.put({"kind": "CSIDriver", "metadata": {"name": "d.csi", "annotations": {ANNOTATION: "true"}},
                        "spec": {"attachRequired": False}})  # fmt: skip

    def opt_in(self) -> OptIn:
        return OPT_IN

    def more(self) -> dict[str, Any]:
        return {
            "direct": lambda: self.direct,
            "metrics": self.metrics,
        }

    def ask(self, name: str = "web", **more: Any) -> Ref:
        annotations = {ANNOTATION: "data"}
        spec = {"runtimeClassName": "kata"}
        return self.add_pod(name, metadata={"annotations": annotations}, spec=spec, **more)

    @property
    def row(self) -> Publication:
        (row,) = self.states.publications()
        return row


@pytest.fixture
def edge() -> DeferringEdge:
    return DeferringEdge()


@pytest.mark.parametrize(
    ("fs_type", "is_sound", "why"),
    [("ext4", False, "unfinished ext4"), ("xfs", True, "holds the file system xfs u, and the volume's file system is")],
    ids=["unfinished", "another one"],
)
async def test_a_file_system_of_somebody_else_is_refused(
    edge: DeferringEdge, fs_type: str, is_sound: bool, why: str
) -> None:
    edge.direct.content, edge.direct.sound = Content(f"the file system {fs_type} u", fs_type, "u"), is_sound
    edge.ask()
    await edge.start()
    assert why in edge.entry().error
    assert edge.direct.done == ["take back while nothing", "wait while nothing"]


async def test_a_killed_mkfs_is_finished_by_the_next_agent(edge: DeferringEdge) -> None:
    edge.direct.failures["make"] = Uncertain("mkfs.ext4 was killed")
    edge.ask()
    await edge.start()
    before = edge.row
    assert (before.state, before.handover) == (State.UNCERTAIN, Handover.FORMATTING)
    edge.direct.done.clear()
    await edge.restart(boot="boot-2")
    assert edge.direct.done == ["finish while formatting", "hand over while handed over"]
    assert (edge.row.state, edge.row.fs_uuid) == (State.DONE, before.fs_uuid)


async def test_a_killed_mkfs_whose_pod_is_gone_is_waited_for_and_not_finished(edge: DeferringEdge) -> None:
    edge.direct.failures["make"] = Uncertain("the agent was killed")
    pod = edge.ask()
    await edge.start()
    edge.direct.done.clear()
    edge.store.drop(pod)
    await settle()
    assert edge.direct.done == ["take back while formatting", "wait while formatting"]
    assert edge.states.publications() == []


async def test_a_blank_device_that_a_guest_may_have_is_not_formatted(edge: DeferringEdge) -> None:
    edge.ask()
    await edge.start()
    row = edge.row
    await edge.states.put(replace(row, state=State.UNCERTAIN, fs_uuid="", handover=Handover.NONE))
    edge.direct.content = Content()
    edge.direct.done.clear()
    await edge.restart()
    assert edge.direct.told
    assert "make" not in " ".join(edge.direct.done)


async def test_a_volume_that_its_owner_mounts_read_only_is_not_formatted(edge: DeferringEdge) -> None:
    edge.add_volume(pv={"mountOptions": ["ro"]})
    edge.ask()
    await edge.start()
    assert edge.direct.done == ["take back while nothing", "wait while nothing"]
    assert "holds no file system, and the pod may only read the volume" in edge.entry().error


async def test_after_a_reboot_another_file_system_is_not_handed_over_and_the_uuid_stays_known(
    edge: DeferringEdge,
) -> None:
    edge.ask()
    await edge.start()
    before = edge.row
    edge.direct.told.clear()
    edge.plugin.mounted.clear()
    edge.direct.content = Content("the file system ext4 other", "ext4", "other")
    await edge.restart(boot="boot-2")
    assert "check which device" in edge.entry().error
    assert not edge.direct.told
    assert (edge.row.state, edge.row.fs_uuid) == (State.UNCERTAIN, before.fs_uuid)


async def test_a_failure_while_a_guest_may_run_undoes_nothing(edge: DeferringEdge) -> None:
    edge.ask()
    await edge.start()
    edge.direct.told.clear()
    edge.direct.failures["hand over"] = Uncertain("no room")
    edge.direct.done.clear()
    await edge.restart()
    assert edge.direct.done == ["hand over while handed over"]
    assert edge.plugin.calls == ["publish h-data web-uid"]


async def test_a_handover_that_fails_is_rolled_back_and_tried_again(edge: DeferringEdge) -> None:
    edge.direct.failures["hand over"] = Uncertain("no room")
    edge.ask()
    await edge.start()
    assert edge.plugin.calls[:3] == ["stage h-data", "publish h-data web-uid", "unpublish h-data web-uid"]
    assert (edge.row.state, edge.row.handover) == (State.UNCERTAIN, Handover.NONE)
    edge.direct.failures.clear()
    await edge.clock.turn(200)
    assert edge.row.state is State.DONE


async def test_a_second_pod_waits_and_learns_why(edge: DeferringEdge) -> None:
    edge.ask()
    edge.ask("other")
    await edge.start()
    assert sum(call.startswith("publish") for call in edge.plugin.calls) == 1
    errors = sorted(edge.entry(name).error for name in ("web", "other"))
    assert errors[0] == ""
    assert "one pod's alone" in errors[1]


async def test_an_asked_volume_that_cannot_be_deferred_is_refused_at_once_by_an_event(edge: DeferringEdge) -> None:
    edge.add_pod(metadata={"annotations": {ANNOTATION: "data"}})
    await edge.start()
    assert edge.plugin.calls == []
    (event,) = [message for _, message in edge.facts.events()]
    assert "the pod has no runtimeClassName" in event


async def test_an_annotation_that_names_no_volume_of_the_pod_is_refused(edge: DeferringEdge) -> None:
    edge.add_pod(metadata={"annotations": {ANNOTATION: "dta"}})
    await edge.start()
    assert edge.entry("web", "dta").error.startswith("the pod asks to defer 'dta'")
    assert edge.entry("web", "data").state == "published"


async def test_a_volume_that_its_driver_has_deferred_is_recognised_and_its_leftovers_go(edge: DeferringEdge) -> None:
    ref = edge.add_pod()
    publish = edge.plugin.publish

    async def told_by_driver(wanted: PodVolume, inputs: Inputs, **given: Any) -> None:
        await publish(wanted, inputs, **given)
        edge.direct.told = {"web-uid/pv-data"}

    edge.plugin.publish = told_by_driver  # type: ignore[method-assign]  # the driver writes the mount info meanwhile
    await edge.start()
    assert edge.row.runtime == BY_DRIVER
    assert edge.entry().runtime == BY_DRIVER
    assert edge.metrics.deferred.counts == {"agent": 0, "driver": 1}
    assert edge.direct.done == []
    edge.store.drop(ref)
    await settle()
    assert edge.take_calls()[-2:] == ["unpublish h-data web-uid", "unstage h-data"]
    assert edge.direct.done == ["forget"]
    assert edge.direct.told == set()


GROWN = {"status": {"capacity": {"storage": "2Gi"}, "allocatedResources": {"storage": "3Gi"},
                    "allocatedResourceStatuses": {"storage": "NodeResizePending"}}}  # fmt: skip


async def test_a_volume_that_grows_while_it_is_published_is_told_when_its_file_system_has_grown(
    edge: DeferringEdge,
) -> None:
    edge.direct.content = Content("the file system ext4 u", "ext4", "u")
    edge.add_volume(pv={"size": "3Gi"}, claim=GROWN)
    edge.direct.failures["grow"] = Uncertain("resize2fs has failed")
    edge.ask()
    await edge.start()
    assert "FileSystemResizeSuccessful" not in [reason for reason, _ in edge.facts.events()]
    edge.direct.failures.clear()
    await edge.clock.turn(200)
    assert edge.row.state is State.DONE
    assert [reason for reason, _ in edge.facts.events()].count("FileSystemResizeSuccessful") == 2  # pod and claim


@pytest.mark.parametrize(
    ("fs_type", "options"), [("xfs", []), ("ext4", ["ro"])], ids=["xfs-needs-a-guest", "its-owner-mounts-it-read-only"]
)
async def test_a_file_system_that_does_not_grow_before_the_handover_leaves_the_claim_waiting(
    edge: DeferringEdge, fs_type: str, options: list[str]
) -> None:
    edge.direct.content, edge.direct.fills = Content(f"the file system {fs_type} u", fs_type, "u"), False
    edge.add_volume(pv={"size": "3Gi", "mountOptions": options}, claim=GROWN, fsType=fs_type)
    edge.ask()
    await edge.start()
    assert edge.row.state is State.DONE
    reasons = [reason for reason, _ in edge.facts.events()]
    assert "FileSystemResizeRequired" in reasons
    assert "FileSystemResizeSuccessful" not in reasons
    await edge.clock.turn(600)
    assert edge.plugin.calls.count("expand h-data web-uid") == 1
