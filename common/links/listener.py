"""A listener: a socket on which every connection becomes a link. UNIX, plain TCP, or TCP with TLS.

Rules:

* From its connect on, a peer has `hello_timeout_s` for TLS, WebSocket and hello together. Until the handler accepts it,
  its connection is a handshake (`common.links.handshakes`). Then it is an admitted link, and these have a limit of
  their own.
* TLS begins with the client's first TLS record: a silent connection costs 2 KB.
* After many handshakes the listener gives their memory back to the system: allocators keep it otherwise.
"""

import asyncio
import ctypes
import gc
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from typing import Final

from common.errors import HandshakeRefused, SettingsError
from common.links.handshakes import Handshakes, group_of
from common.links.transport import WebSocket
from common.messages import Hello, Reason
from common.net.tcp import LINGER_S, RawTcp, in_words, queue_little, tune
from common.observe.logs import of_peer
from common.pages.server import Pages
from common.parsers import HostPort
from common.session.limits import Limits
from common.session.link import Link, LinkHandler
from common.session.session import SessionState

log = logging.getLogger("csi_bridge.listener")

_BACKLOG = 4_096  # connections that the kernel queues: after a hub's restart all agents dial within seconds

# More than a hub finishes in two seconds. With a ClientHello from each they take 125 MB. With more, a fleet that dials
# at once would wait longer in the hub, and no agent would be served sooner; agents dial again within 30 s.
MOST_HANDSHAKES: Final = 2_048

# A proxy driver may run several times. With a stolen key, nobody fills the hub's `max_connections` alone.
MOST_LINKS_OF_ONE: Final = 64

_SHARE: Final = 0.1  # the part of its time after which one of too many handshakes may be ended for a newer one

_TRIM_AFTER: Final = 256  # handshakes at one time, after whose end memory is given back: they have taken 15 MB

_TRIM_DELAY_S: Final = 1.0  # When it does so. It takes up to 0.1 s after thousands of handshakes.

# Called with address, reason and a sentence if a connection ends before its hello, unless the client just left.
OnFailed = Callable[[str, Reason, str], None]


class _Accepted:
    """A connection: `raw` before TLS, a `task` for TLS's handshake, then a `websocket`. A link has an `identity`."""

    __slots__ = ("address", "began", "group", "identity", "raw", "task", "timer", "websocket")

    def __init__(self, began: float) -> None:
        self.address = self.group = ""
        self.began = began
        self.raw: RawTcp | None = None
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.websocket: WebSocket | None = None
        self.identity: str | None = None  # the name in its certificate; empty without one

    def cut(self, why: str) -> None:
        if self.websocket is not None:
            self.websocket.abort(why)
            return
        if self.task is not None:
            self.task.cancel()
        if self.raw is not None:
            self.raw.transport.abort()  # a task that is cancelled before its first step leaves it open


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
        max_connections: int = 16_000,
        max_handshakes: int = MOST_HANDSHAKES,
        pages: Pages | None = None,
        on_failed: OnFailed = lambda _address, _reason, _why: None,
        admits: Callable[[str], bool] = lambda _group: True,
    ) -> None:
        """A listener on a bound, listening socket, which it owns and closes.

        Args:
            sock: TCP or UNIX.
            hello: the answer to each hello.
            handler: decides on each hello and serves the streams.
            limits: of each session.
            tls: returns the current server context; None for no TLS.
            allow_uids: the users that may connect to a UNIX socket; None for all users that the file mode allows.
            max_connections: of admitted links. A certificate's name may have `MOST_LINKS_OF_ONE` of them.
            max_handshakes: of connections whose peers are not admitted yet; more end others, or are ended.
            pages: the answers to plain HTTP requests; None: they get an error.
            on_failed: hears of connections that ended before a hello.
            admits: whether a connection of an address (`common.links.handshakes.group_of`) may begin TLS now.
        """
        self._sock = sock
        self._hello = hello
        self._handler = handler
        self._limits = limits
        self._tls = tls
        self._allow_uids = allow_uids
        self._max_connections = max_connections
        self.pages = pages
        self._on_failed = on_failed
        self._admits = admits
        self._server: asyncio.Server | None = None
        self._arriving: Handshakes[_Accepted] = Handshakes(max_handshakes, share_s=_SHARE * limits.hello_timeout_s)
        self._may_trim = False
        self._websockets: dict[WebSocket, _Accepted] = {}
        self._admitted = 0  # the number of admitted links
        self._links_of: Counter[str] = Counter()  # the same by identity
        self._answers: set[asyncio.Task[None]] = set()
        self._on_hello = self._decide  # one bound method for all links

    @property
    def address(self) -> str:
        """For people and tests: a path, or `host:port`."""
        name = self._sock.getsockname()
        return name if isinstance(name, str) else f"{name[0]}:{name[1]}"

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        tune(self._sock, self._limits)
        factory = self._make_plain if self._tls is None else self._make_raw
        if self._sock.family == socket.AF_UNIX:
            self._server = await loop.create_unix_server(factory, sock=self._sock, backlog=_BACKLOG)
        else:
            self._server = await loop.create_server(factory, sock=self._sock, backlog=_BACKLOG)

    def stop_accepting(self) -> None:
        if self._server is not None:
            self._server.close()

    async def close(self) -> None:
        """Close the socket and every connection. A connection that has sent its goodbye gets `LINGER_S` to end."""
        self.stop_accepting()
        without_websocket = [it for it in self._arriving if it.websocket is None]
        tasks = [*self._answers, *(it.task for it in without_websocket if it.task is not None)]
        for connection in without_websocket:
            connection.cut("the listener was closed")
        for task in self._answers:
            task.cancel()
        if any(websocket.lingers for websocket in self._websockets):
            await asyncio.sleep(LINGER_S)
        for websocket in list(self._websockets):
            websocket.abort("the listener was closed")
        await asyncio.gather(*tasks, return_exceptions=True)
        self._sock.close()

    # ---- a connection on its way to a link ---------------------------------------------------------------------------

    def _make_plain(self) -> WebSocket:
        return self._make_websocket(_Accepted(asyncio.get_running_loop().time()))

    def _make_raw(self) -> RawTcp:
        connection = _Accepted(asyncio.get_running_loop().time())
        connection.raw = RawTcp(
            lambda raw: self._connected(connection, raw),
            on_flight=lambda raw: self._start_tls(connection, raw),
            on_lost=lambda _raw: self._leave(connection),  # a health check, or a client that was too slow
        )
        return connection.raw

    def _make_websocket(self, connection: _Accepted) -> WebSocket:
        return WebSocket(
            self._limits,
            self._make_link,
            on_made=lambda websocket: self._made(connection, websocket),
            on_end=self._ended,
            on_plain=self._answer if self.pages is not None else None,
            on_failed=self._no_session,
            began=connection.began,
        )

    def _connected(self, connection: _Accepted, raw: RawTcp) -> None:
        """A TCP connection came in, on which the client may begin TLS."""
        host, port, *_ = raw.transport.get_extra_info("peername") or ("?", 0)
        connection.address, connection.group = f"{host}:{port}", group_of(host)
        loop = asyncio.get_running_loop()
        connection.timer = loop.call_later(self._limits.hello_timeout_s, self._no_client_hello, connection, raw)
        self._enter(connection)

    def _made(self, connection: _Accepted, websocket: WebSocket) -> None:
        """A connection can carry a WebSocket: at once without TLS, else after TLS's handshake."""
        connection.websocket = websocket
        self._websockets[websocket] = connection
        if connection.raw is not None:
            return
        peer = websocket.peer()
        connection.address = peer.address
        connection.group = f"uid {peer.uid}" if peer.local else group_of(peer.host)
        self._enter(connection)
        if peer.uid is not None and self._allow_uids is not None and peer.uid not in self._allow_uids:
            websocket.turn_away(f"uid {peer.uid} is not on --uds-allow-uid")

    def _enter(self, connection: _Accepted) -> None:
        """Count a new connection. If there are too many, end one (see `common.links.handshakes`)."""
        surplus = self._arriving.add(connection, connection.group, connection.began)
        self._may_trim = self._may_trim or len(self._arriving) >= _TRIM_AFTER
        if surplus is not None:
            why = f"{self._arriving.most} connections without a hello is the limit (--max-handshakes)"
            log.warning("a connection from %s was closed: %s", surplus.address, why, extra=of_peer(surplus.group))
            self._on_failed(surplus.address, Reason.FULL, why)
            surplus.cut(why)

    def _leave(self, connection: _Accepted) -> None:
        self._arriving.remove(connection)
        if connection.timer is not None:
            connection.timer.cancel()
        connection.raw = connection.task = connection.timer = None
        if self._may_trim and len(self._arriving) < _TRIM_AFTER // 8:
            self._may_trim = False
            asyncio.get_running_loop().call_later(_TRIM_DELAY_S, _give_memory_back)

    # ---- TLS ---------------------------------------------------------------------------------------------------------

    def _no_client_hello(self, connection: _Accepted, raw: RawTcp) -> None:
        self._tls_failed(connection, f"no ClientHello within {self._limits.hello_timeout_s:g} s", Reason.HELLO_TIMEOUT)
        raw.transport.abort()

    def _start_tls(self, connection: _Accepted, raw: RawTcp) -> None:
        if not self._admits(connection.group):
            raw.transport.abort()
            return
        if connection.timer is not None:
            connection.timer.cancel()
        connection.task = asyncio.get_running_loop().create_task(self._handshake(connection, raw), name="TLS handshake")

    async def _handshake(self, connection: _Accepted, raw: RawTcp) -> None:
        assert self._tls is not None
        queue_little(raw.transport)
        left_s = connection.began + self._limits.hello_timeout_s - asyncio.get_running_loop().time()
        websocket = self._make_websocket(connection)
        try:
            secure = await raw.secure(websocket, self._tls(), server_side=True, ssl_handshake_timeout=max(0.01, left_s))
        except OSError as error:  # SSLError and a lost connection are both OSErrors
            self._leave(connection)
            if isinstance(error, ConnectionResetError):  # a client that connects and leaves is a health check
                log.debug("the TLS handshake with %s failed: %s", connection.address, in_words(error))
            else:
                too_slow = isinstance(error, ConnectionAbortedError)
                self._tls_failed(connection, in_words(error), Reason.HELLO_TIMEOUT if too_slow else Reason.CERTIFICATE)
        except asyncio.CancelledError:
            self._leave(connection)
            raise
        else:
            websocket.connection_made(secure)
            if connection.websocket is None:  # the connection had ended before
                self._leave(connection)

    def _tls_failed(self, connection: _Accepted, why: str, reason: Reason) -> None:
        log.warning("the TLS handshake with %s failed: %s", connection.address, why, extra=of_peer(connection.group))
        self._on_failed(connection.address, reason, f"the TLS handshake failed: {why}")

    # ---- WebSocket and hello -----------------------------------------------------------------------------------------

    def _make_link(self, websocket: WebSocket) -> Link:
        return Link(
            self._hello,
            self._handler,
            dialler=False,
            limits=self._limits,
            writer=websocket,
            began=websocket.began,
            peer_identity=websocket.peer(),
            on_hello=self._on_hello,
        )

    def _decide(self, link: Link) -> None:
        """Let the handler decide on a peer whose hello has come. Refuse it if there are too many links."""
        assert isinstance(link.writer, WebSocket)
        websocket = link.writer
        connection = self._websockets[websocket]
        peer = link.peer_identity
        identity = next(iter(peer.uris or peer.common_names), "")
        why = ""
        if self._admitted >= self._max_connections:
            why = f"{self._max_connections} connections is the limit (--max-connections)"
        elif identity and self._links_of[identity] >= MOST_LINKS_OF_ONE:
            why = f"{MOST_LINKS_OF_ONE} connections with the certificate of one name is the limit"
        if why:
            log.warning("a connection from %s was refused: %s", peer.address, why, extra=of_peer(connection.group))
            self._on_failed(peer.address, Reason.FULL, f"{link.peer.role} {link.peer.name} was refused: {why}")
            link.refuse(HandshakeRefused(Reason.FULL, f"the hub's listener is full: {why}"))
            return
        self._handler.greeted(link)
        if link.state is SessionState.OPEN:
            connection.identity = identity
            self._admitted += 1
            self._links_of[identity] += 1
            self._leave(connection)

    def _no_session(self, websocket: WebSocket, level: int, why: str) -> None:
        connection = self._websockets[websocket]
        log.log(level, "%s got no session: %s", connection.address, why, extra=of_peer(connection.group))
        if level >= logging.WARNING:
            self._on_failed(connection.address, Reason.PROTOCOL_ERROR, f"no session: {why}")

    def _ended(self, websocket: WebSocket) -> None:
        connection = self._websockets.pop(websocket, None)
        if connection is None:
            return
        if connection.identity is None:
            self._leave(connection)
            return
        self._admitted -= 1
        self._links_of[connection.identity] -= 1
        if not self._links_of[connection.identity]:
            del self._links_of[connection.identity]

    def _answer(self, path: str, writer: asyncio.StreamWriter) -> None:
        assert self.pages is not None
        task = asyncio.get_running_loop().create_task(self.pages.answer(path, writer), name=f"page {path}")
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)


def _give_memory_back() -> None:
    """Return free memory to the system. glibc keeps it otherwise, 50 KB for each TLS handshake of a flood."""
    gc.collect(1)  # ended connections are cycles, and still young
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError):  # another C library
        log.debug("this C library cannot give memory back")


def listen_tcp(address: HostPort, *, flag: str = "--listen") -> socket.socket:
    """A listening TCP socket, for the address of a flag."""
    try:
        family = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        return socket.create_server((address.host, address.port), family=family, backlog=_BACKLOG)
    except (OSError, UnicodeError) as error:  # a UnicodeError: the name cannot be a host's
        raise SettingsError(flag, str(address), f"cannot listen there: {in_words(error)}") from error
