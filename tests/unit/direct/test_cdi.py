"""CDI files: what an engine reads, and what is left of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from edge.direct.cdi import GENERATED, CdiFiles, DeviceNode, TypedMount
from edge.direct.errors import StoreFailed
from tests.support.cdi_rules import devices_in

if TYPE_CHECKING:
    from pathlib import Path

POD = "1202b4c1-e87f-4f0d-8624-52500f3ab94b"
MOUNT = TypedMount(container="app", host_path="/var/lib/kubelet/pods/u/mount", container_path="/data")
NODE = DeviceNode(container="app", host_path="/dev/sdf", container_path="/dev/data")


@pytest.fixture
def files(tmp_path: Path) -> CdiFiles:
    return CdiFiles(tmp_path / "cdi")


def only_file(files: CdiFiles) -> Path:
    [path] = files.root.iterdir()
    return path


def test_the_files_lie_where_engines_look_for_generated_ones() -> None:
    assert CdiFiles().root == GENERATED
    assert str(GENERATED) == "/var/run/cdi"


def test_a_typed_mount_is_a_valid_file_of_version_0_4(files: CdiFiles) -> None:
    [name] = files.add(POD, "data", [MOUNT])
    path = only_file(files)
    assert path.name == f"csi-bridge.io-direct_{POD}-3a6eb0790f39ac87c94f3856b2dd2c5d.json"
    assert json.loads(path.read_bytes())["cdiVersion"] == "0.4.0"
    assert devices_in(path.read_bytes()) == {
        name: {
            "mounts": [
                {
                    "hostPath": "/var/lib/kubelet/pods/u/mount",
                    "containerPath": "/data",
                    "type": "directvol",
                    "options": ["rw"],
                }
            ]
        }
    }


def test_a_device_with_another_path_on_the_host_needs_version_0_5(files: CdiFiles) -> None:
    [name] = files.add(POD, "data", [NODE])
    raw = only_file(files).read_bytes()
    assert json.loads(raw)["cdiVersion"] == "0.5.0"
    assert devices_in(raw) == {
        name: {"deviceNodes": [{"path": "/dev/data", "hostPath": "/dev/sdf", "permissions": "rw"}]}
    }


def test_a_device_with_the_same_path_fits_version_0_3(files: CdiFiles) -> None:
    [name] = files.add(
        POD, "data", [DeviceNode(container="app", host_path="/dev/sdf", container_path="/dev/sdf", read_only=True)]
    )
    raw = only_file(files).read_bytes()
    assert json.loads(raw)["cdiVersion"] == "0.3.0"
    assert devices_in(raw) == {name: {"deviceNodes": [{"path": "/dev/sdf", "permissions": "r"}]}}


def test_each_container_has_a_device_of_its_own(files: CdiFiles) -> None:
    others = TypedMount(container="side", host_path=MOUNT.host_path, container_path="/data", read_only=True)
    names = files.add(POD, "data", [MOUNT, others])
    found = devices_in(only_file(files).read_bytes())
    assert list(found) == list(names)
    assert [edits["mounts"][0]["options"] for edits in found.values()] == [["rw"], ["ro"]]


def test_names_are_the_same_after_a_restart_and_other_for_another_pod(files: CdiFiles) -> None:
    names = files.add(POD, "data", [MOUNT])
    assert files.add(POD, "data", [MOUNT]) == names
    assert files.add("other", "data", [MOUNT]) != names


def test_no_name_begins_with_a_digit_because_version_0_4_forbids_it(files: CdiFiles) -> None:
    for number in range(100):
        files.add(POD, f"v{number}", [TypedMount(container="c", host_path="/h", container_path=f"/{number}")])
    for path in files.root.iterdir():
        devices_in(path.read_bytes())


def test_everybody_may_read_a_file(files: CdiFiles) -> None:
    files.add(POD, "data", [MOUNT])
    assert only_file(files).stat().st_mode & 0o7777 == 0o644


def test_a_removed_volume_leaves_the_files_of_others(files: CdiFiles) -> None:
    files.add(POD, "data", [MOUNT])
    files.add(POD, "logs", [NODE])
    files.remove(POD, "data")
    files.remove(POD, "data")
    assert [*devices_in(only_file(files).read_bytes()).values()] == [NODE.edits()]


def test_the_sweep_keeps_what_is_wanted_and_what_is_not_ours(files: CdiFiles) -> None:
    files.add(POD, "data", [MOUNT])
    kept = only_file(files)
    files.add(POD, "logs", [NODE])
    foreign = files.root / "vendor.com-gpu.json"
    foreign.touch()
    (files.root / "csi-bridge.io-direct_x.json.new").touch()
    files.sweep([(POD, "data")])
    assert set(files.root.iterdir()) == {kept, foreign}


def test_a_sweep_without_a_directory_makes_none(files: CdiFiles) -> None:
    files.sweep([])
    files.remove(POD, "data")
    assert not files.root.exists()


def test_a_directory_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "cdi").touch()
    with pytest.raises(StoreFailed, match=r"cannot write .*/cdi/csi-bridge\.io-direct_"):
        CdiFiles(tmp_path / "cdi").add(POD, "data", [MOUNT])
