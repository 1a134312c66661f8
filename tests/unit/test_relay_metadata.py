"""gRPC header fields: what is written, what is read, and what of a peer that breaks the rules is still read."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.relay import metadata
from common.relay.hpack import Decoder
from common.status import Code, Status


def fields(block: bytes) -> list[tuple[bytes, bytes]]:
    return Decoder(1 << 16).decode(block)


@given(st.text())
def test_a_message_of_any_text_survives_its_encoding(text: str) -> None:
    encoded = metadata.encode_message(text)
    assert all(0x20 <= byte < 0x7F for byte in encoded)
    assert metadata.decode_message(encoded) == text


@pytest.mark.parametrize(
    ("text", "encoded"),
    [
        ("plain words", b"plain words"),
        ("100%", b"100%25"),
        ("é", b"%C3%A9"),
        ("a\nb", b"a%0Ab"),
        (" edges ", b"%20edges%20"),
        ("", b""),
        (" ", b"%20"),
    ],
)
def test_a_message_is_percent_encoded_like_this(text: str, encoded: bytes) -> None:
    assert metadata.encode_message(text) == encoded


def test_many_spaces_in_a_message_are_encoded_at_once() -> None:
    """A node may send them, and nothing else runs meanwhile."""
    text, began = "a" + " " * 65_000 + "b", time.process_time()
    assert metadata.encode_message(text) == text.encode()
    assert time.process_time() - began < 1.0


@pytest.mark.parametrize(
    ("encoded", "text"),
    [
        (b"100% sure", "100% sure"),
        (b"%", "%"),
        (b"%zz", "%zz"),
        (b"%C3", "\ufffd"),
        (b"raw \xc3\xa9", "raw é"),
        (b" x", " x"),
    ],
)
def test_a_message_that_breaks_the_encoding_is_still_read(encoded: bytes, text: str) -> None:
    assert metadata.decode_message(encoded) == text


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (b"10S", 10.0),
        (b"1H", 3600.0),
        (b"2M", 120.0),
        (b"1500m", 1.5),
        (b"7u", 7e-6),
        (b"99999999n", 0.099999999),
        (b"0S", 0),
    ],
)
def test_a_timeout_is_read(value: bytes, seconds: float) -> None:
    assert metadata.parse_timeout(value) == pytest.approx(seconds)


@pytest.mark.parametrize("value", [b"", b"10", b"S", b"-1S", b"1.5S", b"123456789S", b"10s", b"10S ", b" 10S"])
def test_a_timeout_that_cannot_be_read_is_malformed(value: bytes) -> None:
    with pytest.raises(ValueError, match="grpc-timeout"):
        metadata.parse_timeout(value)


@pytest.mark.parametrize(
    ("seconds", "value"),
    [
        (10.0, b"10000000u"),
        (600.0, b"600000m"),
        (200_000.0, b"200000S"),
        (0.0, b"1u"),
        (-3.0, b"1u"),
        (1e12, b"99999999S"),
    ],
)
def test_a_timeout_is_written_in_the_finest_unit_that_fits(seconds: float, value: bytes) -> None:
    assert metadata.encode_timeout(seconds) == value


@given(st.floats(min_value=1e-6, max_value=9e7))
def test_a_timeout_survives_within_half_a_percent(seconds: float) -> None:
    assert metadata.parse_timeout(metadata.encode_timeout(seconds)) == pytest.approx(seconds, rel=5e-3, abs=1e-6)


def test_a_request_says_what_grpc_wants_and_names_localhost() -> None:
    assert fields(b"\x20" + metadata.request_block("/csi.v1.Identity/Probe", 1.5)) == [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", b"/csi.v1.Identity/Probe"),
        (b":authority", b"localhost"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        (b"user-agent", b"csi-bridge"),
        (b"grpc-timeout", b"1500000u"),
    ]


@given(code=st.integers(0, 99), message=st.text(max_size=60))
def test_a_status_survives_its_trailers(code: int, message: str) -> None:
    block = metadata.trailer_block(Status(code, message), 10_000)
    assert metadata.status_of(dict(fields(block))) == Status(code, message)


def test_trailers_never_carry_details() -> None:
    names = {name for name, _ in fields(metadata.trailer_block(Status(Code.INTERNAL, "x"), 100))}
    assert names == {b"grpc-status", b"grpc-message"}


@given(message=st.text(min_size=40, max_size=80), limit=st.integers(20, 40))
def test_a_message_above_the_limit_is_cut_between_characters(message: str, limit: int) -> None:
    _, (_, value) = fields(metadata.trailer_block(Status(Code.INTERNAL, message), limit))
    assert len(value) <= limit
    text = metadata.decode_message(value)
    assert text == message or message.startswith(text.removesuffix("..."))


def test_trailers_without_a_status_have_none() -> None:
    assert metadata.status_of({b"grpc-message": b"x"}) is None


@pytest.mark.parametrize("value", [b"", b"x", b"-1", b"1.0", b"1234567890"])
def test_a_status_that_is_no_number_is_malformed(value: bytes) -> None:
    with pytest.raises(ValueError, match="grpc-status"):
        metadata.status_of({b"grpc-status": value})


@pytest.mark.parametrize("value", [b"application/grpc", b"application/grpc+proto", b"application/grpc;charset=utf-8"])
def test_a_content_type_of_grpc_is_known(value: bytes) -> None:
    assert metadata.is_grpc(value)


@pytest.mark.parametrize(
    "value", [None, b"", b"text/html", b"application/grpcx", b"application/grpc-web", b"application/json"]
)
def test_another_content_type_is_not_grpc(value: bytes | None) -> None:
    assert not metadata.is_grpc(value)


@pytest.mark.parametrize(
    ("code", "text"), [(code, text) for code, texts in metadata._LIBRARY_TEXTS.items() for text in texts]
)
def test_a_librarys_text_under_its_own_code_is_not_the_vendors(code: int, text: str) -> None:
    assert metadata.made_by_library(Status(code, f"{text} (5242880 vs. 4194304)"))
    assert not metadata.made_by_library(Status(Code.NOT_FOUND, text))


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (Code.UNKNOWN, "Exception calling application: disk is gone"),
        (Code.UNKNOWN, "Unexpected error in RPC handling"),
        (Code.UNIMPLEMENTED, "unknown method Imagined for service csi.v1.Controller"),
        (Code.INTERNAL, "the array answered: grpc: received message larger than max"),
        (Code.INTERNAL, ""),
        (Code.RESOURCE_EXHAUSTED, "pool is full"),
        (Code.OK, ""),
        (99, "grpc: anything"),
    ],
)
def test_what_a_driver_says_is_the_vendors(code: int, text: str) -> None:
    assert not metadata.made_by_library(Status(code, text))
