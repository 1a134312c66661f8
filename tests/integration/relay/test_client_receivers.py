"""A call of the gRPC client whose end a receiver hears, without a task: what may happen before, during and after it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from common.relay.client import Channel
from common.relay.client_call import AnswerReceiver, ClientCall
from common.relay.errors import (
    VendorCallWithheld,
    VendorConnectionError,
    VendorUnreachable,
)
from common.status import Code, Status
from tests.integration.relay.support import RawPeer, channel_to, raw_vendor_at
from tests.kit.http2 import SETTINGS, Ends, fields, wire
from tests.kit.waiting import until

OK = Status(Code.OK)
BODY = b"\0\0\0\0\2hi"


def answer(stream: int, code: int = 0) -> bytes:
    headers = wire(1, 4, stream, fields((":status", "200"), ("content-type", "application/grpc")))
    return headers + wire(0, 0, stream, BODY) + wire(1, 5, stream, fields(("grpc-status", str(code))))


class Vendor:
    """A driver made by hand: it notes the streams of its calls, and answers when a test says."""

    def __init__(self) -> None:
        self.peers: list[RawPeer] = []
        self.streams: list[int] = []
        self.resets: list[int] = []
        self.settings = SETTINGS

    async def behave(self, peer: RawPeer) -> None:
        self.peers.append(peer)
        await peer.send(self.settings)
        while True:
            kind, flags, stream, payload = await any_frame(peer)
            if kind == 1:
                self.streams.append(stream)
            elif kind == 3:
                self.resets.append(stream)
            elif kind == 6 and not flags & 1:
                await peer.send(wire(6, 1, 0, payload))

    async def asked(self, calls: int) -> None:
        await until(lambda: len(self.streams) == calls)

    async def answer(self, stream: int, *heard: Ends, code: int = 0) -> None:
        """Answer a call, and wait until these receivers have heard the end of theirs."""
        await self.peers[-1].send(answer(stream, code))
        await until(lambda: all(each.seen for each in heard))


async def any_frame(peer: RawPeer) -> tuple[int, int, int, bytes]:
    while not peer.frames:
        await peer.more()
    return peer.frames.pop(0)


@pytest.fixture
def vendor() -> Vendor:
    return Vendor()


@pytest.fixture
async def channel(path: Path, vendor: Vendor) -> AsyncIterator[Channel]:
    async with raw_vendor_at(path, vendor.behave), channel_to(path) as channel:
        yield channel


def start(
    channel: Channel, receiver: AnswerReceiver, method: str = "/a/B", may_begin: Callable[[], bool] | None = None
) -> ClientCall:
    call = ClientCall(channel.open, method, b"request", timeout_s=None, may_begin=may_begin)
    call.receiver = receiver
    channel.open(call)
    return call


async def test_a_kept_connection_serves_a_call_without_a_task_and_a_future(
    channel: Channel, vendor: Vendor, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, ends = Ends(), Ends()
    start(channel, first)
    await vendor.asked(1)
    await vendor.answer(1, first)
    assert first.seen == [(OK, b"hi")]
    (connection,) = channel._connections
    loop = asyncio.get_running_loop()
    made: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(connection, "_loop", Spy(loop, made))
        patch.setattr("asyncio.get_running_loop", lambda: Spy(loop, made))
        start(channel, ends)
    await vendor.asked(2)
    connection.data_received(answer(3))
    assert ends.seen == [(OK, b"hi")]
    assert made == []


class Spy:
    """A loop that notes the tasks, futures and timers that are made with it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, made: list[str]) -> None:
        self._loop, self._made = loop, made

    def __getattr__(self, name: str) -> object:
        if name in ("create_task", "create_future", "call_later", "call_at"):
            self._made.append(name)
        return getattr(self._loop, name)


async def test_a_fault_of_one_receiver_ends_no_other_call(
    channel: Channel, vendor: Vendor, caplog: pytest.LogCaptureFixture
) -> None:
    faulty, good = Ends(lambda: 1 / 0), Ends()
    start(channel, faulty)
    start(channel, good)
    await vendor.asked(2)
    await vendor.answer(1)
    await vendor.answer(3, good)
    assert good.seen == [(OK, b"hi")]
    assert "a bug in CSI Bridge: the end of a call of /a/B was not handled" in caplog.text


async def test_a_receiver_may_start_the_next_call_and_cancel_its_own_at_its_end(
    channel: Channel, vendor: Vendor
) -> None:
    last = Ends()
    first = Ends(lambda: call.cancel() or start(channel, last))
    call = start(channel, first)
    await vendor.asked(1)
    await vendor.answer(1)
    await vendor.asked(2)
    await vendor.answer(3, last)
    assert (first.seen, last.seen) == ([(OK, b"hi")], [(OK, b"hi")])
    assert vendor.resets == []


async def test_a_receiver_may_start_the_next_call_when_the_driver_dies(channel: Channel, vendor: Vendor) -> None:
    last = Ends()
    first = Ends(lambda: start(channel, last))
    start(channel, first)
    await vendor.asked(1)
    vendor.peers[0].close()
    await vendor.asked(2)
    await vendor.answer(1, last)
    assert isinstance(first.seen[0], VendorConnectionError)
    assert last.seen == [(OK, b"hi")]


async def test_a_cancelled_call_is_reset_and_its_receiver_hears_no_more(channel: Channel, vendor: Vendor) -> None:
    ends = Ends()
    call = start(channel, ends)
    await vendor.asked(1)
    call.cancel()
    await until(lambda: vendor.resets == [1])
    await vendor.answer(1)
    call.cancel()
    await asyncio.sleep(0.02)
    assert ends.seen == []


async def test_a_call_that_was_cancelled_during_the_dial_is_not_sent(channel: Channel, vendor: Vendor) -> None:
    cancelled, ends = Ends(), Ends()
    start(channel, cancelled).cancel()
    start(channel, ends, "/a/C")
    await vendor.asked(1)
    await vendor.answer(1, ends)
    assert (cancelled.seen, vendor.streams) == ([], [1])
    assert not channel._waiting


async def test_a_call_that_was_cancelled_in_the_queue_is_not_sent_and_takes_no_memory(
    channel: Channel, vendor: Vendor
) -> None:
    vendor.settings = wire(4, 0, 0, b"\0\3\0\0\0\1")
    running, waiting = Ends(), Ends()
    start(channel, running)
    await vendor.asked(1)
    call = start(channel, waiting)
    (connection,) = channel._connections
    assert list(connection.queue) == [call]
    call.cancel()
    assert not connection.queue
    await vendor.answer(1, running)
    await asyncio.sleep(0.02)
    assert (vendor.streams, waiting.seen) == ([1], [])


async def test_a_queued_call_goes_to_the_next_connection_when_the_driver_says_that_it_goes(
    channel: Channel, vendor: Vendor
) -> None:
    vendor.settings = wire(4, 0, 0, b"\0\3\0\0\0\1")
    running, waiting = Ends(), Ends()
    start(channel, running)
    await vendor.asked(1)
    start(channel, waiting)
    await vendor.peers[0].send(wire(7, 0, 0, b"\0\0\0\1\0\0\0\0"))
    await vendor.asked(2)
    await vendor.answer(1)
    await vendor.peers[0].send(answer(1))
    await until(lambda: bool(running.seen and waiting.seen))
    assert (running.seen, waiting.seen) == ([(OK, b"hi")], [(OK, b"hi")])
    assert len(vendor.peers) == 2


async def test_a_refused_call_that_was_cancelled_in_its_pause_is_not_sent_again(
    channel: Channel, vendor: Vendor
) -> None:
    ends = Ends()
    call = start(channel, ends)
    await vendor.asked(1)
    await vendor.peers[0].send(wire(3, 0, 1, b"\0\0\0\7"))
    await until(lambda: call.connection is None)
    call.cancel()
    await asyncio.sleep(0.02)
    assert (vendor.streams, ends.seen) == ([1], [])


@pytest.mark.parametrize("waits_for", ["the dial", "a stream", "its next attempt"])
async def test_a_call_whose_permission_ends_while_it_waits_is_not_sent(
    channel: Channel, vendor: Vendor, waits_for: str
) -> None:
    allowed, ends, other = True, Ends(), Ends()
    if waits_for == "a stream":
        vendor.settings = wire(4, 0, 0, b"\0\3\0\0\0\1")
        start(channel, other)
        await vendor.asked(1)
    call = start(channel, ends, may_begin=lambda: allowed)
    if waits_for == "its next attempt":
        await vendor.asked(1)
        await vendor.peers[0].send(wire(3, 0, 1, b"\0\0\0\7"))
        await until(lambda: call.connection is None)
    allowed = False
    if waits_for == "a stream":
        await vendor.answer(1)
    await until(lambda: bool(ends.seen))
    (error,) = ends.seen
    assert isinstance(error, VendorCallWithheld)
    assert not error.sent
    assert call.over
    start(channel, last := Ends(), "/a/C")
    await vendor.asked(1 + (waits_for != "the dial"))
    await vendor.answer(vendor.streams[-1])
    await until(lambda: bool(last.seen))
    assert len(vendor.streams) == 1 + (waits_for != "the dial")


async def test_a_refused_call_is_sent_again_and_answered_once(channel: Channel, vendor: Vendor) -> None:
    ends = Ends()
    start(channel, ends)
    await vendor.asked(1)
    await vendor.peers[0].send(wire(3, 0, 1, b"\0\0\0\7"))
    await vendor.asked(2)
    await vendor.answer(3, ends)
    assert ends.seen == [(OK, b"hi")]


async def test_a_second_message_ends_a_unary_call_at_once(channel: Channel, vendor: Vendor) -> None:
    """A driver that streams without an end would fill the window and leave the call waiting."""
    ends = Ends()
    start(channel, ends)
    await vendor.asked(1)
    await vendor.peers[0].send(answer(1)[: -len(wire(1, 5, 1, fields(("grpc-status", "0"))))], wire(0, 0, 1, BODY))
    await until(lambda: bool(ends.seen))
    (error,) = ends.seen
    assert isinstance(error, VendorConnectionError)
    assert "more than one message" in str(error)
    await until(lambda: vendor.resets == [1])


async def test_an_answer_after_the_answer_is_ignored(channel: Channel, vendor: Vendor) -> None:
    ends, next_one = Ends(), Ends()
    start(channel, ends)
    await vendor.asked(1)
    await vendor.peers[0].send(answer(1), wire(0, 0, 1, BODY), answer(1, 5))
    await until(lambda: bool(ends.seen))
    start(channel, next_one)
    await vendor.asked(2)
    await vendor.answer(3, next_one)
    assert (ends.seen, next_one.seen) == ([(OK, b"hi")], [(OK, b"hi")])


async def test_a_call_that_was_cancelled_while_its_status_is_in_doubt_hears_no_more(
    channel: Channel, vendor: Vendor
) -> None:
    ends = Ends()
    call = start(channel, ends)
    await vendor.asked(1)
    await vendor.answer(1, code=Code.INTERNAL)
    await until(lambda: call.remote_ended)
    call.cancel()
    await asyncio.sleep(0.1)
    assert ends.seen == []


async def test_a_channel_that_closes_during_the_dial_fails_the_waiting_calls(path: Path) -> None:
    async def silent(peer: RawPeer) -> None:
        await peer.rest()

    ends = [Ends(), Ends()]
    async with raw_vendor_at(path, silent), channel_to(path, connect_timeout_s=0.1) as channel:
        for each in ends:
            start(channel, each)
        await channel.close()
    assert [len(each.seen) for each in ends] == [1, 1]
    assert all(isinstance(each.seen[0], VendorUnreachable) for each in ends)


async def test_a_receiver_that_hears_of_a_failed_dial_may_cancel_another_waiting_call(path: Path) -> None:
    async with channel_to(path) as channel:
        cancelled, last = Ends(), Ends()
        first = Ends(lambda: call.cancel())  # noqa: PLW0108  # the call is made below
        start(channel, first)
        call = start(channel, cancelled)
        start(channel, last)
        await until(lambda: bool(first.seen and last.seen))
    assert cancelled.seen == []


async def test_a_dial_that_a_bug_ends_fails_the_waiting_calls(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def bug(_ask: object) -> str:
        raise ZeroDivisionError

    ends = Ends()
    async with raw_vendor_at(path, Vendor().behave), channel_to(path, identify=bug) as channel:
        start(channel, ends)
        await until(lambda: bool(ends.seen))
    assert isinstance(ends.seen[0], VendorUnreachable)
    assert "a bug in CSI Bridge ended a dial" in caplog.text
