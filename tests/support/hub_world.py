"""A hub in memory, and the links of its peers: no sockets."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from cloud.hub_process import assemble
from cloud.placement.sqlite_claims import SqliteClaims
from cloud.store import Store
from cloud.sync_part import SyncPart
from cloud.trust.policy_file import PolicyFile
from cloud.trust.trust_store import TrustStore
from common.certificate_ends import CertificateEnds
from common.csi.csi_pb2 import GetPluginInfoResponse
from common.limits import Limits
from common.messages import Hello, Kind
from common.metrics import Metrics
from common.peer import Peer as Address
from common.reports import GET_PLUGIN_INFO, Answer, DriverReport, encode_reports
from common.version import introduce
from tests.support.audit import RecordedAudit
from tests.support.linked import Peer, cut, link_pair
from tests.support.waiting import settle

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from common.link import Link, Stream
    from common.status import Status

DRIVER = "d.example"
SETTINGS = {"state_dir": ["/var/lib/x"]}
CREATE = "/csi.v1.Controller/CreateVolume"
NETWORK, SOCKET = Address("10.0.0.1:7", local=False), Address("pid 7 uid 0", local=True, uid=0)


class World:
    """A hub in memory, and the links of those who came."""

    def __init__(
        self, directory: Path, part: SyncPart | None = None, max_nodes: int = 3, policy: str | None = None
    ) -> None:
        self.store, self.metrics, self.audit = Store(directory), Metrics(), RecordedAudit()
        self.policy_path = directory / "policy.yaml"
        if policy is not None:
            self.policy_path.write_text(policy)
        self.policy = PolicyFile(self.policy_path if policy is not None else None, directory, audit=self.audit)
        self.trust = TrustStore(directory)
        made = assemble(
            self.store,
            SqliteClaims(directory),
            self.metrics,
            part or SyncPart(),
            audit=self.audit,
            trust=self.trust,
            policy=self.policy,
            ends=CertificateEnds(None, None, self.metrics),
            insecure=True,
            max_nodes=max_nodes,
            settings=SETTINGS,
        )
        self.hub, self.nodes, self.placement, self.pages = made.hub, made.nodes, made.placement, made.pages
        self.orders, self.credentials, self.generations = made.orders, made.credentials, made.generations
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
        """A proxy driver."""
        return await self.come(introduce("driver", name, instance="p"), **limits)

    async def operator(self) -> Link:
        """An operator."""
        return await self.come(introduce("operator", "", instance="o"), SOCKET)


@asynccontextmanager
async def running(world: World) -> AsyncIterator[World]:
    """End a hub and its links with the block."""
    yield world
    cut(*(link for link in world.links if not link.over))
    await settle()
    await world.placement.close()
    await world.trust.close()
    await world.store.close()


def report(driver: str = DRIVER, node: str = "n1", *, version: bytes = b"1") -> DriverReport:
    info = GetPluginInfoResponse(name=driver, vendor_version=version.decode())
    return DriverReport(driver, node, {GET_PLUGIN_INFO: Answer(0, body=info.SerializeToString())})


async def with_driver(world: World, serve: Callable[[Stream], Awaitable[None]] | None = None) -> Stream:
    """Node n1 with the driver; its stream of reports."""
    reports = (await world.edge(serve=serve)).open(Kind.REPORT, encode_reports([report()]))
    await settle()
    return reports


async def called(link: Link, method: str, *, driver: str = DRIVER) -> Status:
    """How a call ends."""
    stream = link.open(Kind.CALL, b"request", subject=driver, method=method, call="c-1")
    while await stream.receive() is not None:
        pass
    assert stream.status is not None
    return stream.status
