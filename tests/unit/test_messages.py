"""The wire, byte by byte: what each frame looks like, and what is refused."""

import tracemalloc
from contextlib import suppress
from dataclasses import MISSING
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.codec import MAX_TEXT_BYTES
from common.errors import RemoteProtocolError
from common.messages import (
    TYPES,
    Ack,
    Cancel,
    Chunk,
    Credit,
    Drain,
    End,
    Frame,
    Goodbye,
    Hello,
    Kind,
    NotUnderstood,
    Open,
    Ping,
    Pong,
    Priority,
    decode,
    encode,
    encode_ack,
    encode_chunk,
    encode_credit,
    encode_end,
    encode_open,
    read,
)
from common.status import Status
from tests.kit.any_frame import any_frame
from tests.kit.examples import examples

HELLO = Hello(
    1,
    1,
    "edge",
    "n7",
    "i-1",
    3,
    "csi-bridge 0.1.0",
    ("a", "b"),
    4_194_304,
    262_144,
    67_108_864,
    1_024,
    "local",
    beside=True,
    controller_lease_s=60,
    mark="a 1 b",
    epoch=7,
)

GOLDEN: list[tuple[Frame, bytes]] = [
    (
        HELLO,
        (
            b"\xdc\x00\x12\x00"
            b"\x01\x01\xa4edge\xa2n7\xa3i-1\x03\xb0csi-bridge 0.1.0"
            b"\x92\xa1a\xa1b"
            b"\xce\x00\x40\x00\x00\xce\x00\x04\x00\x00\xce\x04\x00\x00\x00\xcd\x04\x00"
            b"\xa5local\xc3\x3c\xa5a 1 b\x07"
        ),
    ),
    (Goodbye("drained", "bye", 300), b"\x94\x01\xa7drained\xa3bye\xcd\x01\x2c"),
    (Drain("restart"), b"\x92\x02\xa7restart"),
    (Ping(7), b"\x93\x03\x07\xc2"),
    (Pong(300), b"\x92\x04\xcd\x01\x2c"),
    (
        Open(2, 1, 1, "dir.csi", "/csi.v1.Identity/Probe", "n7", "c-1", 10_000, 300),
        b"\x9c\x05\x02\x01\x01\xa7dir.csi\xb6/csi.v1.Identity/Probe\xa2n7\xa3c-1\xcd\x27\x10\xcd\x01\x2c\xc2\xc4\x00",
    ),
    (
        Open(2, 1, 1, "dir.csi", "/csi.v1.Identity/Probe", "n7", "c-1", 0, 0, has_first=True, first=b"abc"),
        b"\x9c\x05\x02\x01\x01\xa7dir.csi\xb6/csi.v1.Identity/Probe\xa2n7\xa3c-1\x00\x00\xc3\xc4\x03abc",
    ),
    (Chunk(2, 0, b"abc"), b"\x94\x06\x02\x00\xc4\x03abc"),
    (Chunk(2, 70_000, b""), b"\x94\x06\x02\xce\x00\x01\x11\x70\xc4\x00"),
    (Credit(0, 65_536), b"\x93\x07\x00\xce\x00\x01\x00\x00"),
    (End(2, 14, "gone", "edge"), b"\x97\x08\x02\x0e\xa4gone\xa4edge\xc2\xc4\x00"),
    (End(2, 0, "", "vendor", has_last=True, last=b"abc"), b"\x97\x08\x02\x00\xa0\xa6vendor\xc3\xc4\x03abc"),
    (Cancel(2), b"\x92\x09\x02"),
    (Ack(2, delivered=True), b"\x93\x0a\x02\xc3"),
    (Ack(2, delivered=False), b"\x93\x0a\x02\xc2"),
    (NotUnderstood(99), b"\x92\x0b\x63"),
]
"""The wire. A change here is a change that peers of another version see: think of WIRE_VERSION and of features."""

FRAMES = {type(frame): frame for frame, _ in reversed(GOLDEN)}


def named(frame: Frame) -> str:
    return type(frame).__name__


def packed(*values: Any) -> bytes:
    return msgpack.packb(values, use_bin_type=True)


def fields_of(frame: Frame) -> list[Any]:
    return list(msgpack.unpackb(encode(frame), use_list=False))


# ---- what is sent ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frame", "data"), GOLDEN, ids=lambda value: named(value) if not isinstance(value, bytes) else ""
)
def test_a_frame_has_exactly_these_bytes_and_comes_back_from_them(frame: Frame, data: bytes) -> None:
    assert encode(frame) == data
    assert decode(data) == [frame]


def test_each_frame_class_has_golden_bytes_and_a_type_number_of_its_own() -> None:
    assert set(FRAMES) == set(Frame.__args__) == set(TYPES.values())
    assert list(TYPES) == list(range(len(TYPES)))


def test_a_frame_has_the_same_bytes_on_the_short_way() -> None:
    assert encode_chunk(2, 70_000, memoryview(b"abcdef")[1:3]) == encode(Chunk(2, 70_000, b"bc"))
    heading = 2, Kind.CALL, Priority.SYNC, "d", "m", "n", "c", 7, 300
    assert encode_open(heading) == encode(Open(*heading))
    assert encode_open(heading, b"") == encode(Open(*heading, has_first=True))
    assert encode_credit(0, 65_536) == encode(Credit(0, 65_536))
    assert encode_ack(2, delivered=True) == encode(Ack(2, delivered=True))
    for text in ("", "gone", "half a pair: \ud800", "é" * MAX_TEXT_BYTES, "\udc80" * MAX_TEXT_BYTES):
        assert encode_end(2, Status(14, text, text)) == encode(End(2, 14, text, text))
        assert encode_end(2, Status(0, text, text), b"") == encode(End(2, 0, text, text, has_last=True))


def test_a_frame_is_read_to_its_fields_and_its_defaults() -> None:
    assert read(b"\x93\x01\xa7drained\xa3bye\x92\x63\x01\x92\x03\x07") == [
        (1, ("drained", "bye", 2**63 - 1)),
        (99, None),
        (3, (7, False)),
    ]


def test_a_message_is_read_right_after_one_that_was_refused() -> None:
    for data in (b"\x94\x06\x02\x00\xc4\x03ab", b"\xc1", b"\x92\x02\xa2\xff\xfe", b"\x92\x03", b"\x07"):
        assert refusal(data)
        assert decode(b"\x92\x03\x07") == [Ping(7)]


def test_the_memory_of_a_large_message_is_not_kept_after_it_was_read() -> None:
    data = encode(Chunk(2, 0, bytes(8_000_000)))
    decode(data[:-1] + b"x")
    tracemalloc.start()
    try:
        decode(data)
        assert tracemalloc.get_traced_memory()[0] < 500_000
    finally:
        tracemalloc.stop()


def test_frames_follow_one_another_in_a_message_which_may_be_empty() -> None:
    assert decode(b"".join(data for _, data in GOLDEN)) == [frame for frame, _ in GOLDEN]
    assert decode(b"") == []


def test_a_long_text_is_cut_between_two_characters() -> None:
    (frame,) = decode(encode(Goodbye("x", "é" * MAX_TEXT_BYTES)))
    assert isinstance(frame, Goodbye)
    assert frame.message == "é" * (MAX_TEXT_BYTES // 2)
    (frame,) = decode(encode(Goodbye("x", "€" * MAX_TEXT_BYTES)))
    assert isinstance(frame, Goodbye)
    assert len(frame.message.encode()) <= MAX_TEXT_BYTES < len(frame.message.encode()) + 3


@pytest.mark.parametrize("text", ["half a pair: \ud800", "\udc80" * MAX_TEXT_BYTES], ids=["short", "long"])
def test_a_text_that_is_not_unicode_is_sent_with_question_marks_because_an_answer_must_get_out(text: str) -> None:
    (frame,) = decode(encode(End(2, 13, text, "vendor")))
    assert isinstance(frame, End)
    assert frame.message == text.replace("\ud800", "?").replace("\udc80", "?")[:MAX_TEXT_BYTES]


@given(st.lists(any_frame(st.integers(0, 2**63 - 1), st.text(max_size=200)), max_size=6))
@examples(200)
def test_whatever_is_encoded_is_decoded_to_the_same(given_frames: list[Frame]) -> None:
    assert decode(b"".join(map(encode, given_frames))) == given_frames


# ---- what a newer peer may send --------------------------------------------------------------------------------------


@pytest.mark.parametrize("frame", FRAMES.values(), ids=named)
def test_fields_that_we_do_not_know_are_ignored_at_the_end_of_a_frame(frame: Frame) -> None:
    assert decode(packed(*fields_of(frame), "new", 7, None, [1, {"a": b"x"}])) == [frame]


@pytest.mark.parametrize("number", [len(TYPES), 127, 2**31, 2**63 - 1])
def test_a_frame_type_that_we_do_not_know_is_told_with_its_number(number: int) -> None:
    message = packed(number, "any", 1) + b"\x92\x03\x07"
    assert read(message) == [(number, None), (3, (7, False))]
    with pytest.raises(RemoteProtocolError, match=f"the unknown type {number}"):
        decode(message)


def test_a_field_that_an_older_peer_leaves_out_has_its_default() -> None:
    assert decode(b"\x93\x01\xa7drained\xa3bye") == [Goodbye("drained", "bye", 2**63 - 1)]
    assert decode(b"\x99\x05\x02\x01\x01\xa1d\xa1m\xa1n\xa1c\x07") == [Open(2, 1, 1, "d", "m", "n", "c", 7, epoch=0)]
    (hello,) = decode(packed(*fields_of(HELLO)[:-3]))
    assert isinstance(hello, Hello)
    assert (hello.controller_lease_s, hello.mark, hello.epoch) == (0, "", 0)


# ---- what is refused -------------------------------------------------------------------------------------------------


def refusal(data: bytes) -> str:
    with pytest.raises(RemoteProtocolError) as caught:
        decode(data)
    return str(caught.value)


@pytest.mark.parametrize(
    ("frame", "data"), GOLDEN, ids=lambda value: named(value) if not isinstance(value, bytes) else ""
)
def test_a_frame_cut_off_anywhere_is_refused(frame: Frame, data: bytes) -> None:
    whole = b"\x92\x03\x07"
    for end in range(1, len(data)):
        assert "bytes" in refusal(data[:end])
        assert "bytes" in refusal(whole + data[:end])


@pytest.mark.parametrize("frame", FRAMES.values(), ids=named)
def test_a_missing_field_is_named(frame: Frame) -> None:
    values = fields_of(frame)
    names = list(type(frame).__dataclass_fields__)
    required = [name for name in names if type(frame).__dataclass_fields__[name].default is MISSING]
    for count in range(1, len(required) + 1):
        assert refusal(packed(*values[:count])) == f"{named(frame)}: {names[count - 1]} is missing"


WRONG: list[Any] = [None, True, 1, -1, 1.5, "text", b"bytes", [], [1], {}, {"a": 1}, msgpack.ExtType(5, b"x"),
                    msgpack.Timestamp(1), 2**63, 2**64 - 1, -(2**63)]  # fmt: skip


@pytest.mark.parametrize("frame", FRAMES.values(), ids=named)
def test_a_field_of_a_wrong_type_or_range_is_named(frame: Frame) -> None:
    values = fields_of(frame)
    names = list(type(frame).__dataclass_fields__)
    for place, name in enumerate(names, 1):
        for wrong in WRONG:
            right_type = type(wrong) is type(values[place]) or (type(wrong), type(values[place])) == (list, tuple)
            if right_type and wrong not in (-1, 2**63, 2**64 - 1, -(2**63), [1]):
                continue
            text = refusal(packed(*values[:place], wrong, *values[place + 1 :]))
            assert text.startswith(f"{named(frame)}: {name} ")


@pytest.mark.parametrize(
    "data",
    [
        packed(),
        packed("3", 7),
        packed(True, 7),
        packed(None),
        packed(3.0, 7),
        packed([3], 7),
        packed(-1, 7),
        packed(2**63),
        msgpack.packb(7),
        msgpack.packb("text"),
        msgpack.packb({3: 7}),
        msgpack.packb(None),
        msgpack.packb(msgpack.ExtType(3, b"\x07")),
    ],
)
def test_what_is_not_an_array_with_a_type_number_is_refused(data: bytes) -> None:
    assert refusal(data).startswith("a frame is not an array that starts with its type number")


GARBAGE = {
    "a reserved byte": b"\xc1",
    "an unhashable key": b"\x81\x80\x00",
    "text that is not UTF-8": b"\x92\x02\xa2\xff\xfe",
    "a surrogate in UTF-8": b"\x92\x02\xa3\xed\xa0\x80",
    "an impossible timestamp": b"\x92\x03\xd7\xff" + b"\xff" * 8,
    "an HTTP answer": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "zeros": bytes(100),
    "deep arrays": b"\x91" * 100_000,
    "deep maps": b"\x81" * 100_000,
    "deep maps with keys": b"\x81\x00" * 100_000,
    "an array of 4 G items": b"\xdd\xff\xff\xff\xff\x03",
    "a map of 4 G pairs": b"\xdf\xff\xff\xff\xff\x03",
    "bytes of 4 GB": b"\x94\x06\x02\x00\xc6\xff\xff\xff\xff",
    "text of 4 GB": b"\x92\x02\xdb\xff\xff\xff\xff",
    "an extension of 4 GB": b"\xc9\xff\xff\xff\xff\x05",
    "text above the limit": packed(2, "x" * (MAX_TEXT_BYTES + 1)),
    "more features than anybody has": packed(0, 1, 1, "edge", "n", "i", 1, "s", ["f"] * 300, 1, 1, 1, 1),
}


@pytest.mark.parametrize("data", GARBAGE.values(), ids=GARBAGE)
def test_garbage_is_refused_with_the_one_error(data: bytes) -> None:
    assert refusal(data)
    assert refusal(b"\x92\x03\x07" + data)


def test_a_refusal_never_shows_what_came() -> None:
    secret = "s3cr3t"
    assert secret not in refusal(packed(6, 2, 0, secret))
    assert secret not in refusal(packed(2, secret.encode()))
    assert secret not in refusal(packed(secret))
    assert secret not in refusal(packed(2, secret)[:-1])


def test_nested_arrays_that_promise_much_cost_no_memory() -> None:
    size = 1_048_576  # the largest WebSocket message that the transport takes
    bomb = b"\xdd\x00\x00\xff\xff" * 1_000
    bomb += bytes(size - len(bomb))
    tracemalloc.start()
    try:
        refusal(bomb)
        assert tracemalloc.get_traced_memory()[1] < 4 * size
    finally:
        tracemalloc.stop()


@given(st.data())
@examples(250)
def test_any_damaged_frame_is_a_frame_or_refused_with_the_one_error(data: st.DataObject) -> None:
    golden = bytearray(data.draw(st.sampled_from([golden for _, golden in GOLDEN])))
    for _ in range(data.draw(st.integers(1, 3))):
        golden[data.draw(st.integers(0, len(golden) - 1))] = data.draw(st.integers(0, 255))
    with suppress(RemoteProtocolError):
        decode(bytes(golden))


def test_a_message_of_very_many_frames_is_refused_before_it_costs_much() -> None:
    assert len(decode(encode(Ping(1)) * 16_384)) == 16_384
    with pytest.raises(RemoteProtocolError, match=r"a message of more than 16384 frames"):
        decode(encode(Ping(1)) * 16_385)
