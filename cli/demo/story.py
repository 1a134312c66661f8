"""The story: one volume's life through the bridge, with a reboot and a cut link in the middle of it."""

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import grpc

from cli.demo.objects import driver_rules, pod_with_volume
from cli.demo.stage import DRIVER, NODE, DemoError, Stage, stage
from cli.demo.teller import Teller
from cli.edge_volumes import ask
from common.csi import csi_pb2 as csi
from common.csi.csi_pb2_grpc import ControllerStub, IdentityStub
from common.errors import BridgeError
from common.files import replace_file
from common.pages.agent import PodVolumeStatus

Answer = TypeVar("Answer")

_MIB = 1_048_576
_FILE_TEXT = "written at the edge\n"

_LIMIT_S = 30.0
"""How long a call may take: far longer than any does, so that the demo fails instead of hanging."""


def run() -> int:
    """Tell the story. Returns the exit code: 0, 1 if a step failed, 130 if a signal stopped it."""
    teller = Teller()
    try:
        asyncio.run(_until_told(teller))
    except (KeyboardInterrupt, asyncio.CancelledError):
        teller.line("stopped; everything that was started is gone")
        return 130
    except grpc.aio.AioRpcError as error:
        teller.failed(f"a call was refused: {_words(error)}")
        return 1
    except (DemoError, OSError) as error:
        teller.failed(str(error))
        return 1
    return 0


async def _until_told(teller: Teller) -> None:
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None

    def stop(number: int) -> None:
        if number == signal.SIGHUP:
            teller.hush()
        if not task.cancelling():  # a second signal must not break off the cleaning up
            task.cancel()

    def hear(number: int, _frame: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, and everything is cleaned up
            loop.call_soon_threadsafe(stop, number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # Not the loop's own handlers: they end with the loop, and a later signal would print a traceback.
        signal.signal(number, hear)
    teller.title("CSI Bridge: a vendor's CSI driver, at an edge that the cloud cannot reach")
    async with stage() as set_up, _dialled(set_up.sidecar_socket) as cloud:
        await _Story(teller, set_up, cloud).tell()
    teller.line("All processes are stopped, and nothing is left behind.\n")


def _dialled(socket: Path) -> grpc.aio.Channel:
    # An address is a URI to grpcio.
    return grpc.aio.insecure_channel(f"unix:{quote(str(socket))}", options=[("grpc.default_authority", "localhost")])


class _Story:
    """Tells the story. `cloud` is the sidecar's channel to the proxy driver."""

    def __init__(self, teller: Teller, set_up: Stage, cloud: grpc.aio.Channel) -> None:
        self._teller = teller
        self._stage = set_up
        self._controller = ControllerStub(cloud)
        self._identity = IdentityStub(cloud)

    async def tell(self) -> None:
        await self._begin()
        volume = await self._create()
        await self._use(volume)
        second = await self._cut()
        await self._delete([volume, second])

    async def _begin(self) -> None:
        self._teller.act("Everything starts, in any order")
        with self._teller.waiting("hub, proxy driver, edge agent and the example driver find each other"):
            await self._stage.until(self._ready, "the first answer through the bridge")
        info = await self._identity.GetPluginInfo(csi.GetPluginInfoRequest(), timeout=_LIMIT_S)
        self._teller.good(f"the cloud's socket answers as {info.name} {info.vendor_version}, which runs on {NODE}")

    async def _ready(self) -> bool:
        try:
            answer = await self._identity.Probe(csi.ProbeRequest(), timeout=2)
            if not answer.ready.value:
                return False
            await self._controller.GetCapacity(csi.GetCapacityRequest(), timeout=2)
        except grpc.RpcError:
            return False
        return True

    async def _create(self) -> csi.Volume:
        self._teller.act("A sidecar in the cloud calls CreateVolume on its local socket")
        answer = await self._controller.CreateVolume(_wanted("pvc-demo-1"), timeout=_LIMIT_S)
        volume: csi.Volume = answer.volume
        self._teller.good(f"volume {volume.volume_id}, {volume.capacity_bytes // _MIB} MiB")
        self._show_directory(volume)
        return volume

    def _show_directory(self, volume: csi.Volume) -> None:
        found = [path for path in self._stage.volumes.rglob("*") if volume.volume_id in path.name]
        if not found:
            raise DemoError(f"there is no directory for volume {volume.volume_id} at the edge")
        self._teller.good(f"at the edge there is {found[0].relative_to(self._stage.directory)}/")

    async def _use(self, volume: csi.Volume) -> None:
        self._teller.act("A pod of the edge node appears in the hub's manifests, and its volume at the edge")
        if os.geteuid() != 0 or not _can_mount():
            self._teller.left_out("mounting needs root, and the right to mount")
            return
        _write(self._stage.manifests / "driver.yaml", [driver_rules(DRIVER)])
        _write(self._stage.manifests / "web.yaml", pod_with_volume(NODE, DRIVER, volume.volume_id))
        path = await self._published()
        self._teller.good(f"published at {path.relative_to(self._stage.directory)}")
        (path / "hello").write_text(_FILE_TEXT)
        self._read_back(path, "written, and read back")
        await self._reboot(path)
        await self._remove()

    async def _published(self) -> Path:
        """Wait until the pod's volume is published. Returns its path."""
        with self._teller.waiting("the agent stages and publishes"):
            await self._stage.until(self._is_published, "a published volume")
        return Path(self._volumes()[0].path)

    async def _is_published(self) -> bool:
        return [volume.state for volume in self._volumes()] == ["published"]

    async def _is_gone(self) -> bool:
        return not self._volumes()

    def _volumes(self) -> list[PodVolumeStatus]:
        try:
            return ask(self._stage.agent_socket).volumes
        except BridgeError:  # it is starting
            return [PodVolumeStatus(state="not told")]

    def _read_back(self, path: Path, what: str) -> None:
        text = (path / "hello").read_text()
        if text != _FILE_TEXT:
            raise DemoError("the file has other content than was written")
        self._teller.good(f"{what}: {text.strip()!r}")

    async def _reboot(self, path: Path) -> None:
        self._teller.act("The hub dies, and the edge node reboots: its agent is gone, and so is every mount")
        self._stage.kill("hub", "edge agent")
        self._teller.away(f"{self._stage.unmount()} mounts are gone, and the pod's directory is {_content(path)}")
        self._stage.start_again("edge agent")
        began = time.monotonic()
        await self._published()
        self._teller.good(f"the agent alone brought the volume back in {time.monotonic() - began:.1f} s")
        self._read_back(path, "the data is unharmed")

    async def _remove(self) -> None:
        self._teller.act("The hub is back, and the pod is removed from the manifests")
        (self._stage.manifests / "web.yaml").unlink()
        self._stage.start_again("hub")
        with self._teller.waiting("the hub tells the agent; the agent unpublishes and unstages"):
            await self._stage.until(self._is_gone, "an unpublished volume")
        left = [*self._stage.kubelet.glob("pods/*/volumes/*/*"), *self._stage.kubelet.glob("plugins/*/csi/*/*")]
        if left or self._stage.unmount():
            raise DemoError(f"the edge still has {', '.join(map(str, left)) or 'mounts'}")
        self._teller.good("unpublished, unstaged, and nothing is left of it but its data")

    async def _cut(self) -> csi.Volume:
        self._teller.act("A slow CreateVolume is under way, and the link is cut")
        self._stage.pause("dirdriver")
        request = _wanted("pvc-demo-2")
        first = asyncio.ensure_future(self._controller.CreateVolume(request, timeout=_LIMIT_S))
        try:
            await asyncio.sleep(1.0)
            self._stage.cable.cut()
            self._teller.away(f"the call ends: {await _refusal(first)}")
        finally:
            first.cancel()
            self._stage.resume("dirdriver")
        await self._stage.until(lambda: self._is_offline(request), "the hub noticing that the node is away")
        self._teller.away(f"a retry ends: {await _refusal(self._controller.CreateVolume(request, timeout=_LIMIT_S))}")
        self._teller.act("The link is back, and the same call joins the work that went on")
        self._stage.cable.mend()
        with self._teller.waiting("the agent dials again; the sidecar retries"):
            answer: csi.CreateVolumeResponse = await _retried(
                lambda: self._controller.CreateVolume(request, timeout=_LIMIT_S)
            )
        self._teller.good(f"volume {answer.volume.volume_id}: made once, at the edge, while the link was cut")
        volume: csi.Volume = answer.volume
        return volume

    async def _is_offline(self, request: csi.CreateVolumeRequest) -> bool:
        """Whether the hub refuses a retry because the node is away. It may answer other calls in the node's place."""
        try:
            await self._controller.CreateVolume(request, timeout=5)
        except grpc.aio.AioRpcError as error:
            return "is offline since" in (error.details() or "")
        return False

    async def _delete(self, volumes: list[csi.Volume]) -> None:
        self._teller.act("The sidecar deletes both volumes")
        for volume in volumes:
            await self._controller.DeleteVolume(csi.DeleteVolumeRequest(volume_id=volume.volume_id), timeout=_LIMIT_S)
        left = list(self._stage.volumes.iterdir())
        if left:
            raise DemoError(f"the edge still holds {', '.join(path.name for path in left)}")
        self._teller.good(f"{DRIVER} holds no volume any more\n")


_CAPABILITY = csi.VolumeCapability(
    mount=csi.VolumeCapability.MountVolume(),
    access_mode=csi.VolumeCapability.AccessMode(mode=csi.VolumeCapability.AccessMode.SINGLE_NODE_WRITER),
)


def _wanted(name: str) -> csi.CreateVolumeRequest:
    return csi.CreateVolumeRequest(
        name=name, capacity_range=csi.CapacityRange(required_bytes=16 * _MIB), volume_capabilities=[_CAPABILITY]
    )


async def _refusal(call: Awaitable[object]) -> str:
    """The status of a call that must fail, as a sidecar prints it.

    Raises:
        DemoError: the call succeeded.
    """
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return _words(error)
    raise DemoError("a call was answered that should have been refused: the link is cut")


async def _retried(call: Callable[[], Awaitable[Answer]]) -> Answer:
    """The answer of a call that is repeated as a sidecar does.

    Raises:
        DemoError: there was no answer within a minute.
    """
    give_up = time.monotonic() + 60
    while True:
        try:
            return await call()
        except grpc.aio.AioRpcError as error:
            if time.monotonic() > give_up:
                raise DemoError(f"the retry never got through: {_words(error)}") from error
        await asyncio.sleep(0.5)


def _words(error: grpc.aio.AioRpcError) -> str:
    return f"{error.code().name}: {error.details()}"


def _write(path: Path, objects: list[dict[str, Any]]) -> None:
    """Write a manifest file in one step. JSON is YAML, too."""
    content = "\n---\n".join(json.dumps(each, indent=2) for each in objects)
    replace_file(path, content.encode(), durable=False)


def _content(path: Path) -> str:
    return "not empty" if path.is_dir() and list(path.iterdir()) else "empty"


def _can_mount() -> bool:
    """Whether this process may mount (CAP_SYS_ADMIN, capabilities(7))."""
    status = Path("/proc/self/status").read_text()
    effective = next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff:"))
    return bool(int(effective, 16) >> 21 & 1)
