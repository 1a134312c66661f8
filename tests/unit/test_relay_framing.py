"""gRPC framing: whole messages out of bytes cut anywhere, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.relay.errors import MessageCompressed, MessageTooLarge
from common.relay.framing import Deframer, frame


def drained(deframer: Deframer) -> list[bytes]:
    messages = []
    while (message := deframer.pop()) is not None:
        messages.append(message)
    return messages


def test_a_message_is_framed_with_a_flag_and_its_length() -> None:
    assert frame(b"abc") == b"\0\0\0\0\3abc"
    assert frame(b"") == b"\0\0\0\0\0"


@given(messages=st.lists(st.binary(max_size=40), max_size=8), cuts=st.lists(st.integers(0, 400), max_size=12))
def test_messages_come_back_whole_however_the_stream_was_cut(messages: list[bytes], cuts: list[int]) -> None:
    wire = b"".join(map(frame, messages))
    deframer = Deframer(40)
    found, start = [], 0
    for cut in [*sorted(min(cut, len(wire)) for cut in cuts), len(wire)]:
        deframer.feed(memoryview(wire)[start:cut])
        found += drained(deframer)
        start = cut
    assert found == messages
    assert deframer.pending_bytes == 0


def test_a_message_above_the_limit_is_refused_from_its_prefix_alone_and_those_before_it_are_given() -> None:
    deframer = Deframer(3)
    deframer.feed(frame(b"abc") + b"\0\0\0\0\4")
    assert deframer.pop() == b"abc"
    with pytest.raises(MessageTooLarge, match="4 bytes is larger than the limit of 3") as caught:
        deframer.pop()
    assert (caught.value.size_bytes, caught.value.limit_bytes) == (4, 3)


def test_a_compressed_message_is_refused() -> None:
    deframer = Deframer(3)
    deframer.feed(b"\1\0\0\0\1x")
    with pytest.raises(MessageCompressed):
        deframer.pop()


def test_a_message_cut_short_shows_as_pending_bytes() -> None:
    deframer = Deframer(10)
    deframer.feed(b"\0\0\0\0\4ab")
    assert deframer.pop() is None
    assert deframer.pending_bytes == 7
