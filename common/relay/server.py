"""The gRPC server: takes calls from stock sidecars on a UNIX socket and hands each, as bytes, to one handler.

Rules:

* While the server runs, it sends no GOAWAY to a client that keeps to HTTP/2, and closes no idle connection
  (docs/csi-contract.md#a-sidecar-exits-when-its-connection-ends). `drain` lets running calls finish first.
* Every failure of a callee goes through `on_error`. So no call ends with UNKNOWN or INTERNAL unless the handler says
  so.
* A status has no details (CSI spec, "Error Scheme").
"""

import asyncio
import logging
import math
import socket
from collections.abc import Callable
from dataclasses import dataclass

from common.net.sockets import UnixListener
from common.relay import frames
from common.relay.connection import MAX_STREAMS, Connection
from common.relay.errors import Http2Error
from common.relay.frames import ErrorCode
from common.relay.hpack import Header
from common.relay.metadata import CONTENT_TYPE, is_grpc, parse_timeout
from common.relay.server_call import Callee, CancelReason, ServerCall, in_task
from common.session.deadlines import Deadlines
from common.status import Code, Origin, Status

__all__ = ["Callee", "CancelReason", "Handler", "Server", "ServerCall", "ServerSettings", "in_task"]

log = logging.getLogger("csi_bridge.relay")

# Takes a call. Returns its callee, or None if it has finished the call already. `in_task` makes one that waits.
Handler = Callable[[ServerCall], Callee | None]

# How long a new connection may be silent before it is closed, as in grpc-go's server (connectionTimeout).
PREFACE_TIMEOUT_S = 120.0

# The longest `grpc-message` for a client that sets no limit; every sidecar's limit is far higher.
MESSAGE_LIMIT_BYTES = 32 << 10

CANCEL_GRACE_S = 5.0  # how long `close` waits for cancelled calls to end

GOODBYE_S = 1.0  # how long `close` waits for clients to read their last bytes


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The settings of a server."""

    max_message_bytes: int  # a larger request is refused at its length prefix
    # Returns the status of a call that gets none from its callee. It takes the callee's error, None if there was none,
    # a `common.errors.MessageTooLarge` for a request above the limit, or the reason why the server cut or refused the
    # call: DEADLINE or CLOSING.
    on_error: Callable[[BaseException | CancelReason | None], Status]
    max_connections: int = 1_024  # those above are closed; accepted ones stay open, however idle
    origin: str = Origin.PROXY  # the hop named in the server's own statuses


class ServerConnection(Connection[ServerCall]):
    """One client's connection. `settings` are the server's."""

    def __init__(self, owner: "Server") -> None:
        super().__init__(client=False)
        self.settings = owner.settings
        self._owner = owner
        self._deadlines = Deadlines()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf  # the timer's time: uvloop gives a handle without one for a timer that is due

    # The connection's life.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._owner.connection_opened(self)
        self._silent = self._loop.call_later(PREFACE_TIMEOUT_S, transport.close)

    def settings_received(self) -> None:
        self._silent.cancel()  # it speaks HTTP/2

    def closed(self, why: Exception | None) -> None:
        if isinstance(why, Http2Error):
            log.warning("a client of the gRPC socket broke the rules of HTTP/2, and its connection was closed: %s", why)
        self._silent.cancel()
        if self._timer is not None:
            self._timer.cancel()
        self.cancel_calls(CancelReason.CALLER_LOST)
        self._owner.connection_closed(self)

    def say_goodbye(self) -> None:
        """Send GOAWAY and close: the server stops, and no call runs here."""
        if self.transport is not None and self.open:
            self._goaway(ErrorCode.NO_ERROR)
            self.flush(at_once=True)
            self.transport.close()

    def cancel_calls(self, reason: CancelReason) -> None:
        for call in list(self.streams.values()):
            call.cancel(reason)

    # Calls.

    def stream_opened(self, stream_id: int, fields: list[Header], *, ended: bool) -> None:
        if stream_id <= self.highest_id:
            return
        self.highest_id = stream_id
        if len(self.streams) >= MAX_STREAMS:
            self.out.append(frames.rst_stream(stream_id, ErrorCode.REFUSED_STREAM))
            return
        call = self.streams[stream_id] = ServerCall(self, stream_id)
        call.remote_ended = ended
        found = dict(fields)
        content_type = found.get(b"content-type")
        timeout = found.get(b"grpc-timeout")
        if found.get(b":method") != b"POST":
            call.refuse(Code.UNAVAILABLE, "gRPC calls are HTTP/2 POST requests", b"405")
            return
        if content_type != CONTENT_TYPE and not is_grpc(content_type):
            call.refuse(Code.UNAVAILABLE, "the content-type is not application/grpc", b"415")
            return
        try:
            if timeout is not None:
                call.timeout_s = parse_timeout(timeout)
                call.deadline = self._loop.time() + call.timeout_s
            call.method = found.get(b":path", b"").decode("ascii")
        except ValueError as error:
            call.refuse(Code.UNAVAILABLE, f"malformed request headers: {error}")
            return
        if ended:
            call.request_ended()

    def dispatch(self, call: ServerCall) -> None:
        """Give a call whose request is whole to the handler."""
        owner = self._owner
        if owner.draining:
            call.answer_early(self.settings.on_error(CancelReason.CLOSING))
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
        self.streams.pop(call.stream_id, None)
        owner = self._owner
        owner.calls_in_flight -= 1
        if owner.draining and not owner.calls_in_flight:
            owner.idle.set()

    def _expire(self) -> None:
        self._timer = None
        self._timer_at = math.inf
        for stream_id in self._deadlines.passed(self._loop.time()):
            if (call := self.streams.get(stream_id)) is not None:
                call.cancel(CancelReason.DEADLINE)
        first = self._deadlines.first
        if first is not None and first < self._timer_at:
            self._arm(first)

    def _arm(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(deadline, self._expire)
        self._timer_at = deadline

    @property
    def message_limit_bytes(self) -> int:
        """The longest `grpc-message` for this client. C-core drops trailers at random above half of its own limit."""
        limit = self.peer_header_list_bytes
        return MESSAGE_LIMIT_BYTES if limit is None else min(MESSAGE_LIMIT_BYTES, limit // 4)


class Server:
    """A listening UNIX socket (`common.net.sockets.listen_unix`), its connections and the running calls.

    A call is cancelled when its client resets the stream, when its connection ends and when its `grpc-timeout` passes.
    """

    def __init__(self, handler: Handler, settings: ServerSettings) -> None:
        self.handler = handler
        self.settings = settings
        self.connections: set[ServerConnection] = set()
        self.calls_in_flight = 0
        self.draining = False  # whether new calls are refused
        self.idle = asyncio.Event()  # set once no call runs after that
        self._socket: socket.socket | None = None
        self._listener: asyncio.AbstractServer | None = None
        self._no_connections = asyncio.Event()
        self._no_connections.set()

    async def listen(self, sock: socket.socket) -> None:
        """Accept connections on a bound socket, which is closed with the server, in place of the former one.

        The connections of the former one stay.
        """
        loop = asyncio.get_running_loop()
        former = self._listener
        self._socket = sock
        self._listener = await loop.create_unix_server(lambda: ServerConnection(self), sock=sock, backlog=1024)
        if former is not None:
            former.close()
        if self.draining:  # it began meanwhile
            self._stop_listening()

    def _stop_listening(self) -> None:
        self.draining = True
        if not self.calls_in_flight:
            self.idle.set()
        if isinstance(self._socket, UnixListener):
            self._socket.remove_file()
        if self._listener is not None:
            self._listener.close()

    async def drain(self) -> None:
        """Refuse connections and new calls (`on_error(CLOSING)`), let running calls end, then close.

        The GOAWAY comes last, because it makes sidecars exit. If `drain` is cancelled, the server goes on draining;
        `close` still works.
        """
        self._stop_listening()
        await self.idle.wait()
        await self.close()

    async def close(self) -> None:
        """Stop now: cancel the calls, answer their callers with `on_error(CLOSING)`, end the connections."""
        self._stop_listening()
        for connection in list(self.connections):
            connection.cancel_calls(CancelReason.CLOSING)
        await _within(CANCEL_GRACE_S, self.idle)
        for connection in list(self.connections):
            connection.say_goodbye()
        if not await _within(GOODBYE_S, self._no_connections):
            for connection in list(self.connections):
                connection.abort()

    # For the connections.

    def connection_opened(self, connection: ServerConnection) -> None:
        self.connections.add(connection)
        self._no_connections.clear()
        if len(self.connections) > self.settings.max_connections:
            log.warning("a client's connection was closed: %d connections is the limit", self.settings.max_connections)
            connection.abort()

    def connection_closed(self, connection: ServerConnection) -> None:
        self.connections.discard(connection)
        if not self.connections:
            self._no_connections.set()


async def _within(seconds: float, event: asyncio.Event) -> bool:
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False
