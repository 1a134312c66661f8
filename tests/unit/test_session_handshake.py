"""The greeting of two sessions: welcome, refusal, versions, and a peer that never says hello."""

from dataclasses import replace
from typing import Any

import pytest

from common.messages import (
    Ack,
    Cancel,
    Chunk,
    Credit,
    Drain,
    End,
    Frame,
    Goodbye,
    Hello,
    Open,
    Ping,
    Pong,
    decode,
    encode,
)
from common.session.session import SessionState
from tests.kit.events import Closed, Welcomed
from tests.kit.recorded_session import RecordedSession
from tests.unit.wire.pair import SMALL, SessionPair, hello_of, open_session, sent_frames

UNKNOWN = b"\x92\x63\x00"  # a frame of type 99, which only a newer peer knows


@pytest.mark.parametrize(("hub", "edge"), [((5, 4), (3, 1)), ((3, 1), (5, 4))], ids=["hub newer", "edge newer"])
def test_versions_that_do_not_meet_end_both_ends_with_a_text_that_names_both(
    hub: tuple[int, int], edge: tuple[int, int]
) -> None:
    hubs = hello_of("hub", "hub-1", version=hub[0], oldest=hub[1])
    edges = hello_of("edge", "n7", version=edge[0], oldest=edge[1])
    acceptor = RecordedSession(hubs, dialler=False, limits=SMALL, now=0.0)
    dialler = RecordedSession(edges, dialler=True, limits=SMALL, now=0.0)
    acceptor.receive(dialler.to_send(), 0.0)
    dialler.receive(acceptor.to_send(), 0.0)
    text = (
        f"edge n7 (csi-bridge 0.1.0) speaks wire version {edge[0]} (oldest {edge[1]}), "
        f"this side (csi-bridge 0.1.0) {hub[0]} (oldest {hub[1]}); upgrade the older"
    )
    assert acceptor.events() == [Closed("protocol-error", text)]
    assert dialler.events() == [Closed("protocol-error", text)]


def test_a_dialler_checks_the_version_of_the_welcome_too() -> None:
    dialler = RecordedSession(hello_of(), dialler=True, limits=SMALL, now=0.0)
    dialler.receive(encode(hello_of("hub", "hub-1", version=9, oldest=9)), 0.0)
    (closed,) = dialler.events()
    assert isinstance(closed, Closed)
    assert "hub hub-1 (csi-bridge 0.1.0) speaks wire version 9 (oldest 9)" in closed.message
    assert sent_frames(dialler) == [Goodbye("protocol-error", closed.message, 0)]


@pytest.mark.parametrize("dialler", [True, False])
def test_a_hello_that_never_comes_ends_the_session_in_time(dialler: bool) -> None:
    session = RecordedSession(hello_of(), dialler=dialler, limits=SMALL, now=100.0)
    assert session.next_tick() == 105.0
    session.tick(104.9)
    assert session.events() == []
    session.tick(105.0)
    assert session.events() == [Closed("hello-timeout", "no hello within 5 s")]
    assert isinstance(decode(session.to_send())[-1], Goodbye)
    assert session.next_tick() is None


def test_a_decision_that_never_comes_ends_the_session_in_time() -> None:
    session = RecordedSession(hello_of("hub", "hub-1"), dialler=False, limits=SMALL, now=100.0)
    session.receive(encode(hello_of()), 104.0)
    session.events()
    session.tick(105.0)
    assert session.events() == [Closed("hello-timeout", "no answer to the hello within 5 s")]


def test_bytes_that_dribble_in_do_not_lengthen_the_time_for_the_hello() -> None:
    session = RecordedSession(hello_of("hub", "hub-1"), dialler=False, limits=SMALL, now=100.0)
    for now in (101.0, 102.0, 103.0, 104.0):
        session.heard(now, 1)
        session.receive(UNKNOWN, now)
    session.tick(105.0)
    assert session.events() == [Closed("hello-timeout", "no hello within 5 s")]


EARLY: list[Frame] = [
    Drain("x"),
    Ping(1),
    Pong(1),
    Open(1, 1, 1, "d", "m", "n", "c", 0),
    Chunk(1, 0, b""),
    Credit(0, 1),
    End(1, 0, "", ""),
    Cancel(1),
    Ack(1, delivered=True),
]


@pytest.mark.parametrize("frame", EARLY, ids=lambda frame: type(frame).__name__)
@pytest.mark.parametrize("greeted", [False, True], ids=["before the hello", "before the welcome"])
def test_a_frame_that_comes_too_early_ends_the_session(frame: Frame, greeted: bool) -> None:
    session = RecordedSession(hello_of("hub", "hub-1"), dialler=False, limits=SMALL, now=0.0)
    if greeted:
        session.receive(encode(hello_of()), 0.0)
        session.events()
    session.receive(encode(frame), 0.0)
    state = "DECIDING" if greeted else "GREETING"
    assert session.events() == [Closed("protocol-error", f"a {type(frame).__name__} frame in state {state}")]


def test_a_standby_says_hello_again_when_it_leads() -> None:
    pair = SessionPair(welcome=False)
    pair.carry(pair.edge)
    pair.hub.session.accept(0)
    pair.pump()
    assert pair.edge.session.peer is not None
    assert pair.edge.session.peer.epoch == 0
    pair.edge.session.events()
    pair.hub.session.accept(7, "mark")
    pair.pump()
    assert (pair.edge.session.peer.epoch, pair.edge.session.peer.mark) == (7, "mark")
    assert pair.edge.session.events() == [Welcomed(pair.edge.session.peer)]


@pytest.mark.parametrize(
    ("dialler", "change"),
    [(True, {}), (True, {"epoch": 2, "name": "other"}), (True, {"epoch": 0}), (False, {"epoch": 2})],
    ids=["the same", "another name", "an older epoch", "from a dialler"],
)
def test_any_other_second_hello_ends_the_session(dialler: bool, change: dict[str, Any]) -> None:
    session = RecordedSession(hello_of(), dialler=dialler, limits=SMALL, now=0.0)
    first = replace(hello_of("hub", "hub-1"), epoch=1)
    session.receive(encode(first), 0.0)
    if not dialler:
        session.accept(1)
    session.events()
    session.receive(encode(replace(first, **change)), 0.0)
    (closed,) = session.events()
    assert isinstance(closed, Closed)
    assert (closed.reason, closed.message[:6]) == ("protocol-error", "Hello:")


def test_a_newer_acceptors_unknown_frame_before_its_welcome_is_answered_and_harms_neither_end() -> None:
    pair = SessionPair(welcome=False)
    pair.edge.session.receive(UNKNOWN, pair.now)
    pair.carry(pair.edge)
    pair.hub.session.accept(1)
    pair.pump()
    assert (pair.hub.session.state, pair.edge.session.state) == (SessionState.OPEN, SessionState.OPEN)


def refused_hello(hello: Hello) -> str:
    session = RecordedSession(hello_of("hub", "hub-1"), dialler=False, limits=SMALL, now=0.0)
    session.receive(encode(hello), 0.0)
    (closed,) = session.events()
    assert isinstance(closed, Closed)
    return closed.message


def test_a_session_window_must_hold_the_largest_message_beside_a_quarter_that_may_be_owed() -> None:
    too_small = hello_of(max_message_bytes=1_000, session_window_bytes=1_418)  # (1000 + 64) * 4 / 3 = 1418.7
    assert refused_hello(too_small) == "Hello: its session window is too small for its largest message"
    assert open_session(max_message_bytes=1_000, session_window_bytes=1_419).state is SessionState.OPEN


def test_a_hello_that_allows_no_stream_is_refused() -> None:
    assert refused_hello(hello_of(max_streams=0)) == "Hello: it allows no stream, or nothing on one"
    assert refused_hello(hello_of(stream_window_bytes=0)) == "Hello: it allows no stream, or nothing on one"
