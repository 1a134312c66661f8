"""A receiver is called at once: it may use every session from within, and its faults end its own session only."""

from collections.abc import Callable
from typing import Any

import pytest

from common.errors import RemoteProtocolError
from common.messages import Ack, Cancel, Chunk, Frame, Kind, Open, encode
from common.session.receiver import NOBODY
from common.session.session import Session, SessionState
from common.status import Code, Status
from tests.kit.recorded_session import Way
from tests.unit.wire.pair import SMALL, hello_of

OK = Status(Code.OK)
FAILED = ("failed", "this end of the link failed; its log has the details")


class Side(Session):
    """A session. It gives all streams receivers that write down their calls and then do as a test says."""

    def __init__(self, *, dialler: bool = False) -> None:
        # Each call, as (stream, method, what was said); stream 0 is the session itself.
        self.calls: list[tuple[int, str, Any]] = []
        self.does: dict[tuple[int, str], Callable[[], object]] = {}  # what happens in a call, by (stream, method)
        self.faults: list[Exception] = []
        hello = hello_of("edge" if dialler else "hub")
        super().__init__(hello, dialler=dialler, limits=SMALL, clock=lambda: 0.0, writer=Way())

    def call(self, stream: int, method: str, said: Any = None) -> None:
        self.calls.append((stream, method, said))
        self.does.get((stream, method), lambda: None)()

    def methods(self, stream: int) -> list[str]:
        return [method for number, method, _ in self.calls if number == stream]

    def open(self, message: bytes | None = None, **how: Any) -> int:
        receiver = Told(self, 0)
        receiver.stream = self.start(receiver, Kind.ORDER, message, **how)
        return receiver.stream

    def take(self, *frames: Frame) -> None:
        self.receive(b"".join(map(encode, frames)), 0.0)

    def on_hello(self) -> None:
        if self.state is SessionState.DECIDING:
            self.accept(1)

    def on_open(self, frame: Open, deadline: float | None) -> "Told":
        self.call(frame.stream, "opened", deadline)
        return Told(self, frame.stream)

    def on_call(self, frame: Open, deadline: float | None, request: bytes) -> "Told":
        self.call(frame.stream, "called", (deadline, request))
        return Told(self, frame.stream)

    def on_drain(self, message: str) -> None:
        self.call(0, "drains", message)

    def on_fault(self, error: Exception) -> None:
        self.faults.append(error)

    def on_closed(self, reason: str, message: str) -> None:
        self.call(0, "closed", (reason, message))


class Told:
    def __init__(self, side: Side, stream: int) -> None:
        self.side = side
        self.stream = stream

    def took(self, message: bytes) -> None:
        self.side.call(self.stream, "took", message)

    def ended(self, status: Status, message: bytes | None) -> None:
        self.side.call(self.stream, "ended", status if message is None else (status, message))

    def failed(self, error: Exception) -> None:
        self.side.call(self.stream, "failed", error)

    def left(self) -> None:
        self.side.call(self.stream, "left")

    def released(self, delivered: bool) -> None:  # as in `Receiver`
        self.side.call(self.stream, "released", delivered)

    def writable(self) -> None:
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
            while data := sender.to_send():
                moved = True
                receiver.receive(data, 0.0)


def fail() -> None:
    raise RuntimeError("a bug")


def opening(stream: int) -> Open:
    return Open(stream, 2, 1, "dir.csi", "/csi.v1.X/Y", "n7", "c-1", 0)


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


def test_a_receiver_to_whom_the_peer_breaks_a_rule_of_the_stream_ends_the_session_by_this_rule() -> None:
    hub, edge = pair()

    def judge() -> None:
        raise RemoteProtocolError("Report: it is none")

    hub.does[1, "took"] = judge
    edge.open(b"x")
    carry(hub, edge)
    assert hub.calls[-1] == (0, "closed", ("protocol-error", "Report: it is none"))
    assert hub.faults == []


@pytest.mark.parametrize("method", ["opened", "took"])
def test_a_receiver_that_ends_the_session_hears_its_own_end_and_no_further_frame(method: str) -> None:
    hub, _ = pair()
    hub.does[1, method] = lambda: hub.goodbye("stopped", "enough")
    hub.take(opening(1), Chunk(1, 0, b"x"), Chunk(1, 0, b"y"), opening(3))
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
    hub.does[number, method] = lambda: hub.goodbye("stopped", "enough")
    edge.cancel(one)
    carry(hub, edge)
    hub.tick(1.0)
    assert hub.methods(one) == ["opened", "left", "released"]
    assert hub.methods(two) == ["failed"]
    assert hub.methods(0) == ["closed"]


def test_a_receiver_hears_nothing_after_its_end_although_its_message_has_just_left() -> None:
    hub, edge = pair()
    one, two, accepted = hub.open(b"x"), hub.open(b"y"), edge.open()
    carry(edge, hub)
    for number in (one, two):
        hub.send(number, b"z")
    hub.send(accepted, b"z")
    assert [hub.watch_unsent(number) for number in (one, two, accepted)] == [1, 1, 1]
    hub.does[one, "writable"] = lambda: hub.goodbye("stopped", "enough")
    hub.to_send()
    assert (hub.methods(two), hub.methods(accepted)) == (["failed"], ["opened", "left", "released"])


def test_nobody_hears_everything_and_does_nothing() -> None:
    hub, edge = pair()
    number = hub.start(NOBODY, Kind.ORDER, b"x")
    carry(hub, edge)
    edge.end(number, OK, b"y")
    carry(hub, edge)
    hub.acknowledge(number, delivered=False)
    carry(hub, edge)
    assert edge.methods(number) == ["opened", "took", "released"]


# -------------------- calls --------------------


def a_call(stream: int) -> Open:
    return Open(stream, Kind.CALL, 1, "dir.csi", "/csi.v1.X/Y", "n7", "c-1", 0)


def test_a_call_is_told_once_its_request_is_whole() -> None:
    hub, _ = pair()
    hub.take(a_call(1), Chunk(1, 3, b"re"))
    assert hub.methods(1) == []
    hub.take(Chunk(1, 0, b"que"))
    assert hub.calls[-1] == (1, "called", (None, b"reque"))


def test_a_call_whose_caller_leaves_before_its_request_is_whole_is_not_told_and_costs_no_credit() -> None:
    hub, _ = pair()
    full = hub._inbox.granted + hub._inbox.owed
    hub.take(a_call(1), Chunk(1, 3, b"re"), Cancel(1))
    hub.to_send()
    hub.take(Ack(1, delivered=False))
    assert (hub.calls, hub.open_streams) == ([], 0)
    assert hub._inbox.granted + hub._inbox.owed == full


def test_a_second_request_of_a_call_breaks_the_rules() -> None:
    hub, _ = pair()
    hub.take(a_call(1), Chunk(1, 0, b"one"), Chunk(1, 0, b"two"))
    assert hub.calls[-1] == (0, "closed", ("protocol-error", "Chunk: a call has one request"))


@pytest.mark.parametrize("leaves", [True, False])
def test_the_message_of_a_unary_answer_is_told_with_the_end_or_costs_no_credit(leaves: bool) -> None:
    hub, edge = pair()
    number = edge.open(b"x", is_unary=True)
    carry(hub, edge)
    full = edge._inbox.granted + edge._inbox.owed
    hub.send(number, b"answer")
    carry(hub, edge)
    assert edge.methods(number) == []  # it waits for the end
    if leaves:
        edge.cancel(number)
    hub.end(number, Status(0))
    carry(hub, edge)
    if leaves:
        assert edge._inbox.granted + edge._inbox.owed == full
    else:
        assert edge.calls[-1] == (number, "ended", (Status(0), b"answer"))
