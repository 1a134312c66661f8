"""One dial at what is no hub, or a hub that says no: an error in words, soon, whatever answers there."""

import asyncio
import base64
import contextlib
import gc
import hashlib
import os
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from cloud.trust.join_links import LIMITS as JOIN_LIMITS
from common.errors import DialError, HandshakeRefused
from common.links.dial import dial
from common.links.listener import ConnectionLimits, Listener, listen_tcp
from common.links.transport import WebSocket, WebSocketOwner
from common.messages import Reason, encode
from common.net.endpoint import hub_endpoint
from common.net.proxy import Proxy
from common.net.sockets import listen_unix
from common.net.tcp import RawTcp, overlook_lost_handshakes
from common.observe.version import introduce
from common.parsers import HostPort
from common.session.limits import Limits
from common.session.link import Link, Side
from tests.kit.certificates import Authority
from tests.kit.linked import Peer
from tests.kit.stranger import Closed, Stranger, hello, upgrade_request, websocket_frame
from tests.kit.waiting import settle

LIMITS = Limits(hello_timeout_s=30.0)
SOON = Limits(hello_timeout_s=0.3)
HELLO = introduce("edge", "n1", instance="i", boot=1)


async def dialled(text: str, *, limits: Limits = LIMITS, tls: ssl.SSLContext | None = None) -> Link:
    return await dial(hub_endpoint(text), HELLO, Peer(accepts=False), limits=limits, tls=tls)


async def refusal_of(text: str, *, limits: Limits = LIMITS, tls: ssl.SSLContext | None = None) -> str:
    with pytest.raises(DialError) as error:
        await dialled(text, limits=limits, tls=tls)
    assert str(error.value) == f"cannot reach {text}: {error.value.why}"
    return error.value.why


@asynccontextmanager
async def server(answer: bytes, *, leaves: bool = True, reads: bool = True) -> AsyncIterator[str]:
    """Something that listens, answers a request with these bytes, and leaves. Gives its address."""

    connections: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await talk(reader, writer)
        finally:
            writer.close()
            await writer.wait_closed()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n") if reads else b""
        key = next((line[19:] for line in request.split(b"\r\n") if line.startswith(b"Sec-WebSocket-Key: ")), b"")
        accept = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
        writer.write(answer.replace(b"ACCEPT", accept))
        if not leaves:
            await reader.read()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.add(asyncio.create_task(serve(reader, writer)))

    listening = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    finally:
        listening.close()
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)


@asynccontextmanager
async def hub(handler: Any, address: tuple[str, int] | Path = ("127.0.0.1", 0), **how: Any) -> AsyncIterator[Listener]:
    if isinstance(address, tuple):
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        listening = socket.create_server(address, family=family)
    else:
        listening = listen_unix(address, mode=0o600)
    listener = Listener(listening, Side(introduce("hub", "hub", instance="h"), handler, LIMITS), **how)
    await listener.start()
    try:
        yield listener
    finally:
        await listener.close()
        await settle()


UPGRADED = (
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: ACCEPT\r\n"
)

ACCEPTED = UPGRADED + b"Sec-WebSocket-Protocol: csi-bridge\r\n\r\n"


# -------------------- what is no hub --------------------


async def test_a_port_on_which_nobody_listens_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    assert (await refusal_of(f"ws://127.0.0.1:{port}")).startswith("ECONNREFUSED ")


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "what listens there is no hub: HTTP 404"),
        (b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n", "what listens there is no hub: HTTP 502"),
        (
            b"HTTP/1.1 403 Forbidden\r\nContent-Type: a\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>",
            "what listens there is no hub: HTTP 403",
        ),
        (
            b"HTTP/1.1 403 Forbidden\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\n\xffx",
            "what listens there turned us away: \ufffdx",
        ),
        (b"SSH-2.0-OpenSSH_9.9\r\n", "what listens there is no hub: did not receive a valid HTTP response"),
        (b"\x00\xff\r\n\r\n", "what listens there is no hub: did not receive a valid HTTP response"),
        (UPGRADED + b"\r\n", "what listens there is no hub: it does not speak the subprotocol of a CSI Bridge hub"),
        (
            UPGRADED + b"Sec-WebSocket-Protocol: chat\r\n\r\n",
            "what listens there is no hub: unsupported subprotocol: chat",
        ),
        (UPGRADED.replace(b"ACCEPT", b"forged") + b"\r\n", "what listens there is no hub: invalid Sec-WebSocket-Acc"),
    ],
    ids=["404", "502", "403 of a website", "403 in words", "ssh", "garbage", "no subprotocol", "chat", "forged"],
)
@pytest.mark.parametrize("leaves", [True, False])
async def test_what_answers_otherwise_than_a_hub_is_told_at_once(answer: bytes, why: str, leaves: bool) -> None:
    async with server(answer, leaves=leaves) as address:
        assert (await refusal_of(f"ws://{address}")).startswith(why)


@pytest.mark.parametrize("answer", [b"", ACCEPTED], ids=["no answer", "no hello"])
async def test_what_does_not_go_on_is_given_up_after_the_hellos_time_and_what_hangs_up_is_told_as_such(
    answer: bytes,
) -> None:
    async with server(answer, leaves=False) as address:
        assert await refusal_of(f"ws://{address}", limits=SOON) == "no answer within 0.3 s"
    async with server(answer) as address:
        assert "the peer" in await refusal_of(f"ws://{address}")


@pytest.mark.parametrize("host", ["a..b", "x" * 64 + ".example"])
async def test_a_name_that_cannot_be_a_hosts_is_an_error_in_words(host: str) -> None:
    assert await refusal_of(f"ws://{host}:1") == "that is no host's name"


# -------------------- hubs --------------------


async def test_a_hub_on_ipv6_is_reached() -> None:
    async with hub(Peer(), ("::1", 0)) as listener:
        port = listener.sock.getsockname()[1]
        link = await dialled(f"ws://[::1]:{port}")
        link.goodbye(Reason.DONE, "that is all")
        await link.wait_closed()


async def test_a_hub_that_refuses_the_hello_is_heard() -> None:
    class Refuses(Peer):
        def greeted(self, link: Link) -> None:
            link.refuse(HandshakeRefused(Reason.CONFLICT, "another machine is connected as n1"))

    async with hub(Refuses()) as listener:
        with pytest.raises(HandshakeRefused, match="another machine is connected as n1") as error:
            await dialled(f"ws://{listener.address}")
    assert error.value.reason == Reason.CONFLICT


async def test_a_user_whom_the_hub_turns_away_is_told_why(short_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = short_dir / "hub.sock"
    async with hub(Peer(), path, most=ConnectionLimits(uids=frozenset({os.getuid() + 1}))):
        why = f"uid {os.getuid()} is not on --uds-allow-uid"
        assert await refusal_of(f"unix://{path}") == f"what listens there turned us away: {why}"
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert said == [f"pid {os.getpid()} uid {os.getuid()} got no session: {why}"]


async def test_a_long_refusal_is_cut() -> None:
    head = b"HTTP/1.1 403 Forbidden\r\nContent-Type: text/plain\r\nContent-Length: 100000\r\n\r\n"
    async with server(head + b"x" * 100_000) as address:
        assert await refusal_of(f"ws://{address}") == f"what listens there turned us away: {'x' * 200}"


async def test_a_plain_server_dialled_with_tls_is_told_at_once(tmp_path: Path) -> None:
    context = ssl.create_default_context(cafile=Authority(tmp_path).path)
    async with server(b"220 mail.example ESMTP\r\n", reads=False) as address:
        assert "TLS failed: WRONG_VERSION_NUMBER" in await refusal_of(f"wss://{address}", tls=context)


async def test_a_hub_with_a_certificate_of_another_ca_is_not_trusted(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    pem = Authority(tmp_path / "a").hub()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(pem.cert, pem.key)
    ours = ssl.create_default_context(cafile=Authority(tmp_path / "b").path)
    async with hub(Peer(), tls=lambda: tls) as listener:
        assert "its certificate is not trusted: " in await refusal_of(f"wss://{listener.address}", tls=ours)


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_the_kernel_holds_little_at_both_ends_of_a_link_and_sends_that_at_once(
    run: Callable[[Awaitable[None]], None], *, tls: bool, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    theirs, ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context(cafile=authority.path)
    theirs.load_cert_chain(authority.hub().cert, tmp_path / "hub.key")

    async def look() -> None:
        listening, hello = socket.create_server(("127.0.0.1", 0)), introduce("hub", "hub", instance="h")
        listener = Listener(listening, Side(hello, Peer(), LIMITS), tls=(lambda: theirs) if tls else None)
        await listener.start()
        url = f"{'wss' if tls else 'ws'}://{listener.address}"
        link = await dial(hub_endpoint(url), HELLO, Peer(accepts=False), limits=LIMITS, tls=ours)
        for end in (link.writer, *(it.websocket for it in listener.connected)):
            option = end._transport.get_extra_info("socket").getsockopt  # type: ignore[attr-defined]  # a WebSocket
            found.append([option(socket.IPPROTO_TCP, it) for it in (socket.TCP_NODELAY, socket.TCP_NOTSENT_LOWAT)])
        await listener.close()

    found: list[list[int]] = []
    run(look())
    assert found == [[1, LIMITS.chunk_bytes // 4]] * 2


# -------------------- the order in which asyncio may tell of things --------------------


class Owner(WebSocketOwner):
    """Counts the ends, and gets no link: its connection is gone."""

    def __init__(self) -> None:
        self.ends = 0

    def linked(self, _link: Link) -> None:
        raise AssertionError("a link of a connection that is gone")

    def ended(self) -> None:
        self.ends += 1


def a_web_socket(owner: Owner) -> WebSocket:
    return WebSocket(Side(introduce("hub", "hub", instance="h"), Peer(), LIMITS), owner)


async def test_a_connection_that_ended_before_it_was_made_is_not_made() -> None:
    """TLS may lose its peer in the turn of the loop in which its handshake ends."""
    owner = Owner()
    websocket = a_web_socket(owner)
    websocket.connection_lost(None)
    websocket.connection_made(asyncio.Transport())  # which would raise at anything that is asked of it
    assert owner.ends == 1


async def test_an_end_of_input_before_the_connection_was_made_waits_for_it() -> None:
    websocket = a_web_socket(Owner())
    websocket.data_received(b"GET / HTTP/1.1\r\n")
    websocket.eof_received()


@pytest.mark.parametrize("turns", range(4))
def test_a_peer_that_goes_as_tls_begins_leaves_no_traceback(turns: int, caplog: pytest.LogCaptureFixture) -> None:
    """As a link does that is cut in that moment; with uvloop, which every process runs on."""

    async def lose() -> None:
        loop = asyncio.get_running_loop()
        overlook_lost_handshakes(loop)
        with socket.create_server(("127.0.0.1", 0)) as listening:
            _, raw = await loop.create_connection(RawTcp, *listening.getsockname())
            tls = ssl.create_default_context()
            securing = loop.create_task(raw.secure(asyncio.Protocol(), tls, server_hostname="localhost"))
            for _ in range(turns):
                await asyncio.sleep(0)
            raw.transport.abort()
            await asyncio.wait([securing], timeout=30.0)
            assert securing.done()
            securing.exception()

    uvloop.run(lose())
    assert caplog.messages == []


async def test_any_other_exception_in_a_callback_is_told(caplog: pytest.LogCaptureFixture) -> None:
    overlook_lost_handshakes(asyncio.get_running_loop())
    asyncio.get_running_loop().call_soon(lambda: 1 / 0)
    await asyncio.sleep(0)
    assert "Exception in callback" in caplog.text


async def test_dials_of_a_name_reach_each_of_its_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of two hubs leads, and a resolver may always give the other one first."""
    hosts = ("127.0.0.1", "127.0.0.2", "127.0.0.3")

    async def resolve(*_: Any, **__: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, 1)) for host in hosts]

    async def connect(_: Any, host: str, _port: int) -> None:
        raise OSError(host)

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "getaddrinfo", resolve)
    monkeypatch.setattr(loop, "create_connection", connect)
    assert {await refusal_of("ws://hub.example:1") for _ in range(100)} == set(hosts)  # the last one that it tried


async def test_a_dial_tries_the_next_address_of_a_host_whose_first_one_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with server(b"HTTP/1.1 404 Not Found\r\n\r\n") as address:
        port = int(address.rpartition(":")[2])
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port)) for host in ("127.0.0.3", "127.0.0.1")]

        async def resolve(*_: Any, **__: Any) -> list[Any]:
            return found

        with contextlib.ExitStack() as opened:
            full = opened.enter_context(socket.socket())
            full.bind(("127.0.0.3", port))
            full.listen(0)
            for _ in range(4):  # more than its queue takes: it answers nobody
                one = opened.enter_context(socket.socket())
                one.setblocking(False)
                one.connect_ex(("127.0.0.3", port))
            monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
            why = await refusal_of(f"ws://hub.example:{port}", limits=Limits(hello_timeout_s=1.0))
    assert why == "what listens there is no hub: HTTP 404"


@pytest.mark.parametrize("proxy", [None, Proxy(HostPort("192.0.2.2", 3128))], ids=["to the hub", "to a proxy"])
async def test_a_connection_without_an_answer_is_begun_again_within_the_same_dial(
    monkeypatch: pytest.MonkeyPatch, proxy: Proxy | None
) -> None:
    """It may have begun while the line was cut, and TCP's own next try may be 15 s away."""
    tries = 0

    async def connect(*_: Any) -> None:
        nonlocal tries
        tries += 1
        if tries < 3:
            await asyncio.Event().wait()
        raise OSError("the third try")

    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", connect)
    monkeypatch.setattr("common.net.tcp.CONNECT_S", 0.01)
    with pytest.raises(DialError, match="the third try"):
        await dial(
            hub_endpoint("wss://192.0.2.1:1"),
            HELLO,
            Peer(accepts=False),
            limits=Limits(hello_timeout_s=5.0),
            tls=ssl.create_default_context(),
            proxy=proxy,
        )


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_connection_that_is_cut_as_soon_as_it_is_made_spoils_no_later_one(
    run: Callable[[Awaitable[None]], None], caplog: pytest.LogCaptureFixture
) -> None:
    """Its time may end in the turn of a busy loop in which it is made."""

    async def look() -> None:
        loop = asyncio.get_running_loop()
        connect, tries = loop.create_connection, 0

        async def cut(*to: Any) -> Any:
            nonlocal tries
            tries += 1
            made = await connect(*to)
            if tries == 1:
                made[0].close()
                await asyncio.sleep(0.05)  # until the protocol has heard of its end
                raise TimeoutError
            return made

        hello = introduce("hub", "hub", instance="h")
        listener = Listener(socket.create_server(("127.0.0.1", 0)), Side(hello, Peer(), LIMITS))
        await listener.start()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loop, "create_connection", cut)
            link = await dialled(f"ws://{listener.address}")
        link.goodbye(Reason.DONE, "that is all")
        await link.wait_closed()
        await listener.close()
        assert tries == 2
        gc.collect()

    run(look())
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_server_that_speaks_first_is_told_as_no_hub(run: Callable[[Awaitable[None]], None]) -> None:
    async def look() -> None:
        async with server(b"SSH-2.0-OpenSSH_9.9\r\n", reads=False, leaves=False) as address:
            why = await refusal_of(f"ws://{address}")
        assert why.startswith("what listens there is no hub: did not receive a valid HTTP response")

    run(look())


# -------------------- what a listener holds --------------------


def web_sockets() -> int:
    gc.collect()
    return sum(isinstance(each, WebSocket) for each in gc.get_objects())


@pytest.mark.parametrize(
    "said", ["the head of a handshake", "half a frame", "half a frame after a hello that is refused"]
)
async def test_nothing_keeps_what_a_connection_has_sent_that_is_gone(said: str) -> None:
    half = websocket_frame(b"", size=1 << 20) + bytes(1 << 19)
    refused = websocket_frame(encode(hello("edge", "n1", version=0, oldest=0)))
    before = web_sockets()
    async with hub(Peer()) as listener:
        _, port = listener.address.split(":")
        reader, writer = await asyncio.open_connection("127.0.0.1", int(port))
        writer.write(upgrade_request()[:-2] if said.startswith("the head") else upgrade_request())
        if not said.startswith("the head"):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(refused + half if said.endswith("refused") else half)
            await writer.drain()
            if said.endswith("refused"):
                await reader.read()
        await settle()
        assert web_sockets() == before + (0 if said.endswith("refused") else 1)
        writer.transport.abort()
        await asyncio.sleep(0.05)
        assert web_sockets() == before


async def test_a_stranger_at_the_join_listener_is_cut_at_the_head_of_a_frame_larger_than_any_request() -> None:
    sock = listen_tcp(HostPort("127.0.0.1", 0))
    listener = Listener(sock, Side(introduce("hub", "hub", instance="h"), Peer(), JOIN_LIMITS))
    await listener.start()

    def say() -> object:
        with Stranger(listener.address, patience_s=2.0) as stranger:
            stranger.upgrade()
            stranger.send(websocket_frame(b"", size=1 << 20))
            return stranger.receive()

    found = await asyncio.to_thread(say)
    assert isinstance(found, Closed)
    assert found.code == 1009
    await listener.close()
