"""A hostile hub: an attacker's hub with a certificate that agents accept. It sends what no honest hub sends.

It uses the project's codec and sessions, and none of the hub's own checks:

    async with HostileHub(authority.hub()) as hub:
        ...  # start an agent with --hub=wss://{hub.address}
        status = await hub.call("/csi.v1.Node/NodePublishVolume", request, driver="vendor.test")
        hub.put(pod)
"""

import asyncio
import itertools
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from google.protobuf.message import Message

from cli.edge_volumes import ask
from cloud.sync.streams import SyncServer
from common.csi import csi_pb2 as csi
from common.csi.methods import METHODS
from common.links.listener import Listener, listen_tcp
from common.messages import Kind
from common.net.tls import TlsFiles, TlsIdentity
from common.objects.objects import Object, Ref, Stamp
from common.observe.version import introduce
from common.pages.json_form import plain
from common.parsers import HostPort
from common.session.limits import Limits
from common.session.link import Link, Side, Stream
from common.status import Origin, Status
from edge.disk.loop_devices import detach_loops
from edge.disk.mounts import read_table, unmount
from tests.kit.answers import methods_of, path_of
from tests.kit.bridge import Agent, Bridge
from tests.kit.certificates import Authority, Pem
from tests.kit.linked import Peer
from tests.kit.vendor import Vendor, VendorCall
from tests.kit.waiting import wait_for

NODE_METHODS = sorted(methods_of("Node"))  # the paths of the Node service

_PATIENCE_S = 60.0  # only a failing test waits so long


DEEP = "DEEP"  # stands in an object for JSON that is deeper than Python reads

_LEVELS = 20_000
_DEEP_JSON = '{"a":' * _LEVELS + "{}" + "}" * _LEVELS


class HostileHub(Peer):
    """The hub of one agent (`LinkHandler` and `Closures`)."""

    origin = Origin.HUB
    is_ready = True

    def __init__(self, pem: Pem) -> None:
        super().__init__()
        identity = TlsIdentity(TlsFiles(pem.ca, pem.cert, pem.key), server=True)
        self._listener = Listener(
            listen_tcp(HostPort("127.0.0.1", 0)),
            Side(introduce("hub", "hub", instance="hostile"), self, Limits()),
            tls=identity.context,
        )
        self._sync = SyncServer(self, _NoFacts())
        self._linked: asyncio.Future[Link] = asyncio.get_running_loop().create_future()
        self._objects: dict[Ref, Object] = {}
        self._watchers: list[Callable[[], None]] = []
        self._versions = itertools.count(1)

    @property
    def address(self) -> str:
        return self._listener.address

    async def linked(self) -> None:
        async with asyncio.timeout(_PATIENCE_S):
            await asyncio.shield(self._linked)

    # ---- attacks -----------------------------------------------------------------------------------------------------

    async def call(self, method: str, request: bytes, *, driver: str) -> Status:
        """Open a stream for a call on the agent's link, and return the call's status."""
        async with asyncio.timeout(_PATIENCE_S):
            stream = (await self._linked).open(
                Kind.CALL, request, subject=driver, method=method, call="c", timeout_s=30
            )
            async for _ in stream:
                pass
        assert stream.status is not None
        stream.acknowledge(delivered=True)
        return stream.status

    def put(self, *bodies: Mapping[str, Any]) -> None:
        """Put objects into the node's closure, exactly as they are, but for `DEEP`."""
        for body in bodies:
            metadata = body["metadata"]
            ref = Ref(body["kind"], str(metadata.get("namespace", "")), str(metadata["name"]))
            stamp = Stamp(str(metadata.get("uid", f"uid-of-{ref.name}")), str(next(self._versions)))
            self._objects[ref] = Object(ref, stamp, json.dumps(body).replace(json.dumps(DEEP), _DEEP_JSON).encode())
        self._tell()

    def clear(self) -> None:
        """Take every object out of the closure."""
        self._objects.clear()
        self._tell()

    def _tell(self) -> None:
        for changed in self._watchers:
            changed()

    # ---- the links ---------------------------------------------------------------------------------------------------

    def greeted(self, link: Link) -> None:
        link.accept(1)
        if not self._linked.done():
            self._linked.set_result(link)

    async def serve(self, stream: Stream) -> None:
        assert stream.opened is not None
        if stream.opened.kind == Kind.SYNC:
            await self._sync.serve_sync(stream, "n1")
        elif stream.opened.kind == Kind.FACTS:
            await self._sync.serve_facts(stream, "n1")
        else:
            async for _ in stream:
                pass

    async def __aenter__(self) -> Self:
        await self._listener.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._listener.close()

    # ---- closures ----------------------------------------------------------------------------------------------------

    def is_unknown(self, node: str, ref: Ref) -> bool:
        return False

    def stamps(self, node: str) -> Mapping[Ref, Stamp]:
        return {ref: found.stamp for ref, found in self._objects.items()}

    def read(self, ref: Ref) -> Object | None:
        return self._objects.get(ref)

    def watch(self, node: str, changed: Callable[[], None], *, with_credentials: bool = True) -> Callable[[], None]:
        self._watchers.append(changed)
        return lambda: self._watchers.remove(changed)


class _NoFacts:
    """A `FactSink` that accepts every fact and keeps none."""

    def stamps(self, node: str) -> Mapping[Ref, Stamp]:
        return {}

    @property
    def table(self) -> Self:
        return self

    async def note_machine(self, node: str, instance: str) -> None: ...

    def up(self, node: str) -> None: ...

    def down(self, node: str) -> None: ...

    def observed(self, node: str) -> None: ...

    async def remove_all(self, node: str) -> None: ...

    async def forget(self, node: str) -> None: ...

    async def store(self, node: str, obj: Object) -> bool:
        return True

    async def drop(self, node: str, ref: Ref, uid: str) -> None: ...


class PlainVendor(Vendor):
    """A vendor's driver that makes a directory with a file, or a file, where it would mount. It needs no root for it.

    Like mount(8) it follows symbolic links.
    """

    def __init__(self, socket: Path) -> None:
        super().__init__(socket)
        both = [{"rpc": {"type": "STAGE_UNSTAGE_VOLUME"}}, {"rpc": {"type": "EXPAND_VOLUME"}}]
        answer = csi.NodeGetCapabilitiesResponse(capabilities=both)
        self.on("NodeGetCapabilities", lambda _: answer)
        self._looks: defaultdict[str, Callable[[Path], None]] = defaultdict(lambda: lambda _: None)
        for method in ("NodeStageVolume", "NodePublishVolume"):
            self.on(method, self._mount)
        for method in ("NodeUnpublishVolume", "NodeUnstageVolume"):
            self.on(method, self._unmount)

    @property
    def paths(self) -> set[str]:
        """Every path in the calls of its Node service so far."""
        names = ("staging_target_path", "target_path", "volume_path")
        return {path for request in self._requests() for name in names if (path := getattr(request, name, ""))}

    @property
    def mounts(self) -> list[csi.VolumeCapability.MountVolume]:
        """The file system and the mount options of every call of its Node service so far."""
        found = [request.volume_capability for request in self._requests() if hasattr(request, "volume_capability")]
        return [capability.mount for capability in found]

    def _requests(self) -> list[Any]:
        return [call.request for method in NODE_METHODS for call in self.calls(method)]

    def before(self, method: str, look: Callable[[Path], None]) -> None:
        """Call `look` with the path of each later unpublish or unstage, before the driver acts."""
        self._looks[path_of(method)] = look

    def _mount(self, call: VendorCall) -> Message:
        request = call.request
        target = Path(request.target_path if hasattr(request, "target_path") else request.staging_target_path)
        if "Publish" in call.method and request.volume_capability.HasField("block"):
            target.write_text("device")
        else:
            target.mkdir(parents=True, exist_ok=True)
            (target / "content").touch()
        return METHODS[call.method].response()

    def _unmount(self, call: VendorCall) -> Message:
        request = call.request
        target = Path(request.target_path if hasattr(request, "target_path") else request.staging_target_path)
        self._looks[call.method](target)
        with suppress(FileNotFoundError, NotADirectoryError):
            (target / "content").unlink()
        return METHODS[call.method].response()


@dataclass(frozen=True, slots=True)
class Attack:
    """A hostile hub, and the node of its victim."""

    hub: HostileHub  # the attacker's
    agent: Agent  # the agent of node n1, which has accepted the hub
    vendor: PlainVendor  # the vendor's driver on that node
    root: Path  # the agent's root directory
    outside: Path  # a directory beside it, with one file that no attack may touch

    def left_outside(self) -> list[str]:
        """Return the entries of the directory outside the root directory."""
        return sorted(str(path.relative_to(self.outside)) for path in self.outside.rglob("*"))

    async def nothing_left(self) -> None:
        """Wait until the agent has unmounted every volume."""

        def look() -> bool:
            return not plain(ask(self.agent.socket))["volumes"]

        await asyncio.to_thread(wait_for, look, what="clean node", instead=self.agent.process.log_tail)

    async def volume(self, pod: str) -> dict[str, Any]:
        """Wait until the agent has tried to mount a pod's only volume, and return its report of the volume.

        It does not try before the hub has confirmed that the node uses the volume, and reports that it waits.
        """

        def look() -> dict[str, Any]:
            found = [volume for volume in plain(ask(self.agent.socket))["volumes"] if volume["pod"] == pod]
            tried = (one for one in found if one["error"] and "has not confirmed yet" not in one["error"])
            return next((one for one in found if one["state"] == "published"), next(tried, {}))

        return await asyncio.to_thread(wait_for, look, what=f"volume of {pod}", instead=self.agent.process.log_tail)


@asynccontextmanager
async def attack(directory: Path, logs: Path, *flags: str) -> AsyncIterator[Attack]:
    """Start the victim's agent and driver with a link to a hostile hub.

    Args:
        directory: for everything, with a path short enough for sockets.
        logs: for the agent's log.
        flags: further flags of the agent.
    """
    authority, outside = Authority(directory), directory / "outside"
    outside.mkdir()
    (outside / "file").write_text("untouched")
    vendor = PlainVendor(directory / "vendor.sock")
    bridge = Bridge(directory, logs)
    async with HostileHub(authority.hub()) as hub:
        with bridge, vendor:
            all_flags = (f"--hub=wss://{hub.address}", *authority.edge("n1").flags, *flags)
            agent = Agent("n1", hub.address, [vendor.socket], directory, logs, all_flags)
            bridge.members.append(agent)
            await asyncio.to_thread(agent.start)
            await hub.linked()
            await asyncio.to_thread(wait_for, lambda: _knows_driver(agent), what="driver that the agent has asked")
            yield Attack(hub, agent, vendor, directory / "n1-kubelet", outside)
    for mount in reversed(read_table(directory).within(directory)):
        detach_loops(Path(mount))
        unmount(Path(mount))


def _knows_driver(agent: Agent) -> bool:
    status = agent.status()
    found = any("Node" in driver["services"] for driver in status["drivers"])
    return found and bool(status["registered"] or "observe" in status["settings"]["registration"])
