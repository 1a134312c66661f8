"""Kubernetes' own storage tests, as upstream built them: what they are told of the driver, their run and its report."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from tests.kit.processes import Supervisor

IMAGES = {
    "registry.k8s.io/e2e-test-images/agnhost:2.63.0": "/agnhost",
    "registry.k8s.io/e2e-test-images/busybox:1.37.0-1": "",
    "registry.k8s.io/e2e-test-images/nginx:1.15-4": "",
}
"""The images of the specs' pods, and what each begins with (k8s.io/kubernetes/test/utils/image). All are one here: no
spec of these wants more of them than a shell."""

_OURS = r"External.Storage.*"  # how the names of all specs of a driver from outside begin

LEFT_OUT = {
    "[Disruptive]": "the spec stops the kubelet",
    "[Serial]": "the spec needs the cluster for itself",
    "[Slow]": "the spec takes minutes",
    "[Feature:Windows]": "the node runs Linux",
    "[Feature:SELinux]": "the node has no SELinux",
    "[Feature:snapshotmetadata]": "the tests cannot build its sidecar: no Go module of it is published",
    "[Feature:volumegroupsnapshot]": "the spec claims 1 MiB, and the driver's smallest XFS volume has 300 MiB",
}
"""Part of a spec's name → why it is not run."""

_APART = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--")
"""The whole tree of the suite's processes dies with the first of them."""

_RUN_LIMIT_S = 3600.0


class Outcome(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Spec:
    """One spec of a run."""

    name: str  # what it is called after the driver
    outcome: Outcome  # how it ended
    why: str = ""  # what it said if it did not pass


def describe_driver(name: str) -> dict[str, Any]:
    """What the suite has to know of the test driver (k8s.io/kubernetes/test/e2e/storage/external).

    There are a StorageClass and a VolumeAttributesClass of its name. Its smallest volume is what mkfs.xfs takes.
    """
    capabilities = (
        "persistence",
        "block",
        "fsGroup",
        "exec",
        "snapshotDataSource",
        "pvcDataSource",
        "multipods",
        "controllerExpansion",
        "nodeExpansion",
        "onlineExpansion",
        "offlineExpansion",
        "volumeLimits",
        "topology",
        "singleNodeVolume",
        "capacity",
        "readWriteOncePod",
        "multiplePVsSameID",
    )
    return {
        "StorageClass": {"FromExistingClassName": name},
        "SnapshotClass": {"FromName": True},
        "VolumeAttributesClass": {"FromExistingClassName": name},
        "InlineVolumes": [{"Attributes": {"size": "64Mi"}}],
        "DriverInfo": {
            "Name": name,
            "SupportedSizeRange": {"Min": "320Mi"},
            "SupportedFsType": {"": {}, "ext4": {}},
            "SupportedMountOption": {"noatime": {}},
            "TopologyKeys": [f"topology.{name}/node"],
            "Capabilities": dict.fromkeys(capabilities, True),
        },
    }


class Suite:
    """Runs specs against a cluster.

    Args:
        directory: for everything it writes; the report of a run is below it, under the run's name.
        peer: finds a peer's binary by name.
        driver: the name of the driver to judge.
        kubeconfig: how to reach the cluster as its administrator.
    """

    def __init__(self, directory: Path, *, peer: Callable[[str], Path], driver: str, kubeconfig: Path) -> None:
        self._directory = directory
        self._peer = peer
        self._kubeconfig = kubeconfig
        self._driver = driver

    def run(self, name: str, supervisor: Supervisor, *, focus: Sequence[str], processes: int) -> dict[str, Spec]:
        """Run the specs whose names match, and wait for their end.

        Args:
            supervisor: who stops it if the test run ends.
            focus: regular expressions, one of which matches.
            processes: how many run at a time.

        Returns:
            The specs that were chosen, by name.

        Raises:
            AssertionError: the suite ended without a report.
        """
        directory = self._directory / name
        directory.mkdir(parents=True)
        described = directory / "driver.json"
        described.write_text(json.dumps(describe_driver(self._driver)))
        command = [
            *(*_APART, "env", f"--chdir={directory}", self._peer("ginkgo"), f"--procs={processes}", "--no-color"),
            *("--json-report=report.json", f"--output-dir={directory}", "--silence-skips"),
            *(f"--focus={_OURS}({expression})" for expression in focus),
            *(f"--skip={re.escape(part)}" for part in LEFT_OUT),
            *(self._peer("e2e.test"), "--", "--provider=local", f"--kubeconfig={self._kubeconfig}"),
            *(f"--kubectl-path={self._peer('kubectl')}", f"--storage.testdriver={described}"),
        ]
        process = supervisor.start(f"suite-{name}", command)
        process.wait_exit(timeout_s=_RUN_LIMIT_S)
        report = directory / "report.json"
        assert report.exists(), f"the suite ended without a report\n{process.log_tail()}"
        return read_report(json.loads(report.read_text()))


def read_report(report: Sequence[Mapping[str, Any]]) -> dict[str, Spec]:
    """The specs of ginkgo's report that were chosen, by name."""
    specs = [_spec(each) for suite in report for each in suite["SpecReports"] or () if each["LeafNodeType"] == "It"]
    return {spec.name: spec for spec in specs if spec is not None}


def _spec(told: Mapping[str, Any]) -> Spec | None:
    words = " ".join([*(told["ContainerHierarchyTexts"] or ()), told["LeafNodeText"]])
    why = told.get("Failure", {}).get("Message", "")
    # What nobody chose is skipped as well, without a word.
    if told["State"] == "pending" or (told["State"] == "skipped" and not why):
        return None
    name = words.partition("[Driver: ")[2].partition("] ")[2]
    outcome = Outcome(told["State"]) if told["State"] in set(Outcome) else Outcome.FAILED
    return Spec(name, outcome, why)
