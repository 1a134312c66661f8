"""The gRPC server: takes calls from stock sidecars on a UNIX socket and hands each, as bytes, to one handler.

Rules, together with `server_connection`:

* While the server runs, it sends no GOAWAY to a client that keeps to HTTP/2, and closes no idle connection
  (docs/csi-contract.md#a-sidecar-exits-when-its-connection-ends). `drain` lets running calls finish first.
* Every failure of a callee goes through `on_error`. So no call ends with UNKNOWN or INTERNAL unless the handler says
  so.
* A status has no details (CSI spec, "Error Scheme").
"""

import asyncio
import logging
import socket
from collections.abc import Callable

from common.relay.server_call import Callee, CancelReason, ServerCall, in_task
from common.relay.server_connection import Handler, ServerConnection, ServerSettings
from common.sockets import UnixListener
from common.status import Code, Origin, Status

__all__ = ["Callee", "CancelReason", "Handler", "Server", "ServerCall", "ServerSettings", "in_task", "serve"]

log = logging.getLogger("csi_bridge.relay")

CANCEL_GRACE_S = 5.0
"""How long `close` waits for cancelled calls to end."""

GOODBYE_S = 1.0
"""How long `close` waits for clients to read their last bytes."""


class Server:
    """A listening socket, its connections and the running calls. Made by `serve`.

    Attributes:
        connections: the clients' connections.
        calls_in_flight: how many calls are not over.
        draining: whether new calls are refused.
        idle: set once no call runs after that.
    """

    def __init__(self, handler: Handler, settings: ServerSettings) -> None:
        self.handler = handler
        self.settings = settings
        self.connections: set[ServerConnection] = set()
        self.calls_in_flight = 0
        self.draining = False
        self.idle = asyncio.Event()
        self._socket: socket.socket | None = None
        self._listener: asyncio.AbstractServer | None = None
        self._no_connections = asyncio.Event()
        self._no_connections.set()

    async def listen(self, sock: socket.socket) -> None:
        """Accept connections on a bound socket, in place of the former one. Its connections stay."""
        loop = asyncio.get_running_loop()
        former, self._socket = self._listener, sock
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
        """Refuse connections and new calls (`on_error(ServerClosing())`), let running calls end, then close.

        The GOAWAY comes last, because it makes sidecars exit. If `drain` is cancelled, the server goes on draining;
        `close` still works.
        """
        self._stop_listening()
        await self.idle.wait()
        await self.close()

    async def close(self) -> None:
        """Stop now: cancel the calls, answer their callers with `on_error(ServerClosing())`, end the connections."""
        self._stop_listening()
        for connection in list(self.connections):
            connection.cancel_calls()
        await _within(CANCEL_GRACE_S, self.idle)
        for connection in list(self.connections):
            connection.say_goodbye()
        if not await _within(GOODBYE_S, self._no_connections):
            for connection in list(self.connections):
                connection.abort()

    # For the connections.

    def connection_opened(self, connection: ServerConnection) -> None:
        """Add a client's connection, or close it if there are too many."""
        self.connections.add(connection)
        self._no_connections.clear()
        if len(self.connections) > self.settings.max_connections:
            log.warning("a client's connection was closed: %d connections is the limit", self.settings.max_connections)
            connection.abort()

    def connection_closed(self, connection: ServerConnection) -> None:
        """Remove a connection that is over."""
        self.connections.discard(connection)
        if not self.connections:
            self._no_connections.set()


async def _within(seconds: float, event: asyncio.Event) -> bool:
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False


async def serve(
    sock: socket.socket,
    handler: Handler,
    *,
    max_message_bytes: int,
    on_error: Callable[[BaseException | None], Status],
    too_large: Callable[[int], Status],
    on_deadline: Callable[[ServerCall], Status] | None = None,
    max_connections: int = 1_024,
    origin: str = Origin.PROXY,
) -> Server:
    """Serve gRPC calls of any method on a listening UNIX socket (see `common.sockets.listen_unix`).

    Args:
        sock: a bound socket; it is closed with the server.
        handler: takes each call; `in_task(…)` for one that waits. The call is cancelled when the client resets the
            stream, when its connection ends and when its `grpc-timeout` passes.
        max_message_bytes: the largest request message; larger ones are refused at their length prefix.
        on_error: returns the status for a call whose callee raised an error or gave no status (None), and (with
            `ServerClosing`) for calls that were cut or refused because the server stops.
        too_large: returns the status for a request of this many bytes.
        on_deadline: returns the status for a call whose deadline passed; DEADLINE_EXCEEDED with a plain text by
            default.
        max_connections: connections above this number are closed.
        origin: the hop named in the server's own statuses.

    Returns:
        The running server.
    """
    settings = ServerSettings(
        max_message_bytes=max_message_bytes,
        on_error=on_error,
        too_large=too_large,
        on_deadline=on_deadline
        or (lambda _call: Status(Code.DEADLINE_EXCEEDED, "the caller's deadline passed", origin)),
        max_connections=max_connections,
        origin=origin,
    )
    server = Server(handler, settings)
    await server.listen(sock)
    return server
