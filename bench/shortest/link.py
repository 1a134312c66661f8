"""A link: frames in WebSocket messages (RFC 6455), which the end that has dialled masks.

A frame's number is a call's time left in ms (0: without end), an answer's gRPC code, or bytes of credit.
"""

import asyncio
import os
import struct
from collections import deque
from typing import Any

from websockets.speedups import apply_mask

CALL, ANSWER, ACKNOWLEDGEMENT, CREDIT, HELLO = range(1, 6)

_FRAME = struct.Struct("!BIIIH")  # kind, stream, number, sizes of the body and of the heading, which comes before it
_WINDOW_BYTES, _LARGEST_BYTES, _FRAME_COST, _MOST_CALLS = 4 << 20, 4 << 20, 64, 1024
_BUFFER_BYTES = 65_536
_LATER_S = 0.01
_KEYS = 1024


class Link(asyncio.BufferedProtocol):
    """One end. Frames call its subclass: `called`, `answered` (stream, number, heading, body), `acknowledged`."""

    dials = False

    def __init__(self) -> None:
        self.calls: dict[int, Any] = {}
        self._next, self._last = 1 if self.dials else 2, 0
        self._buffer, self._rest = memoryview(bytearray(_BUFFER_BYTES)), b""
        self._credit, self._owed = _WINDOW_BYTES, 0
        self._later: list[bytes] = []
        self._waiting: deque[tuple[bytes, int]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._keys: list[bytes] = []

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def add(self, call: Any) -> int:
        """Return the stream of a call that this end opens."""
        stream = self._next
        self._next = stream + 2
        self.calls[stream] = call
        return stream

    def get_buffer(self, _size: int) -> memoryview:
        return self._buffer  # without one, uvloop allocates 256 KiB at each read from TLS

    def buffer_updated(self, count: int) -> None:
        data = self._rest + self._buffer[:count]
        at, end, is_masked = 0, len(data), not self.dials
        while end - at >= 14:  # no message is shorter than a masked header with a length of 8 bytes
            size, start = data[at + 1] & 127, at + 2
            if data[at] != 0x82 or data[at + 1] >> 7 != is_masked:
                raise SystemExit("a WebSocket frame is none of ours")
            if size > 125:
                start += 2 if size == 126 else 8
                size = int.from_bytes(data[at + 2 : start])
            start += 4 * is_masked
            stop = start + size
            if stop > end:
                break
            message = data[start:stop]
            self._read(apply_mask(message, data[start - 4 : start]) if is_masked else message, size)
            at = stop
        self._rest = data[at:]

    def _read(self, message: bytes, end: int) -> None:
        at = 0
        while at < end:
            kind, stream, number, size, heading_size = _FRAME.unpack_from(message, at)
            start = at + _FRAME.size
            body = start + heading_size
            at = body + size
            if kind == ACKNOWLEDGEMENT:
                self.acknowledged(stream)
            elif kind == CREDIT:
                self._credit += number
                while self._waiting and self._credit > 0:
                    self._write(*self._waiting.popleft())
            else:
                self._owed += size + _FRAME_COST
                if kind == ANSWER:
                    self.answered(stream, number, message[start:body], message[body:at])
                    continue
                if stream <= self._last or size > _LARGEST_BYTES or len(self.calls) >= _MOST_CALLS:
                    raise SystemExit("a call breaks the rules of the link")
                self._last = stream
                self.called(stream, number, message[start:body], message[body:at])
        if self._owed > _WINDOW_BYTES // 4:
            self.later(CREDIT, 0, self._owed)
            self._owed = 0

    def send(self, kind: int, stream: int, number: int, heading: bytes, body: bytes) -> None:
        """Send a frame, after those that wait for a write; it waits for credit."""
        frames = (*self._later, _FRAME.pack(kind, stream, number, len(body), len(heading)), heading, body)
        self._later.clear()
        message, cost = b"".join(frames), len(body) + _FRAME_COST
        if self._credit > 0 and not self._waiting:
            self._write(message, cost)
        else:
            self._waiting.append((message, cost))

    def later(self, kind: int, stream: int, number: int = 0) -> None:
        """Send a frame without a body with the next one, or soon."""
        self._later.append(_FRAME.pack(kind, stream, number, 0, 0))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_LATER_S, self._flush)

    def _flush(self) -> None:
        self._timer = None
        if self._later:
            self._write(b"".join(self._later), 0)
            self._later.clear()

    def _write(self, message: bytes, cost: int) -> None:
        self._credit -= cost
        size, mask_bit = len(message), 0x80 if self.dials else 0
        if size < 126:
            head = bytes((0x82, mask_bit | size))
        elif size < 65_536:
            head = bytes((0x82, mask_bit | 126, size >> 8, size & 255))
        else:
            head = bytes((0x82, mask_bit | 127)) + size.to_bytes(8)
        if self.dials:
            if not self._keys:
                block = os.urandom(4 * _KEYS)
                self._keys = [block[at : at + 4] for at in range(0, len(block), 4)]
            key = self._keys.pop()
            head, message = head + key, apply_mask(message, key)
        self._transport.write(head + message)
