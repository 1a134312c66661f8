"""The table of the Kubernetes versions that were tried: how `make nightly` makes it, and what README says of it."""

import re
from pathlib import Path

from tests.e2e.versions import Outcome, with_row

ROOT = Path(__file__).parents[2]

REPORT = """<testsuites><testsuite>
<testcase classname="tests.e2e.test_01" name="test_a"/>
<testcase classname="tests.e2e.test_02" name="test_a"><failure message="no"/></testcase>
<testcase classname="tests.e2e.test_02" name="test_a"><error message="at its end"/></testcase>
<testcase classname="tests.e2e.test_02" name="test_b"><skipped message="needs Kubernetes 1.35 or newer"/></testcase>
</testsuite></testsuites>"""

PAGE = """# Tried
| Kubernetes | date |
|---|---|
| v1.9.1 | old |
| v1.33.2 | old |

The end.
"""


def test_a_test_that_fails_twice_counts_once_and_each_skipped_one_by_its_reason(tmp_path: Path) -> None:
    (tmp_path / "report.xml").write_text(REPORT)

    outcome = Outcome.read(tmp_path / "report.xml")

    assert outcome.failed == ["tests.e2e.test_02::test_a"]
    assert outcome.row("v1.33.2", "2026-11-28") == (
        "| v1.33.2 | 2026-11-28 | 1 | 1 | 1 (needs Kubernetes 1.35 or newer) |"
    )


def test_a_new_row_replaces_that_of_its_version_and_all_rows_are_in_the_order_of_versions() -> None:
    page = with_row(with_row(PAGE, "| v1.33.2 | new |"), "| v1.10.0 | new |")

    rows = [line for line in page.splitlines() if line.startswith("| v")]
    assert rows == ["| v1.9.1 | old |", "| v1.10.0 | new |", "| v1.33.2 | new |"]
    assert page.endswith("| v1.33.2 | new |\n\nThe end.\n")


def test_readme_names_the_oldest_and_the_newest_version_with_their_dates() -> None:
    rows = re.findall(r"^\| (v\S+) \| (\S+) \|", (ROOT / "docs/versions.md").read_text(), re.MULTILINE)
    readme = (ROOT / "README.md").read_text()

    assert re.findall(r"^\| (oldest|newest) \| (v\S+) \| (\S+) \|$", readme, re.MULTILINE) == [
        ("oldest", *rows[0]),
        ("newest", *rows[-1]),
    ]
