"""The status endpoint: what it answers, and what asking costs."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import TYPE_CHECKING, Any

import pytest

from edge import status
from edge.status import StatusEndpoint

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


class Page:
    """A page that takes so long to make, by a clock that stands still otherwise."""

    def __init__(self, takes_s: float) -> None:
        self.now = 100.0
        self.made = 0
        self._takes_s = takes_s

    def __call__(self) -> dict[str, Any]:
        self.made += 1
        self.now += self._takes_s
        return {"made": self.made}

    def clock(self) -> float:
        return self.now


@pytest.fixture
def sock() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as made:
        yield made


def ask(endpoint: StatusEndpoint, path: str = "/volumes") -> tuple[str, dict[str, Any]]:
    """The first line of an answer, and what it says."""
    head, _, body = endpoint._answer(f"GET {path} HTTP/1.1\r\n".encode()).partition(b"\r\n\r\n")
    return head.split(b"\r\n")[0].decode(), json.loads(body)


def test_however_many_ask_making_the_answer_takes_a_fifth_of_the_time(sock: socket.socket) -> None:
    page = Page(takes_s=0.02)
    endpoint = StatusEndpoint(sock, {"/volumes": page}, clock=page.clock)
    began = page.now
    while page.now < began + 10.0:
        ask(endpoint)
        page.now += 0.001
    assert page.made <= 10.0 / (5 * 0.02) + 1


def test_an_answer_that_costs_nothing_is_always_of_now(sock: socket.socket) -> None:
    page = Page(takes_s=0.0)
    endpoint = StatusEndpoint(sock, {"/volumes": page}, clock=page.clock)
    assert [ask(endpoint)[1]["made"] for _ in range(3)] == [1, 2, 3]


def test_each_path_has_its_own_answer_and_no_other_path_has_one(sock: socket.socket) -> None:
    endpoint = StatusEndpoint(sock, {"/status": lambda: {"a": 1}, "/volumes": lambda: {"b": 2}})
    assert ask(endpoint, "/status") == ("HTTP/1.1 200 OK", {"a": 1})
    assert ask(endpoint) == ("HTTP/1.1 200 OK", {"b": 2})
    assert ask(endpoint, "/../etc")[0] == "HTTP/1.1 404 Not Found"


Ends = tuple[asyncio.StreamWriter, socket.socket, socket.socket]
"""A connection: what the endpoint writes to, its socket, and the client's."""


@pytest.fixture
async def ends() -> AsyncIterator[Ends]:
    """Of a connection of which the kernel keeps little."""
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    theirs.setblocking(False)
    _, writer = await asyncio.open_connection(sock=ours)
    yield writer, ours, theirs
    writer.transport.abort()
    theirs.close()
    await asyncio.sleep(0)


def asking(path: str = "/volumes") -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    reader.feed_data(f"GET {path} HTTP/1.1\r\n\r\n".encode())
    return reader


async def test_a_page_that_fails_is_not_passed_over_in_silence(sock: socket.socket, ends: Ends) -> None:
    def broken() -> dict[str, Any]:
        raise ValueError("a bug")

    writer, ours, theirs = ends
    with pytest.raises(ValueError, match="a bug"):
        await StatusEndpoint(sock, {"/volumes": broken})._serve(asking(), writer)
    await asyncio.sleep(0)
    assert (ours.fileno(), theirs.recv(1)) == (-1, b"")


async def test_a_client_that_leaves_early_gets_nothing_and_is_no_mistake(sock: socket.socket, ends: Ends) -> None:
    reader, (writer, ours, theirs) = asyncio.StreamReader(), ends
    reader.feed_data(b"x" * 100_000)
    reader.feed_eof()
    await StatusEndpoint(sock, {})._serve(reader, writer)
    await asyncio.sleep(0)
    assert (ours.fileno(), theirs.recv(1)) == (-1, b"")


@pytest.mark.parametrize("size", [30_000, 3_000_000])
async def test_a_client_that_never_reads_keeps_no_descriptor_and_no_answer(
    sock: socket.socket, ends: Ends, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(status, "_READ_TIMEOUT_S", 0.0)
    writer, ours, _ = ends
    await StatusEndpoint(sock, {"/volumes": lambda: {"x": "y" * size}})._serve(asking(), writer)
    await asyncio.sleep(0)
    assert ours.fileno() == -1
    assert writer.transport.get_write_buffer_size() == 0


async def test_a_client_that_reads_gets_all_of_a_large_answer(sock: socket.socket, ends: Ends) -> None:
    writer, _, theirs = ends
    endpoint = StatusEndpoint(sock, {"/volumes": lambda: {"x": "y" * 3_000_000}})
    serving = asyncio.create_task(endpoint._serve(asking(), writer))
    answer = bytearray()
    while part := await asyncio.get_running_loop().sock_recv(theirs, 65_536):
        answer += part
    await serving
    assert json.loads(bytes(answer).partition(b"\r\n\r\n")[2]) == {"x": "y" * 3_000_000}
