"""The written facts: kept first, written then, a Node before it is acknowledged, and again when Kubernetes lost it."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cloud.detach.mounts import no_mounts
from cloud.detach.sole_use import SoleUse
from cloud.kube.client import KubeError
from cloud.kube.work_queue import WorkQueue
from cloud.records.sqlite import SqliteRecords
from cloud.sync.fact_table import FactTable
from cloud.sync.in_use import InUse
from cloud.upsync import written_facts
from cloud.upsync.written_facts import WrittenFacts
from common.objects.objects import Object, Ref, Stamp
from common.objects.pod_fact import RELEASED
from tests.kit.trusting import TRUSTING
from tests.kit.waiting import settle, until

NODE = Ref("Node", "", "n1")
CSI_NODE = Ref("CSINode", "", "n1")
CLAIM = Ref("PersistentVolumeClaim", "default", "data")
POD = Ref("Pod", "default", "web")
EVENT = Ref("Event", "default", "e")
BODIES: dict[Ref, dict[str, Any]] = {
    NODE: {"metadata": {"name": "n1"}, "status": {"volumesInUse": ["v"]}},
    CSI_NODE: {"metadata": {"name": "n1"}, "spec": {"drivers": [{"name": "d.csi", "nodeID": "n1"}]}},
    CLAIM: {"metadata": {"uid": "u"}, "status": {"capacity": {"storage": "1Gi"}}},
    POD: {"metadata": {"uid": "u"}, "status": {"conditions": [{"type": RELEASED, "status": "True"}]}},
    EVENT: {"involvedObject": {"kind": "Node", "name": "n1"}, "reason": "Bad", "message": "it is", "type": "Warning"},
}


OTHERS = Ref("Pod", "kube-system", "etcd")


def a_node(uid: str) -> dict[str, Any]:
    return {"metadata": {"name": "n1", "uid": uid}, "status": {"volumesInUse": ["v"]}}


class Closures:
    is_ready = True

    def holds(self, node: str, ref: Ref) -> bool:
        return ref != OTHERS

    may_concern = holds

    def forget(self, node: str) -> None:
        pass


class Writer:
    """Notes what it is to write, and what a Node has in use; fails on demand."""

    def __init__(self, in_use: InUse) -> None:
        self.in_use = in_use
        self.written: list[tuple[Ref, bool]] = []
        self.remembered: set[Ref] = set()
        self.begun: Counter[Ref] = Counter()
        self.down = False
        self.missing = 0  # how many of the next writes find no such object
        self.gate = asyncio.Event()
        self.gate.set()

    async def write(self, node: str, ref: Ref, fact: dict[str, Any] | None) -> None:
        volumes = fact["status"]["volumesInUse"] if fact is not None and ref.kind == "Node" else None
        if volumes is not None:
            self.in_use.begin(node, volumes)
        self.begun[ref] += 1
        await asyncio.sleep(0)
        await self.gate.wait()
        if self.down:
            raise KubeError(f"patch {ref}", 0, "", "nobody answers")
        if self.missing:
            self.missing -= 1
            raise KubeError(f"patch {ref}", 404, "NotFound", f"{ref} not found")
        self.written.append((ref, fact is not None))
        if fact is not None:
            self.remembered.add(ref)
        else:
            self.remembered.discard(ref)
        if volumes is not None:
            self.in_use.note(node, volumes)

    def forget(self, node: str, ref: Ref) -> None:
        self.remembered.discard(ref)

    def problems(self) -> list[str]:
        return []


class Hearts:
    def __init__(self) -> None:
        self.heard: list[str] = []

    def up(self, node: str) -> None:
        self.heard.append(f"up {node}")

    def down(self, node: str) -> None:
        self.heard.append(f"down {node}")


async def _soon(_seconds: float) -> None:
    await asyncio.sleep(0)


class WritingHub:
    def __init__(self, directory: Path) -> None:
        self.directory, self.now = directory, 0.0
        self.hearts, self.in_use = Hearts(), InUse()
        self.writer, self.nodes = Writer(self.in_use), Writer(self.in_use)
        self.nodes.written, self.nodes.remembered = self.writer.written, self.writer.remembered
        self.records = SqliteRecords(directory)
        self.facts = self.make()

    async def restart(self) -> None:
        await self.facts.close()
        await self.records.close()
        self.records = SqliteRecords(self.directory)
        self.facts = self.make()

    def make(self) -> WrittenFacts:
        self.table = table = FactTable(self.records, TRUSTING, guarded_only=True)
        writers = dict.fromkeys((*(ref.kind for ref in BODIES), "Kubelet", "Gone"), self.writer)
        writers["Node"] = self.nodes
        return WrittenFacts(
            Closures(),
            table,
            SoleUse(table, no_mounts()).claim,
            writers,
            hearts=self.hearts,
            in_use=self.in_use,
        )

    async def tell(self, ref: Ref, version: str = "1") -> None:
        await self.facts.store("n1", Object(ref, Stamp("", version), json.dumps(BODIES[ref]).encode()))

    async def has_written(self, *refs: Ref) -> None:
        """The node has told these, and they are written."""
        for ref in refs:
            await self.tell(ref)
        await self.settle()

    async def settle(self) -> list[tuple[Ref, bool]]:
        """What was written since the last time."""
        await settle()
        written = list(self.writer.written)
        self.writer.written.clear()
        return written

    @property
    def down(self) -> bool:
        return self.writer.down

    @down.setter
    def down(self, down: bool) -> None:
        self.writer.down = self.nodes.down = down


@pytest.fixture
async def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[WritingHub]:
    monkeypatch.setattr(written_facts, "WorkQueue", partial(WorkQueue, pause=_soon))
    hub = WritingHub(tmp_path)
    monkeypatch.setattr(written_facts, "monotonic", lambda: hub.now)
    yield hub
    await hub.facts.close()
    await hub.records.close()


async def test_a_node_is_acknowledged_when_kubernetes_has_it(hub: WritingHub) -> None:
    hub.down = True
    telling = asyncio.create_task(hub.tell(NODE))
    await until(hub.facts.problems)
    assert not telling.done()
    assert NODE in hub.table.of("n1")  # it is kept all the same
    assert NODE not in hub.facts.stamps("n1")
    hub.down = False
    await telling
    assert await hub.settle() == [(NODE, True)]
    assert hub.facts.problems() == []


@pytest.mark.parametrize("ref", [CSI_NODE, CLAIM, EVENT], ids=lambda ref: str(ref.kind))
async def test_anything_else_is_acknowledged_when_it_is_kept(hub: WritingHub, ref: Ref) -> None:
    hub.down = True
    await hub.tell(ref)
    assert hub.writer.written == []
    hub.down = False
    await hub.settle()


async def test_after_a_start_nothing_is_written_before_its_node_tells_it_again(hub: WritingHub) -> None:
    await hub.has_written(*BODIES)
    await hub.restart()
    hub.in_use.lose("n1")
    hub.facts.judge_again("n1")
    hub.facts.changed(NODE, None)
    assert await hub.settle() == []
    assert (set(hub.table.of("n1")), dict(hub.facts.stamps("n1"))) == ({NODE}, {})
    await hub.has_written(NODE, CSI_NODE, CLAIM, POD)
    assert hub.facts.stamps("n1").keys() == BODIES.keys() - {EVENT}


async def test_what_a_node_tells_no_more_is_written_as_nothing(hub: WritingHub) -> None:
    await hub.has_written(CLAIM)
    await hub.facts.drop("n1", CLAIM, "")
    assert await hub.settle() == [(CLAIM, False)]


async def test_an_event_is_written_once_and_never_taken_back(hub: WritingHub) -> None:
    await hub.tell(EVENT)
    assert await hub.settle() == [(EVENT, True)]
    await hub.facts.drop("n1", EVENT, "")
    assert await hub.settle() == []


async def test_an_event_of_what_is_not_the_nodes_is_not_written(hub: WritingHub) -> None:
    about = {"kind": OTHERS.kind, "namespace": OTHERS.namespace, "name": OTHERS.name}
    lie = json.dumps({**BODIES[EVENT], "involvedObject": about}).encode()
    await hub.facts.store("n1", Object(Ref("Event", OTHERS.namespace, "e"), Stamp("", "1"), lie))
    assert await hub.settle() == []


async def test_a_node_with_very_many_events_takes_no_place_from_the_others_and_little_from_the_cluster(
    hub: WritingHub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("cloud.sync.fact_table.MOST_EVENTS", 3)
    monkeypatch.setattr("cloud.upsync.written_facts._EVENT_BURST", 5)
    hub.down = True

    async def tell(node: str, name: str) -> Ref:
        ref, about = Ref("Event", "default", name), {"kind": "Node", "name": node}
        body = json.dumps({**BODIES[EVENT], "involvedObject": about}).encode()
        await hub.facts.store(node, Object(ref, Stamp("", "1"), body))
        return ref

    honest = await tell("n2", "honest")
    flood = [await tell("n1", f"e{number}") for number in range(20)]
    hub.down = False
    assert sorted(await hub.settle()) == sorted((ref, True) for ref in (honest, *flood[3:5]))
    assert not hub.table.events
    assert [it.__dict__["peer"] for it in caplog.records if "is dropped" in it.getMessage()] == ["edge n1"] * 15
    hub.now += 1.0
    assert [(await tell("n1", "later"), True)] == await hub.settle()


async def test_events_that_nobody_takes_hold_up_no_node(hub: WritingHub) -> None:
    hub.writer.gate.clear()
    for number in range(20):
        ref = Ref("Event", "default", f"e{number}")
        await hub.facts.store("n1", Object(ref, Stamp("", "1"), json.dumps(BODIES[EVENT]).encode()))
    await hub.settle()
    await asyncio.wait_for(hub.tell(NODE), 5)
    assert await hub.settle() == [(NODE, True)]


@pytest.mark.parametrize("end", ["drop", "void", "forget"])
async def test_nothing_is_remembered_of_who_tells_of_a_claim_no_more(hub: WritingHub, end: str) -> None:
    hub.facts.changed(CLAIM, None)
    await hub.tell(CLAIM)  # which crossed the deletion
    match end:
        case "drop":
            await hub.facts.drop("n1", CLAIM, "another one's")
            hub.facts.changed(CLAIM, {})
            assert (CLAIM, True) in await hub.settle()
            await hub.facts.drop("n1", CLAIM, "")
        case "void":
            await hub.facts.table.remove_all("n1")
        case _:
            await hub.facts.forget("n1")
    assert not hub.facts.table.nodes_with_fact(CLAIM)


async def test_a_node_that_was_deleted_is_written_again_and_its_pods_with_it(hub: WritingHub) -> None:
    await hub.has_written(NODE, CSI_NODE, POD)
    hub.facts.changed(NODE, a_node("1"))
    hub.facts.changed(NODE, a_node("1"))
    assert await hub.settle() == []
    hub.facts.changed(NODE, None)
    assert NODE not in hub.facts.stamps("n1")  # nothing is in use until it is written again
    assert sorted(ref.kind for ref, _ in await hub.settle()) == ["CSINode", "Node", "Pod"]
    assert NODE in hub.facts.stamps("n1")
    hub.facts.changed(Ref("Node", "", "other"), None)
    assert await hub.settle() == []


async def test_a_node_that_was_made_anew_while_nobody_watched_is_written_again(hub: WritingHub) -> None:
    hub.facts.changed(NODE, a_node("1"))
    await hub.has_written(NODE, CSI_NODE, POD)
    hub.facts.changed(NODE, a_node("2"))
    assert NODE not in hub.facts.stamps("n1")
    assert sorted(ref.kind for ref, _ in await hub.settle()) == ["CSINode", "Node", "Pod"]
    assert NODE in hub.facts.stamps("n1")
    hub.facts.changed(NODE, a_node("2"))
    assert await hub.settle() == []


async def test_the_answer_of_a_node_that_is_gone_since_confirms_nothing(hub: WritingHub) -> None:
    hub.nodes.gate.clear()
    telling = asyncio.create_task(hub.tell(NODE))
    await until(lambda: hub.nodes.begun[NODE])
    await hub.settle()
    hub.facts.changed(NODE, None)
    first, hub.nodes.gate = hub.nodes.gate, asyncio.Event()
    first.set()
    assert await hub.settle() == [(NODE, True)]
    assert not telling.done()
    hub.nodes.gate.set()
    await asyncio.wait_for(telling, 5)


async def test_a_nodes_heart_beats_until_the_last_of_its_streams_has_ended(hub: WritingHub) -> None:
    hub.facts.up("n1")
    hub.facts.up("n1")
    hub.facts.down("n1")
    assert "down n1" not in hub.hearts.heard
    hub.facts.down("n1")
    assert hub.hearts.heard[-1] == "down n1"


async def test_only_what_comes_into_use_is_waited_for(hub: WritingHub) -> None:
    await hub.has_written(NODE)
    hub.down = True
    await asyncio.wait_for(hub.tell(NODE, version="2"), 5)  # in use is what stands there already
    await asyncio.wait_for(hub.tell(CLAIM), 5)
    hub.down = False
    assert sorted(ref.kind for ref, _ in await hub.settle()) == ["Node", "PersistentVolumeClaim"]


async def test_what_an_earlier_hub_kept_and_kubernetes_may_not_have_is_to_be_told_again(hub: WritingHub) -> None:
    hub.down = True
    telling = asyncio.create_task(hub.tell(NODE))
    await until(hub.facts.problems)
    telling.cancel()
    hub.in_use.lose("n1")
    await hub.restart()
    assert NODE not in hub.facts.stamps("n1")
    hub.down = False
    await hub.tell(NODE)
    assert NODE in hub.facts.stamps("n1")


async def test_what_is_told_of_a_claim_is_looked_at_again_when_a_pod_of_the_node_uses_it(hub: WritingHub) -> None:
    await hub.has_written(CLAIM)
    volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]
    metadata = {"name": "web", "namespace": "default"}
    pod = Ref("Pod", "default", "web")
    hub.facts.changed(pod, {"metadata": metadata, "spec": {"nodeName": "n2", "volumes": volumes}})
    assert await hub.settle() == []
    hub.facts.changed(pod, {"metadata": metadata, "spec": {"nodeName": "n1", "volumes": volumes}})
    assert await hub.settle() == [(CLAIM, True)]
    hub.facts.changed(pod, None)
    assert await hub.settle() == []


# ---- nodes that a kubelet serves -------------------------------------------------------------------------------------

KUBELET = Ref("Kubelet", "", "n1")
REMOVAL = Ref("Gone", "", "n1")


@pytest.mark.parametrize("end", ["observed", "forgotten"])
async def test_of_a_node_of_which_nothing_is_written_any_more_no_writer_remembers_anything(
    hub: WritingHub, end: str
) -> None:
    await hub.has_written(NODE, CSI_NODE, POD)
    hub.writer.gate.clear()
    await hub.tell(POD, version="2")
    await hub.settle()
    assert hub.writer.begun[POD] == 2  # it is being written
    if end == "observed":
        hub.facts.observed("n1")
        await hub.facts.table.remove_all("n1")
    else:
        await hub.facts.forget("n1")
    hub.writer.gate.set()
    await hub.settle()
    assert hub.writer.remembered == set()


async def test_a_node_whose_last_word_waits_for_kubernetes_is_handed_over_all_the_same(hub: WritingHub) -> None:
    hub.down = True
    telling = asyncio.create_task(hub.tell(NODE))
    await until(hub.facts.problems)
    hub.facts.observed("n1")
    await asyncio.wait_for(telling, 5)
    await hub.facts.table.remove_all("n1")
    hub.down = False
    assert await hub.settle() == [(KUBELET, False)]


async def test_a_node_whose_kubelet_is_gone_is_written_again(hub: WritingHub) -> None:
    hub.facts.observed("n1")
    await hub.settle()
    hub.facts.up("n1")
    await hub.tell(NODE)
    assert await hub.settle() == [(NODE, True)]


async def test_of_a_node_that_is_gone_for_good_what_the_hub_made_is_deleted(hub: WritingHub) -> None:
    await hub.has_written(NODE, CSI_NODE, CLAIM)
    await hub.facts.forget("n1")
    written = await hub.settle()
    assert sorted((ref.kind, told) for ref, told in written) == [
        ("CSINode", False),
        ("Gone", False),
        ("Node", False),
        ("PersistentVolumeClaim", False),
    ]
    assert hub.facts.stamps("n1") == {}


async def test_a_node_that_is_deleted_while_the_hub_writes_it_is_no_problem(
    hub: WritingHub, caplog: pytest.LogCaptureFixture
) -> None:
    await hub.has_written(NODE)
    hub.nodes.missing = 1
    await hub.facts.forget("n1")
    assert (NODE, False) in await hub.settle()
    assert "not written yet" not in caplog.text


async def test_what_is_still_missing_when_the_hub_looks_again_is_a_problem(hub: WritingHub) -> None:
    hub.nodes.missing = 2
    await hub.facts.forget("n1")
    await until(hub.facts.problems)
    assert set(hub.facts.problems()) == {"Kubernetes: patch Node n1: Node n1 not found"}
    await until(lambda: not hub.facts.problems())


async def test_a_node_with_a_kubelet_is_looked_at_again_when_its_reports_or_its_label_change(hub: WritingHub) -> None:
    hub.facts.observed("n1")
    await hub.settle()
    hub.facts.judge_again("n1")
    assert await hub.settle() == [(KUBELET, False)]
    hub.facts.judge_again("n2")
    hub.facts.changed(NODE, a_node("u"))
    assert await hub.settle() == []
    labels = {"metadata": {"name": "n1", "uid": "u", "labels": {"csi-bridge.io/edge": "kubeedge"}}}
    hub.facts.changed(NODE, labels)
    assert await hub.settle() == [(KUBELET, False)]


@pytest.mark.parametrize("end", ["comes back without one", "forgotten"])
async def test_a_problem_of_a_node_with_a_kubelet_goes_when_no_kubelet_is_there_any_more(
    hub: WritingHub, end: str
) -> None:
    hub.facts.observed("n1")
    await hub.settle()
    hub.writer.remembered.add(KUBELET)
    if end == "forgotten":
        await hub.facts.forget("n1")
    else:
        hub.facts.up("n1")
    assert hub.writer.remembered == set()


async def test_of_a_node_with_a_kubelet_that_is_gone_for_good_what_the_hub_wrote_is_removed(hub: WritingHub) -> None:
    hub.facts.observed("n1")
    await hub.settle()
    await hub.facts.forget("n1")
    assert (REMOVAL, False) in await hub.settle()


@pytest.mark.parametrize("end", [REMOVAL, KUBELET], ids=["deleted", "handed over"])
async def test_the_node_of_who_came_back_before_it_was_deleted_or_handed_over_stays_as_it_is(
    hub: WritingHub, end: Ref
) -> None:
    await hub.tell(NODE)
    hub.down = True
    if end == REMOVAL:
        await hub.facts.forget("n1")
    else:
        hub.facts.observed("n1")
    await until(lambda: end in hub.writer.begun)
    hub.facts.up("n1")
    hub.down = False
    assert end not in dict(await hub.settle())
    await hub.tell(NODE, version="2")
    assert await hub.settle() == [(NODE, True)]
    assert hub.facts.problems() == []


async def test_a_node_that_comes_back_while_it_is_being_forgotten_keeps_its_node(hub: WritingHub) -> None:
    hub.facts.up("n1")
    await hub.facts.forget("n1")
    assert REMOVAL not in dict(await hub.settle())


async def test_volumes_in_use_that_the_late_request_of_an_earlier_hub_takes_from_a_node_are_written_again(
    hub: WritingHub,
) -> None:
    await hub.has_written(NODE)
    await hub.settle()
    for volumes, written in ((["v"], []), ([], [(NODE, True)])):
        hub.facts.changed(NODE, {**a_node("1"), "status": {"volumesInUse": volumes}})
        assert await hub.settle() == written


async def test_what_comes_after_the_close_is_not_acknowledged_so_that_the_next_hub_gets_it(hub: WritingHub) -> None:
    await hub.facts.close()
    for ref in (EVENT, CLAIM, POD):
        with pytest.raises(OSError, match="stops"):
            await hub.tell(ref)
