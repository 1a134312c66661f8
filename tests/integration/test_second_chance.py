"""The second chance that CI gives (`.ci/twice.py`): a test that passes alone is forgiven and listed."""

import os
import subprocess
import sys
from pathlib import Path

TWICE = Path(__file__).parents[2] / ".ci/twice.py"

TESTS = """
import pathlib, pytest
def test_passes(): pass
@pytest.mark.parametrize("name", ["a", "b@c"])
def test_fails_once(name):
    mark = pathlib.Path(__file__).with_name(name)
    assert mark.exists() or mark.touch()
"""


def test_tests_that_pass_alone_are_forgiven_and_listed(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_0.py").write_text(TESTS)
    forgiven = tmp_path / "forgiven"
    # This test may itself run under .ci/twice.py, whose variables are not for the one that it starts.
    environment = {name: text for name, text in os.environ.items() if not name.startswith("CSI_BRIDGE_")}
    variables = {"CSI_BRIDGE_SECOND_CHANCE": str(forgiven), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}

    done = subprocess.run(
        [sys.executable, TWICE, *("-p", "xdist.plugin", "-p", "no:cacheprovider", "-n0", "--dist", "loadgroup", ".")],
        cwd=tmp_path,
        env={**environment, **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 0, done.stdout
    assert "2 passed, 1 deselected" in done.stdout
    assert sorted(forgiven.read_text().splitlines()) == [
        "test_0.py::test_fails_once[a]",
        "test_0.py::test_fails_once[b@c]",
    ]
