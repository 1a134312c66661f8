"""The goodbye on real sockets: it is read also by a peer that was just writing, and nobody waits for long after it."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from common.errors import TunnelClosed
from common.links.dial import dial
from common.links.listener import Listener
from common.messages import Kind, Reason
from common.net.endpoint import hub_endpoint
from common.net.sockets import listen_unix
from common.net.tcp import LINGER_S
from common.observe.version import introduce
from common.session.limits import Limits
from common.session.link import Link, Side
from tests.kit.linked import Peer
from tests.kit.waiting import settle


class Accepted(Peer):
    """The listener's side, which remembers its links."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[Link] = []

    def greeted(self, link: Link) -> None:
        super().greeted(link)
        self.links.append(link)


@asynccontextmanager
async def linked(kind: str, directory: Path) -> AsyncIterator[tuple[Link, Link]]:
    """The accepted and the dialled end of one link on a real socket."""
    accepted, path = Accepted(), directory / "hub.sock"
    sock = listen_unix(path, mode=0o600) if kind == "unix" else socket.create_server(("127.0.0.1", 0))
    listener = Listener(sock, Side(introduce("hub", "hub", instance="h"), accepted, Limits()))
    await listener.start()
    address = f"unix://{path}" if kind == "unix" else f"ws://{listener.address}"
    hello = introduce("edge", "n1", instance="i", boot=1)
    try:
        yield await dial(hub_endpoint(address), hello, Peer(accepts=False), limits=Limits()), accepted.links[0]
    finally:
        await listener.close()
        await settle()


@pytest.mark.parametrize("kind", ["unix", "tcp"])
async def test_a_call_that_crosses_the_goodbye_on_the_wire_is_known_to_have_never_been_served(
    short_dir: Path, kind: str
) -> None:
    async with linked(kind, short_dir) as (dialled, accepted):
        transport = dialled.writer._transport  # type: ignore[attr-defined]  # a WebSocket has one  # as if its process were busy
        transport.pause_reading()
        accepted.drain("the hub is shutting down")
        await accepted.wait_closed()
        await settle()
        stream = dialled.open(Kind.CALL, b"request")
        await settle()
        transport.resume_reading()
        with pytest.raises(TunnelClosed, match="the hub is shutting down") as caught:
            await stream.receive()
        assert not caught.value.sent
        assert (await dialled.wait_closed())[0] == Reason.DRAINED


@pytest.mark.parametrize("kind", ["unix", "tcp"])
async def test_a_peer_that_does_not_leave_after_the_goodbye_is_closed_soon(short_dir: Path, kind: str) -> None:
    async with linked(kind, short_dir) as (dialled, accepted):
        transport = dialled.writer._transport  # type: ignore[attr-defined]  # a WebSocket has one
        transport.pause_reading()
        accepted.goodbye(Reason.STOPPED, "enough")
        await asyncio.sleep(2 * LINGER_S)
        assert accepted.writer._transport is None  # type: ignore[attr-defined]  # a WebSocket has one
        transport.resume_reading()
        assert await dialled.wait_closed() == (Reason.STOPPED, "enough")
