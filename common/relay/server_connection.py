"""A server connection: one sidecar's HTTP/2 connection, with its incoming requests and running calls."""

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from common.relay.errors import (
    FramingError,
    Http2Error,
    MalformedField,
    MessageCompressed,
    MessageTooLarge,
    ServerClosing,
)
from common.relay.frames import ErrorCode
from common.relay.framing import Deframer, frame
from common.relay.hpack import Header, encode
from common.relay.metadata import RESPONSE_BLOCK, RESPONSE_HEADERS, is_grpc, parse_timeout, trailer_block
from common.relay.pump import Pump
from common.relay.server_call import CancelReason, ServerCall
from common.status import Code, Origin, Status

logger = logging.getLogger("csi_bridge.relay")

Handler = Callable[[ServerCall], Awaitable[None]]
"""Answers one call. It is cancelled when the caller gives up (see `ServerCall.cancelled_by`)."""

PREFACE_TIMEOUT_S = 120.0
"""How long a new connection may be silent before it is closed, as in grpc-go's server (connectionTimeout)."""

MESSAGE_LIMIT_BYTES = 32 << 10
"""The longest `grpc-message` for a client that sets no limit; every sidecar's limit is far higher."""


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The settings of a server. `serve` has the details.

    Attributes:
        max_message_bytes: the largest request message.
        on_error: returns the status for a failed, cut or refused call.
        too_large: returns the status for a request message of this many bytes.
        on_deadline: returns the status for a call whose deadline passed in its handler.
        max_connections: connections above this number are closed; accepted ones stay open, however idle.
        origin: the hop named in the server's own statuses.
    """

    max_message_bytes: int
    on_error: Callable[[BaseException | None], Status]
    too_large: Callable[[int], Status]
    on_deadline: Callable[[ServerCall], Status]
    max_connections: int
    origin: str = Origin.PROXY


class Owner(Protocol):
    """The server of a connection."""

    settings: ServerSettings
    handler: Handler
    draining: bool

    def connection_opened(self, connection: "ServerConnection") -> None:
        """Add a client's connection."""

    def connection_closed(self, connection: "ServerConnection") -> None:
        """Remove a connection that is over."""

    def call_began(self) -> None:
        """Count a handler that starts."""

    def call_ended(self) -> None:
        """Count a handler whose task is over."""


class _Request:
    """A request that has not arrived completely."""

    __slots__ = ("deadline", "deframer", "message", "method", "timeout_s")

    def __init__(self, method: str, timeout_s: float | None, deadline: float | None, limit_bytes: int) -> None:
        self.method = method
        self.timeout_s = timeout_s
        self.deadline = deadline
        self.deframer = Deframer(limit_bytes)
        self.message: bytes | None = None


class _Running:
    """A call whose handler runs."""

    __slots__ = ("call", "task", "timer")

    def __init__(self, call: ServerCall) -> None:
        self.call = call
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None


class ServerConnection(Pump):
    """One client's connection."""

    def __init__(self, owner: Owner) -> None:
        super().__init__(client=False)
        self._owner = owner
        self._settings = owner.settings
        self._requests: dict[int, _Request] = {}
        self._running: dict[int, _Running] = {}
        self._silent: asyncio.TimerHandle | None = None

    # The connection's life.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Report the connection to the server."""
        super().connection_made(transport)
        self._owner.connection_opened(self)
        self._silent = self._loop.call_later(PREFACE_TIMEOUT_S, self._never_spoke)

    def settings_received(self) -> None:
        """Stop the timer for silent clients: this one speaks HTTP/2."""
        if self._silent is not None:
            self._silent.cancel()
            self._silent = None

    def _never_spoke(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def closed(self, why: Exception | None) -> None:
        """Cancel this client's calls."""
        if isinstance(why, Http2Error):
            logger.warning(
                "a client of the gRPC socket broke the rules of HTTP/2, and its connection was closed: %s", why
            )
        if self._silent is not None:
            self._silent.cancel()
        self._requests.clear()
        for stream_id in list(self._running):
            self._cancel(stream_id, CancelReason.CALLER_LOST)
        self._owner.connection_closed(self)

    def say_goodbye(self) -> None:
        """Send GOAWAY and close: the server stops, and no call runs here."""
        if self._transport is not None and not self._transport.is_closing():
            self._http2.goaway(ErrorCode.NO_ERROR)
            self._flush()
            self._transport.close()

    def cancel_calls(self) -> None:
        """Cancel every handler because the server closes."""
        for stream_id in list(self._running):
            self._cancel(stream_id, CancelReason.CLOSING)

    def abort(self) -> None:
        """Drop the connection, even if the client does not read."""
        if self._transport is not None:
            self._transport.abort()

    # HTTP/2's side.

    def headers_received(self, stream_id: int, headers: list[Header], *, ended: bool) -> None:
        """Take a new request. A request's trailers have no meaning."""
        if stream_id not in self._requests and stream_id not in self._running:
            self._begin(stream_id, headers)
        if ended:
            self._request_ended(stream_id)

    def body_received(self, stream_id: int, data: memoryview, flow_bytes: int, *, ended: bool) -> None:
        """Take bytes of a request message. The message limit bounds them, so the window is given back at once."""
        self._http2.consumed(stream_id, flow_bytes)
        request = self._requests.get(stream_id)
        if request is None:
            return
        try:
            self._feed(request, data)
        except MessageTooLarge as error:
            self._refuse(stream_id, self._settings.too_large(error.size_bytes))
        except MessageCompressed:
            self._refuse(stream_id, self._own(Code.UNIMPLEMENTED, "compressed requests are not supported"))
        except FramingError as error:
            self._refuse(stream_id, self._own(Code.UNAVAILABLE, str(error)))
        if ended:
            self._request_ended(stream_id)

    def stream_reset(self, stream_id: int, _code: int) -> None:
        """Cancel a call whose stream the client has reset."""
        self._requests.pop(stream_id, None)
        self._drop_outgoing(stream_id)
        self._cancel(stream_id, CancelReason.CALLER_CANCELLED)

    # A request on its way in.

    def _begin(self, stream_id: int, headers: list[Header]) -> None:
        fields = dict(headers)
        if fields.get(b":method") != b"POST":
            self._refuse(stream_id, self._own(Code.UNAVAILABLE, "gRPC calls are HTTP/2 POST requests"), b"405")
            return
        if not is_grpc(fields.get(b"content-type")):
            self._refuse(stream_id, self._own(Code.UNAVAILABLE, "the content-type is not application/grpc"), b"415")
            return
        try:
            timeout = fields.get(b"grpc-timeout")
            timeout_s = None if timeout is None else parse_timeout(timeout)
            method = fields.get(b":path", b"").decode("ascii")
        except (MalformedField, UnicodeDecodeError) as error:
            self._refuse(stream_id, self._own(Code.UNAVAILABLE, f"malformed request headers: {error}"))
            return
        deadline = None if timeout_s is None else self._loop.time() + timeout_s
        self._requests[stream_id] = _Request(method, timeout_s, deadline, self._settings.max_message_bytes)

    def _feed(self, request: _Request, data: memoryview) -> None:
        request.deframer.feed(data)
        if request.message is None:
            request.message = request.deframer.pop()
        if request.message is not None and request.deframer.pending_bytes:
            raise FramingError("more than one request message; client streaming is not supported")

    def _request_ended(self, stream_id: int) -> None:
        request = self._requests.pop(stream_id, None)
        if request is None:
            return
        if request.message is None:
            self._refuse(stream_id, self._own(Code.UNAVAILABLE, "the request message is missing or cut short"))
        elif self._owner.draining:
            self._refuse(stream_id, self._settings.on_error(ServerClosing()))
        else:
            self._dispatch(stream_id, request, request.message)

    def _refuse(self, stream_id: int, status: Status, http_status: bytes = b"200") -> None:
        """Answer without a handler, and let a client that is still sending stop (RFC 9113, 8.1)."""
        self._requests.pop(stream_id, None)
        block = encode([(b":status", http_status), *RESPONSE_HEADERS[1:]])
        self._http2.send_headers(stream_id, block + trailer_block(status, self._message_limit_bytes), end=True)
        self._http2.reset(stream_id, ErrorCode.NO_ERROR)

    def _own(self, code: Code, text: str) -> Status:
        return Status(code, text, self._settings.origin)

    @property
    def _message_limit_bytes(self) -> int:
        """The longest `grpc-message` for this client. C-core drops trailers at random above half of its own limit."""
        limit = self._http2.peer_header_list_bytes
        return MESSAGE_LIMIT_BYTES if limit is None else min(MESSAGE_LIMIT_BYTES, limit // 4)

    # A call under way.

    def _dispatch(self, stream_id: int, request: _Request, message: bytes) -> None:
        call = ServerCall(self, stream_id, method=request.method, request=message, timeout_s=request.timeout_s)
        running = self._running[stream_id] = _Running(call)
        if request.deadline is not None:
            running.timer = self._loop.call_at(request.deadline, self._cancel, stream_id, CancelReason.DEADLINE)
        self._owner.call_began()
        running.task = self._loop.create_task(self._run(call), name=call.method)
        running.task.add_done_callback(functools.partial(self._over, running))

    async def _run(self, call: ServerCall) -> None:
        try:
            await self._owner.handler(call)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - the caller gets the owner's status for every error
            call.finish(self._settings.on_error(error))

    def _over(self, running: _Running, task: asyncio.Task[None]) -> None:
        """Finish a call whose handler ended, or was cancelled before it began, without a status."""
        call = running.call
        if running.timer is not None:
            running.timer.cancel()
        self._running.pop(call.stream_id, None)
        if not call.finished and not call.gone:
            call.finish(self._status_for(call, task))
        self._owner.call_ended()

    def _status_for(self, call: ServerCall, task: asyncio.Task[None]) -> Status:
        if call.cancelled_by is CancelReason.DEADLINE:
            return self._settings.on_deadline(call)
        if call.cancelled_by is CancelReason.CLOSING:
            return self._settings.on_error(ServerClosing())
        return self._settings.on_error(asyncio.CancelledError() if task.cancelled() else task.exception())

    def _cancel(self, stream_id: int, reason: CancelReason) -> None:
        running = self._running.get(stream_id)
        if running is None or running.call.gone:
            return
        running.call.cancelled_by = reason
        if running.task is not None:
            running.task.cancel()

    # The answer (`server_call.AnswerWriter`).

    async def send_message(self, call: ServerCall, message: bytes) -> None:
        """See `ServerCall.send`."""
        if call.stream_id in self._outgoing:
            raise RuntimeError(f"{call.method}: a message was sent while another is under way")
        if not call.headers_sent:
            call.headers_sent = True
            self._http2.send_headers(call.stream_id, RESPONSE_BLOCK, end=False)
        waiting = self._send_message(call.stream_id, frame(message), end=False, watch=True)
        if waiting is not None:
            await waiting

    def send_status(self, call: ServerCall, status: Status) -> bool:
        """See `ServerCall.finish`."""
        if not self.open:
            return False
        block = trailer_block(status, self._message_limit_bytes)
        if call.stream_id in self._outgoing:
            self._finish_cut(call, block)
            return False
        if not call.headers_sent:
            block = RESPONSE_BLOCK + block
        self._http2.send_headers(call.stream_id, block, end=True)
        self._flush()
        return True

    def _finish_cut(self, call: ServerCall, block: bytes) -> None:
        """End a call whose last `send` was cancelled: send the whole message and the trailers, or reset the stream."""
        if call.cancelled_by is CancelReason.DEADLINE:
            self._drop_outgoing(call.stream_id)
            self._http2.reset(call.stream_id, ErrorCode.CANCEL)
            self._flush()
        else:
            self._outgoing[call.stream_id].trailers = block
