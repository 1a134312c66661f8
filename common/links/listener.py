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
from dataclasses import dataclass
from typing import Final

from common.errors import HandshakeRefused, SettingsError
from common.links.handshakes import Handshakes, group_of
from common.links.transport import WebSocket, WebSocketOwner
from common.messages import Reason
from common.net.tcp import LINGER_S, RawTcp, describe_error, limit_write_buffer, tune
from common.observe.logs import of_peer
from common.pages.server import Pages
from common.parsers import HostPort
from common.session.link import Link, Side
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """The connections that a listener takes."""

    admitted: int = 16_000  # admitted links. A certificate's name may have `MOST_LINKS_OF_ONE` of them
    handshakes: int = MOST_HANDSHAKES  # connections whose peers are not admitted yet; more end others, or are ended
    uids: frozenset[int] | None = None  # the users that may connect to a UNIX socket; None: all that the file mode lets
    # Whether a connection of an address (`common.links.handshakes.group_of`) may begin TLS now.
    admits: Callable[[str], bool] = lambda _group: True


class Listener:
    """A listening socket (UNIX, plain TCP, or TCP with TLS) that makes a link of every connection.

    It asks for the TLS context at each connection, so a certificate renewed on disk counts from the next one on.
    """

    def __init__(
        self,
        sock: socket.socket,
        side: Side,
        *,
        tls: Callable[[], ssl.SSLContext] | None = None,
        most: ConnectionLimits = ConnectionLimits(),  # it never changes
        pages: Pages | None = None,
    ) -> None:
        """A listener on a bound, listening socket, which it owns and closes.

        `side` has the answer to each hello, and the handler, which decides on hellos and serves the streams. `tls`
        returns the current server context. Without `pages`, plain HTTP requests get an error.
        """
        self.sock = sock
        self.side = side
        self.tls = tls
        self.most = most
        self.pages = pages
        self.arriving: Handshakes[_Accepted] = Handshakes(most.handshakes, share_s=_SHARE * side.limits.hello_timeout_s)
        self.connected: set[_Accepted] = set()  # those with a WebSocket
        self.admitted = 0  # the number of admitted links
        self.links_of: Counter[str] = Counter()  # the same by identity
        self._server: asyncio.Server | None = None
        self._may_trim = False
        self._answers: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        """For people and tests: a path, or `host:port`."""
        name = self.sock.getsockname()
        return name if isinstance(name, str) else f"{name[0]}:{name[1]}"

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        tune(self.sock, self.side.limits)
        if self.sock.family == socket.AF_UNIX:
            self._server = await loop.create_unix_server(self._accept, sock=self.sock, backlog=_BACKLOG)
        else:
            self._server = await loop.create_server(self._accept, sock=self.sock, backlog=_BACKLOG)

    def stop_accepting(self) -> None:
        if self._server is not None:
            self._server.close()

    async def close(self) -> None:
        """Close the socket and every connection. A connection that has sent its goodbye gets `LINGER_S` to end."""
        self.stop_accepting()
        without_websocket = [it for it in self.arriving if it.websocket is None]
        tasks = [*self._answers, *(it.task for it in without_websocket if it.task is not None)]
        for connection in without_websocket:
            connection.cut("the listener was closed")
        for task in self._answers:
            task.cancel()
        if any(it.websocket is not None and it.websocket.lingers for it in self.connected):
            await asyncio.sleep(LINGER_S)
        for connection in list(self.connected):
            connection.cut("the listener was closed")
        await asyncio.gather(*tasks, return_exceptions=True)
        self.sock.close()

    # ---- for its connections -----------------------------------------------------------------------------------------

    def enter(self, connection: "_Accepted") -> None:
        # Count a new connection. If there are too many, end one (`common.links.handshakes`).
        surplus = self.arriving.add(connection, connection.group, connection.began)
        self._may_trim = self._may_trim or len(self.arriving) >= _TRIM_AFTER
        if surplus is not None:
            why = f"{self.arriving.most} connections without a hello is the limit (--max-handshakes)"
            log.warning("a connection from %s was closed: %s", surplus.address, why, extra=of_peer(surplus.group))
            self.side.handler.failed(surplus.address, Reason.FULL, why)
            surplus.cut(why)

    def leave(self, connection: "_Accepted") -> None:
        self.arriving.remove(connection)
        if self._may_trim and len(self.arriving) < _TRIM_AFTER // 8:
            self._may_trim = False
            asyncio.get_running_loop().call_later(_TRIM_DELAY_S, _give_memory_back)

    def no_room_for(self, identity: str) -> str:
        # why there is no room for one more link; empty if there is
        if self.admitted >= self.most.admitted:
            return f"{self.most.admitted} connections is the limit (--max-connections)"
        if identity and self.links_of[identity] >= MOST_LINKS_OF_ONE:
            return f"{MOST_LINKS_OF_ONE} connections with the certificate of one name is the limit"
        return ""

    def answer(self, path: str, writer: asyncio.StreamWriter) -> None:
        assert self.pages is not None
        task = asyncio.get_running_loop().create_task(self.pages.answer(path, writer), name=f"page {path}")
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)

    def _accept(self) -> asyncio.Protocol:
        return _Accepted(self).begin()


class _Accepted(WebSocketOwner):
    # A connection: `raw` before TLS, a `task` for TLS's handshake, then a `websocket`. A link has an `identity`.

    __slots__ = ("address", "began", "group", "identity", "listener", "raw", "task", "timer", "websocket")

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.address = self.group = ""
        self.began = asyncio.get_running_loop().time()
        self.raw: RawTcp | None = None
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.websocket: WebSocket | None = None
        self.identity: str | None = None  # the name in its certificate; empty without one

    def begin(self) -> asyncio.Protocol:
        if self.listener.tls is None:
            return self._make_websocket()
        # It is lost before TLS if it is a health check, or a client that is too slow.
        self.raw = RawTcp(self._connected, on_flight=self._start_tls, on_lost=lambda _raw: self._leave())
        return self.raw

    def cut(self, why: str) -> None:
        if self.websocket is not None:
            self.websocket.abort(why)
            return
        if self.task is not None:
            self.task.cancel()
        if self.raw is not None:
            self.raw.transport.abort()  # a task that is cancelled before its first step leaves it open

    def _make_websocket(self) -> WebSocket:
        return WebSocket(self.listener.side, self, began=self.began)

    def _leave(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self.raw = self.task = self.timer = None
        self.listener.leave(self)

    # ---- TLS ---------------------------------------------------------------------------------------------------------

    def _connected(self, raw: RawTcp) -> None:
        host, port, *_ = raw.transport.get_extra_info("peername") or ("?", 0)
        self.address, self.group = f"{host}:{port}", group_of(host)
        limit_s = self.listener.side.limits.hello_timeout_s
        self.timer = asyncio.get_running_loop().call_later(limit_s, self._no_client_hello, raw)
        self.listener.enter(self)

    def _no_client_hello(self, raw: RawTcp) -> None:
        limit_s = self.listener.side.limits.hello_timeout_s
        self._tls_failed(f"no ClientHello within {limit_s:g} s", Reason.HELLO_TIMEOUT)
        raw.transport.abort()

    def _start_tls(self, raw: RawTcp) -> None:
        if not self.listener.most.admits(self.group):
            raw.transport.abort()
            return
        if self.timer is not None:
            self.timer.cancel()
        self.task = asyncio.get_running_loop().create_task(self._handshake(raw), name="TLS handshake")

    async def _handshake(self, raw: RawTcp) -> None:
        assert self.listener.tls is not None
        limit_write_buffer(raw.transport)
        left_s = self.began + self.listener.side.limits.hello_timeout_s - asyncio.get_running_loop().time()
        websocket = self._make_websocket()
        try:
            context = self.listener.tls()
            secure = await raw.secure(websocket, context, server_side=True, ssl_handshake_timeout=max(0.01, left_s))
        except OSError as error:  # SSLError and a lost connection are both OSErrors
            self._leave()
            if isinstance(error, ConnectionResetError):  # a client that connects and leaves is a health check
                log.debug("the TLS handshake with %s failed: %s", self.address, describe_error(error))
            else:
                too_slow = isinstance(error, ConnectionAbortedError)
                self._tls_failed(describe_error(error), Reason.HELLO_TIMEOUT if too_slow else Reason.CERTIFICATE)
        except asyncio.CancelledError:
            self._leave()
            raise
        else:
            websocket.connection_made(secure)
            if self.websocket is None:  # the connection had ended before
                self._leave()

    def _tls_failed(self, why: str, reason: Reason) -> None:
        log.warning("the TLS handshake with %s failed: %s", self.address, why, extra=of_peer(self.group))
        self.listener.side.handler.failed(self.address, reason, f"the TLS handshake failed: {why}")

    # ---- WebSocket and hello -----------------------------------------------------------------------------------------

    @property
    def has_pages(self) -> bool:  # type: ignore[override]  # the listener's may come later
        return self.listener.pages is not None

    def made(self, websocket: WebSocket) -> None:
        self.websocket = websocket
        self.listener.connected.add(self)
        if self.raw is not None:  # counted since before TLS
            return
        peer = websocket.peer()
        self.address = peer.address
        self.group = f"uid {peer.uid}" if peer.local else group_of(peer.host)
        self.listener.enter(self)
        uids = self.listener.most.uids
        if peer.uid is not None and uids is not None and peer.uid not in uids:
            websocket.turn_away(f"uid {peer.uid} is not on --uds-allow-uid")

    def linked(self, link: Link) -> None:
        link.on_greeting = self._greeted

    def _greeted(self, link: Link) -> None:
        listener = self.listener
        handler = self.listener.side.handler
        peer = link.peer_identity
        identity = next(iter(peer.uris or peer.common_names), "")
        if why := listener.no_room_for(identity):
            log.warning("a connection from %s was refused: %s", peer.address, why, extra=of_peer(self.group))
            handler.failed(peer.address, Reason.FULL, f"{link.peer.role} {link.peer.name} was refused: {why}")
            link.refuse(HandshakeRefused(Reason.FULL, f"the hub's listener is full: {why}"))
            return
        handler.greeted(link)
        if link.state is SessionState.OPEN:
            self.identity = identity
            listener.admitted += 1
            listener.links_of[identity] += 1
            self._leave()

    def failed(self, level: int, why: str) -> None:
        log.log(level, "%s got no session: %s", self.address, why, extra=of_peer(self.group))
        if level >= logging.WARNING:
            self.listener.side.handler.failed(self.address, Reason.PROTOCOL_ERROR, f"no session: {why}")

    def ended(self) -> None:
        listener = self.listener
        if self not in listener.connected:
            return
        listener.connected.discard(self)
        if self.identity is None:
            self._leave()
            return
        listener.admitted -= 1
        listener.links_of[self.identity] -= 1
        if not listener.links_of[self.identity]:
            del listener.links_of[self.identity]

    def answer(self, path: str, writer: asyncio.StreamWriter) -> None:
        self.listener.answer(path, writer)


def _give_memory_back() -> None:
    # glibc keeps free memory otherwise, 50 KB for each TLS handshake of a flood.
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
        raise SettingsError(flag, str(address), f"cannot listen there: {describe_error(error)}") from error
