"""Header compression: our blocks against another decoder, and broken blocks against ours."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jh2.hpack import Decoder as PythonDecoder
from jh2.hpack import Encoder

from common.relay.errors import Http2Error
from common.relay.hpack import COMPRESSION_ERROR, ENHANCE_YOUR_CALM, NO_DYNAMIC_TABLE, Decoder, encode

HEADERS = st.lists(st.tuples(st.binary(min_size=1, max_size=300), st.binary(max_size=300)), max_size=6)


@given(HEADERS)
def test_any_decoder_reads_our_blocks(headers: list[tuple[bytes, bytes]]) -> None:
    block = NO_DYNAMIC_TABLE + encode(headers)
    assert [tuple(header) for header in PythonDecoder().decode(block, raw=True)] == headers
    assert Decoder(1 << 20).decode(block) == headers


def test_a_block_means_the_same_twice_on_one_connection() -> None:
    block = encode([(b":status", b"200"), (b"content-type", b"application/grpc"), (b"x", b"y")])
    decoder = PythonDecoder()
    decoder.decode(NO_DYNAMIC_TABLE, raw=True)
    assert decoder.decode(block, raw=True) == decoder.decode(block, raw=True)


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


@given(st.binary(max_size=60))
def test_no_bytes_make_the_decoder_do_anything_but_answer_or_refuse(block: bytes) -> None:
    with contextlib.suppress(Http2Error):
        Decoder(1 << 16).decode(block)
