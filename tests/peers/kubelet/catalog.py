"""The catalog of all scenarios, and where their records lie."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.peers.kubelet.scenarios import basics, expansion, fs_group, interruptions, pod_facts, refusals

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.peers.kubelet.normal_form import Record, Step
    from tests.peers.kubelet.scenario import Scenario

KUBELET_VERSION = "v1.36.3"
RECORDS = Path(__file__).parent / "records" / KUBELET_VERSION

_BY_TOPIC: Mapping[str, tuple[Scenario, ...]] = {
    "Pods, claims and access modes": basics.SCENARIOS,
    "fsGroup": fs_group.SCENARIOS,
    "Inline volumes, pod information, tokens and secrets": pod_facts.SCENARIOS,
    "Volumes that grow": expansion.SCENARIOS,
    "Drivers that fail": refusals.SCENARIOS,
    "Interruptions": interruptions.SCENARIOS,
}

SCENARIOS: tuple[Scenario, ...] = tuple(it for scenarios in _BY_TOPIC.values() for it in scenarios)

TOPICS: Mapping[str, frozenset[str]] = {
    topic: frozenset(it.name for it in scenarios) for topic, scenarios in _BY_TOPIC.items()
}
"""The names of the scenarios of each topic, in the order of the parity page."""

BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}


ALWAYS = (
    "one-pod",
    "two-pods-rwx",
    "block-and-filesystem",
    "no-stage",
    "fs-group-file",
    "inline-and-claim",
    "secrets",
    "expand-online",
    "stage-internal",
    "publish-unavailable-pod-deleted",
    "pod-deleted-during-publish",
    "node-killed-after-publish",
)
"""The scenarios that are played in every run of the tests: of every group some."""


def read(name: str) -> Record:
    """The kubelet's record of a scenario.

    Raises:
        FileNotFoundError: there is none; `make record-kubelet` writes it.
    """
    record: Record = json.loads((RECORDS / f"{name}.json").read_text())
    return record


def write(record: Record) -> None:
    """Keep a record of the kubelet's, with one step a line, so that a change reads as the steps that changed."""
    RECORDS.mkdir(parents=True, exist_ok=True)
    members = [f"{_text(key)}: {_lanes(value) if key == 'lanes' else _text(value)}" for key, value in record.items()]
    (RECORDS / f"{record['scenario']}.json").write_text("{\n" + ",\n".join(members) + "\n}\n")


def _lanes(lanes: Mapping[str, Sequence[Step]]) -> str:
    each = (f"{_text(lane)}: [\n" + ",\n".join(map(_text, steps)) + "\n]" for lane, steps in lanes.items())
    return "{" + ",\n".join(each) + "}"


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
