"""A peer that breaks the rules: the session ends with a goodbye that names the rule, and nothing else happens."""

from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import TunnelClosed
from common.messages import (
    Ack,
    Cancel,
    Chunk,
    Credit,
    Drain,
    End,
    Frame,
    Goodbye,
    NotUnderstood,
    Open,
    Ping,
    decode,
    encode,
)
from common.session.session import SessionState
from common.status import Code, Status
from tests.kit.any_frame import any_frame
from tests.kit.events import Closed, Event, Failed, Message, Opened, Released
from tests.kit.examples import examples
from tests.kit.recorded_session import RecordedSession
from tests.unit.wire.pair import OK, SMALL, dialled_session, open_session, sent_frames


def opening(stream: int) -> Open:
    return Open(stream, 2, 1, "dir.csi", "/csi.v1.X/Y", "n7", "c-1", 0)


def frames(*items: Frame) -> bytes:
    return b"".join(map(encode, items))


def broken_rule(session: RecordedSession, *items: Frame) -> str:
    """What a session says when it gets these frames, of which the last one breaks a rule."""
    session.receive(frames(*items), 0.0)
    closed = session.events()[-1]
    assert isinstance(closed, Closed), "the frames were taken"
    assert closed.reason == "protocol-error"
    assert session.state is SessionState.CLOSED
    (goodbye,) = decode(session.to_send())
    assert isinstance(goodbye, Goodbye)
    assert (goodbye.reason, goodbye.message) == ("protocol-error", closed.message)
    return closed.message


@pytest.mark.parametrize("field", ["subject", "method", "node", "call"])
def test_what_an_open_names_is_short_because_no_credit_covers_it(field: str) -> None:
    text = "Open: a name of more than 1024 characters"
    assert broken_rule(open_session(), replace(opening(1), **{field: "x" * 1025})) == text
    session = open_session()
    session.receive(frames(replace(opening(1), **{field: "x" * 1024})), 0.0)
    assert isinstance(session.events()[-1], Opened)


@pytest.mark.parametrize("stream", [0, 1, 2, 3, 4])
def test_a_dialler_opens_odd_streams_and_an_acceptor_even_ones(stream: int) -> None:
    text = f"Open: stream id {stream} is not a new one of the peer's"
    for session, is_right in ((open_session(), stream % 2 == 1), (dialled_session(), stream % 2 == 0 and stream > 0)):
        if not is_right:
            assert broken_rule(session, opening(stream)) == text


def test_a_standby_opens_nothing() -> None:
    assert broken_rule(dialled_session(epoch=0), opening(2)) == "Open: from a standby"


@pytest.mark.parametrize("again", [5, 3])
def test_an_id_is_new_and_larger_than_all_before(again: int) -> None:
    text = f"Open: stream id {again} is not a new one of the peer's"
    assert broken_rule(open_session(), opening(5), opening(again)) == text


def test_an_id_is_not_used_again_after_its_release() -> None:
    session = open_session()
    session.receive(frames(opening(1), Cancel(1)), 0.0)
    sent_frames(session)
    session.receive(frames(Ack(1, delivered=False)), 0.0)
    assert session.open_streams == 0
    assert broken_rule(session, opening(1)) == "Open: stream id 1 is not a new one of the peer's"


def test_ids_may_leave_gaps() -> None:
    session = open_session()
    session.receive(frames(opening(1), opening(2**63 - 1)), 0.0)
    assert [event.stream for event in session.events() if isinstance(event, Opened)] == [1, 2**63 - 1]


def test_more_streams_than_were_agreed_are_too_many() -> None:
    session = open_session()
    ids = range(1, 2 * SMALL.max_streams, 2)
    session.receive(frames(*map(opening, ids)), 0.0)
    assert session.open_streams == SMALL.max_streams
    assert broken_rule(session, opening(99)) == "Open: more than 8 streams at once"


STRAY = [
    (Chunk(7, 0, b"x"), "Chunk"),
    (End(7, 0, "", ""), "End"),
    (Cancel(7), "Cancel"),
    (Ack(7, delivered=True), "Ack"),
]


@pytest.mark.parametrize(("frame", "name"), STRAY)
def test_a_frame_of_a_stream_that_was_never_opened_is_refused(frame: Frame, name: str) -> None:
    assert broken_rule(open_session(), frame) == f"{name}: stream 7 is not open"


@pytest.mark.parametrize("frame", [Chunk(2, 0, b"guess"), End(2, 0, "guess", "vendor")])
def test_an_answer_to_a_call_that_was_not_sent_yet_is_refused(frame: Frame) -> None:
    session = open_session()
    session.open(2, now=0.0)
    assert broken_rule(session, frame).endswith("stream 2 is not open")


def test_credit_for_a_stream_that_is_gone_is_ignored_because_it_may_have_been_under_way() -> None:
    session = open_session()
    session.receive(frames(opening(1), Cancel(1), Credit(1, 100)), 0.0)
    sent_frames(session)
    session.receive(frames(Ack(1, delivered=False), Credit(1, 100)), 0.0)
    assert session.state is SessionState.OPEN


def called() -> RecordedSession:
    """A session whose stream 2 was opened from here, and stream 1 from there; both were sent."""
    session = open_session()
    session.receive(frames(opening(1)), 0.0)
    session.open(2, now=0.0)
    session.events()
    sent_frames(session)
    return session


BROKEN: dict[str, tuple[list[Frame], str]] = {
    "an end by the opener": ([End(1, 0, "", "")], "End: of a stream that is not the peer's to end"),
    "a second end": ([End(2, 0, "", "")] * 2, "End: of a stream that is not the peer's to end"),
    "an end with a code that gRPC cannot carry": (
        [End(2, 2**31, "", "vendor")],
        "End: a status code is 0 to 2147483647, not 2147483648",
    ),
    "an end in the middle of a message": ([Chunk(2, 5, b"x"), End(2, 0, "", "")], "End: in the middle of a message"),
    "a message after the end": ([End(2, 0, "", ""), Chunk(2, 0, b"x")], "Chunk: after the end of its stream"),
    "a cancel by the acceptor": ([Cancel(2)], "Cancel: of a stream that the peer did not open"),
    "a second cancel": ([Cancel(1)] * 2, "Cancel: twice"),
    "an acknowledgement by the acceptor": ([Ack(2, delivered=True)], "Ack: of a stream that has not ended"),
    "an acknowledgement before the end": ([Ack(1, delivered=True)], "Ack: of a stream that has not ended"),
}


@pytest.mark.parametrize(("items", "text"), BROKEN.values(), ids=BROKEN)
def test_opener_and_acceptor_have_frames_of_their_own_and_an_order(items: list[Frame], text: str) -> None:
    assert broken_rule(called(), *items) == text


def test_the_opener_of_a_stream_that_ended_in_the_middle_of_a_message_hears_that_the_session_is_over() -> None:
    session = called()
    session.receive(frames(Chunk(2, 5, b"x"), End(2, 0, "", "")), 0.0)
    (failed,) = (event for event in session.events() if isinstance(event, Failed))
    assert isinstance(failed.error, TunnelClosed)
    assert (failed.stream, failed.error.sent) == (2, True)


def test_a_cancelled_stream_may_end_in_the_middle_of_a_message() -> None:
    session = called()
    session.receive(frames(Chunk(2, 5, b"x")), 0.0)
    session.cancel(2)
    session.receive(frames(End(2, Code.CANCELLED, "", "")), 0.0)
    assert session.state is SessionState.OPEN
    assert session._inbox.granted == SMALL.session_window_bytes - session._inbox.owed


@pytest.mark.parametrize("answer", [None, b"", b"answer"])
def test_an_ack_comes_after_the_end_was_handed_over(answer: bytes | None) -> None:
    """Else a peer that never reads could make us queue one end after another."""
    session = called()
    if answer is not None:
        session.send(1, answer)
    session.end(1, OK)
    assert broken_rule(session, Ack(1, delivered=True)) == "Ack: of a stream that has not ended"


ARITHMETIC = {
    "more left than before": ([Chunk(1, 5, b"ab"), Chunk(1, 6, b"ab")], "Chunk: 6 bytes left where 3 must be"),
    "as much left as before": ([Chunk(1, 5, b"ab"), Chunk(1, 5, b"ab")], "Chunk: 5 bytes left where 3 must be"),
    "too little left": ([Chunk(1, 5, b"ab"), Chunk(1, 2, b"ab")], "Chunk: 2 bytes left where 3 must be"),
    "ended too early": ([Chunk(1, 5, b"ab"), Chunk(1, 0, b"ab")], "Chunk: 0 bytes left where 3 must be"),
    "longer than was left": ([Chunk(1, 1, b"ab"), Chunk(1, 0, b"ab")], "Chunk: 0 bytes left where -1 must be"),
    "empty at the start": ([Chunk(1, 5, b"")], "Chunk: empty, with more of its message to come"),
    "empty in the middle": ([Chunk(1, 5, b"ab"), Chunk(1, 5, b"")], "Chunk: empty, with more of its message to come"),
    "empty at the end": ([Chunk(1, 5, b"ab"), Chunk(1, 0, b"")], "Chunk: 0 bytes left where 5 must be"),
}


@pytest.mark.parametrize(("chunks", "text"), ARITHMETIC.values(), ids=ARITHMETIC)
def test_chunks_count_down(chunks: list[Frame], text: str) -> None:
    assert broken_rule(called(), *chunks) == text


@pytest.mark.parametrize("chunk", [Chunk(1, 0, b"x" * 1_001), Chunk(1, 1_000, b"x"), Chunk(1, 2**63 - 1, b"x")])
def test_a_message_above_the_limit_is_refused_at_its_first_chunk(chunk: Chunk) -> None:
    size = len(chunk.payload) + chunk.left
    assert broken_rule(called(), chunk) == f"Chunk: a message of {size} bytes; 1000 were agreed"


def test_a_message_without_credit_of_its_stream_is_refused() -> None:
    two = [Chunk(1, 0, b"x" * 199), Chunk(1, 0, b"x" * 199)]
    assert broken_rule(called(), *two, Chunk(1, 0, b"")) == "Chunk: a message that no credit covers"


def test_a_message_without_credit_of_the_session_is_refused() -> None:
    session = open_session()
    items: list[Frame] = [item for stream in (1, 3, 5, 7) for item in (opening(stream), Chunk(stream, 999, b"x"))]
    assert broken_rule(session, *items) == "Chunk: a message that no credit covers"


def test_a_message_to_a_stream_that_nobody_serves_any_more_needs_credit_too() -> None:
    session = called()
    session.receive(frames(Cancel(1)), 0.0)
    session.receive(frames(Chunk(1, 999, b"x")), 0.0)
    assert broken_rule(session, Chunk(1, 0, b"x" * 999), Chunk(1, 0, b"")) == "Chunk: a message that no credit covers"


def test_a_peer_drains_once() -> None:
    assert broken_rule(open_session(), Drain("once"), Drain("twice")) == "Drain: twice"


@pytest.mark.parametrize("frame", [Ping(2**62), NotUnderstood(1), "unknown"], ids=["ping", "not understood", "unknown"])
def test_a_flood_of_frames_from_a_peer_that_never_reads_is_bounded(frame: Frame | str) -> None:
    session = open_session()
    data = (b"\x92\x63\x00" if isinstance(frame, str) else encode(frame)) * 1_000
    for _ in range(400):
        session.receive(data, 0.0)
        assert session._outbox.control_bytes <= 1_048_576 + 16
    if isinstance(frame, NotUnderstood):
        assert session.state is SessionState.OPEN
    else:
        assert session.events() == [Closed("protocol-error", "the peer asks for answers and does not read them")]


@pytest.mark.slow
def test_streams_opened_and_given_up_by_a_peer_that_never_reads_are_bounded() -> None:
    session = open_session()
    stream = 1
    while session.state is SessionState.OPEN and stream < 400_000:
        session.receive(frames(opening(stream), Cancel(stream), Ack(stream, delivered=False)), 0.0)
        stream += 2
        assert session._outbox.control_bytes <= 1_048_576 + 16
        session.events()
    assert session.state is SessionState.CLOSED


def test_ends_with_long_texts_for_a_peer_that_never_reads_are_bounded() -> None:
    session = open_session()
    for stream in range(1, 100, 2):
        session.receive(encode(opening(stream)), 0.0)
        session.end(stream, Status(Code.UNAVAILABLE, "x" * 60_000))
        session.receive(encode(Ack(stream, delivered=False)), 0.0)
    assert session.state is SessionState.CLOSED


def test_an_unknown_frame_is_answered_and_the_session_goes_on() -> None:
    session = called()
    session.receive(b"\x93\xcd\x12\x67\xa3new\x01" + encode(Ping(5)), 0.0)
    assert [type(frame).__name__ for frame in sent_frames(session)] == ["NotUnderstood", "Pong"]
    assert session.state is SessionState.OPEN


streams = st.integers(0, 6)
small = st.integers(0, 300) | st.sampled_from([2**31, 2**63 - 1])
peers_frame = st.one_of(
    any_frame(small, st.text(max_size=8)),
    st.builds(opening, streams),
    st.builds(Chunk, streams, st.integers(0, 8), st.binary(max_size=8)),
    st.builds(Chunk, streams, small, st.binary(max_size=300)),
    st.builds(Credit, streams, small),
    st.builds(End, streams, small, st.just("text"), st.just("vendor")),
    st.builds(Cancel, streams),
    st.builds(Ack, streams, st.booleans()),
)


@given(st.data())
@examples(150)
def test_whatever_a_peer_says_the_session_never_raises_and_holds_no_more_than_it_allowed(data: st.DataObject) -> None:
    session = open_session(replace(SMALL, chunk_bytes=20))
    events: list[Event] = []
    for frame in data.draw(st.lists(peers_frame, max_size=30)):
        session.receive(encode(frame), 0.0)
        events += session.events()
        match data.draw(st.integers(0, 9)):
            case 0 if session.state is SessionState.OPEN:
                with suppress(TunnelClosed):  # the peer may drain
                    number = session.open(2, now=0.0)
                    session.send(number, b"x" * 50)
            case 1:
                session.to_send()
            case 2:
                for stream in session._streams.copy():
                    if stream % 2:
                        session.end(stream, OK)
            case 3:
                for stream in session._streams.copy():
                    if not stream % 2:
                        session.cancel(stream)
    session.lost("cut")
    events += session.events()
    opened = [event.stream for event in events if isinstance(event, Opened)]
    assert sorted(event.stream for event in events if isinstance(event, Released)) == opened
    assert sum(len(event.payload) for event in events if isinstance(event, Message)) <= SMALL.session_window_bytes
    assert [type(event) for event in events].count(Closed) == 1
    assert isinstance(events[-1], Closed)
