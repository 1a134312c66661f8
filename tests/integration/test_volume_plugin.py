"""The volume plugin with a real driver: real mounts, real devices, and nothing left when a volume is down."""

import asyncio
import contextlib
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge.calls.node_requests import Inputs
from edge.csi_volume_plugin import VolumePlugin
from edge.disk.found_volumes import Published, Staged
from edge.volume_errors import NotReady, Uncertain
from edge.volumes import Pod, PodVolume, Volume
from tests.kit.leftovers import clear, loops_below, mounts_below
from tests.kit.needs import needs_mounts
from tests.kit.running_driver import Running, block, write
from tests.kit.socket_driver import SocketDriver

pytestmark = needs_mounts

DRIVER = "dirdriver.csi"
POD = Pod(uid="u1", namespace="shop", name="web")


def wipe(root: Path) -> None:
    """Take away all mounts and devices, as a reboot does. The pods' devices first: they hold the driver's open."""
    for device in loops_below(root / "kubelet"):
        subprocess.run(["losetup", "--detach", device], check=False)
    clear(root)


@pytest.fixture
def root() -> Iterator[Path]:
    """The kubelet's root directory, beside the driver's own; what a failed test left mounted is taken away."""
    with tempfile.TemporaryDirectory(prefix="plug-") as name, contextlib.ExitStack() as stack:
        path = Path(name).resolve()
        (path / "vendor").mkdir()
        stack.callback(wipe, path)
        yield path


@pytest.fixture
def running(root: Path) -> Iterator[Running]:
    running = Running(root / "vendor")
    yield running.start()
    running.stop()


@pytest.fixture
def plugin(root: Path, running: Running) -> VolumePlugin:
    return VolumePlugin(root / "kubelet", "n1", {DRIVER: SocketDriver(DRIVER, running.socket, 1)}.get)


@pytest.fixture
def volume(running: Running) -> Volume:
    return made(running, "a")


def made(running: Running, name: str, *, is_block: bool = False) -> Volume:
    handle = running.attached(name, *((block(),) if is_block else ())).volume_id
    return Volume(driver=DRIVER, handle=handle, name=f"pv-{name}", block=is_block)


def in_pod(volume: Volume) -> PodVolume:
    return PodVolume(pod=POD, volume=volume, volume_name="data")


def published(volume: Volume) -> Published:
    return Published(
        driver=DRIVER, handle=volume.handle, name=volume.name, pod_uid=POD.uid, block=volume.block, ephemeral=False
    )


def staged(volume: Volume) -> Staged:
    return Staged(driver=DRIVER, handle=volume.handle, name=volume.name, block=volume.block)


async def up(plugin: VolumePlugin, volume: Volume) -> None:
    await plugin.stage(in_pod(volume), Inputs())
    await plugin.publish(in_pod(volume), Inputs())


async def down(plugin: VolumePlugin, volume: Volume) -> None:
    await plugin.unpublish(published(volume))
    await plugin.unstage(staged(volume))


def files(root: Path) -> list[Path]:
    return [path for path in (root / "kubelet").rglob("*") if path.is_symlink() or not path.is_dir()]


async def run(*command: str | Path) -> None:
    await asyncio.to_thread(lambda: subprocess.run(command, check=True))


def assert_clean(root: Path) -> None:
    assert mounts_below(root) == []
    assert loops_below(root) == []
    assert files(root) == []
    assert list(root.glob("kubelet/pods/*")) == []


async def test_what_a_pod_writes_is_in_the_volume_and_nothing_is_left(
    root: Path, running: Running, plugin: VolumePlugin, volume: Volume
) -> None:
    await up(plugin, volume)
    write(plugin.path(published(volume)) / "file", "hello")
    mounts = await plugin.mount_table()
    assert plugin.is_mounted(published(volume), mounts)
    assert plugin.is_mounted(staged(volume), mounts)

    with pytest.raises(NotReady, match="still in use: it is mounted at"):
        await plugin.unstage(staged(volume))
    assert running.calls("NodeUnstageVolume") == []

    await down(plugin, volume)

    assert_clean(root)
    assert (running.state / "volumes" / volume.handle / "data/file").read_text() == "hello"
    running.discard(running.call("ListVolumes").entries[0].volume)


async def test_what_is_still_mounted_after_an_ok_is_not_believed_to_be_gone(
    root: Path, running: Running, plugin: VolumePlugin, volume: Volume
) -> None:
    await up(plugin, volume)
    target = plugin.path(published(volume))
    other = root / "other"
    other.mkdir()
    await run("umount", target)
    running.unpublish(running.call("ListVolumes").entries[0].volume, target)
    target.mkdir()
    await run("mount", "--bind", other, target)
    with pytest.raises(Uncertain, match="something is still mounted at"):
        await plugin.unpublish(published(volume))
    assert not await plugin.clean_leftovers(published(volume))
    assert (target.parent / "vol_data.json").exists()
    await run("umount", target)
    await down(plugin, volume)
    assert_clean(root)
