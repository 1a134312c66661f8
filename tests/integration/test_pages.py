"""The hub's and the agent's pages on real sockets, and commands that meet another server there."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from cli.edge_volumes import ask as ask_agent
from cli.operators.hub_state import ask_state
from common.errors import BridgeError
from common.links.listener import Listener
from common.net.endpoint import Endpoint
from common.net.sockets import listen_unix
from common.observe.version import introduce
from common.pages.client import NoSuchPage, ask_page
from common.pages.hub import HubStatus, NodeStatus
from common.pages.server import Pages
from common.session.limits import Limits
from common.session.link import Side
from tests.kit.linked import Peer
from tests.kit.pages import node, state

STATE = state()
UNREADABLE = "is of another version, whose state cannot be read here: "
CUT = "cannot reach .*: the connection ended before the whole answer"


class Hub:
    """A listener on a UNIX socket, with the pages of a hub that knows so many nodes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.nodes = [node("n1")]

    async def all_nodes(self) -> Iterable[NodeStatus]:
        return self.nodes

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Listener]:
        pages = Pages({"/status": lambda: STATE.hub}, {"/nodes": self.all_nodes})
        sock = listen_unix(self.path, mode=0o600)
        greeting = introduce("hub", "hub", instance="h")
        listener = Listener(sock, Side(greeting, Peer(), Limits()), pages=pages)
        await listener.start()
        try:
            yield listener
        finally:
            await listener.close()
            await asyncio.sleep(0)

    async def asked(self) -> Any:
        endpoint = Endpoint(f"unix://{self.path}", path=self.path)
        return await asyncio.to_thread(ask_state, endpoint, timeout_s=60)

    async def get(self, request: bytes) -> bytes:
        reader, writer = await asyncio.open_unix_connection(str(self.path))
        writer.write(request)
        answer = await reader.read()
        writer.close()
        return answer


@pytest.fixture
async def hub(short_dir: Path) -> AsyncIterator[Hub]:
    hub = Hub(short_dir / "hub.sock")
    async with hub.listening():
        yield hub


async def test_a_hub_tells_its_state_on_the_socket_of_its_links(hub: Hub) -> None:
    found = await hub.asked()
    assert (found.hub, found.nodes) == (STATE.hub, [node("n1")])


async def test_a_path_without_a_page_names_those_there_are(hub: Hub) -> None:
    answer = await hub.get(b"GET /secrets HTTP/1.1\r\nHost: x\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 404 Not Found\r\n")
    assert b"only GET of /status and /nodes is served" in answer


@pytest.mark.parametrize("method", [b"HEAD", b"POST", b"DELETE"])
async def test_a_hub_answers_no_other_method_than_get(hub: Hub, method: bytes) -> None:
    answer = await hub.get(method + b" /status HTTP/1.1\r\nHost: x\r\n\r\n")
    assert not answer.startswith(b"HTTP/1.1 200")


async def test_hundreds_of_clients_may_connect_while_the_server_is_busy(hub: Hub, short_dir: Path) -> None:
    agents = await Pages({}).listen(listen_unix(short_dir / "edge.sock", mode=0o600))
    for path in (hub.path, short_dir / "edge.sock"):
        clients = [socket.socket(socket.AF_UNIX) for _ in range(300)]
        for client in clients:
            client.setblocking(False)
            client.connect(str(path))
        for client in clients:
            client.close()
    agents.close()


async def test_a_listener_that_closes_ends_the_answers_under_way(short_dir: Path) -> None:
    hub = Hub(short_dir / "hub.sock")
    hub.nodes = [node(f"edge-{number:05}{'x' * 200}") for number in range(2_000)]
    async with hub.listening():
        reader, writer = await asyncio.open_unix_connection(str(hub.path))
        writer.write(b"GET /nodes HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.readline()
    answer = await reader.read()
    assert not answer.endswith(b"0\r\n\r\n")
    writer.close()


async def test_a_socket_on_which_no_hub_listens_says_where_to_look(short_dir: Path) -> None:
    with pytest.raises(BridgeError, match="there is no such socket here; run this on the hub's host, or in its pod"):
        await Hub(short_dir / "hub.sock").asked()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(short_dir / "hub.sock"))
        with pytest.raises(BridgeError, match="no hub listens on this socket"):
            await Hub(short_dir / "hub.sock").asked()


async def answering(path: Path, answer: bytes, client: Any) -> None:
    """Let a client ask a server that gives one answer to everybody."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    server = await asyncio.start_unix_server(serve, str(path))
    try:
        await asyncio.to_thread(client)
    finally:
        server.close()


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"HTTP/1.1 404 Not Found\r\n\r\n", "what listens there is no hub: HTTP 404"),
        (b"HTTP/1.1 200 OK\r\n\r\n{}", UNREADABLE),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 90\r\n\r\n{}", CUT),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n[\r\n", CUT),
        (b"", CUT),
        (b"SSH-2.0\r\n", UNREADABLE),
    ],
)  # fmt: skip
async def test_a_server_that_is_no_hub_is_told_in_a_sentence(short_dir: Path, answer: bytes, why: str) -> None:
    hub = Hub(short_dir / "hub.sock")

    def client() -> None:
        with pytest.raises(BridgeError, match=why):
            ask_state(Endpoint("unix", path=hub.path), timeout_s=10)

    await answering(hub.path, answer, client)


async def test_an_answer_that_drips_ends_at_the_time_limit(short_dir: Path) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        try:
            while True:
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.01)
        except OSError:
            writer.close()

    server = await asyncio.start_unix_server(serve, str(short_dir / "s"))
    with pytest.raises(TimeoutError):
        await asyncio.to_thread(ask_page, short_dir / "s", "/status", HubStatus, timeout_s=0.2)
    server.close()
    await asyncio.sleep(0.05)


async def test_a_page_that_a_server_does_not_have_is_an_error_with_its_words(short_dir: Path) -> None:
    body = json.dumps({"error": "only GET of /a is served"}).encode()

    def client() -> None:
        with pytest.raises(NoSuchPage, match="only GET of /a is served") as raised:
            ask_page(short_dir / "s", "/b", HubStatus, timeout_s=10)
        assert raised.value.status == HTTPStatus.NOT_FOUND

    await answering(short_dir / "s", b"HTTP/1.1 404 Not Found\r\n\r\n" + body, client)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n{}", "is no edge agent, or one of another version: "),
        (
            b'HTTP/1.1 503 Service Unavailable\r\n\r\n{"error": "64 clients are being answered already"}',
            "did not answer: 64 clients are being answered already",
        ),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 90\r\n\r\n{",
            r"no edge agent answers at .* \(the connection ended before the whole",
        ),
    ],
    ids=["another version", "too many clients", "cut"],
)
async def test_what_answers_as_no_agent_does_is_called_another_version_and_no_other_failure_is(
    short_dir: Path, answer: bytes, why: str
) -> None:
    def client() -> None:
        with pytest.raises(BridgeError, match=why):
            ask_agent(short_dir / "s")

    await answering(short_dir / "s", answer, client)
