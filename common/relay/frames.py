"""HTTP/2 frames (RFC 9113, sections 4 and 6): their numbers, and functions that write them. Pure."""

import struct
from enum import IntEnum

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""A client's first bytes (section 3.4)."""

HEADER_BYTES = 9

FRAME_BYTES = 16_384
"""The largest payload in both directions: SETTINGS_MAX_FRAME_SIZE keeps its default."""

DEFAULT_WINDOW_BYTES = 65_535
MAX_WINDOW_BYTES = 2**31 - 1
MAX_STREAM_ID = 2**31 - 1

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)

END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
PRIORITY_FLAG = 0x20


class Setting(IntEnum):
    """Parameters of SETTINGS (section 6.5.2)."""

    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


class ErrorCode(IntEnum):
    """Error codes of RST_STREAM and GOAWAY (section 7)."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    INTERNAL_ERROR = 0x2
    FLOW_CONTROL_ERROR = 0x3
    SETTINGS_TIMEOUT = 0x4
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    CONNECT_ERROR = 0xA
    ENHANCE_YOUR_CALM = 0xB
    INADEQUATE_SECURITY = 0xC
    HTTP_1_1_REQUIRED = 0xD


_ERROR_NAMES = {code.value: code.name for code in ErrorCode}


def error_name(code: int) -> str:
    """`INTERNAL_ERROR` for 2; the number for a code that the RFC does not name."""
    return _ERROR_NAMES.get(code) or str(code)


pack_head = struct.Struct(">IBI").pack
"""`header` without a Python call: the size << 8 | kind, the flags, the stream's id."""

_PAIR = struct.Struct(">HI")
_TWO = struct.Struct(">II")
_WORD = struct.Struct(">I")


def header(kind: int, flags: int, stream_id: int, size: int) -> bytes:
    """The nine bytes before a payload of `size` bytes (section 4.1)."""
    return pack_head(size << 8 | kind, flags, stream_id)


def settings(values: dict[int, int]) -> bytes:
    """A SETTINGS frame."""
    payload = b"".join(_PAIR.pack(key, value) for key, value in values.items())
    return header(SETTINGS, 0, 0, len(payload)) + payload


SETTINGS_ACK = header(SETTINGS, ACK, 0, 0)


def window_update(stream_id: int, increment: int) -> bytes:
    """A WINDOW_UPDATE frame; stream 0 is the connection."""
    return header(WINDOW_UPDATE, 0, stream_id, 4) + _WORD.pack(increment)


def rst_stream(stream_id: int, code: int) -> bytes:
    """A RST_STREAM frame."""
    return header(RST_STREAM, 0, stream_id, 4) + _WORD.pack(code)


def ping(data: bytes, *, ack: bool = False) -> bytes:
    """A PING frame with its eight bytes."""
    return header(PING, ACK if ack else 0, 0, 8) + data


def goaway(last_stream_id: int, code: int) -> bytes:
    """A GOAWAY frame."""
    return header(GOAWAY, 0, 0, 8) + _TWO.pack(last_stream_id, code)


def header_block(stream_id: int, block: bytes, *, end: bool) -> bytes:
    """A HEADERS frame and the CONTINUATION frames after it; `end` ends the stream."""
    flags = END_STREAM if end else 0
    if len(block) <= FRAME_BYTES:
        return header(HEADERS, flags | END_HEADERS, stream_id, len(block)) + block
    parts = [header(HEADERS, flags, stream_id, FRAME_BYTES), block[:FRAME_BYTES]]
    for at in range(FRAME_BYTES, len(block), FRAME_BYTES):
        piece = block[at : at + FRAME_BYTES]
        last = END_HEADERS if at + FRAME_BYTES >= len(block) else 0
        parts += [header(CONTINUATION, last, stream_id, len(piece)), piece]
    return b"".join(parts)
