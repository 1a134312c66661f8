"""HTTP/2, both ends of it ours: frames, header compression, streams, windows, and every rule that a peer can break."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jh2.hpack import Decoder as PythonDecoder
from jh2.hpack import Encoder

from common.relay import frames
from common.relay.errors import Http2Error
from common.relay.frame_reader import FrameReader
from common.relay.frames import ErrorCode, Setting
from common.relay.hpack import COMPRESSION_ERROR, ENHANCE_YOUR_CALM, NO_DYNAMIC_TABLE, Decoder, Header, encode
from common.relay.http2 import CONNECTION_WINDOW_BYTES, MAX_STREAMS, STREAM_WINDOW_BYTES, Http2

# -------------------- frames --------------------


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


# -------------------- header compression --------------------


HEADERS = st.lists(st.tuples(st.binary(min_size=1, max_size=300), st.binary(max_size=300)), max_size=6)


@given(HEADERS)
def test_any_decoder_reads_our_blocks_and_the_same_twice(headers: list[tuple[bytes, bytes]]) -> None:
    theirs, ours = PythonDecoder(), Decoder(1 << 20)
    for block in (NO_DYNAMIC_TABLE + encode(headers), encode(headers)):
        assert [tuple(header) for header in theirs.decode(block, raw=True)] == headers
        assert ours.decode(block) == headers


def test_literal_bytes_of_a_response() -> None:
    headers = [(b":status", b"200"), (b":status", b"415"), (b"content-type", b"application/grpc"), (b"te", b"x")]
    assert encode(headers) == b"\x88" + b"\x08\x03415" + b"\x0f\x10\x10application/grpc" + b"\x00\x02te\x01x"


@pytest.mark.parametrize("size", [0, 1, 126, 127, 128, 254, 255, 16_511, 40_000])
def test_strings_of_every_length_prefix_survive(size: int) -> None:
    assert Decoder(1 << 20).decode(encode([(b"a", b"v" * size)])) == [(b"a", b"v" * size)]


@given(st.lists(HEADERS, max_size=5), st.booleans())
def test_a_peer_that_compresses_is_understood_block_after_block(
    blocks: list[list[tuple[bytes, bytes]]], huffman: bool
) -> None:
    encoder, decoder = Encoder(), Decoder(1 << 20)
    for headers in blocks:
        assert decoder.decode(encoder.encode(headers, huffman=huffman)) == headers


@pytest.mark.parametrize(
    "block",
    [
        b"\xff",
        b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\xbf",
        b"\x40\x05ab",
        b"\x00",
        b"\x3f\xff\xff\xff\xff\x0f",
        b"\x80",
    ],
)
def test_a_broken_block_breaks_the_connection(block: bytes) -> None:
    with pytest.raises(Http2Error) as caught:
        Decoder(1 << 16).decode(block)
    assert caught.value.code == COMPRESSION_ERROR


def test_a_small_block_that_unfolds_into_a_huge_list_is_refused() -> None:
    decoder = Decoder(1 << 16)
    stored = decoder.decode(b"\x40\x01a\x7f\xa1\x1e" + b"v" * 4000)
    assert stored == [(b"a", b"v" * 4000)]
    with pytest.raises(Http2Error) as caught:
        decoder.decode(b"\xbe" * 16_000)
    assert caught.value.code == ENHANCE_YOUR_CALM


def test_many_small_fields_count_with_their_overhead() -> None:
    decoder = Decoder(4_096)
    assert len(decoder.decode(b"\x82" * 97)) == 97  # ":method: GET", 42 bytes each
    with pytest.raises(Http2Error) as caught:
        decoder.decode(b"\x82" * 98)
    assert caught.value.code == ENHANCE_YOUR_CALM


# -------------------- connections --------------------


BLOCK = encode([(b"a", b"b")])
FIELDS = [(b"a", b"b")]


class Notes:
    """A listener that writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []

    def headers_received(self, stream_id: int, headers: list[Header], *, ended: bool) -> None:
        self.told.append(("headers", stream_id, headers, ended))

    def body_received(self, stream_id: int, data: memoryview, flow_bytes: int, *, ended: bool) -> None:
        self.told.append(("body", stream_id, bytes(data), flow_bytes, ended))

    def stream_reset(self, stream_id: int, code: int) -> None:
        self.told.append(("reset", stream_id, code))

    def window_opened(self) -> None:
        self.told.append(("window",))

    def settings_received(self) -> None:
        self.told.append(("settings",))

    def ping_acknowledged(self, data: bytes) -> None:
        self.told.append(("pong", data))

    def goaway_received(self, last_stream_id: int, code: int, debug: bytes) -> None:
        self.told.append(("goaway", last_stream_id, code, debug))

    def take(self) -> list[tuple[object, ...]]:
        told, self.told = self.told, []
        return [each for each in told if each != ("window",)]


class Pair:
    """A client and a server, connected by hand."""

    def __init__(self, *, first_stream_id: int = 1) -> None:
        self.at_client, self.at_server = Notes(), Notes()
        self.client = Http2(self.at_client, client=True, first_stream_id=first_stream_id)
        self.server = Http2(self.at_server, client=False)
        self.client.start()
        self.server.start()
        self.carry()
        assert self.at_client.take() == self.at_server.take() == [("settings",)]

    def carry(self) -> None:
        while (up := self.client.take()) + (down := self.server.take()):
            if up:
                self.server.receive(up)
            if down:
                self.client.receive(down)

    def opened(self) -> int:
        stream_id = self.client.open_stream(BLOCK)
        self.carry()
        assert self.at_server.take() == [("headers", stream_id, FIELDS, False)]
        return stream_id


def test_a_call_goes_there_and_back_and_leaves_nothing() -> None:
    pair = Pair()
    stream_id = pair.client.open_stream(BLOCK)
    pair.client.send_data(stream_id, b"request", end=True)
    pair.carry()
    assert pair.at_server.take() == [("headers", 1, FIELDS, False), ("body", 1, b"request", 7, True)]
    pair.server.send_headers(1, BLOCK, end=False)
    pair.server.send_data(1, b"answer", end=False)
    pair.server.send_headers(1, BLOCK, end=True)
    pair.carry()
    assert pair.at_client.take() == [
        ("headers", 1, FIELDS, False),
        ("body", 1, b"answer", 6, False),
        ("headers", 1, FIELDS, True),
    ]
    assert not pair.client._streams
    assert not pair.server._streams


def test_a_stream_carries_no_more_than_its_window_until_the_reader_has_used_some() -> None:
    pair = Pair()
    stream_id = pair.opened()
    sent = 0
    while size := pair.client.sendable_bytes(stream_id):
        pair.client.send_data(stream_id, b"x" * size, end=False)
        sent += size
    assert sent == STREAM_WINDOW_BYTES
    pair.carry()
    pair.server.consumed(stream_id, STREAM_WINDOW_BYTES // 2)
    pair.carry()
    assert pair.client._streams[stream_id].send_window == STREAM_WINDOW_BYTES // 2


def test_the_connections_window_is_given_back_by_itself() -> None:
    pair = Pair()
    before, left = pair.client._send_window, CONNECTION_WINDOW_BYTES // 2
    streams = [pair.opened() for _ in range(left // STREAM_WINDOW_BYTES + 1)]
    while left:
        assert pair.client._send_window == before - CONNECTION_WINDOW_BYTES // 2 + left
        if not pair.client.sendable_bytes(streams[-1]):
            streams.pop()
        stream_id = streams[-1]
        size = min(pair.client.sendable_bytes(stream_id), left)
        pair.client.send_data(stream_id, b"x" * size, end=False)
        pair.carry()
        left -= size
    assert pair.client._send_window == before


def test_a_smaller_initial_window_makes_windows_negative_and_later_ones_small() -> None:
    pair = Pair()
    stream_id = pair.opened()
    pair.client.send_data(stream_id, b"x" * 1000, end=False)
    pair.client.receive(frames.settings({Setting.INITIAL_WINDOW_SIZE: 10}))
    assert pair.client._streams[stream_id].send_window == 10 - 1000
    assert pair.client.sendable_bytes(stream_id) == 0
    assert pair.client.sendable_bytes(pair.client.open_stream(BLOCK)) == 10


def test_a_reset_tells_the_other_side_and_what_still_comes_is_ignored() -> None:
    pair = Pair()
    stream_id = pair.opened()
    pair.server.send_headers(stream_id, BLOCK, end=False)
    pair.server.send_data(stream_id, b"late", end=False)
    pair.server.send_headers(stream_id, BLOCK, end=True)
    pair.client.reset(stream_id, ErrorCode.CANCEL)
    pair.carry()
    assert pair.at_server.take() == [("reset", stream_id, ErrorCode.CANCEL)]
    assert pair.at_client.take() == []
    stream_id = pair.opened()
    pair.server.send_headers(stream_id, encode([(b"new", b"entry")]), end=True)
    pair.carry()
    assert pair.at_client.take() == [("headers", stream_id, [(b"new", b"entry")], True)]


def test_a_ping_is_answered_and_the_answer_may_wait_for_company() -> None:
    pair = Pair()
    pair.client.ping(b"12345678")
    assert not pair.client.patient
    pair.server.receive(pair.client.take())
    assert pair.server.queued
    assert pair.server.patient
    pair.server.ping(b"87654321")
    assert not pair.server.patient
    pair.carry()
    assert pair.at_client.take() == [("pong", b"12345678")]


def test_a_header_block_larger_than_a_frame_is_continued() -> None:
    pair = Pair()
    value = b"v" * 40_000
    pair.client.open_stream(encode([(b"a", value)]))
    pair.carry()
    assert pair.at_server.take() == [("headers", 1, [(b"a", value)], False)]


def test_streams_above_the_limit_are_refused_one_by_one() -> None:
    pair = Pair()
    for _ in range(MAX_STREAMS + 1):
        pair.client.open_stream(BLOCK)
    pair.carry()
    assert pair.at_client.take() == [("reset", 2 * MAX_STREAMS + 1, ErrorCode.REFUSED_STREAM)]


def test_a_client_knows_when_its_stream_ids_run_out() -> None:
    pair = Pair(first_stream_id=frames.MAX_STREAM_ID)
    assert not pair.client.exhausted
    pair.client.open_stream(BLOCK)
    assert pair.client.exhausted


def test_unknown_frames_and_priorities_are_ignored() -> None:
    pair = Pair()
    pair.server.receive(wire(0xEE, 0xFF, 1, b"whatever") + wire(2, 0, 5, b"12345"))
    assert pair.at_server.take() == []


OPEN = wire(1, frames.END_HEADERS, 1, BLOCK)
ENDED = wire(1, frames.END_HEADERS | frames.END_STREAM, 1, BLOCK)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        pytest.param(wire(0, 0, 1, b"x"), ErrorCode.PROTOCOL_ERROR, id="DATA on a stream never opened"),
        pytest.param(wire(0, 0, 0, b"x"), ErrorCode.PROTOCOL_ERROR, id="DATA on the connection"),
        pytest.param(wire(1, 4, 0, BLOCK), ErrorCode.PROTOCOL_ERROR, id="HEADERS on the connection"),
        pytest.param(wire(1, 4, 2, BLOCK), ErrorCode.PROTOCOL_ERROR, id="HEADERS on an even stream"),
        pytest.param(wire(3, 0, 9, b"\0\0\0\0"), ErrorCode.PROTOCOL_ERROR, id="RST_STREAM on a stream never opened"),
        pytest.param(wire(8, 0, 9, b"\0\0\0\1"), ErrorCode.PROTOCOL_ERROR, id="WINDOW_UPDATE on a stream never opened"),
        pytest.param(wire(8, 0, 0, b"\0\0\0\0"), ErrorCode.FLOW_CONTROL_ERROR, id="an empty WINDOW_UPDATE"),
        pytest.param(wire(8, 0, 0, b"\x7f\xff\xff\xff"), ErrorCode.FLOW_CONTROL_ERROR, id="a window above 2^31-1"),
        pytest.param(wire(4, 0, 1), ErrorCode.PROTOCOL_ERROR, id="SETTINGS on a stream"),
        pytest.param(wire(4, 0, 0, b"12345"), ErrorCode.FRAME_SIZE_ERROR, id="SETTINGS of a broken size"),
        pytest.param(wire(4, 0, 0, b"\0\2\0\0\0\2"), ErrorCode.PROTOCOL_ERROR, id="ENABLE_PUSH of 2"),
        pytest.param(wire(4, 0, 0, b"\0\4\x80\0\0\0"), ErrorCode.FLOW_CONTROL_ERROR, id="an initial window of 2^31"),
        pytest.param(wire(4, 0, 0, b"\0\5\0\0\0\1"), ErrorCode.PROTOCOL_ERROR, id="a largest frame of one byte"),
        pytest.param(wire(6, 0, 1, b"12345678"), ErrorCode.PROTOCOL_ERROR, id="PING on a stream"),
        pytest.param(wire(7, 0, 0, b"1234567"), ErrorCode.FRAME_SIZE_ERROR, id="a GOAWAY of seven bytes"),
        pytest.param(wire(5, 4, 1, b"\0\0\0\2"), ErrorCode.PROTOCOL_ERROR, id="PUSH_PROMISE"),
        pytest.param(wire(1, 4, 1, b"\xff"), ErrorCode.COMPRESSION_ERROR, id="a broken header block"),
    ],
)
def test_a_peer_that_breaks_a_rule_of_the_connection_gets_a_goaway(data: bytes, code: ErrorCode) -> None:
    pair = Pair()
    with pytest.raises(Http2Error) as caught:
        pair.server.receive(data)
    assert caught.value.code == code
    pair.client.receive(pair.server.take())
    assert ("goaway", caught.value.code) == pair.at_client.take()[-1][0:3:2]


@pytest.mark.parametrize(
    ("data", "code"),
    [
        pytest.param(ENDED + wire(0, 0, 1, b"x"), ErrorCode.STREAM_CLOSED, id="DATA after the end"),
        pytest.param(ENDED + ENDED, ErrorCode.STREAM_CLOSED, id="HEADERS after the end"),
        pytest.param(OPEN + wire(8, 0, 1, b"\0\0\0\0"), ErrorCode.PROTOCOL_ERROR, id="an empty WINDOW_UPDATE"),
        pytest.param(
            OPEN + wire(8, 0, 1, b"\x7f\xff\xff\xff"), ErrorCode.FLOW_CONTROL_ERROR, id="a window above 2^31-1"
        ),
        pytest.param(OPEN + 65 * wire(0, 0, 1, b"x" * 16_384), ErrorCode.FLOW_CONTROL_ERROR, id="more than the window"),
    ],
)
def test_a_peer_that_breaks_a_rule_of_one_stream_loses_that_stream_alone(data: bytes, code: ErrorCode) -> None:
    pair = Pair()
    pair.server.receive(data)
    assert pair.at_server.take()[-1] == ("reset", 1, code)
    assert pair.server.take().endswith(wire(3, 0, 1, code.to_bytes(4, "big")))
    pair.server.receive(wire(1, 5, 3, BLOCK))
    assert pair.at_server.take() == [("headers", 3, FIELDS, True)]


@given(
    kinds=st.lists(
        st.tuples(st.integers(0, 9), st.sampled_from([0, 1, 4, 5, 8, 32]), st.integers(0, 5), st.binary(max_size=12)),
        max_size=12,
    )
)
def test_no_frames_make_a_connection_do_anything_but_take_or_refuse_them(
    kinds: list[tuple[int, int, int, bytes]],
) -> None:
    server = Http2(Notes(), client=False)
    server.start()
    try:
        server.receive(frames.PREFACE + frames.settings({}) + OPEN + b"".join(wire(*each) for each in kinds))
    except Http2Error:
        assert server.queued
