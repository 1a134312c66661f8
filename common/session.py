"""A session: the protocol of one connection between two hops, without I/O.

The transport gives it bytes and the time (`now`). It gives the application events and the transport bytes to send.

It imports no socket, loop, clock, random or log; the import linter checks that. So the tests need only two sessions and
the bytes between them. `common.link` gives it a loop, `common.transport` a WebSocket.

The life of a session:

1. The side that made the connection, the dialler, sends its `Hello`. The acceptor answers with its own `Hello`, or with
   a `Goodbye` and the reason.
2. Both sides open streams.
3. A side that shuts down may send `Drain`. It then sends its `Goodbye` by itself when no stream is left.
4. A `Goodbye` ends the session. If the connection breaks, the session ends without one.

The life of a stream is the same for a CSI call, a report and a watch:

    opener                                    acceptor
      Open ──────────────────────────────────▶ Opened
      Chunk… (messages) ─────────────────────▶ Message…
      Message… ◀────────────────────── Chunk… (messages)
      Ended ◀─────────────────────────────── End            exactly one
      Ack ───────────────────────────────────▶ Released       exactly one, after the End

* The opener may `Cancel`. The acceptor still answers with its `End`: no chunk follows it, so that both sides count the
  same credit.
* For the opener a stream ends once: `Ended` with the acceptor's status, or `Failed` with `CallTimeout` or
  `TunnelClosed`. A stream never outlives its session, and a session never uses an id twice. So no answer can reach
  another call.
* For the acceptor a stream also ends once: `Released(delivered)`. Before that, `Cancelled` may tell it that the opener
  no longer waits. The session then drops further messages and the end.
* `TunnelClosed.sent` is False only if the acceptor surely has not served the stream: the transport got no frame of it,
  or the peer's goodbye says that the peer has not seen it.

Sending: when the socket has room, the transport pulls one WebSocket message with `to_send()`. `common.outbox` fills it.

Credit is the number of bytes that a side may still send, per stream and for the session. A message takes credit, and
the receiver gives it back when its application has consumed the message. So a peer can make this side hold at most the
session window; of one stream, its window and one message.
"""

import heapq
from collections.abc import Callable
from dataclasses import replace
from enum import Enum, auto
from typing import Any, ClassVar

from common.codec import UnknownFrame
from common.errors import (
    CallTimeout,
    LocalProtocolError,
    MessageTooLarge,
    Overloaded,
    RemoteProtocolError,
    TunnelClosed,
)
from common.events import (
    Cancelled,
    Closed,
    Ended,
    Event,
    Failed,
    HelloReceived,
    Message,
    Opened,
    PeerDraining,
    Released,
    Welcomed,
    Writable,
)
from common.inbox import Inbox
from common.limits import Limits, flaw
from common.messages import (
    Ack,
    Cancel,
    Chunk,
    Credit,
    Drain,
    End,
    Frame,
    Goodbye,
    Hello,
    NotUnderstood,
    Open,
    Ping,
    Pong,
    Priority,
    Reason,
    decode,
    encode,
)
from common.outbox import Outbox
from common.status import LARGEST_CODE, Code, Status
from common.stream_books import Stream

_MAX_NAME_CHARS = 1_024
"""The longest driver, method, node and call id in an Open. A session holds them until the Ack, and no credit limits
them."""

_MAX_CONTROL_BYTES = 1_048_576
"""The most bytes of waiting control frames: a peer that asks for answers and reads none could fill the memory with
them."""


_SLOWEST_BYTES_S = 256
"""The rate below which a message under way is no sign of life: a thirtieth of 64 kbit/s, for links that often stall."""


class State(Enum):
    """A session's state. Only an acceptor is `DECIDING`: it has received a hello and not yet answered it."""

    GREETING = auto()
    DECIDING = auto()
    OPEN = auto()
    CLOSED = auto()


class Session:
    """One side's state of a connection, by the rules in the module's docstring.

    Methods collect their events for `events()` and their bytes for `to_send()`. After `Closed`, the session ignores all
    input and sends at most its goodbye.
    """

    __slots__ = (
        "_deadlines",
        "_dialler",
        "_draining",
        "_events",
        "_greet_by",
        "_heard",
        "_inbox",
        "_last_peer_stream",
        "_limits",
        "_mine_open",
        "_next_stream",
        "_outbox",
        "_partial_bytes",
        "_partial_since",
        "_peer_draining",
        "_pinged",
        "_pings",
        "_streams",
        "_theirs_open",
        "hello",
        "peer",
        "said_goodbye",
        "state",
    )  # fmt: skip

    def __init__(self, hello: Hello, *, dialler: bool, limits: Limits, now: float) -> None:
        """A new session.

        Args:
            hello: this side's hello; its limits are overwritten with those of `limits`.
            dialler: whether this side made the connection.
            limits: this side's limits.
            now: this side's monotonic clock, seconds.
        """
        self.hello = replace(
            hello,
            max_message_bytes=limits.max_message_bytes,
            stream_window_bytes=limits.stream_window_bytes,
            session_window_bytes=limits.session_window_bytes,
            max_streams=limits.max_streams,
        )
        self.peer: Hello | None = None
        self.said_goodbye = False
        """Whether this side ended the session with a goodbye, which `to_send()` returns last."""
        self.state = State.GREETING
        self._dialler = dialler
        self._limits = limits
        self._heard = self._partial_since = now
        self._partial_bytes = 0
        self._greet_by = now + limits.hello_timeout_s
        self._pinged = False
        self._pings = 0
        self._draining: str | None = None
        self._peer_draining = False
        self._events: list[Event] = []
        self._outbox = Outbox(limits.chunk_bytes)
        self._streams: dict[int, Stream] = {}
        self._mine_open = 0
        self._theirs_open = 0
        self._next_stream = 1 if dialler else 2
        self._last_peer_stream = 0
        self._deadlines: list[tuple[float, int]] = []
        self._inbox = Inbox(limits, self._outbox)
        if dialler:
            self._outbox.put(self.hello)

    # ---- the application's side --------------------------------------------------------------------------------------

    def events(self) -> list[Event]:
        """The events since the last call, oldest first."""
        found = self._events
        if found:
            self._events = []
        return found

    def accept(self) -> None:
        """Answer the dialler's hello with this side's hello: the session is open."""
        if self.state is not State.DECIDING:
            raise LocalProtocolError(f"accept() in state {self.state.name}")
        self.state = State.OPEN
        self._outbox.put(self.hello)

    def refuse(self, reason: str, message: str) -> None:
        """Answer the dialler's hello with a goodbye: the session is over."""
        self.goodbye(reason, message)

    def open(
        self,
        kind: int,
        *,
        now: float,
        priority: int = Priority.CALL,
        subject: str = "",
        method: str = "",
        node: str = "",
        call: str = "",
        timeout_s: float | None = None,
    ) -> int:
        """Open a stream and return its id. `timeout_s` is the caller's remaining time, which the `Open` tells the peer.

        Raises:
            TunnelClosed: the session is not open (`sent` is False).
            MessageTooLarge: a name is longer than the peer accepts.
            Overloaded: the peer accepts no more streams at once.
        """
        if self.state is not State.OPEN or self.peer is None:
            raise TunnelClosed(sent=False, why="it is not open")
        if self._peer_draining:
            raise TunnelClosed(sent=False, why="the peer is shutting down")
        if self._draining is not None:
            raise TunnelClosed(sent=False, why="this side is shutting down")
        if (size := max(len(subject), len(method), len(node), len(call))) > _MAX_NAME_CHARS:
            raise MessageTooLarge(size, _MAX_NAME_CHARS, "the name of a method, driver or node", "CSI's are shorter")
        if self._mine_open >= self.peer.max_streams:
            raise Overloaded(self.peer.role, self.peer.max_streams, "--max-calls")
        number = self._next_stream
        self._next_stream += 2
        stream = Stream(
            number,
            mine=True,
            priority=priority,
            credit=self.peer.stream_window_bytes,
            granted=self._limits.stream_window_bytes,
        )
        self._streams[number] = stream
        self._mine_open += 1
        timeout_ms = 0
        if timeout_s is not None:
            timeout_ms = max(1, round(timeout_s * 1000))
            stream.deadline = now + timeout_s
            self._watch(stream.deadline, number)
        self._outbox.put_open(stream, Open(number, kind, priority, subject, method, node, call, timeout_ms))
        return number

    def send(self, number: int, payload: bytes) -> None:
        """Queue a whole message. It is dropped if the stream has ended, or if its opener no longer waits.

        Raises:
            MessageTooLarge: the peer does not accept messages of this size. The stream goes on.
        """
        stream = self._streams.get(number)
        if stream is None or stream.over or stream.answered or self.peer is None:
            return
        if len(payload) > self.peer.max_message_bytes:
            raise MessageTooLarge(len(payload), self.peer.max_message_bytes, "a CSI message")
        stream.queue.append(memoryview(payload))
        stream.unsent += 1
        self._outbox.schedule(stream)

    def unsent(self, number: int) -> int:
        """How many messages of the stream wait for the transport. If one waits, a sender should wait for `Writable`."""
        stream = self._streams.get(number)
        return stream.unsent if stream is not None else 0

    def end(self, number: int, status: Status) -> None:
        """End an accepted stream, after its queued messages. Does nothing if the opener has cancelled it.

        Raises:
            LocalProtocolError: gRPC cannot carry the code. The stream goes on.
        """
        stream = self._streams.get(number)
        if stream is None or stream.answered:
            return
        if stream.mine:
            raise LocalProtocolError("only the acceptor of a stream ends it")
        if not 0 <= status.code <= LARGEST_CODE:
            raise LocalProtocolError(f"a status code is 0 to {LARGEST_CODE}, not {status.code}")
        stream.answered = True
        # The End is never a control frame, even if no message waits: `stream.end` must show whether it has left, so
        # that an Ack that comes too early is found (`_on_ack`).
        stream.end = encode(End(number, status.code, status.message, status.origin))
        self._outbox.schedule(stream)

    def cancel(self, number: int) -> None:
        """Stop waiting for a stream that this side opened. No event of it follows."""
        stream = self._streams.get(number)
        if stream is None or stream.over:
            return
        if not stream.mine:
            raise LocalProtocolError("only the opener of a stream cancels it")
        self._abandon(stream)

    def acknowledge(self, number: int, *, delivered: bool) -> None:
        """Release a stream that this side opened, after `Ended`. `delivered`: the answer has reached the caller."""
        stream = self._streams.get(number)
        if stream is None:
            return
        if not (stream.mine and stream.answered):
            raise LocalProtocolError("only the opener acknowledges a stream, and only after its end")
        self._outbox.put(Ack(number, delivered))
        self._forget(stream)

    def consumed(self, number: int, size: int) -> None:
        """Give back the credit of a received message of `size` bytes, also if its stream is over by now."""
        self._inbox.consumed(self._streams.get(number), size)

    def drain(self, message: str) -> None:
        """Open no more streams, ask the peer to open none, and send the goodbye when no stream is left."""
        if self.state is State.OPEN and self._draining is None:
            self._draining = message
            self._outbox.put(Drain(message))
            self._end_drained()

    def goodbye(self, reason: str, message: str) -> None:
        """End the session with a `Goodbye`, after the waiting control frames, which may contain the last acks."""
        self._close(reason, message, say=True, after_control=True)

    @property
    def has_output(self) -> bool:
        """Whether `to_send()` may return bytes now."""
        return self._outbox.has_output

    @property
    def open_streams(self) -> int:
        """Streams of either side that are not yet released."""
        return len(self._streams)

    # ---- the transport's side ----------------------------------------------------------------------------------------

    def receive(self, data: bytes, now: float) -> None:
        """Take one WebSocket message. If it breaks a rule, the session ends with a goodbye that names the rule."""
        if self.state is State.CLOSED:
            return
        self._heard = now
        self._partial_bytes = 0
        self._pinged = False
        try:
            for frame in decode(data):
                self._handle(frame, now)
        except RemoteProtocolError as error:
            self._close(Reason.PROTOCOL_ERROR, str(error), say=True)

    def _handle(self, frame: Frame | UnknownFrame, now: float) -> None:
        if self.state is State.CLOSED:  # an earlier frame of the same message ended it
            return
        handler = self._HANDLERS.get((self.state, type(frame)))
        if handler is None:
            raise RemoteProtocolError(f"a {type(frame).__name__} frame in state {self.state.name}")
        handler(self, frame, now)

    def heard(self, now: float, size: int) -> None:
        """Note that `size` bytes came in, before it is clear whether they end a message.

        Inside a message a peer has to send `_SLOWEST_BYTES_S`. From the message's first byte on, each byte is a sign of
        life for its part of a second only.
        """
        if not self._partial_bytes:
            self._partial_since = now
        self._partial_bytes += size
        self._heard = max(self._heard, min(now, self._partial_since + self._partial_bytes / _SLOWEST_BYTES_S))
        if now < self._heard + self._limits.keepalive_s:
            self._pinged = False

    def lost(self, message: str) -> None:
        """End the session, because the transport is gone."""
        self._close(Reason.LINK_LOST, message)

    def next_tick(self) -> float | None:
        """The time of the next `tick()`, in this side's clock; None when the session is over."""
        if self.state is State.CLOSED:
            return None
        if self.state is not State.OPEN:
            return self._greet_by
        due = self._heard + self._limits.keepalive_s * (2 if self._pinged else 1)
        return min(due, self._deadlines[0][0]) if self._deadlines else due

    def tick(self, now: float) -> None:
        """Fail expired streams, ping the peer, and end the session if the peer is silent or its hello is missing."""
        if self.state is State.CLOSED:
            return
        if self.state is not State.OPEN:
            if now >= self._greet_by:
                what = "hello" if self.state is State.GREETING else "answer to the hello"
                self.goodbye(Reason.HELLO_TIMEOUT, f"no {what} within {self._limits.hello_timeout_s:g} s")
            return
        while self._deadlines and self._deadlines[0][0] <= now:
            self._expire(heapq.heappop(self._deadlines)[1], now)
        # The same sums as in next_tick(): with differences, rounding could make the tick find nothing due.
        if now >= self._heard + self._limits.keepalive_s * 2:
            why = f"nothing was heard for {2 * self._limits.keepalive_s:g} s"
            if self._partial_bytes:
                why = f"{self._partial_bytes} bytes of a message in {now - self._partial_since:.3g} s are too few"
            self._close(Reason.PEER_SILENT, why)
        elif now >= self._heard + self._limits.keepalive_s and not self._pinged:
            self._pinged = True
            self._pings += 1
            self._outbox.put(Ping(self._pings))

    def to_send(self) -> bytes:
        """The next WebSocket message, or b"" when there is nothing to send now."""
        data = self._outbox.next_message()
        if self._outbox.emptied:
            emptied, self._outbox.emptied = self._outbox.emptied, []
            self._events += [Writable(stream.id) for stream in emptied if not stream.over]
        return data

    # ---- receiving ---------------------------------------------------------------------------------------------------

    def _on_hello(self, frame: Hello, _now: float) -> None:
        mine = self.hello
        if min(mine.version, frame.version) < max(mine.oldest, frame.oldest):
            raise RemoteProtocolError(
                f"{frame.role or 'peer'} {frame.name} ({frame.software}) speaks wire version {frame.version} (oldest "
                f"{frame.oldest}), this side ({mine.software}) {mine.version} (oldest {mine.oldest}); upgrade the older"
            )
        if why := flaw(frame):
            raise RemoteProtocolError(f"Hello: {why}")
        self.peer = frame
        self._outbox.credit = frame.session_window_bytes
        if self._dialler:
            self.state = State.OPEN
            self._events.append(Welcomed(frame))
        else:
            self.state = State.DECIDING
            self._events.append(HelloReceived(frame))

    def _on_goodbye(self, frame: Goodbye, _now: float) -> None:
        self._close(frame.reason, frame.message, served=frame.served)

    def _on_drain(self, frame: Drain, _now: float) -> None:
        if self._peer_draining:
            raise RemoteProtocolError("Drain: twice")
        self._peer_draining = True
        self._events.append(PeerDraining(frame.message))

    def _on_ping(self, frame: Ping, _now: float) -> None:
        self._answer(Pong(frame.number))

    def _on_pong(self, frame: Pong, _now: float) -> None:
        """Nothing to do: `heard` has noted the bytes."""

    def _on_unknown(self, frame: UnknownFrame, _now: float) -> None:
        self._answer(NotUnderstood(frame.type))

    def _on_not_understood(self, frame: NotUnderstood, _now: float) -> None:
        """Nothing to do: an older peer skipped a frame. No side relies on a frame that the peer may not know."""

    def _on_open(self, frame: Open, now: float) -> None:
        if max(len(frame.subject), len(frame.method), len(frame.node), len(frame.call)) > _MAX_NAME_CHARS:
            raise RemoteProtocolError(f"Open: a name of more than {_MAX_NAME_CHARS} characters")
        if frame.stream % 2 != (0 if self._dialler else 1) or frame.stream <= self._last_peer_stream:
            raise RemoteProtocolError(f"Open: stream id {frame.stream} is not a new one of the peer's")
        if self._theirs_open >= self._limits.max_streams:
            raise RemoteProtocolError(f"Open: more than {self._limits.max_streams} streams at once")
        assert self.peer is not None
        self._last_peer_stream = frame.stream
        self._theirs_open += 1
        self._streams[frame.stream] = Stream(
            frame.stream,
            mine=False,
            priority=frame.priority,
            credit=self.peer.stream_window_bytes,
            granted=self._limits.stream_window_bytes,
        )
        deadline = now + frame.timeout_ms / 1000 if frame.timeout_ms else None
        self._events.append(Opened(frame.stream, frame, deadline))

    def _on_chunk(self, frame: Chunk, _now: float) -> None:
        stream = self._known(frame.stream, "Chunk")
        if stream.mine and stream.answered:
            raise RemoteProtocolError("Chunk: after the end of its stream")
        message = self._inbox.take(stream, frame)
        if message is not None:
            self._events.append(Message(stream.id, message))

    def _on_credit(self, frame: Credit, _now: float) -> None:
        if frame.stream == 0:
            self._outbox.grant(frame.amount)
            return
        credited = self._streams.get(frame.stream)
        if credited is not None:  # an accepted stream may end while its credit is on the way
            credited.credit += frame.amount
            if credited.queue or credited.message is not None:
                self._outbox.schedule(credited)

    def _on_end(self, frame: End, _now: float) -> None:
        stream = self._known(frame.stream, "End")
        if not stream.mine or stream.answered:
            raise RemoteProtocolError("End: of a stream that is not the peer's to end")
        if frame.code > LARGEST_CODE:
            raise RemoteProtocolError(f"End: a status code is 0 to {LARGEST_CODE}, not {frame.code}")
        stream.answered = True
        if stream.over:
            self._outbox.put(Ack(stream.id, delivered=False))
            self._forget(stream)
            return
        if stream.parts is not None:
            raise RemoteProtocolError("End: in the middle of a message")
        self._stop_sending(stream)
        self._events.append(Ended(stream.id, Status(frame.code, frame.message, frame.origin)))

    def _on_cancel(self, frame: Cancel, _now: float) -> None:
        stream = self._known(frame.stream, "Cancel")
        if stream.mine:
            raise RemoteProtocolError("Cancel: of a stream that the peer did not open")
        if stream.over:
            raise RemoteProtocolError("Cancel: twice")
        end_is_sent = stream.answered and stream.end is None
        if not stream.answered:
            self._events.append(Cancelled(stream.id))
        self._stop_sending(stream)
        stream.over = stream.answered = True
        if not end_is_sent:
            self._answer(End(stream.id, Code.CANCELLED, "", ""))

    def _on_ack(self, frame: Ack, _now: float) -> None:
        stream = self._known(frame.stream, "Ack")
        if stream.mine or not stream.answered or stream.end is not None:
            raise RemoteProtocolError("Ack: of a stream that has not ended")
        self._events.append(Released(stream.id, frame.delivered))
        self._forget(stream)

    def _known(self, number: int, what: str) -> Stream:
        stream = self._streams.get(number)
        if stream is None or number in self._outbox.unopened:  # its Open has not left, so the peer cannot know it
            raise RemoteProtocolError(f"{what}: stream {number} is not open")
        return stream

    def _answer(self, frame: Frame) -> None:
        self._outbox.put(frame)
        if self._outbox.control_bytes > _MAX_CONTROL_BYTES:
            raise RemoteProtocolError("it asks for answers and does not read them")

    # ---- ends --------------------------------------------------------------------------------------------------------

    def _watch(self, deadline: float, number: int) -> None:
        if len(self._deadlines) > 64 + 2 * len(self._streams):  # most belong to streams that have ended in time
            live = [entry for entry in self._deadlines if entry[1] in self._streams]
            heapq.heapify(live)
            self._deadlines = live
        heapq.heappush(self._deadlines, (deadline, number))

    def _expire(self, number: int, _now: float) -> None:
        stream = self._streams.get(number)
        if stream is None or stream.over or stream.answered:
            return
        self._events.append(Failed(number, CallTimeout()))
        self._abandon(stream)

    def _abandon(self, stream: Stream) -> None:
        """Stop waiting for a stream of this side: ack its end, forget it if its Open has not left, else cancel it."""
        stream.over = True
        self._stop_sending(stream)
        if stream.answered:
            self._outbox.put(Ack(stream.id, delivered=False))
            self._forget(stream)
        elif stream.id in self._outbox.unopened:
            self._forget(stream)
        else:
            self._outbox.put(Cancel(stream.id))

    def _stop_sending(self, stream: Stream) -> None:
        """Drop the stream's unsent messages and end. The peer gives back the credit of a half-sent message."""
        stream.queue.clear()
        stream.message, stream.offset = None, 0
        stream.end = None
        stream.unsent = 0

    def _forget(self, stream: Stream) -> None:
        del self._streams[stream.id]
        if stream.mine:
            self._mine_open -= 1
        else:
            self._theirs_open -= 1
        self._outbox.forget(stream)
        self._inbox.forget(stream)
        self._end_drained()

    def _end_drained(self) -> None:
        """End a draining session when no stream is left. It ends at once, so that no later stream is opened in it."""
        if self._draining is not None and not self._streams:
            self.goodbye(Reason.DRAINED, f"{self._draining}, and every call is finished")

    def _close(
        self, reason: str, message: str, *, say: bool = False, after_control: bool = False, served: int | None = None
    ) -> None:
        """End the session, unless it has ended already.

        Args:
            reason: a `Reason`, or the text that the peer sent as one.
            message: a sentence for people.
            say: send a goodbye.
            after_control: send the waiting control frames before it.
            served: the last stream of this side that the peer has seen, from its goodbye.
        """
        if self.state is State.CLOSED:
            return
        self.state = State.CLOSED
        self.said_goodbye = say
        self._deadlines.clear()
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            if stream.mine:
                if not (stream.over or stream.answered):
                    sent = stream.id not in self._outbox.unopened and (served is None or stream.id <= served)
                    self._events.append(Failed(stream.id, TunnelClosed(sent=sent, why=message)))
            else:
                if not stream.over and not stream.answered:
                    self._events.append(Cancelled(stream.id))
                self._events.append(Released(stream.id, delivered=False))
        last = Goodbye(reason, message, self._last_peer_stream) if say else None
        self._outbox.close(last, after_control=after_control)
        self._events.append(Closed(reason, message))

    _HANDLERS: ClassVar[dict[tuple[State, type], Callable[["Session", Any, float], None]]] = {
        (State.GREETING, Hello): _on_hello,
        (State.GREETING, Goodbye): _on_goodbye,
        (State.GREETING, NotUnderstood): _on_not_understood,
        (State.GREETING, UnknownFrame): _on_unknown,
        (State.DECIDING, Goodbye): _on_goodbye,
        (State.DECIDING, NotUnderstood): _on_not_understood,
        (State.DECIDING, UnknownFrame): _on_unknown,
        (State.OPEN, Goodbye): _on_goodbye,
        (State.OPEN, Drain): _on_drain,
        (State.OPEN, Ping): _on_ping,
        (State.OPEN, Pong): _on_pong,
        (State.OPEN, Open): _on_open,
        (State.OPEN, Chunk): _on_chunk,
        (State.OPEN, Credit): _on_credit,
        (State.OPEN, End): _on_end,
        (State.OPEN, Cancel): _on_cancel,
        (State.OPEN, Ack): _on_ack,
        (State.OPEN, NotUnderstood): _on_not_understood,
        (State.OPEN, UnknownFrame): _on_unknown,
    }
    """The frames that a peer may send in each state. Any other frame breaks the rules (see `receive`)."""
