"""The outbox: the sending half of a session. It decides which frame leaves next.

Control frames leave first, then the streams take turns. Streams of one priority send one chunk in each turn; a lower
priority gets one turn after `_TURNS` of a higher one. A chunk that does not fit into a WebSocket message any more
begins the next one. So a stream waits for at most one chunk of each other stream.

Credit covers a whole message before its first chunk leaves, so that half-sent messages cannot block each other. A
stream may begin a message while its credit is above zero; the session's credit must cover it.
"""

from common.limits import MESSAGE_OVERHEAD_BYTES
from common.messages import Frame, Priority, encode, encode_chunk
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
        emptied: awaited streams whose last message was handed out since the session looked.
        rings: streams that wait for their turn, by priority. Lists, because a deque takes 600 bytes.
        waiting: the number of streams in `rings`.
        held: the stream whose chunk did not fit in its turn; it goes first in the next message.
    """

    __slots__ = (
        "_chunk_bytes", "_closed", "_control", "_control_is_urgent", "_turns", "control_bytes", "credit", "emptied",
        "held", "rings", "starved", "unopened", "waiting",
    )  # fmt: skip

    def __init__(self, chunk_bytes: int) -> None:
        self._chunk_bytes = chunk_bytes
        self._closed = False
        self._control: list[bytes] = []
        self._control_is_urgent = False
        self._turns = 0
        self.control_bytes = 0
        self.credit = 0
        self.unopened: dict[int, bytes] = {}
        self.starved: dict[int, Stream] = {}
        self.emptied: list[Stream] = []
        self.rings: list[list[Stream]] = [[] for _ in Priority]
        self.waiting = 0
        self.held: Stream | None = None

    @property
    def has_output(self) -> bool:
        """Whether `next_message()` may return bytes now."""
        return bool(self._control) or self.waiting > 0 or self.held is not None

    @property
    def is_urgent(self) -> bool:
        """Whether any of it should leave at once: all but what was put with `put_later()`."""
        return self._control_is_urgent or self.waiting > 0 or self.held is not None

    def put(self, frame: Frame) -> None:
        """Queue a control frame. After `close()` it is dropped, as for credit that comes too late."""
        self.put_later(encode(frame))
        self._control_is_urgent = True

    def put_later(self, data: bytes) -> None:
        """Queue an encoded control frame that may wait for the next one: an Ack, or Credit."""
        if not self._closed:
            self._control.append(data)
            self.control_bytes += len(data)

    def put_open(self, stream: Stream, data: bytes) -> None:
        """Queue the encoded open of a stream; it leaves in the stream's first turn, after those of older streams."""
        self.unopened[stream.id] = data
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
        self._control_is_urgent = True
        self.control_bytes = sum(map(len, self._control))
        for ring in self.rings:
            ring.clear()
        self.waiting = 0
        self.held = None
        self.starved.clear()
        self.unopened.clear()

    def next_message(self) -> bytes:
        """The next WebSocket message, or b"" when there is nothing to send now."""
        if not self.has_output:
            return b""
        out: list[bytes] = []
        size = self._take_control(out) if self._control else 0
        room = 2 * self._chunk_bytes  # the first stream may add a chunk to its other frames
        while size < self._chunk_bytes and (self.waiting or self.held is not None):
            stream = self._next_turn()
            added = self._take_turn(stream, out, room)
            if self.held is not None:
                break
            if added:
                size += added
                room = self._chunk_bytes - size
        return out[0] if len(out) == 1 else b"".join(out)

    def _take_control(self, out: list[bytes]) -> int:
        """Take the waiting control frames, up to about a chunk. Returns their size."""
        size, count = self.control_bytes, len(self._control)
        if size > self._chunk_bytes:
            size = count = 0
            while size < self._chunk_bytes:
                size += len(self._control[count])
                count += 1
        out += self._control[:count]
        del self._control[:count]
        self.control_bytes -= size
        self._control_is_urgent = self._control_is_urgent and self.control_bytes > 0
        return size

    def schedule(self, stream: Stream) -> None:
        """Let a stream with frames to send wait for its turn, unless it does already."""
        if not stream.queued:
            stream.queued = True
            self.rings[stream.priority].append(stream)
            self.waiting += 1

    def forget(self, stream: Stream) -> None:
        """Drop a stream that is gone at once: on a stalled link its turn may take long to come."""
        self.unopened.pop(stream.id, None)
        self.starved.pop(stream.id, None)
        if not stream.queued:
            return
        if stream is self.held:
            self.held = None
        else:
            self.rings[stream.priority].remove(stream)
            self.waiting -= 1

    def _next_turn(self) -> Stream:
        if self.held is not None:
            stream, self.held = self.held, None
        else:
            ring = self.rings[Priority.CALL]
            if len(ring) != self.waiting:  # else they are all calls: the ordinary case
                ring = self._next_ring()
            stream = ring.pop(0)
            self.waiting -= 1
        stream.queued = False
        return stream

    def _next_ring(self) -> list[Stream]:
        waiting = [ring for ring in self.rings if ring]
        if len(waiting) > 1:
            self._turns += 1
            if self._turns % (_TURNS + 1) == 0:
                return waiting[1 + self._turns // (_TURNS + 1) % (len(waiting) - 1)]
        return waiting[0]

    def _take_turn(self, stream: Stream, out: list[bytes], room: int) -> int:
        """Send the stream's open, one chunk and its end, if `room` allows. Returns the bytes added."""
        size = self._send_opens(stream.id, out, room) if stream.id in self.unopened else 0
        piece = min(len(stream.queue[0]) - stream.offset, self._chunk_bytes) if stream.queue else 0
        if stream.id in self.unopened or size + piece > room:
            self.held, stream.queued = stream, True
            return size
        if stream.queue:
            if not (stream.begun or self._cover(stream)):
                return size
            out.append(self._cut(stream, piece))
            size += len(out[-1])
        if stream.queue:
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

    def _cut(self, stream: Stream, size: int) -> bytes:
        """The next chunk of the stream's first message, with so many bytes of it."""
        message, offset = stream.queue[0], stream.offset
        left = len(message) - offset - size
        if not left:
            stream.begun, stream.offset = False, 0
            del stream.queue[0]
            if stream.is_awaited and not stream.queue:
                stream.is_awaited = False
                self.emptied.append(stream)
        else:
            stream.offset += size
        is_whole = size == len(message)
        return encode_chunk(stream.id, left, message if is_whole else memoryview(message)[offset : offset + size])

    def _cover(self, stream: Stream) -> bool:
        """Take the credit for the whole first message. If there is too little, let the stream wait for credit."""
        cost = len(stream.queue[0]) + MESSAGE_OVERHEAD_BYTES
        if stream.credit <= 0:
            return False
        if self.credit < cost:
            self.starved[stream.id] = stream
            return False
        stream.credit -= cost
        self.credit -= cost
        stream.begun = True
        return True
