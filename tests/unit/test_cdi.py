"""CDI files: what an engine reads, and what is left of it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from edge.disk.cdi import CdiFiles
from edge.disk.found_volumes import Published
from edge.disk.layout import Layout
from edge.volume_errors import Uncertain
from edge.volumes import ContainerUse, Deferral, Pod, PodVolume, Volume
from tests.kit.cdi_rules import devices_in

UID = "1202b4c1-e87f-4f0d-8624-52500f3ab94b"
ROOT = Path("/var/lib/kubelet")
DEVICE = f"{ROOT}/plugins/kubernetes.io/csi/volumeDevices/pv-1/dev/{UID}"
RAW = PodVolume(
    pod=Pod(uid=UID, namespace="ns", name="web"),
    volume=Volume(driver="d.csi", handle="h", name="pv-1", block=True),
    volume_name="data",
    uses=(ContainerUse("app", "/dev/data"),),
)
DEFERRED = replace(RAW, deferral=Deferral(runtime="kata, rs", flavour="rs", fs_type="ext4"))


def published(name: str = "pv-1", uid: str = UID) -> Published:
    return Published(driver="d.csi", handle="h", name=name, pod_uid=uid, block=True)


@pytest.fixture
def files(tmp_path: Path) -> CdiFiles:
    return CdiFiles(tmp_path / "cdi", Layout(ROOT))


def only_file(tmp_path: Path) -> Path:
    [path] = (tmp_path / "cdi").iterdir()
    return path


async def test_the_go_runtime_gets_a_bind_because_it_knows_no_other_type(files: CdiFiles, tmp_path: Path) -> None:
    await files.add(replace(DEFERRED, deferral=Deferral(runtime="kata, go", flavour="go", fs_type="ext4")))
    raw = only_file(tmp_path).read_bytes()
    assert json.loads(raw)["cdiVersion"] == "0.4.0"
    [edits] = devices_in(raw).values()
    assert edits["mounts"][0]["type"] == "bind"


@pytest.mark.parametrize(("read_only", "permissions"), [(False, "rw"), (True, "r")])
async def test_a_raw_block_volume_is_a_device_node(
    files: CdiFiles, tmp_path: Path, read_only: bool, permissions: str
) -> None:
    await files.add(replace(RAW, read_only=read_only))
    raw = only_file(tmp_path).read_bytes()
    assert json.loads(raw)["cdiVersion"] == "0.5.0"
    [device] = files.devices(RAW)
    node = {"path": "/dev/data", "hostPath": DEVICE, "permissions": permissions}
    assert devices_in(raw) == {device.name: {"deviceNodes": [node]}}


async def test_names_are_the_same_after_a_restart_and_other_for_another_pod(files: CdiFiles, tmp_path: Path) -> None:
    other = replace(RAW, pod=replace(RAW.pod, uid="other"))
    assert CdiFiles(tmp_path, Layout(ROOT)).devices(RAW) == files.devices(RAW)
    assert files.devices(other) != files.devices(RAW)


async def test_no_name_begins_with_a_digit_because_version_0_4_forbids_it(files: CdiFiles, tmp_path: Path) -> None:
    await files.add(replace(DEFERRED, uses=tuple(ContainerUse("app", f"/{number}") for number in range(100))))
    assert len(devices_in(only_file(tmp_path).read_bytes())) == 100


async def test_everybody_may_read_a_file(files: CdiFiles, tmp_path: Path) -> None:
    await files.add(RAW)
    assert only_file(tmp_path).stat().st_mode & 0o7777 == 0o644


async def test_a_volume_that_the_driver_mounts_or_whose_place_is_unknown_has_no_file(
    files: CdiFiles, tmp_path: Path
) -> None:
    await files.add(replace(RAW, uses=()))
    assert not (tmp_path / "cdi").exists()
    assert files.has(replace(published(), block=False))


async def test_a_removed_volume_leaves_the_files_of_others(files: CdiFiles, tmp_path: Path) -> None:
    await files.add(RAW)
    await files.add(replace(RAW, volume=replace(RAW.volume, name="pv-2")))
    for _ in range(2):
        await files.remove(published("pv-1"))
    assert not files.has(published("pv-1"))
    assert files.has(published("pv-2"))
    only_file(tmp_path)


async def test_the_sweep_keeps_what_is_wanted_and_what_is_not_ours(files: CdiFiles, tmp_path: Path) -> None:
    await files.add(RAW)
    await files.add(replace(RAW, pod=replace(RAW.pod, uid="gone")))
    strange = tmp_path / "cdi" / "vendor.com-gpu.json"
    half = tmp_path / "cdi" / "csi-bridge.io-volume_x-y.json.new"
    for path in (strange, half):
        path.touch()
    await files.sweep([published()])
    assert files.has(published())
    assert not files.has(published(uid="gone"))
    assert strange.exists()
    assert not half.exists()


async def test_a_sweep_without_a_directory_makes_none(files: CdiFiles, tmp_path: Path) -> None:
    await files.sweep([])
    assert not (tmp_path / "cdi").exists()


async def test_a_directory_that_cannot_be_made_is_told(files: CdiFiles, tmp_path: Path) -> None:
    (tmp_path / "cdi").touch()
    with pytest.raises(Uncertain, match=r"cannot write .*/cdi/csi-bridge\.io-volume_"):
        await files.add(RAW)


async def test_without_the_flag_nothing_is_written_or_missed() -> None:
    files = CdiFiles(None, Layout(ROOT))
    await files.add(RAW)
    await files.remove(published())
    await files.sweep([])
    assert files.devices(RAW) == []
    assert files.has(published())
