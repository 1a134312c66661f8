"""The simulated edges of the bench, and the objects that they are told of: the hub takes both for real."""

from __future__ import annotations

import asyncio
import json
import re
from typing import TYPE_CHECKING, Any

from bench import told_edges
from bench.cluster_objects import MARK, NAMESPACE, PODS, csi_driver, node_name, nodes, objects_of_nodes
from bench.told_edges import Tally, Told
from cloud.sources.cluster.cluster import Cluster
from cloud.sync.closures import Closures
from cloud.sync.fact_kinds import check_ref, read_fact
from common.objects import Object, Ref, Stamp
from common.reports import decode_reports, encode_reports
from common.sync import Learner, Teller
from common.sync_messages import Drop, InStep, Put, put

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pytest

NODE = node_name(3)


def _cluster(*bodies: dict[str, Any]) -> Cluster:
    """A hub's cluster with these objects, as an API server tells them."""
    cluster = Cluster(None)  # type: ignore[arg-type]  # nothing is asked of it
    for number, body in enumerate(bodies):
        body["metadata"]["uid"] = f"00000000-0000-4000-8000-{number:012}"
        ref, item = cluster.read(body["kind"], body)
        assert item is not None, cluster.problems()
        cluster.update({ref: item}, ready=True)
    return cluster


def _stored(told: Told, changes: Sequence[Any]) -> Mapping[int, str]:
    return asyncio.run(told.store(changes))


def _pod(name: str, *, claim: bool, mark: int | None = None) -> Object:
    metadata = {"annotations": {MARK: str(mark)}} if mark is not None else {}
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "c"}}] if claim else []
    body = json.dumps({"metadata": metadata, "spec": {"volumes": volumes}}, separators=(",", ":"))
    return Object(Ref("Pod", NAMESPACE, name), Stamp("5d0d60f4-51dd-4ba9-9a36-6a3f2f7f6c4e", "1"), body.encode())


# ---- the objects


def test_the_hub_tells_a_node_its_pods_and_the_claim_the_volume_and_the_driver_of_the_first() -> None:
    cluster = _cluster(csi_driver(), *nodes([3, 4]), *objects_of_nodes([3, 4]))

    held = list(Closures(cluster).stamps(NODE))

    assert [ref.kind for ref in held if ref.kind != "Pod"] == [
        "Node",
        "CSIDriver",
        "PersistentVolume",
        "PersistentVolumeClaim",
    ]
    assert [ref.name for ref in held if ref.kind == "Pod"] == [f"e3-{number}" for number in range(PODS)]


def test_a_mark_of_a_claim_and_of_the_driver_reaches_the_edge() -> None:
    driver, *rest = _cluster_bodies()
    for body in (driver, rest[1]):
        body["metadata"]["annotations"] = {MARK: "7"}
    cluster = _cluster(driver, *rest)
    closures = Closures(cluster)

    marked = [ref.kind for ref in closures.stamps(NODE) if told_edges._MARKED.search(_body(closures, ref))]

    assert marked == ["CSIDriver", "PersistentVolumeClaim"]


def _cluster_bodies() -> list[dict[str, Any]]:
    return [csi_driver(), *objects_of_nodes([3])]


def _body(closures: Closures, ref: Ref) -> bytes:
    found = closures.read(ref)
    return found.body if found is not None else b""


# ---- the edges


def test_an_edge_tells_facts_that_the_hub_takes() -> None:
    told = Told(NODE, Tally())
    _stored(told, [put(1, _pod("web", claim=True))])

    kinds = []
    for ref in told.facts.stamps():
        check_ref(NODE, ref)
        fact = told.facts.read(ref)
        assert fact is not None
        kept = read_fact(fact)
        kinds.append((ref.kind, sorted(kept)))

    assert kinds == [
        ("CSINode", ["spec"]),
        ("Node", ["metadata", "status"]),
        ("Pod", ["metadata", "status"]),
    ]


def test_only_a_pod_with_a_volume_is_told_of_and_only_as_long_as_it_is_there() -> None:
    told = Told(NODE, Tally())
    with_volume = _pod("web", claim=True)
    _stored(told, [put(1, with_volume), put(2, _pod("idle", claim=False))])
    assert with_volume.ref in told.facts.stamps()
    assert len(told.facts.stamps()) == 3

    _stored(told, [Drop(3, "Pod", NAMESPACE, "web", with_volume.stamp.uid)])
    assert with_volume.ref not in told.facts.stamps()


def test_a_marked_object_is_noted_with_the_time_at_which_it_was_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 100.5)
    tally = Tally()

    _stored(Told(NODE, tally), [put(1, _pod("a", claim=False, mark=41)), put(2, _pod("b", claim=False))])

    assert tally.stored == [(41, 100.5)]


def test_an_edge_is_in_step_from_the_hub_s_word_until_the_next_change() -> None:
    tally = Tally()
    told = Told(NODE, tally)

    _stored(told, [put(1, _pod("a", claim=False)), InStep(2)])
    assert tally.in_step == {NODE}
    _stored(told, [put(3, _pod("b", claim=False))])
    assert tally.in_step == set()


def test_what_an_edge_holds_is_not_told_again() -> None:
    closures = Closures(_cluster(*_cluster_bodies()))
    told = Told(NODE, Tally())
    assert len(_talk(closures, told)) == len(closures.stamps(NODE))

    assert _talk(closures, told) == []
    assert told.stamps() == closures.stamps(NODE)


def _talk(closures: Closures, told: Told) -> list[Put]:
    """Let a hub tell an edge all it knows: the objects that it told."""

    class Truth:
        def stamps(self) -> Mapping[Ref, Stamp]:
            return closures.stamps(NODE)

        def read(self, ref: Ref) -> Object | None:
            return closures.read(ref)

    teller, learner = Teller(Truth(), max_message_bytes=1 << 20), Learner(told)
    found: list[Put] = []
    busy = True
    while busy:
        busy = False
        while message := learner.next_message():
            teller.receive(message)
            busy = True
        while message := teller.next_message():
            changes = learner.receive(message)
            found += [change for change in changes if isinstance(change, Put)]
            if changes:
                learner.stored(changes[-1].seq, _stored(told, changes))
            busy = True
    return found


def test_an_edge_reports_a_driver_that_the_hub_can_read() -> None:
    (report,) = decode_reports(encode_reports([told_edges._report_of(NODE)]))

    assert report.node == NODE
    assert re.fullmatch(r"[a-z.-]+", report.driver)
