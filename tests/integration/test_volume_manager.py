"""The volume manager with a real plugin, driver and state file: what pods want is mounted, also after restarts."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from common.objects import Ref
from edge.csi_volume_plugin import VolumePlugin
from edge.manager.states import VolumeStates
from edge.volume_manager import VolumeManager
from tests.kit.leftovers import clear, loops_below, mounts_below
from tests.kit.needs import needs_loops, needs_mounts
from tests.kit.running_driver import MIB, Running, block, size
from tests.kit.socket_driver import SocketDriver
from tests.kit.volume_world import FakeDrivers, FakeStore, persistent_claim, persistent_volume, pod

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from edge.volumes import VolumeKey

pytestmark = needs_mounts

DRIVER = "dirdriver.csi"
_LIMIT_S = 20.0


class Registered(SocketDriver):
    """A driver that is registered."""

    registered = True
    file: object = None


@dataclass
class Node:
    """A node whose agent's volume part runs in this process."""

    root: Path
    running: Running
    store: FakeStore = field(default_factory=FakeStore)
    manager: VolumeManager | None = None
    states: VolumeStates | None = None

    async def start(self, *, boot: str = "boot-1") -> None:
        drivers: Any = FakeDrivers()
        drivers.by_name[DRIVER] = Registered(DRIVER, self.running.socket, 1, 2, 3)

        async def known(_key: VolumeKey) -> None:
            return

        self.states = VolumeStates(self.root / "state")
        self.manager = VolumeManager(
            node="n1",
            store=self.store,
            states=self.states,
            plugin=VolumePlugin(self.root / "kubelet", "n1", drivers.find),
            drivers=drivers,
            facts=self.store,
            in_use_acked=known,
            boot=boot,
            stats_interval_s=0.0,
        )
        await self.manager.start()

    async def stop(self, drain_s: float = 5.0) -> None:
        assert self.manager is not None
        assert self.states is not None
        await self.manager.close(drain_s)
        await self.states.close()

    async def restart(self, *, boot: str = "boot-1") -> None:
        await self.stop()
        await self.start(boot=boot)

    async def until(self, look: Callable[[], object]) -> None:
        """Wait until something is so."""
        assert self.manager is not None
        changed = asyncio.Event()
        stop = self.manager.subscribe(changed.set)
        try:
            async with asyncio.timeout(_LIMIT_S):
                while not look():
                    changed.clear()
                    await changed.wait()
        except TimeoutError:
            raise AssertionError(f"it never came: {self.manager.describe()}") from None
        finally:
            stop()

    async def until_published(self, count: int = 1) -> list[Path]:
        """Wait for so many volumes; where they are."""

        def found() -> list[dict[str, Any]]:
            assert self.manager is not None
            return [one for one in self.manager.describe() if one["state"] == "published"]

        await self.until(lambda: len(found()) == count)
        return [Path(one["path"]) for one in found()]

    async def until_clean(self) -> None:
        assert self.manager is not None
        manager = self.manager
        await self.until(lambda: not manager.describe())
        assert mounts_below(self.root) == []
        assert loops_below(self.root) == []
        kept = [path for path in (self.root / "kubelet").rglob("*") if path.is_symlink() or not path.is_dir()]
        assert kept == []
        assert list((self.root / "kubelet").glob("pods/*")) == []

    def add_volume(self, name: str = "data", **more: Any) -> None:
        """A volume that the driver has, and its objects."""
        capability = (block(),) if more.get("volumeMode") == "Block" else ()
        made = self.running.attached(name, *capability, capacity_range=size(16 * MIB))
        csi = {"driver": DRIVER, "volumeHandle": made.volume_id}
        self.store.put(persistent_volume(name, csi=csi, **{"size": "16Mi", **more}))
        self.store.put(persistent_claim(name, status={"capacity": {"storage": "16Mi"}}))

    def calls(self) -> dict[str, int]:
        names = ("NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume", "NodeExpandVolume")
        return {name: count for name in names if (count := len(self.running.calls(name)))}


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    with started_driver() as (root, running):
        made = Node(root, running)
        made.store.put({"kind": "CSIDriver", "metadata": {"name": DRIVER}, "spec": {"attachRequired": False}})
        await made.start()
        yield made
        await made.stop()


@contextlib.contextmanager
def started_driver() -> Iterator[tuple[Path, Running]]:
    with tempfile.TemporaryDirectory(prefix="mgr-") as name, contextlib.ExitStack() as stack:
        root = Path(name).resolve()
        (root / "vendor").mkdir()
        stack.callback(wipe, root)
        running = Running(root / "vendor")
        stack.callback(running.stop)
        running.start()
        yield root, running


def wipe(root: Path) -> None:
    """Take away all mounts and devices, as a reboot does. The pods' devices first: they hold the driver's open."""
    for device in loops_below(root / "kubelet"):
        subprocess.run(["losetup", "--detach", device], check=False)
    clear(root)


UP = {"NodeStageVolume": 1, "NodePublishVolume": 1}
UP_AND_DOWN = {**UP, "NodeUnpublishVolume": 1, "NodeUnstageVolume": 1}
POD = Ref("Pod", "default", "web")


async def test_a_pods_volume_comes_and_goes_and_leaves_nothing(node: Node) -> None:
    node.add_volume()
    node.store.put(pod(claims=("data",)))
    (path,) = await node.until_published()
    await asyncio.to_thread((path / "file").write_text, "hello")
    node.store.drop(POD)
    await node.until_clean()
    assert node.calls() == UP_AND_DOWN


async def test_a_restart_asks_for_nothing_again(node: Node) -> None:
    node.add_volume()
    node.store.put(pod(claims=("data",)))
    await node.until_published()
    await node.restart()
    await node.until_published()
    assert node.calls() == UP
    node.store.drop(POD)
    await node.until_clean()


async def test_after_a_reboot_without_a_hub_the_data_is_back(node: Node) -> None:
    node.add_volume()
    node.store.put(pod(claims=("data",)))
    (path,) = await node.until_published()
    await asyncio.to_thread((path / "file").write_text, "hello")
    await node.stop()
    await asyncio.to_thread(wipe, node.root / "kubelet")
    node.store.in_step = False
    await node.start(boot="boot-2")
    (path,) = await node.until_published()
    assert await asyncio.to_thread((path / "file").read_text) == "hello"
    node.store.drop(POD)
    await node.until_clean()


@pytest.mark.parametrize("mode", ["Filesystem", pytest.param("Block", marks=needs_loops)])
async def test_without_the_states_what_lies_on_disk_tells_what_is_mounted(node: Node, mode: str) -> None:
    node.add_volume(volumeMode=mode)
    node.store.put(pod(claims=("data",), devices=("data",) if mode == "Block" else ()))
    await node.until_published()
    await node.stop()
    await asyncio.to_thread(shutil.rmtree, node.root / "state")
    node.store.drop(POD)
    node.store.in_step = False
    await node.start()
    assert node.manager is not None
    assert {one["state"] for one in node.manager.describe()} == {"left over"}
    node.store.in_step = True
    node.store.tell()
    await node.until_clean()
    assert node.calls() == UP_AND_DOWN


@needs_loops
async def test_a_block_volume_comes_and_goes_over_a_restart(node: Node) -> None:
    node.add_volume(volumeMode="Block")
    node.store.put(pod(claims=("data",), devices=("data",)))
    (path,) = await node.until_published()
    assert await asyncio.to_thread(path.is_symlink)
    await node.restart()
    await node.until_published()
    node.store.drop(POD)
    await node.until_clean()
    assert node.calls() == UP_AND_DOWN


async def test_a_volume_that_grows_is_expanded(node: Node) -> None:
    node.add_volume()
    node.store.put(pod(claims=("data",)))
    await node.until_published()
    body = node.store.body(Ref("PersistentVolume", "", "pv-data"))
    handle = body["spec"]["csi"]["volumeHandle"]
    node.running.call("ControllerExpandVolume", volume_id=handle, capacity_range=size(32 * MIB))
    body["spec"]["capacity"]["storage"] = "32Mi"
    node.store.put(body)
    await node.until(lambda: Ref("PersistentVolumeClaim", "default", "data") in node.store.facts)
    assert node.calls() == {**UP, "NodeExpandVolume": 1}
    node.store.drop(POD)
    await node.until_clean()


async def test_many_volumes_come_at_once_and_go_again_and_again(node: Node) -> None:
    names = [f"v{number}" for number in range(12)]
    for name in names:
        node.add_volume(name)
    for round_ in range(3):
        for name in names:
            node.store.put(pod(name, uid=f"{name}-{round_}", claims=(name,)))
        await node.until_published(len(names))
        node.store.drop(*(Ref("Pod", "default", name) for name in names))
        await node.until_clean()
    assert node.states is not None
    await node.restart()
    assert node.manager is not None
    assert node.manager.describe() == []
    assert set(node.calls().values()) == {3 * len(names)}
