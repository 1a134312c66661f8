"""What an agent makes of a hub's calls: over a link in memory, to a driver that answers when a test says."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from common.csi import csi_pb2
from common.errors import MessageTooLarge, VendorBroken
from common.limits import Limits
from common.link import Stream
from common.messages import Kind
from common.metrics import Metrics
from common.relay.errors import VendorCallWithheld, VendorConnectionLost, VendorUnreachable
from common.reports import CONTROLLER_GET_CAPABILITIES, Answer, DriverReport
from common.status import Code, Origin, Status
from edge.agent import Agent
from edge.controller_lease import ControllerLease
from edge.driver_call import PARSE_OFF_LOOP_BYTES, DriverCall, Outcome, Result, parsed
from edge.drivers import Driver
from edge.operations import Operations
from tests.kit.linked import Peer, cut, link_pair
from tests.kit.waiting import settle, until

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from common.link import Link

NAME = "d.example"
CONTROLLER = "/csi.v1.Controller/"
CREATE, DELETE, CAPACITY = CONTROLLER + "CreateVolume", CONTROLLER + "DeleteVolume", CONTROLLER + "GetCapacity"
ALLOCATED = "/csi.v1.SnapshotMetadata/GetMetadataAllocated"
OK = Status(Code.OK)
VOLUME = csi_pb2.CreateVolumeResponse(volume={"volume_id": "v1"}).SerializeToString()


def create(name: str = "pvc-1", **fields: Any) -> bytes:
    return csi_pb2.CreateVolumeRequest(name=name, **fields).SerializeToString()


class FakeCall(DriverCall):
    """A call that a driver was asked for."""

    def __init__(self, driver: FakeDriver, method: str, request: bytes, told: Callable[[Outcome], None]) -> None:
        super().__init__(driver, method, NAME, told)
        self.method, self.request, self.told = method, request, told
        self.timeout_s: float | None = None
        self.may_begin: Callable[[], bool] | None = None
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True

    def answer(self, body: bytes = b"", code: int = 0) -> None:
        status = Status(code, "" if not code else "no")
        self.told(Result(status, None if code else body, parsed(self._driver, self.method, body)))


class FakeDriver(Driver):
    """A driver with a controller, which answers when a test says. A bug is an error that it raises at once."""

    def __init__(self) -> None:
        super().__init__(Path("/d.sock"), "n1", max_message_bytes=1, changed=lambda: None)
        self.report = DriverReport(NAME, "n1", {CONTROLLER_GET_CAPABILITIES: Answer(0)})
        self.asked = True
        self.calls: list[FakeCall] = []
        self.bug: Exception | None = None

    def start(
        self,
        method: str,
        request: bytes,
        told: Callable[[Outcome], None],
        *,
        timeout_s: float | None,
        to: str = "",
        may_begin: Callable[[], bool] | None = None,
    ) -> FakeCall:
        if self.bug is not None:
            raise self.bug
        assert to == NAME
        self.calls.append(FakeCall(self, method, request, told))
        self.calls[-1].timeout_s, self.calls[-1].may_begin = timeout_s, may_begin
        return self.calls[-1]

    async def stream(
        self, method: str, request: bytes, *, timeout_s: float | None, to: str = ""
    ) -> AsyncGenerator[bytes | Status, None]:
        yield request
        if self.bug is not None:
            raise self.bug
        yield method.encode()
        yield OK


class Clock:
    """The clock of the controller lease, moved by hand."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def delete(volume: str = "v1") -> bytes:
    return csi_pb2.DeleteVolumeRequest(volume_id=volume).SerializeToString()


class SlowLink:
    """Takes the pings of the controller lease in place of the link, and answers when a test says."""

    def __init__(self) -> None:
        self.pong: Callable[[], None] = lambda: None

    def ping(self, answered: Callable[[], None]) -> None:
        self.pong = answered


class NoStreams:
    """Nothing else uses the link."""

    def up(self, link: Any) -> None:
        pass

    def down(self) -> None:
        pass


class World:
    """A hub's link to an agent with one driver.

    Attributes:
        ends: code and duration's sign of each finished call that the agent counted.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, limits: Limits | None = None) -> None:
        self.driver = FakeDriver()
        self.operations = Operations(600.0, "n1")
        self.clock = Clock()
        self.lease = ControllerLease(60.0, clock=self.clock)
        self.slow = SlowLink()
        self.metrics = Metrics()
        self.ends: list[int] = []
        monkeypatch.setattr(self.metrics, "observe_call", lambda _driver, _method, code, _s: self.ends.append(code))
        self.agent = Agent(
            "n1", self.operations, self.lease, self.metrics, drivers=lambda: [self.driver], streams=NoStreams()
        )
        self.hub, self.edge = link_pair(Peer(), self.agent, limits=limits)

    async def call(
        self,
        method: str,
        request: bytes | None = b"",
        *,
        kind: Kind = Kind.CALL,
        timeout_s: float | None = None,
        epoch: int = 0,
    ) -> Stream:
        """Open a call, and let it come as far as it can."""
        stream = Stream(self.hub)
        stream.id = self.hub.start(
            stream, kind, request, subject=NAME, method=method, call="c1", timeout_s=timeout_s, epoch=epoch
        )
        await settle()
        return stream

    async def answered(self, stream: Stream) -> tuple[list[bytes], Status]:
        """The answer of a call, acknowledged."""
        found = [message async for message in stream]
        assert stream.status is not None
        stream.acknowledge(delivered=True)
        await settle()
        return found, stream.status

    @property
    def at_rest(self) -> bool:
        """Whether nothing of any call is left in the agent."""
        calls = [stream for stream in self.edge.session._streams.values() if not stream.mine]
        left = (calls, self.operations._running, self.operations.limit._until, self.lease._running, self.lease._waiting)
        return not any(left) and self.metrics.calls_in_flight == 0


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World(monkeypatch)
    await settle()
    return world


# -------------------- what is carried --------------------


@pytest.mark.parametrize("method", ["/grpc.health.v1.Health/Check", "/csi.v0.Node/NodePublishVolume", ""])
async def test_what_is_no_method_of_csi_is_not_called(world: World, method: str) -> None:
    _, status = await world.answered(await world.call(method))
    assert (status.code, status.origin) == (Code.UNIMPLEMENTED, Origin.EDGE)
    assert "only methods of CSI" in status.message
    assert (world.driver.calls, world.ends) == ([], [Code.UNIMPLEMENTED])


async def test_a_call_of_node_is_not_made(world: World) -> None:
    request = csi_pb2.NodePublishVolumeRequest(volume_id="v1", target_path="/etc").SerializeToString()
    _, status = await world.answered(await world.call("/csi.v1.Node/NodePublishVolume", request))
    assert status.code == Code.UNIMPLEMENTED
    assert world.driver.calls == []
    assert world.at_rest


async def test_a_stream_of_another_kind_is_refused(world: World) -> None:
    _, status = await world.answered(await world.call(CREATE, create(), kind=Kind.WATCH))
    assert (status.code, world.driver.calls) == (Code.UNIMPLEMENTED, [])


@pytest.mark.parametrize("method", [ALLOCATED, CONTROLLER + "Imagined"])
async def test_a_stream_and_a_method_that_nobody_knows_pass_message_by_message(world: World, method: str) -> None:
    stream = await world.call(method, b"request")
    assert await world.answered(stream) == ([b"request", method.encode()], OK)
    assert world.at_rest


# -------------------- the answer --------------------


@pytest.mark.parametrize(("method", "request_bytes"), [(CREATE, create()), (CAPACITY, b"")])
async def test_a_bug_ends_its_own_call_and_neither_the_link_nor_the_next_call(
    world: World, method: str, request_bytes: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    world.driver.bug = ZeroDivisionError()
    _, status = await world.answered(await world.call(method, request_bytes))
    assert (status.code, status.message) == (
        Code.UNAVAILABLE, "an internal error in the edge agent; its log has the details"
    )  # fmt: skip
    assert "a call failed inside the edge agent" in caplog.text
    assert "ZeroDivisionError" in caplog.text
    assert world.at_rest
    world.driver.bug = None
    stream = await world.call(method, request_bytes)
    world.driver.calls[0].answer(VOLUME)
    assert (await world.answered(stream))[1] == OK


async def test_a_bug_ends_its_own_stream(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.driver.bug = ZeroDivisionError()
    messages, status = await world.answered(await world.call(ALLOCATED, b"request"))
    assert (messages, status.code) == ([b"request"], Code.UNAVAILABLE)
    assert "ZeroDivisionError" in caplog.text
    assert world.at_rest


async def test_an_answer_larger_than_the_hub_takes_is_unavailable_and_a_create_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch, Limits(max_message_bytes=100))
    await settle()
    stream = await world.call(CREATE, create())
    large = csi_pb2.CreateVolumeResponse(volume={"volume_id": "v" * 200}).SerializeToString()
    world.driver.calls[0].answer(large)
    _, status = await world.answered(stream)
    assert status.code == Code.UNAVAILABLE
    assert str(MessageTooLarge(len(large), 100, "a CSI message")) in status.message
    assert len(world.operations._kept) == 1
    assert world.at_rest


async def test_an_answer_after_the_answer_changes_nothing(world: World) -> None:
    stream = await world.call(CAPACITY)
    world.driver.calls[0].answer(b"")
    world.driver.calls[0].told(VendorBroken(NAME, "n1", "it died"))
    assert await world.answered(stream) == ([b""], OK)
    assert world.ends == [Code.OK]


async def test_a_second_request_is_dropped_and_its_credit_goes_back(world: World) -> None:
    stream = await world.call(CAPACITY)
    for _ in range(20):
        await stream.send(b"x" * 100_000)
        await settle()
    world.driver.calls[0].answer(b"")
    assert await world.answered(stream) == ([b""], OK)
    assert len(world.driver.calls) == 1


async def test_the_memory_of_a_request_counts_until_its_call_is_over(world: World) -> None:
    stream = await world.call(CREATE, create(parameters={"a": "x" * 100_000}))
    held = world.edge.session._inbox.granted + world.edge.session._inbox.owed
    world.driver.calls[0].answer(VOLUME)
    await world.answered(stream)
    assert world.edge.session._inbox.granted + world.edge.session._inbox.owed >= held + 100_000


# -------------------- time --------------------


async def test_the_driver_is_told_the_callers_time_of_a_plain_call_and_a_little_more_than_the_limit_of_an_operation(
    world: World,
) -> None:
    await world.call(CAPACITY, timeout_s=10.0)
    await world.call(CAPACITY)
    await world.call(CREATE, create(), timeout_s=10.0)
    told = [call.timeout_s or 0.0 for call in world.driver.calls]
    assert 9.0 < told[0] <= 10.0
    assert told[1:] == [605.0, 605.0]


@pytest.mark.parametrize(("method", "request_bytes"), [(CREATE, create()), (CAPACITY, b"")])
async def test_a_driver_that_hangs_is_cancelled_at_the_limit(world: World, method: str, request_bytes: bytes) -> None:
    world.operations.limit.limit_s = 0.0
    stream = await world.call(method, request_bytes)
    _, status = await world.answered(stream)
    assert status.code == Code.DEADLINE_EXCEEDED
    assert "did not finish within --operation-limit" in status.message
    assert world.driver.calls[0].cancelled
    assert world.at_rest


# -------------------- callers that leave --------------------


@pytest.mark.parametrize("how", ["cancel", "cut"])
async def test_a_plain_call_whose_caller_leaves_is_cancelled_at_the_driver(world: World, how: str) -> None:
    stream = await world.call(CAPACITY)
    leave(world, stream, how)
    await settle()
    assert world.driver.calls[0].cancelled
    assert (world.ends, world.at_rest) == ([Code.CANCELLED], True)


@pytest.mark.parametrize("first", ["the caller leaves", "the driver answers"])
async def test_a_caller_that_leaves_in_the_turn_of_the_answer_harms_nothing(world: World, first: str) -> None:
    plain, changing = await world.call(CAPACITY), await world.call(CREATE, create())
    if first == "the driver answers":
        for call in world.driver.calls:
            call.answer(VOLUME)
    plain.cancel()
    changing.cancel()
    if first == "the caller leaves":
        for call in world.driver.calls:
            call.answer(VOLUME)
    await settle()
    assert world.at_rest
    assert len(world.ends) == 2
    assert len(world.operations._kept) == 1
    stream = await world.call(CREATE, create())
    assert await world.answered(stream) == ([VOLUME], OK)
    assert not world.operations._kept


async def test_a_caller_that_sends_no_request_and_leaves_is_counted(world: World) -> None:
    stream = await world.call(CAPACITY, None)
    stream.cancel()
    await settle()
    assert (world.ends, world.at_rest) == ([Code.CANCELLED], True)


# -------------------- operations --------------------


async def test_a_caller_that_joined_and_leaves_stops_nothing(world: World) -> None:
    first, joined = await world.call(CREATE, create()), await world.call(CREATE, create())
    joined.cancel()
    await settle()
    assert world.ends == [Code.CANCELLED]
    world.driver.calls[0].answer(VOLUME)
    assert await world.answered(first) == ([VOLUME], OK)
    assert world.at_rest


# -------------------- large messages --------------------


async def test_a_large_request_is_parsed_in_a_thread_and_is_one_operation(world: World) -> None:
    request = create(parameters={"a": "x" * PARSE_OFF_LOOP_BYTES})
    stream = await world.call(CREATE, request)
    await until(lambda: bool(world.driver.calls))
    assert world.operations.under_way == ["CreateVolume pvc-1"]
    world.driver.calls[0].answer(VOLUME)
    assert await world.answered(stream) == ([VOLUME], OK)
    assert world.at_rest


async def test_a_large_request_whose_caller_left_meanwhile_is_not_sent(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = asyncio.Event()

    async def slow(*_args: object) -> None:
        await gate.wait()

    monkeypatch.setattr("asyncio.to_thread", slow)
    stream = await world.call(CREATE, create(parameters={"a": "x" * PARSE_OFF_LOOP_BYTES}))
    stream.cancel()
    await settle()
    gate.set()
    await settle()
    assert (world.driver.calls, world.ends, world.at_rest) == ([], [Code.CANCELLED], True)


async def test_a_large_request_that_cannot_be_parsed_by_a_bug_is_unavailable(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("edge.hub_call.identify", lambda *_: 1 / 0)
    stream = await world.call(CREATE, create(parameters={"a": "x" * PARSE_OFF_LOOP_BYTES}))
    _, status = await world.answered(stream)
    assert status.code == Code.UNAVAILABLE
    assert "a call failed inside the edge agent" in caplog.text
    assert world.at_rest


def leave(world: World, stream: Stream, how: str) -> None:
    """End the wait of a call's caller."""
    if how == "cancel":
        stream.cancel()
    else:
        links: list[Link] = [world.hub, world.edge]
        cut(*links)


# -------------------- epochs and the controller lease --------------------


async def test_the_first_call_with_an_epoch_waits_for_a_pong_and_the_next_one_does_not(world: World) -> None:
    world.lease.up(world.slow)
    first = await world.call(CREATE, create(), epoch=5)
    assert world.driver.calls == []
    world.slow.pong()
    await settle()
    await world.call(DELETE, delete(), epoch=5)
    assert [call.method for call in world.driver.calls] == [CREATE, DELETE]
    world.driver.calls[0].answer(VOLUME)
    assert (await world.answered(first))[1] == OK


async def test_a_call_without_an_epoch_and_a_read_need_no_lease(world: World) -> None:
    world.lease.up(world.slow)
    await world.call(CREATE, create())
    await world.call(CAPACITY, epoch=5)
    assert len(world.driver.calls) == 2


async def test_an_unknown_method_with_an_epoch_waits_for_the_lease_too(world: World) -> None:
    world.lease.up(world.slow)
    stream = await world.call("/csi.v1.Controller/Shrink", b"request", epoch=5)
    assert stream.status is None
    world.slow.pong()
    assert (await world.answered(stream))[1] == OK


@pytest.mark.parametrize("how", ["cancel", "cut"])
async def test_a_call_whose_caller_leaves_before_the_lease_holds_is_never_begun(world: World, how: str) -> None:
    world.lease.up(world.slow)
    stream = await world.call(CREATE, create(), epoch=5)
    if how == "cancel":
        stream.cancel()
    else:
        cut(world.hub, world.edge)
    await settle()
    assert world.at_rest
    world.slow.pong()
    await settle()
    assert world.driver.calls == []


@pytest.mark.parametrize("method", [CREATE, CAPACITY, "/csi.v1.Controller/Shrink"])
async def test_a_call_of_an_older_epoch_is_aborted_and_not_sent(world: World, method: str) -> None:
    newest = await world.call(CAPACITY, epoch=7)
    world.driver.calls.pop().answer()
    await world.answered(newest)
    _, status = await world.answered(await world.call(method, create(), epoch=5))
    if method == CREATE:
        assert (status.code, status.origin) == (Code.ABORTED, Origin.UNSENT)
    assert "is of epoch 5 of driver d.example, and edge node n1 has seen epoch 7" in status.message
    assert world.driver.calls == []
    assert world.at_rest


async def test_an_epoch_that_passes_while_a_call_waits_for_the_lease_ends_it(world: World) -> None:
    world.lease.up(world.slow)
    old = await world.call(CREATE, create(), epoch=5)
    await world.call(CREATE, create("pvc-2"), epoch=7)
    world.slow.pong()
    _, status = await world.answered(old)
    assert status.code == Code.ABORTED
    assert len(world.driver.calls) == 1


async def test_an_epoch_of_a_driver_that_is_not_here_is_not_remembered(world: World) -> None:
    world.driver.report = None
    _, status = await world.answered(await world.call(CAPACITY, epoch=7))
    assert status.code == Code.UNAVAILABLE
    assert world.agent._epochs == {}


async def test_a_call_of_a_newer_epoch_joins_the_running_operation_even_if_the_driver_is_away(world: World) -> None:
    first = await world.call(CREATE, create(), epoch=5)
    report, world.driver.report = world.driver.report, None
    second = await world.call(CREATE, create(), epoch=7)
    assert (first.status, second.status) == (None, None)
    world.driver.report = report
    world.driver.calls[0].answer(VOLUME)
    assert [(await world.answered(stream))[1] for stream in (first, second)] == [OK, OK]
    assert len(world.driver.calls) == 1


async def test_a_newer_epoch_drops_the_kept_results_of_its_driver(world: World) -> None:
    """Between two elections of this node another one served the driver, and may have deleted the volume."""
    await world.call(CREATE, create(), epoch=5)
    cut(world.hub, world.edge)
    world.driver.calls[0].answer(VOLUME)
    assert len(world.operations._kept) == 1
    world.hub, world.edge = link_pair(Peer(), world.agent)
    await settle()
    await world.call(CREATE, create(), epoch=7)
    assert len(world.driver.calls) == 2


async def test_the_same_epoch_keeps_them(world: World) -> None:
    await world.call(CREATE, create(), epoch=5)
    cut(world.hub, world.edge)
    world.driver.calls[0].answer(VOLUME)
    world.hub, world.edge = link_pair(Peer(), world.agent)
    await settle()
    stream = await world.call(CREATE, create(), epoch=5)
    assert await world.answered(stream) == ([VOLUME], OK)
    assert len(world.driver.calls) == 1


async def test_an_operation_is_cancelled_when_the_lease_ends_and_one_without_an_epoch_goes_on(world: World) -> None:
    leased = await world.call(CREATE, create(), epoch=5)
    free = await world.call(CREATE, create("pvc-2"))
    world.clock.now += 60
    assert [call.may_begin is not None and call.may_begin() for call in world.driver.calls] == [False, False]
    world.lease._look()
    _, status = await world.answered(leased)
    assert (status.code, status.origin) == (Code.UNAVAILABLE, Origin.EDGE)
    assert "had no answer of the hub for --controller-lease" in status.message
    assert [call.cancelled for call in world.driver.calls] == [True, False]
    assert [call.may_begin is None for call in world.driver.calls] == [False, True]
    world.driver.calls[1].answer(VOLUME)
    assert (await world.answered(free))[1] == OK
    assert world.at_rest


async def test_a_call_with_an_epoch_puts_the_operation_that_it_joins_under_the_lease(world: World) -> None:
    await world.call(CREATE, create())
    joined = await world.call(CREATE, create(), epoch=5)
    world.clock.now += 60
    world.lease._look()
    assert (await world.answered(joined))[1].code == Code.UNAVAILABLE
    assert world.driver.calls[0].cancelled


@pytest.mark.parametrize(("epoch", "origin"), [(0, Origin.EDGE), (5, Origin.UNSENT)])
@pytest.mark.parametrize("why", ["no driver", "no connection", "withheld", "conflict"])
async def test_the_end_of_a_call_with_an_epoch_says_whether_nothing_was_sent(
    world: World, why: str, epoch: int, origin: Origin
) -> None:
    if why == "no driver":
        world.driver.report = None
    elif why == "conflict":
        await world.call(CREATE, create(parameters={"a": "b"}), epoch=epoch)
    stream = await world.call(CREATE, create(), epoch=epoch)
    if why == "no connection":
        world.driver.calls[0].failed(VendorUnreachable("/d.sock", "no such socket"))
    elif why == "withheld":
        world.driver.calls[0].failed(VendorCallWithheld("/d.sock"))
    _, status = await world.answered(stream)
    assert status.origin == origin


async def test_the_end_of_a_call_whose_driver_died_does_not_say_that_nothing_was_sent(world: World) -> None:
    stream = await world.call(CREATE, create(), epoch=5)
    world.driver.calls[0].failed(VendorConnectionLost("/d.sock", "it closed the connection", sent=True))
    _, status = await world.answered(stream)
    assert (status.code, status.origin) == (Code.UNAVAILABLE, Origin.EDGE)
