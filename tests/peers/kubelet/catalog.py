"""The catalog of all scenarios, and where their records lie."""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tests.peers.kubelet.normal_form import Record, Step
from tests.peers.kubelet.scenario import Scenario
from tests.peers.kubelet.scenarios import basics, expansion, fs_group, interruptions, pod_facts, refusals

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

    Scenarios that differ in the driver's code alone share a file, if the kubelet does the same: it has the record of
    its first code, and all codes.

    Raises:
        LookupError: there is none; `make record-kubelet` writes it.
    """
    return recorded()[name]


@cache
def recorded(directory: Path = RECORDS) -> dict[str, Record]:
    """All records of the kubelet's, by scenario."""
    found = {}
    for path in sorted(directory.glob("*.json")):
        text = path.read_text()
        codes = json.loads(text).get("codes", ())
        for told in (_with_code(text, codes[0], code) for code in codes) if codes else (text,):
            record: Record = json.loads(told)
            record.pop("codes", None)
            found[record["scenario"]] = record
    return found


def write(record: Record, directory: Path = RECORDS) -> None:
    """Keep a record of the kubelet's, with one step a line, so that a change reads as the steps that changed."""
    directory.mkdir(parents=True, exist_ok=True)
    same: dict[str, list[str]] = {}
    for name, each in (recorded(directory) | {record["scenario"]: record}).items():
        code = _code_of(name)
        same.setdefault(_with_code(_told(each), code, _ANY_CODE), []).append(code)
    for path in directory.glob("*.json"):
        path.unlink()
    for told, codes in same.items():
        first: Record = json.loads(_with_code(told, _ANY_CODE, codes[0]))
        shared = {"scenario": first["scenario"], "codes": codes} if len(codes) > 1 else {}
        (directory / f"{first['scenario']}.json").write_text(_told(shared | first))
    recorded.cache_clear()


_ANY_CODE = "ANY_CODE"


def _code_of(scenario: str) -> str:
    """The code that a scenario's driver answers with; empty: none."""
    return next((code for code in refusals.CODES if f"-{_in_names(code)}-" in f"{scenario}-"), "")


def _with_code(text: str, code: str, other: str) -> str:
    return text.replace(code, other).replace(_in_names(code), _in_names(other)) if code else text


def _in_names(code: str) -> str:
    return code.lower().replace("_", "-")


def _told(record: Record) -> str:
    members = [f"{_text(key)}: {_lanes(value) if key == 'lanes' else _text(value)}" for key, value in record.items()]
    return "{\n" + ",\n".join(members) + "\n}\n"


def _lanes(lanes: Mapping[str, Sequence[Step]]) -> str:
    each = (f"{_text(lane)}: [\n" + ",\n".join(map(_text, steps)) + "\n]" for lane, steps in lanes.items())
    return "{" + ",\n".join(each) + "}"


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
