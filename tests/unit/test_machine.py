"""A machine: what a kubelet would tell of it, as far as it can be read."""

import os
from pathlib import Path

from common.objects.quantity import parse_bytes
from edge.reports.machine import read_machine


def write(directory: Path, **files: str) -> Path:
    for name, text in files.items():
        path = directory / name.replace("__", "/").replace("_", "-")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return directory


def test_what_the_machine_has_is_read_from_its_files(tmp_path: Path) -> None:
    files = write(
        tmp_path,
        etc__os_release='NAME="Debian"\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n# a comment\n',
        etc__machine_id="3d1219c7\n",
        proc__meminfo="MemTotal:       16393272 kB\nMemFree:  1 kB\n",
        sys__class__dmi__id__other="",
    )
    machine = read_machine(tmp_path, files=files)
    assert machine.capacity["memory"] == "16393272Ki"
    assert machine.capacity["cpu"] == str(os.cpu_count())
    assert machine.capacity["pods"] == "110"
    assert parse_bytes(machine.capacity["ephemeral-storage"]) > 0
    assert machine.info["osImage"] == "Debian GNU/Linux 12 (bookworm)"
    assert machine.info["machineID"] == machine.info["systemUUID"] == "3d1219c7"
    assert machine.info["operatingSystem"] == "linux"
    assert machine.info["kernelVersion"] == os.uname().release


def test_what_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, proc__meminfo="MemTotal: much\n")
    machine = read_machine(tmp_path / "none", files=tmp_path)
    assert sorted(machine.capacity) == ["cpu", "pods"]
    assert machine.info["osImage"] == machine.info["bootID"] == ""


def test_the_architecture_is_called_as_go_calls_it(tmp_path: Path) -> None:
    known = {"x86_64": "amd64", "aarch64": "arm64"}
    machine = read_machine(tmp_path, files=tmp_path)
    assert machine.info["architecture"] == known.get(os.uname().machine, os.uname().machine)
