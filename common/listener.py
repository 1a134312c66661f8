"""A listener: a socket on which every connection becomes a link. UNIX, plain TCP, or TCP with TLS."""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable

from common.errors import SettingsError
from common.limits import Limits
from common.link import Link, LinkHandler
from common.messages import Hello
from common.pages.server import Pages
from common.parsers import HostPort
from common.session import Session
from common.transport import LINGER_S, RawTcp, WebSocket, in_words, tune

log = logging.getLogger("csi_bridge.listener")

_BACKLOG = 4_096
"""Connections that the kernel queues while the hub is busy: after a restart all agents dial within seconds."""


class Listener:
    """A listening socket (UNIX, plain TCP, or TCP with TLS) that makes a link of every connection.

    It asks for the TLS context at each connection, so a certificate renewed on disk counts from the next one on.
    """

    def __init__(
        self,
        sock: socket.socket,
        hello: Hello,
        handler: LinkHandler,
        *,
        limits: Limits,
        tls: Callable[[], ssl.SSLContext] | None = None,
        allow_uids: frozenset[int] | None = None,
        max_connections: int = 20_000,
        pages: Pages | None = None,
    ) -> None:
        """A listener on a bound, listening socket. It owns the socket and closes it.

        Args:
            sock: TCP or UNIX.
            hello: the acceptor's answer to each hello.
            handler: decides on each hello and serves the streams.
            limits: the limits of each session.
            tls: returns the current server context; None for no TLS.
            allow_uids: the users that may connect to a UNIX socket; None for all users that the file mode allows.
            max_connections: connections above this number are closed at once.
            pages: answer plain HTTP requests; None: they get an error.
        """
        self._sock = sock
        self._hello = hello
        self._handler = handler
        self._limits = limits
        self._tls = tls
        self._allow_uids = allow_uids
        self._max_connections = max_connections
        self._server: asyncio.Server | None = None
        self._websockets: set[WebSocket] = set()
        self._handshakes: set[asyncio.Task[None]] = set()
        self._pages = pages
        self._answers: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        """The address that it listens on, for people and tests: a path, or `host:port`."""
        name = self._sock.getsockname()
        return name if isinstance(name, str) else f"{name[0]}:{name[1]}"

    async def start(self) -> None:
        """Begin to accept connections."""
        loop = asyncio.get_running_loop()
        factory = self._make if self._tls is None else lambda: RawTcp(self._start_tls)
        if self._sock.family == socket.AF_UNIX:
            self._server = await loop.create_unix_server(factory, sock=self._sock)
        else:
            self._server = await loop.create_server(factory, sock=self._sock)

    def stop_accepting(self) -> None:
        """Accept no more connections; open ones go on."""
        if self._server is not None:
            self._server.close()

    async def close(self) -> None:
        """Close the socket and every connection. A connection that has sent its goodbye gets `LINGER_S` to end."""
        self.stop_accepting()
        for task in [*self._handshakes, *self._answers]:
            task.cancel()
        if any(websocket.lingers for websocket in self._websockets):
            await asyncio.sleep(LINGER_S)
        for websocket in list(self._websockets):
            websocket.abort("the listener was closed")
        await asyncio.gather(*self._handshakes, *self._answers, return_exceptions=True)
        self._sock.close()

    def _make(self) -> WebSocket:
        return WebSocket.accepting(
            self._limits,
            self._make_link,
            on_made=self._admit,
            on_end=self._websockets.discard,
            on_plain=self._answer if self._pages is not None else None,
        )

    def _admit(self, websocket: WebSocket) -> None:
        self._websockets.add(websocket)
        peer = websocket.peer()
        if len(self._websockets) > self._max_connections:
            log.warning(
                "a connection from %s was refused: %d connections is the limit", peer.address, self._max_connections
            )
            websocket.abort("too many connections")
        elif peer.uid is not None and self._allow_uids is not None and peer.uid not in self._allow_uids:
            websocket.turn_away(f"uid {peer.uid} is not on --uds-allow-uid")

    def _make_link(self, websocket: WebSocket) -> Link:
        loop = asyncio.get_running_loop()
        session = Session(self._hello, dialler=False, limits=self._limits, now=loop.time())
        return Link(session, self._handler, loop=loop, writer=websocket, peer_identity=websocket.peer())

    def _answer(self, path: str, writer: asyncio.StreamWriter) -> None:
        assert self._pages is not None
        task = asyncio.get_running_loop().create_task(self._pages.answer(path, writer), name=f"page {path}")
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)

    def _start_tls(self, raw: RawTcp) -> None:
        task = asyncio.get_running_loop().create_task(self._handshake(raw), name="TLS handshake")
        self._handshakes.add(task)
        task.add_done_callback(self._handshakes.discard)

    async def _handshake(self, raw: RawTcp) -> None:
        assert self._tls is not None
        host, port, *_ = raw.transport.get_extra_info("peername") or ("?", 0)
        address = f"{host}:{port}"
        if len(self._websockets) + len(self._handshakes) > self._max_connections:
            log.warning("a connection from %s was refused: %d connections is the limit", address, self._max_connections)
            raw.transport.abort()
            return
        tune(raw.transport, self._limits)
        websocket = self._make()
        try:
            secure = await raw.secure(
                websocket, self._tls(), server_side=True, ssl_handshake_timeout=self._limits.hello_timeout_s
            )
        except OSError as error:  # SSLError and a lost connection are both OSErrors
            # A client that connects and leaves is a health check.
            level = logging.DEBUG if isinstance(error, ConnectionResetError) else logging.WARNING
            log.log(level, "the TLS handshake with %s failed: %s", address, in_words(error))
        else:
            websocket.connection_made(secure)


def listen_tcp(address: HostPort) -> socket.socket:
    """A listening TCP socket.

    Raises:
        SettingsError: the system refuses the address.
    """
    try:
        family = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        return socket.create_server((address.host, address.port), family=family, backlog=_BACKLOG)
    except (OSError, UnicodeError) as error:  # a UnicodeError: the name cannot be a host's
        raise SettingsError("--listen", str(address), f"cannot listen there: {in_words(error)}") from error
