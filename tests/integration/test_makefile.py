"""`make` repairs a virtual environment that cannot install anything, and says what is missing where it cannot."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

HALF = """#!/bin/sh
echo "No module named pip" >&2; exit 1
"""
"""The python of an environment that Debian without python3-venv leaves behind: there, and without pip."""

WHOLE = """#!/bin/sh
echo "$@" >> "$(dirname "$0")/../said"
"""


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A fresh clone, as far as the installation goes, with a half-made environment."""
    tree = tmp_path / "clone"
    tree.mkdir()
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tree)
    program(tree / ".venv/bin/python", HALF)
    return tree


def install(tree: Path, python: Path) -> subprocess.CompletedProcess[str]:
    command = ["make", "--no-print-directory", f"PYTHON={python}", ".venv/.installed"]
    # The variables of a make that runs these tests (VENV=…) are not this one's.
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True, timeout=60, check=False)


def test_an_environment_without_pip_is_made_anew_and_a_whole_one_is_kept(tree: Path, tmp_path: Path) -> None:
    whole = program(tmp_path / "whole", WHOLE)
    python = program(tmp_path / "python", f'#!/bin/sh\nmkdir -p .venv/bin; cp "{whole}" .venv/bin/python\n')
    assert install(tree, python).returncode == 0
    assert "-m pip install " in (tree / ".venv/said").read_text()
    (tree / "pyproject.toml").touch()
    broken = program(tmp_path / "broken", HALF)
    assert install(tree, broken).returncode == 0


def test_a_python_that_cannot_make_one_is_said_each_time_with_what_to_do(tree: Path, tmp_path: Path) -> None:
    python = program(tmp_path / "python", HALF)
    first, second = install(tree, python), install(tree, python)
    for ended in (first, second):
        assert ended.returncode == 2
        assert f"{python} cannot make a virtual environment with pip" in ended.stderr
        assert "python3-venv" in ended.stderr
    assert not (tree / ".venv/.installed").exists()
