"""A connection that the listener cuts between its ClientHello and the first step of its TLS handshake is closed."""

import asyncio
import socket
import ssl

from common.links.listener import ConnectionLimits, Listener
from common.session.limits import Limits
from common.session.link import LinkHandler, Side
from common.status import Origin
from tests.kit.stranger import hello


def no_context() -> ssl.SSLContext:
    raise AssertionError("the handshake has begun")


async def test_a_connection_that_is_cut_before_its_handshake_begins_is_closed() -> None:
    loop = asyncio.get_running_loop()

    def admits(_group: str) -> bool:
        (connection,) = listener.arriving
        loop.call_soon(connection.cut, "too many")  # before the first step of a task that is created after this
        return True

    sock = socket.create_server(("127.0.0.1", 0))
    listener = Listener(
        sock,
        Side(hello("hub", ""), LinkHandler(Origin.HUB), Limits()),
        tls=no_context,
        most=ConnectionLimits(admits=admits),
    )
    await listener.start()
    reader, writer = await asyncio.open_connection(*sock.getsockname())
    writer.write(b"no TLS record")
    try:
        assert await asyncio.wait_for(reader.read(), 2.0) == b""
    except ConnectionResetError:
        pass
    finally:
        writer.close()
        await listener.close()
    assert not list(listener.arriving)
