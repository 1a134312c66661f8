"""The proxy driver between a sidecar and the hub, without sockets: lost links, and the watch that must stay."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from cli.process_options import DRIVER_OPTIONS
from cloud.csi_proxy_driver import ProxyDriver
from cloud.identity_cache import CACHED_METHODS, IdentityCache
from common.backoff import Backoff
from common.csi.csi_pb2 import GetPluginInfoResponse
from common.errors import CallError, timestamp
from common.limits import Limits
from common.messages import Kind
from common.metrics import Metrics
from common.relay.errors import PeerGone
from common.relay.server_call import ServerCall
from common.reports import GET_PLUGIN_INFO, PROBE, Answer, DriverReport, encode_reports
from common.status import Code, Origin, Status
from common.uplink import Uplink
from common.version import introduce
from tests.support.linked import Peer, cut, link_pair
from tests.support.waiting import settle, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from common.link import Link, Stream

DRIVER = "d.example"
CREATE = "/csi.v1.Controller/CreateVolume"
HELLO = introduce("driver", DRIVER, instance="p")
INFO = Answer(0, body=GetPluginInfoResponse(name=DRIVER).SerializeToString())
REPORT = encode_reports(
    [DriverReport(DRIVER, "n1", {**dict.fromkeys(CACHED_METHODS, Answer(0)), GET_PLUGIN_INFO: INFO})]
)


class Sidecar:
    """A sidecar's connection (`common.relay.server_call.AnswerWriter`): remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[Status] = []

    async def send_message(self, call: ServerCall, message: bytes) -> None:
        """Nothing to do."""

    def send_status(self, call: ServerCall, status: Status) -> bool:
        """Remember."""
        self.told.append(status)
        return True


class World:
    """A proxy driver and its link to a hub."""

    def __init__(self, directory: Path, *, reopen_s: float = 0.0) -> None:
        settings = DRIVER_OPTIONS.read({"drivername": DRIVER, "state_dir": str(directory)})
        self.cache = IdentityCache(directory, DRIVER)
        self.proxy = ProxyDriver(settings, self.cache, Metrics(), reopen=Backoff(first_s=reopen_s, most_s=reopen_s))
        self.uplink = Uplink(settings.hub_endpoint, lambda: HELLO, self.proxy, limits=Limits())
        self.proxy.uplink = self.uplink
        self.links: list[Link] = []

    async def link(self, serve: Callable[[Stream], Awaitable[None]]) -> Link:
        """The proxy driver's link to a hub that serves its streams so."""
        at_hub, at_proxy = link_pair(Peer(serve), self.uplink, HELLO)
        self.links += [at_hub, at_proxy]
        await settle()
        return at_proxy

    async def call(self, method: str = CREATE) -> list[Status]:
        """What a sidecar is told of a call."""
        sidecar = Sidecar()
        call = ServerCall(sidecar, 1, method=method, request=b"", timeout_s=None)
        try:
            await self.proxy.handle(call)
        except CallError as error:
            call.finish(self.proxy.on_error(error))
        return sidecar.told


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = World(tmp_path)
    yield world
    cut(*(link for link in world.links if not link.over))
    await settle()


async def never_ends(_stream: Stream) -> None:
    await asyncio.Event().wait()


# -------------------- lost links --------------------


async def test_a_call_of_which_nothing_was_sent_found_no_hub(world: World) -> None:
    link = await world.link(never_ends)
    call = asyncio.ensure_future(world.call())
    await asyncio.sleep(0)  # it opens its stream, and its frames have not left
    cut(link)
    assert await call == [
        Status(
            Code.UNAVAILABLE,
            f"the proxy driver has no link to the hub at {world.uplink.endpoint} since "
            f"{timestamp(world.uplink.since)}; look at the proxy driver's log, which says why, and at the hub's",
            Origin.PROXY,
        )
    ]


async def test_a_call_that_was_sent_lost_its_link(world: World) -> None:
    link = await world.link(never_ends)
    call = asyncio.ensure_future(world.call())
    await settle()
    cut(link)
    (told,) = await call
    assert told.code == Code.UNAVAILABLE
    assert told.message.startswith("the link to the hub was lost with the call under way; ")


# -------------------- callers that leave --------------------


class Gone(Sidecar):
    """A sidecar that leaves before the answer is written."""

    async def send_message(self, call: ServerCall, message: bytes) -> None:
        """Fail, as a connection does that the caller has closed."""
        raise PeerGone


@pytest.mark.parametrize("method", [CREATE, PROBE])
async def test_a_caller_that_leaves_while_its_answer_is_written_is_no_error_in_the_log(
    world: World, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    caplog.set_level("INFO")

    async def serve(stream: Stream) -> None:
        assert stream.opened is not None
        if stream.opened.kind == Kind.WATCH:
            await never_ends(stream)
        stream.end(Status(Code.OK), b"the answer")

    await world.link(serve)
    with pytest.raises(PeerGone) as raised:
        await world.proxy.handle(ServerCall(Gone(), 1, method=method, request=b"", timeout_s=None))
    world.proxy.on_error(raised.value)
    await settle()
    assert [record.message for record in caplog.records if record.levelname in {"WARNING", "ERROR"}] == []
    codes = [record.fields["code"] for record in caplog.records if hasattr(record, "fields")]
    assert codes == (["CANCELLED"] if method == CREATE else [])


# -------------------- the watch --------------------


class Hub:
    """Serves watches as it is told; at the end of what it was told, they stay.

    Attributes:
        watches: how many were opened.
    """

    def __init__(self, *ends: Status | Exception | bytes) -> None:
        self.watches = 0
        self._ends = list(ends)

    async def serve(self, stream: Stream) -> None:
        """A status ends the watch, an exception is a bug, bytes are a message before the next end."""
        assert stream.opened is not None
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
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    hub = Hub(REFUSED, REFUSED, RuntimeError("a bug"), REPORT)
    await world.link(hub.serve)
    await until(lambda: world.cache.known)
    assert hub.watches == 4
    assert [message.rpartition(": ")[2] for message in caplog.messages if "WATCH stream has ended" in message] == [
        "no watches today",
        "an internal error in the edge agent; its log has the details",  # what a `Peer` calls itself
    ]


async def test_an_unreadable_report_ends_no_watch(world: World, caplog: pytest.LogCaptureFixture) -> None:
    hub = Hub(b"no JSON", REPORT)
    await world.link(hub.serve)
    await until(lambda: world.cache.known)
    assert hub.watches == 1
    assert "the hub sent an unreadable report" in caplog.text


async def test_a_watch_ends_with_its_link_and_the_next_link_has_its_own(tmp_path: Path) -> None:
    world = World(tmp_path, reopen_s=3_600.0)
    waiting, watching = Hub(REFUSED), Hub()
    for hub in (waiting, watching):
        cut(await world.link(hub.serve))
        await settle()
    assert (waiting.watches, watching.watches) == (1, 1)
    assert [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("standing")] == []


async def test_a_hub_that_drains_ends_the_watch_for_good(world: World) -> None:
    hub = Hub(REFUSED, REFUSED)
    link = await world.link(hub.serve)
    await until(lambda: hub.watches == 3)
    world.proxy.draining(link, "bye")
    await settle()
    assert hub.watches == 3
    assert link.session.open_streams == 0
