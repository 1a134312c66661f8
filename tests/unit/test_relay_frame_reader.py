"""The frame reader: frames out of bytes cut anywhere, and each way in which they can be broken."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.relay import frames
from common.relay.errors import Http2Error
from common.relay.frame_reader import FrameReader
from common.relay.frames import ErrorCode

SETTINGS = b"\0\0\0\4\0\0\0\0\0"


def wire(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream_id.to_bytes(4, "big") + payload


def begun() -> FrameReader:
    reader = FrameReader(b"")
    assert len(list(reader.read(SETTINGS))) == 1
    return reader


def read(reader: FrameReader, data: bytes) -> list[tuple[int, int, int, bytes, int]]:
    return [(kind, flags, stream, bytes(payload), size) for kind, flags, stream, payload, size in reader.read(data)]


@given(payloads=st.lists(st.binary(max_size=30), max_size=6), cuts=st.lists(st.integers(0, 300), max_size=10))
def test_frames_come_back_whole_however_the_stream_was_cut(payloads: list[bytes], cuts: list[int]) -> None:
    data = frames.PREFACE + SETTINGS + b"".join(wire(0, 1, 2 * at + 1, each) for at, each in enumerate(payloads))
    reader = FrameReader(frames.PREFACE)
    found, start = [], 0
    for cut in [*sorted(min(cut, len(data)) for cut in cuts), len(data)]:
        found += read(reader, data[start:cut])
        start = cut
    assert found[0] == (4, 0, 0, b"", 0)
    assert found[1:] == [(0, 1, 2 * at + 1, each, len(each)) for at, each in enumerate(payloads)]


def test_the_reserved_bit_of_a_stream_id_is_ignored() -> None:
    assert read(begun(), wire(0, 0, 0x80000001, b"x")) == [(0, 0, 1, b"x", 1)]


def test_padding_is_removed_and_still_counted() -> None:
    assert read(begun(), wire(0, frames.PADDED, 1, b"\x02datapp")) == [(0, 8, 1, b"data", 7)]


def test_a_priority_in_headers_is_removed() -> None:
    flags = frames.PRIORITY_FLAG | frames.END_HEADERS | frames.PADDED
    assert read(begun(), wire(1, flags, 1, b"\x01PPPPPblockp"))[0][3] == b"block"


def test_a_header_block_in_pieces_comes_as_one() -> None:
    data = wire(1, frames.END_STREAM, 1, b"ab") + wire(9, 0, 1, b"cd") + wire(9, frames.END_HEADERS, 1, b"ef")
    assert read(begun(), data) == [(1, frames.END_STREAM, 1, b"abcdef", 0)]


@pytest.mark.parametrize(
    ("data", "code"),
    [
        pytest.param(wire(6, 0, 0, b"1234567"), ErrorCode.FRAME_SIZE_ERROR, id="a PING of seven bytes"),
        pytest.param(wire(3, 0, 1, b"123"), ErrorCode.FRAME_SIZE_ERROR, id="a RST_STREAM of three bytes"),
        pytest.param(wire(8, 0, 0, b"12345"), ErrorCode.FRAME_SIZE_ERROR, id="a WINDOW_UPDATE of five bytes"),
        pytest.param(wire(2, 0, 1, b"1"), ErrorCode.FRAME_SIZE_ERROR, id="a PRIORITY of one byte"),
        pytest.param(wire(1, frames.PRIORITY_FLAG | 4, 1, b"1234"), ErrorCode.FRAME_SIZE_ERROR, id="a cut priority"),
        pytest.param(b"\0\x40\x01\0\0\0\0\0\1", ErrorCode.FRAME_SIZE_ERROR, id="a frame above 16,384 bytes"),
        pytest.param(b"\xff\xff\xff\0\0\0\0\0\1", ErrorCode.FRAME_SIZE_ERROR, id="the largest frame there is"),
        pytest.param(wire(0, frames.PADDED, 1, b""), ErrorCode.PROTOCOL_ERROR, id="padding in an empty frame"),
        pytest.param(wire(0, frames.PADDED, 1, b"\x03xx"), ErrorCode.PROTOCOL_ERROR, id="padding as long as the frame"),
        pytest.param(wire(9, 4, 1, b"x"), ErrorCode.PROTOCOL_ERROR, id="a CONTINUATION of nothing"),
        pytest.param(
            wire(1, 0, 1, b"x") + wire(6, 0, 0, b"12345678"), ErrorCode.PROTOCOL_ERROR, id="a PING in a block"
        ),
        pytest.param(wire(1, 0, 1, b"x") + wire(9, 4, 3, b"x"), ErrorCode.PROTOCOL_ERROR, id="another's CONTINUATION"),
        pytest.param(wire(1, 0, 1, b"x") + wire(9, 0, 1), ErrorCode.ENHANCE_YOUR_CALM, id="an empty CONTINUATION"),
        pytest.param(
            wire(1, 0, 1, b"x") + 17 * wire(9, 0, 1, b"x" * 16_384), ErrorCode.ENHANCE_YOUR_CALM, id="an endless block"
        ),
    ],
)
def test_a_broken_frame_breaks_the_connection(data: bytes, code: ErrorCode) -> None:
    with pytest.raises(Http2Error) as caught:
        list(begun().read(data))
    assert caught.value.code == code


@pytest.mark.parametrize(
    "data",
    [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0" * 9, SETTINGS[:4] + b"\1" + SETTINGS[5:], b"SSH-2.0-OpenSSH_9.6\r\n"],
)
def test_a_server_that_does_not_begin_with_settings_is_not_http2(data: bytes) -> None:
    with pytest.raises(Http2Error, match="not with HTTP/2 settings"):
        list(FrameReader(b"").read(data))


def test_a_client_without_the_preface_is_not_http2_from_its_first_wrong_byte_on() -> None:
    reader = FrameReader(frames.PREFACE)
    assert not list(reader.read(b"PRI * HT"))
    with pytest.raises(Http2Error, match="not with the HTTP/2 preface"):
        list(reader.read(b"P"))
