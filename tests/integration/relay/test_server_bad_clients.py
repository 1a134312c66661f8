"""The gRPC server against clients that break the rules: each ends in a clear answer, and no other client notices."""

import asyncio
import logging
from pathlib import Path

import pytest

from common.relay.connection import WRITE_STUCK_BYTES
from common.relay.frames import PREFACE
from common.relay.hpack import Decoder
from common.relay.server import Server, ServerCall
from common.status import Code, Status
from tests.integration.relay.support import MIB, RawPeer, echo, raw_sidecar_at, serving, sidecar_at
from tests.kit.http2 import REQUEST, SETTINGS, fields, message, wire
from tests.kit.waiting import until


def unread(server: Server) -> int:
    """What waits to be read by the client that is furthest behind, in bytes."""
    transports = [connection.transport for connection in server.connections if connection.transport]
    return max((transport.get_write_buffer_size() for transport in transports), default=0)


def request(*more: tuple[str, str], without: str = "") -> bytes:
    """A HEADERS frame of a call on stream 1; `more` replaces or adds fields."""
    merged = REQUEST | dict(more)
    merged.pop(without, None)
    return wire(1, 4, 1, fields(*merged.items()))


TWO = wire(0, 1, 1, message(b"1") + message(b"2"))
GZIP = wire(0, 1, 1, b"\1\0\0\0\1x")
HUGE = wire(0, 0, 1, b"\0\xff\xff\xff\xff")
CUT = wire(0, 1, 1, b"\0\0\0\0\5abc")


async def answer(peer: RawPeer) -> dict[bytes, bytes]:
    """The fields of the first header block that comes."""
    _, _, _, block = await peer.frame(1)
    return dict(Decoder(1 << 16).decode(block))


@pytest.mark.parametrize(
    ("frames", "http_status", "code", "text"),
    [
        pytest.param(request(without="content-type"), b"415", Code.UNAVAILABLE, b"content-type", id="no content-type"),
        pytest.param(request(("content-type", "text/html")), b"415", Code.UNAVAILABLE, b"content-type", id="HTML"),
        pytest.param(request((":method", "GET")), b"405", Code.UNAVAILABLE, b"POST", id="GET"),
        pytest.param(request(("grpc-timeout", "soon")), b"200", Code.UNAVAILABLE, b"grpc-timeout", id="a bad time-out"),
        pytest.param(request((":path", "/\u20ac")), b"200", Code.UNAVAILABLE, b"malformed", id="a path not ASCII"),
        pytest.param(request() + TWO, b"200", Code.UNAVAILABLE, b"more than one", id="two messages"),
        pytest.param(request() + CUT, b"200", Code.UNAVAILABLE, b"cut short", id="cut short"),
        pytest.param(request() + wire(0, 1, 1), b"200", Code.UNAVAILABLE, b"missing", id="no message"),
        pytest.param(request() + wire(1, 5, 1, b""), b"200", Code.UNAVAILABLE, b"missing", id="trailers alone"),
        pytest.param(request() + GZIP, b"200", Code.UNIMPLEMENTED, b"compressed", id="gzip"),
        pytest.param(
            request() + HUGE, b"200", Code.UNAVAILABLE, b"a request of 4294967295 bytes is larger", id="4 GiB"
        ),
    ],
)
async def test_a_call_that_breaks_grpcs_rules_is_refused_alone(
    path: Path, frames: bytes, http_status: bytes, code: Code, text: bytes
) -> None:
    async with serving(path, echo) as server, raw_sidecar_at(path) as peer:
        await peer.send(frames)
        got = await answer(peer)
        assert (got[b":status"], got[b"grpc-status"]) == (http_status, b"%d" % code)
        assert text in got[b"grpc-message"]
        await peer.send(wire(6, 0, 0, b"still on"))
        assert (await peer.frame(6, ack=True))[3] == b"still on"
        assert len(server.connections) == 1
        assert server.calls_in_flight == 0


@pytest.mark.parametrize(
    ("hello", "goaway"),
    [
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", 1, id="HTTP/1.1"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01", 1, id="TLS"),
        pytest.param(PREFACE + wire(6, 0, 0, b"12345678"), 1, id="no settings"),
        pytest.param(PREFACE + SETTINGS + wire(8, 0, 0, b"\x7f\xff\xff\xff"), 3, id="a window too large"),
    ],
)
async def test_a_client_that_breaks_http2_loses_its_connection_and_no_other_does(
    path: Path, hello: bytes, goaway: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with serving(path, echo), sidecar_at(path) as sidecar:
        assert await sidecar.unary_unary("/a/B")(b"before") == b"before"
        async with raw_sidecar_at(path, hello) as peer:
            last = (await peer.rest())[-1]
        assert last[0] == 7
        assert int.from_bytes(last[3][4:8], "big") == goaway
        assert await sidecar.unary_unary("/a/B")(b"after") == b"after"
    assert "broke the rules of HTTP/2" in caplog.text


async def test_a_client_that_never_reads_stops_its_own_answers_alone(path: Path) -> None:
    sent = 0

    async def handler(call: ServerCall) -> None:
        nonlocal sent
        if call.method == "/a/B":
            for _ in range(1000):
                await call.send(b"x" * MIB)
                sent += 1
        await echo(call)

    async with serving(path, handler) as server, raw_sidecar_at(path) as peer, sidecar_at(path) as sidecar:
        window = wire(8, 0, 0, b"\x7f\x00\x00\x00")
        await peer.send(wire(4, 0, 0, b"\0\4\x7f\xff\xff\xff"), window, request(), wire(0, 1, 1, message(b"")))
        for _ in range(20):
            assert await sidecar.unary_unary("/a/Other")(b"served") == b"served"
        assert sent < 5
        assert server.calls_in_flight == 1


async def test_a_client_that_pings_and_never_reads_is_not_read_from_either(path: Path) -> None:
    async with serving(path, echo) as server, raw_sidecar_at(path) as peer, sidecar_at(path) as sidecar:
        flood = asyncio.ensure_future(peer.send(*[wire(6, 0, 0, b"12345678")] * (8 * MIB // 17)))
        await until(lambda: unread(server) >= WRITE_STUCK_BYTES)
        await asyncio.wait([flood], timeout=0.5)
        assert not flood.done()
        assert WRITE_STUCK_BYTES <= unread(server) < 3 * WRITE_STUCK_BYTES
        assert await sidecar.unary_unary("/a/B")(b"served") == b"served"
        while not flood.done():
            await peer.reader.read(MIB)
        assert await sidecar.unary_unary("/a/B")(b"served") == b"served"


async def test_a_send_cut_by_its_handler_still_goes_out_whole_before_the_status(path: Path) -> None:
    async def handler(call: ServerCall) -> None:
        try:
            async with asyncio.timeout(0.02):
                await call.send(b"x" * 100_000)
        except TimeoutError:
            assert call.finish(Status(Code.UNAVAILABLE, "too slow")) is False

    async with serving(path, handler), raw_sidecar_at(path) as peer:
        await peer.send(request(), wire(0, 1, 1, message(b"")))
        got = 0
        while got < 65_535:
            got += len((await peer.frame(0))[3])
        await asyncio.sleep(0.05)
        await peer.send(wire(8, 0, 0, b"\0\1\0\0"), wire(8, 0, 1, b"\0\1\0\0"))
        while got < 100_005:
            got += len((await peer.frame(0))[3])
        await peer.frame(1)
        assert (await peer.frame(1))[1] & 1


async def test_a_client_that_says_nothing_is_closed_in_the_end(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("common.relay.server.PREFACE_TIMEOUT_S", 0.05)
    async with serving(path, echo) as server:
        reader, writer = await asyncio.open_unix_connection(str(path))
        while await reader.read(1000):
            pass
        writer.close()
        assert not server.connections
