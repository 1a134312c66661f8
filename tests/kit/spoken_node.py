"""An edge node that a test speaks for: it reports any driver, and answers each call as the test says.

A test uses it so:

    with Site(short_dir, tmp_path) as site:
        node = site.told(site.node("n1"), report("vendor.test", "n1", segments={"zone": "a"}))
        node.answers["CreateVolume"] = CreateVolumeResponse(…)
        outcome = site.call(sidecar, "CreateVolume", create("pvc-1"))
"""

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from google.protobuf.message import Message

from common.csi import csi_pb2 as csi
from common.csi.methods import METHODS
from common.csi.reports import (
    CONTROLLER_GET_CAPABILITIES,
    GET_PLUGIN_CAPABILITIES,
    GET_PLUGIN_INFO,
    GROUP_GET_CAPABILITIES,
    NODE_GET_CAPABILITIES,
    NODE_GET_INFO,
    Answer,
    DriverReport,
    encode_reports,
)
from common.messages import Chunk, End, Kind, Open, Ping, Pong, Priority
from common.status import Code, Origin
from tests.kit.answers import path_of
from tests.kit.bridge import Bridge
from tests.kit.certificates import Authority
from tests.kit.operator import node_state
from tests.kit.sidecar import Outcome, Sidecar
from tests.kit.stranger import Stranger, hello
from tests.kit.waiting import wait_for

_REPORTS = 1  # the number of its stream of reports

CAPABILITIES = ("CREATE_DELETE_VOLUME", "PUBLISH_UNPUBLISH_VOLUME", "EXPAND_VOLUME")


def report(
    driver: str,
    node: str,
    *,
    segments: dict[str, str] | None = None,
    name: str | None = None,
    capabilities: tuple[str, ...] = CAPABILITIES,
) -> DriverReport:
    """Return a driver's report. With segments the driver has a topology of its own.

    Args:
        driver: the name under which it is reported.
        segments: the node's topology; None: the driver has none.
        name: the name in GetPluginInfo; None: the driver's.
        capabilities: names of ControllerServiceCapability.RPC.
    """
    services = ["CONTROLLER_SERVICE", *["VOLUME_ACCESSIBILITY_CONSTRAINTS"] * (segments is not None)]
    plugin = csi.GetPluginCapabilitiesResponse()
    for service in services:
        plugin.capabilities.add().service.type = csi.PluginCapability.Service.Type.Value(service)
    controller = csi.ControllerGetCapabilitiesResponse()
    for capability in capabilities:
        controller.capabilities.add().rpc.type = csi.ControllerServiceCapability.RPC.Type.Value(capability)
    info = csi.NodeGetInfoResponse(node_id=f"id-of-{node}")
    info.accessible_topology.segments.update(segments or {})
    answers = {
        GET_PLUGIN_INFO: csi.GetPluginInfoResponse(name=name or driver, vendor_version="1"),
        GET_PLUGIN_CAPABILITIES: plugin,
        CONTROLLER_GET_CAPABILITIES: controller,
        GROUP_GET_CAPABILITIES: csi.GroupControllerGetCapabilitiesResponse(),
        NODE_GET_CAPABILITIES: csi.NodeGetCapabilitiesResponse(),
        NODE_GET_INFO: info,
    }
    return DriverReport(driver, node, {path: Answer(0, body=it.SerializeToString()) for path, it in answers.items()})


@dataclass(frozen=True, slots=True)
class Asked:
    """A call that the hub sent to the node."""

    method: str
    request: Any  # the request, parsed


class SpokenNode(Stranger):
    """A node whose agent is the test."""

    def __init__(self, name: str, to: str | Path, *, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(to, tls=tls)
        self.name = name
        # By method: the response, or the bytes of several. Other methods get an empty one.
        self.answers: dict[str, Message | tuple[bytes, ...]] = {}
        self.asked: list[Asked] = []  # the calls that it has answered
        self._opened: dict[int, Open] = {}
        self._requests: dict[int, bytes] = {}
        self._has_reported = False
        self.greet(hello("edge", name, instance=f"i-{name}"))

    def tell(self, *reports: DriverReport) -> None:
        self.tell_bytes(encode_reports(reports))

    def tell_bytes(self, message: bytes) -> None:
        if not self._has_reported:
            self.frames(Open(_REPORTS, Kind.REPORT, Priority.CONTROL, "", "", "", "", 0))
        self._has_reported = True
        self.frames(Chunk(_REPORTS, 0, message))

    def times_asked(self, method: str) -> int:
        return sum(asked.method == method for asked in self.asked)

    def attend(self) -> None:
        """Answer the calls that have come, or wait a moment for one."""
        while self.has_input():
            for frame in self.next_frames():
                self._take(frame)

    def _take(self, frame: object) -> None:
        match frame:
            case Ping(number):
                self.frames(Pong(number))
            case Open(stream=stream):
                self._opened[stream], self._requests[stream] = frame, b""
            case Chunk(stream, left, payload) if stream in self._opened:
                self._requests[stream] += payload
                if not left:
                    self._answer(stream)

    def _answer(self, stream: int) -> None:
        path, request = self._opened.pop(stream).method, self._requests.pop(stream)
        method = METHODS[path]
        name = path.rpartition("/")[2]
        assert path == path_of(name)
        self.asked.append(Asked(name, method.request.FromString(request)))
        match self.answers.get(name, method.response()):
            case tuple() as bodies:
                self.frames(*(Chunk(stream, 0, body) for body in bodies))  # type: ignore[arg-type]  # bytes
                self.frames(End(stream, Code.OK, "", Origin.VENDOR))
            case answer:
                body = answer.SerializeToString()  # type: ignore[union-attr]  # a message
                self.frames(Chunk(stream, 0, body), End(stream, Code.OK, "", Origin.VENDOR))


def attend(*nodes: SpokenNode, until: Callable[[], bool]) -> None:
    """Let nodes answer their calls until something holds."""

    def look() -> bool:
        for node in nodes:
            node.attend()
        return until()

    wait_for(look, what="the calls' end")


class Site:
    """A running hub with TLS, its proxy drivers, and spoken nodes with certificates of their own."""

    def __init__(self, directory: Path, logs: Path, *hub_flags: str) -> None:
        """Start the hub.

        Args:
            directory: for sockets and state, with a short path.
            logs: for logs and certificates.
            hub_flags: more flags of the hub.
        """
        self.authority = Authority(logs)  # the CA of all
        self.bridge = Bridge(directory, logs)  # the hub and the proxy drivers
        patient = "--keepalive=1m"  # a spoken node answers pings only while a test attends to it
        self.hub = self.bridge.start_hub(*self.authority.hub().flags, patient, *hub_flags)
        self._nodes: list[SpokenNode] = []

    def node(self, name: str, *drivers: str) -> SpokenNode:
        """Connect a node that shows a certificate for its name, and for these drivers; none: for every driver."""
        pem = self.authority.edge(name, drivers=drivers)
        node = SpokenNode(name, self.hub.address, tls=pem.client())
        self._nodes.append(node)
        return node

    def told(self, node: SpokenNode, *reports: DriverReport) -> SpokenNode:
        """Let a node report drivers for the first time, and wait until the hub has taken or refused each report."""
        node.tell(*reports)
        names = {report.driver for report in reports}
        wait_for(
            lambda: names <= {*self.state(node)["drivers"], *self.state(node).get("refused", ())},
            what=f"report of {node.name}",
            instead=lambda: self.state(node),
        )
        return node

    def leave(self, node: SpokenNode) -> None:
        """Close a node's connection, and wait until the hub has noticed."""
        self._nodes.remove(node)
        node.close()
        self.hub.wait_logged(f"edge {node.name} is gone")

    def state(self, node: SpokenNode) -> dict[str, Any]:
        return node_state(self.hub.uds, node.name)

    def sidecar(self, driver: str, *flags: str) -> Sidecar:
        """Return a sidecar of a new proxy driver that has its link to the hub."""
        proxy = self.bridge.start_proxy(driver, *flags)
        proxy.wait_logged("link to the hub at")
        return proxy.sidecar()

    def call(self, sidecar: Sidecar, method: str, request: Message) -> Outcome:
        """Make a sidecar's call, and let the nodes answer until it has ended."""
        pending = sidecar.start(method, request)
        attend(*self._nodes, until=lambda: pending.done)
        return pending.outcome()

    def __enter__(self) -> Self:
        self.bridge.__enter__()
        return self

    def __exit__(self, *failure: object) -> None:
        for node in self._nodes:
            node.close()
        self.bridge.__exit__(*failure)
