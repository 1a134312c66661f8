"""A link: one session on the event loop, its streams as objects to await.

`common.session` has the rules of the protocol, `common.transport` the WebSocket. A link stands between them: it turns
events into futures and handler tasks, and `now` into a timer. It uses no socket: its transport passes bytes in and
pulls bytes out.

Rules:

* One task serves one accepted stream. It has a name, and its failure is logged. When the opener stops waiting, the task
  is cancelled, unless it has detached itself.
* No method waits for the network: `send()` waits only for the message before the last one.
* An idle link has one timer, and no task or future: one hub has thousands of links.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any, ClassVar, Protocol

from common.errors import CallError, CallTimeout, HandshakeRefused, TunnelClosed, status_of
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
from common.messages import Hello, Kind, Open, Priority, Reason
from common.session import Session, State
from common.status import Code, Origin, Status

log = logging.getLogger("csi_bridge.link")


class LinkHandler(Protocol):
    """Handles the links of a process. One object handles all links of a listener."""

    origin: Origin

    def greeted(self, link: "Link") -> None:
        """The peer has sent its hello (`link.peer`). An acceptor calls `link.accept()` or `link.refuse()` now."""

    async def serve(self, stream: "Stream") -> None:
        """Serve an accepted stream and end it. A raised error becomes its status. Cancelled if the opener leaves."""

    def draining(self, link: "Link", message: str) -> None:
        """The peer takes no new streams."""

    def refused(self, link: "Link", reason: str, message: str) -> None:
        """The link ended before the peer's hello."""

    def closed(self, link: "Link", reason: str, message: str) -> None:
        """The link is gone, for any reason. Called once for every link that was greeted."""


class Writer(Protocol):
    """A link's transport: it calls `pull()`, now or later, until that returns nothing."""

    def flush(self) -> None:
        """Write now: somebody waits for it."""

    def flush_soon(self) -> None:
        """Write at the end of this turn of the loop, so that later messages share the write."""

    def flush_later(self) -> None:
        """Write within some milliseconds, or with the next write."""


class Stream:
    """One stream of a link.

    The opener reads with `receive()` until None, then finds `status`, then calls `acknowledge()`. The acceptor reads
    `opened`, answers with `send()` and `end()`, and may set `on_released` to hear whether the answer was delivered.
    """

    __slots__ = ("_detached", "_error", "_inbox", "_link", "_taken", "_waiter", "_writable", "deadline", "id",
                 "on_released", "opened", "status", "task")  # fmt: skip

    def __init__(self, link: "Link", number: int, opened: Open | None = None, deadline: float | None = None) -> None:
        self.id = number
        self.opened = opened
        """The opener's frame; None on the opener's own side."""
        self.deadline = deadline
        """When the opener's time is up, in the loop's clock, or None."""
        self.status: Status | None = None
        self.on_released: Callable[[bool], None] | None = None
        """Called once with `delivered`, when an accepted stream is over for both sides."""
        self.task: asyncio.Task[None] | None = None
        self._link = link
        self._inbox: deque[bytes] | None = None
        self._taken = (
            -1
        )  # size of the last message that `receive` returned, whose credit has not gone back yet (-1: none)
        self._waiter: asyncio.Future[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._error: TunnelClosed | CallTimeout | None = None
        self._detached = False

    @property
    def link(self) -> "Link":
        """The link that carries it."""
        return self._link

    async def receive(self) -> bytes | None:
        """Return the next whole message, or None after the last one.

        The credit of a message goes back when the caller asks for the next one, so a forwarding caller passes on the
        pace of its own reader. Cancelling loses nothing.

        Raises:
            TunnelClosed: the link ended first.
            CallTimeout: the stream's time was up first.
        """
        self._give_back()
        while not self._inbox:
            if self._error is not None:
                raise self._error
            if self.status is not None:
                return None
            self._waiter = self._link.loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        message = self._inbox.popleft()
        self._taken = len(message)
        return message

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """All messages until the end of the stream; errors as in `receive()`."""
        while (message := await self.receive()) is not None:
            yield message

    async def send(self, message: bytes) -> None:
        """Queue a message. Waits while an earlier one has not left yet, so that at most two are queued.

        For one sender at a time. Cancelling leaves the message unsent.

        Raises:
            MessageTooLarge: the peer does not accept it.
        """
        while self._link.session.unsent(self.id):
            self._writable = self._link.loop.create_future()
            try:
                await self._writable
            finally:
                self._writable = None
        self.queue(message)

    def queue(self, message: bytes) -> None:
        """Queue a message without waiting: for small and rare ones.

        Raises:
            MessageTooLarge: the peer does not accept it.
        """
        self._link.session.send(self.id, message)
        self._link.pump()
        self._link.writer.flush_soon()

    def end(self, status: Status, message: bytes | None = None) -> None:
        """End an accepted stream, with a last message if there is one. Ignored if the opener has left."""
        if message is not None:
            self._link.session.send(self.id, message)
        self.status = status
        self._link.session.end(self.id, status)
        self._link.pump()
        self._link.writer.flush()

    def acknowledge(self, *, delivered: bool) -> None:
        """Release an ended stream that this side opened: the answer reached the caller, or the caller did not take it.

        The frame is not urgent, so it shares the next write.
        """
        self._drop_inbox()
        self._link.session.acknowledge(self.id, delivered=delivered)
        self._link.forget(self)
        self._link.writer.flush_later()

    def cancel(self) -> None:
        """Stop waiting for a stream that this side opened. After its end that does no harm."""
        if self.status is not None:
            self.acknowledge(delivered=False)
            return
        self._drop_inbox()
        self._link.session.cancel(self.id)
        self._link.forget(self)
        self._link.writer.flush_soon()

    @property
    def exhausted(self) -> bool:
        """Whether `receive()` would return None now: the status is there, and no message before it is left."""
        return self.status is not None and not self._inbox

    def detach(self) -> None:
        """Keep the task of an accepted stream from being cancelled when the opener leaves.

        For work that must not be cut in the middle. Messages that it sends after the opener has left are dropped.
        """
        self._detached = True

    def remaining_s(self) -> float | None:
        """The rest of the opener's time, in seconds; None if it set no limit."""
        return None if self.deadline is None else max(0.001, self.deadline - self._link.loop.time())

    # ---- the link's side

    def took(self, message: bytes) -> None:
        """A message came in."""
        if self._inbox is None:
            self._inbox = deque()
        self._inbox.append(message)
        self._wake()

    def finish(self, status: Status | None, error: TunnelClosed | CallTimeout | None = None) -> None:
        """The stream ended."""
        self.status, self._error = status, error
        self._wake()
        self.writable()

    def writable(self) -> None:
        """Every message left."""
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)

    def no_longer_awaited(self) -> None:
        """The opener of an accepted stream has left."""
        if self.task is not None and not self._detached:
            self.task.cancel()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _give_back(self) -> None:
        if self._taken >= 0:
            self._link.session.consumed(self.id, self._taken)
            self._link.writer.flush_later()
            self._taken = -1

    def _drop_inbox(self) -> None:
        self._give_back()
        while self._inbox:
            self._link.session.consumed(self.id, len(self._inbox.popleft()))


class Link:
    """One session on the loop. Made by `common.transport`, which calls `received`, `pull` and `lost`."""

    __slots__ = ("__weakref__", "_closed", "_handler", "_on_greeting", "_streams", "_timer", "_timer_at",
                 "context", "draining", "greeted", "loop", "peer_identity", "session", "writer")  # fmt: skip

    def __init__(
        self,
        session: Session,
        handler: LinkHandler,
        *,
        loop: asyncio.AbstractEventLoop,
        writer: Writer,
        peer_identity: Any = None,
        on_hello: Callable[["Link"], None] | None = None,
    ) -> None:
        """A link for a transport.

        Args:
            session: the session, fresh.
            handler: handles the link and serves its streams.
            loop: the running loop.
            writer: the transport.
            peer_identity: the transport's knowledge of the peer (`common.peer.Peer`).
            on_hello: called in place of `handler.greeted`, which it may call.
        """
        self.session = session
        self.loop = loop
        self.greeted = False
        self.draining = False
        """Whether the peer takes no new streams."""
        self.peer_identity = peer_identity
        self.context: Any = None
        """The handler's own note about this link."""
        self._handler = handler
        self._on_greeting = on_hello or handler.greeted
        self.writer = writer
        self._streams: dict[int, Stream] = {}
        self._closed: asyncio.Future[tuple[str, str]] | tuple[str, str] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._arm()

    # ---- the application's side --------------------------------------------------------------------------------------

    @property
    def peer(self) -> Hello:
        """The peer's hello. It exists from `greeted()` on."""
        assert self.session.peer is not None
        return self.session.peer

    def accept(self) -> None:
        """Welcome the peer. Ignored if the session is over: the peer may break a rule in the message of its hello."""
        if self.session.state is State.CLOSED:
            return
        self.session.accept()
        self._arm()
        self.pump()
        self.writer.flush_soon()

    def refuse(self, refusal: HandshakeRefused) -> None:
        """Refuse the peer, with a reason that it can print."""
        self.session.refuse(refusal.reason, refusal.why)
        self.pump()
        self.writer.flush_soon()

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
        """Open a stream, with a first message if there is one.

        Raises:
            TunnelClosed: the link is not up; nothing was sent.
            Overloaded: the peer takes no more streams at once.
            MessageTooLarge: the peer does not accept the message; nothing was sent.
        """
        number = self.session.open(
            kind,
            now=self.loop.time(),
            priority=priority,
            subject=subject,
            method=method,
            node=node,
            call=call,
            timeout_s=timeout_s,
        )
        if message is not None:
            try:
                self.session.send(number, message)
            except CallError:
                self.session.cancel(number)
                raise
        stream = Stream(self, number)
        self._streams[number] = stream
        if timeout_s is not None:
            self._arm()
        self.pump()
        self.writer.flush()
        return stream

    def drain(self, message: str) -> None:
        """Ask the peer for no new streams. The link closes itself when the open ones have ended."""
        self.session.drain(message)
        self.pump()
        self.writer.flush_soon()

    def goodbye(self, reason: str, message: str) -> None:
        """Close the link, and send the peer the reason."""
        self.session.goodbye(reason, message)
        self.pump()
        self.writer.flush_soon()

    async def wait_closed(self) -> tuple[str, str]:
        """Wait for the end of the link. Returns its reason and message."""
        if isinstance(self._closed, tuple):
            return self._closed
        if self._closed is None:
            self._closed = self.loop.create_future()
        return await asyncio.shield(self._closed)

    # ---- the transport's side ----------------------------------------------------------------------------------------

    def received(self, data: bytes) -> None:
        """One WebSocket message came in."""
        self.session.receive(data, self.loop.time())
        self.pump()
        if self.session.has_output or self.over:
            self.writer.flush_soon()

    def lost(self, message: str) -> None:
        """The transport is gone."""
        self.session.lost(message)
        self.pump()

    def pull(self) -> bytes:
        """The next WebSocket message to write, or b"" when there is none."""
        data = self.session.to_send()
        self.pump()
        return data

    @property
    def over(self) -> bool:
        """Whether the session has ended: the transport writes the rest from `pull()`, then closes the socket."""
        return isinstance(self._closed, tuple)

    def pump(self) -> None:
        """Hand out the session's events, after anything has touched it. The caller flushes.

        If a callback of an event fails, the link ends. The events after it are delivered all the same: `Closed` may be
        among them, and the handler must hear of it.
        """
        has_failed = False
        for event in self.session.events():
            try:
                self._EVENTS[type(event)](self, event)
            except Exception:
                log.exception("a link ends, because its handler failed on the event %s", type(event).__name__)
                self.session.goodbye(Reason.FAILED, "this end of the link failed; its log has the details")
                has_failed = True
        if has_failed:  # the events of that end come after those before it
            self.pump()
            self.writer.flush_soon()

    def forget(self, stream: Stream) -> None:
        """Drop a released stream that this side opened."""
        self._streams.pop(stream.id, None)
        self.pump()

    # ---- events ------------------------------------------------------------------------------------------------------

    def _on_hello(self, _event: HelloReceived | Welcomed) -> None:
        self.greeted = True
        self._arm()
        self._on_greeting(self)

    def _on_opened(self, event: Opened) -> None:
        stream = Stream(self, event.stream, event.frame, event.deadline)
        self._streams[event.stream] = stream
        stream.task = self.loop.create_task(self._serve(stream), name=f"stream {event.stream} {event.frame.method}")

    def _on_message(self, event: Message) -> None:
        stream = self._streams.get(event.stream)
        if stream is None:
            self.session.consumed(event.stream, len(event.payload))
        else:
            stream.took(event.payload)

    def _on_ended(self, event: Ended) -> None:
        stream = self._streams.get(event.stream)
        if stream is None:
            self.session.acknowledge(event.stream, delivered=False)
        else:
            stream.finish(event.status)

    def _on_failed(self, event: Failed) -> None:
        stream = self._streams.pop(event.stream, None)
        if stream is not None:
            stream.finish(None, event.error)

    def _on_cancelled(self, event: Cancelled) -> None:
        self._streams[event.stream].no_longer_awaited()

    def _on_released(self, event: Released) -> None:
        stream = self._streams.pop(event.stream)
        stream._drop_inbox()  # noqa: SLF001  # the link and its streams are one module
        if stream.on_released is not None:
            stream.on_released(event.delivered)

    def _on_writable(self, event: Writable) -> None:
        stream = self._streams.get(event.stream)
        if stream is not None:
            stream.writable()

    def _on_peer_draining(self, event: PeerDraining) -> None:
        self.draining = True
        self._handler.draining(self, event.message)

    def _on_closed(self, event: Closed) -> None:
        waiting, self._closed = self._closed, (event.reason, event.message)
        if isinstance(waiting, asyncio.Future) and not waiting.done():
            waiting.set_result(self._closed)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.greeted:
            self._handler.closed(self, event.reason, event.message)
        else:
            self._handler.refused(self, event.reason, event.message)

    async def _serve(self, stream: Stream) -> None:
        try:
            await self._handler.serve(stream)
            if stream.status is None:
                stream.end(status_of(None, self._handler.origin))
        except asyncio.CancelledError:
            if stream.status is None:  # the process stops, and the opener may still wait
                stream.end(Status(Code.UNAVAILABLE, "the call was stopped; a retry is safe", self._handler.origin))
            raise
        except CallError as error:
            stream.end(status_of(error, self._handler.origin))
        except Exception as error:
            log.exception("a stream's handler failed: %s", stream.opened)
            stream.end(status_of(error, self._handler.origin))
        finally:
            stream.task = None

    # ---- the timer ---------------------------------------------------------------------------------------------------

    def _arm(self) -> None:
        """Keep one timer, no later than the session's next tick. A timer that fires too early is set again.

        Called when the next tick may be earlier than before. Received bytes only put it off.
        """
        due = self.session.next_tick()
        if due is None or (self._timer is not None and self._timer_at <= due):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = due
        self._timer = self.loop.call_at(due, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.session.tick(self.loop.time())
        self._arm()
        self.pump()
        self.writer.flush_soon()

    _EVENTS: ClassVar[dict[type[Event], Callable[["Link", Any], None]]] = {
        HelloReceived: _on_hello,
        Welcomed: _on_hello,
        Opened: _on_opened,
        Message: _on_message,
        Ended: _on_ended,
        Failed: _on_failed,
        Cancelled: _on_cancelled,
        Released: _on_released,
        Writable: _on_writable,
        PeerDraining: _on_peer_draining,
        Closed: _on_closed,
    }
