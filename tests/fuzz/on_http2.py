"""The targets of gRPC: HPACK, HTTP/2, the server that sidecars reach, and the client of a registration socket."""

import asyncio
import contextlib
import logging
import tempfile
from collections.abc import Coroutine
from functools import cache
from pathlib import Path
from typing import Any

from common.net.sockets import file_id
from common.relay import frames
from common.relay.client_connection import ClientConnection
from common.relay.errors import Http2Error
from common.relay.hpack import Decoder, encode
from common.relay.server import in_task
from common.relay.server_call import ServerCall
from common.status import Code, Status
from edge.registry.plugin_client import NotRegistered, PluginClient
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
from tests.kit.http2 import Calling, Ends, Messages, Serving, Wire

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
    """The client's connection, with calls of both kinds."""
    _run(_calling(Cutter(data)))


async def _calling(cut: Cutter) -> None:
    end = Calling(limit=1_000).begun()
    calls, ends = [], [Ends(), Ends(), Messages()]
    while cut.left and not end.wire.is_closing():
        if len(calls) < len(ends) and cut.number() & 1:
            calls.append(end.call(ends[len(calls)], bytes(cut.number(2))))
        end.receive(_some_frames(cut))
        if calls and not cut.number() % 8:
            cut.choose(calls).cancel()
        assert sum(map(len, end.wire.writes)) < 1 << 20
        await asyncio.sleep(0)
    end.wire.lose()
    for _ in range(10):
        await asyncio.sleep(0)
    assert not end.connection.streams
    assert not end.connection.outgoing
    assert all(len(each.seen) <= 1 for each in ends if not isinstance(each, Messages))
    end.connection.ready.cancelled() or end.connection.ready.exception()


def serving(data: bytes) -> None:
    """The server's connection, with a handler that echoes each request, at once or in a task."""
    _run(_serving(Cutter(data)))


async def _serving(cut: Cutter) -> None:
    end = Serving(in_task(_echo) if cut.number() & 1 else _echo_at_once, limit=1_000)
    end.receive(frames.PREFACE)
    while cut.left and not end.wire.is_closing():
        end.receive(_some_frames(cut))
        await asyncio.sleep(0)
    end.wire.lose()
    for _ in range(10):
        await asyncio.sleep(0)
    assert not end.server.connections
    assert not end.connection.outgoing
    assert end.server.calls_in_flight == 0


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
    wires: list[Wire] = []

    async def connect(factory: Any, _path: str) -> tuple[Wire, ClientConnection]:
        connection = factory()
        made.append(connection)
        wires.append(Wire(connection))
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
    with contextlib.suppress(NotRegistered, asyncio.CancelledError):
        kind, offer = await asking
        assert isinstance(kind, str)
        assert isinstance(offer.versions, tuple)
    await plugin.close()


@cache
def _socket() -> Path:
    """A file in place of a socket: only its identity matters."""
    return Path(tempfile.mkstemp(prefix="csi-fuzz-")[1])


def _echo_at_once(call: ServerCall) -> None:
    call.answer(Status(Code.OK), call.request)


async def _echo(call: ServerCall) -> None:
    await call.send(call.request)
    call.finish(Status(Code.OK))


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
