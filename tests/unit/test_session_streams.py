"""The life of a stream: open, messages, end, acknowledgement, and every way in which it is cut short."""

import pytest

from common.errors import MessageTooLarge, TunnelClosed
from common.messages import Ack
from common.status import Code, Origin, Status
from tests.kit.events import Ended, Failed, Message, Opened, Released
from tests.unit.wire.pair import OK, SessionPair, assert_books_agree, sent_frames


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


def test_a_stream_is_unknown_after_its_acknowledgement_and_every_late_touch_is_harmless() -> None:
    pair = SessionPair()
    number = pair.answered_call()
    pair.hub.session.send(number, b"x")
    pair.hub.session.cancel(number)
    pair.hub.session.acknowledge(number, delivered=True)
    pair.edge.session.send(number, b"x")
    pair.edge.session.end(number, OK)
    assert pair.hub.session.watch_unsent(number) == pair.edge.session.watch_unsent(number) == 0
    assert sent_frames(pair.hub.session) == sent_frames(pair.edge.session) == []


def test_the_session_refuses_to_be_used_against_its_rules() -> None:
    pair = SessionPair()
    number = pair.call()
    pair.settle()
    with pytest.raises(RuntimeError, match="only the acceptor of a stream ends it"):
        pair.hub.session.end(number, OK)
    with pytest.raises(RuntimeError, match="only the opener of a stream cancels it"):
        pair.edge.session.cancel(number)
    for session in (pair.hub.session, pair.edge.session):
        with pytest.raises(RuntimeError, match="only the opener acknowledges a stream, and only after its end"):
            session.acknowledge(number, delivered=True)


@pytest.mark.parametrize("code", [-1, -(2**63), 2**31, 2**63])
def test_a_code_that_is_no_grpc_status_is_refused_here_and_the_stream_can_still_end(code: int) -> None:
    pair = SessionPair()
    number = pair.call()
    pair.settle()
    with pytest.raises(RuntimeError, match=f"a status code is 0 to 2147483647, not {code}"):
        pair.edge.session.end(number, Status(code, "odd", Origin.VENDOR))
    pair.edge.session.end(number, Status(2**31 - 1, "unheard of", Origin.VENDOR))
    pair.settle()
    assert pair.hub.one(Ended).status == Status(2**31 - 1, "unheard of", Origin.VENDOR)


@pytest.mark.parametrize("field", ["subject", "method", "node", "call"])
def test_a_name_that_the_peer_would_not_take_is_refused_here_and_the_session_lives(field: str) -> None:
    pair = SessionPair()
    with pytest.raises(MessageTooLarge, match="the name of a method, driver or node of 1025 characters is larger than"):
        pair.hub.session.open(2, now=pair.now, **{field: "x" * 1025})  # type: ignore[arg-type]  # all of them are texts
    stream = pair.hub.session.open(2, now=pair.now, **{field: "x" * 1024})  # type: ignore[arg-type]  # all are texts
    pair.settle()
    assert [event.stream for event in pair.edge.all(Opened)] == [stream]


def test_a_call_cancelled_after_its_end_is_acknowledged_as_not_delivered() -> None:
    pair = SessionPair()
    number = pair.call()
    pair.settle()
    pair.edge.session.end(number, OK)
    pair.settle()
    pair.hub.session.cancel(number)
    assert sent_frames(pair.hub.session) == [Ack(number, delivered=False)]


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
