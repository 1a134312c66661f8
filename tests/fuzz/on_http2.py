"""The targets of gRPC: HPACK, HTTP/2, the server that sidecars reach, and the client of a registration socket."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.relay import frames
from common.relay.errors import Http2Error
from common.relay.hpack import Decoder, encode
from common.relay.http2 import Http2
from common.relay.server import Server, in_task
from common.relay.server_connection import ServerConnection, ServerSettings
from common.sockets import file_id
from common.status import Code, Status
from edge.registry.plugin_client import PluginClient, PluginSilent
from edge.registry.registration import (
    NodeInfo,
    Registration,
    check_name,
    csi_node_drivers,
    highest_version,
    node_annotations,
    read_node_info,
)
from tests.fuzz.cutter import Cutter

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from common.relay.client_connection import ClientConnection
    from common.relay.hpack import Header
    from common.relay.server_call import ServerCall

_IDS = (0, 1, 2, 3, 5, 7, 9, frames.MAX_STREAM_ID)
_REQUEST = encode(
    [
        (b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/csi.v1.Identity/Probe"), (b":authority", b"x"),
        (b"content-type", b"application/grpc"), (b"te", b"trailers"),
    ]
)  # fmt: skip
_ANSWER = encode([(b":status", b"200"), (b"content-type", b"application/grpc")])
_TRAILERS = encode([(b"grpc-status", b"0")])
_BLOCKS = (_REQUEST, _ANSWER, _TRAILERS, b"")
_BODIES = (b"", b"\0\0\0\0\0", b"\0\0\0\0\2ab", b"\1\0\0\0\0", b"\0\xff\xff\xff\xff")


def hpack(data: bytes) -> None:
    """Header blocks of one connection, and blocks that this side writes."""
    decoder, cut = Decoder(4_096), Cutter(data)
    with contextlib.suppress(Http2Error):
        while cut.left:
            fields = decoder.decode(cut.part())
            assert sum(len(name) + len(value) + 32 for name, value in fields) <= 4_096
            assert Decoder(8_192).decode(encode(fields)) == fields


def http2(data: bytes) -> None:
    """Either end of a connection, with an owner that reads, answers and resets."""
    cut = Cutter(data)
    client = bool(cut.number() & 1)
    owner = _Owner()
    end = Http2(owner, client=client)
    end.start()
    opened = [end.open_stream(_REQUEST) for _ in range(cut.number() % 3)] if client else []
    with contextlib.suppress(Http2Error):
        if not client:
            end.receive(frames.PREFACE)
        while cut.left:
            end.receive(_some_frames(cut))
            for stream_id, size in owner.unread:
                end.consumed(stream_id, size)
            owner.unread.clear()
            if opened and cut.number() & 1:
                stream_id = cut.choose(opened)
                if room := end.sendable_bytes(stream_id):
                    end.send_data(stream_id, bytes(min(room, 100)), end=bool(cut.number() & 1))
            assert len(end.take()) < 1 << 20


def serving(data: bytes) -> None:
    """The server's connection, with a handler that echoes each request."""
    _run(_serving(Cutter(data)))


async def _serving(cut: Cutter) -> None:
    server = Server(in_task(_echo), _SETTINGS)
    connection = ServerConnection(server)
    wire = _Wire(connection)
    connection.connection_made(wire)
    connection.data_received(frames.PREFACE)
    while cut.left and not wire.is_closing():
        connection.data_received(_some_frames(cut))
        await asyncio.sleep(0)
    wire.lose()
    for _ in range(10):
        await asyncio.sleep(0)
    assert not server.connections
    assert server.calls_in_flight == 0


def registering(data: bytes) -> None:
    """A plugin's answers: the bytes on its registration socket, then its offer and its node's data."""
    cut = Cutter(data)
    if cut.number() & 1:
        _run(_asking(cut))
        return
    names, versions = [cut.text(), "d.example"], [cut.text(), "1.0.0"]
    with contextlib.suppress(ValueError):
        check_name(cut.choose(names))
        assert highest_version((cut.choose(versions), *versions))[0] == 1
    with contextlib.suppress(ValueError):
        info = read_node_info(cut.part(), cut.rest())
        assert isinstance(info, NodeInfo)
        found = Registration("d.example", "unix:///d", "/d-reg.sock", (1,), info)
        assert csi_node_drivers([found])
        assert node_annotations([found])


async def _asking(cut: Cutter) -> None:
    """Call GetInfo of a plugin that answers these bytes."""
    loop = asyncio.get_running_loop()
    made: list[ClientConnection] = []
    wires: list[_Wire] = []

    async def connect(factory: Any, _path: str) -> tuple[_Wire, ClientConnection]:
        connection = factory()
        made.append(connection)
        wires.append(_Wire(connection))
        connection.connection_made(wires[-1])
        return wires[-1], connection

    loop.create_unix_connection = connect  # type: ignore[assignment]  # no real socket: thousands of cases a second
    plugin = PluginClient(str(_socket()), file_id(str(_socket())))
    asking = asyncio.ensure_future(plugin.get_info())
    await asyncio.sleep(0)
    for _ in range(3):
        await asyncio.sleep(0)
    while cut.left and not asking.done():
        for connection in made:
            connection.data_received(_some_frames(cut))
        for _ in range(4):
            await asyncio.sleep(0)
    for wire in wires:
        wire.lose()
    for _ in range(20):
        await asyncio.sleep(0)
    if not asking.done():  # it waits for another dial, as after a connection that ended too early
        asking.cancel()
    with contextlib.suppress(PluginSilent, asyncio.CancelledError):
        kind, offer = await asking
        assert isinstance(kind, str)
        assert isinstance(offer.versions, tuple)
    await plugin.close()


@cache
def _socket() -> Path:
    """A file in place of a socket: only its identity matters."""
    return Path(tempfile.mkstemp(prefix="csi-fuzz-")[1])


class _Owner:
    def __init__(self) -> None:
        self.unread: list[tuple[int, int]] = []

    def headers_received(self, stream_id: int, headers: list[Header], *, ended: bool) -> None:
        pass

    def body_received(self, stream_id: int, data: memoryview, flow_bytes: int, *, ended: bool) -> None:
        self.unread.append((stream_id, flow_bytes))

    def stream_reset(self, stream_id: int, code: int) -> None:
        pass

    def window_opened(self) -> None:
        pass

    def settings_received(self) -> None:
        pass

    def ping_acknowledged(self, data: bytes) -> None:
        pass

    def goaway_received(self, last_stream_id: int, code: int, debug: bytes) -> None:
        pass


class _Wire(asyncio.Transport):
    """A transport whose other end reads everything at once. `lose` cuts it."""

    def __init__(self, protocol: asyncio.BaseProtocol) -> None:
        super().__init__()
        self._protocol, self._closing, self._lost = protocol, False, False

    def lose(self) -> None:
        if not self._lost:
            self._closing = self._lost = True
            self._protocol.connection_lost(None)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: object) -> None:
        pass

    def close(self) -> None:
        self._closing = True
        asyncio.get_running_loop().call_soon(self.lose)

    abort = close

    def is_closing(self) -> bool:
        return self._closing

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


async def _echo(call: ServerCall) -> None:
    await call.send(call.request)
    call.finish(Status(Code.OK))


_SETTINGS = ServerSettings(
    max_message_bytes=1_000,
    on_error=lambda error: Status(Code.UNAVAILABLE, str(error)),
    too_large=lambda size: Status(Code.UNAVAILABLE, str(size)),
    on_deadline=lambda _: Status(Code.DEADLINE_EXCEEDED),
    max_connections=10,
)


def _some_frames(cut: Cutter) -> bytes:
    if not cut.number() % 4:
        return cut.part()
    kind, flags, stream_id = cut.number() % 11, cut.number(), cut.choose(_IDS)
    match cut.number() % 4:
        case 0:
            payload = cut.choose(_BLOCKS)
        case 1:
            payload = cut.choose(_BODIES)
        case _:
            payload = cut.take(cut.number())
    head = len(payload).to_bytes(3, "big") + bytes((kind, flags & 0x2D)) + stream_id.to_bytes(4, "big")
    return head + payload


@cache
def _loop() -> asyncio.AbstractEventLoop:
    logging.getLogger("csi_bridge.relay").addHandler(_NoBugs())
    logging.getLogger("csi_bridge.relay").propagate = False
    return asyncio.new_event_loop()


def _run(case: Coroutine[Any, Any, None]) -> None:
    """Run a case on one loop. An error that the connection itself would have logged as a bug is one."""
    loop = _loop()
    _NoBugs.found = None
    loop.run_until_complete(case)
    if _NoBugs.found is not None:
        raise _NoBugs.found


class _NoBugs(logging.Handler):
    found: BaseException | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            _NoBugs.found = record.exc_info[1]
