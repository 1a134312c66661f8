"""gRPC message framing: one flag byte, four bytes of length, the message (gRPC over HTTP/2, Length-Prefixed-Message).

Pure: bytes in, messages out. A message above the limit is refused at its length prefix.
"""

import struct

from common.relay.errors import MessageCompressed, MessageTooLarge

PREFIX_BYTES = 5
"""The flag byte and the length."""


pack_prefix = struct.Struct(">BI").pack


def frame(message: bytes) -> bytes:
    """The bytes of one uncompressed message as they go into DATA frames."""
    return pack_prefix(0, len(message)) + message


class Deframer:
    """Joins the DATA payloads of one direction of one call, cut anywhere, to whole messages."""

    __slots__ = ("_buffer", "_limit_bytes")

    def __init__(self, limit_bytes: int) -> None:
        """`limit_bytes` is the largest message, without its prefix."""
        self._limit_bytes = limit_bytes
        self._buffer = bytearray()

    @property
    def pending_bytes(self) -> int:
        """The received bytes of an incomplete message. If there are any at the end of a stream, it was cut short."""
        return len(self._buffer)

    def feed(self, data: bytes | memoryview) -> None:
        """Add a copy of received bytes; then `pop` the complete messages."""
        self._buffer += data

    def pop(self) -> bytes | None:
        """The next complete message, or None if more bytes are needed.

        Raises:
            MessageTooLarge: the next prefix announces more than the limit.
            MessageCompressed: the next message's flag is not 0.
        """
        buffer = self._buffer
        if len(buffer) < PREFIX_BYTES:
            return None
        if buffer[0]:
            raise MessageCompressed
        size = int.from_bytes(buffer[1:PREFIX_BYTES], "big")
        if size > self._limit_bytes:
            raise MessageTooLarge(size, self._limit_bytes)
        end = PREFIX_BYTES + size
        if len(buffer) < end:
            return None
        with memoryview(buffer) as view:
            message = bytes(view[PREFIX_BYTES:end])
        del buffer[:end]
        return message
