"""The life of a stream: open, messages, end, acknowledgement, and every way in which it is cut short."""

from collections.abc import Callable

import pytest

from common.errors import CallTimeout, LocalProtocolError, MessageTooLarge, TunnelClosed
from common.messages import Ack, Chunk, Kind, Open, Priority
from common.status import Code, Origin, Status
from tests.kit.events import Cancelled, Ended, Failed, Message, Opened, Released
from tests.unit.wire.pair import OK, SessionPair, assert_books_agree, sent_frames

# ---- from open to acknowledged ---------------------------------------------------------------------------------------


def test_an_open_reaches_the_acceptor_as_it_was_given() -> None:
    pair = SessionPair()
    number = pair.hub.session.open(
        Kind.CALL,
        now=pair.now,
        priority=Priority.SYNC,
        subject="dir.csi",
        method="/csi.v1.Node/X",
        node="n7",
        call="c-1",
        timeout_s=2.5,
    )
    pair.pump()
    frame = Open(number, Kind.CALL, Priority.SYNC, "dir.csi", "/csi.v1.Node/X", "n7", "c-1", 2_500)
    assert pair.edge.one(Opened) == Opened(number, frame, pair.now + 2.5)


def test_a_unary_call_lives_from_open_to_released() -> None:
    pair = SessionPair()
    number = pair.call(b"request")
    pair.settle()
    assert [type(event) for event in pair.edge.seen[-2:]] == [Opened, Message]
    pair.edge.session.send(number, b"answer")
    pair.edge.session.end(number, Status(Code.OK, "", Origin.VENDOR))
    pair.settle()
    assert pair.hub.payloads(number) == [b"answer"]
    assert pair.hub.one(Ended) == Ended(number, Status(Code.OK, "", "vendor"))
    assert pair.edge.all(Released) == []
    pair.hub.session.acknowledge(number, delivered=True)
    pair.settle()
    assert pair.edge.one(Released) == Released(number, delivered=True)
    assert_books_agree(pair)


def test_an_acceptor_may_end_while_the_request_is_still_under_way() -> None:
    pair = SessionPair()
    number = pair.call(b"x" * 1_000)
    pair.carry(pair.hub, most=2)
    pair.edge.session.end(number, Status(Code.UNIMPLEMENTED, "no", "edge"))
    pair.carry(pair.edge)
    assert pair.hub.session.to_send() == b"", "the rest of the request was sent though nobody reads it"
    pair.settle()
    assert pair.hub.one(Ended).status.code == Code.UNIMPLEMENTED
    assert pair.edge.payloads(number) == []
    pair.hub.session.acknowledge(number, delivered=True)
    pair.settle()
    assert_books_agree(pair)


def test_a_stream_is_unknown_after_its_acknowledgement_and_every_late_touch_is_harmless() -> None:
    pair = SessionPair()
    number = pair.answered_call()
    pair.hub.session.send(number, b"x")
    pair.hub.session.cancel(number)
    pair.hub.session.acknowledge(number, delivered=True)
    pair.edge.session.send(number, b"x")
    pair.edge.session.end(number, OK)
    assert pair.hub.session.unsent(number) == pair.edge.session.unsent(number) == 0
    assert sent_frames(pair.hub.session) == sent_frames(pair.edge.session) == []


def test_the_session_refuses_to_be_used_against_its_rules() -> None:
    pair = SessionPair()
    number = pair.call()
    pair.settle()
    with pytest.raises(LocalProtocolError, match="only the acceptor of a stream ends it"):
        pair.hub.session.end(number, OK)
    with pytest.raises(LocalProtocolError, match="only the opener of a stream cancels it"):
        pair.edge.session.cancel(number)
    for session in (pair.hub.session, pair.edge.session):
        with pytest.raises(LocalProtocolError, match="only the opener acknowledges a stream, and only after its end"):
            session.acknowledge(number, delivered=True)


@pytest.mark.parametrize("code", [-1, -(2**63), 2**31, 2**63])
def test_a_code_that_is_no_grpc_status_is_refused_here_and_the_stream_can_still_end(code: int) -> None:
    pair = SessionPair()
    number = pair.call()
    pair.settle()
    with pytest.raises(LocalProtocolError, match=f"a status code is 0 to 2147483647, not {code}"):
        pair.edge.session.end(number, Status(code, "odd", Origin.VENDOR))
    pair.edge.session.end(number, Status(2**31 - 1, "unheard of", Origin.VENDOR))
    pair.settle()
    assert pair.hub.one(Ended).status == Status(2**31 - 1, "unheard of", Origin.VENDOR)


# ---- sending ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["subject", "method", "node", "call"])
def test_a_name_that_the_peer_would_not_take_is_refused_here_and_the_session_lives(field: str) -> None:
    pair = SessionPair()
    with pytest.raises(MessageTooLarge, match="the name of a method, driver or node of 1025 bytes is larger than"):
        pair.hub.session.open(1, now=pair.now, **{field: "x" * 1025})  # type: ignore[arg-type]  # all of them are texts
    stream = pair.hub.session.open(1, now=pair.now, **{field: "x" * 1024})  # type: ignore[arg-type]  # all are texts
    pair.settle()
    assert [event.stream for event in pair.edge.all(Opened)] == [stream]


# ---- cancel ----------------------------------------------------------------------------------------------------------


def test_a_call_cancelled_before_it_was_sent_leaves_no_trace() -> None:
    pair = SessionPair()
    number = pair.call()
    pair.hub.session.cancel(number)
    pair.settle()
    assert pair.edge.all(Opened) == []
    assert pair.hub.all(Failed) == []
    assert_books_agree(pair)


def send_each(pair: SessionPair, number: int, messages: list[bytes]) -> None:
    for message in messages:
        pair.edge.session.send(number, message)


STAGES: dict[str, Callable[[SessionPair, int], object]] = {
    "its request is half sent": lambda pair, _: pair.carry(pair.hub, most=1),
    "the driver works": lambda pair, _: pair.settle(),
    "its answer waits at the edge": lambda pair, number: pair.edge.session.send(number, b"a" * 300),
    "its answer is half sent": lambda pair, _: pair.carry(pair.edge, most=2),
    "its answer is all there": lambda pair, _: pair.carry(pair.edge),
    "more answers wait": lambda pair, number: send_each(pair, number, 5 * [b"b" * 300]),
    "more answers are half sent": lambda pair, _: pair.carry(pair.edge, most=2),
    "its end waits behind them": lambda pair, number: pair.edge.session.end(number, OK),
}
"""The stages of a call's life, each with what brings it there from the stage before."""


def start(pair: SessionPair, stage: str, timeout_s: float | None = None) -> int:
    number = pair.call(b"q" * 300, timeout_s)
    for name, step in STAGES.items():
        step(pair, number)
        if name == stage:
            break
    return number


@pytest.mark.parametrize("stage", STAGES)
def test_a_call_can_be_cancelled_when(stage: str) -> None:
    pair = SessionPair()
    number = start(pair, stage)
    pair.hub.session.cancel(number)
    pair.settle()
    if stage != "its end waits behind them":
        assert pair.edge.one(Cancelled) == Cancelled(number)
    pair.edge.session.end(number, OK)  # the handler's own end, which nobody waits for
    pair.settle()
    assert pair.hub.all(Ended) == []
    assert pair.hub.all(Failed) == []
    assert pair.edge.one(Released) == Released(number, delivered=False)
    assert_books_agree(pair)


def test_a_call_cancelled_after_its_end_is_acknowledged_as_not_delivered() -> None:
    pair = SessionPair()
    number = pair.call()
    pair.settle()
    pair.edge.session.end(number, OK)
    pair.settle()
    pair.hub.session.cancel(number)
    assert sent_frames(pair.hub.session) == [Ack(number, delivered=False)]


# ---- deadlines -------------------------------------------------------------------------------------------------------


def test_a_deadline_is_told_as_remaining_time_because_clocks_differ() -> None:
    pair = SessionPair()
    pair.call(timeout_s=2.5)
    pair.edge.session.receive(pair.hub.session.to_send(), 77.0)
    assert pair.edge.one(Opened).deadline == 79.5


@pytest.mark.parametrize(
    ("timeout_s", "told_ms"), [(1.0, 1_000), (0.0004, 1), (0.0, 1), (-3.0, 1), (3.6e11, 360_000_000_000_000)]
)
def test_a_deadline_is_told_in_milliseconds_and_never_as_none(timeout_s: float, told_ms: int) -> None:
    pair = SessionPair()
    pair.call(timeout_s=timeout_s)
    pair.carry(pair.hub)
    assert pair.edge.one(Opened).frame.timeout_ms == told_ms


def test_a_passed_deadline_tells_the_opener_and_cancels_at_the_acceptor() -> None:
    pair = SessionPair()
    number = pair.call(timeout_s=3.0)
    pair.settle()
    assert pair.hub.session.next_tick() == pair.now + 3.0
    pair.hub.session.tick(pair.now + 2.9)
    assert pair.hub.all(Failed) == []
    pair.hub.session.tick(pair.now + 3.0)
    assert isinstance(pair.hub.one(Failed).error, CallTimeout)
    pair.settle()
    assert pair.edge.one(Cancelled) == Cancelled(number)
    assert pair.edge.one(Released) == Released(number, delivered=False)


def test_an_acceptor_does_not_judge_by_the_openers_deadline_itself() -> None:
    pair = SessionPair()
    pair.call(timeout_s=3.0)
    pair.settle()
    pair.edge.session.tick(pair.now + 5.0)
    assert pair.edge.all(Cancelled) == []


def test_a_deadline_that_passes_before_the_call_was_sent_sends_nothing() -> None:
    pair = SessionPair()
    pair.call(timeout_s=3.0)
    pair.hub.session.tick(pair.now + 3.0)
    assert isinstance(pair.hub.one(Failed).error, CallTimeout)
    assert sent_frames(pair.hub.session) == []
    assert pair.hub.session.open_streams == 0


def test_deadlines_pass_in_their_own_order_not_in_that_of_opening() -> None:
    pair = SessionPair()
    slow, quick = pair.call(timeout_s=4.0), pair.call(timeout_s=2.0)
    pair.settle()
    pair.hub.session.tick(pair.now + 5.0)
    assert [event.stream for event in pair.hub.all(Failed)] == [quick, slow]


# ---- the link goes ---------------------------------------------------------------------------------------------------


def failed_of(pair: SessionPair) -> TunnelClosed:
    error = pair.hub.one(Failed).error
    assert isinstance(error, TunnelClosed)
    return error


def test_a_call_lost_before_any_frame_of_it_was_handed_over_was_not_sent() -> None:
    pair = SessionPair()
    pair.call()
    pair.hub.session.lost("cable cut")
    assert not failed_of(pair).sent
    assert failed_of(pair).why == "cable cut"


def test_a_call_lost_after_its_first_frame_was_handed_over_counts_as_sent_wherever_the_bytes_are() -> None:
    pair = SessionPair()
    pair.call(b"x" * 500)
    assert pair.hub.session.to_send()
    pair.hub.session.lost("cable cut")
    assert failed_of(pair).sent
    assert pair.edge.all(Opened) == []


def test_a_call_that_waits_behind_another_was_not_sent() -> None:
    pair = SessionPair()
    first, second = pair.call(b"x" * 500), pair.call(b"y" * 500)
    pair.hub.session.to_send()
    pair.hub.session.lost("cable cut")
    sent = {event.stream: event.error.sent for event in pair.hub.all(Failed) if isinstance(event.error, TunnelClosed)}
    assert sent == {first: True, second: False}


def test_chunks_carry_what_is_left_of_their_message() -> None:
    pair = SessionPair()
    number = pair.call(b"x" * 250)
    chunks = [frame for frame in sent_frames(pair.hub.session) if isinstance(frame, Chunk)]
    assert chunks == [
        Chunk(number, 150, b"x" * 100),
        Chunk(number, 50, b"x" * 100),
        Chunk(number, 0, b"x" * 50),
    ]
