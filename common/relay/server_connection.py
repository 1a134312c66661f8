"""A server connection: one sidecar's HTTP/2 connection, with its incoming requests and running calls."""

import asyncio
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from common.deadlines import Deadlines
from common.relay import frames
from common.relay.connection import MAX_STREAMS, Connection
from common.relay.errors import (
    Http2Error,
    MalformedField,
    MessageCompressed,
    MessageTooLarge,
    ServerClosing,
)
from common.relay.frames import FRAME_BYTES, ErrorCode
from common.relay.framing import Deframer
from common.relay.hpack import Header, encode
from common.relay.metadata import CONTENT_TYPE, RESPONSE_HEADERS, is_grpc, parse_timeout, trailer_block
from common.relay.server_call import Callee, CancelReason, ServerCall
from common.status import Code, Origin, Status

if TYPE_CHECKING:
    from common.relay.server import Server

log = logging.getLogger("csi_bridge.relay")

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


class ServerConnection(Connection[ServerCall]):
    """One client's connection.

    Attributes:
        settings: the server's.
    """

    def __init__(self, owner: "Server") -> None:
        super().__init__(client=False)
        self.settings = owner.settings
        self._owner = owner
        self._deadlines = Deadlines()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
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
        if self.transport is not None:
            self.transport.close()

    def closed(self, why: Exception | None) -> None:
        """Cancel this client's calls."""
        if isinstance(why, Http2Error):
            log.warning("a client of the gRPC socket broke the rules of HTTP/2, and its connection was closed: %s", why)
        if self._silent is not None:
            self._silent.cancel()
        if self._timer is not None:
            self._timer.cancel()
        self.cancel_calls(CancelReason.CALLER_LOST)
        self._owner.connection_closed(self)

    def say_goodbye(self) -> None:
        """Send GOAWAY and close: the server stops, and no call runs here."""
        if self.transport is not None and not self.transport.is_closing():
            self._goaway(ErrorCode.NO_ERROR)
            self.flush()
            self.transport.close()

    def cancel_calls(self, reason: CancelReason = CancelReason.CLOSING) -> None:
        """Cancel every call, if nothing else is said because the server closes."""
        for call in list(self.streams.values()):
            call.cancel(reason)

    # A request on its way in.

    def stream_opened(self, stream_id: int, fields: list[Header], *, ended: bool) -> None:
        """Take the headers of a new request."""
        if stream_id <= self.highest_id:
            return
        self.highest_id = stream_id
        if len(self.streams) >= MAX_STREAMS:
            self.out.append(frames.rst_stream(stream_id, ErrorCode.REFUSED_STREAM))
            return
        call = self.streams[stream_id] = ServerCall(self, stream_id)
        call.remote_ended = ended
        found = dict(fields)
        content_type, timeout = found.get(b"content-type"), found.get(b"grpc-timeout")
        if found.get(b":method") != b"POST":
            self._refuse(call, Code.UNAVAILABLE, "gRPC calls are HTTP/2 POST requests", b"405")
            return
        if content_type != CONTENT_TYPE and not is_grpc(content_type):
            self._refuse(call, Code.UNAVAILABLE, "the content-type is not application/grpc", b"415")
            return
        try:
            if timeout is not None:
                call.timeout_s = parse_timeout(timeout)
                call.deadline = self._loop.time() + call.timeout_s
            call.method = found.get(b":path", b"").decode("ascii")
        except (MalformedField, UnicodeDecodeError) as error:
            self._refuse(call, Code.UNAVAILABLE, f"malformed request headers: {error}")
            return
        if ended:
            self.request_ended(call)

    def join_request(self, call: ServerCall, part: bytes) -> None:
        """Take a part of a request that did not come in one frame. The message limit bounds it, not the window."""
        self.give_back(call)
        deframer = call.deframer = call.deframer or Deframer(self.settings.max_message_bytes)
        deframer.feed(part)
        try:
            if not call.is_whole and (message := deframer.pop()) is not None:
                call.request, call.is_whole = message, True
        except MessageTooLarge as error:
            self._answer_early(call, self.settings.too_large(error.size_bytes))
        except MessageCompressed:
            self._refuse(call, Code.UNIMPLEMENTED, "compressed requests are not supported")
        else:
            if call.is_whole and deframer.pending_bytes:
                text = "more than one request message; client streaming is not supported"
                self._refuse(call, Code.UNAVAILABLE, text)
            elif call.remote_ended:
                self.request_ended(call)

    def request_ended(self, call: ServerCall) -> None:
        """Hand over a request that came in pieces, if it is whole."""
        if call.is_whole:
            self.dispatch(call)
        else:
            self._refuse(call, Code.UNAVAILABLE, "the request message is missing or cut short")

    def _refuse(self, call: ServerCall, code: Code, text: str, http_status: bytes = b"200") -> None:
        self._answer_early(call, Status(code, text, self.settings.origin), http_status)

    def _answer_early(self, call: ServerCall, status: Status, http_status: bytes = b"200") -> None:
        """Answer without a handler, and let a client that is still sending stop (RFC 9113, 8.1)."""
        block = encode([(b":status", http_status), *RESPONSE_HEADERS[1:]])
        self.send_headers(call.stream_id, block + trailer_block(status, self.message_limit_bytes), end=True)
        if call.remote_ended:
            del self.streams[call.stream_id]
        else:
            self.reset(call.stream_id, ErrorCode.NO_ERROR)

    # A call under way.

    def dispatch(self, call: ServerCall) -> None:
        """Give a call whose request is whole to the handler."""
        owner = self._owner
        if owner.draining:
            self._answer_early(call, self.settings.on_error(ServerClosing()))
            return
        if call.deadline is not None:
            self._deadlines.add(call.deadline, call.stream_id, self.streams)
            if call.deadline < self._timer_at:
                self._arm(call.deadline)
        owner.calls_in_flight += 1
        try:
            callee = owner.handler(call)
            if not call.finished:
                call.callee = callee
        except Exception as error:  # noqa: BLE001 - the caller gets the owner's status for every error
            call.fail(error)

    def over(self, call: ServerCall) -> None:
        """Forget a call that has its end."""
        self.streams.pop(call.stream_id, None)
        owner = self._owner
        owner.calls_in_flight -= 1
        if owner.draining and not owner.calls_in_flight:
            owner.idle.set()

    def _expire(self) -> None:
        self._timer, self._timer_at = None, math.inf
        for stream_id in self._deadlines.passed(self._loop.time()):
            if (call := self.streams.get(stream_id)) is not None:
                call.cancel(CancelReason.DEADLINE)
        first = self._deadlines.first
        if first is not None and first < self._timer_at:
            self._arm(first)

    def _arm(self, deadline: float) -> None:
        """Keep one timer, for the first deadline."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = self._loop.call_at(deadline, self._expire), deadline

    # For its calls.

    @property
    def message_limit_bytes(self) -> int:
        """The longest `grpc-message` for this client. C-core drops trailers at random above half of its own limit."""
        limit = self.peer_header_list_bytes
        return MESSAGE_LIMIT_BYTES if limit is None else min(MESSAGE_LIMIT_BYTES, limit // 4)

    def can_send(self, call: ServerCall, size: int) -> bool:
        """Whether DATA of this size may leave at once, in one frame."""
        return (
            self.table_said
            and not self.outgoing
            and not self.paused
            and size <= FRAME_BYTES
            and size <= call.send_window
            and size <= self.send_window
            and self.transport is not None
            and not self.transport.is_closing()
        )

    def cut(self, call: ServerCall) -> None:
        """Reset the stream of a caller that does not read its answer."""
        self.reset(call.stream_id, ErrorCode.CANCEL)
        self.drop_outgoing(call.stream_id)
        self.flush()

    def status_for(self, call: ServerCall, error: BaseException | None) -> Status:
        """The status of a call that failed with this error, or was cancelled."""
        if not isinstance(error, Exception):
            if call.cancelled_by is CancelReason.DEADLINE:
                return self.settings.on_deadline(call)
            if call.cancelled_by is CancelReason.CLOSING:
                return self.settings.on_error(ServerClosing())
        return self.settings.on_error(error)
