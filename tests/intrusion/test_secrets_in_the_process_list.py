"""Attack 12: another user of the machine reads an operator's secrets from the command line of `csi-bridge call`."""

import subprocess
import sys
from pathlib import Path

import pytest

_PROGRAM = Path(sys.executable).with_name("csi-bridge")
_REQUEST = '{"name": "pvc-1", "secrets": {"password": "hunter2"}}'


def call(directory: Path, request: str, stdin: str = "") -> str:
    """Call CreateVolume at a hub that is not there, and return what the operator reads."""
    command = [_PROGRAM, "call", "CreateVolume", "--driver=d", f"--hub=unix://{directory}/none.sock", request]
    done = subprocess.run(command, capture_output=True, text=True, input=stdin, check=False)
    assert done.returncode == 1
    return done.stdout + done.stderr


def test_secrets_on_a_command_line_are_warned_of(short_dir: Path) -> None:
    said = call(short_dir, _REQUEST)
    assert "other users see the secrets of this request in the process list" in said
    assert "hunter2" not in said


@pytest.mark.parametrize("how", ["@", "-"])
def test_a_file_and_standard_input_keep_secrets_from_the_process_list(short_dir: Path, how: str) -> None:
    file = short_dir / "request.json"
    file.write_text(_REQUEST)
    said = call(short_dir, f"@{file}" if how == "@" else "-", stdin=_REQUEST)
    assert "process list" not in said
