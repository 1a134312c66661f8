"""An HTTP proxy between a node and its hub answers as it likes: the dial fails with a reason, and nothing else does."""

import asyncio
import logging
import socket

import pytest

from common.errors import DialError
from common.net.endpoint import hub_endpoint
from common.net.proxy import Proxy, through
from common.parsers import HostPort
from common.session.limits import Limits

HUB = hub_endpoint("wss://127.1:443")  # by this name it is not this machine's own, which is dialled without a proxy

NO_PROXY = "does not answer as an HTTP proxy does"


@pytest.mark.parametrize(
    ("answer", "piece", "why"),
    [
        (b"", b"", NO_PROXY),
        (b"\x16\x03\x03 what is no HTTP\r\n\r\n", b"", NO_PROXY),
        (b"HTTP/1.1 200 ", b"y", NO_PROXY),
        (b"HTTP/1.1 200 OK\r\n", b"A: b\r\n", NO_PROXY),
        (b"HTTP/1.1 407 No\r\n\r\n", b"x", "refuses the connection with 407 No"),
        (b"HTTP/1.1 403 No\r\nContent-Length: 99999999999\r\n\r\n", b"x", "refuses the connection with 403 No"),
    ],
    ids=["nothing", "nonsense", "endless-line", "endless-head", "endless-body", "huge-body"],
)
async def test_an_odd_answer_is_an_error_with_a_reason(
    answer: bytes, piece: bytes, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    sent = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        try:
            while piece:
                writer.write(piece * 10_000)
                sent += len(piece) * 10_000
                await writer.drain()
        except ConnectionError:
            pass
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        proxy = Proxy(HostPort("127.0.0.1", server.sockets[0].getsockname()[1]))
        with pytest.raises(DialError, match=why):
            await asyncio.wait_for(through(proxy, HUB, Limits()), 10.0)
        server.close()
    await asyncio.sleep(0)  # the transport tells the end of the connection in the loop's next turn
    await asyncio.sleep(0)
    assert sent < 64 << 20
    assert [it for it in caplog.records if it.levelno >= logging.ERROR] == []


async def test_a_proxy_that_never_answers_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        proxy = Proxy(HostPort(*silent.getsockname()))
        with pytest.raises(DialError, match=f"the proxy {proxy} has made no connection within 0.1 s"):
            await through(proxy, HUB, Limits(hello_timeout_s=0.2))


async def test_a_proxy_that_takes_no_connection_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, socket.create_connection(full.getsockname()):
        proxy = Proxy(HostPort(*full.getsockname()))
        with pytest.raises(DialError, match=f"the proxy {proxy} has made no connection within 0.1 s"):
            await asyncio.wait_for(through(proxy, HUB, Limits(hello_timeout_s=0.2)), 5.0)


async def test_a_proxy_whose_name_is_no_hosts_is_named() -> None:
    with pytest.raises(DialError, match=r"the proxy http://a\.\.b:1 cannot be reached: that is no host's name"):
        await through(Proxy(HostPort("a..b", 1)), HUB, Limits())
