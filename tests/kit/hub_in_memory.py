"""A hub in memory, and the links of its peers: no sockets."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from cli.process_options import HUB_OPTIONS
from cloud.hub_pages import HubPages
from cloud.hub_parts import HubParts
from cloud.leadership.incarnation import Incarnation
from cloud.nodes.edge_nodes import Nodes
from cloud.nodes.unique_segments import UniqueSegments
from cloud.parts.sync_part import SyncPart
from common.csi.csi_pb2 import GetPluginInfoResponse
from common.csi.reports import GET_PLUGIN_INFO, Answer, DriverReport, encode_reports
from common.messages import Hello, Kind
from common.net.certificate_ends import CertificateEnds
from common.net.peer import Peer as Address
from common.observe.metrics import Metrics
from common.observe.version import introduce
from common.session.limits import Limits
from common.session.link import Link, Stream
from common.status import Status
from tests.kit.linked import Peer, cut, link_pair
from tests.kit.memory_records import MemoryRecords
from tests.kit.waiting import settle

DRIVER = "d.example"
CREATE = "/csi.v1.Controller/CreateVolume"
NETWORK, SOCKET = Address("10.0.0.1:7", local=False), Address("pid 7 uid 0", local=True, uid=0)


class Hub:
    """A hub in memory, and the links of those who came."""

    def __init__(self, directory: Path, part: SyncPart | None = None) -> None:
        texts = {"state_dir": str(directory), "max_nodes": "3"}
        self.settings = HUB_OPTIONS.read(texts)
        self.records, self.metrics = MemoryRecords(), Metrics()
        self.incarnation = Incarnation(self.records)
        segments = UniqueSegments(self.records, self.settings.unique_topology)
        self.nodes = Nodes(self.records, segments, self.metrics, max_nodes=self.settings.max_nodes)
        parts = HubParts(
            self.settings, self.records, self.incarnation, self.nodes, part or SyncPart(), metrics=self.metrics
        )
        self.hub, self.placement, self.trust = parts.hub, parts.placement, parts.trust
        self.orders, self.calls, self.pages = (
            parts.orders,
            parts.calls,
            HubPages(parts, self.settings, CertificateEnds(None, None, self.metrics)),
        )
        self.links: list[Link] = []

    async def come(
        self,
        hello: Hello,
        address: Address = NETWORK,
        serve: Callable[[Stream], Awaitable[None]] | None = None,
        **limits: int,
    ) -> Link:
        """The link of one who came, at its own end."""
        at_hub, at_peer = link_pair(
            self.hub, Peer(serve, accepts=False), hello, limits=Limits(**limits), identity=address
        )
        await settle()
        self.links.append(at_hub)
        return at_peer

    async def edge(self, name: str = "n1", serve: Callable[[Stream], Awaitable[None]] | None = None) -> Link:
        """An agent, which serves calls as it is told, or answers every one with OK."""
        return await self.come(introduce("edge", name, instance=f"i-{name}", boot=1), serve=serve)

    async def driver(self, name: str = DRIVER, **limits: int) -> Link:
        return await self.come(introduce("driver", name, instance="p"), **limits)

    async def operator(self) -> Link:
        return await self.come(introduce("operator", "", instance="o"), SOCKET)

    async def order(self, name: str, arguments: bytes | None = None, **named: Any) -> tuple[list[bytes], Status]:
        """An operator's order: what the hub says to it, and how it ends."""
        arguments = json.dumps(named).encode() if arguments is None else arguments
        stream = (await self.operator()).open(Kind.ORDER, arguments, method=name)
        said = [message async for message in stream]
        assert stream.status is not None
        return said, stream.status

    async def forget(self, node: str) -> Status:
        """How an operator's order to forget a node ends."""
        _, status = await self.order("forget", node=node)
        return status


@asynccontextmanager
async def running(world: Hub) -> AsyncIterator[Hub]:
    """End a hub and its links with the block."""
    await world.incarnation.count()
    yield world
    cut(*(link for link in world.links if not link.over))
    await settle()
    await world.placement.close()


def report(driver: str = DRIVER, node: str = "n1", *, version: bytes = b"1") -> DriverReport:
    info = GetPluginInfoResponse(name=driver, vendor_version=version.decode())
    return DriverReport(driver, node, {GET_PLUGIN_INFO: Answer(0, body=info.SerializeToString())})


async def with_driver(world: Hub, serve: Callable[[Stream], Awaitable[None]] | None = None) -> Stream:
    """Node n1 with the driver; its stream of reports."""
    reports = (await world.edge(serve=serve)).open(Kind.REPORT, encode_reports([report()]))
    await settle()
    return reports


async def called(link: Link, method: str) -> Status:
    stream = link.open(Kind.CALL, b"request", subject=DRIVER, method=method, call="c-1")
    while await stream.receive() is not None:
        pass
    assert stream.status is not None
    return stream.status
