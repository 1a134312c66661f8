"""The proxy driver between a sidecar and the hub, without sockets: lost links, and the watch that must stay."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from cli.process_options import DRIVER_OPTIONS
from cloud.csi_proxy_driver import CsiProxyDriver
from cloud.proxy.forwarded_call import SIDECAR_MESSAGE_BYTES
from cloud.proxy.identity_cache import CACHED_METHODS, IdentityCache
from common.csi.csi_pb2 import GetPluginInfoResponse
from common.csi.reports import GET_PLUGIN_INFO, PROBE, Answer, DriverReport, encode_reports
from common.errors import CallError, timestamp
from common.links.backoff import Backoff
from common.links.uplink import Dialling, Uplink
from common.messages import Kind
from common.observe.metrics import Metrics
from common.observe.version import introduce
from common.relay.connection import Taken
from common.relay.server_call import ServerCall
from common.session.limits import Limits
from common.session.link import Link, LinkHandler, Stream
from common.status import Code, Origin, Status
from tests.kit.accounts import note_ends
from tests.kit.linked import Peer, cut, link_pair
from tests.kit.waiting import settle, until

DRIVER = "d.example"
CREATE = "/csi.v1.Controller/CreateVolume"
HELLO = introduce("driver", DRIVER, instance="p")
INFO = Answer(0, body=GetPluginInfoResponse(name=DRIVER).SerializeToString())
REPORT = encode_reports(
    [DriverReport(DRIVER, "n1", {**dict.fromkeys(CACHED_METHODS, Answer(0)), GET_PLUGIN_INFO: INFO})]
)


class SidecarCall(ServerCall):
    """A call that tells its sidecar."""

    def put(self, message: bytes, taken: Taken = lambda _: None) -> None:
        if self.finished:
            taken(False)
        else:
            self.connection.messages.append(message)  # type: ignore[attr-defined]  # a `Sidecar`
            self.connection.wait(taken)  # type: ignore[attr-defined]  # a `Sidecar`

    def finish(self, status: Status, taken: Taken = lambda _: None) -> None:
        if self.finished:
            taken(False)
        else:
            self.finished = True
            self.connection.told.append(status)  # type: ignore[attr-defined]  # a `Sidecar`
            self.connection.wait(taken)  # type: ignore[attr-defined]  # a `Sidecar`


class Sidecar:
    """A sidecar's connection (`common.relay.server.ServerConnection`): remembers what it was told."""

    peer_window = 0
    table_size_sent = False

    def __init__(self, proxy: CsiProxyDriver, *, reads: bool = True) -> None:
        self.settings = proxy
        self.told: list[Status] = []  # the statuses
        self.messages: list[bytes] = []  # the messages, each with who is told that it was taken
        self.reads = reads  # whether the sidecar takes everything at once; else `read` and `leave` tell
        self._proxy = proxy
        self._waiting: list[Taken] = []

    def call(self, method: str = CREATE) -> ServerCall:
        call = SidecarCall(self, 1)  # type: ignore[arg-type]  # what a call needs of a connection
        call.method = method
        try:
            call.callee = self._proxy.handle(call)
        except CallError as error:
            call.fail(error)
        return call

    def take(self, taken: bool) -> None:
        """Take all that waits, or leave."""
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            each(taken)

    def wait(self, taken: Taken) -> None:
        self._waiting.append(taken)
        if self.reads:
            self.take(True)


class Proxy:
    """A proxy driver and its link to a hub."""

    def __init__(self, directory: Path) -> None:
        settings = DRIVER_OPTIONS.read({"drivername": DRIVER, "state_dir": str(directory)})
        self.cache, self.metrics = IdentityCache(directory, DRIVER), Metrics()
        self.proxy = CsiProxyDriver(settings, self.cache, self.metrics, reopen=Backoff(first_s=0.0, most_s=0.0))
        self.uplink = Uplink(settings.hub_endpoint, self.proxy, Dialling(hello=lambda: HELLO, limits=Limits()))
        self.proxy.uplink = self.uplink
        self.links: list[Link] = []

    async def link(self, serve: Callable[[Stream], Awaitable[None]], **limits: int) -> Link:
        """The proxy driver's link to a hub that serves its streams so."""
        at_hub, at_proxy = link_pair(Peer(serve), self.uplink.addresses[0], HELLO, limits=Limits(**limits))
        self.links += [at_hub, at_proxy]
        await settle()
        return at_proxy


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[Proxy]:
    world = Proxy(tmp_path)
    yield world
    cut(*(link for link in world.links if not link.over))
    await settle()


async def never_ends(_stream: Stream) -> None:
    await asyncio.Event().wait()


async def test_a_call_of_which_nothing_was_sent_found_no_hub(world: Proxy) -> None:
    link, sidecar = await world.link(never_ends), Sidecar(world.proxy)
    sidecar.call()  # its frames have not left
    cut(link)
    assert sidecar.told == [
        Status(
            Code.UNAVAILABLE,
            f"the proxy driver has no link to the hub since {timestamp(world.uplink.since)}: the cable was cut; "
            "look at the hub's log, and at the proxy driver's",
            Origin.PROXY,
        )
    ]


class Answering:
    """A hub's end of a call: answers it, and notes whether the answer was delivered."""

    def __init__(self, answer: bytes = b"the answer") -> None:
        self.released: list[bool] = []
        self._answer = answer

    async def serve(self, stream: Stream) -> None:
        assert stream.opened is not None
        if stream.opened.kind == Kind.WATCH:
            await never_ends(stream)
        stream.on_released = self.released.append
        stream.end(Status(Code.OK), self._answer)


async def test_the_hub_hears_that_an_answer_was_delivered_once_the_sidecar_has_taken_it(world: Proxy) -> None:
    hub = Answering()
    await world.link(hub.serve)
    sidecar = Sidecar(world.proxy, reads=False)
    sidecar.call()
    await settle()
    assert (sidecar.messages, sidecar.told) == ([b"the answer"], [Status(Code.OK)])
    assert hub.released == []
    sidecar.take(True)
    await settle()
    assert hub.released == [True]


@pytest.mark.parametrize("method", [CREATE, PROBE])
async def test_a_caller_that_leaves_while_its_answer_is_written_is_no_error_in_the_log(
    world: Proxy, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    codes: list[int] = []
    note_ends(monkeypatch, codes)
    hub = Answering()
    await world.link(hub.serve)
    sidecar = Sidecar(world.proxy, reads=False)
    sidecar.call(method)
    await settle()
    sidecar.take(False)
    await settle()
    assert [record.message for record in caplog.records if record.levelname in {"WARNING", "ERROR"}] == []
    assert codes == ([Code.CANCELLED] if method == CREATE else [])
    assert hub.released == ([False] if method == CREATE else [])


async def test_an_answer_larger_than_any_sidecar_takes_is_an_error_and_ends_the_call_at_the_hub(
    world: Proxy,
) -> None:
    hub = Answering(b"x" * (SIDECAR_MESSAGE_BYTES + 1))
    await world.link(hub.serve, max_message_bytes=2 * SIDECAR_MESSAGE_BYTES)
    sidecar = Sidecar(world.proxy)
    sidecar.call()
    await settle()
    (told,) = sidecar.told
    assert told.code == Code.UNAVAILABLE
    assert "no stock sidecar takes a larger one" in told.message
    assert hub.released == [False]


class Hub(LinkHandler):
    """Serves watches as it is told; at the end of what it was told, they stay."""

    def __init__(self, *ends: Status | Exception | bytes) -> None:
        self.watches = 0  # how many were opened
        self._ends = list(ends)

    async def serve(self, stream: Stream) -> None:
        """A status ends the watch, an exception is a bug, bytes are a message before the next end."""
        assert (stream.opened.kind, stream.opened.subject) == (Kind.WATCH, DRIVER)
        self.watches += 1
        while self._ends:
            end = self._ends.pop(0)
            if isinstance(end, Exception):
                raise end
            if isinstance(end, Status):
                stream.end(end)
                return
            await stream.send(end)
        await asyncio.Event().wait()


REFUSED = Status(Code.UNAVAILABLE, "no watches today", Origin.HUB)


async def test_a_watch_that_the_hub_ends_is_opened_again_and_hears_of_the_driver(
    world: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    hub = Hub(REFUSED, REFUSED, RuntimeError("a bug"), REPORT)
    await world.link(hub.serve)
    await until(lambda: world.cache.known)
    assert hub.watches == 4
    assert [message.rpartition(": ")[2] for message in caplog.messages if "WATCH stream has ended" in message] == [
        "no watches today",
        "an internal error in the edge agent; its log has the details",  # what a `Peer` calls itself
    ]


async def test_an_unreadable_report_ends_no_watch(world: Proxy, caplog: pytest.LogCaptureFixture) -> None:
    hub = Hub(b"no JSON", REPORT)
    await world.link(hub.serve)
    await until(lambda: world.cache.known)
    assert hub.watches == 1
    assert "the hub sent an unreadable report" in caplog.text


async def test_a_hub_that_drains_ends_the_watch_for_good(world: Proxy) -> None:
    hub = Hub(REFUSED, REFUSED)
    link = await world.link(hub.serve)
    await until(lambda: hub.watches == 3)
    world.proxy.draining(link, "bye")
    await settle()
    assert hub.watches == 3
    assert link.open_streams == 0
