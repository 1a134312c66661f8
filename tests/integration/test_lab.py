"""The lab's own link does to a connection what it is told to."""

import asyncio
from contextlib import suppress

from tests.lab.remote import RemoteLink


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


async def test_a_link_relays_counts_delays_and_cuts() -> None:
    server = await asyncio.start_server(_echo, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    link = await asyncio.to_thread(RemoteLink, to=f"{host}:{port}", delay="20ms")
    try:
        reader, writer = await asyncio.open_connection(*link.address.split(":"))
        began = asyncio.get_running_loop().time()
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        assert asyncio.get_running_loop().time() - began >= 0.04
        stats = await asyncio.to_thread(link.command, "stats")
        assert (stats["bytes_up"], stats["bytes_down"], stats["round_trips"]) == (5, 5, 1)

        await asyncio.to_thread(link.command, "cut")
        with suppress(ConnectionResetError):
            assert await reader.read(1) == b""
        writer.close()
    finally:
        await asyncio.to_thread(link.close)
        server.close()
        await server.wait_closed()
