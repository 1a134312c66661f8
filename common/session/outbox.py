"""The outbox: the sending half of a session. It decides which frame leaves next.

Control frames leave first, then the streams take turns. Streams of one priority send one chunk in each turn; a lower
priority gets one turn after `_TURNS` of a higher one. A chunk that does not fit into a WebSocket message any more
begins the next one. So a stream waits for at most one chunk of each other stream.

Credit covers a whole message before its first chunk leaves, so that half-sent messages cannot block each other. A
stream may begin a message while its credit is above zero; the session's credit must cover it.

A message of one chunk leaves within the stream's `Open` or `End` if it is next to it. Mostly nothing waits, and then
the session writes such a frame itself (`Session.start`, `Session.end`).
"""

from collections.abc import Callable
from typing import Protocol

from common.messages import Frame, Heading, Priority, encode, encode_chunk, encode_end, encode_open
from common.session.limits import MESSAGE_OVERHEAD_BYTES
from common.session.stream_books import StreamBooks

_TURNS = 4  # a waiting lower priority gets one turn after so many turns of a higher one


class Writer(Protocol):
    """A session's way out (`common.links.transport.WebSocket`)."""

    @property
    def is_free(self) -> bool:
        """Whether `write` may be called: the socket is open, and its buffer has room."""

    def write(self, data: bytes) -> None:
        """Write one message."""

    def flush_soon(self) -> None:
        """Write what `Session.to_send()` returns, at the end of this turn of the loop, when the socket has room."""

    def flush_later(self) -> None:
        """The same within `LATER_S`, or with the next write."""


class Outbox:
    """The frames and messages of all streams that wait to be sent."""

    __slots__ = (
        "_chunk_bytes", "_closed", "_turns", "control", "control_bytes", "control_is_urgent", "credit", "emptied",
        "held", "rings", "starved", "unopened", "waiting", "writer",
    )  # fmt: skip

    def __init__(self, chunk_bytes: int, writer: Writer) -> None:
        self.writer = writer  # is told when there is something to send
        self._chunk_bytes = chunk_bytes
        self._closed = False
        self.control: list[bytes] = []
        self.control_is_urgent = False  # a control frame should leave at once: not all were put with `put_later()`
        self._turns = 0
        self.control_bytes = 0  # the size of the waiting control frames
        self.credit = 0  # the bytes that the peer still accepts on all streams together
        # the headings of opens, oldest first; no frame of these streams was sent.
        self.unopened: dict[int, Heading] = {}
        self.starved: dict[int, StreamBooks] = {}  # streams whose next message waits for the session's credit
        # awaited streams whose last message is in the message that the session hands out. Nothing overtakes it.
        self.emptied: list[StreamBooks] = []
        # streams that wait for their turn, by priority. Lists, because a deque takes 600 bytes.
        self.rings: list[list[StreamBooks]] = [[] for _ in Priority]
        self.waiting = 0  # the number of streams in `rings`
        # the stream whose chunk did not fit in its turn; it goes first in the next message.
        self.held: StreamBooks | None = None

    @property
    def has_output(self) -> bool:
        return bool(self.control) or self.waiting > 0 or self.held is not None

    def put(self, frame: Frame) -> None:
        """Queue a control frame. After `close()` it is dropped, as for credit that comes too late."""
        if not self._closed:
            self.control.append(data := encode(frame))
            self.control_bytes += len(data)
            self.control_is_urgent = True
            self.writer.flush_soon()

    def put_later(self, data: bytes) -> None:
        """Queue an encoded control frame that may wait for the next one: an Ack, or Credit."""
        if not self._closed:
            self.control.append(data)
            self.control_bytes += len(data)
            self.writer.flush_later()

    def may_leave(self, stream: StreamBooks, message: bytes | None, may_send: Callable[[], bool] | None) -> bool:
        """Whether a frame of a stream, with this whole message, may leave now: nothing waits. It takes the credit.

        `may_send`: see `Session.may_send`.
        """
        if self.waiting or self.held is not None or self.control_is_urgent or self.emptied or not self.writer.is_free:
            return False
        if may_send is not None and not may_send():
            return False
        if message is None:
            return True
        size = len(message)
        cost = size + MESSAGE_OVERHEAD_BYTES
        if size > self._chunk_bytes or stream.credit <= 0 or self.credit < cost:
            return False
        stream.credit -= cost
        self.credit -= cost
        return True

    def put_open(self, stream: StreamBooks, heading: Heading) -> None:
        """Queue the open of a stream; it leaves in the stream's first turn, after those of older streams."""
        self.unopened[stream.id] = heading
        self.schedule(stream)

    def with_control(self, data: bytes) -> bytes:
        """The waiting control frames, which are not urgent, and these bytes after them, as one message."""
        data = b"".join((*self.control, data))
        self.control.clear()
        self.control_bytes = 0
        return data

    def grant(self, amount: int) -> None:
        self.credit += amount
        starved = self.starved
        self.starved = {}
        for stream in starved.values():
            self.schedule(stream)

    def close(self, last: Frame | None, *, after_control: bool) -> None:
        """Drop all waiting frames and queue `last`. With `after_control`, keep the waiting control frames."""
        self._closed = True
        control = self.control if after_control else []
        self.control = [*control, encode(last)] if last is not None else control
        self.control_is_urgent = True
        self.control_bytes = sum(map(len, self.control))
        for ring in self.rings:
            ring.clear()
        self.waiting = 0
        self.held = None
        self.starved.clear()
        self.unopened.clear()
        self.writer.flush_soon()

    def next_message(self) -> bytes:
        """The next WebSocket message, or b"" when there is nothing to send now."""
        out: list[bytes] = []
        size = self._take_control(out) if self.control else 0
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
        # Take the waiting control frames, up to about a chunk. Returns their size.
        size = self.control_bytes
        count = len(self.control)
        if size > self._chunk_bytes:
            size = count = 0
            while size < self._chunk_bytes:
                size += len(self.control[count])
                count += 1
        out += self.control[:count]
        del self.control[:count]
        self.control_bytes -= size
        self.control_is_urgent = self.control_is_urgent and self.control_bytes > 0
        return size

    def schedule(self, stream: StreamBooks) -> None:
        """Let a stream with frames to send wait for its turn, unless it does already."""
        if not stream.queued:
            stream.queued = True
            self.rings[stream.priority].append(stream)
            self.waiting += 1
            self.writer.flush_soon()

    def forget(self, stream: StreamBooks) -> None:
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
        # `queued` stays set: nothing may schedule it any more

    def _next_turn(self) -> StreamBooks:
        if self.held is not None:
            stream = self.held
            self.held = None
        else:
            ring = self.rings[Priority.CALL]
            if len(ring) != self.waiting:  # else they are all calls: the ordinary case
                ring = self._next_ring()
            stream = ring.pop(0)
            self.waiting -= 1
        stream.queued = False
        return stream

    def _next_ring(self) -> list[StreamBooks]:
        waiting = [ring for ring in self.rings if ring]
        if len(waiting) > 1:
            self._turns += 1
            if self._turns % (_TURNS + 1) == 0:
                return waiting[1 + self._turns // (_TURNS + 1) % (len(waiting) - 1)]
        return waiting[0]

    def _take_turn(self, stream: StreamBooks, out: list[bytes], room: int) -> int:
        # Send the stream's open, one chunk and its end, if `room` allows. Returns the bytes added.
        before = len(out)
        size = self._send_older_opens(stream.id, out, room) if stream.id in self.unopened else 0
        piece = min(len(stream.queue[0]) - stream.offset, self._chunk_bytes) if stream.queue else 0
        if size + piece > room:
            self.held = stream
            stream.queued = True
            return size
        heading = self.unopened.pop(stream.id, None)
        is_covered = bool(stream.queue) and (stream.begun or self._cover(stream))
        is_whole = is_covered and piece == len(stream.queue[0])
        if heading is not None:
            out.append(encode_open(heading, self._pop(stream) if is_whole else None))
        elif is_whole and stream.end is not None and len(stream.queue) == 1:
            out.append(encode_end(stream.id, stream.end, self._pop(stream)))
            stream.end = None
            return size + len(out[-1])
        if is_covered and not (is_whole and heading is not None):
            out.append(self._cut(stream, piece))
        if not stream.queue:
            if stream.end is not None:
                out.append(encode_end(stream.id, stream.end))
                stream.end = None
        elif is_covered:  # else credit schedules it
            self.schedule(stream)
        return sum(map(len, out[before:]))

    def _send_older_opens(self, stream_id: int, out: list[bytes], room: int) -> int:
        # On the wire, ids only grow. Returns the bytes added; more than `room` if there was no room for all.
        size = 0
        while (older := next(iter(self.unopened))) != stream_id:
            if size > room:
                return size
            out.append(encode_open(self.unopened.pop(older)))
            size += len(out[-1])
        return size

    def _pop(self, stream: StreamBooks) -> bytes:
        stream.begun = False
        stream.offset = 0
        message = stream.queue.pop(0)
        if stream.wants_writable and not stream.queue:
            stream.wants_writable = False
            self.emptied.append(stream)
        return message

    def _cut(self, stream: StreamBooks, size: int) -> bytes:
        message = stream.queue[0]
        offset = stream.offset
        left = len(message) - offset - size
        if left:
            stream.offset += size
        else:
            self._pop(stream)
        is_whole = size == len(message)
        return encode_chunk(stream.id, left, message if is_whole else memoryview(message)[offset : offset + size])

    def _cover(self, stream: StreamBooks) -> bool:
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
