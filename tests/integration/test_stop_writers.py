"""Stopping writers on a real file system: those that no path leads to any more are found, or the machine is reset."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from edge.disk.layout import Layout
from edge.disk.mounts import read_table
from edge.fencing.disks import block_of, is_in_use
from edge.fencing.holders import holders, parts_of
from edge.fencing.plan import Held
from edge.fencing.stop import Stopped, mounts_of, stop_writers
from tests.kit.needs import needs_loops

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = needs_loops

STOP_S = 2.0

WRITER = """
import os, sys, time
file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
print("open", flush=True)
while True:
    os.pwrite(file, b"x", 0)
    time.sleep(0.01)
"""

INSIDE = ["unshare", "--mount", "--propagation", "private", "sh", "-c", 'eval "$0" && exec "$@"']
"""Runs a command in a mount namespace of its own, after a line of shell."""


@dataclass
class Volume:
    """A file system on a loop device, published to a pod.

    Attributes:
        root: the node's root directory.
        device: the loop device.
        target: where it is published.
        held: what the agent knows of it.
    """

    root: Path
    device: str
    target: Path
    held: Held

    def stop(self, held: Held | None = None) -> Stopped:
        return stop_writers([held or self.held], self.root, stop_s=STOP_S, reset=self.root / "reset")

    def is_reset(self) -> bool:
        return (self.root / "reset").exists()

    def is_free(self) -> bool:
        """Whether another node could have it without a second writer: nobody here has it mounted."""
        return subprocess.run(["fsck.ext4", "-n", self.device], check=False, capture_output=True).returncode == 0


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Volume]:
    image = tmp_path / "image"
    image.write_bytes(b"")
    subprocess.run(["truncate", "--size=8M", image], check=True)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    device = subprocess.run(["losetup", "--find", "--show", image], check=True, capture_output=True, text=True)
    name = device.stdout.strip()
    target = Layout(tmp_path).target("uid-1", "pv-1")
    target.mkdir(parents=True)
    try:
        subprocess.run(["mount", name, target], check=True)
        held = Held("d.csi", "h-1", ("pv-1",))
        parts = tuple(parts_of(mounts_of(held, read_table(tmp_path), tmp_path)))
        assert parts
        yield Volume(tmp_path, name, target, Held("d.csi", "h-1", ("pv-1",), parts=parts))
    finally:
        subprocess.run(["umount", "--lazy", target], check=False, capture_output=True)
        subprocess.run(["losetup", "--detach", name], check=True)


@contextlib.contextmanager
def writer(path: Path | str, *words: str | Path) -> Iterator[subprocess.Popen[str]]:
    command = [*words, sys.executable, "-c", WRITER, path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "open\n"
            yield process
        finally:
            process.kill()


def test_a_writer_with_an_open_file_is_killed_and_the_volume_unmounted(volume: Volume) -> None:
    with writer(volume.target / "file") as process:
        done = volume.stop()
        assert process.wait(timeout=STOP_S) == -9
    assert (done.unmounted, volume.is_reset(), volume.is_free()) == ([str(volume.target)], False, True)


def test_a_writer_in_a_mount_that_somebody_unmounted_lazily_ends_in_a_reset(volume: Volume) -> None:
    """No path of /proc leads to the volume any more. But its device is in use."""
    with writer(volume.target / "file") as process:
        subprocess.run(["umount", "--lazy", volume.target], check=True)
        assert volume.stop().is_reset
        assert process.poll() is None
    assert not volume.stop().is_reset


def test_a_loop_device_on_a_file_of_the_volume_ends_in_a_reset(volume: Volume) -> None:
    """The kernel holds the file: there is no process to kill."""
    inner = volume.target / "inner"
    subprocess.run(["truncate", "--size=1M", inner], check=True)
    found = subprocess.run(["losetup", "--find", "--show", inner], check=True, capture_output=True, text=True)
    try:
        assert volume.stop().is_reset
    finally:
        subprocess.run(["losetup", "--detach", found.stdout.strip()], check=True)


def test_a_mount_of_another_volume_of_the_same_file_system_stays_and_so_does_who_sees_it(volume: Volume) -> None:
    other = Layout(volume.root).target("uid-1", "pv-2")
    other.mkdir(parents=True)
    subprocess.run(["mount", "--bind", volume.target, other], check=True)
    try:
        with writer(volume.root / "elsewhere", *INSIDE, f"umount {volume.target}") as process:
            assert (volume.stop().unmounted, other.is_mount()) == ([str(volume.target)], True)
            assert process.poll() is None
    finally:
        subprocess.run(["umount", other], check=True)


def test_a_file_system_with_a_number_of_its_own_is_found_in_use_by_its_source(volume: Volume) -> None:
    """As btrfs has one: its device in the mount table is no block device."""
    assert is_in_use(block_of("0:45", volume.device))
    subprocess.run(["umount", volume.target], check=True)
    assert not is_in_use(block_of("0:45", volume.device))


def test_a_container_that_sees_the_nodes_mounts_is_left_alone_until_the_node_has_none(volume: Volume) -> None:
    """A copy that goes with the node's mount is no reason to kill all processes of a container. One that stays is."""
    further = volume.root / "further"
    further.mkdir()
    subprocess.run(["mount", "--bind", volume.target, further], check=True)
    mounts = [mount for mount in read_table(volume.root).mounts if mount.path in {str(further), str(volume.target)}]
    with writer(volume.root / "elsewhere", *INSIDE, "true") as process:
        found = holders(volume.held.parts, [mount.path for mount in mounts], spared=())
        assert process.pid not in dict(found)
        assert process.pid in dict(holders(volume.held.parts, (), spared=()))
    subprocess.run(["umount", further], check=True)


def test_a_copy_of_the_mount_in_another_namespace_is_found_after_a_restart(volume: Volume) -> None:
    """The agent's own mount is gone, and with it whatever could be learned of the volume anew."""
    copy = volume.root / "copy"
    copy.mkdir()
    with writer(copy / "file", *INSIDE, f"mount --bind {volume.target} {copy}") as process:
        subprocess.run(["umount", volume.target], check=True)
        assert not volume.stop().is_reset
        assert process.wait(timeout=STOP_S) == -9
    assert volume.is_free()


def test_a_private_copy_at_a_kubelets_path_is_found(volume: Volume) -> None:
    """As in a container that got the node's root directory without its later mounts and unmounts."""
    with writer(volume.target / "file", *INSIDE, "true") as process:
        assert not volume.stop().is_reset
        assert process.wait(timeout=STOP_S) == -9
    assert volume.is_free()
