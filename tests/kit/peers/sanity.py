"""csi-sanity, and what became of each of its specs."""

import json
import subprocess
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_OUTCOMES = frozenset({"passed", "failed", "skipped", "pending"})
"""Ginkgo's other outcomes (panicked, timedout, interrupted, aborted) are failures, too."""


@dataclass(frozen=True, kw_only=True)
class SanityReport:
    """The outcome of each of csi-sanity's specs."""

    outcomes: Mapping[str, str]  # the spec's full name → passed, failed, skipped or pending
    failed: Mapping[str, str]  # name → what the spec found wrong

    @property
    def counts(self) -> dict[str, int]:
        return Counter(self.outcomes.values())

    def differences(self, other: "SanityReport") -> list[str]:
        """One line for each spec that came out otherwise in the other report; empty where they are equal."""
        ours, theirs = self.outcomes, other.outcomes
        return [
            f"{name}: {ours.get(name, 'absent')}, there {theirs.get(name, 'absent')} ({other.failed.get(name, '')})"
            for name in sorted(ours.keys() | theirs.keys())
            if ours.get(name) != theirs.get(name)
        ]


def run_sanity(
    program: Path,
    directory: Path,
    *,
    endpoint: Path,
    controller_endpoint: Path | None = None,
    flags: tuple[str, ...] = (),
    timeout_s: float = 100.0,
) -> SanityReport:
    """Run all of csi-sanity.

    Args:
        program: the csi-sanity binary.
        directory: a directory of this run alone, for its mount points and its report.
        endpoint: the socket for Identity and Node (and the rest, without `controller_endpoint`).
        controller_endpoint: the socket for Controller and GroupController, and Identity once more.
        flags: further flags, such as ``--csi.testvolumesize=…``.
        timeout_s: its calls have no deadline: a call that hangs would hang the run.

    Raises:
        AssertionError: it did not end in time, or left no report; with the end of its output.
    """
    directory.mkdir(parents=True, exist_ok=True)
    report = directory / "report.json"
    command = [
        str(program),
        f"--csi.endpoint=unix://{endpoint}",
        *([f"--csi.controllerendpoint=unix://{controller_endpoint}"] if controller_endpoint else []),
        # csi-sanity makes these two itself: they must not exist.
        f"--csi.mountdir={directory / 'mount'}",
        f"--csi.stagingdir={directory / 'staging'}",
        f"--ginkgo.json-report={report}",
        "--ginkgo.no-color",
        *flags,
    ]
    output = directory / "csi-sanity.log"
    with output.open("wb") as file:
        try:
            subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, timeout=timeout_s, check=False)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"csi-sanity still ran after {timeout_s:g} s\n{_tail(output)}") from None
    if not report.exists():
        raise AssertionError(f"csi-sanity left no report\n{_tail(output)}")
    return _read(json.loads(report.read_text()))


def _read(suites: list[dict[str, Any]]) -> SanityReport:
    outcomes: dict[str, str] = {}
    failed: dict[str, str] = {}
    for spec in (spec for suite in suites for spec in suite["SpecReports"] if spec["LeafNodeType"] == "It"):
        name = " ".join([*(spec["ContainerHierarchyTexts"] or []), spec["LeafNodeText"]])
        assert name not in outcomes, f"two specs of csi-sanity are called {name!r}"
        outcomes[name] = spec["State"] if spec["State"] in _OUTCOMES else "failed"
        if outcomes[name] == "failed":
            failed[name] = spec.get("Failure", {}).get("Message", "")
    return SanityReport(outcomes=outcomes, failed=failed)


def _tail(output: Path) -> str:
    return "\n".join(output.read_text(errors="replace").splitlines()[-30:])
