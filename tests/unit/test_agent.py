"""What an agent makes of a hub's calls: over a link in memory, to a driver that answers when a test says."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from common.csi import csi_pb2
from common.csi.reports import CONTROLLER_GET_CAPABILITIES, Answer, DriverReport, decode_problems, is_problems
from common.errors import MessageTooLarge
from common.messages import Kind
from common.observe.metrics import Metrics
from common.relay.client_call import ClientCall
from common.relay.errors import VendorCallWithheld, VendorConnectionError, VendorUnreachable
from common.session.limits import Limits
from common.session.link import Link, Stream
from common.status import Code, Origin, Status
from edge.agent import Agent
from edge.calls.controller_lease import ControllerLease
from edge.calls.driver_call import PARSE_OFF_LOOP_BYTES
from edge.calls.drivers import Driver
from edge.identity.hub_mark import HubMark
from edge.operations import Operations
from edge.registry.driver_services import told_reports
from edge.reports.problems import Problems
from tests.kit.accounts import note_ends
from tests.kit.linked import Peer, cut, link_pair
from tests.kit.waiting import settle, until

NAME = "d.example"
CONTROLLER = "/csi.v1.Controller/"
CREATE, DELETE, CAPACITY = CONTROLLER + "CreateVolume", CONTROLLER + "DeleteVolume", CONTROLLER + "GetCapacity"
ALLOCATED = "/csi.v1.SnapshotMetadata/GetMetadataAllocated"
OK = Status(Code.OK)
VOLUME = csi_pb2.CreateVolumeResponse(volume={"volume_id": "v1"}).SerializeToString()


def create(name: str = "pvc-1", **fields: Any) -> bytes:
    return csi_pb2.CreateVolumeRequest(name=name, **fields).SerializeToString()


class FakeCall:
    """A call that a driver was asked for."""

    def __init__(self, call: ClientCall) -> None:
        self.method, self.request, self.timeout_s, self.may_begin = (
            call.method, call.request, call.timeout_s, call.may_begin,
        )  # fmt: skip
        self.failed = call.receiver.failed
        self._call = call

    @property
    def cancelled(self) -> bool:
        return self._call.over

    def answer(self, body: bytes = b"", code: int = 0) -> None:
        self._call.receiver.answered(Status(code, "" if not code else "no"), None if code else body)


class FakeDriver(Driver):
    """A driver with a controller, which answers when a test says. A bug is an error that it raises at once."""

    def __init__(self) -> None:
        super().__init__(Path("/d.sock"), "n1", max_message_bytes=1, changed=lambda: None)
        self.channel = self
        self.report = DriverReport(NAME, "n1", {CONTROLLER_GET_CAPABILITIES: Answer(0)})
        self.asked = True
        self.calls: list[FakeCall] = []
        self.bug: Exception | None = None

    def open(self, call: ClientCall) -> None:
        if self.bug is not None:
            raise self.bug
        assert call.driver == NAME
        self.calls.append(FakeCall(call))

    async def stream(
        self, method: str, request: bytes, *, timeout_s: float | None, to: str = ""
    ) -> AsyncGenerator[bytes | Status, None]:
        yield request
        if self.bug is not None:
            raise self.bug
        yield method.encode()
        yield OK


class FakeRegistry:
    """A registry with these drivers."""

    def __init__(self, drivers: list[Driver]) -> None:
        self.drivers = drivers

    def subscribe(self, _callback: Callable[[], None]) -> None:
        """A test tells the agent of changes."""

    def told_reports(self) -> list[DriverReport]:
        return told_reports(self.drivers, ())


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


class LinkedAgent:
    """A hub's link to an agent with one driver."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, limits: Limits | None = None, hub: Peer | None = None) -> None:
        self.driver = FakeDriver()
        self.problems = Problems()
        self.operations = Operations(600.0, "n1")
        self.clock = Clock()
        self.lease = ControllerLease(60.0, clock=self.clock)
        self.slow = SlowLink()
        self.metrics = Metrics()
        self.ends: list[int] = []  # code and duration's sign of each finished call that the agent counted
        note_ends(monkeypatch, self.ends)
        part: Any = SimpleNamespace(node="n1", registry=FakeRegistry([self.driver]), streams=())
        mark = HubMark(Path("/none"), [])
        self.agent = Agent(part, self.operations, self.lease, self.metrics, problems=self.problems, mark=mark)
        self.hub, self.edge = link_pair(hub or Peer(), self.agent, limits=limits)

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

    def hear(self, report: DriverReport | None) -> DriverReport | None:
        """Let the driver's report change, and return the one before."""
        before, self.driver.report = self.driver.report, report
        self.agent.changed()
        return before

    @property
    def at_rest(self) -> bool:
        """Whether nothing of any call is left in the agent."""
        calls = [stream for stream in self.edge._streams.values() if not stream.mine]
        left = (calls, self.operations._running, self.operations._until, self.lease._running, self.lease._waiting)
        return not any(left) and self.metrics.calls_in_flight == 0


@pytest.fixture
async def linked(monkeypatch: pytest.MonkeyPatch) -> LinkedAgent:
    linked = LinkedAgent(monkeypatch)
    await settle()
    return linked


# -------------------- what is carried --------------------


@pytest.mark.parametrize("method", ["/grpc.health.v1.Health/Check", "/csi.v0.Node/NodePublishVolume", ""])
async def test_what_is_no_method_of_csi_is_not_called(linked: LinkedAgent, method: str) -> None:
    _, status = await linked.answered(await linked.call(method))
    assert (status.code, status.origin) == (Code.UNIMPLEMENTED, Origin.EDGE)
    assert "only methods of CSI" in status.message
    assert (linked.driver.calls, linked.ends) == ([], [Code.UNIMPLEMENTED])


async def test_a_stream_of_another_kind_is_refused(linked: LinkedAgent) -> None:
    _, status = await linked.answered(await linked.call(CREATE, create(), kind=Kind.WATCH))
    assert (status.code, linked.driver.calls) == (Code.UNIMPLEMENTED, [])


async def test_each_news_ends_with_the_reports_which_an_older_hub_reads_and_the_problems_come_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[bytes] = []

    async def serve(stream: Stream) -> None:
        async for message in stream:
            told.append(message)  # noqa: PERF401  # the test looks while they come

    linked = LinkedAgent(monkeypatch, hub=Peer(serve))
    await until(lambda: len(told) == 2)
    linked.agent.changed()
    await settle()
    linked.problems.standing.append("the disk is full")
    linked.agent.changed()
    await until(lambda: len(told) >= 4)
    assert [is_problems(it) for it in told] == [True, False] * 2
    assert decode_problems(told[2]) == ["the disk is full"]


# -------------------- the answer --------------------


async def test_a_bug_ends_its_own_stream(linked: LinkedAgent, caplog: pytest.LogCaptureFixture) -> None:
    linked.driver.bug = ZeroDivisionError()
    messages, status = await linked.answered(await linked.call(ALLOCATED, b"request"))
    assert (messages, status.code) == ([b"request"], Code.UNAVAILABLE)
    assert "ZeroDivisionError" in caplog.text
    assert linked.at_rest


async def test_an_answer_larger_than_the_hub_takes_is_unavailable_and_a_create_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    linked = LinkedAgent(monkeypatch, Limits(max_message_bytes=100))
    await settle()
    stream = await linked.call(CREATE, create())
    large = csi_pb2.CreateVolumeResponse(volume={"volume_id": "v" * 200}).SerializeToString()
    linked.driver.calls[0].answer(large)
    _, status = await linked.answered(stream)
    assert status.code == Code.UNAVAILABLE
    assert str(MessageTooLarge(len(large), 100, "a CSI message")) in status.message
    assert len(linked.operations._kept) == 1
    assert linked.at_rest


async def test_an_answer_after_the_answer_changes_nothing(linked: LinkedAgent) -> None:
    stream = await linked.call(CAPACITY)
    linked.driver.calls[0].answer(b"")
    linked.driver.calls[0].failed(VendorConnectionError("it died", sent=True))
    assert await linked.answered(stream) == ([b""], OK)
    assert linked.ends == [Code.OK]


async def test_the_memory_of_a_request_counts_until_its_call_is_over(linked: LinkedAgent) -> None:
    stream = await linked.call(CREATE, create(parameters={"a": "x" * 100_000}))
    held = linked.edge._inbox.granted + linked.edge._inbox.owed
    linked.driver.calls[0].answer(VOLUME)
    await linked.answered(stream)
    assert linked.edge._inbox.granted + linked.edge._inbox.owed >= held + 100_000


async def test_a_call_goes_where_the_drivers_are_since_their_last_change(linked: LinkedAgent) -> None:
    for report, code in [(linked.driver.report, Code.OK), (None, Code.UNAVAILABLE), (linked.driver.report, Code.OK)]:
        linked.hear(report)
        stream = await linked.call(CAPACITY)
        for call in linked.driver.calls:
            call.answer()
        linked.driver.calls.clear()
        assert (await linked.answered(stream))[1].code == code


# -------------------- time --------------------


async def test_the_driver_is_told_the_callers_time_of_a_plain_call_and_a_little_more_than_the_limit_of_an_operation(
    linked: LinkedAgent,
) -> None:
    await linked.call(CAPACITY, timeout_s=10.0)
    await linked.call(CAPACITY)
    await linked.call(CREATE, create(), timeout_s=10.0)
    told = [call.timeout_s or 0.0 for call in linked.driver.calls]
    assert 9.0 < told[0] <= 10.0
    assert told[1:] == [605.0, 605.0]


async def test_a_plain_call_that_hangs_is_cancelled_at_the_limit_of_operations(linked: LinkedAgent) -> None:
    linked.operations.limit_s = 0.0
    _, status = await linked.answered(await linked.call(CAPACITY))
    assert status.code == Code.DEADLINE_EXCEEDED
    assert "did not finish within --operation-limit" in status.message
    assert linked.driver.calls[0].cancelled
    assert linked.at_rest


@pytest.mark.parametrize("size", [2, PARSE_OFF_LOOP_BYTES + 1])
@pytest.mark.parametrize("method", [CAPACITY, CREATE])
async def test_a_bug_in_the_check_of_an_answer_ends_the_call(
    linked: LinkedAgent, size: int, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge.hub_call.parsed", lambda *_: 1 / 0)
    stream = await linked.call(method, create())
    linked.driver.calls[0].answer(b"\xff" * size)
    _, status = await linked.answered(stream)
    assert (status.code, status.origin) == (Code.UNAVAILABLE, Origin.EDGE)
    assert linked.at_rest


# -------------------- callers that leave --------------------


@pytest.mark.parametrize("how", ["cancel", "cut"])
async def test_a_plain_call_whose_caller_leaves_is_cancelled_at_the_driver(linked: LinkedAgent, how: str) -> None:
    stream = await linked.call(CAPACITY)
    leave(linked, stream, how)
    await settle()
    assert linked.driver.calls[0].cancelled
    assert (linked.ends, linked.at_rest) == ([Code.CANCELLED], True)


async def test_a_plain_call_whose_caller_leaves_while_its_large_answer_is_parsed_ends_at_once(
    linked: LinkedAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = asyncio.Event()

    async def slow(*_args: object) -> None:
        await gate.wait()

    monkeypatch.setattr("asyncio.to_thread", slow)
    stream = await linked.call(CAPACITY)
    linked.driver.calls[0].answer(b"\xff" * (PARSE_OFF_LOOP_BYTES + 1))
    stream.cancel()
    await settle()
    gate.set()
    await settle()
    assert (linked.ends, linked.at_rest) == ([Code.CANCELLED], True)


@pytest.mark.parametrize("first", ["the caller leaves", "the driver answers"])
async def test_a_caller_that_leaves_in_the_turn_of_the_answer_harms_nothing(linked: LinkedAgent, first: str) -> None:
    plain, changing = await linked.call(CAPACITY), await linked.call(CREATE, create())
    if first == "the driver answers":
        for call in linked.driver.calls:
            call.answer(VOLUME)
    plain.cancel()
    changing.cancel()
    if first == "the caller leaves":
        for call in linked.driver.calls:
            call.answer(VOLUME)
    await settle()
    assert linked.at_rest
    assert len(linked.ends) == 2
    assert len(linked.operations._kept) == 1
    stream = await linked.call(CREATE, create())
    assert await linked.answered(stream) == ([VOLUME], OK)
    assert not linked.operations._kept


# -------------------- operations --------------------


async def test_a_caller_that_joined_and_leaves_stops_nothing(linked: LinkedAgent) -> None:
    first, joined = await linked.call(CREATE, create()), await linked.call(CREATE, create())
    joined.cancel()
    await settle()
    assert linked.ends == [Code.CANCELLED]
    linked.driver.calls[0].answer(VOLUME)
    assert await linked.answered(first) == ([VOLUME], OK)
    assert linked.at_rest


@pytest.mark.parametrize("ends", ["before the link", "after the link"])
async def test_an_operation_without_a_caller_keeps_no_request_and_a_retry_with_rotated_secrets_joins_it(
    linked: LinkedAgent, ends: str
) -> None:
    """The memory of a request counts only until its stream is over."""
    await linked.call(CREATE, create(secrets={"password": "old"}))
    (call,) = linked.operations._running.values()
    if ends == "before the link":
        linked.driver.calls[0].answer(VOLUME)
    cut(linked.hub, linked.edge)
    assert call.arguments.request is None
    linked.hub, linked.edge = link_pair(Peer(), linked.agent)
    await settle()
    if ends == "after the link":
        other = await linked.call(CREATE, create(parameters={"other": "arguments"}))
        assert (await linked.answered(other))[1].code == Code.ABORTED
    retry = await linked.call(CREATE, create(secrets={"password": "new"}))
    if ends == "after the link":
        linked.driver.calls[0].answer(VOLUME)
    assert await linked.answered(retry) == ([VOLUME], OK)
    assert len(linked.driver.calls) == 1
    assert linked.at_rest


# -------------------- large messages --------------------


async def test_a_large_request_is_parsed_in_a_thread_and_is_one_operation(linked: LinkedAgent) -> None:
    request = create(parameters={"a": "x" * PARSE_OFF_LOOP_BYTES})
    stream = await linked.call(CREATE, request)
    await until(lambda: bool(linked.driver.calls))
    assert linked.operations.under_way == ["CreateVolume pvc-1"]
    linked.driver.calls[0].answer(VOLUME)
    assert await linked.answered(stream) == ([VOLUME], OK)
    assert linked.at_rest


async def test_a_large_request_whose_caller_left_meanwhile_is_not_sent(
    linked: LinkedAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = asyncio.Event()

    async def slow(*_args: object) -> None:
        await gate.wait()

    monkeypatch.setattr("asyncio.to_thread", slow)
    stream = await linked.call(CREATE, create(parameters={"a": "x" * PARSE_OFF_LOOP_BYTES}))
    stream.cancel()
    await settle()
    gate.set()
    await settle()
    assert (linked.driver.calls, linked.ends, linked.at_rest) == ([], [Code.CANCELLED], True)


async def test_a_large_request_that_cannot_be_parsed_by_a_bug_is_unavailable(
    linked: LinkedAgent, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("edge.hub_call.identify", lambda *_: 1 / 0)
    stream = await linked.call(CREATE, create(parameters={"a": "x" * PARSE_OFF_LOOP_BYTES}))
    _, status = await linked.answered(stream)
    assert status.code == Code.UNAVAILABLE
    assert "a call failed inside the edge agent" in caplog.text
    assert linked.at_rest


def leave(linked: LinkedAgent, stream: Stream, how: str) -> None:
    """End the wait of a call's caller."""
    if how == "cancel":
        stream.cancel()
    else:
        links: list[Link] = [linked.hub, linked.edge]
        cut(*links)


# -------------------- epochs and the controller lease --------------------


async def test_the_first_call_with_an_epoch_waits_for_a_pong_and_the_next_one_does_not(linked: LinkedAgent) -> None:
    linked.lease.up(linked.slow)
    first = await linked.call(CREATE, create(), epoch=5)
    assert linked.driver.calls == []
    linked.slow.pong()
    await settle()
    await linked.call(DELETE, delete(), epoch=5)
    assert [call.method for call in linked.driver.calls] == [CREATE, DELETE]
    linked.driver.calls[0].answer(VOLUME)
    assert (await linked.answered(first))[1] == OK


async def test_a_call_without_an_epoch_and_a_read_need_no_lease(linked: LinkedAgent) -> None:
    linked.lease.up(linked.slow)
    await linked.call(CREATE, create())
    await linked.call(CAPACITY, epoch=5)
    assert len(linked.driver.calls) == 2


async def test_an_unknown_method_with_an_epoch_waits_for_the_lease_too(linked: LinkedAgent) -> None:
    linked.lease.up(linked.slow)
    stream = await linked.call("/csi.v1.Controller/Shrink", b"request", epoch=5)
    assert stream.status is None
    linked.slow.pong()
    assert (await linked.answered(stream))[1] == OK


@pytest.mark.parametrize("how", ["cancel", "cut"])
async def test_a_call_whose_caller_leaves_before_the_lease_holds_is_never_begun(linked: LinkedAgent, how: str) -> None:
    linked.lease.up(linked.slow)
    stream = await linked.call(CREATE, create(), epoch=5)
    leave(linked, stream, how)
    await settle()
    assert linked.at_rest
    linked.slow.pong()
    await settle()
    assert linked.driver.calls == []


@pytest.mark.parametrize("method", [CREATE, CAPACITY, "/csi.v1.Controller/Shrink"])
async def test_a_call_of_an_older_epoch_is_aborted_and_not_sent(linked: LinkedAgent, method: str) -> None:
    newest = await linked.call(CAPACITY, epoch=7)
    linked.driver.calls.pop().answer()
    await linked.answered(newest)
    _, status = await linked.answered(await linked.call(method, create(), epoch=5))
    if method == CREATE:
        assert (status.code, status.origin) == (Code.ABORTED, Origin.UNSENT)
    assert "is of epoch 5 of driver d.example, and edge node n1 has seen epoch 7" in status.message
    assert linked.driver.calls == []
    assert linked.at_rest


async def test_an_epoch_that_passes_while_a_call_waits_for_the_lease_ends_it(linked: LinkedAgent) -> None:
    linked.lease.up(linked.slow)
    old = await linked.call(CREATE, create(), epoch=5)
    await linked.call(CREATE, create("pvc-2"), epoch=7)
    linked.slow.pong()
    _, status = await linked.answered(old)
    assert status.code == Code.ABORTED
    assert len(linked.driver.calls) == 1


async def test_an_epoch_of_a_driver_that_is_not_here_is_not_remembered(linked: LinkedAgent) -> None:
    linked.hear(None)
    _, status = await linked.answered(await linked.call(CAPACITY, epoch=7))
    assert status.code == Code.UNAVAILABLE
    assert linked.agent._epochs == {}


async def test_a_call_of_a_newer_epoch_joins_the_running_operation_even_if_the_driver_is_away(
    linked: LinkedAgent,
) -> None:
    first = await linked.call(CREATE, create(), epoch=5)
    report = linked.hear(None)
    second = await linked.call(CREATE, create(), epoch=7)
    assert (first.status, second.status) == (None, None)
    linked.hear(report)
    linked.driver.calls[0].answer(VOLUME)
    assert [(await linked.answered(stream))[1] for stream in (first, second)] == [OK, OK]
    assert len(linked.driver.calls) == 1


@pytest.mark.parametrize(("epoch", "calls"), [(5, 1), (7, 2)], ids=["the same", "a newer one"])
async def test_a_newer_epoch_drops_the_kept_results_of_its_driver_and_the_same_one_keeps_them(
    linked: LinkedAgent, epoch: int, calls: int
) -> None:
    """Between two elections of this node another one served the driver, and may have deleted the volume."""
    await linked.call(CREATE, create(), epoch=5)
    cut(linked.hub, linked.edge)
    linked.driver.calls[0].answer(VOLUME)
    assert len(linked.operations._kept) == 1
    linked.hub, linked.edge = link_pair(Peer(), linked.agent)
    await settle()
    await linked.call(CREATE, create(), epoch=epoch)
    assert len(linked.driver.calls) == calls


async def test_an_operation_is_cancelled_when_the_lease_ends_and_one_without_an_epoch_goes_on(
    linked: LinkedAgent,
) -> None:
    leased = await linked.call(CREATE, create(), epoch=5)
    free = await linked.call(CREATE, create("pvc-2"))
    linked.clock.now += 60
    assert [call.may_begin is not None and call.may_begin() for call in linked.driver.calls] == [False, False]
    linked.lease._check_times()
    _, status = await linked.answered(leased)
    assert (status.code, status.origin) == (Code.UNAVAILABLE, Origin.EDGE)
    assert "had no answer of the hub for --controller-lease" in status.message
    assert [call.cancelled for call in linked.driver.calls] == [True, False]
    assert [call.may_begin is None for call in linked.driver.calls] == [False, True]
    linked.driver.calls[1].answer(VOLUME)
    assert (await linked.answered(free))[1] == OK
    assert linked.at_rest


async def test_a_call_with_an_epoch_puts_the_operation_that_it_joins_under_the_lease(linked: LinkedAgent) -> None:
    await linked.call(CREATE, create())
    joined = await linked.call(CREATE, create(), epoch=5)
    linked.clock.now += 60
    linked.lease._check_times()
    assert (await linked.answered(joined))[1].code == Code.UNAVAILABLE
    assert linked.driver.calls[0].cancelled


@pytest.mark.parametrize(("epoch", "origin"), [(0, Origin.EDGE), (5, Origin.UNSENT)])
@pytest.mark.parametrize("why", ["no driver", "no connection", "withheld", "conflict"])
async def test_the_end_of_a_call_with_an_epoch_says_whether_nothing_was_sent(
    linked: LinkedAgent, why: str, epoch: int, origin: Origin
) -> None:
    if why == "no driver":
        linked.hear(None)
    elif why == "conflict":
        await linked.call(CREATE, create(parameters={"a": "b"}), epoch=epoch)
    stream = await linked.call(CREATE, create(), epoch=epoch)
    if why == "no connection":
        linked.driver.calls[0].failed(VendorUnreachable("/d.sock", "no such socket"))
    elif why == "withheld":
        linked.driver.calls[0].failed(VendorCallWithheld())
    _, status = await linked.answered(stream)
    assert status.origin == origin


async def test_the_end_of_a_call_whose_driver_died_does_not_say_that_nothing_was_sent(linked: LinkedAgent) -> None:
    stream = await linked.call(CREATE, create(), epoch=5)
    linked.driver.calls[0].failed(VendorConnectionError("it closed the connection", sent=True))
    _, status = await linked.answered(stream)
    assert (status.code, status.origin) == (Code.UNAVAILABLE, Origin.EDGE)
