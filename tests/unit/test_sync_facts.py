"""The facts: a node tells of itself alone, what it told outlives the hub, and no name leads out of its directory."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import pathlib
import threading
from typing import TYPE_CHECKING, Any

import pytest

from cloud.sources.manifests.binding import ClaimStatus
from cloud.sources.manifests.documents import read_yaml
from cloud.sync import fact_files
from cloud.sync.fact_files import FactFiles
from cloud.sync.fact_kinds import MOST_FACT_BYTES
from cloud.sync.facts import FactSink
from common.errors import SettingsError
from common.objects import Object, Ref, Stamp, encode_body

if TYPE_CHECKING:
    from pathlib import Path

CLAIM = Ref("PersistentVolumeClaim", "default", "data")
POD = Ref("Pod", "default", "web")
CSI_NODE = Ref("CSINode", "", "n1")
NODE = Ref("Node", "", "n1")
EVENT = Ref("Event", "default", "web.17a2b3")


class FixedClosures:
    """Closures that hold what a test says (`facts.NodeClosures`)."""

    def __init__(self, *held: tuple[str, Ref], is_ready: bool = True) -> None:
        self.is_ready = is_ready
        self._held = set(held)

    def holds(self, node: str, ref: Ref) -> bool:
        return (node, ref) in self._held


def sink(files: FactFiles, *, is_ready: bool = True) -> FactSink:
    return FactSink(FixedClosures(("n1", CLAIM), ("n1", POD), ("n2", CLAIM), is_ready=is_ready), files)


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


NODE_FACT = obj(
    NODE,
    {
        "metadata": {"labels": {"zone": "a"}, "annotations": {"csi.volume.kubernetes.io/nodeid": '{"d.example":"7"}'}},
        "status": {"volumesInUse": ["kubernetes.io/csi/d.example^h"]},
    },
)


def written(state_dir: Path) -> list[str]:
    """The files below the facts' directory."""
    root = state_dir / "facts"
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def is_alone(path: Path) -> bool:
    """Whether nothing else is beside it."""
    return list(path.parent.iterdir()) == [path]


# -------------------- kept --------------------


async def test_what_a_node_tells_is_in_files_that_people_can_read(tmp_path: Path) -> None:
    to = sink(FactFiles(tmp_path))
    for told in (csi_node("n1", "7"), NODE_FACT, claim("2Gi", version="v9"), event()):
        await to.store("n1", told)
    assert written(tmp_path) == [
        "n1/CSINode/n1.yaml",
        "n1/Event/default/web.17a2b3.yaml",
        "n1/Node/n1.yaml",
        "n1/PersistentVolumeClaim/default/data.yaml",
    ]
    (document,) = read_yaml((tmp_path / "facts/n1/PersistentVolumeClaim/default/data.yaml").read_text())
    assert document.value == {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": "data",
            "namespace": "default",
            "uid": "u-1",
            "annotations": {"csi-bridge.io/fact-version": "v9", "csi-bridge.io/fact-uid": ""},
        },
        "status": {"capacity": {"storage": "2Gi"}},
    }


async def test_it_is_all_there_after_a_restart(tmp_path: Path) -> None:
    files = FactFiles(tmp_path)
    for told in (csi_node("n1", "7"), NODE_FACT, claim("2Gi", conditions=[]), event()):
        await sink(files).store("n1", told)
    again = FactFiles(tmp_path)
    assert sink(again).stamps("n1") == sink(files).stamps("n1")
    assert again.of("n1") == files.of("n1")
    assert again.told() == files.told()
    assert again.told().claims == {
        CLAIM: (ClaimStatus("n1", "u-1", {"capacity": {"storage": "2Gi"}, "conditions": []}),)
    }
    assert again.told().nodes == {"n1": {"metadata": NODE_FACT.read()["metadata"]}}


async def test_stamps_are_those_that_the_node_gave_and_events_have_none(tmp_path: Path) -> None:
    to = sink(FactFiles(tmp_path))
    await to.store("n1", obj(NODE, {}, version="abc", uid="u-7"))
    await to.store("n1", claim("1Gi", version="def"))
    await to.store("n1", event())
    assert to.stamps("n1") == {NODE: Stamp("u-7", "abc"), CLAIM: Stamp("", "def")}
    assert to.stamps("n2") == {}
    assert sink(FactFiles(tmp_path)).stamps("n1") == to.stamps("n1")


async def test_only_what_counts_is_kept_of_a_fact(tmp_path: Path) -> None:
    files = FactFiles(tmp_path)
    body = {"spec": {"providerID": "x"}, "status": {"volumesInUse": [], "addresses": [{}]}, "metadata": {"name": "zzz"}}
    await sink(files).store("n1", obj(NODE, body))
    assert files.of("n1")[NODE].body == {}


async def test_of_a_machine_its_own_resources_are_kept_and_no_others(tmp_path: Path) -> None:
    files = FactFiles(tmp_path)
    status = {
        "capacity": {"cpu": 4, "pods": "110", "example.com/lamp": "7"},
        "nodeInfo": {"architecture": "arm64", "secret": "x"},
    }
    await sink(files).store("n1", obj(NODE, {"status": status}))
    kept = {"status": {"capacity": {"cpu": "4", "pods": "110"}, "nodeInfo": {"architecture": "arm64"}}}
    assert files.of("n1")[NODE].body == kept
    assert FactFiles(tmp_path).of("n1")[NODE].body == kept


async def test_a_fact_that_is_dropped_is_gone_and_one_of_another_uid_stays(tmp_path: Path) -> None:
    files = FactFiles(tmp_path)
    to = sink(files)
    await to.store("n1", obj(NODE, {}, uid="new"))
    await to.drop("n1", NODE, "old")
    assert NODE in to.stamps("n1")
    await to.drop("n1", NODE, "new")
    await to.drop("n1", NODE, "new")
    await to.drop("n1", CSI_NODE, "")
    assert to.stamps("n1") == {}
    assert written(tmp_path) == []


async def test_who_subscribed_hears_of_what_changes_other_objects(tmp_path: Path) -> None:
    files = FactFiles(tmp_path)
    heard: list[object] = []
    unsubscribe = files.subscribe(lambda: heard.append(files.told()))
    to = sink(files)
    before = files.told()
    await to.store("n1", csi_node("n1", "7"))
    await to.store("n1", event())
    assert heard == []
    assert files.told() is before
    await to.store("n1", claim("1Gi"))
    await to.store("n1", claim("1Gi"))
    await to.drop("n1", CLAIM, "")
    assert len(heard) == 2
    unsubscribe()
    await to.store("n1", NODE_FACT)
    assert len(heard) == 2


async def test_of_two_nodes_the_later_news_of_a_claim_comes_last_also_after_a_restart(tmp_path: Path) -> None:
    files = FactFiles(tmp_path)
    to = sink(files)
    await to.store("n2", claim("1Gi"))
    await to.store("n1", claim("2Gi"))
    await to.store("n2", claim("3Gi", version="2"))
    for node, when in (("n1", 1_000_000_000), ("n2", 2_000_000_000)):
        os.utime(tmp_path / f"facts/{node}/PersistentVolumeClaim/default/data.yaml", (when, when))
    for found in (files, FactFiles(tmp_path)):
        assert [status.node for status in found.told().claims[CLAIM]] == ["n1", "n2"]


# -------------------- not theirs to tell --------------------


@pytest.mark.parametrize(
    ("node", "ref", "said"),
    [
        ("n1", Ref("CSINode", "", "n2"), "node n1 sends the CSINode of another node"),
        ("n1", Ref("Node", "", "n2"), "node n1 sends the Node of another node"),
        ("n1", Ref("Node", "default", "n1"), "node n1 sends the Node of another node"),
        ("n1", Ref("ConfigMap", "default", "web"), "a kind of object that no node may send"),
        ("n1", Ref("Secret", "default", "s"), "a kind of object that no node may send"),
        ("n1", Ref("../../Node", "", "n1"), "a kind of object that no node may send"),
        ("n1", Ref("Event", "..", "x"), "whose name Kubernetes does not allow"),
        ("n1", Ref("Event", "default", "../../../etc/passwd"), "whose name Kubernetes does not allow"),
        ("n1", Ref("Event", "default", "a/b"), "whose name Kubernetes does not allow"),
        ("n1", Ref("Event", "default", ".."), "whose name Kubernetes does not allow"),
        ("n1", Ref("Event", "default", ""), "whose name Kubernetes does not allow"),
        ("n1", Ref("Event", "", "x"), "whose name Kubernetes does not allow"),
        ("n1", Ref("Event", "a.b", "x"), "whose name Kubernetes does not allow"),
        ("n1", Ref("Event", "default", "x\x00"), "whose name Kubernetes does not allow"),
        ("n1", Ref("Event", "default", "x" * 5000), "whose name Kubernetes does not allow"),
        ("n1", Ref("PersistentVolumeClaim", "default", "Data"), "whose name Kubernetes does not allow"),
        ("../n1", Ref("Node", "", "../n1"), "Kubernetes does not allow the node's name"),
        ("..", Ref("Node", "", ".."), "Kubernetes does not allow the node's name"),
        ("Größe", Ref("Node", "", "Größe"), "Kubernetes does not allow the node's name"),
    ],
)
async def test_what_is_not_a_nodes_to_tell_is_refused_and_nothing_is_written(
    tmp_path: Path, node: str, ref: Ref, said: str
) -> None:
    to = sink(FactFiles(tmp_path))
    with pytest.raises(ValueError, match=said):
        await to.store(node, obj(ref, {"status": {}, "involvedObject": {"kind": "Pod", "name": "web"}}))
    with pytest.raises(ValueError, match=said):
        await to.drop(node, ref, "")
    assert written(tmp_path) == []
    assert is_alone(tmp_path / "facts")


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
        (obj(NODE, {"status": {"volumesInUse": "all"}}), "status.volumesInUse must be a list"),
        (obj(NODE, {"status": {"capacity": {"cpu": "many"}}}), "status.capacity.cpu must be a quantity"),
        (obj(NODE, {"status": {"nodeInfo": {"architecture": 64}}}), "status.nodeInfo.architecture must be a text"),
        (obj(CSI_NODE, {"spec": {"drivers": [{"name": "d"}]}}), r"spec.drivers\[0\].nodeID is missing"),
        (obj(CSI_NODE, {"spec": {"drivers": [{"name": "d", "nodeID": ""}]}}), "nodeID is empty"),
        (obj(CSI_NODE, {"spec": {"drivers": [{"name": "../d", "nodeID": "1"}]}}), "must be a CSI driver's name"),
        (obj(CLAIM, {}), "status is missing"),
        (obj(CLAIM, {"status": {"capacity": {"storage": "lots"}}}), "must be a quantity"),
        (obj(CLAIM, {"status": {"conditions": [{"type": "x"}]}}), r"conditions\[0\].status is missing"),
        (obj(EVENT, {}), "involvedObject is missing"),
        (obj(EVENT, {"involvedObject": {"kind": "Pod", "name": "w", "namespace": "x"}}), "is not that of the event"),
        (obj(EVENT, {"involvedObject": {"kind": "Pod", "name": "w"}, "message": {}}), "message must be a text"),
    ],
)
async def test_a_fact_that_makes_no_sense_is_refused(tmp_path: Path, told: Object, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        await sink(FactFiles(tmp_path)).store("n1", told)
    assert written(tmp_path) == []


async def test_what_has_just_left_the_closure_is_dropped_without_a_word_to_the_node(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "csi_bridge")
    to = sink(FactFiles(tmp_path))
    gone = Ref("Pod", "default", "gone")
    await to.store("n1", event(about=gone))
    await to.store("n2", event(about=POD))
    await to.store("n1", event(about=Ref("Node", "", "n2")))
    assert written(tmp_path) == []
    assert caplog.messages[0] == "node n1 sent Pod default/gone, which it does not need any more: dropped"


async def test_of_a_claim_that_has_just_left_the_closure_it_is_kept_for_the_pod_may_come_back(tmp_path: Path) -> None:
    """The node believes that the hub has it, and would not tell the same again."""
    files = FactFiles(tmp_path)
    to = FactSink(FixedClosures(), files)
    await to.store("n1", claim("2Gi"))
    assert files.told().claims[CLAIM] == (ClaimStatus("n1", "u-1", {"capacity": {"storage": "2Gi"}}),)
    await to.drop("n1", CLAIM, "")
    assert written(tmp_path) == []


async def test_a_fact_of_a_claim_names_its_volume_also_after_a_restart(tmp_path: Path) -> None:
    body = {"spec": {"volumeName": "pv", "more": 1}, "status": {"capacity": {"storage": "2Gi"}}}
    await sink(FactFiles(tmp_path)).store("n1", obj(CLAIM, body))
    expected = ClaimStatus("n1", "", {"capacity": {"storage": "2Gi"}}, volume="pv")
    assert FactFiles(tmp_path).told().claims[CLAIM] == (expected,)
    with pytest.raises(ValueError, match=r"spec\.volumeName must be a name"):
        await sink(FactFiles(tmp_path)).store("n1", obj(CLAIM, {**body, "spec": {"volumeName": "../pv"}}))


async def test_before_the_closures_are_known_nothing_is_dropped(tmp_path: Path) -> None:
    to = sink(FactFiles(tmp_path), is_ready=False)
    await to.store("n1", event(about=Ref("Pod", "default", "later")))
    assert written(tmp_path) == ["n1/Event/default/web.17a2b3.yaml"]


async def test_a_node_may_tell_events_of_itself(tmp_path: Path) -> None:
    await sink(FactFiles(tmp_path)).store("n1", event("n1.1", about=NODE))
    assert written(tmp_path) == ["n1/Event/default/n1.1.yaml"]


async def test_a_node_tells_of_so_many_objects_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fact_files, "MOST_FACTS", 2)
    to = sink(FactFiles(tmp_path))
    await to.store("n1", NODE_FACT)
    await to.store("n1", csi_node("n1", "7"))
    await to.store("n1", csi_node("n1", "8", version="2"))
    with pytest.raises(ValueError, match="node n1 sends more than 2 objects"):
        await to.store("n1", claim("1Gi"))


# -------------------- events --------------------


async def test_of_a_nodes_events_the_newest_are_kept_also_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fact_files, "MOST_EVENTS", 3)
    to = sink(FactFiles(tmp_path))
    for number in range(5):
        await to.store("n1", event(f"e{number}"))
    await to.store("n1", event("e2", count=2))
    assert written(tmp_path) == [f"n1/Event/default/e{number}.yaml" for number in (2, 3, 4)]
    for number, when in ((3, 1), (4, 2), (2, 3)):
        os.utime(tmp_path / f"facts/n1/Event/default/e{number}.yaml", (when, when))
    await sink(FactFiles(tmp_path)).store("n1", event("e9"))
    assert written(tmp_path) == [f"n1/Event/default/e{number}.yaml" for number in (2, 4, 9)]


async def test_an_event_that_the_node_has_dropped_has_happened_all_the_same(tmp_path: Path) -> None:
    to = sink(FactFiles(tmp_path))
    await to.store("n1", event())
    await to.drop("n1", EVENT, "")
    assert len(written(tmp_path)) == 1


# -------------------- node ids --------------------


async def test_two_nodes_with_one_node_id_are_named_until_they_differ(tmp_path: Path) -> None:
    files = FactFiles(tmp_path)
    to = sink(files)
    await to.store("n1", csi_node("n1", "same"))
    await to.store("n2", csi_node("n2", "same", driver="other.example"))
    assert files.problems() == []
    await to.store("n2", csi_node("n2", "same", version="2"))
    (said,) = files.problems()
    assert said.startswith("CSI driver d.example gave the node ID 'same' on the nodes n1, n2: ")
    assert FactFiles(tmp_path).problems() == [said]
    await to.store("n2", csi_node("n2", "own", version="3"))
    assert files.problems() == []


async def test_a_node_that_is_gone_for_good_is_in_nobodys_way(tmp_path: Path) -> None:
    files = FactFiles(tmp_path)
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
    assert written(tmp_path) == ["n2/CSINode/n2.yaml"]
    await to.store("n1", event())
    assert sink(FactFiles(tmp_path)).stamps("n1") == {}
    assert written(tmp_path) == ["n1/Event/default/web.17a2b3.yaml", "n2/CSINode/n2.yaml"]


async def test_what_the_disk_did_not_let_go_of_a_node_that_is_gone_can_be_forgotten_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = sink(FactFiles(tmp_path))
    await to.store("n1", NODE_FACT)

    def refuse(_: pathlib.Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(fact_files, "_remove_tree", refuse)
        with pytest.raises(OSError, match="Input/output error"):
            await to.forget("n1")
    assert to.stamps("n1")
    await to.forget("n1")
    assert sink(FactFiles(tmp_path)).stamps("n1") == to.stamps("n1") == {}


async def test_of_many_nodes_with_one_node_id_some_are_named(tmp_path: Path) -> None:
    files = FactFiles(tmp_path)
    for number in range(10, 23):
        await sink(files).store(f"n{number}", csi_node(f"n{number}", "same"))
    (said,) = files.problems()
    assert "on the nodes n10, n11, n12, n13, n14, n15, n16, n17, n18, n19 and 3 more: " in said


async def test_what_a_node_has_in_use_changes_with_every_mount_and_is_no_news_for_other_objects(tmp_path: Path) -> None:
    files = FactFiles(tmp_path)
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
    assert files.told().nodes == {"n1": {"metadata": {"labels": {"zone": "b"}}}}


# -------------------- the disk --------------------


async def test_namespaces_that_a_node_makes_up_leave_no_directories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fact_files, "MOST_EVENTS", 2)
    to = sink(FactFiles(tmp_path))
    for number in range(5):
        about = {"involvedObject": {"kind": "Node", "name": "n1"}}
        await to.store("n1", obj(Ref("Event", f"ns{number}", "e"), about))
    assert sorted(path.name for path in (tmp_path / "facts/n1/Event").iterdir()) == ["ns3", "ns4"]


async def test_no_yaml_is_made_on_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    write_yaml = fact_files.write_yaml

    def noted(value: Any) -> bytes:
        threads.append(threading.get_ident())
        return write_yaml(value)

    monkeypatch.setattr(fact_files, "write_yaml", noted)
    to = sink(FactFiles(tmp_path))
    await to.store("n1", NODE_FACT)
    await to.store("n1", event())
    assert len(threads) == 2
    assert threading.get_ident() not in threads


async def test_a_disk_that_is_full_is_told_and_nothing_is_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = FactFiles(tmp_path)
    to = sink(files)
    await to.store("n1", claim("1Gi"))

    def full(_path: Path, _target: Path) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr("pathlib.Path.replace", full)
        with pytest.raises(OSError, match="No space left"):
            await to.store("n1", claim("2Gi", version="2"))
    assert files.problems() == [
        "the hub cannot store the facts that nodes send, and the nodes keep them until it can: No space left on device"
    ]
    assert to.stamps("n1") == {CLAIM: Stamp("", "1")}
    assert sink(FactFiles(tmp_path)).stamps("n1") == to.stamps("n1")
    await to.store("n1", claim("2Gi", version="2"))
    assert sink(FactFiles(tmp_path)).stamps("n1") == {CLAIM: Stamp("", "2")}
    assert files.problems() == []


@pytest.mark.parametrize("content", [b"", b"\xff", b"a: [", b"{}", b"kind: Pod\nmetadata: {name: x}\n", b"- 1\n"])
async def test_a_file_that_cannot_be_read_is_left_out_until_it_is_told_again(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    to = sink(FactFiles(tmp_path))
    await to.store("n1", claim("1Gi"))
    await to.store("n1", NODE_FACT)
    path = tmp_path / "facts/n1/PersistentVolumeClaim/default/data.yaml"
    path.write_bytes(content)
    again = sink(FactFiles(tmp_path))
    assert again.stamps("n1").keys() == {NODE}
    assert caplog.messages[0].startswith(f"{path} is unreadable and left out")
    await again.store("n1", claim("1Gi"))
    assert sink(FactFiles(tmp_path)).stamps("n1").keys() == {NODE, CLAIM}


async def test_a_file_of_one_node_says_nothing_of_another(tmp_path: Path) -> None:
    to = sink(FactFiles(tmp_path))
    await to.store("n1", claim("1Gi"))
    (tmp_path / "facts/n1").rename(tmp_path / "facts/n2")
    await to.store("n1", NODE_FACT)
    (tmp_path / "facts/n1/Node").rename(tmp_path / "facts/n2/Node")
    again = FactFiles(tmp_path)
    assert again.of("n2").keys() == {CLAIM}


async def test_the_longest_names_fit_on_the_disk_and_differ(tmp_path: Path) -> None:
    to = sink(FactFiles(tmp_path), is_ready=False)
    names = ["x" * 252 + end for end in ("a", "b")]
    for name in names:
        await to.store("n1", obj(Ref("PersistentVolumeClaim", "default", name), {"status": {}}))
    assert {ref.name for ref in sink(FactFiles(tmp_path)).stamps("n1")} == set(names)


async def test_many_at_once_are_all_kept(tmp_path: Path) -> None:
    to = sink(FactFiles(tmp_path), is_ready=False)
    refs = [Ref("PersistentVolumeClaim", "default", f"c{number}") for number in range(100)]
    await asyncio.gather(*(to.store("n1", obj(ref, {"status": {}})) for ref in refs))
    assert list(sink(FactFiles(tmp_path)).stamps("n1")) != []
    assert set(sink(FactFiles(tmp_path)).stamps("n1")) == set(refs)


def test_a_directory_that_cannot_be_used_is_the_operators_mistake(tmp_path: Path) -> None:
    (tmp_path / "facts").touch()
    with pytest.raises(SettingsError, match=r"--state-dir=.*cannot be used"):
        FactFiles(tmp_path)


def test_sizes_are_kept_and_an_unreadable_file_has_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = FactFiles(tmp_path)
    assert files.sizes() == {}
    files.keep_sizes({"u/v": "1Gi"})
    assert FactFiles(tmp_path).sizes() == {"u/v": "1Gi"}
    for content in ("{", "[" * 100_000, "[1]", '{"u/v": "much"}', '{"u/v": null}', '{"u/v": "-1"}'):
        (tmp_path / "claim-sizes.json").write_text(content)
        assert files.sizes() == {}
    assert "is unreadable" in caplog.text


def test_the_sizes_are_on_the_disk_before_they_take_the_place_of_the_old_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No node tells them again after a power cut."""
    files = FactFiles(tmp_path)
    files.keep_sizes({"u/v": "1Gi"})
    steps: list[str] = []
    fsync, replace = os.fsync, pathlib.Path.replace

    def noted_fsync(descriptor: int) -> None:
        steps.append(f"fsync of {os.fstat(descriptor).st_size} bytes")
        fsync(descriptor)

    def noted_replace(path: Path, target: Path) -> Path:
        steps.append(f"{path.name} to {target.name}")
        return replace(path, target)

    monkeypatch.setattr("os.fsync", noted_fsync)
    monkeypatch.setattr("pathlib.Path.replace", noted_replace)
    files.keep_sizes({"u/v": "2Gi"})
    size = (tmp_path / "claim-sizes.json").stat().st_size
    assert steps == [f"fsync of {size} bytes", ".claim-sizes.json to claim-sizes.json"]


async def test_a_fact_that_a_power_cut_left_empty_is_none_and_is_told_again(tmp_path: Path) -> None:
    files = FactFiles(tmp_path)
    await sink(files).store("n1", claim("1Gi"))
    await sink(files).store("n1", csi_node("n1", "id"))
    (path,) = (tmp_path / "facts" / "n1" / "PersistentVolumeClaim").rglob("*.yaml")
    path.write_bytes(b"")
    files = FactFiles(tmp_path)
    assert set(sink(files).stamps("n1")) == {CSI_NODE}
    await sink(files).store("n1", claim("1Gi"))
    assert set(sink(FactFiles(tmp_path)).stamps("n1")) == {CSI_NODE, CLAIM}


# -------------------- pods --------------------

MOUNTED = {"type": "csi-bridge.io/VolumesMounted", "status": "False", "reason": "Waiting", "message": "data: no driver"}


def pod_fact(*conditions: Any, uid: str = "u-1", ref: Ref = POD) -> Object:
    return obj(ref, {"metadata": {"uid": uid}, "spec": {"x": 1}, "status": {"conditions": list(conditions)}})


async def test_what_is_told_of_a_pod_is_kept_and_changes_no_other_object(tmp_path: Path) -> None:
    files = FactFiles(tmp_path)
    changes: list[int] = []
    files.subscribe(lambda: changes.append(1))
    before = files.told()
    await sink(files).store("n1", pod_fact({**MOUNTED, "secret": "x"}))
    assert files.of("n1")[POD].body == {"metadata": {"uid": "u-1"}, "status": {"conditions": [MOUNTED]}}
    assert (changes, files.told() is before) == ([], True)
    assert written(tmp_path) == ["n1/Pod/default/web.yaml"]
    assert FactFiles(tmp_path).of("n1") == files.of("n1")
    await sink(files).drop("n1", POD, "")
    assert written(tmp_path) == []


def listed(*volumes: Any) -> Object:
    """The fact of a pod with these volumes."""
    return obj(POD, {"metadata": {"uid": "u-1"}, "status": {"conditions": [MOUNTED], "volumes": list(volumes)}})


async def test_the_states_of_a_pods_volumes_are_kept_also_those_that_only_a_newer_agent_knows(tmp_path: Path) -> None:
    files = FactFiles(tmp_path)
    data, logs = {"name": "data", "state": "waiting", "reason": "no driver"}, {"name": "logs", "state": "new"}
    await sink(files).store("n1", listed({**data, "more": 1}, logs, {"state": "waiting"}))
    kept = [data, logs, {"name": "", "state": "waiting"}]
    assert files.of("n1")[POD].body["status"] == {"conditions": [MOUNTED], "volumes": kept}
    assert FactFiles(tmp_path).of("n1") == files.of("n1")


@pytest.mark.parametrize(
    "told",
    [
        listed({"name": "data"}),
        listed({"name": 7, "state": "waiting"}),
        listed({"name": "data", "state": "waiting", "reason": {}}),
        listed("data"),
        listed(*[{"name": "data", "state": "waiting"}] * 2),
        pod_fact(MOUNTED, uid=""),
        pod_fact(),
        pod_fact({**MOUNTED, "type": "Ready"}),
        pod_fact({**MOUNTED, "status": "Perhaps"}),
        pod_fact({**MOUNTED, "message": 7}),
        pod_fact(MOUNTED, MOUNTED),
        pod_fact({**MOUNTED, "message": "x" * 17_000}),
        pod_fact(MOUNTED, ref=Ref("Pod", "", "web")),
        obj(POD, {"status": {"conditions": [MOUNTED]}}),
    ],
)
async def test_a_pods_fact_that_is_none_is_refused(told: Object, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"."):
        await sink(FactFiles(tmp_path)).store("n1", told)
