"""The short way of the usual WebSocket frames gives the same bytes and messages as the library."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode
from websockets.streams import StreamReader

from common.links.websocket_frames import FrameReader, frame
from tests.kit.examples import examples

LARGEST = 100_000
SIZES = [0, 1, 125, 126, 127, 65_535, 65_536, 70_000]
LIBRARY_TAKES_MORE = 1_000_000


def read_by_the_library(data: bytes, *, is_masked: bool) -> list[bytes]:
    source = StreamReader()
    source.feed_data(data)
    source.feed_eof()
    found = []
    while source.buffer:
        with pytest.raises(StopIteration) as done:
            next(Frame.parse(source.read_exact, mask=is_masked, max_size=LIBRARY_TAKES_MORE))
        assert (done.value.value.opcode, done.value.value.fin) == (Opcode.BINARY, True)
        found.append(bytes(done.value.value.data))
    return found


def reader(*, is_masked: bool) -> FrameReader:
    return FrameReader(is_masked=is_masked, largest=LARGEST)


@pytest.mark.parametrize("is_masked", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_the_library_reads_our_frames_and_we_read_its(size: int, is_masked: bool) -> None:
    message = bytes(range(256)) * (size // 256) + bytes(size % 256)
    assert read_by_the_library(frame(message, is_masked=is_masked), is_masked=is_masked) == [message]
    theirs = Frame(Opcode.BINARY, message).serialize(mask=is_masked)
    assert reader(is_masked=is_masked).read(theirs) == [message]
    if not is_masked:
        assert frame(message, is_masked=False) == theirs


def test_each_masked_frame_has_a_key_of_its_own() -> None:
    keys = {frame(b"", is_masked=True)[2:6] for _ in range(5_000)}
    assert len(keys) > 4_990


@given(
    st.booleans(),
    st.lists(st.integers(0, 300) | st.sampled_from(SIZES), max_size=6),
    st.lists(st.integers(1, 5_000), max_size=40),
)
@examples(150)
def test_messages_come_whole_and_in_order_however_their_bytes_come(
    is_masked: bool, sizes: list[int], pieces: list[int]
) -> None:
    messages = [bytes([place]) * size for place, size in enumerate(sizes)]
    data = b"".join(frame(message, is_masked=is_masked) for message in messages)
    it = reader(is_masked=is_masked)
    found: list[bytes] = []
    for piece in pieces:
        found += it.read(data[:piece])
        data = data[piece:]
    found += it.read(data)
    assert found == messages
    assert not it.rest
    assert not it.is_foreign


FOREIGN = {
    "a text": Frame(Opcode.TEXT, b"x"),
    "a ping": Frame(Opcode.PING, b"x"),
    "a close": Frame(Opcode.CLOSE, b"\x03\xe8"),
    "a part of a message": Frame(Opcode.BINARY, b"x", fin=False),
    "its continuation": Frame(Opcode.CONT, b"x"),
    "too large": Frame(Opcode.BINARY, bytes(LARGEST + 1)),
}


@pytest.mark.parametrize("other", FOREIGN.values(), ids=FOREIGN)
@pytest.mark.parametrize("is_masked", [False, True])
def test_another_frame_stays_unread_with_all_bytes_after_it(other: Frame, is_masked: bool) -> None:
    foreign = other.serialize(mask=is_masked)
    it = reader(is_masked=is_masked)
    assert it.read(frame(b"one", is_masked=is_masked) + foreign + frame(b"two", is_masked=is_masked)) == [b"one"]
    assert it.is_foreign
    assert it.rest.startswith(foreign)


@pytest.mark.parametrize("is_masked", [False, True])
def test_a_frame_that_is_masked_and_must_not_be_is_foreign(is_masked: bool) -> None:
    it = reader(is_masked=is_masked)
    assert it.read(frame(b"x", is_masked=not is_masked)) == []
    assert it.is_foreign


def test_a_frame_with_a_reserved_bit_is_foreign() -> None:
    it = reader(is_masked=False)
    assert it.read(b"\xc2\x01x") == []
    assert it.is_foreign


@given(st.booleans(), st.binary(max_size=200), st.integers(0, 200))
@examples(300)
def test_any_bytes_are_messages_or_foreign_and_none_is_lost(is_masked: bool, data: bytes, cut: int) -> None:
    it = reader(is_masked=is_masked)
    found = it.read(data[:cut])
    if not it.is_foreign:
        found += it.read(data[cut:])
        again = b"".join(Frame(Opcode.BINARY, message).serialize(mask=False) for message in found)
        assert it.is_foreign or len(again) + len(it.rest) + (4 * len(found) if is_masked else 0) <= len(data)
    assert data[:cut].endswith(it.rest) or data.endswith(it.rest)
