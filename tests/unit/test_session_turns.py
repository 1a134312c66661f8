"""Whose turn it is: no stream waits for another longer than a chunk of it, and no priority is starved."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import TunnelClosed
from common.messages import Chunk, Kind, Ping, Priority, decode, encode
from common.session.limits import Limits
from tests.kit.apart import apart
from tests.kit.events import Failed, Opened
from tests.kit.examples import examples
from tests.kit.recorded_session import RecordedSession
from tests.unit.wire.pair import SessionPair, open_session

REAL = Limits()
LARGE = replace(REAL, max_streams=64)

_LARGEST_CHUNK_HEAD = 16  # a chunk's bytes beside its payload: array head, type, stream, left and length


def ahead_of(pair: SessionPair, small: int) -> Counter[int]:
    """Payload bytes of other streams on the wire, until the small message was wholly received."""
    count: Counter[int] = Counter()
    while not pair.edge.payloads(small):
        (data,) = pair.carry(pair.hub, most=1)
        for frame in decode(data):
            if isinstance(frame, Chunk) and frame.stream != small:
                count[frame.stream] += len(frame.payload)
    return count


@pytest.mark.parametrize("already", [0, 1, 2, 7])
@pytest.mark.parametrize("large_ones", [1, 2, 5])
def test_a_small_call_waits_for_at_most_one_chunk_of_each_large_stream(large_ones: int, already: int) -> None:
    pair = SessionPair(hub=LARGE, edge=LARGE)
    for _ in range(large_ones):
        pair.call(bytes(4_194_304))
    pair.carry(pair.hub, most=already)
    count = ahead_of(pair, pair.call(b"small"))
    assert max(count.values(), default=0) <= REAL.chunk_bytes
    assert sum(count.values()) <= large_ones * REAL.chunk_bytes


def test_a_small_call_of_a_higher_priority_waits_for_nothing() -> None:
    pair = SessionPair(hub=LARGE, edge=LARGE)
    number = pair.hub.session.open(Kind.WATCH, now=0.0, priority=Priority.SYNC)
    pair.hub.session.send(number, bytes(4_194_304))
    pair.carry(pair.hub, most=3)
    assert not ahead_of(pair, pair.call(b"small"))


def test_large_streams_of_one_priority_share_the_link_evenly() -> None:
    pair = SessionPair(hub=LARGE, edge=LARGE)
    numbers = [pair.call(bytes(1_000_000)) for _ in range(3)]
    sent = chunks_of(pair.hub.session, 90)
    assert [sent[number] for number in numbers] == [30, 30, 30]


def chunks_of(session: RecordedSession, most: int) -> Counter[int]:
    count: Counter[int] = Counter()
    while count.total() < most:
        for frame in decode(session.to_send()):
            if isinstance(frame, Chunk):
                count[frame.stream] += 1
    return count


@pytest.mark.parametrize("busy", [(0, 1), (0, 2), (1, 2), (0, 1, 2)])
def test_a_lower_priority_gets_a_turn_in_five(busy: tuple[int, ...]) -> None:
    session = open_session(LARGE, max_message_bytes=4_194_304, session_window_bytes=100_000_000)
    numbers = []
    for priority in busy:
        number = session.open(2, now=0.0, priority=priority)
        session.send(number, bytes(4_194_304))
        numbers.append(number)
    sent = chunks_of(session, 200)
    assert abs(sent[numbers[0]] - 160) <= 1
    for number in numbers[1:]:
        assert abs(sent[number] - 40 / (len(busy) - 1)) <= 1


@given(st.data())
@examples(100)
def test_no_priority_is_starved_however_the_others_come_and_go(data: st.DataObject) -> None:
    session = open_session(LARGE, max_message_bytes=4_194_304, session_window_bytes=1_000_000_000)
    lowest = session.open(2, now=0.0, priority=Priority.SYNC)
    session.send(lowest, bytes(4_194_304))
    pattern = data.draw(
        st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(0, 20_000)), min_size=1, max_size=12)
    )
    waited = 0
    streams = {Priority.CONTROL: 0, Priority.CALL: 0}
    for turn in range(60):
        control, call, size = pattern[turn % len(pattern)]
        for priority, comes in ((Priority.CONTROL, control), (Priority.CALL, call)):
            if comes:
                if not streams[priority]:
                    streams[priority] = session.open(2, now=0.0, priority=priority)
                if session.watch_unsent(streams[priority]) < 3:
                    session.send(streams[priority], bytes(size))
        frames = decode(session.to_send())
        served = any(isinstance(frame, Chunk) and frame.stream == lowest for frame in frames)
        waited = 0 if served else waited + 1
        assert waited <= 12
        for stream in streams.values():  # an endless credit, for streams that are never consumed here
            if stream:
                session._streams[stream].credit = 1_000_000


def test_a_priority_that_only_a_newer_peer_knows_is_the_lowest() -> None:
    session = open_session(LARGE, max_message_bytes=4_194_304, session_window_bytes=100_000_000)
    strange = session.open(2, now=0.0, priority=99)
    session.send(strange, bytes(40_000))
    usual = session.open(2, now=0.0, priority=Priority.CALL)
    session.send(usual, b"x")
    first = [frame.stream for frame in apart(decode(session.to_send())) if isinstance(frame, Chunk)]
    assert first == [usual]


def test_control_frames_pass_everything_else() -> None:
    session = open_session(LARGE, max_message_bytes=4_194_304, session_window_bytes=100_000_000)
    number = session.open(2, now=0.0)
    session.send(number, bytes(1_000_000))
    session.to_send()
    session.receive(encode(Ping(7)), 0.0)
    assert type(decode(session.to_send())[0]).__name__ == "Pong"


def test_small_messages_of_many_streams_share_one_websocket_message() -> None:
    pair = SessionPair(hub=LARGE, edge=LARGE)
    for _ in range(20):
        pair.call(b"x" * 100)
    assert len(pair.carry(pair.hub)) == 1


def test_one_websocket_message_holds_the_waiting_control_frames_and_about_one_chunk() -> None:
    session = open_session(LARGE, max_message_bytes=4_194_304, session_window_bytes=100_000_000)
    for _ in range(8):
        session.send(session.open(2, now=0.0), bytes(20_000))
    session.receive(encode(Ping(2**40)) * 5_000, 0.0)  # 50 KB of pongs
    longest = 0
    while data := session.to_send():
        longest = max(longest, len(data))
    assert longest <= 2 * (REAL.chunk_bytes + _LARGEST_CHUNK_HEAD) + 64


def test_a_chunk_that_must_wait_for_the_next_websocket_message_goes_first_in_it() -> None:
    pair = SessionPair(hub=LARGE, edge=LARGE)
    small = pair.call(b"s" * 10)
    large = pair.call(bytes(100_000))
    other = pair.call(b"o" * 10)
    order = []
    while data := pair.hub.session.to_send():
        order.append([frame.stream for frame in apart(decode(data)) if isinstance(frame, Chunk)])
    assert order[0] == [small]
    assert order[1] == [large]
    assert order[2] == [other]


def test_an_open_that_left_with_another_streams_counts_as_sent() -> None:
    pair = SessionPair()
    older = pair.hub.session.open(2, now=pair.now, priority=Priority.SYNC)
    pair.hub.session.send(older, b"sync")
    for _ in range(3):
        pair.call(b"x" * 100)
    pair.hub.session.to_send()
    pair.hub.session.lost("cut")
    sent = {event.stream: event.error.sent for event in pair.hub.all(Failed) if isinstance(event.error, TunnelClosed)}
    assert sent == {2: True, 4: True, 6: False, 8: False}


def test_many_waiting_opens_of_a_lower_priority_do_not_make_one_huge_websocket_message() -> None:
    pair = SessionPair(hub=LARGE, edge=LARGE)
    for _ in range(63):
        pair.hub.session.open(2, now=pair.now, priority=Priority.SYNC, subject="x" * 1_000, method="x" * 1_000)
    call = pair.call()
    sizes = [len(data) for data in pair.carry(pair.hub)]
    assert max(sizes) <= 2 * REAL.chunk_bytes + 2_100
    assert pair.edge.payloads(call) == [b"request"]
    assert len(pair.edge.all(Opened)) == 64
