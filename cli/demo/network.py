"""The network between agent and hub: a process that relays a port of this machine to another, until it is killed."""

import asyncio
import contextlib
import sys


async def _relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError), contextlib.closing(writer):
        hub_reader, hub_writer = await asyncio.open_connection("127.0.0.1", int(sys.argv[2]))
        await asyncio.gather(_copy(reader, hub_writer), _copy(hub_reader, writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError), contextlib.closing(writer):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()


loop = asyncio.new_event_loop()
loop.run_until_complete(asyncio.start_server(_relay, "127.0.0.1", int(sys.argv[1])))
loop.run_forever()
