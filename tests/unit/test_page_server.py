"""The server of pages: what it answers, what asking costs, and clients that do not read."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import pytest

from common.pages import server
from common.pages.server import Pages


@dataclass(frozen=True)
class Made:
    """A page that says how often it was made."""

    made: int


@dataclass(frozen=True)
class Text:
    """A page of any size, or an entry of one."""

    text: str


class Page:
    """A page that takes so long to make, by a clock that stands still otherwise."""

    def __init__(self, takes_s: float) -> None:
        self.now = 100.0
        self.made = 0
        self._takes_s = takes_s

    def __call__(self) -> Made:
        self.made += 1
        self.now += self._takes_s
        return Made(self.made)

    def clock(self) -> float:
        return self.now


class Connection:
    """A connection of which the kernel keeps little: the server writes to `writer`, and the client has `theirs`."""

    def __init__(self, ours: socket.socket, theirs: socket.socket, writer: asyncio.StreamWriter) -> None:
        self.ours, self.theirs, self.writer = ours, theirs, writer

    async def read(self) -> bytes:
        """All that the server writes until it closes."""
        answer = bytearray()
        while part := await asyncio.get_running_loop().sock_recv(self.theirs, 65_536):
            answer += part
        return bytes(answer)


@pytest.fixture
async def connection() -> AsyncIterator[Connection]:
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    theirs.setblocking(False)
    _, writer = await asyncio.open_connection(sock=ours)
    yield Connection(ours, theirs, writer)
    writer.transport.abort()
    theirs.close()
    await asyncio.sleep(0)


async def ask(pages: Pages, connection: Connection, path: str = "/volumes") -> tuple[str, Any]:
    """The status line of an answer, and its JSON."""
    serving = asyncio.create_task(pages.answer(path, connection.writer))
    head, _, body = (await connection.read()).partition(b"\r\n\r\n")
    await serving
    if b"chunked" in head:
        body = whole(body)
    return head.split(b"\r\n")[0].decode(), json.loads(body)


def whole(chunks: bytes) -> bytes:
    """The content of a chunked answer, whose last chunk is empty."""
    found = bytearray()
    while True:
        size, _, chunks = chunks.partition(b"\r\n")
        if size == b"0":
            assert chunks == b"\r\n"
            return bytes(found)
        found += chunks[: int(size, 16)]
        chunks = chunks[int(size, 16) + 2 :]


def test_however_many_ask_making_the_answer_takes_a_fifth_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    page = Page(takes_s=0.02)
    pages = Pages({"/volumes": page})
    monkeypatch.setattr("time.monotonic", page.clock)
    began = page.now
    while page.now < began + 10.0:
        pages._document("/volumes")
        page.now += 0.001
    assert page.made <= 10.0 / (5 * 0.02) + 1


def test_an_answer_that_costs_nothing_is_always_of_now(monkeypatch: pytest.MonkeyPatch) -> None:
    page = Page(takes_s=0.0)
    pages = Pages({"/volumes": page})
    monkeypatch.setattr("time.monotonic", page.clock)
    assert [json.loads(pages._document("/volumes"))["made"] for _ in range(3)] == [1, 2, 3]


OK = "HTTP/1.1 200 OK"
NOT_FOUND = "HTTP/1.1 404 Not Found", {"error": "only GET of /status and /volumes and /facts is served"}


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("/status", (OK, {"made": 1})),
        ("/volumes", (OK, {"made": 2})),
        ("/facts", (OK, [{"text": "all"}])),
        ("/facts/n%2F1", (OK, [{"text": "of n/1"}])),
        ("/facts/", NOT_FOUND),
        ("/volumes/n1", NOT_FOUND),
        ("/../etc", NOT_FOUND),
    ],
)
async def test_each_page_and_each_thing_of_a_list_has_a_path_and_no_other_path_has_an_answer(
    connection: Connection, path: str, answer: tuple[str, Any]
) -> None:
    async def everything() -> list[Text]:
        return [Text("all")]

    async def of_one(name: str) -> list[Text]:
        return [Text(f"of {name}")]

    documents = {"/status": lambda: Made(1), "/volumes": lambda: Made(2)}
    pages = Pages(documents, {"/facts": everything}, of_one={"/facts": of_one})
    assert await ask(pages, connection, path) == answer


async def test_a_page_that_fails_closes_the_connection_and_is_in_the_log(
    connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> Made:
        raise ValueError("a bug")

    await Pages({"/volumes": broken}).answer("/volumes", connection.writer)
    assert await connection.read() == b""
    assert "the page /volumes failed" in caplog.text
    assert "ValueError: a bug" in caplog.text


@pytest.mark.parametrize("size", [30_000, 3_000_000])
async def test_a_client_that_never_reads_keeps_no_descriptor_and_no_answer(
    connection: Connection, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(server, "_CLIENT_S", 0.0)
    await Pages({"/volumes": lambda: Text("y" * size)}).answer("/volumes", connection.writer)
    await asyncio.sleep(0)
    assert connection.ours.fileno() == -1
    assert connection.writer.transport.get_write_buffer_size() == 0


async def test_a_client_that_reads_gets_all_of_a_large_answer(connection: Connection) -> None:
    text = "y" * 3_000_000
    assert await ask(Pages({"/volumes": lambda: Text(text)}), connection) == ("HTTP/1.1 200 OK", {"text": text})


async def test_clients_beyond_the_limit_are_sent_away(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_MOST_CLIENTS", 0)
    answer = await ask(Pages({"/volumes": lambda: Made(1)}), connection)
    assert answer == ("HTTP/1.1 503 Service Unavailable", {"error": "0 clients are being answered already"})


def listing(entries: Iterable[Text]) -> Pages:
    async def made() -> Iterable[Text]:
        return entries

    return Pages({}, {"/volumes": made})


@pytest.mark.parametrize("number", [0, 1, 100, 101, 5_000])
async def test_a_list_of_any_length_is_sent_whole(connection: Connection, number: int) -> None:
    entries = [Text(str(index)) for index in range(number)]
    expected = [{"text": str(index)} for index in range(number)]
    assert await ask(listing(entries), connection) == ("HTTP/1.1 200 OK", expected)


async def test_after_each_part_of_the_work_for_a_list_there_is_a_pause_four_times_as_long(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, pauses = count(0.0, 0.5), list[float]()

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr("time.thread_time", lambda: next(now))
    monkeypatch.setattr("asyncio.sleep", pause)
    await ask(listing([Text("x")] * 250), connection)
    assert pauses == [2.0] * 5  # the beginning, two full slices, the rest, and the look that finds nothing more


async def test_a_list_that_fails_amid_its_entries_is_not_taken_for_a_whole_one(
    connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    def entries() -> Iterator[Text]:
        yield from [Text("x")] * 150
        raise ValueError("a bug")

    serving = asyncio.create_task(listing(entries()).answer("/volumes", connection.writer))
    answer = await connection.read()
    await serving
    assert not answer.endswith(b"0\r\n\r\n")
    assert "the page /volumes failed" in caplog.text


async def test_a_list_whose_reader_leaves_is_made_no_further(connection: Connection) -> None:
    made = count()
    entries = (Text(f"{next(made)}{'x' * 10_000}") for _ in range(100_000))
    connection.theirs.close()
    await listing(entries).answer("/volumes", connection.writer)
    assert next(made) <= 1_000


async def served(request: bytes, connection: Connection) -> bytes:
    """What the server writes for a request."""
    reader = asyncio.StreamReader()
    reader.feed_data(request)
    reader.feed_eof()
    serving = asyncio.create_task(Pages({"/volumes": lambda: Made(1)}).serve(reader, connection.writer))
    answer = await connection.read()
    await serving
    return answer


@pytest.mark.parametrize("request_", [b"", b"x" * 100_000], ids=["nothing", "a long line"])
async def test_a_client_that_leaves_early_or_writes_too_long_lines_gets_nothing(
    connection: Connection, request_: bytes
) -> None:
    assert await served(request_, connection) == b""
