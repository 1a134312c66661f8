"""The status endpoint: what it answers, and what asking costs."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import TYPE_CHECKING, Any

import pytest

from edge.status import StatusEndpoint

if TYPE_CHECKING:
    from collections.abc import Iterator


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


class Closing:
    """A writer that only remembers that it was closed."""

    closed = False

    def write(self, data: bytes) -> None:
        raise AssertionError(data)

    def close(self) -> None:
        self.closed = True


async def test_a_page_that_fails_is_not_passed_over_in_silence(sock: socket.socket) -> None:
    def broken() -> dict[str, Any]:
        raise ValueError("a bug")

    reader, writer = asyncio.StreamReader(), Closing()
    reader.feed_data(b"GET /volumes HTTP/1.1\r\n\r\n")
    with pytest.raises(ValueError, match="a bug"):
        await StatusEndpoint(sock, {"/volumes": broken})._serve(reader, writer)  # type: ignore[arg-type]  # all it uses
    assert writer.closed


async def test_a_client_that_leaves_early_gets_nothing_and_is_no_mistake(sock: socket.socket) -> None:
    reader, writer = asyncio.StreamReader(), Closing()
    reader.feed_data(b"x" * 100_000)
    reader.feed_eof()
    await StatusEndpoint(sock, {})._serve(reader, writer)  # type: ignore[arg-type]  # all it uses
    assert writer.closed
