"""What the relay's tests share: gRPC peers of grpcio's, a bare HTTP/2 peer made by hand, and our own two ends."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from common.errors import CallError
from common.net.sockets import listen_unix
from common.relay.client import Channel
from common.relay.frames import PREFACE
from common.relay.server import CancelReason, Server, ServerCall, ServerSettings, in_task
from common.status import Code, Origin, Status
from tests.kit.http2 import SETTINGS, Frame, cut_frames, wire

MIB = 1 << 20
UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


SETTINGS_ACK = wire(4, 1, 0)


# grpcio's peers -----------------------------------------------------------------------------------------------------

Behaviour = Callable[[bytes, grpc.ServicerContext], Any]


class Vendor(grpc.GenericRpcHandler):
    """A vendor's driver on grpcio: methods by the last part of their path. A generator function makes a stream."""

    def __init__(self, **methods: Behaviour) -> None:
        self.methods = {"Echo": lambda request, _context: request} | methods
        self.streams = {"Count"} | {name for name in methods if name.startswith("Stream")}

    def service(self, details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[bytes, bytes] | None":
        name = details.method.rpartition("/")[2]
        if name not in self.methods:
            return None
        make = grpc.unary_stream_rpc_method_handler if name in self.streams else grpc.unary_unary_rpc_method_handler
        return make(self.methods[name])


@contextlib.contextmanager
def vendor_at(path: Path, options: list[tuple[str, Any]] = UNLIMITED, **methods: Behaviour) -> Iterator[grpc.Server]:
    server = grpc.server(futures.ThreadPoolExecutor(64), options=options)
    server.add_generic_rpc_handlers([Vendor(**methods)])
    server.add_insecure_port(f"unix://{path}")
    server.start()
    try:
        yield server
    finally:
        server.stop(0).wait(5)


@contextlib.asynccontextmanager
async def sidecar_at(path: Path, options: list[tuple[str, Any]] = UNLIMITED) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(f"unix://{path}", options=options) as channel:
        yield channel


# Our two ends -------------------------------------------------------------------------------------------------------


def on_error(error: BaseException | CancelReason | None) -> Status:
    if error is CancelReason.DEADLINE:
        return Status(Code.DEADLINE_EXCEEDED, error, Origin.PROXY)
    if isinstance(error, CallError | CancelReason):
        return Status(Code.UNAVAILABLE, str(error))
    return Status(Code.UNAVAILABLE, f"on_error: {type(error).__name__}")


@contextlib.asynccontextmanager
async def serving(
    path: Path,
    handler: Callable[[ServerCall], Coroutine[Any, Any, None]],
    *,
    max_message_bytes: int = 8 * MIB,
    max_connections: int = 1_024,
) -> AsyncIterator[Server]:
    server = Server(in_task(handler), ServerSettings(max_message_bytes, on_error, max_connections))
    await server.listen(listen_unix(path, mode=0o600))
    try:
        yield server
    finally:
        await server.close()


@contextlib.asynccontextmanager
async def channel_to(path: Path, **settings: Any) -> AsyncIterator[Channel]:
    channel = Channel(path, **({"max_message_bytes": 8 * MIB} | settings))
    try:
        yield channel
    finally:
        await channel.close()


async def echo(call: ServerCall) -> None:
    await call.send(call.request)
    call.finish(Status(Code.OK))


# A peer made by hand ------------------------------------------------------------------------------------------------


class RawPeer:
    """The far end of a socket, which reads frames and writes bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, preface: bytes = b"") -> None:
        self.reader, self.writer = reader, writer
        self.frames: list[Frame] = []
        self._preface, self._rest = preface, b""

    async def send(self, *parts: bytes) -> None:
        self.writer.write(b"".join(parts))
        await self.writer.drain()

    async def frame(self, kind: int, *, ack: bool | None = None) -> Frame:
        """The next frame of a kind; others stay for later. Fails when the connection ends first."""
        while True:
            for at, found in enumerate(self.frames):
                if found[0] == kind and (ack is None or bool(found[1] & 1) == ack):
                    return self.frames.pop(at)
            await self.more()

    async def more(self) -> None:
        """Read some more frames. Fails when the connection ends first."""
        if not (data := await self.reader.read(65_536)):
            raise EOFError(f"the connection ended; before that came {self.frames}")
        self._rest += data
        if self._preface and self._rest.startswith(self._preface):
            self._rest, self._preface = self._rest[len(self._preface) :], b""
        found, self._rest = cut_frames(self._rest)
        self.frames += found

    async def rest(self) -> list[Frame]:
        """All frames until the connection ends."""
        with contextlib.suppress(EOFError, ConnectionError):
            await self.frame(-1)
        return self.frames

    def close(self) -> None:
        self.writer.close()


@contextlib.asynccontextmanager
async def raw_sidecar_at(path: Path, *hello: bytes) -> AsyncIterator[RawPeer]:
    """A sidecar that speaks bytes. Says hello like HTTP/2 if nothing else is given."""
    reader, writer = await asyncio.open_unix_connection(str(path))
    peer = RawPeer(reader, writer)
    try:
        await peer.send(*(hello or (PREFACE, SETTINGS)))
        yield peer
    finally:
        writer.close()


@contextlib.asynccontextmanager
async def raw_vendor_at(path: Path, behave: Callable[[RawPeer], Awaitable[None]]) -> AsyncIterator[asyncio.Server]:
    """A vendor that speaks bytes: `behave` has each connection, which ends when it returns, or with the vendor."""
    connections: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, EOFError):
            try:
                await behave(RawPeer(reader, writer, PREFACE))
            finally:
                writer.close()
                await writer.wait_closed()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.add(asyncio.create_task(serve(reader, writer)))

    sock = socket.socket(socket.AF_UNIX)
    sock.bind(str(path))
    server = await asyncio.start_unix_server(connected, sock=sock)
    try:
        yield server
    finally:
        server.close()
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
