"""File systems on devices, here plain files: how they are recognised, made, finished and grown, and when they stay."""

import fcntl
import os
import struct
import subprocess
import uuid
from pathlib import Path

import pytest

from edge.direct import file_systems
from edge.direct.file_systems import Content, finish, grow, is_sound, look, make, size_bytes
from tests.kit import needs

pytestmark = needs.skip_without(needs.program("mkfs.ext4"))

MIB = 1 << 20
SMALL = {"ext4": 16 * MIB, "xfs": 320 * MIB}
UUID = "11111111-2222-4333-8444-555555555555"

each_type = pytest.mark.parametrize(
    "fs_type",
    ["ext4", pytest.param("xfs", marks=needs.skip_without(needs.program("mkfs.xfs")))],
)


def device(directory: Path, *, size: int = SMALL["ext4"]) -> Path:
    path = directory / "device"
    with path.open("ab") as file:
        file.truncate(size)
    return path


def head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MIB)


def put(path: Path, at: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(content)


@each_type
def test_a_blank_device_gets_a_file_system_with_the_given_uuid_which_is_not_made_again(
    tmp_path: Path, fs_type: str
) -> None:
    path = device(tmp_path, size=SMALL[fs_type])
    assert look(path).is_blank
    make(path, fs_type, UUID)
    assert look(path) == Content(f"the file system {fs_type} {UUID}", fs_type, UUID)
    assert is_sound(path, fs_type)
    before = head(path)
    with pytest.raises(OSError, match="holds the file system"):
        make(path, fs_type, str(uuid.uuid4()))
    assert head(path) == before


def test_a_partition_table_and_unknown_data_are_no_blank_device(tmp_path: Path) -> None:
    path = device(tmp_path)
    put(path, 0, b"somebody's database")
    assert look(path).what == "data that is no known file system"
    put(path, 446, bytes((0, 0, 2, 0, 0x83, 0, 9, 0)) + struct.pack("<II", 1, 8192))
    put(path, 510, b"\x55\xaa")
    assert look(path).what == "a partition table (dos)"
    with pytest.raises(OSError, match="holds a partition table"):
        make(path, "ext4", UUID)
    with pytest.raises(OSError, match="holds a partition table"):
        finish(path, "ext4", UUID)


@each_type
def test_a_mkfs_that_was_killed_is_finished_and_one_that_had_ended_does_no_harm(tmp_path: Path, fs_type: str) -> None:
    path = device(tmp_path, size=SMALL[fs_type])
    make(path, fs_type, UUID)
    put(path, 64 * 1024, bytes(4 * MIB))  # tables that were not written yet
    if fs_type == "xfs":
        put(path, 126, b"\x01")  # sb_inprogress
    assert not is_sound(path, fs_type)
    finish(path, fs_type, UUID)
    assert is_sound(path, fs_type)
    assert look(path).uuid == UUID
    finish(path, fs_type, UUID)
    assert is_sound(path, fs_type)


def test_a_file_system_that_was_mounted_since_is_kept(tmp_path: Path) -> None:
    path = device(tmp_path)
    make(path, "ext4", UUID)
    put(path, 1024 + 0x34, struct.pack("<H", 1))  # s_mnt_count
    before = head(path)
    finish(path, "ext4", UUID)
    assert head(path) == before


def test_a_file_system_of_somebody_else_is_never_finished(tmp_path: Path) -> None:
    path = device(tmp_path)
    make(path, "ext4", str(uuid.uuid4()))
    before = head(path)
    with pytest.raises(OSError, match="the agent was making ext4"):
        finish(path, "ext4", UUID)
    assert head(path) == before


def test_a_file_system_grows_with_its_device_and_only_then(tmp_path: Path) -> None:
    path = device(tmp_path)
    make(path, "ext4", UUID)
    before = head(path)
    assert grow(path, "ext4")
    assert head(path) == before
    device(tmp_path, size=64 * MIB)
    assert grow(path, "ext4")
    told = subprocess.run(["dumpe2fs", "-h", path], check=True, capture_output=True, text=True).stdout
    values = dict(line.split(":", 1) for line in told.splitlines() if ":" in line)
    assert int(values["Block count"]) * int(values["Block size"]) == size_bytes(path) == 64 * MIB
    assert is_sound(path, "ext4")


def test_a_file_system_with_marked_errors_is_checked_first(tmp_path: Path) -> None:
    path = device(tmp_path)
    make(path, "ext4", UUID)
    subprocess.run(["debugfs", "-w", "-R", "set_super_value state 2", path], check=True, capture_output=True)
    assert grow(path, "ext4")
    told = subprocess.run(["dumpe2fs", "-h", path], check=True, capture_output=True, text=True).stdout
    assert "Filesystem state:         clean" in told


def test_xfs_waits_for_a_guest_that_grows_it(tmp_path: Path) -> None:
    if missing := needs.program("mkfs.xfs"):
        pytest.skip(missing)
    path = device(tmp_path, size=SMALL["xfs"])
    make(path, "xfs", UUID)
    assert grow(path, "xfs")
    device(tmp_path, size=SMALL["xfs"] + 64 * MIB)
    assert not grow(path, "xfs")


def test_a_locked_device_is_neither_read_nor_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_systems, "_LOCK_WAIT_S", 0.1)
    path = device(tmp_path)
    holder = os.open(path, os.O_RDWR)
    fcntl.flock(holder, fcntl.LOCK_EX)
    for work in (lambda: look(path), lambda: make(path, "ext4", UUID), lambda: grow(path, "ext4")):
        with pytest.raises(OSError, match="another program has"):
            work()
    os.close(holder)
    assert look(path).is_blank


def test_a_device_without_a_size_and_one_that_blkid_cannot_read_are_not_blank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    with pytest.raises(OSError, match="has no size: it is not connected"):
        look(empty)
    replace_blkid(tmp_path, monkeypatch, "echo blkid: error: read failed >&2; exit 2")
    with pytest.raises(OSError, match="blkid: error: read failed"):
        look(device(tmp_path))


def replace_blkid(directory: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    (directory / "blkid").write_text(f"#!/bin/sh\n{script}\n")
    (directory / "blkid").chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")


@pytest.mark.parametrize("code", [0, 8])
def test_a_device_of_which_blkid_tells_nothing_certain_is_not_blank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    replace_blkid(tmp_path, monkeypatch, f"exit {code}")
    assert not look(device(tmp_path)).is_blank


def test_an_interrupted_mkfs_is_not_finished_over_data_that_it_has_not_written(tmp_path: Path) -> None:
    image = tmp_path / "image"
    image.write_bytes(b"another volume's rows" + bytes(32 << 20))
    with pytest.raises(FileExistsError, match="data that is no known file system"):
        finish(image, "ext4", UUID)
    assert image.read_bytes().startswith(b"another volume's rows")


def test_a_missing_tool_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(OSError, match="blkid is not installed on this node"):
        look(device(tmp_path))
