"""The doctor's checks of direct volumes: the runtime, Kata's directory, the sandboxes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cli.doctor.direct import check_runtime, check_sandboxes, check_store, check_tools
from cli.doctor.finding import Level
from edge.direct.mount_info import MountInfo
from edge.direct.shim_client import ShimClient
from edge.direct.store import DirectVolumeStore, key_of
from edge.runtimes import direct_runtime

if TYPE_CHECKING:
    from pathlib import Path

GO, RUST = direct_runtime("kata=go:4.1"), direct_runtime("rust=rs:4.1")
PATH = "/var/lib/kubelet/pods/u/mount"


@pytest.fixture
def store(tmp_path: Path) -> DirectVolumeStore:
    return DirectVolumeStore.below(tmp_path)


@pytest.fixture
def filled(store: DirectVolumeStore) -> DirectVolumeStore:
    store.add(PATH, MountInfo(device="/dev/sdf", fs_type="ext4"), is_live=lambda _: False)
    return store


def program(folder: Path, answer: str) -> Path:
    folder.mkdir()
    path = folder / "containerd-shim-kata-v2"
    path.write_text(f"#!/bin/sh\n[ $1 = --version ] && echo '{answer}'\n")
    path.chmod(0o755)
    return path


async def test_the_runtimes_that_are_installed_are_told_with_kind_and_version(tmp_path: Path) -> None:
    kata = "Kata Containers containerd shim"
    go = program(tmp_path / "go", f'{kata} (Golang): id: "io.containerd.kata.v2", version: 4.1.0, commit: x')
    rust = program(tmp_path / "rs", f"{kata} (Rust): id: io.containerd.kata.v2, version: 3.2.0, commit: x")
    other = program(tmp_path / "other", "hello")
    found = await check_runtime([RUST], [tmp_path / name for name in ("none", "go", "rs", "other")])
    assert found.level is Level.OK
    assert found.what == (
        f"Kata's Go runtime 4.1.0 is at {go}, runtime-rs 3.2.0 is at {rust}, "
        f"a containerd-shim-kata-v2 of unknown version is at {other}"
    )


async def test_a_flag_that_names_another_runtime_than_the_installed_one_is_told(tmp_path: Path) -> None:
    path = program(tmp_path / "go", "Kata Containers containerd shim (Golang): id: x, version: 4.1.0, commit: x")
    assert (await check_runtime([GO], [tmp_path / "go"])).level is Level.OK
    found = await check_runtime([GO, RUST], [tmp_path / "go"])
    assert found.level is Level.WARNING
    assert found.what == (
        "no runtime-rs is installed, and --direct-runtime=rust=rs:4.1:ext4+xfs names one: "
        f"Kata's Go runtime 4.1.0 is at {path}"
    )


def test_a_missing_tool_is_named_for_the_file_systems_that_need_it() -> None:
    found = check_tools(["ext4", "xfs"], lambda tool: tool != "mkfs.xfs")
    assert (found.level, found.what) == (Level.WRONG, "these programs are missing: mkfs.xfs")
    found = check_tools(["ext4"], lambda tool: tool != "mkfs.xfs")
    assert (found.level, found.what) == (Level.OK, "blkid, e2fsck, mkfs.ext4, resize2fs are installed")


async def test_a_host_without_kata_is_told_what_to_install(tmp_path: Path) -> None:
    found = await check_runtime([GO], [tmp_path])
    assert found.level is Level.WARNING
    assert found.what == f"no containerd-shim-kata-v2 is in {tmp_path}"
    assert found.do.startswith("install Kata Containers; do nothing if")


def test_a_directory_that_does_not_exist_yet_is_no_fault(store: DirectVolumeStore) -> None:
    assert check_store(store).level is Level.OK
    assert check_sandboxes(store, ShimClient()).level is Level.OK


def test_volumes_that_the_runtimes_can_read_are_counted(filled: DirectVolumeStore) -> None:
    found = check_store(filled)
    assert (found.level, found.what) == (Level.OK, f"{filled.root} has 1 direct volumes")


@pytest.mark.parametrize("content", ["{", None])
def test_a_volume_that_no_runtime_can_read_is_named(filled: DirectVolumeStore, content: str | None) -> None:
    file = filled.root / key_of(PATH) / "mountInfo.json"
    file.unlink() if content is None else file.write_text(content)
    found = check_store(filled)
    assert found.level is Level.WRONG
    assert found.what.endswith(f"their mountInfo.json is broken: {PATH}")


def test_a_directory_that_others_may_write_is_a_fault(filled: DirectVolumeStore) -> None:
    filled.root.chmod(0o777)
    found = check_store(filled)
    assert (found.level, found.do) == (Level.WRONG, f"chmod 0700 {filled.root}")


def test_a_store_that_is_no_directory_is_a_fault(store: DirectVolumeStore) -> None:
    store.root.parent.mkdir(parents=True)
    store.root.touch()
    assert check_store(store).level is Level.WRONG
    assert check_sandboxes(store, ShimClient()).level is Level.WRONG


def test_a_volume_whose_sandbox_is_gone_is_named(filled: DirectVolumeStore, tmp_path: Path) -> None:
    (filled.root / key_of(PATH) / "sandbox-1").touch()
    found = check_sandboxes(filled, ShimClient.below(tmp_path))
    assert found.level is Level.WARNING
    assert found.what == f"nobody answers for the sandboxes of these direct volumes: {PATH}"
    assert found.do == "see whether their pods run (crictl pods)"
