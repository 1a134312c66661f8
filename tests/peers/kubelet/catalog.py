"""The catalog of all scenarios, and where their records lie."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from tests.peers.kubelet.scenarios import basics, expansion, fs_group, interruptions, pod_facts, refusals

if TYPE_CHECKING:
    from tests.peers.kubelet.normal_form import Record
    from tests.peers.kubelet.scenario import Scenario

KUBELET_VERSION = "v1.36.3"
RECORDS = Path(__file__).parent / "records" / KUBELET_VERSION

SCENARIOS: tuple[Scenario, ...] = (
    *basics.SCENARIOS,
    *fs_group.SCENARIOS,
    *pod_facts.SCENARIOS,
    *expansion.SCENARIOS,
    *refusals.SCENARIOS,
    *interruptions.SCENARIOS,
)

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
    """Keep a record of the kubelet's."""
    RECORDS.mkdir(parents=True, exist_ok=True)
    (RECORDS / f"{record['scenario']}.json").write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n")
