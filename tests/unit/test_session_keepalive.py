"""Keepalive: a ping after a silence, an end after twice as much, and any byte as a sign of life."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.messages import Ping, Pong, encode
from common.session.limits import Limits
from common.session.session import SessionState
from tests.kit.events import Closed
from tests.kit.examples import examples
from tests.kit.recorded_session import RecordedSession
from tests.unit.wire.pair import dialled_session, hello_of, open_session, sent_frames


def test_a_peer_that_is_silent_for_twice_the_interval_is_dead() -> None:
    session = open_session(now=100.0)
    session.tick(110.0)
    session.to_send()
    session.tick(119.9)
    assert session.state is SessionState.OPEN
    session.tick(120.0)
    assert session.events() == [Closed("peer-silent", "nothing was heard for 20 s")]
    assert session.to_send() == b""
    assert session.next_tick() is None


def test_a_peer_that_leaves_a_ping_without_an_answer_for_half_the_interval_is_silent() -> None:
    session = open_session(now=100.0)
    assert session.silent_since(109.0) is None
    session.tick(110.0)
    assert session.silent_since(114.9) is None
    assert session.silent_since(115.0) == 100.0
    session.receive(encode(Pong(1)), 116.0)
    assert session.silent_since(117.0) is None


@pytest.mark.parametrize("life", ["part of a message", "any frame"])
def test_any_bytes_are_a_sign_of_life(life: str) -> None:
    session = open_session(now=100.0)
    session.tick(110.0)
    if life == "any frame":
        session.receive(encode(Pong(99)), 115.0)
    else:
        session.heard(115.0, 1_300)
    session.tick(120.0)
    assert session.state is SessionState.OPEN
    assert session.next_tick() == 125.0
    session.to_send()
    session.tick(125.0)
    assert sent_frames(session) == [Ping(2)]


def hears(session: RecordedSession, pieces: dict[float, int]) -> None:
    """Let a session hear parts of a message at some times, with every tick between them."""
    for at, size in pieces.items():
        while (due := session.next_tick()) is not None and due <= at:
            session.tick(due)
        session.heard(at, size)


def test_one_byte_a_second_inside_a_message_is_no_sign_of_life() -> None:
    session = open_session(now=100.0)
    hears(session, {101.0 + second: 1 for second in range(15)})
    assert sent_frames(session) == [Ping(1)]
    hears(session, {116.0 + second: 1 for second in range(15)})
    assert session.events() == [Closed("peer-silent", "21 bytes of a message in 20.1 s are too few")]


@pytest.mark.parametrize("stall_s", [9.0, 19.0])
def test_a_message_at_64_kbit_s_that_stalls_again_and_again_passes(stall_s: float) -> None:
    """One second in so many moves 8 KB, in packets of 1,400 bytes: 20 rounds are 160 KB."""
    session = open_session(now=100.0)
    pieces = {}
    for number in range(20):
        start = 109.0 + number * (1 + stall_s)
        pieces |= {start + packet / 6: 1_365 for packet in range(6)}
    hears(session, pieces)
    assert session.state is SessionState.OPEN


def test_a_pong_of_the_keepalive_is_no_answer_to_a_ping_of_the_application() -> None:
    session, heard = open_session(now=100.0), []
    session.ping(lambda: heard.append("pong"))
    session.tick(110.0)
    assert sent_frames(session) == [Ping(1, of_lease=True), Ping(2)]
    session.receive(encode(Pong(2)), 110.0)
    assert heard == []
    session.receive(encode(Pong(1)), 110.0)
    assert heard == ["pong"]


def test_a_session_that_is_over_neither_pings_nor_hears_of_a_pong() -> None:
    session, heard = open_session(), []
    session.ping(lambda: heard.append("pong"))
    session.lost("the cable was cut")
    session.receive(encode(Pong(1)), 0.0)
    session.ping(lambda: heard.append("pong"))
    assert heard == []
    assert session.to_send() == b""


@given(
    now=st.floats(0, 1e9),
    keepalive_s=st.floats(0.001, 1e4),
    hello_s=st.floats(0.001, 1e4),
    timeout_s=st.floats(0.001, 1e4),
    greeted=st.booleans(),
)
@examples(300)
def test_a_tick_at_the_time_that_was_asked_for_is_never_in_vain(
    now: float, keepalive_s: float, hello_s: float, timeout_s: float, greeted: bool
) -> None:
    """Else the loop would set the same timer again and again."""
    limits = Limits(
        max_message_bytes=1_000, session_window_bytes=4_000, keepalive_s=keepalive_s, hello_timeout_s=hello_s
    )
    if greeted:
        session = dialled_session(limits, now=now)
        session.open(2, now=now, timeout_s=timeout_s)
    else:
        session = RecordedSession(hello_of(), dialler=True, limits=limits, now=now)
    for _ in range(4):
        due = session.next_tick()
        if due is None:
            break
        session.tick(due)
        after = session.next_tick()
        assert after is None or after > due or session.events()
    assert session.state is SessionState.CLOSED
