"""Sparse files on loop devices: filesystems and raw block volumes."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from common.csi import csi_pb2 as pb
from tests.integration.testdriver.support import (
    MIB,
    Mode,
    Running,
    block,
    cannot_grow_ext4,
    grows_ext4,
    mount,
    needs_loops,
    needs_xfs,
    refused,
    size,
    write,
)
from tests.kit.leftovers import loops_below, mounts_below

pytestmark = needs_loops

START = 320 * MIB  # xfs cannot be smaller than 300 MiB
GROWN = 512 * MIB


@pytest.fixture
def images(start: Callable[..., Running]) -> Running:
    """A driver whose filesystem volumes are images."""
    return start("--fs=image")


def in_use(driver: Running, pod: Path, capability: pb.VolumeCapability, **fields: object) -> pb.Volume:
    """A volume that is published at `pod/target`."""
    volume = driver.attached("a", capability, **{"capacity_range": size(START)} | fields)
    driver.stage(volume, pod / "staging", capability)
    driver.publish(volume, pod / "staging", pod / "target", capability)
    return volume


def take_down(driver: Running, pod: Path, volume: pb.Volume) -> None:
    driver.unpublish(volume, pod / "target")
    driver.unstage(volume, pod / "staging")


def expand(driver: Running, pod: Path, volume: pb.Volume) -> None:
    driver.call("ControllerExpandVolume", volume_id=volume.volume_id, capacity_range=size(GROWN))
    driver.call(
        "NodeExpandVolume",
        volume_id=volume.volume_id,
        volume_path=str(pod / "target"),
        capacity_range=size(GROWN),
    )


def filesystem_of(path: Path) -> str:
    return subprocess.run(
        ["findmnt", "--noheadings", "--output", "FSTYPE", path], check=True, capture_output=True, text=True
    ).stdout.strip()


def total_bytes(path: Path) -> int:
    whole = os.statvfs(path)
    return whole.f_blocks * whole.f_frsize


@pytest.mark.parametrize("fs_type", ["ext4", pytest.param("xfs", marks=needs_xfs)])
def test_a_filesystem_volume_holds_the_filesystem_that_was_asked_for(images: Running, pod: Path, fs_type: str) -> None:
    volume = in_use(images, pod, mount(fs_type=fs_type))
    write(pod / "target" / "file", "hello")

    assert filesystem_of(pod / "target") == fs_type
    assert 0.7 * START < total_bytes(pod / "target") <= START
    assert [
        usage.unit
        for usage in images.call(
            "NodeGetVolumeStats", volume_id=volume.volume_id, volume_path=str(pod / "target")
        ).usage
    ] == [pb.VolumeUsage.BYTES, pb.VolumeUsage.INODES]
    take_down(images, pod, volume)
    assert (mounts_below(images.root), loops_below(images.root)) == ([], [])

    images.stage(volume, pod / "staging", mount(fs_type=fs_type))
    assert (pod / "staging" / "file").read_text() == "hello"


def test_mount_flags_reach_the_filesystem(images: Running, pod: Path) -> None:
    in_use(images, pod, mount(flags=("nodiscard", "noatime")))

    assert os.statvfs(pod / "staging").f_flag & os.ST_NOATIME


def test_mount_flags_that_the_filesystem_refuses_are_not_told(images: Running, pod: Path) -> None:
    capability = mount(flags=("password=s3cret",))
    volume = images.attached("a", capability)

    with refused("INTERNAL", "mount failed with exit code 32: see the kernel log"):
        images.stage(volume, pod / "staging", capability)

    assert loops_below(images.root) == []
    assert "s3cret" not in images.log
    images.discard(volume)


@needs_xfs
def test_xfs_grows_while_it_is_in_use(images: Running, pod: Path) -> None:
    volume = in_use(images, pod, mount(fs_type="xfs"))
    with (pod / "target" / "file").open("w") as file:
        file.write("begun")
        expand(images, pod, volume)
        file.write(" and ended")

    assert total_bytes(pod / "target") > START
    assert (pod / "target" / "file").read_text() == "begun and ended"


@grows_ext4
def test_ext4_grows_while_it_is_in_use(images: Running, pod: Path) -> None:
    volume = in_use(images, pod, mount(fs_type="ext4"))

    expand(images, pod, volume)

    assert total_bytes(pod / "target") > START


@cannot_grow_ext4
def test_without_the_right_to_grow_a_mounted_ext4_the_reason_is_told(images: Running, pod: Path) -> None:
    volume = in_use(images, pod, mount(fs_type="ext4"))

    with refused("FAILED_PRECONDITION", "CAP_SYS_RESOURCE"):
        expand(images, pod, volume)


def test_ext4_that_was_expanded_while_nobody_used_it_is_grown_by_staging(images: Running, pod: Path) -> None:
    volume = in_use(images, pod, mount(fs_type="ext4"))
    write(pod / "target" / "file", "hello")
    take_down(images, pod, volume)
    images.call("ControllerExpandVolume", volume_id=volume.volume_id, capacity_range=size(GROWN))

    images.stage(volume, pod / "staging", mount(fs_type="ext4"))

    assert total_bytes(pod / "staging") > START
    assert (pod / "staging" / "file").read_text() == "hello"


@pytest.mark.parametrize("fs_type", ["ext4", pytest.param("xfs", marks=needs_xfs)])
def test_a_larger_clone_is_mounted_beside_its_source_and_uses_its_size(
    images: Running, pod: Path, fs_type: str
) -> None:
    volume = in_use(images, pod, mount(fs_type=fs_type))
    write(pod / "target" / "file", "hello")
    source = pb.VolumeContentSource(volume=pb.VolumeContentSource.VolumeSource(volume_id=volume.volume_id))

    clone = images.attached("clone", mount(fs_type=fs_type), capacity_range=size(GROWN), volume_content_source=source)
    images.stage(clone, pod / "clone", mount(fs_type=fs_type))

    assert (pod / "clone" / "file").read_text() == "hello"
    assert total_bytes(pod / "clone") > START


def test_an_image_cannot_be_on_several_nodes(images: Running) -> None:
    with refused("INVALID_ARGUMENT", "cannot keep access mode MULTI_NODE_MULTI_WRITER"):
        images.create("a", mount(Mode.MULTI_NODE_MULTI_WRITER))


def test_what_is_written_to_a_block_device_is_in_the_image(driver: Running, pod: Path) -> None:
    volume = in_use(driver, pod, block())
    assert (pod / "target").is_block_device()

    with (pod / "target").open("r+b") as device:
        device.seek(MIB)
        device.write(b"hello")
        device.flush()
        os.fsync(device.fileno())

    image = driver.state / "volumes" / volume.volume_id / "image"
    assert image.read_bytes()[MIB : MIB + 5] == b"hello"
    take_down(driver, pod, volume)
    assert not (pod / "target").exists()
    assert loops_below(driver.root) == []


def test_a_block_device_grows_while_it_is_in_use(driver: Running, pod: Path) -> None:
    volume = in_use(driver, pod, block())
    with (pod / "target").open("rb") as device:
        expand(driver, pod, volume)

        assert device.seek(0, os.SEEK_END) == GROWN


def test_a_read_only_block_publication_has_a_device_of_its_own_that_refuses_writes(driver: Running, pod: Path) -> None:
    capability = block(Mode.SINGLE_NODE_MULTI_WRITER)
    volume = in_use(driver, pod, capability)
    driver.publish(volume, pod / "staging", pod / "ro", capability, readonly=True)

    with pytest.raises(PermissionError), (pod / "ro").open("r+b", buffering=0) as device:
        device.write(b"no")
    assert len(loops_below(driver.root)) == 2
    driver.unpublish(volume, pod / "ro")
    assert len(loops_below(driver.root)) == 1
