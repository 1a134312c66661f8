"""The facts: a node tells of itself alone, what it told outlives the hub, and no name leads out of its directory."""

import contextlib
import sqlite3
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cloud.detach.mounts import no_mounts
from cloud.detach.sole_use import SoleUse
from cloud.records.records import RecordKind
from cloud.records.sqlite import SqliteRecords
from cloud.sources.manifests.binding import ClaimStatus
from cloud.sync import fact_table
from cloud.sync.fact_kinds import MOST_FACT_BYTES, Fact
from cloud.sync.fact_quota import FactQuota
from cloud.sync.fact_table import FactTable
from cloud.sync.facts import FactSink
from common.objects.objects import Object, Ref, Stamp, encode_body
from common.objects.sole_use import sole_use
from tests.kit.state_db import records_in
from tests.kit.trusting import TRUSTING

CLAIM = Ref("PersistentVolumeClaim", "default", "data")
POD = Ref("Pod", "default", "web")
CSI_NODE = Ref("CSINode", "", "n1")
NODE = Ref("Node", "", "n1")
EVENT = Ref("Event", "default", "web.17a2b3")


class FixedClosures:
    """Closures that hold what a test says (`facts.NodeClosures`)."""

    def __init__(self, *held: tuple[str, Ref], is_known: bool = True) -> None:
        self.is_known = is_known
        self.held = set(held)

    def may_concern(self, node: str, ref: Ref) -> bool:
        return not self.is_known or (node, ref) in self.held

    def forget(self, node: str) -> None:
        self.held = {(other, ref) for other, ref in self.held if other != node}


def sink(files: FactTable, *, is_known: bool = True) -> FactSink:
    return FactSink(
        FixedClosures(("n1", CLAIM), ("n1", POD), ("n2", CLAIM), is_known=is_known),
        files,
        SoleUse(files, no_mounts()).claim,
    )


def obj(ref: Ref, body: Any, *, version: str = "1", uid: str = "") -> Object:
    return Object(ref, Stamp(uid, version), encode_body(body))


def csi_node(node: str = "n1", *ids: str, driver: str = "d.example", version: str = "1") -> Object:
    drivers = [{"name": driver, "nodeID": node_id, "topologyKeys": ["zone"]} for node_id in ids]
    return obj(Ref("CSINode", "", node), {"spec": {"drivers": drivers}}, version=version)


def claim(size: str, *, version: str = "1", **more: Any) -> Object:
    body = {"metadata": {"uid": "u-1"}, "status": {"capacity": {"storage": size}, **more}}
    return obj(CLAIM, body, version=version)


def event(name: str = EVENT.name, *, about: Ref = POD, **more: Any) -> Object:
    involved = {"kind": about.kind, "name": about.name, **({"namespace": about.namespace} if about.namespace else {})}
    body = {"involvedObject": involved, "reason": "FailedMount", "message": "no driver", "count": 1, **more}
    return obj(Ref("Event", about.namespace or "default", name), body)


MOUNTED = {"type": "csi-bridge.io/VolumesMounted", "status": "False", "reason": "Waiting", "message": "data: no driver"}


def pod_fact(*conditions: Any, uid: str = "u-1", **status: Any) -> Object:
    body = {"metadata": {"uid": uid}, "spec": {"x": 1}, "status": {"conditions": list(conditions), **status}}
    return obj(POD, body)


def volumes_fact(*volumes: Any) -> Object:
    """The fact of a pod with these volumes."""
    return pod_fact(MOUNTED, volumes=list(volumes))


NODE_FACT = obj(
    NODE,
    {
        "metadata": {"labels": {"zone": "a"}, "annotations": {"csi.volume.kubernetes.io/nodeid": '{"d.example":"7"}'}},
        "status": {"volumesInUse": ["kubernetes.io/csi/d.example^h"]},
    },
)


class Tables:
    """The tables of hubs that run one after another in a state directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.records = SqliteRecords(directory)

    async def __call__(self, **limits: Any) -> FactTable:
        """What the next hub finds."""
        await self.records.close()
        self.records = SqliteRecords(self.directory)
        return FactTable(self.records, TRUSTING, **limits)

    def execute(self, sql: str) -> None:
        """Somebody else changes the database."""
        with contextlib.closing(sqlite3.connect(self.directory / "state.db")) as database, database:
            database.execute(sql)

    def written(self) -> list[str]:
        """The facts in the records."""
        return sorted("/".join(filter(None, key)) for key in records_in(self.directory, RecordKind.FACT))


@pytest.fixture
async def tables(tmp_path: Path) -> AsyncIterator[Tables]:
    tables = Tables(tmp_path)
    yield tables
    await tables.records.close()


# -------------------- another machine under the same name --------------------

EMPTY_NODE = obj(NODE, {"status": {"volumesInUse": []}}, version="2")
USED = frozenset({"kubernetes.io/csi/d.example^h"})


async def test_what_a_machine_had_in_use_stays_when_another_one_takes_its_name(tables: Tables) -> None:
    files = await tables()
    facts = sink(files)
    await facts.table.note_machine("n1", "old")
    await facts.store("n1", NODE_FACT)
    await facts.table.note_machine("n1", "old")  # it has restarted
    assert not files.earlier_use
    await facts.table.note_machine("n1", "new")
    await facts.store("n1", EMPTY_NODE)
    assert files.earlier_use == {"n1": USED}
    await facts.table.note_machine("n1", "old")  # the instance alone proves nothing later
    await facts.table.remove_all("n1")
    files = await tables()
    assert files.earlier_use == {"n1": USED}
    await sink(files).forget("n1")
    assert not files.earlier_use
    assert not (await tables()).earlier_use


async def test_a_claim_to_a_volume_without_attachment_stays_too(tables: Tables) -> None:
    files = await tables()
    await files.note_machine("n1", "old")
    body = encode_body({"spec": {"driver": "d.example", "volumeHandle": "h"}})
    told = Object(sole_use("d.example", "h"), Stamp("", "1"), body)
    await files.put("n1", told.ref, Fact(told.stamp, told.read()))
    await files.note_machine("n1", "new")
    await files.remove("n1", told.ref)
    assert files.earlier_use == {"n1": {told.ref.name}}
    await files.clear_earlier_use("n1")
    assert not files.earlier_use
    assert not (await tables()).earlier_use


async def test_a_node_that_changes_its_instance_fills_no_more_than_its_quota(tables: Tables) -> None:
    files = await tables(quota_bytes=4_000)
    for number in range(100):
        try:
            await files.note_machine("n1", f"i-{number}")
        except ValueError:
            break
        ref, body = NODE, {"status": {"volumesInUse": [f"kubernetes.io/csi/v-{number}-{'x' * 100}"]}}
        await files.put("n1", ref, Fact(Stamp("", str(number)), body))
    assert 0 < len(files.earlier_use["n1"]) < 40
    assert "--fact-quota" in "".join(files.problems())


# -------------------- kept --------------------


async def test_it_is_all_there_after_a_restart(tables: Tables) -> None:
    files = await tables()
    for told in (csi_node("n1", "7"), NODE_FACT, claim("2Gi", conditions=[]), event()):
        await sink(files).store("n1", told)
    again = await tables()
    stamps = dict.fromkeys((CSI_NODE, NODE, CLAIM), Stamp("", "1"))  # Events have none
    assert sink(again).stamps("n1") == sink(files).stamps("n1") == stamps
    assert again.of("n1") == files.of("n1")
    assert again.node_reports() == files.node_reports()
    assert again.node_reports().claims == {
        CLAIM: (ClaimStatus("n1", "u-1", {"capacity": {"storage": "2Gi"}, "conditions": []}),)
    }
    assert again.node_reports().nodes == {"n1": {"metadata": NODE_FACT.read()["metadata"]}}


async def test_only_what_keeps_a_volume_from_other_nodes_is_recorded_if_a_cluster_has_the_rest(tables: Tables) -> None:
    to = sink(await tables(guarded_only=True))
    claimed = obj(sole_use("d.example", "h"), {"spec": {"driver": "d.example", "volumeHandle": "h"}})
    for told in (csi_node("n1", "7"), NODE_FACT, claim("2Gi"), pod_fact(MOUNTED)):
        await to.store("n1", told)
    table = await tables(guarded_only=True)
    await table.put("n1", claimed.ref, Fact(claimed.stamp, claimed.read()))
    await sink(table).drop("n1", CLAIM, "")
    again = (await tables(guarded_only=True)).of("n1")
    assert again[claimed.ref] == table.of("n1")[claimed.ref]
    assert {ref: fact.is_part for ref, fact in again.items()} == {NODE: True, claimed.ref: False}
    assert again[NODE].body == {"status": {"volumesInUse": ["kubernetes.io/csi/d.example^h"]}}


async def test_a_fact_whose_write_has_no_answer_is_told_and_written_again(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = sink(await tables(guarded_only=True))
    await to.store("n1", NODE_FACT)

    async def no_answer(*write: Any, **more: Any) -> None:
        await SqliteRecords.write(tables.records, *write, **more)
        raise OSError("no answer")

    monkeypatch.setattr(tables.records, "write", no_answer)
    with pytest.raises(OSError, match="no answer"):
        await to.store("n1", EMPTY_NODE)
    monkeypatch.undo()
    assert to.stamps("n1") == {NODE: Stamp("", "")}
    await to.store("n1", NODE_FACT)
    assert to.stamps("n1") == {NODE: Stamp("", "1")}
    assert (await tables(guarded_only=True)).of("n1")[NODE].body["status"] == NODE_FACT.read()["status"]


async def test_the_table_knows_which_nodes_list_a_volume_also_after_a_restart(tables: Tables) -> None:
    files, volume = await tables(), "kubernetes.io/csi/d.example^h"
    await sink(files).store("n1", NODE_FACT)
    assert set(files.nodes_using(volume)) == {"n1"}
    files = await tables()
    assert set(files.nodes_using(volume)) == {"n1"}
    await sink(files).store("n1", obj(NODE, {"status": {"volumesInUse": ["other"]}}, version="2"))
    assert (set(files.nodes_using(volume)), set(files.nodes_using("other"))) == (set(), {"n1"})
    await files.forget("n1")
    assert set(files.nodes_using("other")) == set()


async def test_only_what_counts_is_kept_of_a_fact(tables: Tables) -> None:
    files = await tables()
    status = {
        "volumesInUse": [],
        "addresses": [{}],
        "capacity": {"cpu": 4, "pods": "110", "example.com/lamp": "7"},
        "nodeInfo": {"architecture": "arm64", "secret": "x"},
    }
    body = {"metadata": {"name": "zzz"}, "spec": {"providerID": "x"}, "status": status}
    await sink(files).store("n1", obj(NODE, body))
    kept = {"status": {"capacity": {"cpu": "4", "pods": "110"}, "nodeInfo": {"architecture": "arm64"}}}
    assert files.of("n1")[NODE].body == kept
    assert (await tables()).of("n1")[NODE].body == kept


async def test_a_fact_that_is_dropped_is_gone_and_one_of_another_uid_stays(tables: Tables) -> None:
    files = await tables()
    to = sink(files)
    await to.store("n1", obj(NODE, {}, uid="new"))
    await to.drop("n1", NODE, "old")
    assert NODE in to.stamps("n1")
    await to.drop("n1", NODE, "new")
    await to.drop("n1", NODE, "new")
    await to.drop("n1", CSI_NODE, "")
    assert to.stamps("n1") == {}
    assert tables.written() == []


async def test_who_subscribed_hears_of_what_changes_other_objects(tables: Tables) -> None:
    files = await tables()
    heard: list[object] = []
    files.subscribe(lambda: heard.append(files.node_reports()))
    to = sink(files)
    before = files.node_reports()
    await to.store("n1", csi_node("n1", "7"))
    await to.store("n1", event())
    assert heard == []
    assert files.node_reports() is before
    await to.store("n1", claim("1Gi"))
    await to.store("n1", claim("1Gi"))
    await to.drop("n1", CLAIM, "")
    assert len(heard) == 2


async def test_of_two_nodes_the_later_news_of_a_claim_comes_last_also_after_a_restart(tables: Tables) -> None:
    files = await tables()
    to = sink(files)
    await to.store("n2", claim("1Gi"))
    await to.store("n1", claim("2Gi"))
    await to.store("n2", claim("3Gi", version="2"))
    for found in (files, await tables()):
        assert [status.node for status in found.node_reports().claims[CLAIM]] == ["n1", "n2"]


# -------------------- not theirs to tell --------------------


@pytest.mark.parametrize(
    ("node", "ref", "said"),
    [
        ("n1", Ref("CSINode", "", "n2"), "node n1 sends the CSINode of another node"),
        ("n1", Ref("Node", "", "n2"), "node n1 sends the Node of another node"),
        ("n1", Ref("Node", "default", "n1"), "node n1 sends the Node of another node"),
        ("n1", Ref("ConfigMap", "default", "web"), "a kind of object that no node may send"),
        ("n1", Ref("../../Node", "", "n1"), "a kind of object that no node may send"),
        ("n1", Ref("Event", "..", "x"), "whose name Kubernetes does not allow"),
        ("n1", Ref("Event", "default", "../../../etc/passwd"), "whose name Kubernetes does not allow"),
        ("n1", Ref("Event", "default", ".."), "whose name Kubernetes does not allow"),
        ("n1", Ref("Event", "default", ""), "whose name Kubernetes does not allow"),
        ("n1", Ref("Event", "", "x"), "whose name Kubernetes does not allow"),
        ("n1", Ref("Event", "a.b", "x"), "whose name Kubernetes does not allow"),
        ("n1", Ref("Event", "default", "x" * 5000), "whose name Kubernetes does not allow"),
        ("../n1", Ref("Node", "", "../n1"), "Kubernetes does not allow the node's name"),
        ("Größe", Ref("Node", "", "Größe"), "Kubernetes does not allow the node's name"),
    ],
)
async def test_what_is_not_a_nodes_to_tell_is_refused_and_nothing_is_written(
    tables: Tables, node: str, ref: Ref, said: str
) -> None:
    to = sink(await tables())
    with pytest.raises(ValueError, match=said):
        await to.store(node, obj(ref, {"status": {}, "involvedObject": {"kind": "Pod", "name": "web"}}))
    with pytest.raises(ValueError, match=said):
        await to.drop(node, ref, "")
    assert tables.written() == []


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (Object(NODE, Stamp("", "1"), b"[1]"), "is not a JSON object"),
        (Object(NODE, Stamp("", "1"), b"{"), "Expecting"),
        (Object(NODE, Stamp("", "1"), b"[" * 100_000), "nested too deeply"),
        (Object(NODE, Stamp("", "1"), b'{"metadata": {"labels": {"a": "\\ud800"}}}'), "character that UTF-8 cannot"),
        (Object(NODE, Stamp("", "1"), b" " * (MOST_FACT_BYTES["Node"] + 1)), "such a fact has at most 262144"),
        (event(message="m" * 16_384), "such a fact has at most 16384"),
        (obj(NODE, {}, uid="../x"), "UID that is not valid"),
        (obj(NODE, {"metadata": {"labels": {"a": 1}}}), r"Node n1: metadata.labels.a must be a text"),
        (obj(NODE, {"status": {"capacity": {"cpu": "many"}}}), "status.capacity.cpu must be a quantity"),
        (obj(CSI_NODE, {"spec": {"drivers": [{"name": "d"}]}}), r"spec.drivers\[0\].nodeID is missing"),
        (obj(CSI_NODE, {"spec": {"drivers": [{"name": "../d", "nodeID": "1"}]}}), "must be a CSI driver's name"),
        (obj(CSI_NODE, {"spec": {"drivers": [{"name": "d", "nodeID": it} for it in "12"]}}), "has a driver twice"),
        (obj(CLAIM, {}), "status is missing"),
        (obj(CLAIM, {"status": {"conditions": [{"type": "x"}]}}), r"conditions\[0\].status is missing"),
        (obj(EVENT, {}), "involvedObject is missing"),
        (obj(EVENT, {"involvedObject": {"kind": "Pod", "name": "w", "namespace": "x"}}), "is not that of the event"),
        (obj(POD, {"status": {"conditions": [MOUNTED]}}), "metadata is missing"),
        (pod_fact(MOUNTED, uid=""), r"metadata\.uid is empty"),
        (pod_fact(), r"status\.conditions is empty"),
        (pod_fact({**MOUNTED, "type": "Ready"}), r"conditions\[0\]\.type must be one of"),
        (pod_fact({**MOUNTED, "status": "Perhaps"}), r"conditions\[0\]\.status must be one of"),
        (pod_fact(MOUNTED, MOUNTED), "has a condition twice"),
        (pod_fact({**MOUNTED, "message": "x" * 17_000}), "such a fact has at most 16384"),
        (volumes_fact({"name": "data"}), r"volumes\[0\]\.state is missing"),
        (volumes_fact({"name": "data", "state": "waiting", "reason": {}}), r"volumes\[0\]\.reason must be a text"),
        (volumes_fact(*[{"name": "data", "state": "waiting"}] * 2), "has a volume twice"),
    ],
)
async def test_a_fact_that_makes_no_sense_is_refused(tables: Tables, told: Object, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        await sink(await tables()).store("n1", told)
    assert tables.written() == []


async def test_an_event_about_an_object_that_the_node_may_not_have_is_dropped(tables: Tables) -> None:
    table = await tables()
    to = sink(table)
    gone = Ref("Pod", "default", "gone")
    assert not await to.store("n1", event("e1", about=gone))
    assert not await to.store("n2", event("e2", about=POD))
    assert not await to.store("n1", event("e3", about=Ref("Node", "", "n2")))
    assert await to.store("n1", event("e4", about=POD))
    assert await to.store("n1", event("e5", about=NODE))
    assert [(node, ref.name) for node, ref in table.events] == [("n1", "e4"), ("n1", "e5")]


# -------------------- the quota --------------------


def stray(number: int, *, padding: int = 0, version: str = "1") -> Object:
    """A fact about a claim that the hub gave no node."""
    body = {"status": {"conditions": [{"type": "x", "status": "True", "message": "m" * padding}]}}
    return obj(Ref("PersistentVolumeClaim", "default", f"stray-{number}"), body, version=version)


async def accepted(to: FactSink, *facts: Object) -> int:
    """How many facts of n1 the sink takes."""
    count = 0
    for fact in facts:
        with contextlib.suppress(ValueError):
            await to.store("n1", fact)
            count += 1
    return count


async def test_facts_about_objects_that_a_node_may_not_have_take_a_small_part_of_its_quota(tables: Tables) -> None:
    table = await tables(quota_bytes=320_000)
    to = sink(table)
    assert not await to.store("n1", stray(0, padding=3_000))
    assert await to.store("n1", claim("1Gi"))
    assert await accepted(to, *(stray(number, padding=3_000) for number in range(100))) == 3
    assert await accepted(to, *(stray(number, padding=9_000, version="2") for number in range(3))) == 0
    with pytest.raises(ValueError, match="more than 10000 bytes of facts about objects that the hub did not give it"):
        await to.store("n1", stray(7, padding=3_000))
    (said,) = table.problems()
    assert said.startswith("node n1 sends more than 10000 bytes of facts about objects")
    await to.store("n1", claim("2Gi", version="2"))
    await to.store("n2", stray(7, padding=3_000))
    assert table.problems() == []


def test_a_node_with_many_facts_holds_the_hub_up_no_longer_at_each_next_one() -> None:
    quota = FactQuota()
    for number in range(1_000):
        quota.put("n1", Ref("Pod", "default", f"p{number}"), 200, stray=True)
    began_s = time.process_time()
    for number in range(1_000):
        for kind in ("Node", "Pod"):
            quota.check("n1", Ref(kind, "default", f"q{number}"), 200, stray=kind == "Pod")
    assert time.process_time() - began_s < 0.25


async def test_a_fact_stays_small_change_once_its_object_is_known(tables: Tables) -> None:
    table, closures = await tables(quota_bytes=320_000), FixedClosures()
    to = FactSink(closures, table, SoleUse(table, no_mounts()).claim)
    assert await accepted(to, *(stray(number, padding=3_000) for number in range(100))) == 3
    closures.held = {("n1", stray(number).ref) for number in range(100)}
    assert await accepted(to, *(stray(number, padding=3_001) for number in range(50))) == 50
    closures.held = set()
    assert await accepted(to, *(stray(number, padding=3_002) for number in range(50))) == 50


async def test_a_nodes_facts_have_a_quota_of_bytes_also_after_a_restart_and_another_node_has_its_own(
    tables: Tables,
) -> None:
    table = await tables(quota_bytes=40_000)
    to = sink(table, is_known=False)
    assert await accepted(to, *(stray(number, padding=5_000) for number in range(100))) == 7
    to = sink(await tables(quota_bytes=40_000), is_known=False)
    assert await accepted(to, stray(99, padding=5_000)) == 0
    assert await accepted(to, stray(0, padding=10), stray(99, padding=5_000)) == 2
    with pytest.raises(ValueError, match=r"node n1 sends more than 40000 bytes of facts \(--fact-quota\)"):
        await to.store("n1", stray(98, padding=5_000))
    await to.store("n2", stray(98, padding=5_000))
    await to.drop("n1", stray(1).ref, "")
    assert await accepted(to, stray(98, padding=5_000)) == 1
    await to.forget("n1")
    assert await accepted(to, *(stray(number, padding=5_000) for number in range(100))) == 7


async def test_a_fact_that_shrinks_is_taken_also_above_a_lowered_quota(tables: Tables) -> None:
    to = sink(await tables())
    await to.store("n1", claim("1Gi", conditions=[{"type": "x", "status": "True", "message": "m" * 9_000}]))
    await sink(await tables(quota_bytes=8_000)).store("n1", claim("2Gi", version="2"))


async def test_of_a_claim_that_has_just_left_the_closure_it_is_kept_for_the_pod_may_come_back(tables: Tables) -> None:
    """The node believes that the hub has it, and would not tell the same again."""
    files = await tables()
    to = FactSink(FixedClosures(), files, SoleUse(files, no_mounts()).claim)
    await to.store("n1", claim("2Gi"))
    assert files.node_reports().claims[CLAIM] == (ClaimStatus("n1", "u-1", {"capacity": {"storage": "2Gi"}}),)
    await to.drop("n1", CLAIM, "")
    assert tables.written() == []


async def test_a_fact_of_a_claim_names_its_volume_also_after_a_restart(tables: Tables) -> None:
    body = {"spec": {"volumeName": "pv", "more": 1}, "status": {"capacity": {"storage": "2Gi"}}}
    await sink(await tables()).store("n1", obj(CLAIM, body))
    expected = ClaimStatus("n1", "", {"capacity": {"storage": "2Gi"}}, volume="pv")
    assert (await tables()).node_reports().claims[CLAIM] == (expected,)
    with pytest.raises(ValueError, match=r"spec\.volumeName must be a name"):
        await sink(await tables()).store("n1", obj(CLAIM, {**body, "spec": {"volumeName": "../pv"}}))


async def test_a_node_tells_of_so_many_objects_at_most(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fact_table, "MOST_FACTS", 2)
    to = sink(await tables())
    await to.store("n1", NODE_FACT)
    await to.store("n1", csi_node("n1", "7"))
    await to.store("n1", csi_node("n1", "8", version="2"))
    with pytest.raises(ValueError, match="node n1 sends more than 2 objects"):
        await to.store("n1", claim("1Gi"))


# -------------------- events --------------------


async def test_the_newest_events_of_all_nodes_are_in_memory_and_the_node_with_the_most_loses_its_oldest(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fact_table, "MOST_EVENTS", 4)
    table = await tables()
    to = sink(table)
    await to.store("n2", event("honest", about=Ref("Node", "", "n2")))
    for number in range(5):
        await to.store("n1", event(f"e{number}"))
    await to.store("n1", event("e2", count=2))
    await to.drop("n1", Ref("Event", "default", "e4"), "")  # it has happened all the same
    assert [ref.name for _, ref in table.events] == ["honest", "e3", "e4", "e2"]
    assert [(node, ref.name) for node, ref, _ in table.stored()] == [
        ("n1", "e2"), ("n1", "e3"), ("n1", "e4"), ("n2", "honest"),
    ]  # fmt: skip
    assert [ref.name for _, ref, _ in table.stored("n2")] == ["honest"]
    await to.table.remove_all("n1")
    assert [ref.name for _, ref in table.events] == ["honest"]
    assert not (await tables()).events


# -------------------- node ids --------------------


async def test_two_nodes_with_one_node_id_are_named_until_they_differ(tables: Tables) -> None:
    files = await tables()
    to = sink(files)
    await to.store("n1", csi_node("n1", "same"))
    await to.store("n2", csi_node("n2", "same", driver="other.example"))
    assert files.problems() == []
    await to.store("n2", csi_node("n2", "same", version="2"))
    (said,) = files.problems()
    assert said.startswith("CSI driver d.example gave the node ID 'same' on the nodes n1, n2: ")
    files = await tables()
    assert files.problems() == [said]
    await sink(files).store("n2", csi_node("n2", "own", version="3"))
    assert files.problems() == []


async def test_a_node_that_is_gone_for_good_is_in_nobodys_way(tables: Tables) -> None:
    files = await tables()
    to = sink(files)
    for told in (csi_node("n1", "7"), NODE_FACT, claim("1Gi"), event()):
        await to.store("n1", told)
    await to.store("n2", csi_node("n2", "7"))
    assert len(files.problems()) == 1
    heard: list[int] = []
    files.subscribe(lambda: heard.append(1))
    for node in ("n1", "n1", "never-here", "../n2", ""):
        await to.forget(node)
    assert heard
    assert to.stamps("n1") == {}
    assert files.problems() == []
    assert tables.written() == ["n2/CSINode/n2"]
    assert sink(await tables()).stamps("n1") == {}


async def test_of_many_nodes_with_one_node_id_some_are_named(tables: Tables) -> None:
    files = await tables()
    for number in range(10, 23):
        await sink(files).store(f"n{number}", csi_node(f"n{number}", "same"))
    (said,) = files.problems()
    assert "on the nodes n10, n11, n12, n13, n14, n15, n16, n17, n18, n19 and 3 more: " in said


async def test_what_a_node_has_in_use_changes_with_every_mount_and_is_no_news_for_other_objects(tables: Tables) -> None:
    files = await tables()
    to = sink(files)
    heard: list[int] = []
    files.subscribe(lambda: heard.append(1))
    metadata = {"labels": {"zone": "a"}}
    for version, in_use in enumerate((["v"], ["v", "w"], [])):
        await to.store(
            "n1", obj(NODE, {"metadata": metadata, "status": {"volumesInUse": in_use}}, version=str(version))
        )
    assert to.stamps("n1")[NODE].version == "2"
    assert len(heard) == 1
    await to.store("n1", obj(NODE, {"metadata": {"labels": {"zone": "b"}}}, version="3"))
    assert len(heard) == 2
    assert files.node_reports().nodes == {"n1": {"metadata": {"labels": {"zone": "b"}}}}


# -------------------- the disk --------------------


async def test_a_disk_that_is_full_is_told_and_nothing_is_half_written(tables: Tables) -> None:
    table = await tables()
    to = sink(table)
    await to.store("n1", claim("1Gi"))
    tables.execute("CREATE TRIGGER full BEFORE INSERT ON records BEGIN SELECT RAISE(ABORT, 'disk is full'); END")
    with pytest.raises(OSError, match="disk is full"):
        await to.store("n1", claim("2Gi", version="2"))
    await to.store("n1", event())
    (said,) = table.problems()
    assert said.startswith("the hub cannot store the facts that nodes send, and the nodes keep them until it can: /")
    assert said.endswith("state.db cannot be written: disk is full")
    assert table.of("n1")[CLAIM].stamp == Stamp("", "1")
    assert tables.written() == ["n1/PersistentVolumeClaim/default/data"]
    tables.execute("DROP TRIGGER full")
    await to.store("n1", claim("2Gi", version="2"))
    assert table.problems() == []
    assert sink(await tables()).stamps("n1") == {CLAIM: Stamp("", "2")}


async def test_what_the_disk_did_not_let_go_of_a_node_that_is_gone_can_be_forgotten_again(tables: Tables) -> None:
    to = sink(await tables())
    await to.store("n1", NODE_FACT)
    tables.execute("CREATE TRIGGER stuck BEFORE DELETE ON records BEGIN SELECT RAISE(ABORT, 'disk is broken'); END")
    for order in (to.forget("n1"), to.drop("n1", NODE, "")):
        with pytest.raises(OSError, match="disk is broken"):
            await order
    assert to.stamps("n1")
    tables.execute("DROP TRIGGER stuck")
    await to.forget("n1")
    assert sink(await tables()).stamps("n1") == to.stamps("n1") == {}


# -------------------- pods --------------------


async def test_what_is_told_of_a_pod_is_kept_and_changes_no_other_object(tables: Tables) -> None:
    files = await tables()
    changes: list[int] = []
    files.subscribe(lambda: changes.append(1))
    before = files.node_reports()
    await sink(files).store("n1", pod_fact({**MOUNTED, "secret": "x"}))
    assert files.of("n1")[POD].body == {"metadata": {"uid": "u-1"}, "status": {"conditions": [MOUNTED]}}
    assert (changes, files.node_reports() is before) == ([], True)
    assert tables.written() == ["n1/Pod/default/web"]
    again = await tables()
    assert again.of("n1") == files.of("n1")
    await sink(again).drop("n1", POD, "")
    assert tables.written() == []


async def test_the_states_of_a_pods_volumes_are_kept_also_those_that_only_a_newer_agent_knows(tables: Tables) -> None:
    files = await tables()
    data, logs = {"name": "data", "state": "waiting", "reason": "no driver"}, {"name": "logs", "state": "new"}
    await sink(files).store("n1", volumes_fact({**data, "more": 1}, logs, {"state": "waiting"}))
    kept = [data, logs, {"name": "", "state": "waiting"}]
    assert files.of("n1")[POD].body["status"] == {"conditions": [MOUNTED], "volumes": kept}
    assert (await tables()).of("n1") == files.of("n1")
