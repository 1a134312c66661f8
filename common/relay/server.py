"""The gRPC server: takes calls from stock sidecars on a UNIX socket and hands each, as bytes, to one handler.

Rules kept here and in `server_connection` (contract A.1, RULE A1; design section 5):

* While it runs it sends no GOAWAY to a client that keeps to HTTP/2, and closes no idle connection: each makes every
  sidecar exit. `drain` lets the calls under way finish first.
* No call ends with UNKNOWN or INTERNAL unless the handler said so: every failure of a handler goes through `on_error`.
* Details are never sent (CSI spec, "Error Scheme").
"""

import asyncio
import logging
import socket
from collections.abc import Callable

from common.relay.server_call import CancelReason, ServerCall
from common.relay.server_connection import Handler, ServerConnection, ServerSettings
from common.sockets import UnixListener
from common.status import Code, Origin, Status

__all__ = ["CancelReason", "Handler", "Server", "ServerCall", "ServerSettings", "serve"]

log = logging.getLogger("csi_bridge.relay")

CANCEL_GRACE_S = 5.0
"""How long `close` waits for handlers that do not end when they are cancelled."""

GOODBYE_S = 1.0
"""How long `close` waits for clients that do not read to take their last bytes."""


class Server:
    """A listening socket, its connections and the calls under way. Made by `serve`.

    Attributes:
        connections: the clients' connections.
        calls_in_flight: how many handlers run.
        draining: whether new calls are refused.
    """

    def __init__(self, handler: Handler, settings: ServerSettings) -> None:
        self.handler = handler
        self.settings = settings
        self.connections: set[ServerConnection] = set()
        self.calls_in_flight = 0
        self.draining = False
        self._socket: socket.socket | None = None
        self._listener: asyncio.AbstractServer | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._no_connections = asyncio.Event()
        self._no_connections.set()

    async def listen(self, sock: socket.socket) -> None:
        """Take connections from a socket that is bound already."""
        loop = asyncio.get_running_loop()
        self._socket = sock
        self._listener = await loop.create_unix_server(lambda: ServerConnection(self), sock=sock, backlog=1024)

    def _stop_listening(self) -> None:
        self.draining = True
        if isinstance(self._socket, UnixListener):
            self._socket.remove_file()
        if self._listener is not None:
            self._listener.close()

    async def drain(self) -> None:
        """Stop taking connections, refuse new calls (`on_error(ServerClosing())`), let running ones end; then close.

        The GOAWAY comes last: a sidecar that sees one exits and loses its calls under way (contract A.1). Cancelling it
        leaves the server draining; `close` still works.
        """
        self._stop_listening()
        await self._idle.wait()
        await self.close()

    async def close(self) -> None:
        """Stop now: handlers are cancelled, their callers get `on_error(ServerClosing())`, connections end."""
        self._stop_listening()
        for connection in list(self.connections):
            connection.cancel_calls()
        await _within(CANCEL_GRACE_S, self._idle)
        for connection in list(self.connections):
            connection.say_goodbye()
        if not await _within(GOODBYE_S, self._no_connections):
            for connection in list(self.connections):
                connection.abort()

    # For the connections.

    def connection_opened(self, connection: ServerConnection) -> None:
        """A client connected."""
        self.connections.add(connection)
        self._no_connections.clear()
        if len(self.connections) > self.settings.max_connections:
            log.warning("a client's connection was closed: %d connections is the limit", self.settings.max_connections)
            connection.abort()

    def connection_closed(self, connection: ServerConnection) -> None:
        """A client's connection is over."""
        self.connections.discard(connection)
        if not self.connections:
            self._no_connections.set()

    def call_began(self) -> None:
        """A handler starts."""
        self.calls_in_flight += 1
        self._idle.clear()

    def call_ended(self) -> None:
        """A handler's task is over."""
        self.calls_in_flight -= 1
        if not self.calls_in_flight:
            self._idle.set()


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
        sock: bound; it is closed with the server.
        handler: answers each call. Its task is cancelled when the client resets the stream, when its connection ends
            and when its `grpc-timeout` passes.
        max_message_bytes: largest request message; larger ones are refused from their length prefix.
        on_error: the status for a handler that raised, or that returned without one (None), and (with
            `ServerClosing`) for calls cut or refused because the server stops.
        too_large: the status for a request of that many bytes.
        on_deadline: the status when the deadline passed; DEADLINE_EXCEEDED with a plain text by default.
        max_connections: a client beyond so many is hung up on.
        origin: the hop named in statuses made here.

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
