"""A server connection: one sidecar's HTTP/2 connection, with its incoming requests and running calls."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from common.deadlines import Deadlines
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
from common.relay.pump import Pump, Taken
from common.relay.server_call import Callee, CancelReason, ServerCall
from common.status import Code, Origin, Status

if TYPE_CHECKING:
    from common.relay.server import Server

logger = logging.getLogger("csi_bridge.relay")

Handler = Callable[[ServerCall], Callee | None]
"""Takes a call. Returns its callee, or None if it has finished the call already."""

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
        on_deadline: returns the status for a call whose deadline passed.
        max_connections: connections above this number are closed; accepted ones stay open, however idle.
        origin: the hop named in the server's own statuses.
    """

    max_message_bytes: int
    on_error: Callable[[BaseException | None], Status]
    too_large: Callable[[int], Status]
    on_deadline: Callable[[ServerCall], Status]
    max_connections: int
    origin: str = Origin.PROXY


class _Request:
    """A request that has not arrived completely."""

    __slots__ = ("deadline", "deframer", "message", "method", "timeout_s")

    def __init__(self, method: str, timeout_s: float | None, deadline: float | None, limit_bytes: int) -> None:
        self.method = method
        self.timeout_s = timeout_s
        self.deadline = deadline
        self.deframer = Deframer(limit_bytes)
        self.message: bytes | None = None


class ServerConnection(Pump):
    """One client's connection."""

    def __init__(self, owner: "Server") -> None:
        super().__init__(client=False)
        self._owner = owner
        self._settings = owner.settings
        self._requests: dict[int, _Request] = {}
        self._running: dict[int, ServerCall] = {}
        self._deadlines = Deadlines()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        """The time of the timer. uvloop gives a handle without a time for one that is due."""
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
        if self._timer is not None:
            self._timer.cancel()
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
        """Cancel every call because the server closes."""
        for stream_id in list(self._running):
            self._cancel(stream_id, CancelReason.CLOSING)

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
        except FramingError as flaw:
            self._refuse(stream_id, self._own(Code.UNAVAILABLE, str(flaw)))
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
        self._running[stream_id] = call
        if request.deadline is not None:
            self._deadlines.add(request.deadline, stream_id, self._running)
            self._arm()
        self._owner.call_began()
        try:
            callee = self._owner.handler(call)
            if not call.finished:
                call.callee = callee
        except Exception as error:  # noqa: BLE001 - the caller gets the owner's status for every error
            call.fail(error)

    def _expire(self) -> None:
        self._timer = None
        for stream_id in self._deadlines.passed(self._loop.time()):
            self._cancel(stream_id, CancelReason.DEADLINE)
        self._arm()

    def _arm(self) -> None:
        """Keep one timer, no later than the first deadline."""
        first = self._deadlines.first
        if first is None or (self._timer is not None and self._timer_at <= first):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = self._loop.call_at(first, self._expire), first

    def _cancel(self, stream_id: int, reason: CancelReason) -> None:
        call = self._running.get(stream_id)
        if call is None or call.gone:
            return
        call.cancelled_by = reason
        if not call.finished and call.callee is not None:
            call.callee.cancelled()
        elif reason is CancelReason.DEADLINE and stream_id in self._outgoing:
            self._cut(stream_id)

    # The answer of a call (`server_call.ServerCall`).

    def send_message(self, call: ServerCall, message: bytes, taken: Taken) -> None:
        """Send one message, after the headers if it is the first. It leaves at the end of the loop's turn."""
        if not call.headers_sent:
            call.headers_sent = True
            self._http2.send_headers(call.stream_id, RESPONSE_BLOCK, end=False)
        self._send_message(call.stream_id, frame(message), end=False, taken=taken)
        self._flush_soon()

    def send_status(self, call: ServerCall, status: Status, taken: Taken) -> None:
        """Send the trailers, and all that waits."""
        outgoing = self._outgoing.get(call.stream_id)
        if call.gone or not self.open or (outgoing is not None and call.cancelled_by is CancelReason.DEADLINE):
            if outgoing is not None:
                self._cut(call.stream_id)
            self._over(call)
            taken(False)  # noqa: FBT003
            return
        block = trailer_block(status, self._message_limit_bytes)
        if outgoing is not None:

            def left(whole: bool) -> None:  # noqa: FBT001  # as `pump.Taken`
                self._over(call)
                taken(whole)

            outgoing.trailers = block, left
            return
        self._http2.send_headers(call.stream_id, block if call.headers_sent else RESPONSE_BLOCK + block, end=True)
        self._flush()
        self._over(call)
        taken(True)  # noqa: FBT003

    def _cut(self, stream_id: int) -> None:
        """Reset the stream of a caller that does not read its answer."""
        self._drop_outgoing(stream_id)
        self._http2.reset(stream_id, ErrorCode.CANCEL)
        self._flush()

    def status_for(self, call: ServerCall, error: BaseException | None) -> Status:
        """The status of a call that failed with this error, or was cancelled."""
        if not isinstance(error, Exception):
            if call.cancelled_by is CancelReason.DEADLINE:
                return self._settings.on_deadline(call)
            if call.cancelled_by is CancelReason.CLOSING:
                return self._settings.on_error(ServerClosing())
        return self._settings.on_error(error)

    def _over(self, call: ServerCall) -> None:
        if self._running.pop(call.stream_id, None) is not None:
            self._owner.call_ended()
