"""A forwarder: one address of two hubs, as a load balancer's that asks each one whether it leads."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING, Self

from tests.kit.ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Sequence


class Forwarder:
    """Accepts connections at `address`, and leads each to the hub that leads."""

    def __init__(self, hubs: Sequence[tuple[str, str]]) -> None:
        """Take the address of each hub, and that of its `--http`."""
        (self._port,) = free_ports(1)
        self.address = f"127.0.0.1:{self._port}"
        self._hubs = hubs
        self._loop: asyncio.AbstractEventLoop
        self._over: asyncio.Event
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="forwarder")

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()

    async def _run(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        async with await asyncio.start_server(self._serve, "127.0.0.1", self._port):
            self._ready.set()
            await self._over.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for address, http in self._hubs:
            try:
                async with asyncio.timeout(1.0):
                    if not await _leads(http):
                        continue
                    hub_reader, hub_writer = await _dial(address)
            except (OSError, TimeoutError):
                continue
            pipes = [asyncio.create_task(_pipe(*it)) for it in ((reader, hub_writer), (hub_reader, writer))]
            try:
                await asyncio.wait(pipes, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pipe in pipes:
                    pipe.cancel()
                hub_writer.transport.abort()
                writer.transport.abort()
            return
        writer.transport.abort()


async def _dial(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = address.partition(":")
    return await asyncio.open_connection(host, int(port))


async def _leads(http: str) -> bool:
    reader, writer = await _dial(http)
    try:
        writer.write(b"GET /readyz/active HTTP/1.1\r\nHost: hub\r\nConnection: close\r\n\r\n")
        return b" 200 " in await reader.readline()
    finally:
        writer.transport.abort()


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
