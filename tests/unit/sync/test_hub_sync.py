"""The hub serves both sync streams to agents alone, and without a source of objects it says nothing."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from cloud.hub_process import assemble
from cloud.placement.sqlite_claims import SqliteClaims
from cloud.store import Store
from cloud.sync_part import SyncPart
from cloud.trust.policy_file import PolicyFile
from cloud.trust.trust_store import TrustStore
from common.certificate_ends import CertificateEnds
from common.digest import Digest
from common.messages import Kind
from common.metrics import Metrics
from common.peer import Peer as Address
from common.status import Code, Status
from common.sync_messages import Digest as DigestSaid
from common.sync_messages import encode
from common.version import introduce
from tests.support.audit import RecordedAudit
from tests.support.linked import Peer, link_pair
from tests.support.waiting import settle, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from cloud.uds_hub import Hub
    from common.link import Stream

DIGEST = encode(DigestSaid(1_000, Digest().sums()))


class Server:
    """Notes which node's stream it serves."""

    def __init__(self) -> None:
        self.served: list[tuple[str, str]] = []
        self.forgotten: list[str] = []
        self.trouble = ""

    def knows(self, node: str) -> bool:
        return node not in self.forgotten

    async def forget(self, node: str) -> None:
        if self.trouble:
            raise OSError(self.trouble)
        self.forgotten.append(node)

    async def serve_sync(self, stream: Stream, node: str) -> None:
        self.served.append(("sync", node))

    async def serve_facts(self, stream: Stream, node: str) -> None:
        self.served.append(("facts", node))

    async def serve_observe(self, stream: Stream, node: str) -> None:
        self.served.append(("observe", node))


@pytest.fixture
def server() -> Server:
    """The server of the hub with a source."""
    return Server()


@pytest.fixture
async def hub(tmp_path: Path, server: Server) -> AsyncIterator[Hub]:
    """A hub with a source."""
    async with made(tmp_path, SyncPart(sync=server)) as hub:
        yield hub


@asynccontextmanager
async def made(directory: Path, part: SyncPart) -> AsyncIterator[Hub]:
    """A hub for as long as the block lasts."""
    store = Store(directory)
    trust = TrustStore(directory)
    made = assemble(
        store,
        SqliteClaims(directory),
        Metrics(),
        part,
        audit=RecordedAudit(),
        trust=trust,
        policy=PolicyFile(None, directory, audit=RecordedAudit()),
        ends=CertificateEnds(None, None, Metrics()),
        insecure=True,
        max_nodes=3,
        settings={},
    )
    yield made.hub
    await made.placement.close()
    await trust.close()
    await store.close()


async def opened(hub: Hub, role: str, name: str, kind: Kind) -> Stream:
    """A stream that somebody has opened at the hub."""
    address = Address("10.0.0.1:7", local=False) if role == "edge" else Address("pid 7 uid 0", local=True, uid=0)
    _, link = link_pair(hub, Peer(accepts=False), introduce(role, name, instance="i", boot=1), identity=address)
    await settle()
    stream = link.open(kind, DIGEST)
    await settle()
    return stream


async def test_an_agents_streams_are_about_its_own_node(hub: Hub, server: Server) -> None:
    for kind in (Kind.SYNC, Kind.FACTS, Kind.OBSERVE):
        await opened(hub, "edge", "n1", kind)
    assert server.served == [("sync", "n1"), ("facts", "n1"), ("observe", "n1")]


@pytest.mark.parametrize("kind", [Kind.SYNC, Kind.FACTS, Kind.OBSERVE])
async def test_a_hub_without_a_source_says_nothing_and_ends_nothing(tmp_path: Path, kind: Kind) -> None:
    async with made(tmp_path, SyncPart()) as hub:
        stream = await opened(hub, "edge", "n1", kind)
        assert stream.status is None
        assert not stream._inbox


@pytest.mark.parametrize("role", ["driver", "operator"])
@pytest.mark.parametrize("kind", [Kind.SYNC, Kind.FACTS, Kind.OBSERVE])
async def test_nobody_but_an_agent_is_told_a_nodes_secrets(hub: Hub, kind: Kind, role: str) -> None:
    stream = await opened(hub, role, "d.example" if role == "driver" else "", kind)
    assert stream.status is not None
    assert stream.status.code == Code.UNIMPLEMENTED


async def test_what_a_node_told_is_forgotten_with_the_node_and_not_with_one_of_its_drivers(
    hub: Hub, server: Server
) -> None:
    at_hub, _ = link_pair(
        hub, Peer(accepts=False), introduce("edge", "n1", instance="i"), identity=Address("10.0.0.1:7", local=False)
    )
    await settle()
    refused = await forgotten(hub, "n1")
    assert refused.code == Code.UNAVAILABLE  # it is connected
    assert server.forgotten == []
    hub.closed(at_hub, "test", "it is gone")
    server.trouble = "disk on fire"
    told = await forgotten(hub, "n1")
    assert told.message == ("edge node n1 is forgotten, but not its facts: its files cannot be removed: disk on fire")
    server.trouble = ""
    assert (await forgotten(hub, "n1")).code == Code.OK
    assert server.forgotten == ["n1"]


async def forgotten(hub: Hub, node: str) -> Status:
    """What an operator is told who lets the hub forget a node."""
    _, link = link_pair(
        hub, Peer(accepts=False), introduce("operator", "", instance="o"), identity=Address("", local=True, uid=0)
    )
    await settle()
    stream = link.open(Kind.FORGET, node=node)
    await until(lambda: stream.status)  # the ledger of placement has a thread of its own
    assert stream.status is not None
    return stream.status
