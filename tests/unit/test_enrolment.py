"""The messages of enrolment, and the token's text."""

import hashlib

import pytest

from common.errors import RemoteProtocolError
from common.net.enrolment import (
    AskCa,
    CaCertificates,
    Issued,
    Join,
    JoinRefused,
    JoinToken,
    RefusedFor,
    Renew,
    decode,
    encode,
    format_token,
    generation_of,
    parse_token,
    renewal_text,
)

TOKEN = JoinToken(("wss://hub.example:7443",), bytes(32), "5f", bytes(range(32)))

GOLDEN = {
    AskCa(): "9100",
    CaCertificates(b"pem"): "9201c40370656d",
    Join("5f", b"s", "n1", b"csr"): "9502a23566c40173a26e31c403637372",
    Renew(b"csr", b"der", b"sig"): "9403c403637372c403646572c403736967",
    Issued(b"c", b"ca", 2, 60, ("wss://h:1",), ()): "9804c40163c4026361023c91a97773733a2f2f683a3190c2",
    JoinRefused(RefusedFor.BUSY, "later", 5): "9405a462757379a56c6174657205",
}


@pytest.mark.parametrize("message", GOLDEN, ids=lambda message: type(message).__name__)
def test_each_message_has_these_bytes(message: object) -> None:
    assert encode(message).hex() == GOLDEN[message].replace(" ", "")
    assert decode(encode(message)) == message


def test_a_request_of_a_newer_agent_is_understood_without_its_new_fields() -> None:
    assert decode(bytes.fromhex("9301c40370656dc3")) == CaCertificates(b"pem")


@pytest.mark.parametrize("data", ["", "91009100", "9163", "9102", "ff", "9201c3"])
def test_other_bytes_break_the_rules(data: str) -> None:
    with pytest.raises(RemoteProtocolError):
        decode(bytes.fromhex(data))


def test_a_token_is_one_line_that_can_be_read_again() -> None:
    text = format_token(TOKEN)
    assert text.startswith("csi1.")
    assert text.isascii()
    assert set(text) <= set("csi1.ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
    assert parse_token(f" {text}\n") == TOKEN


def test_a_token_shows_no_secret_where_it_is_printed_as_an_object() -> None:
    assert "secret" not in repr(TOKEN)
    assert repr(TOKEN.secret) not in repr(TOKEN)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "csi2.AAAA",
        "csi1.",
        "csi1.%%%%",
        format_token(TOKEN)[:-3],
        format_token(TOKEN) + "AAAA",
        "csi1." + "A" * 5_000,
        format_token(JoinToken(("wss://h:1",), bytes(31), "5f", bytes(32))),
        format_token(JoinToken(("wss://h:1",), bytes(32), "5f", bytes(31))),
        format_token(JoinToken(("wss://h:1",), bytes(32), "", bytes(32))),
        format_token(JoinToken((), bytes(32), "5f", bytes(32))),
        format_token(JoinToken(("ws://h:1",), bytes(32), "5f", bytes(32))),
        format_token(JoinToken(("unix:///x",), bytes(32), "5f", bytes(32))),
    ],
)
def test_a_damaged_token_is_refused_and_the_error_has_no_part_of_it(text: str) -> None:
    with pytest.raises(ValueError, match=r"token|must be") as error:
        parse_token(text)
    assert text[5:25] not in str(error.value) or len(text) <= 5


def test_the_generation_of_a_certificate_is_the_number_in_its_uri() -> None:
    assert generation_of(["csi-bridge:node:n1", "csi-bridge:generation:12"]) == 12
    assert generation_of(["csi-bridge:node:n1"]) == 0


@pytest.mark.parametrize("texts", [["0"], ["01"], ["-1"], [""], ["1", "2"], ["٣"], ["9" * 19], ["9" * 5_000], ["1 "]])
def test_a_certificate_with_another_text_as_its_generation_is_refused(texts: list[str]) -> None:
    with pytest.raises(ValueError, match="generation"):
        generation_of([f"csi-bridge:generation:{text}" for text in texts])


def test_the_present_key_signs_both_certificate_and_request() -> None:
    assert renewal_text(b"a", b"b") == (
        b"csi-bridge renewal 1\0" + hashlib.sha256(b"a").digest() + hashlib.sha256(b"b").digest()
    )
