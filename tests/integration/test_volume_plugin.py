"""The volume plugin with a real driver: real mounts, real devices, and nothing left when a volume is down."""

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edge.csi_volume_plugin import Published, Staged, VolumePlugin
from edge.volume_errors import NotReady, Refused, Uncertain
from edge.volumes import DriverRules, Pod, PodVolume, Volume, inline_handle
from tests.kit.leftovers import clear, loops_below, mounts_below
from tests.kit.needs import needs_loops, needs_mounts
from tests.kit.running_driver import Mode, Running, block, mount, write
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
def start(root: Path) -> Iterator[Callable[..., Running]]:
    """Starts a driver with flags."""
    with contextlib.ExitStack() as stack:

        def started(*flags: str) -> Running:
            running = Running(root / "vendor", *flags)
            stack.callback(running.stop)
            return running.start()

        yield started


def plugin_of(root: Path, running: Running, *capabilities: int, **more: Any) -> VolumePlugin:
    return VolumePlugin(
        root / "kubelet", "n1", {DRIVER: SocketDriver(DRIVER, running.socket, *capabilities)}.get, **more
    )


def made(running: Running, name: str, **more: Any) -> Volume:
    """A volume that the driver has, attached to this node."""
    capability = (block(),) if more.get("block") else ()
    handle = running.attached(name, *capability).volume_id
    return Volume(driver=DRIVER, handle=handle, name=f"pv-{name}", **more)


def in_pod(volume: Volume, pod: Pod = POD, **more: Any) -> PodVolume:
    return PodVolume(pod=pod, volume=volume, volume_name="data", **more)


def published(volume: Volume, pod: Pod = POD) -> Published:
    return Published(
        driver=DRIVER,
        handle=volume.handle,
        name=volume.name,
        pod_uid=pod.uid,
        block=volume.block,
        ephemeral=volume.ephemeral,
    )


def staged(volume: Volume) -> Staged:
    return Staged(driver=DRIVER, handle=volume.handle, name=volume.name, block=volume.block)


async def up(plugin: VolumePlugin, wanted: PodVolume) -> None:
    await plugin.stage(wanted.volume, publish_context={}, secrets={})
    await plugin.publish(wanted, publish_context={}, secrets={})


async def down(plugin: VolumePlugin, *volumes: Published) -> None:
    for volume in volumes:
        await plugin.unpublish(volume)
        assert await plugin.clean_leftovers(volume)
    first = volumes[0]
    await plugin.unstage(Staged(driver=DRIVER, handle=first.handle, name=first.name, block=first.block))


def files(root: Path) -> list[Path]:
    """All that is not a directory below the kubelet's root."""
    return [path for path in (root / "kubelet").rglob("*") if path.is_symlink() or not path.is_dir()]


async def run(*command: str | Path) -> None:
    await asyncio.to_thread(lambda: subprocess.run(command, check=True))


def assert_clean(root: Path) -> None:
    assert mounts_below(root) == []
    assert loops_below(root) == []
    assert files(root) == []
    assert list(root.glob("kubelet/pods/*")) == []


async def test_what_a_pod_writes_is_in_the_volume_and_nothing_is_left(
    root: Path, start: Callable[..., Running]
) -> None:
    running = start()
    plugin = plugin_of(root, running, 1)
    volume = made(running, "a")
    await up(plugin, in_pod(volume))
    write(plugin.path(published(volume)) / "file", "hello")
    mounts = await plugin.mount_table()
    assert plugin.is_mounted(published(volume), mounts)
    assert plugin.is_mounted(staged(volume), mounts)

    await down(plugin, published(volume))

    assert_clean(root)
    assert (running.state / "volumes" / volume.handle / "data/file").read_text() == "hello"
    running.discard(running.call("ListVolumes").entries[0].volume)


async def test_a_driver_that_does_not_stage_leaves_nothing_either(root: Path, start: Callable[..., Running]) -> None:
    running = start("--no-stage")
    plugin = plugin_of(root, running)
    volume = made(running, "a")
    await up(plugin, in_pod(volume))
    assert len(mounts_below(root / "kubelet")) == 1
    await down(plugin, published(volume))
    assert mounts_below(root) == []
    assert files(root) == []
    assert running.calls("NodeStageVolume") == running.calls("NodeUnstageVolume") == []


async def test_a_volume_in_use_is_not_unstaged(root: Path, start: Callable[..., Running]) -> None:
    running = start()
    plugin = plugin_of(root, running, 1)
    volume = made(running, "a")
    await up(plugin, in_pod(volume))
    with pytest.raises(NotReady, match="still in use: it is mounted at"):
        await plugin.unstage(staged(volume))
    assert running.calls("NodeUnstageVolume") == []
    await down(plugin, published(volume))
    assert_clean(root)


async def test_two_pods_share_a_volume_and_leave_one_after_the_other(root: Path, start: Callable[..., Running]) -> None:
    running = start()
    plugin = plugin_of(root, running, 1)
    handle = running.attached("a", mount(Mode.MULTI_NODE_MULTI_WRITER)).volume_id
    volume = Volume(driver=DRIVER, handle=handle, name="pv-a", access_modes=("ReadWriteMany",))
    other = replace(POD, uid="u2")
    await up(plugin, in_pod(volume))
    await plugin.publish(in_pod(volume, other, read_only=True), publish_context={}, secrets={})
    write(plugin.path(published(volume)) / "file", "hello")
    assert (plugin.path(published(volume, other)) / "file").read_text() == "hello"
    with pytest.raises(OSError, match="Read-only"):
        (plugin.path(published(volume, other)) / "file").write_text("no")
    await down(plugin, published(volume), published(volume, other))
    assert_clean(root)


async def test_everything_can_be_repeated(root: Path, start: Callable[..., Running]) -> None:
    running = start()
    plugin = plugin_of(root, running, 1)
    volume = made(running, "a")
    for _ in range(3):
        await up(plugin, in_pod(volume))
    await plugin.republish(in_pod(volume), publish_context={}, secrets={})
    assert len(mounts_below(root / "kubelet")) == 2
    for _ in range(3):
        await down(plugin, published(volume))
    assert_clean(root)


async def test_an_inline_volume_comes_and_goes_with_its_pod(root: Path, start: Callable[..., Running]) -> None:
    running = start()
    plugin = plugin_of(root, running, 1)
    volume = Volume(
        driver=DRIVER,
        handle=inline_handle("u1", "scratch"),
        name="scratch",
        ephemeral=True,
        attributes={"size": "2Mi"},
        rules=DriverRules(ephemeral=True, pod_info=True),
    )
    await plugin.publish(in_pod(volume), publish_context={}, secrets={})
    write(plugin.path(published(volume)) / "file", "hello")
    (found,) = (await plugin.scan()).published
    assert found == published(volume)
    await plugin.unpublish(found)
    assert await plugin.clean_leftovers(found)
    assert_clean(root)


async def test_a_pods_group_owns_the_files(root: Path, start: Callable[..., Running]) -> None:
    running = start()
    plugin = plugin_of(root, running, 1)
    volume = made(running, "a", rules=DriverRules(fs_group_policy="File"))
    await up(plugin, in_pod(volume))
    target = plugin.path(published(volume))
    write(target / "file", "hello")
    await plugin.publish(in_pod(volume, replace(POD, fs_group=4321)), publish_context={}, secrets={})
    assert (target.stat().st_gid, (target / "file").stat().st_gid) == (4321, 4321)
    assert target.stat().st_mode & 0o2070 == 0o2070
    await down(plugin, published(volume))
    assert_clean(root)


async def test_a_refusal_leaves_nothing_and_a_hanging_driver_leaves_what_it_may_have_done(
    root: Path, start: Callable[..., Running]
) -> None:
    running = start()
    plugin = plugin_of(root, running, 1)
    impatient = plugin_of(root, running, 1, call_timeout_s=0.5)
    volume = made(running, "a")
    running.set_faults("NodeStageVolume=error:INTERNAL:no")
    with pytest.raises(Refused, match="INTERNAL: no"):
        await plugin.stage(volume, publish_context={}, secrets={})
    assert files(root) == []
    running.set_faults("NodeStageVolume=hang")
    with pytest.raises(Uncertain, match="did not answer before the caller's deadline"):
        await impatient.stage(volume, publish_context={}, secrets={})
    assert len(files(root)) == 1
    running.set_faults("NodeStageVolume=off")
    await plugin.unstage(staged(volume))
    assert files(root) == []


async def test_after_a_reboot_the_disk_tells_what_was_there(root: Path, start: Callable[..., Running]) -> None:
    running = start()
    plugin = plugin_of(root, running, 1)
    volume = made(running, "a")
    await up(plugin, in_pod(volume))
    write(plugin.path(published(volume)) / "file", "hello")
    await asyncio.to_thread(wipe, root)

    again = plugin_of(root, running, 1)
    found = await again.scan()
    assert found.published == (published(volume),)
    assert found.staged == (replace(staged(volume), name=""),)
    mounts = await again.mount_table()
    assert not again.is_mounted(published(volume), mounts)
    await up(again, in_pod(volume))
    assert (again.path(published(volume)) / "file").read_text() == "hello"
    await down(again, published(volume))
    assert_clean(root)


async def test_what_is_still_mounted_after_an_ok_is_not_believed_to_be_gone(
    root: Path, start: Callable[..., Running]
) -> None:
    running = start()
    plugin = plugin_of(root, running, 1)
    volume = made(running, "a")
    await up(plugin, in_pod(volume))
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
    await down(plugin, published(volume))
    assert_clean(root)


async def test_a_root_directory_behind_a_link_works_and_is_told_as_it_was_given(
    root: Path, start: Callable[..., Running]
) -> None:
    running = start()
    (root / "real").mkdir()
    (root / "kubelet").symlink_to(root / "real")
    plugin = plugin_of(root, running, 1)
    volume = made(running, "a")
    await up(plugin, in_pod(volume))
    assert plugin.is_mounted(published(volume), await plugin.mount_table())
    with pytest.raises(NotReady, match="still in use"):
        await plugin.unstage(staged(volume))
    (call,) = running.calls("NodePublishVolume")
    assert call.fields["target_path"].startswith(f"{root}/kubelet/pods/")
    await down(plugin, published(volume))
    assert mounts_below(root) == []
    assert files(root) == []


@needs_loops
async def test_a_block_volume_is_mapped_as_by_the_kubelet_and_nothing_is_left(
    root: Path, start: Callable[..., Running]
) -> None:
    running = start()
    plugin = plugin_of(root, running, 1, 3)
    volume = made(running, "a", block=True)
    await up(plugin, in_pod(volume))

    link = plugin.path(published(volume))
    target = plugin.layout.block_target(volume.name, "u1")
    device_map = plugin.layout.device_map(volume.name, "u1")
    assert link == root / "kubelet/pods/u1/volumeDevices/kubernetes.io~csi/pv-a"
    assert link.readlink() == target
    assert device_map.is_block_device()
    assert device_map.stat().st_rdev == target.stat().st_rdev
    assert len(loops_below(root / "kubelet")) == 1
    with link.open("r+b", buffering=0) as device:
        device.write(b"x" * 512)
        os.fsync(device.fileno())
    assert plugin.is_mounted(published(volume), await plugin.mount_table())
    with pytest.raises(NotReady, match="still in use"):
        await plugin.unstage(staged(volume))

    await up(plugin, in_pod(volume))
    assert len(loops_below(root / "kubelet")) == 1
    assert len([path for path in mounts_below(root) if path == str(device_map)]) == 1

    found = await plugin.scan()
    assert (found.published, found.staged) == ((published(volume),), (staged(volume),))
    await down(plugin, published(volume))
    assert_clean(root)


@needs_loops
async def test_a_block_volume_comes_back_after_a_reboot(root: Path, start: Callable[..., Running]) -> None:
    running = start()
    plugin = plugin_of(root, running, 1)
    volume = made(running, "a", block=True)
    await up(plugin, in_pod(volume))
    await asyncio.to_thread(wipe, root)

    await up(plugin, in_pod(volume))
    assert plugin.path(published(volume)).is_block_device()
    await down(plugin, published(volume))
    assert_clean(root)


@needs_loops
async def test_a_read_only_block_volume_is_held_open_too(root: Path, start: Callable[..., Running]) -> None:
    running = start()
    plugin = plugin_of(root, running, 1)
    volume = made(running, "a", block=True)
    await up(plugin, in_pod(volume, read_only=True))
    assert len(loops_below(root / "kubelet")) == 1
    await down(plugin, published(volume))
    assert_clean(root)


@needs_loops
async def test_a_block_volume_that_stopped_half_way_is_found_and_undone(
    root: Path, start: Callable[..., Running]
) -> None:
    running = start()
    plugin = plugin_of(root, running, 1)
    volume = made(running, "a", block=True)
    await up(plugin, in_pod(volume))
    plugin.path(published(volume)).unlink()
    assert (await plugin.scan()).published == (published(volume),)
    shutil.rmtree(root / "kubelet/pods")
    await plugin.unpublish(published(volume))
    await plugin.unstage(staged(volume))
    assert (mounts_below(root), loops_below(root / "kubelet"), files(root)) == ([], [], [])


@needs_loops
async def test_an_ordinary_file_can_be_published_and_taken_down(root: Path, start: Callable[..., Running]) -> None:
    running = start()
    plugin = plugin_of(root, running, 1)
    volume = Volume(driver=DRIVER, handle="none", name="pv-file", block=True)
    target = plugin.layout.block_target(volume.name, "u1")
    target.parent.mkdir(parents=True)
    with target.open("wb") as file:
        file.truncate(1024 * 1024)
    devices = plugin._devices
    devices.map(volume.name, "u1")
    devices.map(volume.name, "u1")
    assert len(loops_below(root / "kubelet")) == 1
    assert len(mounts_below(root)) == 1
    devices.unmap(volume.name, "u1")
    devices.unmap(volume.name, "u1")
    assert (mounts_below(root), loops_below(root)) == ([], [])
    assert files(root) == [target]


# -------------------- killed on the way --------------------


@pytest.fixture(scope="module")
def shared() -> Iterator[Running]:
    """A driver that outlives the agents."""
    with tempfile.TemporaryDirectory(prefix="vend-") as name, contextlib.ExitStack() as stack:
        path = Path(name).resolve()
        stack.callback(clear, path)
        running = Running(path)
        stack.callback(running.stop)
        yield running.start()


UP = ("before-dir", "after-dir", "before-data", "before-rename", "after-data", "before-call", "after-call")
DOWN = ("before-call", "after-call", "before-clean", "after-target", "after-data-removed", "after-clean")
FILE_SYSTEM = [
    *(("up", f"stage.{point}") for point in UP),
    *(("up", f"publish.{point}") for point in (*UP, "before-ownership", "after-ownership")),
    *(("down", f"unpublish.{point}") for point in DOWN),
    *(("down", f"unstage.{point}") for point in DOWN),
]
BLOCK = [
    *(("up", f"stage.{point}") for point in UP),
    *(("up", f"publish.{point}") for point in UP if point != "before-rename"),  # its file is there since the staging
    *(("up", f"publish.{point}") for point in ("before-bind", "after-bind", "after-link", "after-loop")),
    *(("down", f"unpublish.{point}") for point in ("before-loop", "after-loop", "after-link", "after-unbind")),
    *(("down", f"unpublish.{point}") for point in ("after-map", "before-call", "after-call", "after-clean")),
    *(("down", f"unstage.{point}") for point in DOWN),
]


@pytest.mark.slow  # an agent that is killed there, in test_kill_points_filesystem, is of every run
@pytest.mark.parametrize(("way", "point"), FILE_SYSTEM)
def test_a_file_system_whose_agent_died_anywhere_can_be_taken_down_and_leaves_nothing(
    root: Path, shared: Running, way: str, point: str
) -> None:
    killed_then_taken_down(root, shared, "file system", way, point)


@needs_loops
@pytest.mark.slow  # as above, in test_kill_points_block
@pytest.mark.parametrize(("way", "point"), BLOCK)
def test_a_block_volume_whose_agent_died_anywhere_can_be_taken_down_and_leaves_nothing(
    root: Path, shared: Running, way: str, point: str
) -> None:
    killed_then_taken_down(root, shared, "block", way, point)


def killed_then_taken_down(root: Path, running: Running, mode: str, way: str, point: str) -> None:
    handle = running.attached(f"{mode} {point}", block() if mode == "block" else mount()).volume_id
    order = {"driver": DRIVER, "socket": str(running.socket), "root": str(root / "kubelet"), "mode": mode}
    order |= {"handle": handle, "name": "pv-a", "uid": "u1"}
    if way == "down":
        take(order | {"way": "up"})
    assert take(order | {"way": way}, point) == -9
    if way == "up" and point != "stage.before-dir":
        assert any(path.name in {"pv-a", "globalmount", "plugins"} for path in (root / "kubelet").rglob("*"))
    take(order | {"way": "down"})
    assert_clean(root)
    left = asyncio.run(VolumePlugin(root / "kubelet", "n1", lambda _: None).scan())
    assert (left.published, left.staged, left.unreadable) == ((), (), ())
    assert (mounts_below(running.root), loops_below(running.root)) == ([], [])


def take(order: dict[str, str], point: str = "") -> int:
    command = [sys.executable, "-m", "tests.kit.plugin_steps", json.dumps(order)]
    done = subprocess.run(
        command, env=os.environ | {"CSI_BRIDGE_FAULT_POINT": point}, check=False, capture_output=True, text=True
    )
    assert point or not done.returncode, done.stderr
    return done.returncode
