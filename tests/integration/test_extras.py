"""Without its extra a command says which one to install; exit code 2, and no traceback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """An environment in which what the extra `demo` installs cannot be found."""
    (tmp_path / "grpc.py").write_text("raise ModuleNotFoundError(name='grpc')")
    return {**os.environ, "PYTHONPATH": str(tmp_path)}


def run(environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name(words[0])
    return subprocess.run(
        [program, *words[1:]], env=environment, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    "words", [("csi-bridge", "demo"), ("dirdriver", "--endpoint=unix:///nowhere/it.sock", "--state-dir=/nowhere")]
)
def test_a_command_whose_extra_is_not_installed_names_it(bare: dict[str, str], words: tuple[str, ...]) -> None:
    ended = run(bare, *words)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.endswith(
        "Error: the module grpc is not installed; it comes with csi-bridge's extra `demo`: pip install '.[demo]'\n"
    )
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("command", ["hub", "edge", "demo"])
def test_the_help_of_the_bridge_s_own_commands_needs_no_extra(bare: dict[str, str], command: str) -> None:
    ended = run(bare, "csi-bridge", command, "--help")
    assert (ended.returncode, ended.stderr) == (0, "")
