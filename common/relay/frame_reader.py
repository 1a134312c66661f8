"""A frame reader: cuts received bytes into HTTP/2 frames (RFC 9113, section 4). No I/O.

It checks the preface, sizes and padding, and that no other frame interrupts a header block.
"""

import struct
from collections.abc import Iterator
from typing import TypeAlias

from common.relay import frames
from common.relay.errors import Http2Error
from common.relay.frames import FRAME_BYTES, ErrorCode

Frame: TypeAlias = tuple[int, int, int, memoryview, int]
"""Kind, flags, stream id, payload, and the size that flow control counts.

The payload has no padding. The payload of HEADERS is the whole header block, without a priority.
"""

MAX_BLOCK_BYTES = 256 << 10
"""The largest compressed header block. The decoder limits the decoded headers, too."""

_HEAD = struct.Struct(">IBI")

_SIZES = {frames.PRIORITY: 5, frames.RST_STREAM: 4, frames.PING: 8, frames.WINDOW_UPDATE: 4}
"""The kinds of frames whose payload has a fixed size (section 6)."""


class FrameReader:
    """Reads the frames of one connection."""

    __slots__ = ("_begun", "_block", "_preface", "_rest")

    def __init__(self, preface: bytes) -> None:
        """`preface` must come before the first frame: a client's, or nothing."""
        self._preface = preface
        self._rest = b""
        self._begun = False
        self._block: tuple[int, int, bytearray] | None = None

    def read(self, data: bytes) -> Iterator[Frame]:
        """The frames that are complete now. Exhaust the iterator before the next call.

        Raises:
            Http2Error: the bytes are not HTTP/2 frames.
        """
        if self._rest:
            data = self._rest + data
        at = self._check_preface(data) if self._preface else 0
        end = len(data)
        view = memoryview(data)
        while end - at >= frames.HEADER_BYTES:
            size_and_kind, flags, stream_id = _HEAD.unpack_from(data, at)
            size, kind = size_and_kind >> 8, size_and_kind & 0xFF
            if size > FRAME_BYTES or not self._begun:
                self._check_head(kind, flags, size, data)
            start = at + frames.HEADER_BYTES
            if end < start + size:
                break
            at = start + size
            if kind == frames.DATA and not flags & frames.PADDED and self._block is None:  # the most frequent
                yield kind, flags, stream_id & frames.MAX_STREAM_ID, view[start:at], size
                continue
            frame = self._checked(kind, flags, stream_id & frames.MAX_STREAM_ID, view[start:at])
            if frame is not None:
                yield frame
        self._rest = data[at:]

    def _check_preface(self, data: bytes) -> int:
        """Check the preface's part at the start of `data`. Returns the size of that part."""
        got = min(len(data), len(self._preface))
        if data[:got] != self._preface[:got]:
            raise Http2Error(f"it began with {data[:24]!r}, not with the HTTP/2 preface")
        self._preface = self._preface[got:]
        return got

    def _check_head(self, kind: int, flags: int, size: int, data: bytes) -> None:
        """Check that the first frame is SETTINGS (section 3.4) and no frame is too large."""
        if not self._begun and (kind != frames.SETTINGS or flags & frames.ACK or size > FRAME_BYTES):
            raise Http2Error(f"it began with {data[:24]!r}, not with HTTP/2 settings")
        if size > FRAME_BYTES:
            raise Http2Error(f"it sent a frame of {size} bytes", ErrorCode.FRAME_SIZE_ERROR)
        self._begun = True

    def _checked(self, kind: int, flags: int, stream_id: int, payload: memoryview) -> Frame | None:
        size = len(payload)
        if self._block is not None or kind == frames.CONTINUATION:
            return self._continued(kind, flags, stream_id, payload)
        if kind == frames.DATA:
            return kind, flags, stream_id, _unpadded(payload) if flags & frames.PADDED else payload, size
        if kind == frames.HEADERS:
            block = _block_of(flags, payload)
            if flags & frames.END_HEADERS:
                return kind, flags, stream_id, block, size
            self._block = (stream_id, flags, bytearray(block))
            return None
        if size != _SIZES.get(kind, size):
            raise Http2Error(f"it sent a frame of kind {kind} with {size} bytes", ErrorCode.FRAME_SIZE_ERROR)
        return kind, flags, stream_id, payload, size

    def _continued(self, kind: int, flags: int, stream_id: int, payload: memoryview) -> Frame | None:
        """Take the next part of a header block, which no other frame may interrupt (section 6.10)."""
        if self._block is None or kind != frames.CONTINUATION or self._block[0] != stream_id:
            raise Http2Error("it sent an interrupted header block")
        _, first_flags, block = self._block
        block += payload
        if len(block) > MAX_BLOCK_BYTES or not payload:  # empty ones could go on for ever
            raise Http2Error("it sent a header block without an end", ErrorCode.ENHANCE_YOUR_CALM)
        if not flags & frames.END_HEADERS:
            return None
        self._block = None
        return frames.HEADERS, first_flags, stream_id, memoryview(block), 0


def _unpadded(payload: memoryview) -> memoryview:
    """The payload of a frame with the PADDED flag, without its padding (section 6.1)."""
    if not payload or payload[0] >= len(payload):
        raise Http2Error("it sent a frame whose padding is longer than the frame")
    return payload[1 : len(payload) - payload[0]]


def _block_of(flags: int, payload: memoryview) -> memoryview:
    """The header block in a HEADERS frame (section 6.2)."""
    if flags & frames.PADDED:
        payload = _unpadded(payload)
    if not flags & frames.PRIORITY_FLAG:
        return payload
    if len(payload) < 5:
        raise Http2Error("it sent a HEADERS frame too short for its priority", ErrorCode.FRAME_SIZE_ERROR)
    return payload[5:]
