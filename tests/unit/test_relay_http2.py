"""HTTP/2, both ends of it ours, as bytes: frames, header compression, streams, windows, and each rule for a peer."""

import asyncio
import gc
import weakref
from collections.abc import Callable
from dataclasses import replace

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st
from jh2.hpack import Decoder as PythonDecoder
from jh2.hpack import Encoder

from common.relay import frames
from common.relay.connection import CONNECTION_WINDOW_BYTES, MAX_STREAMS, STREAM_WINDOW_BYTES
from common.relay.errors import Http2Error, VendorConnectionError
from common.relay.frames import ErrorCode, Setting
from common.relay.hpack import NO_DYNAMIC_TABLE, Decoder, encode
from common.relay.server import CancelReason, ServerCall, in_task
from common.status import Code, Status
from tests.kit.http2 import (
    ANSWER,
    REQUEST,
    SETTINGS,
    Calling,
    Ends,
    Messages,
    Serving,
    cut_frames,
    fields,
    message,
    wire,
)
from tests.kit.waiting import settle

OK = Status(Code.OK)
BLOCK = fields(*REQUEST.items())
HEADERS_ = wire(1, 4, 1, BLOCK)
ENDED = HEADERS_ + wire(0, 1, 1, message(b""))
TRAILERS = fields(("grpc-status", "0"))


def headers(stream_id: int) -> bytes:
    return wire(1, 4, stream_id, BLOCK)


def request(stream_id: int, payload: bytes = b"") -> bytes:
    return headers(stream_id) + wire(0, 1, stream_id, message(payload))


def answer(stream_id: int, payload: bytes = b"") -> bytes:
    return wire(1, 4, stream_id, ANSWER) + wire(0, 0, stream_id, message(payload)) + wire(1, 5, stream_id, TRAILERS)


def in_frames(stream_id: int, data: bytes) -> bytes:
    return b"".join(wire(0, 0, stream_id, data[at : at + 16_384]) for at in range(0, len(data), 16_384))


def echo(call: ServerCall) -> None:
    call.answer(OK, call.request)


# -------------------- frames --------------------


def in_pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    ends = [*sorted(min(cut, len(data)) for cut in cuts), len(data)]
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def framed(stream_id: int, payload: bytes, style: int) -> bytes:
    """A message in one frame, with padding, in several frames, or in one before an empty one that ends the stream."""
    data = message(payload)
    match style:
        case 0:
            return wire(0, 1, stream_id, data)
        case 1:
            return wire(0, 1 | frames.PADDED, stream_id, b"\3" + data + b"ppp")
        case 2:
            return wire(0, 0, stream_id, data[:3]) + wire(0, 0, stream_id) + wire(0, 1, stream_id, data[3:])
        case _:
            return wire(0, 0, stream_id, data) + wire(0, 1, stream_id)


CALLS = st.lists(st.tuples(st.binary(max_size=30), st.integers(0, 3)), max_size=6)
CUTS = st.lists(st.integers(0, 700), max_size=12)


@given(calls=CALLS, cuts=CUTS)
def test_a_server_takes_the_same_calls_and_writes_the_same_bytes_however_its_bytes_were_cut(
    calls: list[tuple[bytes, int]], cuts: list[int]
) -> None:
    data = frames.PREFACE + SETTINGS
    for at, (payload, style) in enumerate(calls):
        data += headers(2 * at + 1) + wire(6, 0, 0, b"%08d" % at) + framed(2 * at + 1, payload, style)

    async def served(parts: list[bytes]) -> tuple[list[bytes], bytes]:
        end = Serving(echo)
        for part in parts:
            end.receive(part)
        end.connection.flush()
        assert not end.connection.streams
        assert end.server.calls_in_flight == 0
        end.wire.lose()
        return [call.request for call in end.calls], b"".join(end.wire.writes)

    whole = asyncio.run(served([data]))
    assert whole[0] == [payload for payload, _ in calls]
    assert asyncio.run(served(in_pieces(data, cuts))) == whole


@given(
    answers=st.lists(st.lists(st.tuples(st.binary(max_size=30), st.integers(0, 3)), max_size=3), max_size=4), cuts=CUTS
)
def test_a_client_tells_the_same_answers_however_their_bytes_were_cut(
    answers: list[list[tuple[bytes, int]]], cuts: list[int]
) -> None:
    data = SETTINGS
    for at, messages in enumerate(answers):
        data += wire(1, 4, 2 * at + 1, ANSWER)
        for payload, style in messages:
            data += b"".join(
                wire(kind, flags & ~1, stream_id, each)
                for kind, flags, stream_id, each in cut_frames(framed(2 * at + 1, payload, style))[0]
            )
        data += wire(1, 5, 2 * at + 1, TRAILERS)

    async def heard(parts: list[bytes]) -> list[list[object]]:
        end = Calling()
        receivers: list[Ends] = [Ends() if len(each) == 1 else Messages() for each in answers]
        for receiver in receivers:
            end.call(receiver)
        for part in parts:
            end.receive(part)
        assert not end.connection.streams
        end.wire.lose()
        return [receiver.seen for receiver in receivers]

    told = [[(OK, each[0][0])] if len(each) == 1 else [*(payload for payload, _ in each), OK] for each in answers]
    assert asyncio.run(heard([data])) == told
    assert asyncio.run(heard(in_pieces(data, cuts))) == told


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(wire(1, 4, 0x80000001, BLOCK), id="the reserved bit of a stream's id"),
        pytest.param(wire(1, 0x2C, 1, b"\1PPPPP" + BLOCK + b"p"), id="padding and a priority"),
        pytest.param(
            wire(1, 0, 1, BLOCK[:9]) + wire(9, 0, 1, BLOCK[9:30]) + wire(9, 4, 1, BLOCK[30:]), id="a block in pieces"
        ),
        pytest.param(wire(0xEE, 0xFF, 1, b"whatever") + wire(2, 0, 5, b"12345") + HEADERS_, id="unknown frames"),
        pytest.param(HEADERS_ + wire(0, 8, 1, b"\2\0\0pp"), id="padding in DATA"),
    ],
)
async def test_frames_of_unusual_shapes_make_the_same_call(head: bytes) -> None:
    end = Serving(echo).begun()
    begun = message(b"hi").removeprefix(b"\0\0") if b"pp" in head[-2:] else message(b"hi")
    end.receive(head, wire(0, 1, 1, begun))
    assert [(call.method, call.request) for call in end.calls] == [("/a/B", b"hi")]


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
        pytest.param(wire(1, 0, 1, b"x") + wire(0, 0, 1, b"x"), ErrorCode.PROTOCOL_ERROR, id="DATA in a block"),
        pytest.param(wire(1, 0, 1, b"x") + wire(9, 4, 3, b"x"), ErrorCode.PROTOCOL_ERROR, id="another's CONTINUATION"),
        pytest.param(wire(1, 0, 1, b"x") + wire(9, 0, 1), ErrorCode.ENHANCE_YOUR_CALM, id="an empty CONTINUATION"),
        pytest.param(
            wire(1, 0, 1, b"x") + 17 * wire(9, 0, 1, b"x" * 16_384), ErrorCode.ENHANCE_YOUR_CALM, id="an endless block"
        ),
        pytest.param(wire(0, 0, 1, b"x"), ErrorCode.PROTOCOL_ERROR, id="DATA on a stream never opened"),
        pytest.param(wire(0, 0, 0, b"x"), ErrorCode.PROTOCOL_ERROR, id="DATA on the connection"),
        pytest.param(wire(1, 4, 0, BLOCK), ErrorCode.PROTOCOL_ERROR, id="HEADERS on the connection"),
        pytest.param(wire(1, 4, 2, BLOCK), ErrorCode.PROTOCOL_ERROR, id="HEADERS on an even stream"),
        pytest.param(wire(3, 0, 9, b"\0\0\0\0"), ErrorCode.PROTOCOL_ERROR, id="RST_STREAM on a stream never opened"),
        pytest.param(wire(8, 0, 9, b"\0\0\0\1"), ErrorCode.PROTOCOL_ERROR, id="WINDOW_UPDATE on a stream never opened"),
        pytest.param(wire(8, 0, 0, b"\0\0\0\0"), ErrorCode.PROTOCOL_ERROR, id="an empty WINDOW_UPDATE"),
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
@pytest.mark.parametrize("make", [Serving, Calling])
async def test_a_peer_that_breaks_a_rule_of_the_connection_gets_a_goaway(
    make: Callable[[], Serving | Calling], data: bytes, code: ErrorCode
) -> None:
    end = make().begun()
    end.receive(data)
    assert end.wire.frames()[-1] == (7, 0, 0, b"\0\0\0\0" + code.to_bytes(4, "big"))
    assert end.wire.is_closing()
    end.receive(SETTINGS)
    assert end.wire.frames() == []


@pytest.mark.parametrize(
    "data",
    [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0" * 9, SETTINGS[:4] + b"\1" + SETTINGS[5:], b"SSH-2.0-OpenSSH_9.6\r\n"],
)
@pytest.mark.parametrize("make", [Serving, Calling])
async def test_a_peer_that_does_not_begin_with_settings_does_not_speak_http2(
    make: Callable[[], Serving | Calling], data: bytes
) -> None:
    end = make()
    end.receive(frames.PREFACE * (make is Serving), data)
    assert "not with HTTP/2 settings" in str(end.connection._failure)


async def test_a_client_without_the_preface_does_not_speak_http2_from_its_first_wrong_byte_on() -> None:
    end = Serving()
    end.receive(b"PRI * HT")
    assert end.connection._failure is None
    end.receive(b"P")
    assert "not with the HTTP/2 preface" in str(end.connection._failure)


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
    assert caught.value.code == ErrorCode.COMPRESSION_ERROR


def test_a_small_block_that_unfolds_into_a_huge_list_is_refused() -> None:
    decoder = Decoder(1 << 16)
    stored = decoder.decode(b"\x40\x01a\x7f\xa1\x1e" + b"v" * 4000)
    assert stored == [(b"a", b"v" * 4000)]
    with pytest.raises(Http2Error) as caught:
        decoder.decode(b"\xbe" * 16_000)
    assert caught.value.code == ErrorCode.ENHANCE_YOUR_CALM


def test_a_block_of_indexed_fields_means_what_the_table_says_now() -> None:
    decoder = Decoder(4_096)
    for value in (b"1", b"2", b"2"):
        assert decoder.decode(b"\x40\x01a\x01" + value) == [(b"a", value)]  # becomes the table's newest entry
        for _ in range(2):
            assert decoder.decode(b"\xbe\x82") == [(b"a", value), (b":method", b"GET")]
            assert decoder.decode(b"\xbe\x00\x0cgrpc-message\x00") == [(b"a", value), (b"grpc-message", b"")]
        assert len(decoder.known) == 2
    for index in range(0x81, 0xBE):
        decoder.decode(bytes((index,)))
    assert len(decoder.known) < 10


def test_many_small_fields_count_with_their_overhead() -> None:
    decoder = Decoder(4_096)
    assert len(decoder.decode(b"\x82" * 97)) == 97  # ":method: GET", 42 bytes each
    with pytest.raises(Http2Error) as caught:
        decoder.decode(b"\x82" * 98)
    assert caught.value.code == ErrorCode.ENHANCE_YOUR_CALM


# -------------------- streams and windows --------------------


async def test_a_call_goes_there_and_back_in_one_write_each_and_leaves_nothing() -> None:
    client, server = Calling().begun(), Serving(echo).begun()
    for number in range(3):  # the first one says which table there is
        client.call(ends := Ends(), b"request %d" % number)
        (written,) = client.wire.writes
        server.receive(written)
        (answered,) = server.wire.writes
        client.receive(answered)
        assert ends.seen == [(OK, b"request %d" % number)]
        assert [kind for kind, *_ in server.wire.frames()] == [1, 0, 1]
        assert [kind for kind, *_ in client.wire.frames()] == [1, 0]
    assert not client.connection.streams
    assert not server.connection.streams


@pytest.mark.parametrize("size", [0, 100, 16_379, 16_380, 70_000])
async def test_an_answer_waits_for_windows_and_its_end_is_told_when_it_has_left(size: int) -> None:
    told: list[bool] = []
    end = Serving(lambda call: call.answer(OK, b"x" * size, told.append)).begun()
    end.receive(wire(8, 0, 0, b"\1\0\0\0"))
    for stream_id in (1, 3):
        end.receive(request(stream_id))
        sent = end.wire.frames()
        left = max(0, size + 5 - 65_535)
        assert sum(len(payload) for kind, *_, payload in sent if kind == 0) == size + 5 - left
        assert max(len(payload) for *_, payload in sent) <= 16_384
        assert told == ([] if left else [True])
        end.receive(wire(8, 0, stream_id, b"\0\1\0\0"))
        sent += end.wire.frames()
        assert b"".join(payload for kind, *_, payload in sent if kind == 0) == message(b"x" * size)
        assert sent[-1][:3] == (1, 5, stream_id)
        assert told == [True]
        told.clear()
    assert end.server.calls_in_flight == 0


async def test_the_answers_of_all_streams_share_the_connections_window() -> None:
    end = Serving(lambda call: call.answer(OK, b"x" * 40_000)).begun()
    end.receive(request(1), request(3))
    sent = end.wire.frames()
    assert sum(len(payload) for kind, *_, payload in sent if kind == 0) == 65_535
    end.receive(wire(8, 0, 0, b"\0\1\0\0"))
    sent += end.wire.frames()
    assert sum(len(payload) for kind, *_, payload in sent if kind == 0) == 2 * 40_005


@pytest.mark.parametrize(
    ("too_large", "size"),
    [
        pytest.param(request(1, b"x" * 1_001), 1_001, id="in one frame"),
        pytest.param(headers(1) + in_frames(1, message(b"x" * 20_000)), 20_000, id="in several"),
    ],
)
async def test_a_request_above_the_limit_is_refused_and_its_connection_serves_on(too_large: bytes, size: int) -> None:
    end = Serving(echo, limit=1_000).begun()
    end.connection.settings = replace(end.connection.settings, on_error=lambda it: Status(Code.UNAVAILABLE, str(it)))
    end.receive(too_large)
    (kind, flags, stream_id, block), *reset = end.wire.frames()
    assert (kind, flags, stream_id) == (1, 5, 1)
    assert b"14" in block
    assert f"a request of {size} bytes is larger than the limit of 1000 bytes".encode() in block
    # A client that still sends is asked to stop.
    assert reset == ([] if size == 1_001 else [(3, 0, 1, b"\0\0\0\0")])
    end.receive(request(3, b"x" * 1_000))
    assert message(b"x" * 1_000) in [payload for *_, payload in end.wire.frames()]
    assert [call.stream_id for call in end.calls] == [3]


async def test_a_smaller_initial_window_makes_windows_negative_and_later_ones_small() -> None:
    end = Serving().begun()
    end.receive(wire(4, 0, 0, frames.settings({Setting.INITIAL_WINDOW_SIZE: 1000})[9:]), request(1))
    end.calls[0].put(b"x" * 2000)
    await settle()
    end.receive(frames.settings({Setting.INITIAL_WINDOW_SIZE: 10}), request(3))
    assert (end.calls[0].send_window, end.calls[1].send_window) == (10 - 1000, 10)
    assert sum(len(payload) for kind, *_, payload in end.wire.frames() if kind == 0) == 1000
    end.receive(wire(8, 0, 1, (990).to_bytes(4, "big")))
    assert end.wire.frames() == []
    end.receive(wire(8, 0, 1, (7).to_bytes(4, "big")))
    assert end.wire.frames() == [(0, 0, 1, b"x" * 7)]
    end.calls[1].answer(OK, b"12345678")
    await settle()
    assert end.wire.frames()[1:] == [(0, 0, 3, message(b"12345678")[:10])]


async def test_a_driver_sends_no_more_than_a_streams_window_until_its_reader_has_used_some() -> None:
    end = Calling(limit=STREAM_WINDOW_BYTES).begun()
    call = end.call(slow := Messages(reads=False))
    end.call(quick := Messages())
    end.wire.frames()
    half, whole = message(b"x" * (STREAM_WINDOW_BYTES // 2 - 5)), message(b"x" * STREAM_WINDOW_BYTES)
    for stream_id in (1, 3):
        end.receive(wire(1, 4, stream_id, ANSWER), in_frames(stream_id, half))
    await settle()
    assert end.wire.frames() == [(8, 0, 3, len(half).to_bytes(4, "big"))]
    call.consumed()
    await settle()
    assert end.wire.frames() == [(8, 0, 1, len(half).to_bytes(4, "big"))]
    end.receive(in_frames(1, message(b"not used") + whole))
    assert end.wire.frames() == [(3, 0, 1, ErrorCode.FLOW_CONTROL_ERROR.to_bytes(4, "big"))]
    assert isinstance(slow.seen[-1], VendorConnectionError)
    end.receive(wire(0, 0, 3, message(b"on")))
    assert quick.seen[1:] == [b"on"]


async def test_the_connections_window_is_given_back_by_itself_also_for_streams_that_are_over() -> None:
    end = Serving(echo).begun()
    end.receive(request(1))
    end.wire.frames()
    end.connection._unreturned = CONNECTION_WINDOW_BYTES // 2 - 10
    end.receive(wire(0, 0, 1, b"x" * 9))
    assert end.wire.frames() == []
    end.receive(wire(0, 0, 1, b"x"))
    assert end.wire.frames() == [(8, 0, 0, (CONNECTION_WINDOW_BYTES // 2).to_bytes(4, "big"))]


async def test_a_reset_tells_the_other_side_and_what_still_comes_is_ignored_but_for_its_new_entries() -> None:
    end, driver = Calling().begun(), Encoder()
    call = end.call(ends := Ends())
    end.call(other := Ends())
    end.wire.frames()
    call.cancel()
    assert end.wire.frames() == [(3, 0, 1, ErrorCode.CANCEL.to_bytes(4, "big"))]
    blocks = []
    for stream_id in (1, 3):
        for flags, pairs in (
            (4, [(b":status", b"200"), (b"content-type", b"application/grpc")]),
            (5, [(b"grpc-status", b"0")]),
        ):
            blocks.append(wire(1, flags, stream_id, driver.encode(pairs)))
    assert len(blocks[2]) < len(blocks[0])  # it names an entry
    for stream_id in (1, 3):
        end.receive(blocks[stream_id - 1], wire(0, 0, stream_id, message(b"hi")), blocks[stream_id])
    assert (ends.seen, other.seen) == ([], [(OK, b"hi")])


async def test_a_pong_waits_for_company() -> None:
    end = Serving(echo).begun()
    end.receive(wire(6, 0, 0, b"12345678"))
    assert end.wire.writes == []
    end.receive(request(1))
    (written,) = end.wire.writes
    assert written.startswith(wire(6, 1, 0, b"12345678") + b"\0")
    end.receive(wire(6, 0, 0, b"87654321"))
    end.connection._flush_pongs()
    assert end.wire.frames()[-1] == (6, 1, 0, b"87654321")


async def test_a_header_block_larger_than_a_frame_is_continued() -> None:
    client, server = Calling().begun(), Serving(echo).begun()
    for _ in range(2):
        client.call(Ends(), method="/" + "v" * 40_000)
        server.receive(*client.wire.writes)
        assert [kind for kind, *_ in client.wire.frames()] == [1, 9, 9, 0]
    assert [call.method for call in server.calls] == ["/" + "v" * 40_000] * 2


async def test_streams_above_the_limit_are_refused_one_by_one() -> None:
    end = Serving().begun()
    for number in range(MAX_STREAMS + 1):
        end.receive(headers(2 * number + 1))
    assert end.wire.frames() == [(3, 0, 2 * MAX_STREAMS + 1, ErrorCode.REFUSED_STREAM.to_bytes(4, "big"))]


async def test_a_client_whose_stream_ids_run_out_needs_another_connection() -> None:
    end = Calling().begun()
    end.connection.highest_id = frames.MAX_STREAM_ID - 2
    assert end.connection.usable
    end.call(ends := Ends())
    assert not end.connection.usable
    end.receive(answer(frames.MAX_STREAM_ID))
    assert ends.seen == [(OK, b"")]


@pytest.mark.parametrize(
    ("data", "code"),
    [
        pytest.param(ENDED + wire(0, 0, 1, b"x"), ErrorCode.STREAM_CLOSED, id="DATA after the end"),
        pytest.param(ENDED + HEADERS_, ErrorCode.STREAM_CLOSED, id="HEADERS after the end"),
        pytest.param(HEADERS_ + wire(8, 0, 1, b"\0\0\0\0"), ErrorCode.PROTOCOL_ERROR, id="an empty WINDOW_UPDATE"),
        pytest.param(
            HEADERS_ + wire(8, 0, 1, b"\x7f\xff\xff\xff"), ErrorCode.FLOW_CONTROL_ERROR, id="a window above 2^31-1"
        ),
    ],
)
async def test_a_peer_that_breaks_a_rule_of_one_stream_loses_that_stream_alone(data: bytes, code: ErrorCode) -> None:
    end = Serving().begun()
    end.receive(data)
    assert end.wire.frames()[-1] == (3, 0, 1, code.to_bytes(4, "big"))
    assert end.left == len(end.calls)
    end.receive(request(3))
    assert end.calls[-1].stream_id == 3


@given(
    kinds=st.lists(
        st.tuples(st.integers(0, 9), st.sampled_from([0, 1, 4, 5, 8, 32]), st.integers(0, 5), st.binary(max_size=12)),
        max_size=12,
    ),
    make=st.sampled_from([Serving, Calling]),
)
def test_no_frames_make_a_connection_do_anything_but_take_or_refuse_them(
    kinds: list[tuple[int, int, int, bytes]], make: Callable[[], Serving | Calling]
) -> None:
    async def take() -> None:
        end = make().begun()
        if isinstance(end, Calling):
            end.call(Ends())
            end.receive(wire(1, 4, 1, ANSWER))
        else:
            end.receive(HEADERS_)
        end.receive(*(wire(*each) for each in kinds))
        end.wire.lose()
        assert end.connection._failure is None or isinstance(end.connection._failure, Http2Error)

    asyncio.run(take())


# -------------------- the ends of calls and connections --------------------


async def test_calls_that_come_together_after_their_deadlines_end_and_so_does_no_connection() -> None:
    """For a time in the past, uvloop's `call_at` returns a handle that has no time."""

    async def come() -> None:
        end = Serving().begun()
        for stream_id, late_s in ((1, 60), (3, 120), (5, 60)):
            end.receive(wire(1, 4, stream_id, BLOCK + fields(("grpc-timeout", "1S"))[1:]))
            call = end.connection.streams[stream_id]
            assert call.deadline is not None
            call.deadline -= late_s
            end.receive(wire(0, 1, stream_id, message(b"")))
        assert end.left == 0
        for _ in range(3):
            await asyncio.sleep(0)
        assert end.left == 3

    await asyncio.to_thread(uvloop.run, come())


@pytest.mark.parametrize(
    ("reason", "code", "text"),
    [
        (CancelReason.CALLER_CANCELLED, None, ""),
        (CancelReason.CALLER_LOST, None, ""),
        (CancelReason.DEADLINE, Code.UNAVAILABLE, "DEADLINE"),
        (CancelReason.CLOSING, Code.UNAVAILABLE, "CLOSING"),
    ],
)
async def test_a_call_that_was_cut_gets_the_servers_status_unless_its_caller_has_left(
    reason: CancelReason, code: Code | None, text: str
) -> None:
    async def never_ends(_call: ServerCall) -> None:
        await asyncio.Event().wait()

    end = Serving(in_task(never_ends)).begun()
    end.receive(request(1))
    await settle()
    end.calls[0].cancel(reason)
    await settle()
    assert end.calls[0].finished
    assert end.server.calls_in_flight == 0
    told = [dict(Decoder(1 << 16).decode(payload)) for kind, *_, payload in end.wire.frames() if kind == 1]
    assert [(each[b"grpc-status"], each.get(b"grpc-message", b"")) for each in told] == (
        [] if code is None else [(b"%d" % code, text.encode())]
    )


@pytest.mark.parametrize("is_gone", [False, True])
@pytest.mark.parametrize("ends_by", ["shut", "a fault"])
async def test_a_connection_that_ends_is_cut_unless_the_peer_has_read_everything(
    ends_by: str, *, is_gone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """asyncio's transport raises if it is aborted after its last byte has left and it has closed."""
    monkeypatch.setattr("common.relay.connection.CLOSE_TIMEOUT_S", 0.0)
    end = Calling()
    end.wire.ends = False
    if ends_by == "shut":
        end.connection.shut()
    else:
        end.receive(wire(4, 0, 1))
    assert end.wire.is_closing()
    if is_gone:
        end.wire.lose()
    await settle()
    end.connection.ready.exception() if is_gone else end.connection.ready.cancel()
    assert end.wire.aborts == (0 if is_gone else 1)


async def test_a_caller_that_does_not_read_its_answer_loses_its_stream_at_its_deadline() -> None:
    told: list[bool] = []
    end = Serving(lambda call: call.answer(OK, b"x" * 70_000, told.append)).begun()
    end.receive(request(1))
    end.wire.frames()
    end.calls[0].cancel(CancelReason.DEADLINE)
    assert told == [False]
    assert end.server.calls_in_flight == 0
    assert end.wire.frames() == [(3, 0, 1, ErrorCode.CANCEL.to_bytes(4, "big"))]


@pytest.mark.parametrize("cuts", [True, False])
async def test_a_callback_may_send_and_cut_while_windows_open(cuts: bool) -> None:
    end = Serving().begun()
    end.receive(frames.settings({Setting.INITIAL_WINDOW_SIZE: 0}), request(1), request(3))
    one, other = end.calls
    one.put(b"1", lambda _taken: other._cut() if cuts else one.put(b"2"))
    other.put(b"3")
    await settle()
    end.receive(frames.settings({Setting.INITIAL_WINDOW_SIZE: 1000}))
    await settle()
    assert not end.wire.is_closing()


@pytest.mark.parametrize("how", ["taken", "reset"])
async def test_an_answer_that_had_to_wait_is_freed_at_its_end(how: str) -> None:
    """A cycle of references would keep megabytes until the next garbage collection."""
    end = Serving(lambda call: call.answer(OK, b"x" * 100_000)).begun()
    end.receive(request(1))
    call = weakref.ref(end.calls.pop())
    gc.disable()
    try:
        if how == "taken":
            end.receive(wire(8, 0, 0, (1 << 20).to_bytes(4, "big")), wire(8, 0, 1, (1 << 20).to_bytes(4, "big")))
        else:
            end.receive(wire(3, 0, 1, (8).to_bytes(4, "big")))
        end.wire.writes.clear()
        assert call() is None
    finally:
        gc.enable()
