"""The tree of YAML files of earlier hubs: every fact in it is in the database before the tree is put aside."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
from typing import TYPE_CHECKING

import pytest

from cloud.sources.manifests.claim_sizes import ClaimSizes
from cloud.sources.manifests.documents import read_yaml
from cloud.sync.fact_kinds import as_object
from cloud.sync.fact_table import SCHEMA, FactTable
from cloud.sync.fact_tree import import_tree
from common.database import open_database
from common.errors import SettingsError
from common.objects import Ref, Stamp
from tests.kit.stored import STORED, restore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CLAIM = Ref("PersistentVolumeClaim", "default", "data")
POD = Ref("Pod", "default", "web")
CSI_NODE = Ref("CSINode", "", "n1")
NODE = Ref("Node", "", "n1")

STAMP = "annotations: {csi-bridge.io/fact-uid: '', csi-bridge.io/fact-version: v1}"
FILES = {
    "n1/CSINode/n1.yaml": f"""
apiVersion: storage.k8s.io/v1
kind: CSINode
metadata: {{name: n1, {STAMP}}}
spec:
  drivers:
  - {{name: d.example, nodeID: '7', topologyKeys: [zone]}}
""",
    "n1/Node/n1.yaml": f"""
apiVersion: v1
kind: Node
metadata: {{name: n1, labels: {{zone: a}}, {STAMP}}}
status:
  volumesInUse: [kubernetes.io/csi/d.example^h]
""",
    "n1/PersistentVolumeClaim/default/data.yaml": f"""
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: data, namespace: default, uid: u-1, {STAMP}}}
spec: {{volumeName: pv}}
status:
  capacity: {{storage: 2Gi}}
""",
    "n1/Pod/default/web.yaml": f"""
apiVersion: v1
kind: Pod
metadata: {{name: web, namespace: default, uid: u-2, {STAMP}}}
status:
  conditions:
  - {{type: csi-bridge.io/VolumesMounted, status: 'False', reason: Waiting, message: 'data: no driver'}}
""",
    "n1/Event/default/web.17a2b3.yaml": f"""
apiVersion: v1
kind: Event
metadata: {{name: web.17a2b3, namespace: default, {STAMP}}}
involvedObject: {{kind: Pod, name: web, namespace: default}}
reason: FailedMount
count: 3
""",
}
"""A file of each kind, as hubs before the database wrote them."""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree in a hub's state directory."""
    for name, content in FILES.items():
        add(tmp_path / "facts", name, content)
    return tmp_path / "facts"


def add(tree: Path, name: str, content: str, *, told_ns: int = 1_000_000_000) -> Path:
    path = tree / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    os.utime(path, ns=(told_ns, told_ns))
    return path


@contextlib.contextmanager
def opened(state_dir: Path) -> Iterator[sqlite3.Connection]:
    database = open_database(state_dir / "facts.db", SCHEMA, check=lambda _: None).connection
    with contextlib.closing(database):
        yield database


def rows(state_dir: Path) -> list[tuple[str, ...]]:
    """All that is in the database."""
    with contextlib.closing(sqlite3.connect(state_dir / "facts.db")) as database:
        return sorted(database.execute("SELECT * FROM facts").fetchall())


async def test_every_fact_of_the_tree_is_there_with_its_stamp_and_its_time(tree: Path) -> None:
    async with FactTable(tree.parent) as table:
        facts = table.of("n1")
        assert {ref: fact.stamp for ref, fact in facts.items()} == dict.fromkeys(
            (CSI_NODE, NODE, CLAIM, POD), Stamp("", "v1")
        )
        assert {fact.told_ns for fact in facts.values()} == {1_000_000_000}
        assert facts[CSI_NODE].body["spec"]["drivers"][0]["nodeID"] == "7"
        assert facts[NODE].body["metadata"] == {"labels": {"zone": "a"}}
        assert facts[CLAIM].body["spec"] == {"volumeName": "pv"}
        assert facts[POD].body["status"]["conditions"][0]["message"] == "data: no driver"
        assert table.told().claims[CLAIM][0].status == {"capacity": {"storage": "2Gi"}}
        assert {ref.kind for _, ref, _ in table.stored("n1")} == {"Event", *(ref.kind for ref in facts)}
    async with FactTable(tree.parent) as again:
        assert again.of("n1") == facts


def files(directory: Path) -> dict[str, str]:
    """All files below a directory; none if there is no such directory."""
    return {str(path.relative_to(directory)): path.read_text() for path in directory.rglob("*.yaml")}


async def test_the_tree_is_put_aside_whole_and_a_hub_without_one_makes_none(tree: Path) -> None:
    before = files(tree)
    for _ in range(2):
        async with FactTable(tree.parent):
            pass
        (aside,) = tree.parent.glob("facts*.imported*")
        assert (files(tree), files(aside)) == ({}, before)


class Killed(BaseException):
    """The hub is killed."""


@pytest.mark.parametrize("step", ["written", "renamed"])
async def test_a_hub_that_is_killed_between_two_steps_leaves_them_to_the_next_one(tree: Path, step: str) -> None:
    def kill(reached: str) -> None:
        if reached == step:
            raise Killed

    with opened(tree.parent) as database, pytest.raises(Killed):
        import_tree(tree, database, reached=kill)
    before = rows(tree.parent)
    assert len(before) == len(FILES)
    async with FactTable(tree.parent) as table:
        assert len(table.of("n1")) == 4
    assert rows(tree.parent) == before
    assert files(tree) == {}


async def test_a_hub_that_is_killed_while_it_writes_has_written_nothing(tree: Path) -> None:
    add(tree, "n2/Node/n2.yaml", FILES["n1/Node/n1.yaml"].replace("n1", "n2"))
    with opened(tree.parent) as database:
        is_n2 = "NEW.node = 'n2'"
        database.execute(
            f"CREATE TRIGGER full BEFORE INSERT ON facts WHEN {is_n2} BEGIN SELECT RAISE(ABORT, 'full'); END"
        )
        with pytest.raises(sqlite3.Error, match="full"):
            import_tree(tree, database)
    assert rows(tree.parent) == []
    with pytest.raises(SettingsError, match="cannot be used: full"):
        FactTable(tree.parent)
    assert len(files(tree)) == len(FILES) + 1
    with opened(tree.parent) as database:
        database.execute("DROP TRIGGER full")
    async with FactTable(tree.parent) as table:
        assert sorted(table.nodes()) == ["n1", "n2"]


def test_the_facts_are_on_the_disk_before_the_tree_is_put_aside(tree: Path) -> None:
    """SQLite syncs a commit at FULL alone."""
    with opened(tree.parent) as database:
        statements: list[str] = []
        database.set_trace_callback(statements.append)
        import_tree(tree, database)
    words = [" ".join(it.split()[:2]) for it in statements]
    assert words[:2] == ["PRAGMA synchronous=FULL", "BEGIN IMMEDIATE"]
    assert words[-2:] == ["COMMIT", "PRAGMA synchronous=NORMAL"]


async def test_of_two_states_of_a_fact_the_later_one_counts(tree: Path) -> None:
    """An older hub may have run since the first import, and have made another tree."""
    async with FactTable(tree.parent):
        pass
    claim, node = "n1/PersistentVolumeClaim/default/data.yaml", "n1/Node/n1.yaml"
    add(tree, claim, FILES[claim].replace("v1}", "v2}"), told_ns=2_000_000_000)
    add(tree, node, FILES[node].replace("v1}", "v0}"), told_ns=500_000_000)
    async with FactTable(tree.parent) as table:
        assert (table.of("n1")[CLAIM].stamp.version, table.of("n1")[NODE].stamp.version) == ("v2", "v1")
        assert len(table.of("n1")) == 4


@pytest.mark.parametrize("content", ["", "a: [", "{}", "kind: Pod\nmetadata: {name: x}\n", "- 1\n"])
async def test_a_file_that_cannot_be_read_is_left_out_with_a_warning(
    tree: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = add(tree, "n1/PersistentVolumeClaim/default/data.yaml", content)
    async with FactTable(tree.parent) as table:
        assert table.of("n1").keys() == {CSI_NODE, NODE, POD}
    assert caplog.messages[0].startswith(f"{path} is unreadable and left out until the node sends it again")


async def test_what_people_or_a_crash_left_in_the_tree_is_no_fact(tree: Path) -> None:
    pod, claim = FILES["n1/Pod/default/web.yaml"], FILES["n1/PersistentVolumeClaim/default/data.yaml"]
    for name, content in (
        ("n1/Pod/default/copy-of-web.yaml", pod),
        ("n1/Pod/default/.web.yaml", ""),
        ("n1/Pod/other/web.yaml", pod),
        ("n2/Node/n1.yaml", FILES["n1/Node/n1.yaml"]),
        ("Not-A-Node/PersistentVolumeClaim/default/data.yaml", claim),
        ("n1/Secret/default/s.yaml", pod),
        ("README", "notes"),
    ):
        add(tree, name, content)
    async with FactTable(tree.parent) as table:
        assert list(table.nodes()) == ["n1"]
        assert table.of("n1").keys() == {CSI_NODE, NODE, CLAIM, POD}


async def test_a_name_that_was_too_long_for_a_file_is_whole_again(tree: Path) -> None:
    name = "x" * 253
    short = f"{name[:200]}~{hashlib.sha256(name.encode()).hexdigest()[:32]}"
    claim = FILES["n1/PersistentVolumeClaim/default/data.yaml"].replace("name: data", f"name: {name}")
    add(tree, f"n1/PersistentVolumeClaim/default/{short}.yaml", claim)
    async with FactTable(tree.parent) as table:
        assert Ref("PersistentVolumeClaim", "default", name) in table.of("n1")


# -------------------- the tree that an older hub left --------------------


def in_files(tree: Path) -> dict[tuple[str, Ref], tuple[Stamp, object]]:
    """The stamps and bodies of the files of a tree, by node and object."""
    found = {}
    for path in tree.rglob("*.yaml"):
        (document,) = read_yaml(path.read_text())
        body = document.value
        metadata, annotations = body["metadata"], body["metadata"].pop("annotations")
        stamp = Stamp(annotations.pop("csi-bridge.io/fact-uid"), annotations.pop("csi-bridge.io/fact-version"))
        body["metadata"] = {**metadata, **({"annotations": annotations} if annotations else {})}
        ref = Ref(body["kind"], metadata.get("namespace", ""), metadata["name"])
        found[path.relative_to(tree).parts[0], ref] = stamp, body
    return found


async def test_nothing_of_an_older_hubs_tree_is_forgotten(tmp_path: Path) -> None:
    restore("before-migrations/hub", tmp_path)
    before = in_files(tmp_path / "facts")
    assert {ref.kind for _, ref in before} == {"CSINode", "Node", "PersistentVolumeClaim", "Pod", "Event"}
    for _ in range(2):
        async with FactTable(tmp_path) as table:
            found = {(node, ref): (fact.stamp, as_object(ref, fact.body)) for node, ref, fact in table.stored()}
            assert found == before
            assert sorted(table.nodes()) == ["n1", "n2", "n3"]
            assert {(node, ref): fact.stamp for node in table.nodes() for ref, fact in table.of(node).items()} == {
                key: stamp for key, (stamp, _) in before.items() if key[1].kind != "Event"
            }


async def test_the_sizes_of_an_older_hubs_claims_are_read(tmp_path: Path) -> None:
    restore("before-migrations/hub", tmp_path)
    sizes = ClaimSizes(tmp_path).sizes
    assert "32Mi" in sizes.values()
    assert sizes == json.loads((STORED / "before-migrations/hub/claim-sizes.json").read_bytes())
