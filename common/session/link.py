"""A link: one session on the event loop.

`common.session.session` has the rules of the protocol, `common.links.transport` the WebSocket. A link is a session with
a timer, a handler, and tasks for the streams that need one. It uses no socket: its transport passes bytes in and takes
bytes out.

The session calls each stream's receiver itself. Two kinds of receivers exist. An ordinary CSI call has one that answers
at once, without a task or a future: it is the hot path. Whoever has to wait uses a `Stream`, which a task reads.

Rules:

* One task serves one accepted `Stream`. It has a name, and its failure is logged. When the opener stops waiting, the
  task is cancelled, unless it has detached itself.
* No method waits for the network: `send()` waits only until the message before it has left.
* An idle link has one timer, and no task or future: one hub has thousands of links.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from common.errors import CallError, CallTimeout, HandshakeRefused, TunnelClosed, not_carried, status_of, stopped
from common.messages import Hello, Kind, Open, Priority, Reason
from common.session.limits import Limits
from common.session.outbox import Writer
from common.session.receiver import Receiver
from common.session.session import Session
from common.status import Origin, Status

log = logging.getLogger("csi_bridge.link")


# How long an acknowledgement or credit may wait for other bytes to leave with: it is not urgent, and a system call is
# slow.
LATER_S = 0.01


class LinkHandler:
    """Handles the links of a process. One object handles all links of a listener.

    This one is for an end that only opens streams. A subclass serves the peer's: a task each with `serve`, or with
    receivers of its own.
    """

    origin: Origin

    def __init__(self, origin: Origin) -> None:
        self.origin = origin

    def greeted(self, link: "Link") -> None:
        """The peer has sent its hello (`link.peer`). An acceptor calls `link.accept()` or `link.refuse()` now.

        A dialler's handler hears it again when the hub, a standby so far, begins to lead.
        """

    def called(self, link: "Link", frame: Open, deadline: float | None, request: bytes) -> Receiver:
        """The peer has made a CSI call (`Kind.CALL`), with this request. Returns its receiver.

        Call `link.consumed(frame.stream, len(request))` when the request's memory is free again.
        """
        return link.served(frame, deadline, self.serve, request)

    def opened(self, link: "Link", frame: Open, deadline: float | None) -> Receiver:
        """The peer has opened another stream, with this id: `frame.stream`. Returns its receiver.

        `deadline` is when the opener's time is up, in the loop's clock, or None.
        """
        return link.served(frame, deadline, self.serve)

    async def serve(self, stream: "Stream") -> None:  # noqa: ARG002  # a subclass serves it
        """Serve an accepted stream and end it. A raised error becomes its status. Cancelled if the opener leaves."""
        raise not_carried("a stream", "this end of the link serves none")

    def draining(self, link: "Link", message: str) -> None:
        """The peer takes no new streams."""

    def refused(self, link: "Link", reason: str, message: str) -> None:
        """The link ended before the peer's hello."""

    def failed(self, address: str, reason: Reason, why: str) -> None:
        """A connection to the listener ended before it had a link, or found no room. `why` is a sentence."""

    def closed(self, link: "Link", reason: str, message: str) -> None:
        """The link is gone, for any reason. Called once for every link that was greeted."""


@dataclass(frozen=True, slots=True)
class Side:
    """One side of links: its hello, its handler, and the limits of each session."""

    hello: Hello
    handler: LinkHandler
    limits: Limits


class Stream(Receiver):
    """One stream of a link.

    The opener reads with `receive()` until None, then finds `status`, then calls `acknowledge()`. The acceptor reads
    `opened`, answers with `send()` and `end()`, and may set `on_released` to hear whether the answer was delivered.
    """

    __slots__ = ("_detached", "_error", "_inbox", "_taken", "_waiter", "_writable", "deadline", "id", "link",
                 "on_released", "opened", "status", "task")  # fmt: skip

    def __init__(
        self, link: "Link", stream_id: int = 0, opened: Open | None = None, deadline: float | None = None
    ) -> None:
        self.id = stream_id
        self.opened = opened  # the opener's frame; None on the opener's own side
        self.deadline = deadline  # when the opener's time is up, in the loop's clock, or None
        self.status: Status | None = None
        # Called once with `delivered`, when an accepted stream is over for both sides.
        self.on_released: Callable[[bool], None] | None = None
        self.task: asyncio.Task[None] | None = None
        self.link = link
        self._inbox: deque[bytes] | None = None
        self._taken = -1  # the size of the last received message, whose credit has not gone back yet; -1: none
        self._waiter: asyncio.Future[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._error: TunnelClosed | CallTimeout | None = None
        self._detached = False

    async def receive(self) -> bytes | None:
        """Return the next whole message, or None after the last one.

        The credit of a message goes back when the caller asks for the next one, so a forwarding caller passes on the
        pace of its own reader. Cancelling loses nothing. Raises TunnelClosed: the link ended first; CallTimeout: the
        stream's time was up first.
        """
        self._give_back()
        while not self._inbox:
            if self._error is not None:
                raise self._error
            if self.status is not None:
                return None
            self._waiter = self.link.loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        message = self._inbox.popleft()
        self._taken = len(message)
        return message

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if (message := await self.receive()) is None:
            raise StopAsyncIteration
        return message

    async def send(self, message: bytes) -> None:
        """Queue a message. Waits until the one before has left, so that at most one is queued.

        For one sender at a time. Cancelling leaves the message unsent. Raises MessageTooLarge: the peer does not accept
        it.
        """
        while self.link.watch_unsent(self.id):
            self._writable = self.link.loop.create_future()
            try:
                await self._writable
            finally:
                self._writable = None
        self.queue(message)

    def queue(self, message: bytes) -> None:
        """Queue a small and rare message without waiting. Raises MessageTooLarge if the peer does not accept it."""
        self.link.send(self.id, message)

    def end(self, status: Status, message: bytes | None = None) -> None:
        """End an accepted stream, with a last message if there is one. Ignored if the opener has left."""
        self.link.end(self.id, status, message)
        self.status = status

    def acknowledge(self, *, delivered: bool) -> None:
        """Release an ended stream that this side opened: the answer reached the caller, or nobody took it."""
        self._drop_inbox()
        self.link.acknowledge(self.id, delivered=delivered)

    def cancel(self) -> None:
        """Stop waiting for a stream that this side opened. After its end that does no harm."""
        if self.status is not None:
            self.acknowledge(delivered=False)
            return
        self._drop_inbox()
        self.link.cancel(self.id)

    def detach(self) -> None:
        """Keep the task of an accepted stream from being cancelled when the opener leaves.

        For work that must not be cut in the middle. Messages that it sends after the opener has left are dropped.
        """
        self._detached = True

    def remaining_s(self) -> float | None:
        """The rest of the opener's time, in seconds; None if it set no limit."""
        return None if self.deadline is None else max(0.001, self.deadline - self.link.loop.time())

    # ---- the link's side

    def took(self, message: bytes) -> None:
        if self._inbox is None:
            self._inbox = deque()
        self._inbox.append(message)
        self._wake()

    def ended(self, status: Status, _message: bytes | None) -> None:
        # Only a stream that was started with `is_unary` has its last message here, and `Link.open` starts none so.
        self.status = status
        self._wake()
        self.writable()

    def failed(self, error: TunnelClosed | CallTimeout) -> None:
        self._error = error
        self._wake()
        self.writable()

    def left(self) -> None:
        if self.task is not None and not self._detached:
            self.task.cancel()
        self.writable()  # a detached task may wait for room, and nothing leaves any more

    def released(self, delivered: bool) -> None:  # noqa: FBT001  # as in `Receiver`
        self._drop_inbox()
        if self.on_released is not None:
            self.on_released(delivered)

    def writable(self) -> None:
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _give_back(self) -> None:
        if self._taken >= 0:
            self.link.consumed(self.id, self._taken)
            self._taken = -1

    def _drop_inbox(self) -> None:
        self._give_back()
        while self._inbox:
            self.link.consumed(self.id, len(self._inbox.popleft()))


class Link(Session):
    """One session on the loop. Its transport (in `common.links`) calls `receive`, `to_send` and `lost`."""

    __slots__ = ("__weakref__", "_closed", "_greeting", "_handler", "_timer", "before_pong", "context", "draining",
                 "greeted", "loop", "on_greeting", "peer_identity", "writer")  # fmt: skip

    def __init__(
        self, side: Side, *, dialler: bool, writer: Writer, began: float | None = None, peer_identity: Any = None
    ) -> None:
        """A link that has not begun. `peer_identity` is the peer as the transport knows it."""
        self.loop = asyncio.get_running_loop()
        self.greeted = False
        self.draining = False  # whether the peer takes no new streams
        self.peer_identity = peer_identity
        self.context: Any = None  # the handler's own note about this link
        # Called with the id of a ping of the peer's lease, to `pong` later; None: that is done at once.
        self.before_pong: Callable[[Link, int], None] | None = None
        self._handler = side.handler
        self.on_greeting = side.handler.greeted  # a listener puts itself in between
        self.writer = writer
        self._closed: asyncio.Future[tuple[str, str]] | tuple[str, str] | None = None
        self._greeting: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        super().__init__(
            side.hello, dialler=dialler, limits=side.limits, clock=self.loop.time, writer=writer, began=began
        )
        self.rearm()

    # ---- the application's side --------------------------------------------------------------------------------------

    def give(self, handler: LinkHandler) -> None:
        """Give the link to another handler, which decides on the peer's hello as if it came now."""
        self._handler = handler
        try:
            handler.greeted(self)
        except Exception as fault:  # noqa: BLE001  # as at a hello: it ends this link alone
            self.fail(fault)

    def refuse(self, refusal: HandshakeRefused) -> None:
        self.goodbye(refusal.reason, refusal.why)

    def open(
        self,
        kind: Kind,
        message: bytes | None = None,
        *,
        priority: Priority = Priority.CALL,
        subject: str = "",
        method: str = "",
        node: str = "",
        call: str = "",
        timeout_s: float | None = None,
    ) -> Stream:
        """Open a stream, with a first message if there is one. Raises as `Session.start`."""
        stream = Stream(self)
        stream.id = self.start(
            stream,
            kind,
            message,
            priority=priority,
            subject=subject,
            method=method,
            node=node,
            call=call,
            timeout_s=timeout_s,
        )
        return stream

    def served(
        self,
        frame: Open,
        deadline: float | None,
        serve: Callable[["Stream"], Awaitable[None]],
        request: bytes | None = None,
    ) -> "Stream":
        """A receiver for a stream that the peer has opened: a task serves it with `serve`.

        A call's request is the first message that the task receives.
        """
        stream = Stream(self, frame.stream, frame, deadline)
        if request is not None:
            stream.took(request)
        name = f"stream {frame.stream} {frame.method}"
        stream.task = self.loop.create_task(self._serve(stream, serve), name=name)
        return stream

    async def wait_greeted(self) -> None:
        """Wait for the peer's hello. Raises HandshakeRefused if it refuses ours, ConnectionError if it is gone."""
        if not self.greeted and not self.over:
            self._greeting = self.loop.create_future()
            await self._greeting
        if not self.greeted:
            reason, message = await self.wait_closed()
            raise ConnectionError(message) if reason == Reason.LINK_LOST else HandshakeRefused(reason, message)

    async def wait_closed(self) -> tuple[str, str]:
        """Wait for the end of the link. Returns its reason and message."""
        if isinstance(self._closed, tuple):
            return self._closed
        if self._closed is None:
            self._closed = self.loop.create_future()
        return await asyncio.shield(self._closed)

    @property
    def over(self) -> bool:
        """Whether the session has ended: the transport writes the rest from `to_send()`, then closes the socket."""
        return isinstance(self._closed, tuple)

    # ---- the session's side ------------------------------------------------------------------------------------------

    def on_hello(self) -> None:
        if not self.greeted:
            self.greeted = True
            self._end_greeting()
            self.rearm()
        self.on_greeting(self)

    def on_open(self, frame: Open, deadline: float | None) -> Receiver:
        return self._handler.opened(self, frame, deadline)

    def on_call(self, frame: Open, deadline: float | None, request: bytes) -> Receiver:
        return self._handler.called(self, frame, deadline, request)

    def on_ping(self, ping_id: int) -> None:
        if self.before_pong is None:
            self.pong(ping_id)
        else:
            self.before_pong(self, ping_id)

    def on_drain(self, message: str) -> None:
        self.draining = True
        self._handler.draining(self, message)

    def on_fault(self, error: Exception) -> None:
        log.error("a link ends, because its handler failed", exc_info=error)

    def on_closed(self, reason: str, message: str) -> None:
        waiting = self._closed
        self._closed = (reason, message)
        if isinstance(waiting, asyncio.Future) and not waiting.done():
            waiting.set_result(self._closed)
        self._end_greeting()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.greeted:
            self._handler.closed(self, reason, message)
        else:
            self._handler.refused(self, reason, message)

    def _end_greeting(self) -> None:
        if self._greeting is not None and not self._greeting.done():
            self._greeting.set_result(None)

    async def _serve(self, stream: Stream, serve: Callable[[Stream], Awaitable[None]]) -> None:
        try:
            await serve(stream)
            if stream.status is None:
                stream.end(status_of(None, self._handler.origin))
        except asyncio.CancelledError:
            if stream.status is None:  # the process stops, and the opener may still wait
                stream.end(stopped(self._handler.origin))
            raise
        except CallError as error:
            stream.end(status_of(error, self._handler.origin))
        except Exception as bug:
            log.exception("a stream's handler failed: %s", stream.opened)
            stream.end(status_of(bug, self._handler.origin))
        finally:
            stream.task = None

    # ---- the timer ---------------------------------------------------------------------------------------------------

    def rearm(self) -> None:
        """Keep one timer, no later than the session's next tick. A timer that fires too early is set again.

        Called when the next tick may be earlier than before. Received bytes only put it off.
        """
        due = self.next_tick()
        if due is None or (self._timer is not None and self.armed_at <= due):
            return
        if self._timer is not None:
            self._timer.cancel()
        self.armed_at = due
        self._timer = self.loop.call_at(due, self._fire)

    def _fire(self) -> None:
        self._timer = None
        self.tick(self.loop.time())
        self.rearm()
