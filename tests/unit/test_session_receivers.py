"""A receiver is called at once: it may use every session from within, and its faults end its own session only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from common.errors import RemoteProtocolError, TunnelClosed
from common.messages import Chunk, Drain, Goodbye, Kind, Open, encode
from common.receiver import NOBODY
from common.session import Session, State
from common.status import Code, Status
from tests.unit.wire.pair import SMALL, hello_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from common.messages import Frame

OK = Status(Code.OK)
FAILED = ("failed", "this end of the link failed; its log has the details")


class Side:
    """A session's application. It gives all streams receivers that write down their calls and then do as a test says.

    Attributes:
        calls: each call, as (stream, method, what was said); stream 0 is the application itself.
        does: what happens in a call, by (stream, method).
    """

    def __init__(self, *, dialler: bool = False) -> None:
        self.calls: list[tuple[int, str, Any]] = []
        self.does: dict[tuple[int, str], Callable[[], object]] = {}
        self.faults: list[Exception] = []
        self.session = Session(hello_of("edge" if dialler else "hub"), dialler=dialler, limits=SMALL, now=0.0)
        self.session.application = self

    def call(self, stream: int, method: str, said: Any = None) -> None:
        """Write down a call, then do as the test says."""
        self.calls.append((stream, method, said))
        self.does.get((stream, method), lambda: None)()

    def methods(self, stream: int) -> list[str]:
        """The methods that one stream's receiver has heard."""
        return [method for number, method, _ in self.calls if number == stream]

    def open(self, message: bytes | None = None, timeout_s: float | None = None) -> int:
        """Open a stream."""
        receiver = Told(self, 0)
        receiver.stream = self.session.open(receiver, Kind.CALL, message, now=0.0, timeout_s=timeout_s)
        return receiver.stream

    def receive(self, *frames: Frame) -> None:
        """Let these frames come in one message."""
        self.session.receive(b"".join(map(encode, frames)), 0.0)

    def on_hello(self) -> None:
        """Accept it."""
        if self.session.state is State.DECIDING:
            self.session.accept()

    def on_open(self, frame: Open, deadline: float | None) -> Told:
        """Write it down."""
        self.call(frame.stream, "opened", deadline)
        return Told(self, frame.stream)

    def on_drain(self, message: str) -> None:
        """Write it down."""
        self.call(0, "drains", message)

    def on_fault(self, error: Exception) -> None:
        """Keep it."""
        self.faults.append(error)

    def on_closed(self, reason: str, message: str) -> None:
        """Write it down."""
        self.call(0, "closed", (reason, message))


class Told:
    """A stream's receiver."""

    def __init__(self, side: Side, stream: int) -> None:
        self.side = side
        self.stream = stream

    def took(self, message: bytes) -> None:
        """Write it down."""
        self.side.call(self.stream, "took", message)

    def ended(self, status: Status) -> None:
        """Write it down."""
        self.side.call(self.stream, "ended", status)

    def failed(self, error: Exception) -> None:
        """Write it down."""
        self.side.call(self.stream, "failed", error)

    def left(self) -> None:
        """Write it down."""
        self.side.call(self.stream, "left")

    def released(self, delivered: bool) -> None:  # as in `Receiver`
        """Write it down."""
        self.side.call(self.stream, "released", delivered)

    def writable(self) -> None:
        """Write it down."""
        self.side.call(self.stream, "writable")


def pair() -> tuple[Side, Side]:
    """An acceptor and a dialler, welcomed."""
    hub, edge = Side(), Side(dialler=True)
    carry(hub, edge)
    return hub, edge


def carry(one: Side, two: Side) -> None:
    """Bring everything both ways until nothing moves."""
    moved = True
    while moved:
        moved = False
        for sender, receiver in ((one, two), (two, one)):
            while data := sender.session.to_send():
                moved = True
                receiver.session.receive(data, 0.0)


def fail() -> None:
    raise RuntimeError("a bug")


def opening(stream: int) -> Open:
    return Open(stream, 1, 1, "dir.csi", "/csi.v1.X/Y", "n7", "c-1", 0)


# ---- faults ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["opened", "took"])
def test_a_receiver_that_raises_ends_its_session_and_all_others_hear_of_the_end(method: str) -> None:
    hub, edge = pair()
    others = [hub.open(b"x"), edge.open(b"x")]
    carry(hub, edge)
    hub.does[3, method] = fail
    assert edge.open(b"y") == 3
    carry(hub, edge)
    assert [str(error) for error in hub.faults] == ["a bug"]
    assert hub.calls[-1] == (0, "closed", FAILED)
    assert edge.calls[-1] == (0, "closed", FAILED)
    assert hub.methods(others[0]) == ["failed"]
    assert hub.methods(others[1]) == ["opened", "took", "left", "released"]


def test_a_receiver_that_raises_at_the_end_of_its_session_keeps_nobody_from_hearing_of_it() -> None:
    hub, edge = pair()
    numbers = [hub.open(), edge.open(), hub.open(), edge.open()]
    carry(hub, edge)
    hub.does.update({(2, "failed"): fail, (1, "left"): fail, (1, "released"): fail, (0, "closed"): fail})
    hub.session.lost("cut")
    assert [hub.methods(number)[-1] for number in numbers] == ["failed", "released", "failed", "released"]
    assert hub.calls[-1] == (0, "closed", ("link-lost", "cut"))
    assert len(hub.faults) == 4


def test_a_receiver_that_raises_when_its_time_is_up_ends_the_session() -> None:
    hub, edge = pair()
    first, second = hub.open(timeout_s=1.0), hub.open()
    carry(hub, edge)
    hub.does[first, "failed"] = fail
    hub.session.tick(1.0)
    assert (hub.methods(first), hub.methods(second)) == (["failed"], ["failed"])
    assert hub.calls[-1] == (0, "closed", FAILED)


def test_a_receiver_that_raises_when_it_could_write_ends_the_session() -> None:
    hub, _ = pair()
    number = hub.open(b"x")
    assert hub.session.unsent(number) == 1
    hub.does[number, "writable"] = fail
    hub.session.to_send()
    assert hub.calls[-1] == (0, "closed", FAILED)


def test_a_receiver_to_whom_the_peer_breaks_a_rule_of_the_stream_ends_the_session_by_this_rule() -> None:
    hub, edge = pair()

    def judge() -> None:
        raise RemoteProtocolError("Report: it is none")

    hub.does[1, "took"] = judge
    edge.open(b"x")
    carry(hub, edge)
    assert hub.calls[-1] == (0, "closed", ("protocol-error", "Report: it is none"))
    assert hub.faults == []


def test_frames_after_one_whose_receiver_raised_are_not_taken() -> None:
    hub, _ = pair()
    hub.does[1, "took"] = fail
    hub.receive(opening(1), Chunk(1, 0, b"x"), opening(3), Goodbye("drained", "bye"))
    assert hub.methods(3) == []
    assert hub.methods(0) == ["closed"]
    assert hub.calls[-1] == (0, "closed", FAILED)


# ---- calls from within -----------------------------------------------------------------------------------------------


def test_a_receiver_answers_and_ends_from_within() -> None:
    hub, edge = pair()
    edge.does[2, "took"] = lambda: edge.session.end(2, OK, b"answer")
    hub.does[2, "ended"] = lambda: hub.session.acknowledge(2, delivered=True)
    hub.open(b"x")
    carry(hub, edge)
    assert hub.methods(2) == ["took", "ended"]
    assert edge.calls == [(2, "opened", None), (2, "took", b"x"), (2, "released", True)]
    assert hub.session.open_streams == edge.session.open_streams == 0


def test_a_receiver_starts_a_stream_from_within() -> None:
    hub, edge = pair()
    hub.does[1, "took"] = lambda: hub.open(b"further")
    edge.open(b"x")
    carry(hub, edge)
    assert edge.calls == [(2, "opened", None), (2, "took", b"further")]


def test_a_stream_that_is_ended_while_it_is_opened_takes_no_message() -> None:
    hub, edge = pair()
    hub.does[1, "opened"] = lambda: hub.session.end(1, Status(Code.UNAVAILABLE))
    edge.does[1, "ended"] = lambda: edge.session.acknowledge(1, delivered=True)
    edge.open(b"x")
    carry(hub, edge)
    assert hub.methods(1) == ["opened", "released"]


@pytest.mark.parametrize("method", ["opened", "took"])
def test_a_receiver_that_ends_the_session_hears_its_own_end_and_no_further_frame(method: str) -> None:
    hub, _ = pair()
    hub.does[1, method] = lambda: hub.session.goodbye("stopped", "enough")
    hub.receive(opening(1), Chunk(1, 0, b"x"), Chunk(1, 0, b"y"), opening(3))
    heard = ["opened", "left", "released"] if method == "opened" else ["opened", "took", "left", "released"]
    assert hub.methods(1) == heard
    assert hub.methods(3) == []
    assert hub.methods(0) == ["closed"]


@pytest.mark.parametrize("method", ["left", "released", "failed"])
def test_a_receiver_that_ends_the_session_while_it_hears_of_an_end_hears_it_once(method: str) -> None:
    hub, edge = pair()
    one, two = edge.open(), hub.open(timeout_s=1.0)
    carry(hub, edge)
    number = two if method == "failed" else one
    hub.does[number, method] = lambda: hub.session.goodbye("stopped", "enough")
    edge.session.cancel(one)
    carry(hub, edge)
    hub.session.tick(1.0)
    assert hub.methods(one) == ["opened", "left", "released"]
    assert hub.methods(two) == ["failed"]
    assert hub.methods(0) == ["closed"]


def test_a_receiver_that_releases_the_last_stream_of_a_draining_session_ends_it_after_its_own_end() -> None:
    hub, edge = pair()
    number = hub.open(b"x")
    carry(hub, edge)
    edge.session.drain("it stops")
    hub.does[number, "ended"] = lambda: hub.session.acknowledge(number, delivered=True)
    edge.session.end(number, OK)
    carry(hub, edge)
    assert [call[:2] for call in edge.calls][-2:] == [(number, "released"), (0, "closed")]
    assert [call[:2] for call in hub.calls][-2:] == [(number, "ended"), (0, "closed")]


def test_nothing_can_be_started_from_within_the_end_of_a_session() -> None:
    hub, _ = pair()
    number = hub.open()

    def retry() -> None:
        with pytest.raises(TunnelClosed):
            hub.open(b"again")

    hub.does[number, "failed"] = retry
    hub.session.lost("cut")
    assert hub.methods(0) == ["closed"]
    assert hub.faults == []


def test_a_handler_that_fails_when_the_peer_drains_ends_the_session() -> None:
    hub, _ = pair()
    hub.does[0, "drains"] = fail
    hub.receive(Drain("it stops"))
    assert hub.methods(0) == ["drains", "closed"]


# ---- writable --------------------------------------------------------------------------------------------------------


def test_a_receiver_that_did_not_ask_what_is_unsent_is_not_told_that_it_left() -> None:
    hub, edge = pair()
    number = hub.open(b"x")
    carry(hub, edge)
    assert hub.session.unsent(number) == 0
    hub.session.send(number, b"y")
    carry(hub, edge)
    assert hub.methods(number) == []


def test_a_receiver_sends_its_next_message_as_soon_as_the_last_one_has_left() -> None:
    hub, edge = pair()
    number = hub.open(b"1")
    left = [b"2", b"3"]

    def go_on() -> None:
        hub.session.send(number, left.pop(0))
        if left:
            hub.session.unsent(number)

    assert hub.session.unsent(number) == 1
    hub.does[number, "writable"] = go_on
    carry(hub, edge)
    assert [said for _, method, said in edge.calls if method == "took"] == [b"1", b"2", b"3"]
    assert hub.methods(number) == ["writable", "writable"]


def test_a_receiver_hears_nothing_after_its_end_although_its_message_has_just_left() -> None:
    hub, edge = pair()
    one, two, accepted = hub.open(b"x"), hub.open(b"y"), edge.open()
    carry(edge, hub)
    for number in (one, two):
        hub.session.send(number, b"z")
    hub.session.send(accepted, b"z")
    assert [hub.session.unsent(number) for number in (one, two, accepted)] == [1, 1, 1]
    hub.does[one, "writable"] = lambda: hub.session.goodbye("stopped", "enough")
    hub.session.to_send()
    assert (hub.methods(two), hub.methods(accepted)) == (["failed"], ["opened", "left", "released"])


def test_nobody_hears_everything_and_does_nothing() -> None:
    hub, edge = pair()
    number = hub.session.open(NOBODY, Kind.CALL, b"x", now=0.0)
    carry(hub, edge)
    edge.session.end(number, OK, b"y")
    carry(hub, edge)
    hub.session.acknowledge(number, delivered=False)
    carry(hub, edge)
    assert edge.methods(number) == ["opened", "took", "released"]
