"""A session: the protocol of one connection between two hops, without I/O.

The transport gives it bytes and the time (`now`), and gets bytes to send. The session calls the methods `on_…` of its
subclass, the application (`common.session.link.Link`), and the `common.session.receiver.Receiver` of each stream.

It imports no socket, loop, clock, random or log; the import linter checks that. So the tests need only two sessions and
the bytes between them. `common.session.link` adds a loop, `common.links.transport` a WebSocket.

The life of a session:

1. The side that made the connection, the dialler, sends its `Hello`. The acceptor answers with its own `Hello`, or with
   a `Goodbye` and the reason. An acceptor that is a standby sends its `Hello` again when it begins to lead.
2. Both sides open streams.
3. A side that shuts down may send `Drain`. It then sends its `Goodbye` by itself when no stream is left.
4. A `Goodbye` ends the session. If the connection breaks, the session ends without one.

The life of a stream is the same for a CSI call, a report and a watch. The session passes its frames to its receivers:

    opener                                    acceptor
      Open ──────────────────────────────────▶ on_open        of a CSI call: `on_call`, when the request is complete
      Chunk… (messages) ─────────────────────▶ took…         the Open may carry the whole first message
      took… ◀───────────────────────── Chunk… (messages)     the End may carry the whole last message
      ended ◀─────────────────────────────── End            exactly one
      Ack ───────────────────────────────────▶ released       exactly one, after the End

* The opener may `Cancel`. The acceptor still answers with its `End`. No chunk follows the `End`, so both sides agree on
  the credit.
* For the opener a stream ends once: `ended` with the acceptor's status, or `failed` with `CallTimeout` or
  `TunnelClosed`. A stream never outlives its session, and a session never uses an id twice. So no answer can reach
  another call.
* For the acceptor a stream also ends once: `released(delivered)`. Before that, `left` may report that the opener has
  stopped waiting. The session then drops further messages and the end.
* `TunnelClosed.sent` is False only if the acceptor surely has not served the stream: the transport got no frame of it,
  or the peer's goodbye says that the peer has not seen it.

The session calls the application and receivers at once, in the order of the frames. `on_closed` is the last call.

* They may call any session: open, use and end streams, say goodbye. So the session updates its state before each call,
  and checks it again after.
* If one raises, the session ends with `Reason.FAILED`. All other receivers still hear of the end. A
  `RemoteProtocolError` ends it with `Reason.PROTOCOL_ERROR`: the peer broke a rule of the stream.
* They must not call `receive`, `tick` or `to_send`.

Sending: usually no frame waits and the socket has room. Then `start` and `end` write their frame at once, with the
whole message in it. Otherwise the frame waits in `common.session.outbox`, and the transport pulls one WebSocket message
after the other with `to_send()` when the socket has room.

Credit is the number of bytes that a side may still send, per stream and for the session. A message takes credit, and
the receiver gives it back when its application has consumed the message. So a peer can make this side hold at most the
session window, and of one stream at most its window and one message.
"""

# ruff: noqa: SLF001  # the table of frames stands below the class, and names its methods

import math
from collections.abc import Callable
from dataclasses import replace
from enum import Enum, auto
from typing import Any, Final

from common.errors import CallTimeout, MessageTooLarge, Overloaded, RemoteProtocolError, TunnelClosed
from common.messages import (
    TYPES,
    Ack,
    Cancel,
    Chunk,
    Credit,
    Drain,
    End,
    Frame,
    Goodbye,
    Hello,
    Kind,
    NotUnderstood,
    Open,
    Ping,
    Pong,
    Priority,
    Reason,
    encode_ack,
    encode_end,
    encode_open,
    read,
)
from common.session.deadlines import Deadlines
from common.session.inbox import Inbox
from common.session.limits import Limits, flaw
from common.session.outbox import Outbox, Writer
from common.session.receiver import NOBODY, Receiver
from common.session.stream_books import StreamBooks
from common.status import LARGEST_CODE, Code, Status

# The longest driver, method, node and call id in an Open. A session holds them until the Ack, and no credit limits
# them.
_MAX_NAME_CHARS = 1_024

# The most bytes of waiting control frames: a peer that asks for answers and reads none could fill the memory with them.
_MAX_CONTROL_BYTES = 1_048_576

# A peer that sends a message more slowly than this counts as silent: a thirtieth of 64 kbit/s, for links that often
# stall.
_SLOWEST_BYTES_S = 256

_NOT_GREETED = Hello(
    version=0,
    oldest=0,
    role="",
    name="",
    instance="",
    boot=0,
    software="",
    features=(),
    max_message_bytes=0,
    stream_window_bytes=0,
    session_window_bytes=0,
    max_streams=0,
)


class SessionState(Enum):
    """A session's state. Only an acceptor is `DECIDING`: it has received a hello and not yet answered it."""

    GREETING = auto()
    DECIDING = auto()
    OPEN = auto()
    CLOSED = auto()


class Session:
    """One side's state of a connection, by the rules in the module's docstring.

    `start` and `end` write at once if no frame waits; otherwise `to_send()` returns the frame later. After `on_closed`,
    the session ignores all input and sends at most its goodbye.
    """

    __slots__ = (
        "_awaited_pong", "_clock", "_deadlines", "_dialler", "_draining", "_frame_handlers", "_hello_deadline",
        "_hello_pending", "_inbox", "_last_heard", "_last_peer_stream", "_limits", "_mine_open", "_next_stream",
        "_outbox", "_partial_bytes", "_partial_since", "_peer_draining", "_pinged", "_pings", "_streams",
        "_theirs_open", "armed_at", "consumed", "hello", "may_send", "peer", "said_goodbye", "state",
    )  # fmt: skip

    def __init__(
        self,
        hello: Hello,
        *,
        dialler: bool,
        limits: Limits,
        clock: Callable[[], float],
        writer: Writer,
        began: float | None = None,
    ) -> None:
        """A session that has not begun. The limits complete the hello.

        `began` starts the hello timeout; None: it starts now.
        """
        now = clock() if began is None else began
        self.hello = replace(
            hello,
            max_message_bytes=limits.max_message_bytes,
            stream_window_bytes=limits.stream_window_bytes,
            session_window_bytes=limits.session_window_bytes,
            max_streams=limits.max_streams,
        )
        self.peer = _NOT_GREETED  # the peer's hello; an empty one before it has come
        self.armed_at = math.inf  # when the loop calls `tick()` next
        self.said_goodbye = False  # whether this side ended the session with a goodbye, which `to_send()` returns last
        # Returns whether bytes may leave now; asked right before each send, because a message may have waited. None:
        # bytes may always leave.
        self.may_send: Callable[[], bool] | None = None
        self._enter(SessionState.GREETING)
        self._clock = clock
        self._dialler = dialler
        self._limits = limits
        self._last_heard = self._partial_since = now
        self._partial_bytes = 0
        self._hello_deadline = now + limits.hello_timeout_s
        self._pinged = False  # whether a keepalive ping waits for any sign of life
        self._pings = 0  # the id of the last ping
        self._awaited_pong: tuple[int, Callable[[], None]] | None = None
        self._hello_pending = False
        self._draining: str | None = None
        self._peer_draining = False
        self._outbox = Outbox(limits.chunk_bytes, writer)
        self._streams: dict[int, StreamBooks] = {}
        self._mine_open = 0
        self._theirs_open = 0
        self._next_stream = 1 if dialler else 2
        self._last_peer_stream = 0
        self._deadlines = Deadlines()
        self._inbox = Inbox(limits, self._outbox, self._streams)
        self.consumed = self._inbox.consumed
        if dialler:
            self._outbox.put(self.hello)

    # ---- methods of the application ----------------------------------------------------------------------------------

    def rearm(self) -> None:
        """Called when `next_tick()` may have become earlier."""

    def on_hello(self) -> None:
        """The peer's hello is in `peer`. An acceptor calls `accept()` or `goodbye()`; on a dialler the session is open.

        It is called again on a dialler when the acceptor, a standby so far, begins to lead.
        """
        raise NotImplementedError

    def on_open(self, frame: Open, deadline: float | None) -> Receiver:
        """The peer opened a stream. Returns its receiver. `deadline` is in this side's clock, or None."""
        raise NotImplementedError

    def on_call(self, frame: Open, deadline: float | None, request: bytes) -> Receiver:
        """The peer made a CSI call (`Kind.CALL`), and its request is complete. Returns its receiver."""
        raise NotImplementedError

    def on_ping(self, ping_id: int) -> None:
        """The peer asks for a pong to renew its lease: call `pong` with the id, now or later."""
        self.pong(ping_id)

    def on_drain(self, message: str) -> None:
        """The peer takes no new streams, and ends the session when the open ones are finished."""

    def on_fault(self, error: Exception) -> None:
        """Called with the exception of the application or a receiver. The session then ends."""
        raise NotImplementedError

    def on_closed(self, reason: str, message: str) -> None:
        """The session is over. `reason` is a `Reason` or a newer peer's, `message` is for people."""

    # ---- the application's side --------------------------------------------------------------------------------------

    def accept(self, epoch: int, mark: str = "") -> None:
        """Answer the dialler's hello with this side's hello: the session is open.

        An acceptor that has accepted with epoch 0 does so again when it begins to lead. `mark` is as `Hello.mark`. If
        the session has ended meanwhile, this does nothing.
        """
        if self.state is SessionState.CLOSED:
            return
        if self._dialler or self.state not in {SessionState.DECIDING, SessionState.OPEN}:
            raise RuntimeError(f"accept() in state {self.state.name}")
        self._enter(SessionState.OPEN)
        self._outbox.put(replace(self.hello, epoch=epoch, mark=mark))
        self.rearm()

    def start(
        self,
        receiver: Receiver,
        kind: int,
        message: bytes | None = None,
        *,
        priority: int = Priority.CALL,
        subject: str = "",
        method: str = "",
        node: str = "",
        call: str = "",
        timeout_s: float | None = None,
        epoch: int = 0,
        is_unary: bool = False,
    ) -> int:
        """Open a stream, with a first message if there is one, and return its id.

        The session calls no method of the receiver before this returns. The `Open` tells the peer `timeout_s`, the
        caller's remaining time. `is_unary`: the answer has one message, which `Receiver.ended` gets.

        If it raises, nothing was sent. TunnelClosed: the session is not open; MessageTooLarge: the peer does not accept
        the message, or a name; Overloaded: the peer accepts no more streams at once.
        """
        # Refuse before anything changes.
        peer = self.peer
        if self.state is not SessionState.OPEN:
            raise TunnelClosed(sent=False, why="it is not open")
        if self._peer_draining:
            raise TunnelClosed(sent=False, why="the peer is shutting down")
        if self._draining is not None:
            raise TunnelClosed(sent=False, why="this side is shutting down")
        longest_chars = max(len(subject), len(method), len(node), len(call))
        if longest_chars > _MAX_NAME_CHARS:
            raise MessageTooLarge(
                longest_chars,
                _MAX_NAME_CHARS,
                "the name of a method, driver or node",
                "shorten the name",
                unit="characters",
            )
        if self._mine_open >= peer.max_streams:
            raise Overloaded(peer.role, peer.max_streams, "--max-calls")
        if message is not None and len(message) > peer.max_message_bytes:
            raise MessageTooLarge(len(message), peer.max_message_bytes, "a CSI message")
        # Book the stream.
        stream_id = self._next_stream
        self._next_stream += 2
        stream = StreamBooks(
            stream_id,
            receiver,
            mine=True,
            priority=min(priority, Priority.SYNC),
            credit=peer.stream_window_bytes,
            granted=self._limits.stream_window_bytes,
        )
        stream.is_unary = is_unary
        self._streams[stream_id] = stream
        self._mine_open += 1
        # Set the deadline.
        timeout_ms = 0  # 0 on the wire means no deadline
        if timeout_s is not None:
            timeout_ms = max(1, round(timeout_s * 1000))
            deadline = self._clock() + timeout_s
            self._deadlines.add(deadline, stream_id, self._streams)
            if deadline < self.armed_at:
                self.rearm()
        # Write now, or queue.
        heading = stream_id, kind, priority, subject, method, node, call, timeout_ms, epoch
        if message is not None and self._outbox.may_leave(stream, message, self.may_send):
            self._write(encode_open(heading, message))
        else:
            if message is not None:
                stream.queue.append(message)
            self._outbox.put_open(stream, heading)
        return stream_id

    def send(self, stream_id: int, payload: bytes) -> None:
        """Queue a whole message. It is dropped if the stream has ended, or if its opener no longer waits.

        Raises MessageTooLarge: the peer does not accept messages of this size. The stream goes on.
        """
        stream = self._streams.get(stream_id)
        if stream is None or stream.is_abandoned or stream.answered:
            return
        if len(payload) > self.peer.max_message_bytes:
            raise MessageTooLarge(len(payload), self.peer.max_message_bytes, "a CSI message")
        stream.queue.append(payload)
        self._outbox.schedule(stream)

    def watch_unsent(self, stream_id: int) -> int:
        """Returns the number of waiting messages of the stream.

        If there are any, `Receiver.writable` is called when they have left.
        """
        stream = self._streams.get(stream_id)
        if stream is None:
            return 0
        stream.wants_writable = len(stream.queue) > 0
        return len(stream.queue)

    def end(self, stream_id: int, status: Status, message: bytes | None = None) -> None:
        """End an accepted stream, after its queued messages and this last one, if there is one.

        Does nothing if the opener has cancelled it. If it raises, the stream goes on. RuntimeError: gRPC cannot carry
        the code; MessageTooLarge: the peer does not accept the message.
        """
        stream = self._streams.get(stream_id)
        if stream is None or stream.answered:
            return
        if stream.mine:
            raise RuntimeError("only the acceptor of a stream ends it")
        if not 0 <= status.code <= LARGEST_CODE:
            raise RuntimeError(f"a status code is 0 to {LARGEST_CODE}, not {status.code}")
        if message is not None and len(message) > self.peer.max_message_bytes:
            raise MessageTooLarge(len(message), self.peer.max_message_bytes, "a CSI message")
        stream.answered = True
        if not stream.queue and self._outbox.may_leave(stream, message, self.may_send):
            self._write(encode_end(stream_id, status, message))
            return
        # This End waits with its stream and not among the control frames, even if no message is before it: `stream.end`
        # then shows whether it has left, and `_on_ack` finds an Ack that comes too early.
        if message is not None:
            stream.queue.append(message)
        stream.end = status
        self._outbox.schedule(stream)

    def _write(self, data: bytes) -> None:
        outbox = self._outbox
        # Waiting control frames leave before this frame, in the same WebSocket message.
        outbox.writer.write(outbox.with_control(data) if outbox.control else data)

    def cancel(self, stream_id: int) -> None:
        """Stop waiting for a stream that this side opened. Its receiver hears no more."""
        stream = self._streams.get(stream_id)
        if stream is None or stream.is_abandoned:
            return
        if not stream.mine:
            raise RuntimeError("only the opener of a stream cancels it")
        self._abandon(stream)
        self._end_drained()

    def acknowledge(self, stream_id: int, *, delivered: bool) -> None:
        """Release a stream that this side opened, after its end. `delivered`: the answer has reached the caller."""
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        if not (stream.mine and stream.answered):
            raise RuntimeError("only the opener acknowledges a stream, and only after its end")
        self._outbox.put_later(encode_ack(stream_id, delivered=delivered))
        self._forget(stream)
        if self._draining is not None:
            self._end_drained()

    def ping(self, answered: Callable[[], None]) -> None:
        """Ping the peer now. `answered` is called when its pong comes, unless a later `ping` or the end comes first."""
        if self.state is SessionState.OPEN:
            self._pings += 1
            self._awaited_pong = self._pings, answered
            self._outbox.put(Ping(self._pings, of_lease=True))

    def pong(self, ping_id: int) -> None:
        self._outbox.put(Pong(ping_id))

    def drain(self, message: str) -> None:
        """Open no more streams, ask the peer to open none, and send the goodbye when no stream is left."""
        if self.state is SessionState.OPEN and self._draining is None:
            self._draining = message
            self._outbox.put(Drain(message))
            self._end_drained()

    def goodbye(self, reason: str, message: str) -> None:
        """End the session with a `Goodbye`, after the waiting control frames, which may contain the last acks."""
        self._close(reason, message, send_goodbye=True, after_control=True)

    @property
    def open_streams(self) -> int:
        return len(self._streams)

    # ---- the transport's side ----------------------------------------------------------------------------------------

    def receive(self, data: bytes, now: float) -> None:
        """Take one WebSocket message. If it breaks a rule, the session ends with a goodbye that names the rule."""
        if self.state is SessionState.CLOSED:
            return
        self._last_heard = now
        self._partial_bytes = 0
        self._pinged = False
        try:
            for frame_type, fields in read(data):
                handler = self._frame_handlers.get(frame_type)
                if handler is not None and fields is not None:
                    handler(self, *fields)
                else:
                    self._on_other(frame_type)
            if self._hello_pending:
                self._hello_pending = False
                self.on_hello()
        except RemoteProtocolError as error:
            self._close(Reason.PROTOCOL_ERROR, str(error), send_goodbye=True)
        except Exception as fault:  # noqa: BLE001  # the application and receivers may raise anything
            self.fail(fault)

    def heard(self, now: float, size: int) -> None:
        """Note that `size` bytes came in, before it is clear whether they end a message.

        While a message is unfinished, its n bytes prove that the peer lived for n / `_SLOWEST_BYTES_S` seconds after
        the first of them, and no longer. So a peer that sends single bytes counts as silent.
        """
        if not self._partial_bytes:
            self._partial_since = now
        self._partial_bytes += size
        alive_until = self._partial_since + self._partial_bytes / _SLOWEST_BYTES_S
        self._last_heard = max(self._last_heard, min(now, alive_until))
        if now < self._last_heard + self._limits.keepalive_s:
            self._pinged = False

    def silent_since(self, now: float) -> float | None:
        """When the peer was last heard, if it has not answered a ping for half the keepalive interval; else None."""
        is_silent = self._pinged and now >= self._last_heard + 1.5 * self._limits.keepalive_s
        return self._last_heard if is_silent else None

    def lost(self, message: str) -> None:
        self._close(Reason.LINK_LOST, message)

    def next_tick(self) -> float | None:
        """The time of the next `tick()`, in this side's clock; None when the session is over."""
        if self.state is SessionState.CLOSED:
            return None
        if self.state is not SessionState.OPEN:
            return self._hello_deadline
        due = self._last_heard + self._limits.keepalive_s * (2 if self._pinged else 1)
        first = self._deadlines.first
        return due if first is None else min(due, first)

    def tick(self, now: float) -> None:
        """Fail expired streams, ping the peer, and end the session if the peer is silent or its hello is missing."""
        if self.state is SessionState.CLOSED:
            return
        if self.state is not SessionState.OPEN:
            if now >= self._hello_deadline:
                missing = "hello" if self.state is SessionState.GREETING else "answer to the hello"
                self.goodbye(Reason.HELLO_TIMEOUT, f"no {missing} within {self._limits.hello_timeout_s:g} s")
            return
        for stream_id in self._deadlines.passed(now):
            self._expire(stream_id)
        # The same sums as in next_tick(): with differences, rounding could make the tick find nothing due.
        if now >= self._last_heard + self._limits.keepalive_s * 2:
            why = f"nothing was heard for {2 * self._limits.keepalive_s:g} s"
            if self._partial_bytes:
                why = f"{self._partial_bytes} bytes of a message in {now - self._partial_since:.3g} s are too few"
            self._close(Reason.PEER_SILENT, why)
        elif now >= self._last_heard + self._limits.keepalive_s and not self._pinged:
            self._pinged = True
            self._pings += 1
            self._outbox.put(Ping(self._pings))

    def to_send(self) -> bytes:
        """The next WebSocket message, or b"" when there is nothing to send now."""
        if not self._outbox.has_output or (self.may_send is not None and not self.may_send()):
            return b""
        data = self._outbox.next_message()
        for stream in self._outbox.emptied:
            if stream.id in self._streams and not stream.is_abandoned:  # an earlier receiver may have ended the stream
                self._call_safely(stream.receiver.writable)
        self._outbox.emptied.clear()
        return data

    # ---- receiving ---------------------------------------------------------------------------------------------------

    def _on_hello(self, *fields: Any) -> None:
        mine = self.hello
        peer = Hello(*fields)
        if self.state is SessionState.OPEN:
            self._on_lead(peer)
            return
        if min(mine.version, peer.version) < max(mine.oldest, peer.oldest):
            raise RemoteProtocolError(
                f"{peer.role or 'peer'} {peer.name} ({peer.software}) speaks wire version {peer.version} (oldest "
                f"{peer.oldest}), this side ({mine.software}) {mine.version} (oldest {mine.oldest}); upgrade the older"
            )
        if why := flaw(peer):
            raise RemoteProtocolError(f"Hello: {why}")
        self.peer = peer
        self._outbox.credit = peer.session_window_bytes
        if self._dialler:
            self._enter(SessionState.OPEN)
            self.on_hello()
        else:
            self._enter(SessionState.DECIDING)
            # `receive` calls `on_hello` after the last frame of this WebSocket message. If a later frame in it ends the
            # session, the application never gets the hello.
            self._hello_pending = True

    def _on_lead(self, hello: Hello) -> None:
        # A standby that begins to lead sends its hello again, with only the epoch and the mark changed.
        before = self.peer
        if hello.epoch <= before.epoch or hello != replace(before, epoch=hello.epoch, mark=hello.mark):
            raise RemoteProtocolError("Hello: twice")
        if not self._dialler:
            raise RemoteProtocolError("Hello: only an acceptor leads")
        self.peer = hello
        self.on_hello()

    def _on_goodbye(self, reason: str, message: str, last_served_id: int) -> None:
        self._close(reason, message, last_served_id=last_served_id)

    def _on_drain(self, message: str) -> None:
        if self._peer_draining:
            raise RemoteProtocolError("Drain: twice")
        self._peer_draining = True
        self.on_drain(message)

    def _on_ping(self, ping_id: int, of_lease: bool) -> None:  # noqa: FBT001  # as in the frame
        if of_lease:
            # `pong` checks nothing, because its caller may be any task: the check of what waits for the peer is here.
            self._check_answers()
            self.on_ping(ping_id)
        else:
            self._answer(Pong(ping_id))

    def _on_pong(self, ping_id: int) -> None:
        # A pong of the keepalive needs no callback: `receive` has noted the time.
        awaited = self._awaited_pong
        if awaited is not None and awaited[0] == ping_id:
            self._awaited_pong = None
            awaited[1]()

    def _on_not_understood(self, unknown: int) -> None:
        """Nothing to do: an older peer skipped a frame. No side relies on a frame that the peer may not know."""

    def _on_other(self, frame_type: int) -> None:
        if self.state is SessionState.CLOSED:  # an earlier frame of this message, or a receiver, ended it
            return
        if frame_type in TYPES:
            raise RemoteProtocolError(f"a {TYPES[frame_type].__name__} frame in state {self.state.name}")
        self._answer(NotUnderstood(frame_type))

    def _on_open(self, *fields: Any) -> None:
        *heading, has_first, first = fields
        frame = Open(*heading)
        stream_id = frame.stream
        if self._dialler and not self.peer.epoch:
            raise RemoteProtocolError("Open: from a standby")
        if max(len(frame.subject), len(frame.method), len(frame.node), len(frame.call)) > _MAX_NAME_CHARS:
            raise RemoteProtocolError(f"Open: a name of more than {_MAX_NAME_CHARS} characters")
        if stream_id % 2 != (0 if self._dialler else 1) or stream_id <= self._last_peer_stream:
            raise RemoteProtocolError(f"Open: stream id {stream_id} is not a new one of the peer's")
        if self._theirs_open >= self._limits.max_streams:
            raise RemoteProtocolError(f"Open: more than {self._limits.max_streams} streams at once")
        self._last_peer_stream = stream_id
        self._theirs_open += 1
        stream = self._streams[stream_id] = StreamBooks(
            stream_id,
            NOBODY,
            mine=False,
            priority=min(frame.priority, Priority.SYNC),
            credit=self.peer.stream_window_bytes,
            granted=self._limits.stream_window_bytes,
        )
        # `_last_heard` is when this message came.
        deadline = self._last_heard + frame.timeout_ms / 1000 if frame.timeout_ms else None
        if has_first:
            self._inbox.charge(stream, len(first), "Open")
        if frame.kind == Kind.CALL:
            stream.is_unary = True
            if has_first:
                stream.receiver = self.on_call(frame, deadline, first)
            else:
                stream.asked = frame, deadline
        else:
            stream.receiver = self.on_open(frame, deadline)
        if stream_id not in self._streams:  # the callback ended the session
            self._tell_lost(stream)
        elif has_first and not stream.is_unary:
            self._give(stream, first)

    def _give(self, stream: StreamBooks, message: bytes) -> None:
        if stream.answered or stream.id not in self._streams:  # `on_open` has ended it
            self.consumed(stream.id, len(message))
        else:
            stream.receiver.took(message)

    def _on_chunk(self, stream_id: int, remaining_bytes: int, payload: bytes) -> None:
        stream = self._known(stream_id, "Chunk")
        if stream.mine and stream.answered:
            raise RemoteProtocolError("Chunk: after the end of its stream")
        message = self._inbox.take(stream, remaining_bytes, payload)
        if message is None:
            return
        if not stream.is_unary:
            stream.receiver.took(message)
        elif stream.mine:
            # Hold the newest message back: if it is the last one, `ended` carries it.
            former = stream.last
            stream.last = message
            if former is not None:
                stream.receiver.took(former)
        elif stream.asked is None:
            raise RemoteProtocolError("Chunk: a call has one request")
        else:
            frame, deadline = stream.asked
            stream.asked = None
            stream.receiver = self.on_call(frame, deadline, message)
            if stream_id not in self._streams:  # the callback ended the session
                self._tell_lost(stream)

    def _on_credit(self, stream_id: int, amount: int) -> None:
        if stream_id == 0:
            self._outbox.grant(amount)
            return
        credited = self._streams.get(stream_id)
        if credited is not None:  # an accepted stream may end while its credit is on the way
            credited.credit += amount
            if credited.queue:
                self._outbox.schedule(credited)

    def _on_end(self, *fields: Any) -> None:
        stream_id, code, message, origin, has_last, last = fields
        stream = self._known(stream_id, "End")
        if not stream.mine or stream.answered:
            raise RemoteProtocolError("End: of a stream that is not the peer's to end")
        if code > LARGEST_CODE:
            raise RemoteProtocolError(f"End: a status code is 0 to {LARGEST_CODE}, not {code}")
        if has_last:
            # Usually the only message of an answer comes whole, in the End.
            if stream.is_unary and stream.last is None and stream.parts is None and not stream.is_abandoned:
                self._inbox.charge(stream, len(last), "End")
                stream.last = last
            else:
                self._on_chunk(stream_id, 0, last)
                if stream_id not in self._streams:  # its receiver has ended the session
                    return
        if stream.parts is not None and not stream.is_abandoned:
            raise RemoteProtocolError("End: in the middle of a message")
        stream.answered = True
        if stream.is_abandoned:
            self._outbox.put_later(encode_ack(stream_id, delivered=False))
            self._forget(stream)
            self._end_drained()
            return
        if stream.queue:
            self._stop_sending(stream)
        last = stream.last
        stream.last = None
        stream.receiver.ended(Status(code, message, origin), last)

    def _on_cancel(self, stream_id: int) -> None:
        stream = self._known(stream_id, "Cancel")
        if stream.mine:
            raise RemoteProtocolError("Cancel: of a stream that the peer did not open")
        if stream.is_abandoned:
            raise RemoteProtocolError("Cancel: twice")
        was_answered = stream.answered
        end_is_sent = was_answered and stream.end is None
        self._stop_sending(stream)
        stream.is_abandoned = stream.answered = True
        if not was_answered:
            stream.receiver.left()
        if not end_is_sent:
            self._answer(End(stream_id, Code.CANCELLED, "", ""))

    def _on_ack(self, stream_id: int, delivered: bool) -> None:  # noqa: FBT001  # as in the frame
        stream = self._known(stream_id, "Ack")
        if stream.mine or not stream.answered or stream.end is not None:
            raise RemoteProtocolError("Ack: of a stream that has not ended")
        self._forget(stream)
        stream.receiver.released(delivered)
        if self._draining is not None:
            self._end_drained()

    def _known(self, stream_id: int, frame_name: str) -> StreamBooks:
        stream = self._streams.get(stream_id)
        if stream is None or stream_id in self._outbox.unopened:  # its Open has not left, so the peer cannot know it
            raise RemoteProtocolError(f"{frame_name}: stream {stream_id} is not open")
        return stream

    def _answer(self, frame: Frame) -> None:
        self._outbox.put(frame)
        self._check_answers()

    def _check_answers(self) -> None:
        if self._outbox.control_bytes > _MAX_CONTROL_BYTES:
            raise RemoteProtocolError("the peer asks for answers and does not read them")

    def _enter(self, state: SessionState) -> None:
        self.state = state
        self._frame_handlers = _HANDLERS_BY_STATE[state]

    # ---- ends --------------------------------------------------------------------------------------------------------

    def _expire(self, stream_id: int) -> None:
        stream = self._streams.get(stream_id)
        if stream is None or stream.is_abandoned or stream.answered:
            return
        self._abandon(stream)
        self._call_safely(stream.receiver.failed, CallTimeout())
        self._end_drained()

    def _abandon(self, stream: StreamBooks) -> None:
        stream.is_abandoned = True
        self._stop_sending(stream)
        if stream.last is not None:
            self.consumed(stream.id, len(stream.last))
            stream.last = None
        if stream.answered:
            self._outbox.put_later(encode_ack(stream.id, delivered=False))
            self._forget(stream)
        elif stream.id in self._outbox.unopened:
            self._forget(stream)
        else:
            self._outbox.put(Cancel(stream.id))

    def _stop_sending(self, stream: StreamBooks) -> None:
        # The peer gives back the credit of a half-sent message.
        stream.queue.clear()
        stream.begun = False
        stream.offset = 0
        stream.end = None

    def _forget(self, stream: StreamBooks) -> None:
        del self._streams[stream.id]
        if stream.mine:
            self._mine_open -= 1
        else:
            self._theirs_open -= 1
        if stream.queued or stream.id in self._outbox.starved:
            self._outbox.forget(stream)
        if stream.cost:
            self._inbox.forget(stream)

    def _end_drained(self) -> None:
        # In the same turn as the end of the last stream, so that the peer opens no further stream in between.
        if self._draining is not None and not self._streams:
            self.goodbye(Reason.DRAINED, f"{self._draining}, and every call is finished")

    def _close(
        self,
        reason: str,
        message: str,
        *,
        send_goodbye: bool = False,
        after_control: bool = False,
        last_served_id: int | None = None,
    ) -> None:
        """End the session, unless it has ended already.

        `after_control`: the waiting control frames leave before the goodbye. `last_served_id` is the last stream of
        this side that the peer has seen; None if the peer has not named a stream.
        """
        if self.state is SessionState.CLOSED:
            return
        self._enter(SessionState.CLOSED)
        self._hello_pending = False
        self.said_goodbye = send_goodbye
        self._deadlines.clear()
        self._awaited_pong = None
        streams = self._streams.copy()
        self._streams.clear()
        unopened = set(self._outbox.unopened)
        goodbye = Goodbye(reason, message, self._last_peer_stream) if send_goodbye else None
        self._outbox.close(goodbye, after_control=after_control)
        for stream in streams.values():
            if not stream.mine:
                self._tell_lost(stream)
            elif not (stream.is_abandoned or stream.answered):
                sent = stream.id not in unopened and (last_served_id is None or stream.id <= last_served_id)
                self._call_safely(stream.receiver.failed, TunnelClosed(sent=sent, why=message))
        self._call_safely(self.on_closed, reason, message)

    def _tell_lost(self, stream: StreamBooks) -> None:
        if not stream.answered:
            self._call_safely(stream.receiver.left)
        self._call_safely(stream.receiver.released, False)  # noqa: FBT003  # as in `Receiver`

    def _call_safely(self, method: Callable[..., None], *arguments: object) -> None:
        # Other receivers must hear of the end even if this call raises.
        try:
            method(*arguments)
        except Exception as error:  # noqa: BLE001  # as in `receive`
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """End the session, because the application or a receiver has raised this."""
        self.on_fault(error)
        self.goodbye(Reason.FAILED, "this end of the link failed; its log has the details")


_BEFORE_THE_END = (SessionState.GREETING, SessionState.DECIDING, SessionState.OPEN)

# The frames, each with its handler and the states in which a peer may send it. The handler gets the frame's fields.
# Any other frame breaks the rules; a frame of an unknown type is answered (`_on_other`).
_HANDLERS: Final[dict[type[Frame], tuple[Callable[..., None], tuple[SessionState, ...]]]] = {
    Hello: (Session._on_hello, (SessionState.GREETING, SessionState.OPEN)),
    Goodbye: (Session._on_goodbye, _BEFORE_THE_END),
    NotUnderstood: (Session._on_not_understood, _BEFORE_THE_END),
    Drain: (Session._on_drain, (SessionState.OPEN,)),
    Ping: (Session._on_ping, (SessionState.OPEN,)),
    Pong: (Session._on_pong, (SessionState.OPEN,)),
    Open: (Session._on_open, (SessionState.OPEN,)),
    Chunk: (Session._on_chunk, (SessionState.OPEN,)),
    Credit: (Session._on_credit, (SessionState.OPEN,)),
    End: (Session._on_end, (SessionState.OPEN,)),
    Cancel: (Session._on_cancel, (SessionState.OPEN,)),
    Ack: (Session._on_ack, (SessionState.OPEN,)),
}

# The same table by state and frame type.
_HANDLERS_BY_STATE: Final = {
    state: {frame_type: _HANDLERS[frame][0] for frame_type, frame in TYPES.items() if state in _HANDLERS[frame][1]}
    for state in SessionState
}
