"""The main scenarios on several versions of Kubernetes; writes the table of docs/versions.md.

python -m tests.e2e.versions [VERSION ...]

The programs of a version are built first: half an hour on two cores, if this machine has not built them before.
Then the scenarios run on them. The exit status says whether all of them passed on all versions.
"""

import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_PAGE = _ROOT / "docs/versions.md"
_VERSIONS = ("v1.33.13", "v1.36.3", "v1.37.2")
"""Three minors before CI's, CI's, and the newest that the tests' Go compiles; the newest patch of each."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How the scenarios ended on one version."""

    passed: int
    failed: list[str]
    skipped: Counter[str]  # by reason

    @classmethod
    def read(cls, report: Path) -> "Outcome":
        """Read pytest's report in JUnit's format."""
        names, failed, skipped = set(), set(), Counter[str]()
        # A test that fails and whose end fails too is there twice.
        for case in ET.parse(report).iter("testcase"):
            name = f"{case.attrib['classname']}::{case.attrib['name']}"
            names.add(name)
            for found in case:
                if found.tag in {"failure", "error"}:
                    failed.add(name)
                elif found.tag == "skipped":
                    skipped[found.attrib["message"]] += 1
        return cls(passed=len(names) - len(failed) - skipped.total(), failed=sorted(failed), skipped=skipped)

    def row(self, version: str, date: str) -> str:
        why = ", ".join(f"{count} ({reason})" for reason, count in sorted(self.skipped.items())) or "0"
        return f"| {version} | {date} | {self.passed} | {len(self.failed)} | {why} |"


def with_row(page: str, row: str) -> str:
    """The page with this row in place of the one of the same version, or below the others."""
    version = row.split("|")[1].strip()
    kept = [line for line in page.splitlines() if not line.startswith(f"| {version} |")]
    rows = sorted([line for line in kept if line.startswith("| v")] + [row], key=_key)
    head = next(number for number, line in enumerate(kept) if line.startswith("|---"))
    others = [line for line in kept if not line.startswith("| v")]
    return "\n".join([*others[: head + 1], *rows, *others[head + 1 :]]) + "\n"


def _key(row: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", row.split("|")[1])]


def _run(version: str) -> Outcome:
    environment = {**os.environ, "CSI_BRIDGE_KUBERNETES": version, "CSI_BRIDGE_REQUIRE_PEERS": "1"}
    build = [sys.executable, "tests/peers/build.py"]
    subprocess.run(build, cwd=_ROOT, env=environment, check=True)
    scenarios = sorted(str(path) for path in Path(__file__).parent.glob("test_[01]*.py"))
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.xml"
        pytest = [sys.executable, "-m", "pytest", *scenarios, "-m", "not slow", f"--junitxml={report}"]
        subprocess.run(pytest, cwd=_ROOT, env=environment, check=False)
        return Outcome.read(report)


def main() -> int:
    """Run the scenarios on each version, and note how they ended."""
    failed = 0
    for version in sys.argv[1:] or _VERSIONS:
        outcome = _run(version)
        row = outcome.row(version, str(datetime.now(UTC).date()))
        _PAGE.write_text(with_row(_PAGE.read_text(), row))
        _say(row)
        for name in outcome.failed:
            _say(f"{version}: failed: {name}")
        failed += len(outcome.failed)
    return int(bool(failed))


def _say(text: str) -> None:
    print(f"versions: {text}", flush=True)  # noqa: T201  this file is a command


if __name__ == "__main__":
    raise SystemExit(main())
