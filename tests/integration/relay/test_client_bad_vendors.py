"""The gRPC client against drivers that break the rules, die, or never answer: no status is ever made up."""

import asyncio
import os
import re
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from common.relay import frames
from common.relay.client import Channel
from common.relay.errors import (
    VendorConnectionError,
    VendorUnreachable,
)
from common.status import Code, Status
from tests.integration.relay.support import MIB, RawPeer, channel_to, raw_vendor_at, vendor_at
from tests.kit.http2 import SETTINGS, fields, wire
from tests.kit.waiting import until

HEADERS = wire(1, 4, 1, fields((":status", "200"), ("content-type", "application/grpc")))
HTML = wire(1, 4, 1, fields((":status", "200"), ("content-type", "text/html")))
NO_TYPE = wire(1, 4, 1, fields((":status", "200")))
NO_STATUS = wire(1, 5, 1, fields(("x", "y")))
CONTINUE = wire(1, 4, 1, fields((":status", "100")))
ALONE = wire(
    1,
    5,
    1,
    fields((":status", "200"), ("content-type", "application/grpc"), ("grpc-status", "14"), ("grpc-message", " x%0A")),
)
CUT = wire(0, 0, 1, b"\0\0\0\0\2h")
COMPRESSED = wire(0, 0, 1, b"\1\0\0\0\2hi")
MESSAGE = wire(0, 0, 1, b"\0\0\0\0\2hi")


def trailers(code: object, message: str = "", stream: int = 1) -> bytes:
    return wire(1, 5, stream, fields(("grpc-status", str(code)), ("grpc-message", message)))


def answering(*frames: bytes, hold: bool = True) -> Callable[[RawPeer], Awaitable[None]]:
    """A vendor that answers the first request with these bytes, and then answers pings or closes."""

    async def behave(peer: RawPeer) -> None:
        await peer.send(SETTINGS)
        await peer.frame(0)
        await peer.send(*frames)
        while hold:
            await peer.send(wire(6, 1, 0, (await peer.frame(6, ack=False))[3]))

    return behave


async def outcome(channel: Channel) -> tuple[Status, bytes | None] | VendorConnectionError:
    try:
        return await asyncio.wait_for(channel.call("/a/B", b"request").unary(), 30)
    except VendorConnectionError as error:
        return error


@pytest.mark.parametrize(
    ("frames", "kind", "text"),
    [
        pytest.param([wire(1, 5, 1, fields((":status", "503")))], VendorConnectionError, "HTTP status 503", id="503"),
        pytest.param([HTML], VendorConnectionError, "content-type text/html", id="HTML"),
        pytest.param([NO_TYPE], VendorConnectionError, "no content-type", id="no type"),
        pytest.param([wire(1, 4, 1, fields(("x", "y")))], VendorConnectionError, "HTTP status", id="no HTTP status"),
        pytest.param([HEADERS, HEADERS], VendorConnectionError, "headers twice", id="headers twice"),
        pytest.param([MESSAGE], VendorConnectionError, "before response headers", id="data first"),
        pytest.param([HEADERS, MESSAGE, wire(0, 1, 1)], VendorConnectionError, "without trailers", id="no trailers"),
        pytest.param([HEADERS, MESSAGE, NO_STATUS], VendorConnectionError, "no grpc-status", id="no status"),
        pytest.param([HEADERS, MESSAGE, trailers("ok")], VendorConnectionError, "grpc-status b'ok'", id="words"),
        pytest.param([HEADERS, trailers(0)], VendorConnectionError, "OK without a message", id="OK without a message"),
        pytest.param(
            [HEADERS, MESSAGE, MESSAGE, trailers(0)], VendorConnectionError, "more than one", id="two messages"
        ),
        pytest.param([HEADERS, CUT, trailers(0)], VendorConnectionError, "cut short", id="cut short"),
        pytest.param([HEADERS, COMPRESSED], VendorConnectionError, "compressed", id="compressed"),
        pytest.param([wire(3, 0, 1, b"\0\0\0\2")], VendorConnectionError, "INTERNAL_ERROR", id="reset: internal error"),
        pytest.param([HEADERS, wire(3, 0, 1, b"\0\0\0\x08")], VendorConnectionError, "CANCEL", id="reset: cancel"),
        pytest.param(
            [HEADERS, MESSAGE, wire(3, 0, 1, b"\0\0\0\0")], VendorConnectionError, "NO_ERROR", id="reset: no error"
        ),
        pytest.param([wire(3, 0, 1, b"\0\0\x10\0")], VendorConnectionError, "4096", id="reset: an unknown code"),
        pytest.param([wire(0, 0, 9, b"x")], VendorConnectionError, "broke HTTP/2", id="data on a stream never opened"),
        pytest.param([b"garbage that is no frame at all"], VendorConnectionError, "broke HTTP/2", id="garbage"),
        pytest.param([wire(5, 4, 1, b"\0\0\0\2")], VendorConnectionError, "PUSH_PROMISE", id="a push"),
        pytest.param([wire(1, 4, 1, b"\xff")], VendorConnectionError, "header block", id="a broken header block"),
    ],
)
async def test_an_answer_that_is_not_grpcs_is_an_error_that_says_why(
    path: Path, frames: list[bytes], kind: type[VendorConnectionError], text: str
) -> None:
    async with raw_vendor_at(path, answering(*frames)), channel_to(path) as channel:
        result = await outcome(channel)
    assert type(result) is kind
    assert text in str(result)
    assert result.sent is True


@pytest.mark.parametrize(
    ("frames", "result"),
    [
        pytest.param([HEADERS, MESSAGE, trailers(0)], (Status(0), b"hi"), id="OK"),
        pytest.param([HEADERS, MESSAGE, trailers(5, "gone")], (Status(5, "gone"), None), id="a status after a message"),
        pytest.param(
            [HEADERS, CUT, trailers(5, "gone")], (Status(5, "gone"), None), id="a status after half a message"
        ),
        pytest.param([CONTINUE, HEADERS, MESSAGE, trailers(0)], (Status(0), b"hi"), id="100 first"),
        pytest.param([HEADERS, MESSAGE, trailers(77, "odd")], (Status(77, "odd"), None), id="a code nobody knows"),
        pytest.param([ALONE], (Status(14, " x\n"), None), id="trailers alone"),
    ],
)
async def test_an_answer_of_grpcs_is_taken_as_it_is(
    path: Path, frames: list[bytes], result: tuple[Status, bytes | None]
) -> None:
    async with raw_vendor_at(path, answering(*frames)), channel_to(path) as channel:
        assert await outcome(channel) == result


@pytest.mark.parametrize("code", [Code.CANCELLED, Code.UNKNOWN, Code.RESOURCE_EXHAUSTED, Code.INTERNAL])
async def test_a_status_of_a_dying_driver_is_believed_if_the_connection_lives_on_and_doubted_if_it_ends(
    path: Path, tmp_path: Path, code: Code
) -> None:
    async with raw_vendor_at(path, answering(HEADERS, trailers(code, "why"))), channel_to(path) as channel:
        assert await outcome(channel) == (Status(code, "why"), None)
    ends, behave = tmp_path / "ends.sock", answering(HEADERS, trailers(code, "why"), hold=False)
    async with raw_vendor_at(ends, behave), channel_to(ends) as channel:
        result = await outcome(channel)
    assert isinstance(result, VendorConnectionError)
    assert str(result) == f"the driver answered {code.name} as it was stopping: why"


async def test_a_status_of_a_driver_that_answers_no_ping_is_doubted(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("common.relay.client_connection.PROOF_OF_LIFE_S", 0.05)

    async def behave(peer: RawPeer) -> None:
        await answering(HEADERS, trailers(13, "why"), hold=False)(peer)
        await peer.rest()

    async with raw_vendor_at(path, behave), channel_to(path) as channel:
        assert isinstance(await outcome(channel), VendorConnectionError)


@pytest.mark.parametrize("goes", ["first", "before the pong", "after the pong", "after the pong, without a word"])
async def test_a_status_of_a_driver_that_goes_is_doubted(path: Path, goes: str) -> None:
    """grpc-go's GracefulStop: the work under way is cancelled first, and the connection answers pings to its end."""
    goaway = wire(7, 0, 0, b"\0\0\0\1\0\0\0\0")

    async def behave(peer: RawPeer) -> None:
        await peer.send(SETTINGS)
        await peer.frame(1)
        if goes == "first":
            await peer.send(goaway)
        await peer.send(HEADERS, trailers(13, "why"))
        ping = await peer.frame(6, ack=False)
        if goes == "before the pong":
            await peer.send(goaway)
        await peer.send(wire(6, 1, 0, ping[3]))
        if goes == "after the pong":
            await peer.send(goaway)
        if not goes.endswith("without a word"):
            await peer.rest()

    async with raw_vendor_at(path, behave), channel_to(path) as channel:
        result = await outcome(channel)
        assert isinstance(result, VendorConnectionError)
        assert "as it was stopping" in str(result)
        await until(lambda: not channel._connections)


@pytest.mark.parametrize("code", [Code.NOT_FOUND, Code.UNAVAILABLE, Code.FAILED_PRECONDITION, Code.UNIMPLEMENTED])
async def test_any_other_status_needs_no_proof_of_life(path: Path, code: Code) -> None:
    behave = answering(HEADERS, trailers(code, "why"), hold=False)
    async with raw_vendor_at(path, behave), channel_to(path) as channel:
        assert await outcome(channel) == (Status(code, "why"), None)


async def test_one_ping_proves_life_for_many_statuses_and_each_follows_a_status(path: Path) -> None:
    pings = 0

    async def behave(peer: RawPeer) -> None:
        nonlocal pings
        await peer.send(SETTINGS)
        for _ in range(20):
            await peer.frame(0)
        for number in range(20):
            stream = 2 * number + 1
            headers = fields((":status", "200"), ("content-type", "application/grpc"))
            await peer.send(wire(1, 4, stream, headers), trailers(13, "no", stream))
        while True:
            _, _, _, data = await peer.frame(6, ack=False)
            pings += 1
            await peer.send(wire(6, 1, 0, data))

    async with raw_vendor_at(path, behave), channel_to(path) as channel:
        results = await asyncio.gather(*[outcome(channel) for _ in range(20)])
    assert results == [(Status(13, "no"), None)] * 20
    assert pings <= 2


@pytest.mark.parametrize(
    ("hello", "text"),
    [
        pytest.param(b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not speak HTTP/2", id="HTTP/1.1"),
        pytest.param(b"\0" * 100, "does not speak HTTP/2", id="zeros"),
        pytest.param(b"SSH-2.0-OpenSSH_9.6\r\n", "does not speak HTTP/2", id="ssh"),
        pytest.param(b"", "closed the connection before", id="nothing"),
        pytest.param(SETTINGS[:5], "closed the connection before", id="half of the settings"),
        pytest.param(wire(7, 0, 0, b"\0\0\0\0\0\0\0\x0bbusy"), "does not speak HTTP/2", id="GOAWAY first"),
    ],
)
async def test_what_is_not_a_grpc_server_is_unreachable_and_nothing_was_sent(
    path: Path, hello: bytes, text: str
) -> None:
    async def behave(peer: RawPeer) -> None:
        await peer.send(hello)

    async with raw_vendor_at(path, behave), channel_to(path) as channel:
        result = await outcome(channel)
    assert isinstance(result, VendorUnreachable)
    assert result.sent is False
    assert str(result).startswith(f"cannot connect to unix://{path}: ")
    assert text in str(result)


async def test_a_server_that_accepts_and_says_nothing_fails_within_the_connect_timeout(path: Path) -> None:
    async def behave(peer: RawPeer) -> None:
        await peer.rest()

    async with raw_vendor_at(path, behave), channel_to(path, connect_timeout_s=1.0) as channel:
        result = await outcome(channel)
        assert isinstance(result, VendorUnreachable)
        assert "accepted the connection but sent no HTTP/2 settings within 1 s" in str(result)
        assert not channel._connections


async def test_a_process_that_does_not_accept_fails_within_the_connect_timeout(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        async with channel_to(path, connect_timeout_s=0.05) as channel:
            assert isinstance(await outcome(channel), VendorUnreachable)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("a socket", r"connection refused \(is the driver running\?\)"),
        ("a file", "connection refused|not a socket"),
        ("too long", "too long"),
        ("\0", "null (byte|character)"),
    ],
)
async def test_a_path_at_which_nobody_can_listen_is_an_error_that_says_why(
    path: Path, tmp_path: Path, kind: str, why: str
) -> None:
    if kind == "a socket":
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(path))
    elif kind == "a file":
        path.touch()  # noqa: ASYNC240 - nothing else runs
    else:
        path = tmp_path / ("x" * 200 if kind == "too long" else kind)
    async with channel_to(path) as channel:
        result = await outcome(channel)
    assert isinstance(result, VendorUnreachable)
    assert re.search(why, str(result))


async def test_300_calls_to_a_dead_driver_share_its_refusal(path: Path) -> None:
    accepted = 0

    async def behave(_peer: RawPeer) -> None:
        nonlocal accepted
        accepted += 1

    async with raw_vendor_at(path, behave), channel_to(path) as channel:
        results = await asyncio.gather(*[outcome(channel) for _ in range(300)])
        results += await asyncio.gather(*[outcome(channel) for _ in range(300)])
    assert all(isinstance(result, VendorUnreachable) for result in results)
    assert accepted <= 3


async def test_back_off_ends_at_once_when_the_socket_is_another_one(path: Path) -> None:
    async with channel_to(path) as channel:
        for _ in range(3):
            assert isinstance(await outcome(channel), VendorUnreachable)
        channel._retry_at_s += 1000.0
        with vendor_at(path):
            assert (await channel.call("/a/Echo", b"up").unary())[1] == b"up"


async def test_a_goaway_lets_calls_under_way_end_and_sends_new_ones_elsewhere(path: Path) -> None:
    connections = 0
    first_request, second_done = asyncio.Event(), asyncio.Event()

    async def behave(peer: RawPeer) -> None:
        nonlocal connections
        connections += 1
        await peer.send(SETTINGS)
        await peer.frame(0)
        if connections == 1:
            await peer.send(wire(7, 0, 0, b"\0\0\0\1\0\0\0\0"))
            first_request.set()
            await second_done.wait()
        await peer.send(HEADERS, MESSAGE, trailers(0))
        await peer.rest()

    async with raw_vendor_at(path, behave), channel_to(path) as channel:
        first = asyncio.ensure_future(outcome(channel))
        await first_request.wait()
        await until(lambda: not channel.connected)
        assert await outcome(channel) == (Status(0), b"hi")
        second_done.set()
        assert await first == (Status(0), b"hi")
    assert connections == 2


async def test_a_call_that_a_goaway_excludes_is_sent_again_on_a_new_connection(path: Path) -> None:
    requests: list[bytes] = []

    async def behave(peer: RawPeer) -> None:
        await peer.send(SETTINGS)
        requests.append((await peer.frame(0))[3])
        if len(requests) == 1:
            await peer.send(wire(7, 0, 0, b"\0\0\0\0\0\0\0\0"))
        else:
            await peer.send(HEADERS, MESSAGE, trailers(0))
        await peer.rest()

    async with raw_vendor_at(path, behave), channel_to(path) as channel:
        assert await outcome(channel) == (Status(0), b"hi")
    assert requests == [b"\0\0\0\0\7request"] * 2


async def test_a_call_that_is_always_refused_ends_in_an_error(path: Path) -> None:
    tries = 0

    async def behave(peer: RawPeer) -> None:
        nonlocal tries
        await peer.send(SETTINGS)
        while True:
            stream = (await peer.frame(0))[2]
            tries += 1
            await peer.send(wire(3, 0, stream, b"\0\0\0\7"))

    async with raw_vendor_at(path, behave), channel_to(path) as channel:
        assert isinstance(await outcome(channel), VendorConnectionError)
    assert tries == 6


async def test_a_driver_that_stops_reading_holds_one_message_per_call_and_no_more(path: Path) -> None:
    release = asyncio.Event()

    async def behave(peer: RawPeer) -> None:
        await peer.send(SETTINGS)
        await release.wait()

    async with raw_vendor_at(path, behave), channel_to(path) as channel:
        calls = [asyncio.ensure_future(channel.call("/a/B", b"x" * MIB).unary()) for _ in range(4)]
        await until(lambda: channel.connected)
        (connection,) = channel._connections
        await until(lambda: len(connection.outgoing) == len(calls))
        assert sum(len(view) for each in connection.outgoing.values() for view, _ in each.pieces) <= 4 * (MIB + 5)
        assert connection.transport is not None
        assert connection.transport.get_write_buffer_size() < MIB
        calls.pop().cancel()
        await asyncio.sleep(0)
        release.set()
        for result in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(result, VendorConnectionError)


async def test_an_answer_before_the_request_was_read_ends_the_call(path: Path) -> None:
    async def behave(peer: RawPeer) -> None:
        await peer.send(SETTINGS)
        await peer.frame(1)
        await peer.send(HEADERS, trailers(9, "not in this state"))
        assert (await peer.frame(3))[2:] == (1, b"\0\0\0\x08")
        await peer.rest()

    async with raw_vendor_at(path, behave), channel_to(path) as channel:
        status, _ = await channel.call("/a/B", b"x" * MIB).unary()
        assert status == Status(9, "not in this state")
        (connection,) = channel._connections
        assert not connection.outgoing


async def test_closing_the_channel_fails_what_is_under_way_and_refuses_what_comes(path: Path) -> None:
    async with raw_vendor_at(path, answering()), channel_to(path) as channel:
        under_way = asyncio.ensure_future(outcome(channel))
        await until(lambda: channel.connected)
        await channel.close()
        result = await under_way
        assert isinstance(result, VendorConnectionError)
        assert "channel is closed" in str(await outcome(channel))


@pytest.mark.slow
async def test_1000_reconnects_leave_no_descriptor_and_no_task(path: Path) -> None:
    async def behave(peer: RawPeer) -> None:
        await answering(HEADERS, MESSAGE, trailers(0), hold=False)(peer)

    async with raw_vendor_at(path, behave), channel_to(path) as channel:
        before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - counting
        for _ in range(1000):
            assert await outcome(channel) == (Status(0), b"hi")
            await until(lambda: not channel.connected)
        assert len(channel._connections) <= 1
        assert len(os.listdir("/proc/self/fd")) <= before + 4  # noqa: PTH208 - counting
    assert len(asyncio.all_tasks()) <= 3


async def test_a_vendor_that_stops_reading_does_not_keep_the_channel_from_closing(path: Path) -> None:
    large_windows = frames.settings({4: 2**31 - 1}) + frames.SETTINGS_ACK + frames.window_update(0, 2**30)
    stuck = asyncio.Event()

    async def behave(peer: RawPeer) -> None:
        await peer.send(large_windows)
        await peer.frame(1)
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]  # a socket's transport has it
        stuck.set()
        await until(lambda: not channel._connections)

    async with raw_vendor_at(path, behave):
        channel = Channel(path, max_message_bytes=8 * MIB)
        call = asyncio.ensure_future(channel.call("/a/Take", b"x" * (3 * MIB)).unary())
        await stuck.wait()
        async with asyncio.timeout(10):
            await channel.close()
        with pytest.raises(VendorConnectionError):
            await call
