"""A WebSocket frame of one whole binary message (RFC 6455, 5.2): a session sends all its messages so.

`websockets` parses and builds every other frame. Its parser, for all that RFC 6455 allows, takes ten times as long.
"""

import os
import struct
from collections.abc import Iterator

try:
    from websockets.speedups import apply_mask
except ImportError:  # a build of `websockets` without a C compiler
    from websockets.utils import apply_mask

_BINARY = 0x82  # the first byte: the final frame of a message, which is binary

_MASKED = 0x80

_SHORT = struct.Struct("!BB")
_MEDIUM = struct.Struct("!BBH")
_LONG = struct.Struct("!BBQ")


class FrameReader:
    """Takes the messages out of received bytes."""

    __slots__ = ("_largest", "_mask_bit", "_mask_bytes", "is_foreign", "rest")

    def __init__(self, *, is_masked: bool, largest: int) -> None:
        """A client masks its frames. A message above `largest` bytes is foreign."""
        self._mask_bit, self._mask_bytes = (_MASKED, 4) if is_masked else (0, 0)
        self._largest = largest
        self.is_foreign = False  # another frame has come: `websockets` reads `rest` and all bytes after it
        self.rest = bytearray()

    def read(self, data: bytes) -> list[bytes]:
        """The messages that are whole with these bytes. The others stay in `rest`."""
        source: bytes | bytearray = data
        if self.rest:
            self.rest += data
            source = self.rest
        messages: list[bytes] = []
        place = 0
        end = len(source)
        while end - place >= 2:
            size = source[place + 1] ^ self._mask_bit
            start = place + 2
            self.is_foreign = source[place] != _BINARY or size >= _MASKED
            if size in {126, 127}:  # the size follows, in 2 or 8 bytes
                start += 2 if size == 126 else 8
                size = int.from_bytes(source[place + 2 : start]) if end >= start else 0
            self.is_foreign = self.is_foreign or size > self._largest
            if self.is_foreign:
                break
            start += self._mask_bytes
            stop = start + size
            if end < stop:
                break
            message = source[start:stop]
            messages.append(apply_mask(message, source[start - 4 : start]) if self._mask_bytes else bytes(message))
            place = stop
        if source is self.rest:
            del self.rest[:place]
        elif place < end:
            self.rest += data[place:]
        return messages


def frame(message: bytes, *, is_masked: bool) -> bytes:
    """A message as a frame. A client's frames are masked, with a key that nobody can guess (RFC 6455, 5.3)."""
    size = len(message)
    mask_bit = _MASKED if is_masked else 0
    if size < 126:
        head = _SHORT.pack(_BINARY, mask_bit | size)
    elif size < 65_536:
        head = _MEDIUM.pack(_BINARY, mask_bit | 126, size)
    else:
        head = _LONG.pack(_BINARY, mask_bit | 127, size)
    if not is_masked:
        return head + message
    key = next(_KEYS)
    return b"".join((head, key, apply_mask(message, key)))


def _keys() -> Iterator[bytes]:
    while True:
        block = os.urandom(_KEY_BLOCK_BYTES)
        for place in range(0, _KEY_BLOCK_BYTES, 4):
            yield block[place : place + 4]


_KEY_BLOCK_BYTES = 4_096  # the randomness of so many bytes takes one system call

_KEYS = _keys()
