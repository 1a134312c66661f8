"""The second chance that CI gives: which failures it forgives, and which it does not (`.ci/twice.py`)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TWICE = Path(__file__).parents[2] / ".ci/twice.py"

PASSES = "def test_passes(): pass\n"
FAILS = "def test_fails(): assert 0\n"
FAILS_ONCE = """
import pathlib, pytest
@pytest.mark.parametrize("name", ["a", "b@c"])
def test_fails_once(name):
    mark = pathlib.Path(__file__).with_name(name)
    assert mark.exists() or mark.touch()
"""
SKIPPED_THEN = """
import pathlib, pytest
def test_skipped_then():
    mark = pathlib.Path(__file__).with_name("skipped")
    if mark.exists():
        pytest.skip("needs something that is not there any more")
    mark.touch()
    assert 0
"""
CRASHES_ONCE = """
import os, pathlib
def test_crashes_once():
    mark = pathlib.Path(__file__).with_name("mark")
    if not mark.exists():
        mark.touch()
        os._exit(3)
"""
FAIL_ONCE_IN_CROWDS = FAILS_ONCE.replace('["a", "b@c"]', "map(str, range(21))")


def run(directory: Path, *tests: str, workers: int = 0) -> tuple[int, str, list[str]]:
    """Exit status, output and list of forgiven tests of a run of test files with these contents."""
    (directory / "pytest.ini").write_text("[pytest]\n")
    for number, text in enumerate(tests):
        (directory / f"test_{number}.py").write_text(text)
    forgiven = directory / "forgiven"
    # This test may itself run under .ci/twice.py, whose variables are not for the one that it starts.
    environment = {name: text for name, text in os.environ.items() if not name.startswith("CSI_BRIDGE_")}
    done = subprocess.run(
        [
            sys.executable,
            TWICE,
            "-p",
            "xdist.plugin",
            "-p",
            "no:cacheprovider",
            f"-n{workers}",
            "--dist",
            "loadgroup",
            ".",
        ],
        cwd=directory,
        env={**environment, "CSI_BRIDGE_SECOND_CHANCE": str(forgiven), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout, forgiven.read_text().splitlines() if forgiven.exists() else []


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_tests_that_pass_alone_are_forgiven_and_listed(tmp_path: Path, workers: int) -> None:
    status, output, forgiven = run(tmp_path, PASSES, FAILS_ONCE, workers=workers)
    assert status == 0, output
    assert sorted(forgiven) == ["test_1.py::test_fails_once[a]", "test_1.py::test_fails_once[b@c]"]
    assert "2 passed, 1 deselected" in output


def test_a_test_that_fails_again_is_not_forgiven_nor_is_another_beside_it(tmp_path: Path) -> None:
    status, output, forgiven = run(tmp_path, FAILS_ONCE, FAILS)
    assert (status, forgiven) == (1, []), output
    assert "1 failed, 2 passed" in output


def test_a_test_that_is_skipped_the_second_time_is_not_forgiven(tmp_path: Path) -> None:
    status, output, forgiven = run(tmp_path, PASSES, SKIPPED_THEN)
    assert (status, forgiven) == (1, []), output


def test_a_run_without_failures_happens_once(tmp_path: Path) -> None:
    status, output, forgiven = run(tmp_path, PASSES)
    assert (status, output.count(" passed in "), forgiven) == (0, 1, [])


@pytest.mark.parametrize(
    ("broken", "workers", "status"),
    [
        pytest.param("import nothing_of_that_name", 0, 2, id="a file that cannot be collected"),
        pytest.param(CRASHES_ONCE, 2, 1, id="a worker that crashed", marks=pytest.mark.slow),
        pytest.param(CRASHES_ONCE, 0, 3, id="pytest itself that was ended"),
        pytest.param(FAIL_ONCE_IN_CROWDS, 0, 1, id="too many failures"),
    ],
)
def test_there_is_no_second_chance_after(tmp_path: Path, broken: str, workers: int, status: int) -> None:
    found, output, forgiven = run(tmp_path, PASSES, broken, workers=workers)
    assert (found, forgiven) == (status, []), output
    assert "once more" not in output
