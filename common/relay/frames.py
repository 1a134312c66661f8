"""Frames: HTTP/2's (RFC 9113, sections 4 and 6), and the prefix of a gRPC message in DATA, as bytes. Pure."""

import struct
from enum import IntEnum

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"  # a client's first bytes (section 3.4)
HEADER_BYTES = 9
FRAME_BYTES = 16_384  # the largest payload in both directions: SETTINGS_MAX_FRAME_SIZE keeps its default

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


# The nine bytes before a payload (section 4.1): its size << 8 | the kind, the flags, the stream's id.
pack_head = struct.Struct(">IBI").pack

PREFIX_BYTES = 5
# The bytes before a gRPC message: 1 if it is compressed, its size (gRPC over HTTP/2, Length-Prefixed-Message).
pack_prefix = struct.Struct(">BI").pack


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """One frame; stream 0 is the connection."""
    return pack_head(len(payload) << 8 | kind, flags, stream_id) + payload


def settings(values: dict[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", key, value) for key, value in values.items()))


SETTINGS_ACK = frame(SETTINGS, ACK, 0)


def window_update(stream_id: int, increment: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream_id, increment.to_bytes(4, "big"))


def rst_stream(stream_id: int, code: int) -> bytes:
    return frame(RST_STREAM, 0, stream_id, code.to_bytes(4, "big"))


def goaway(last_stream_id: int, code: int) -> bytes:
    return frame(GOAWAY, 0, 0, struct.pack(">II", last_stream_id, code))


def header_block(stream_id: int, block: bytes, *, end: bool) -> bytes:
    """A HEADERS frame and the CONTINUATION frames after it; `end` ends the stream."""
    parts = []
    for at in range(0, len(block), FRAME_BYTES):
        flags = END_STREAM if end and not at else 0
        if at + FRAME_BYTES >= len(block):
            flags |= END_HEADERS
        parts.append(frame(CONTINUATION if at else HEADERS, flags, stream_id, block[at : at + FRAME_BYTES]))
    return b"".join(parts)
