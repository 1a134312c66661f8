"""An object's body, read from the wire or from the disk."""

import json

import pytest

from common.objects.objects import Object, Ref, Stamp, encode_body


def read(body: bytes) -> object:
    return Object(Ref("Pod", "default", "web"), Stamp("u", "1"), body).read()


@pytest.mark.parametrize("text", ["web", "\u00e9", "\U0001f600", "\\ud800 in words"])
def test_a_body_is_read_as_it_was_encoded(text: str) -> None:
    assert read(encode_body({"a": text})) == read(json.dumps({"a": text}).encode()) == {"a": text}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"\xff",
        b'{"a":"\\ud800"}',
        b'{"\\uDFFF":1}',
        b'{"a":' * 20_000 + b"{}" + b"}" * 20_000,
        b'{"a":' + b"[" * 20_000 + b"]" * 20_000 + b"}",
    ],
    ids=["nothing", "a list", "no UTF-8", "half a pair", "half a pair as a key", "deep objects", "deep lists"],
)
def test_a_body_that_no_api_server_would_take_is_a_value_error(body: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # json and codecs have their own texts
        read(body)
