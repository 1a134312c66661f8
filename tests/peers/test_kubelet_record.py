"""The real kubelet, recorded afresh, does what its records in the tree say.

About ten scenarios are played in every run, of every group some; all of them in make test-full.
"""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.kit.peers.control_plane import ControlPlane
from tests.peers.kubelet import catalog
from tests.peers.kubelet.comparer import compare
from tests.peers.kubelet.differences import unwanted
from tests.peers.kubelet.kubelet_node import KubeletNode
from tests.peers.kubelet.play import play
from tests.peers.kubelet.scenario import Scenario

_SENTINEL = "not-a-log"

_FIELDS = {
    "attachRequired": ("no-attach",),
    "fsGroupPolicy": ("fs-group-file", "fs-group-none", "fs-group-with-fs-type"),
    "nodeAllocatableUpdatePeriodSeconds": (),  # tests/unit/test_node_facts.py, tests/integration/test_registrar.py
    "podInfoOnMount": ("pod-info",),
    "preventPodSchedulingIfMissing": (),  # the scheduler's, alpha and off: it looks at CSINode, which is written
    "requiresRepublish": ("republish",),
    "seLinuxMount": ("selinux-mount",),  # without SELinux it changes nothing
    "serviceAccountTokenInSecrets": ("tokens-in-secrets",),
    "storageCapacity": (),  # the scheduler's and the provisioner's: it concerns topology
    "tokenRequests": ("tokens",),
    "volumeLifecycleModes": ("inline", "one-pod"),
}
"""The fields of a CSIDriver, and the scenarios that show them."""

pytestmark = pytest.mark.slow


def _require_the_same(scenarios: Sequence[Scenario], node: KubeletNode, place: Path) -> None:
    """Fail with what differs, and with when what happened in those that do."""
    found = []
    for played in play(scenarios, node=node, directory=place):
        name = played.scenario.name
        if played.error is not None:
            found.append(f"{name} failed: {played.error}")
        elif played.record != catalog.read(name):
            recorded = catalog.read(name)
            told = [str(difference) for difference in compare(recorded, played.record)]
            told = told or [
                f"{part}: {recorded.get(part)} is recorded, {played.record.get(part)} was seen"
                for part in recorded | played.record
                if recorded.get(part) != played.record.get(part)
            ]
            found.append("\n".join([f"{name} went otherwise:", *told, *played.timeline]))
    if found:
        pytest.fail("\n".join(found), pytrace=False)


def test_the_kubelet_does_what_its_records_say(kubelet_node: KubeletNode, place: Path) -> None:
    _require_the_same([catalog.BY_NAME[name] for name in catalog.ALWAYS], kubelet_node, place)


@pytest.mark.endurance
@pytest.mark.timeout(3600)
def test_the_kubelet_does_in_every_scenario_what_its_records_say(kubelet_node: KubeletNode, place: Path) -> None:
    _require_the_same(catalog.SCENARIOS, kubelet_node, place)


def test_the_kubelet_removes_no_file_that_is_not_its_own(kubelet_node: KubeletNode, place: Path) -> None:
    # Upstream's fake runtime gives containers no log path: the kubelet then removes "*" where it works, as root.
    sentinel = kubelet_node.kubelet.workplace / _SENTINEL
    sentinel.touch()

    _require_the_same([catalog.BY_NAME["one-pod"]], kubelet_node, place)

    assert Path(f"/proc/{kubelet_node.kubelet.process.pid}/cwd").readlink() == kubelet_node.kubelet.workplace
    assert sentinel.exists()


def test_every_scenario_has_a_record_and_every_record_a_scenario() -> None:
    assert catalog.recorded().keys() == set(catalog.BY_NAME)


def test_scenarios_of_one_behaviour_share_a_file_and_each_record_comes_back(tmp_path: Path) -> None:
    records, files = catalog.recorded(), {path.name: path.read_text() for path in catalog.RECORDS.glob("*.json")}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    catalog.write(records["one-pod"], tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.glob("*.json")} == files
    other = {**records["publish-unknown"], "notes": {"it": "differs"}}
    catalog.write(other, tmp_path)
    assert catalog.recorded(tmp_path) == {**records, "publish-unknown": other}


def test_every_field_of_a_csidriver_is_in_a_scenario_or_has_a_reason(control_plane: ControlPlane) -> None:
    document = control_plane.api.openapi("apis/storage.k8s.io/v1")
    assert set(document["components"]["schemas"]["io.k8s.api.storage.v1.CSIDriverSpec"]["properties"]) == set(_FIELDS)
    assert {name for scenarios in _FIELDS.values() for name in scenarios} <= set(catalog.BY_NAME)


def test_a_call_that_only_one_of_two_records_has_is_told_unless_a_rule_wants_it() -> None:
    kubelet = catalog.read("one-pod")
    lane = kubelet["lanes"]["data"]
    without = [step for step in lane if step.get("call") != "NodeUnstageVolume"]

    told = compare(kubelet, {**kubelet, "lanes": {**kubelet["lanes"], "data": without}})

    assert compare(kubelet, kubelet) == []
    assert "NodeUnstageVolume OK" in [difference.kubelet for difference in told]
    assert unwanted(told) == told
