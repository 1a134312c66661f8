"""`csi-bridge facts`: a running hub shows people the facts that it has."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from cloud.records.records import Change, RecordKind
from cloud.records.sqlite import SqliteRecords
from tests.kit.bridge import Bridge
from tests.kit.operator import by_hand

UID = "063390d7-3607-524d-9c06-ba62b0f82522"
MOUNTED = {"type": "csi-bridge.io/VolumesMounted", "status": "True", "reason": "Mounted"}
FACTS: list[tuple[str, str, str, str, dict[str, Any]]] = [
    *((node, "CSINode", "", node, {"spec": {"drivers": []}}) for node in ("n1", "n2", "n3")),
    *((node, "Node", "", node, {"status": {"capacity": {"cpu": "2"}}}) for node in ("n1", "n2", "n3")),
    ("n1", "PersistentVolumeClaim", "default", "grown", {"status": {"capacity": {"storage": "32Mi"}}}),
    ("n1", "Pod", "default", "web", {"metadata": {"uid": UID}, "status": {"conditions": [MOUNTED]}}),
]
"""Each with its node, kind, namespace and name."""


@pytest.fixture
def hub(bridge: Bridge, short_dir: Path, tmp_path: Path) -> str:
    async def write() -> None:
        records = SqliteRecords(short_dir / "hub")
        for *key, body in FACTS:
            fact = {"uid": "", "version": "v1", "told_ns": 1, "body": body}
            records.put(Change(RecordKind.FACT, tuple(key), fact))
        await records.close()

    asyncio.run(write())
    (tmp_path / "manifests").mkdir()
    return f"--hub=unix://{bridge.start_hub(f'--manifests={tmp_path}/manifests').uds}"


def shown(*argv: str) -> list[dict[str, Any]]:
    done = by_hand("facts", *argv)
    assert (done.returncode, done.stderr) == (0, "")
    return list(yaml.safe_load_all(done.stdout))


def test_people_see_every_fact_as_an_object_and_programs_the_same(hub: str) -> None:
    facts = shown(hub)
    names = [(it["metadata"]["annotations"]["csi-bridge.io/fact-node"], it["kind"]) for it in facts]
    assert names == sorted(names)
    assert {node for node, _ in names} == {"n1", "n2", "n3"}
    assert {kind for _, kind in names} == {"CSINode", "Node", "PersistentVolumeClaim", "Pod"}
    (claim,) = [it for it in facts if it["kind"] == "PersistentVolumeClaim"]
    assert (claim["metadata"]["name"], claim["status"]["capacity"]) == ("grown", {"storage": "32Mi"})
    told = json.loads(by_hand("facts", hub, "--output=json").stdout)["facts"]
    assert [(it["node"], it["object"]["kind"]) for it in told] == names
    assert all(it["told_at"].endswith("Z") for it in told)


def test_the_facts_of_one_node_are_shown_alone(hub: str) -> None:
    assert [it["kind"] for it in shown(hub, "--node=n2", "-o", "yaml")] == ["CSINode", "Node"]
    assert by_hand("facts", hub, "--node=n9").stdout == "# the hub has no such facts\n"


def test_a_hub_without_objects_says_that_it_keeps_no_facts(bridge: Bridge) -> None:
    without = by_hand("facts", f"--hub=unix://{bridge.start_hub().uds}")
    assert without.stdout == ("# the hub keeps no facts; it was started without --kubeconfig and without --manifests\n")
