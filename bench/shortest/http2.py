"""HTTP/2 (RFC 9113) as small gRPC messages need it: each message and each header block is one frame."""

import asyncio
import struct
from typing import Any

from jh2._hazmat import Decoder

DATA, HEADERS, SETTINGS, PING, WINDOW_UPDATE = 0, 1, 4, 6, 8
END_STREAM, ACK, END_HEADERS = 1, 1, 4
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

_HEAD = struct.Struct(">IBI")  # size and kind, flags, stream
_LARGEST_BYTES = 16_000
_WINDOW_BYTES, _FIRST_WINDOW_BYTES = 1 << 20, 65_535
_SETTINGS = struct.pack(">HIHIHI", 4, _WINDOW_BYTES, 6, 256 << 10, 2, 0)


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Return a frame."""
    return _HEAD.pack(len(payload) << 8 | kind, flags, stream) + payload


def literal(name: bytes, value: bytes) -> bytes:
    """Return a header field without indexing; both parts are shorter than 127 bytes (RFC 7541, 6.2.2)."""
    return b"".join((b"\0", bytes((len(name),)), name, bytes((len(value),)), value))


class Connection(asyncio.Protocol):
    """One end. Frames call its subclass: `got_headers` (stream, block, flags) and `got_message` (stream, message)."""

    awaits, begins_with = b"", PREFACE

    def __init__(self) -> None:
        self.decoder = Decoder(256 << 10)
        self._rest, self._skipped = b"", len(self.awaits)
        self._window, self._received = _FIRST_WINDOW_BYTES, 0

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        window = (_WINDOW_BYTES - _FIRST_WINDOW_BYTES).to_bytes(4)
        transport.write(self.begins_with + frame(SETTINGS, 0, 0, _SETTINGS) + frame(WINDOW_UPDATE, 0, 0, window))

    def data_received(self, data: bytes) -> None:
        data = self._rest + data if self._rest else data
        at, end, replies = self._skipped, len(data), []
        while end - at >= 9:
            size_and_kind, flags, stream = _HEAD.unpack_from(data, at)
            kind, start, stop = size_and_kind & 255, at + 9, at + 9 + (size_and_kind >> 8)
            if stop > end:
                break
            at = stop
            if kind == HEADERS:
                self.got_headers(stream, data[start:stop], flags)
            elif kind == DATA and stop > start:
                if int.from_bytes(data[start : start + 5]) != stop - start - 5:
                    raise SystemExit("a message is not in one frame")
                self._received += stop - start
                self.got_message(stream, data[start + 5 : stop])
            elif kind == WINDOW_UPDATE:
                self._window += 0 if stream else int.from_bytes(data[start:stop])
            elif kind in {PING, SETTINGS} and not flags & ACK:
                replies.append(frame(kind, ACK, 0, data[start:stop] if kind == PING else b""))
        self._skipped, self._rest = 0, data[at:]
        if self._received > _WINDOW_BYTES // 2:
            replies.append(frame(WINDOW_UPDATE, 0, 0, self._received.to_bytes(4)))
            self._received = 0
        if replies:
            self.transport.write(b"".join(replies))

    def send(self, stream: int, headers: bytes, body: bytes, flags: int, trailers: bytes = b"") -> None:
        """Send a request or an answer."""
        size = len(body) + 5
        self._window -= size
        if self._window < 0 or size > _LARGEST_BYTES:
            raise SystemExit("a message is larger than one frame, or than the peer's window")
        head = _HEAD.pack(len(headers) << 8 | HEADERS, END_HEADERS, stream)
        data = _HEAD.pack(size << 8 | DATA, flags, stream)
        self.transport.write(b"".join((head, headers, data, (size - 5).to_bytes(5), body, trailers)))
