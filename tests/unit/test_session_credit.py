"""Credit: how much one side makes the other hold, and that none of it is ever lost."""

from dataclasses import replace

from common.messages import Cancel, Chunk, Credit, Open, encode
from common.session.limits import MESSAGE_OVERHEAD_BYTES
from tests.unit.wire.pair import SMALL, SessionPair, open_session, sent_frames

COST = MESSAGE_OVERHEAD_BYTES


def test_a_stream_overdraws_its_credit_by_one_message_and_then_waits() -> None:
    pair = SessionPair()
    number = pair.call(None)
    for _ in range(3):
        pair.hub.session.send(number, b"x" * (399 - COST))
    pair.carry(pair.hub)
    assert len(pair.edge.payloads(number)) == 2  # 400 - 399 is above zero, so a second one may begin
    assert pair.hub.session.watch_unsent(number) == 1


def test_the_session_window_bounds_all_streams_together() -> None:
    pair = SessionPair()
    numbers = [pair.call(b"x" * 1_000) for _ in range(5)]
    pair.pump()
    held = sum(len(payload) + COST for number in numbers for payload in pair.edge.payloads(number))
    assert held == 3 * (1_000 + COST)  # a fourth would make 4,256 of 4,000
    pair.settle()
    assert all(pair.edge.payloads(number) == [b"x" * 1_000] for number in numbers)


def test_credit_is_given_back_by_the_quarter_window() -> None:
    session = open_session(
        replace(SMALL, stream_window_bytes=4 * (10 + COST), session_window_bytes=8 * (10 + COST) * 4)
    )
    for frame in (Open(1, 2, 1, "", "", "", "", 0), Chunk(1, 0, b"x" * 10), Chunk(1, 0, b"x" * 9)):
        session.receive(encode(frame), 0.0)
    session.consumed(1, 9)
    assert sent_frames(session) == []
    session.consumed(1, 10)
    assert sent_frames(session) == [Credit(1, 19 + 2 * COST)]


def test_a_stream_that_its_opener_gave_up_gets_no_credit_of_its_own_any_more() -> None:
    session = open_session()
    session.receive(encode(Open(1, 2, 1, "", "", "", "", 0)) + encode(Chunk(1, 0, b"x" * 999)) + encode(Cancel(1)), 0.0)
    session.consumed(1, 999)
    assert [frame for frame in sent_frames(session) if isinstance(frame, Credit)] == [Credit(0, 999 + COST)]
