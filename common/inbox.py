"""The inbox: the receiving half of a session. It puts messages together and keeps account of the credit.

A message costs credit from its first chunk on: of its stream, which may begin one while it has any, and of the session,
which must cover it whole. The credit comes back when the application has consumed the message, or at once if nobody
wants it any more; it is told to the peer by the quarter of a window, so that not every message costs a frame.
"""

from common.errors import RemoteProtocolError
from common.limits import MESSAGE_OVERHEAD_BYTES, Limits
from common.messages import Chunk, Credit
from common.outbox import Outbox
from common.stream_books import Stream


class Inbox:
    """What comes in, and what may still come.

    Attributes:
        granted: what we still take of all streams together.
        owed: consumed, and not yet given back.
    """

    __slots__ = ("_limits", "_outbox", "granted", "owed")

    def __init__(self, limits: Limits, outbox: Outbox) -> None:
        """An empty inbox that allows what `limits` says, and gives credit back through `outbox`."""
        self._limits = limits
        self._outbox = outbox
        self.granted = limits.session_window_bytes
        self.owed = 0

    def take(self, stream: Stream, chunk: Chunk) -> bytes | None:
        """A chunk came in. Returns the whole message with its last one, if it is still wanted.

        Raises:
            RemoteProtocolError: it is not what must come next, or no credit covers it.
        """
        size = len(chunk.payload)
        if stream.parts is None:
            self._begin(stream, size + chunk.left)
            if not chunk.left:  # the ordinary case: a message of one chunk
                return self._finish(stream, chunk.payload)
            stream.parts = bytearray()
        elif chunk.left != stream.left - size:
            raise RemoteProtocolError(f"Chunk: {chunk.left} bytes left where {stream.left - size} must be")
        if not size:
            raise RemoteProtocolError("Chunk: empty, with more of its message to come")
        stream.left = chunk.left
        if not stream.over:
            stream.parts += chunk.payload
        if chunk.left:
            return None
        whole, stream.parts = bytes(stream.parts), None
        return self._finish(stream, whole)

    def consumed(self, stream: Stream | None, size: int) -> None:
        """The application needs a message of `size` bytes no more; its stream may be gone by now."""
        cost = size + MESSAGE_OVERHEAD_BYTES
        if stream is not None and not stream.over:
            stream.owed += cost
            if stream.owed * 4 >= self._limits.stream_window_bytes:
                stream.granted += stream.owed
                self._outbox.put(Credit(stream.id, stream.owed))
                stream.owed = 0
        self._give_back(cost)

    def forget(self, stream: Stream) -> None:
        """A stream is gone, perhaps in the middle of a message."""
        if stream.cost:
            self._give_back(stream.cost)

    def _begin(self, stream: Stream, size: int) -> None:
        if size > self._limits.max_message_bytes:
            raise RemoteProtocolError(f"Chunk: a message of {size} bytes; {self._limits.max_message_bytes} were agreed")
        cost = size + MESSAGE_OVERHEAD_BYTES
        if stream.granted <= 0 or self.granted < cost:
            raise RemoteProtocolError("Chunk: a message that no credit covers")
        stream.granted -= cost
        self.granted -= cost
        stream.cost = cost

    def _finish(self, stream: Stream, message: bytes) -> bytes | None:
        cost, stream.cost = stream.cost, 0
        if stream.over or (stream.answered and not stream.mine):
            self._give_back(cost)
            return None
        return message

    def _give_back(self, cost: int) -> None:
        self.owed += cost
        if self.owed * 4 >= self._limits.session_window_bytes:
            self.granted += self.owed
            self._outbox.put(Credit(0, self.owed))
            self.owed = 0
