"""What teller and learner say, byte by byte, and what is refused."""

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import RemoteProtocolError
from common.objects.objects import Object, Ref, Stamp
from common.objects.sync_messages import (
    TYPES,
    Differ,
    Digest,
    Drop,
    Held,
    HeldAll,
    InStep,
    Put,
    Refused,
    Stored,
    SyncMessage,
    decode,
    drop,
    encode,
    fits,
    held,
    put,
)
from tests.kit.examples import examples

GOLDEN: list[tuple[SyncMessage, bytes]] = [
    (Digest(262_144, b"\x01\x02"), b"\x93\x00\xce\x00\x04\x00\x00\xc4\x02\x01\x02"),
    (Differ(b"\x07"), b"\x92\x01\xc4\x01\x07"),
    (Held("Pod", "ns", "web", "u1", "v1"), b"\x96\x02\xa3Pod\xa2ns\xa3web\xa2u1\xa2v1"),
    (HeldAll(), b"\x91\x03"),
    (Put(1, "Pod", "ns", "web", "u1", "v1", b"{}"), b"\x98\x04\x01\xa3Pod\xa2ns\xa3web\xa2u1\xa2v1\xc4\x02{}"),
    (Drop(2, "Pod", "ns", "web", "u1"), b"\x96\x05\x02\xa3Pod\xa2ns\xa3web\xa2u1"),
    (InStep(300), b"\x92\x06\xcd\x01\x2c"),
    (Stored(300), b"\x92\x07\xcd\x01\x2c"),
    (Refused(2, "no"), b"\x93\x08\x02\xa2no"),
]
"""A change here is a change that peers of another version see."""

WEB = Object(Ref("Pod", "ns", "web"), Stamp("u1", "v1"), b"{}")


def packed(*values: Any) -> bytes:
    return msgpack.packb(values, use_bin_type=True)


@pytest.mark.parametrize(("said", "data"), GOLDEN, ids=lambda value: type(value).__name__)
def test_a_sync_message_has_exactly_these_bytes_and_comes_back_from_them(said: SyncMessage, data: bytes) -> None:
    assert encode(said) == data
    assert decode(data) == [said]


def test_every_sync_message_has_golden_bytes_and_a_number_of_its_own() -> None:
    assert {type(said) for said, _ in GOLDEN} == set(SyncMessage.__args__)
    assert list(TYPES) == list(range(9))
    assert set(TYPES.values()) == {type(said) for said, _ in GOLDEN}


def test_they_follow_one_another() -> None:
    assert decode(b"".join(data for _, data in GOLDEN)) == [said for said, _ in GOLDEN]


def test_an_object_survives_its_way() -> None:
    (told, end, listed) = decode(
        encode(put(7, WEB)) + encode(drop(8, WEB.ref, "u1")) + encode(held(WEB.ref, WEB.stamp))
    )
    assert isinstance(told, Put)
    assert (told.seq, told.object) == (7, WEB)
    assert isinstance(end, Drop)
    assert (end.seq, end.ref, end.uid) == (8, WEB.ref, "u1")
    assert isinstance(listed, Held)
    assert (listed.ref, listed.stamp) == (WEB.ref, WEB.stamp)


@pytest.mark.parametrize(("said", "data"), GOLDEN, ids=lambda value: type(value).__name__)
def test_fields_that_we_do_not_know_are_ignored_at_the_end(said: SyncMessage, data: bytes) -> None:
    assert decode(packed(*msgpack.unpackb(data), "new", 7)) == [said]


def test_a_type_that_we_do_not_know_breaks_the_rules() -> None:
    with pytest.raises(RemoteProtocolError, match="a message of the unknown type 9"):
        decode(packed(9, 1))


@pytest.mark.parametrize(
    "ref", [Ref("", "", "web"), Ref("Pod", "", ""), Ref("Pod", "n\0s", "web"), Ref("Pod", "ns", "x" * 1_025)]
)
def test_a_key_that_no_object_has_breaks_the_rules(ref: Ref) -> None:
    for said in (put(1, Object(ref, WEB.stamp, b"")), drop(1, ref, "u"), held(ref, WEB.stamp)):
        (came,) = decode(encode(said))
        assert isinstance(came, Put | Drop | Held)
        with pytest.raises(RemoteProtocolError, match="an object"):
            _ = came.ref
    assert not fits(ref, WEB.stamp)


def test_what_fits_is_what_the_other_side_takes() -> None:
    assert fits(WEB.ref, WEB.stamp)
    assert not fits(Ref("Pod", "ns", "half a pair \ud800"), WEB.stamp)
    assert not fits(WEB.ref, Stamp("u", "v" * 1_025))


def test_a_refusal_never_shows_what_came() -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        decode(packed(4, 1, "Secret", "ns", "db", "u", "v", "s3cr3t"))
    assert str(caught.value) == "Put: body is a str, not bytes"


@given(st.binary(max_size=200))
@examples(1_000)
def test_any_bytes_are_sync_messages_or_refused_with_the_one_error(data: bytes) -> None:
    try:
        decode(data)
    except RemoteProtocolError:
        return
