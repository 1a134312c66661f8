"""The inbox: the receiving half of a session. It joins chunks to messages and counts the peer's credit.

A message costs credit of its stream and of the session from its first chunk on. A stream may begin a message while it
has any credit; the session's credit must cover the whole message. The session gives the credit back when the
application has consumed the message, or at once if the stream is over. It tells the peer after each quarter of a
window, so that most messages cost no extra frame.
"""

from common.errors import RemoteProtocolError
from common.messages import encode_credit
from common.session.limits import MESSAGE_OVERHEAD_BYTES, Limits
from common.session.outbox import Outbox
from common.session.stream_books import StreamBooks


class Inbox:
    """Joins the chunks of all streams and counts their credit."""

    __slots__ = ("_limits", "_outbox", "_session_quarter", "_stream_quarter", "_streams", "granted", "owed")

    def __init__(self, limits: Limits, outbox: Outbox, streams: dict[int, StreamBooks]) -> None:
        self._limits = limits
        self._streams = streams
        self._outbox = outbox
        self._stream_quarter = limits.stream_window_bytes / 4
        self._session_quarter = limits.session_window_bytes / 4
        self.granted = limits.session_window_bytes  # the bytes that the peer may still send on all streams together
        self.owed = 0  # the consumed bytes that were not yet given back

    def take(self, stream: StreamBooks, left: int, payload: bytes) -> bytes | None:
        """Take a chunk, after which `left` bytes of its message follow in later ones.

        Returns the whole message with its last chunk, unless the stream is over. Raises RemoteProtocolError: the chunk
        is not the next one of its message, or no credit covers it.
        """
        size = len(payload)
        if stream.parts is None:
            self.charge(stream, size + left, "Chunk")
            stream.cost = size + left + MESSAGE_OVERHEAD_BYTES
            if not left:  # the ordinary case: a message of one chunk
                return self._finish(stream, payload)
            stream.parts = bytearray()
        elif left != stream.left - size:
            raise RemoteProtocolError(f"Chunk: {left} bytes left where {stream.left - size} must be")
        if not size:
            raise RemoteProtocolError("Chunk: empty, with more of its message to come")
        stream.left = left
        if not stream.is_abandoned:
            stream.parts += payload
        if left:
            return None
        whole = bytes(stream.parts)
        stream.parts = None
        return self._finish(stream, whole)

    def charge(self, stream: StreamBooks, size: int, what: str) -> None:
        """Count a message of `size` bytes that begins in the frame `what`. Raises RemoteProtocolError, as `take`."""
        cost = size + MESSAGE_OVERHEAD_BYTES
        if size > self._limits.max_message_bytes:
            raise RemoteProtocolError(
                f"{what}: a message of {size} bytes; {self._limits.max_message_bytes} were agreed"
            )
        if stream.granted <= 0 or self.granted < cost:
            raise RemoteProtocolError(f"{what}: a message that no credit covers")
        stream.granted -= cost
        self.granted -= cost

    def consumed(self, stream_id: int, size: int) -> None:
        """Give back the credit of a message of `size` bytes, also if its stream is over or gone."""
        cost = size + MESSAGE_OVERHEAD_BYTES
        stream = self._streams.get(stream_id)
        if stream is not None and not stream.is_abandoned:
            stream.owed += cost
            if stream.owed >= self._stream_quarter:
                stream.granted += stream.owed
                self._outbox.put_later(encode_credit(stream.id, stream.owed))
                stream.owed = 0
        self.owed += cost
        if self.owed >= self._session_quarter:
            self._give_back()

    def forget(self, stream: StreamBooks) -> None:
        """Give back the credit of a stream's unfinished message: the stream is gone."""
        self.owed += stream.cost
        self._give_back()

    def _finish(self, stream: StreamBooks, message: bytes) -> bytes | None:
        cost = stream.cost
        stream.cost = 0
        if stream.is_abandoned or (stream.answered and not stream.mine):
            self.owed += cost
            self._give_back()
            return None
        return message

    def _give_back(self) -> None:
        if self.owed >= self._session_quarter:
            self.granted += self.owed
            self._outbox.put_later(encode_credit(0, self.owed))
            self.owed = 0
