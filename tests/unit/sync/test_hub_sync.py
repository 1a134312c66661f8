"""The hub serves both sync streams to agents alone, and without a source of objects it says nothing."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cloud.parts.sync_part import SyncPart
from common.messages import Kind
from common.objects.digest import digest_of
from common.objects.sync_messages import Digest as DigestSaid
from common.objects.sync_messages import encode
from common.observe.version import introduce
from common.session.link import Stream
from common.status import Code
from tests.kit.hub_in_memory import NETWORK, SOCKET, Hub, running
from tests.kit.linked import cut
from tests.kit.waiting import settle

DIGEST = encode(DigestSaid(1_000, digest_of({})))


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
    async with running(Hub(tmp_path, SyncPart(sync=server))) as world:
        yield world


async def opened(hub: Hub, role: str, name: str, kind: Kind) -> Stream:
    """A stream that somebody has opened at the hub."""
    link = await hub.come(introduce(role, name, instance="i", boot=1), NETWORK if role == "edge" else SOCKET)
    stream = link.open(kind, DIGEST)
    await settle()
    return stream


async def test_an_agents_streams_are_about_its_own_node(hub: Hub, server: Server) -> None:
    for kind in (Kind.SYNC, Kind.FACTS, Kind.OBSERVE):
        await opened(hub, "edge", "n1", kind)
    assert server.served == [("sync", "n1"), ("facts", "n1"), ("observe", "n1")]


@pytest.mark.parametrize("kind", [Kind.SYNC, Kind.FACTS, Kind.OBSERVE])
async def test_a_hub_without_a_source_says_nothing_and_ends_nothing(tmp_path: Path, kind: Kind) -> None:
    async with running(Hub(tmp_path)) as hub:
        stream = await opened(hub, "edge", "n1", kind)
        assert stream.status is None
        assert not stream._inbox


@pytest.mark.parametrize("role", ["driver", "operator"])
@pytest.mark.parametrize("kind", [Kind.SYNC, Kind.FACTS, Kind.OBSERVE])
async def test_nobody_but_an_agent_is_told_a_nodes_secrets(hub: Hub, kind: Kind, role: str) -> None:
    stream = await opened(hub, role, "d.example" if role == "driver" else "", kind)
    assert stream.status.code == Code.UNIMPLEMENTED


async def test_what_a_node_told_is_forgotten_with_the_node_and_not_with_one_of_its_drivers(
    hub: Hub, server: Server
) -> None:
    await hub.edge("n1")
    assert (await hub.forget("n1")).code == Code.UNAVAILABLE  # it is connected
    assert server.forgotten == []
    cut(hub.links[0])
    server.trouble = "disk on fire"
    told = await hub.forget("n1")
    assert told.message == ("edge node n1 is forgotten, but not its facts: its files cannot be removed: disk on fire")
    server.trouble = ""
    assert (await hub.forget("n1")).code == Code.OK
    assert server.forgotten == ["n1"]
