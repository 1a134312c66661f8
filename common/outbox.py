"""The outbox: the sending half of a session. It decides which frame leaves next.

Control frames leave first, then the streams take turns. Streams of one priority send one chunk in each turn; a lower
priority gets one turn after `_TURNS` of a higher one. A chunk that does not fit into a WebSocket message any more
begins the next one. So a stream waits for at most one chunk of each other stream.

Credit covers a whole message before its first chunk leaves, so that half-sent messages cannot block each other. A
stream may begin a message while its credit is above zero; the session's credit must cover it.
"""

from collections import deque

from common.limits import MESSAGE_OVERHEAD_BYTES
from common.messages import Frame, Open, Priority, encode, encode_chunk
from common.stream_books import Stream

_TURNS = 4
"""A waiting lower priority gets one turn after so many turns of a higher one."""


class Outbox:
    """The frames and messages of all streams that wait to be sent.

    Attributes:
        credit: the bytes that the peer still accepts on all streams together.
        control_bytes: the size of the waiting control frames.
        unopened: encoded opens, oldest first; no frame of these streams was sent.
        starved: streams whose next message waits for the session's credit.
        emptied: streams whose last message was handed out since the session looked.
        rings: streams that wait for their turn, by priority.
        waiting: the number of streams in `rings`.
        held: the stream whose chunk did not fit in its turn; it goes first in the next message.
    """

    __slots__ = (
        "_chunk_bytes", "_closed", "_control", "_turns", "control_bytes", "credit", "emptied", "held", "rings",
        "starved", "unopened", "waiting",
    )  # fmt: skip

    def __init__(self, chunk_bytes: int) -> None:
        """An empty outbox that cuts messages into chunks of at most `chunk_bytes`."""
        self._chunk_bytes = chunk_bytes
        self._closed = False
        self._control: list[bytes] = []
        self._turns = 0
        self.control_bytes = 0
        self.credit = 0
        self.unopened: dict[int, bytes] = {}
        self.starved: dict[int, Stream] = {}
        self.emptied: list[Stream] = []
        self.rings: dict[int, deque[Stream]] = {}
        self.waiting = 0
        self.held: Stream | None = None

    @property
    def has_output(self) -> bool:
        """Whether `next_message()` may return bytes now."""
        return bool(self._control) or self.waiting > 0 or self.held is not None

    def put(self, frame: Frame) -> None:
        """Queue a control frame. After `close()` it is dropped, as for credit that comes too late."""
        if self._closed:
            return
        data = encode(frame)
        self._control.append(data)
        self.control_bytes += len(data)

    def put_open(self, stream: Stream, frame: Open) -> None:
        """Queue the open of a stream; it leaves in the stream's first turn, after those of older streams."""
        self.unopened[stream.id] = encode(frame)
        self.schedule(stream)

    def grant(self, amount: int) -> None:
        """Add credit that the peer gave back for all streams together."""
        self.credit += amount
        starved, self.starved = self.starved, {}
        for stream in starved.values():
            self.schedule(stream)

    def close(self, last: Frame | None, *, after_control: bool) -> None:
        """Drop all waiting frames and queue `last`. With `after_control`, keep the waiting control frames."""
        self._closed = True
        control = self._control if after_control else []
        self._control = [*control, encode(last)] if last is not None else control
        self.control_bytes = sum(map(len, self._control))
        self.rings.clear()
        self.waiting = 0
        self.held = None
        self.starved.clear()
        self.unopened.clear()

    def next_message(self) -> bytes:
        """The next WebSocket message, or b"" when there is nothing to send now."""
        out: list[bytes] = []
        size = 0
        control = self._control
        if control:
            if self.control_bytes <= self._chunk_bytes:
                self._control, out = [], control
                size, self.control_bytes = self.control_bytes, 0
            else:
                size = self._some_control(out)
        room = 2 * self._chunk_bytes  # the first stream may add a chunk to its other frames
        while size < self._chunk_bytes:
            stream = self._next_turn()
            if stream is None:
                break
            added = self._take_turn(stream, out, room)
            if self.held is not None:
                break
            if added:
                size += added
                room = self._chunk_bytes - size
        return b"".join(out)

    def _some_control(self, out: list[bytes]) -> int:
        size = count = 0
        for data in self._control:
            out.append(data)
            size += len(data)
            count += 1
            if size >= self._chunk_bytes:
                break
        del self._control[:count]
        self.control_bytes -= size
        return size

    def schedule(self, stream: Stream) -> None:
        """Let a stream with frames to send wait for its turn, unless it does already."""
        if not stream.queued:
            stream.queued = True
            self._ring(stream).append(stream)
            self.waiting += 1

    def _ring(self, stream: Stream) -> deque[Stream]:
        priority = min(stream.priority, Priority.SYNC)
        ring = self.rings.get(priority)
        if ring is None:
            ring = self.rings[priority] = deque()
        return ring

    def forget(self, stream: Stream) -> None:
        """Drop a stream that is gone at once: on a stalled link its turn may take long to come."""
        self.unopened.pop(stream.id, None)
        self.starved.pop(stream.id, None)
        if stream is self.held:
            self.held = None
        elif stream.queued:
            self._ring(stream).remove(stream)
            self.waiting -= 1

    def _next_turn(self) -> Stream | None:
        if self.held is not None:
            stream, self.held = self.held, None
            stream.queued = False
            return stream
        if not self.waiting:
            return None
        waiting = [ring for _, ring in sorted(self.rings.items()) if ring]
        ring = waiting[0]
        if len(waiting) > 1:
            self._turns += 1
            if self._turns % (_TURNS + 1) == 0:
                ring = waiting[1 + self._turns // (_TURNS + 1) % (len(waiting) - 1)]
        stream = ring.popleft()
        stream.queued = False
        self.waiting -= 1
        return stream

    def _take_turn(self, stream: Stream, out: list[bytes], room: int) -> int:
        """Send the stream's open, one chunk and its end, if `room` allows. Returns the bytes added."""
        size = self._send_opens(stream.id, out, room)
        if stream.id in self.unopened or size + self._piece_bytes(stream) > room:
            self.held, stream.queued = stream, True
            return size
        if stream.message is None and stream.queue:
            if not self._cover(stream, len(stream.queue[0])):
                return size
            stream.message = stream.queue.popleft()
        if stream.message is not None:
            out.append(self._cut(stream))
            size += len(out[-1])
        if stream.message is not None or stream.queue:
            self.schedule(stream)
        elif stream.end is not None:
            out.append(stream.end)
            size += len(stream.end)
            stream.end = None
        return size

    def _send_opens(self, number: int, out: list[bytes], room: int) -> int:
        """Send a stream's waiting open, after those of all older streams: on the wire, ids only grow.

        Stops when `room` is full. Returns the bytes added.
        """
        size = 0
        while number in self.unopened and (not size or size < room):
            older = next(iter(self.unopened))
            out.append(self.unopened.pop(older))
            size += len(out[-1])
        return size

    def _piece_bytes(self, stream: Stream) -> int:
        """The size of the stream's next chunk."""
        if stream.message is not None:
            return min(len(stream.message) - stream.offset, self._chunk_bytes)
        return min(len(stream.queue[0]), self._chunk_bytes) if stream.queue else 0

    def _cut(self, stream: Stream) -> bytes:
        message = stream.message
        assert message is not None
        piece = message[stream.offset : stream.offset + self._chunk_bytes]
        stream.offset += len(piece)
        left = len(message) - stream.offset
        if not left:
            stream.message, stream.offset = None, 0
            stream.unsent -= 1
            if not stream.unsent:
                self.emptied.append(stream)
        return encode_chunk(stream.id, left, piece)

    def _cover(self, stream: Stream, size: int) -> bool:
        """Take the credit for a whole message. If there is too little, let the stream wait for credit."""
        cost = size + MESSAGE_OVERHEAD_BYTES
        if stream.credit <= 0:
            return False
        if self.credit < cost:
            self.starved[stream.id] = stream
            return False
        stream.credit -= cost
        self.credit -= cost
        return True
