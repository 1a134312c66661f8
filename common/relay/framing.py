"""gRPC message framing: one flag byte, four bytes of length, the message (gRPC over HTTP/2, Length-Prefixed-Message).

Pure: bytes in, messages out. The limit is checked on the length prefix, before anything of the message is kept.
"""

from common.relay.errors import MessageCompressed, MessageTooLarge

PREFIX_BYTES = 5
"""The flag byte and the length."""


def frame(message: bytes) -> bytes:
    """The bytes of one uncompressed message as they go into DATA frames."""
    return b"\0" + len(message).to_bytes(4, "big") + message


class Deframer:
    """Takes DATA payloads of one direction of one call, cut anywhere, and gives whole messages back."""

    __slots__ = ("_buffer", "_limit_bytes")

    def __init__(self, limit_bytes: int) -> None:
        """Make an empty one.

        Args:
            limit_bytes: the largest message accepted, without its prefix.
        """
        self._limit_bytes = limit_bytes
        self._buffer = bytearray()

    @property
    def pending_bytes(self) -> int:
        """How much of a message that is not whole yet is held. Not zero at the end of a stream: it was cut short."""
        return len(self._buffer)

    def feed(self, data: bytes | memoryview) -> None:
        """Add received bytes (they are copied); `pop` gives what became whole."""
        self._buffer += data

    def pop(self) -> bytes | None:
        """The next whole message, or None until more bytes come.

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
