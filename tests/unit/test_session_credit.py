"""Credit: how much one side makes the other hold, and that none of it is ever lost."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.limits import MESSAGE_OVERHEAD_BYTES
from common.messages import Cancel, Chunk, Credit, Kind, Open, encode
from tests.kit.events import Message
from tests.kit.examples import examples
from tests.unit.wire.pair import OK, SMALL, SessionPair, assert_books_agree, open_session, sent_frames

COST = MESSAGE_OVERHEAD_BYTES


def test_a_stream_overdraws_its_credit_by_one_message_and_then_waits() -> None:
    pair = SessionPair()
    number = pair.call(None)
    for _ in range(3):
        pair.hub.session.send(number, b"x" * (399 - COST))
    pair.carry(pair.hub)
    assert len(pair.edge.payloads(number)) == 2  # 400 - 399 is above zero, so a second one may begin
    assert pair.hub.session.unsent(number) == 1


def test_a_waiting_stream_goes_on_when_its_messages_are_consumed() -> None:
    pair = SessionPair()
    number = pair.call(None)
    messages = [bytes([place]) * 500 for place in range(20)]
    for message in messages:
        pair.hub.session.send(number, message)
    pair.pump()
    assert len(pair.edge.payloads(number)) == 1
    pair.settle()
    assert pair.edge.payloads(number) == messages


def test_one_stream_that_nobody_reads_does_not_stop_another() -> None:
    pair = SessionPair()
    stuck = pair.call(None)
    for _ in range(10):
        pair.hub.session.send(stuck, b"x" * 500)
    pair.pump()
    moving = pair.call(b"y" * 500)
    pair.pump()
    assert pair.edge.payloads(moving) == [b"y" * 500]


def test_the_session_window_bounds_all_streams_together() -> None:
    pair = SessionPair()
    numbers = [pair.call(b"x" * 1_000) for _ in range(5)]
    pair.pump()
    held = sum(len(payload) + COST for number in numbers for payload in pair.edge.payloads(number))
    assert held == 3 * (1_000 + COST)  # a fourth would make 4,256 of 4,000
    pair.settle()
    assert all(pair.edge.payloads(number) == [b"x" * 1_000] for number in numbers)


def test_a_small_message_passes_a_large_one_that_waits_for_the_sessions_credit() -> None:
    pair = SessionPair()
    for _ in range(3):
        pair.call(b"x" * 1_000)
    pair.pump()
    large, small = pair.call(b"y" * 1_000), pair.call(b"z")
    pair.pump()
    assert pair.edge.payloads(large) == []
    assert pair.edge.payloads(small) == [b"z"]
    pair.settle()
    assert pair.edge.payloads(large) == [b"y" * 1_000]


def test_empty_messages_cost_credit_too() -> None:
    pair = SessionPair()
    number = pair.call(None)
    for _ in range(1_000):
        pair.hub.session.send(number, b"")
    pair.pump()
    assert len(pair.edge.payloads(number)) == 7  # 400 / 64, and one that overdraws
    pair.settle()
    assert len(pair.edge.payloads(number)) == 1_000


def test_credit_is_given_back_by_the_quarter_window() -> None:
    session = open_session(
        replace(SMALL, stream_window_bytes=4 * (10 + COST), session_window_bytes=8 * (10 + COST) * 4)
    )
    for frame in (Open(1, 1, 1, "", "", "", "", 0), Chunk(1, 0, b"x" * 10), Chunk(1, 0, b"x" * 9)):
        session.receive(encode(frame), 0.0)
    session.consumed(1, 9)
    assert sent_frames(session) == []
    session.consumed(1, 10)
    assert sent_frames(session) == [Credit(1, 19 + 2 * COST)]


def test_a_message_consumed_after_its_stream_is_over_still_counts() -> None:
    pair = SessionPair()
    number = pair.call(b"x" * 1_000)
    pair.pump()
    pair.edge.session.end(number, OK)
    pair.pump()
    pair.hub.session.acknowledge(number, delivered=True)
    pair.pump()
    assert pair.hub.session.open_streams == pair.edge.session.open_streams == 0
    assert pair.hub.session._outbox.credit == 4_000 - 1_000 - COST
    pair.settle()
    assert pair.hub.session._outbox.credit == 4_000
    assert_books_agree(pair)


def test_a_stream_that_its_opener_gave_up_gets_no_credit_of_its_own_any_more() -> None:
    session = open_session()
    session.receive(encode(Open(1, 1, 1, "", "", "", "", 0)) + encode(Chunk(1, 0, b"x" * 999)) + encode(Cancel(1)), 0.0)
    session.consumed(1, 999)
    assert [frame for frame in sent_frames(session) if isinstance(frame, Credit)] == [Credit(0, 999 + COST)]


def test_nothing_is_given_back_to_a_session_that_is_over() -> None:
    pair = SessionPair()
    numbers = [pair.call(b"x" * 1_000) for _ in range(3)]
    pair.pump()
    pair.edge.session.lost("cut")
    for number in numbers:
        pair.edge.session.consumed(number, 1_000)
    assert pair.edge.session.to_send() == b""


def test_a_message_cancelled_between_its_credit_and_its_first_chunk_costs_nothing() -> None:
    pair = SessionPair(hub=replace(SMALL, chunk_bytes=20))  # the open alone is larger than a chunk
    number = pair.call(b"x" * 500)
    pair.carry(pair.hub, most=1)
    pair.hub.session.cancel(number)
    pair.settle()
    assert pair.edge.payloads(number) == []
    assert_books_agree(pair)


def test_any_number_of_cancels_leaves_the_whole_window_usable() -> None:
    pair = SessionPair()
    for turn in range(200):
        number = pair.call(b"x" * (turn * 7 % 1_000))
        pair.carry(pair.hub, most=turn % 12)
        if turn % 3:
            pair.settle()
            pair.edge.session.send(number, b"y" * (turn * 13 % 1_000))
            pair.edge.session.send(number, b"z" * (turn * 17 % 1_000))
            pair.carry(pair.edge, most=turn % 11)
        pair.hub.session.cancel(number)
        pair.carry(pair.hub, most=turn % 2)
        pair.edge.session.end(number, OK)
        pair.settle()
        assert_books_agree(pair)


@given(st.data())
@examples(60)
def test_credit_returns_to_the_start_after_any_mix_of_cancels(data: st.DataObject) -> None:
    """What the state machine also finds, in the smallest form: one pair, many calls, cut short anywhere."""
    pair = SessionPair(
        hub=replace(SMALL, chunk_bytes=data.draw(st.sampled_from([1, 30, 100, 5_000]))),
        edge=replace(SMALL, chunk_bytes=data.draw(st.sampled_from([7, 100, 5_000]))),
    )
    sizes = st.lists(st.integers(0, 1_000), max_size=4)
    numbers = []
    for _ in range(data.draw(st.integers(1, 8))):
        opener = data.draw(st.sampled_from([pair.hub, pair.edge]))
        number = opener.session.open(Kind.CALL, now=pair.now, priority=data.draw(st.integers(0, 2)))
        numbers.append((opener, number))
        for size in data.draw(sizes):
            opener.session.send(number, bytes(size))
        pair.carry(opener, most=data.draw(st.integers(0, 40)))
        acceptor = pair.other(opener)
        for size in data.draw(sizes):
            acceptor.session.send(number, bytes(size))
        pair.carry(acceptor, most=data.draw(st.integers(0, 40)))
    for opener, number in data.draw(st.permutations(numbers)):
        match data.draw(st.sampled_from(["cancel", "end", "both", "cross"])):
            case "cancel":
                opener.session.cancel(number)
            case "end":
                pair.other(opener).session.end(number, OK)
            case "both":
                pair.other(opener).session.end(number, OK)
                opener.session.cancel(number)
            case "cross":
                opener.session.cancel(number)
                pair.carry(pair.other(opener), most=3)
        pair.carry(data.draw(st.sampled_from([pair.hub, pair.edge])), most=data.draw(st.integers(0, 10)))
    pair.settle()
    for opener, number in numbers:
        pair.other(opener).session.end(number, OK)
    pair.settle()
    for opener, number in numbers:
        opener.session.acknowledge(number, delivered=True)
    pair.settle()
    assert_books_agree(pair)


@pytest.mark.parametrize("side", ["hub", "edge"])
def test_the_whole_window_can_be_filled_after_much_traffic(side: str) -> None:
    pair = SessionPair()
    for _ in range(50):
        pair.answered_call()
    opener = getattr(pair, side)
    for _ in range(3):
        number = opener.session.open(Kind.CALL, now=pair.now)
        opener.session.send(number, b"x" * 1_000)
    pair.pump()
    received = [event for event in pair.other(opener).all(Message) if len(event.payload) == 1_000]
    # A quarter of the window, less one byte, may be owed at any time: then two of three fit.
    assert len(received) >= 2
