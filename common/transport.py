"""A transport: one WebSocket under one link, over TCP, TLS or a UNIX socket. The one place that knows `websockets`.

`websockets`' Sans-I/O core parses and builds the frames; this module's `asyncio.Protocol` moves the bytes. Measured
against the library's own asyncio layer that saves a quarter of the CPU of a hop, and an idle connection owns no task.

Rules:

* Little is ever queued below the session: the socket holds about two chunks that the kernel has not sent
  (TCP_NOTSENT_LOWAT, a small write buffer), because what is queued there delays every later ping and call.
* No compression: CSI messages are small, and it costs memory for each of thousands of idle links.
* Every end has a reason, which reaches the link's handler and the log.
"""

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidHandshake, InvalidStatus
from websockets.frames import Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from common.endpoint import Endpoint
from common.errors import DialError, HandshakeRefused, SettingsError
from common.link import Link, LinkHandler
from common.messages import Hello, Reason
from common.parsers import HostPort
from common.session import Limits, Session
from common.sockets import peer_credentials

log = logging.getLogger("csi_bridge.transport")

SUBPROTOCOL = Subprotocol("csi-bridge")
"""Named in the WebSocket handshake, so that a foreign server or client is told apart before any frame."""

MAX_FRAME_BYTES = 1_048_576
"""The largest WebSocket message accepted. A session's messages are about two chunks; this leaves a newer peer room."""

_NOTSENT_CHUNKS = 1
"""Chunks that the kernel may hold unsent (TCP_NOTSENT_LOWAT): enough to keep it busy, little enough for a slow link."""

_WRITE_BUFFER_BYTES = 1
"""Above it we make no more frames: what the kernel did not take at once, the rest of one chunk, is all that waits here.
Measured at 64 kbit/s: with three or four chunks in all a pong comes after 10 s, when the peer is already taken for dead."""

_LATER_S = 0.01
"""How long an acknowledgement may wait for company. Nobody waits for it, and a system call costs more than its bytes."""

_BACKLOG = 4_096
"""Connections that the kernel holds while the hub is busy: after a restart all agents dial within seconds."""

_QUIET = logging.getLogger("csi_bridge.websockets")
_QUIET.setLevel(logging.ERROR)  # the library's own log of every frame and handshake: ours says what a person needs


@dataclass(frozen=True, slots=True)
class Peer:
    """What the transport knows of the other side, apart from what it says of itself.

    Attributes:
        address: for logs: `10.0.0.7:51234`, or `pid 4711 uid 0` on a UNIX socket.
        local: it came by the UNIX socket.
        uid: its user id on the UNIX socket, else None.
        common_name: its certificate's CN, or None without a certificate.
        organizations: its certificate's O values.
    """

    address: str
    local: bool
    uid: int | None = None
    common_name: str | None = None
    organizations: tuple[str, ...] = ()


class WebSocket(asyncio.Protocol):
    """One WebSocket connection: bytes in to the link, the link's messages out."""

    __slots__ = (
        "_core",
        "_later",
        "_limits",
        "_link",
        "_loop",
        "_make_link",
        "_on_end",
        "_on_made",
        "_opened",
        "_paused",
        "_reason",
        "_scheduled",
        "_transport",
    )  # fmt: skip

    def __init__(
        self,
        core: ClientProtocol | ServerProtocol,
        limits: Limits,
        make_link: Callable[["WebSocket"], Link],
        *,
        on_made: Callable[["WebSocket"], None] | None = None,
        on_end: Callable[["WebSocket"], None] | None = None,
    ) -> None:
        """A connection in the making.

        Args:
            core: the library's protocol for this side.
            limits: the session's, for the chunk size and the hello's time.
            make_link: called once the WebSocket handshake is done.
            on_made: called once when the socket is connected; it may abort.
            on_end: called once when the socket is closed.
        """
        self._core = core
        self._limits = limits
        self._make_link = make_link
        self._on_made = on_made
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._link: Link | None = None
        self._transport: asyncio.Transport | None = None
        self._opened: asyncio.Future[Link] | None = (
            self._loop.create_future() if isinstance(core, ClientProtocol) else None
        )
        self._paused = False
        self._scheduled = False
        self._later: asyncio.TimerHandle | None = None
        self._reason = ""

    # ---- asyncio's side ----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is connected (and TLS agreed): a client asks for the upgrade."""
        self._transport = cast("asyncio.Transport", transport)
        _tune(transport, self._limits)
        if self._on_made is not None:
            self._on_made(self)
        if isinstance(self._core, ClientProtocol):
            self._core.send_request(self._core.connect())
            self._write_core()
        else:
            self._loop.call_later(self._limits.hello_timeout_s, self._give_up_waiting)
            self._read_core()

    def data_received(self, data: bytes) -> None:
        """Bytes came in; with TLS perhaps before `connection_made`, which then reads them."""
        if self._link is not None:
            self._link.session.heard(self._loop.time())
        self._core.receive_data(data)
        if self._transport is not None:
            self._read_core()

    def eof_received(self) -> None:
        """The peer sends no more."""
        self._core.receive_eof()
        self._read_core()

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed."""
        why = self._reason or (_why(exc) if exc else "the peer closed the connection")
        self._transport = None
        if self._link is not None:
            self._link.lost(why)
        if self._opened is not None and not self._opened.done():
            self._opened.set_exception(ConnectionError(why))
        if self._on_end is not None:
            self._on_end(self)

    def pause_writing(self) -> None:
        """The socket's buffer holds enough."""
        self._paused = True

    def resume_writing(self) -> None:
        """The socket has room again."""
        self._paused = False
        self.flush()

    # ---- the link's side ---------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write what the link has, now. The loop still joins all writes of one turn in one system call."""
        link = self._link
        while not self._paused and link is not None and self._transport is not None:
            data = link.pull()
            if not data:
                if link.over:
                    self._close_soon()
                return
            if self._core.state is not State.OPEN:
                return
            self._core.send_binary(data)
            self._write_core()

    def flush_soon(self) -> None:
        """Write after everything that is due in this turn of the loop."""
        if not self._scheduled and not self._paused:
            self._scheduled = True
            self._loop.call_soon(self._flush_scheduled)

    def flush_later(self) -> None:
        """Write within `_LATER_S`, or with the next thing that is written."""
        if self._later is None and not self._scheduled and not self._paused:
            self._later = self._loop.call_later(_LATER_S, self._flush_scheduled)

    async def opened(self) -> Link:
        """Wait for the WebSocket handshake (a client's).

        Raises:
            InvalidHandshake: something answered that is no hub.
            ConnectionError: the connection ended first.
        """
        assert self._opened is not None
        return await self._opened

    def peer(self) -> Peer:
        """Who is at the other end, as far as the socket knows."""
        assert self._transport is not None
        sock = self._transport.get_extra_info("socket")
        if sock is not None and sock.family == socket.AF_UNIX:
            pid, uid, _ = peer_credentials(sock)
            return Peer(f"pid {pid} uid {uid}", local=True, uid=uid)
        host, port, *_ = self._transport.get_extra_info("peername") or ("?", 0)
        certificate = self._transport.get_extra_info("peercert") or {}
        names = [entry for rdn in certificate.get("subject", ()) for entry in rdn]
        return Peer(
            f"{host}:{port}",
            local=False,
            common_name=next((value for key, value in names if key == "commonName"), None),
            organizations=tuple(value for key, value in names if key == "organizationName"),
        )

    def abort(self, reason: str) -> None:
        """Close the socket at once; nobody waits for it to open any more."""
        self._reason = self._reason or reason
        if self._opened is not None:
            self._opened.cancel()
        if self._transport is not None:
            self._transport.abort()

    # ---- the library's side ------------------------------------------------------------------------------------------

    def _read_core(self) -> None:
        for event in self._core.events_received():
            if isinstance(event, Frame):
                self._on_frame(event)
            elif isinstance(event, Request):
                self._on_request(event)
            else:
                self._on_response(event)
        self._write_core()
        if self._core.state is State.CLOSED or self._core.close_expected():
            self._reason = self._reason or _close_reason(self._core)
            self._close_soon()

    def _on_frame(self, frame: Frame) -> None:
        if frame.opcode is Opcode.BINARY and frame.fin and self._link is not None:
            self._link.received(bytes(frame.data))
        elif frame.opcode in {Opcode.TEXT, Opcode.CONT, Opcode.BINARY}:
            # Our peers send each message as one binary frame; a proxy in between has no reason to cut 16 KiB.
            self._reason = "it sent a text or fragmented WebSocket message"
            self._core.fail(1003, "one binary frame per message, please")

    def _on_request(self, request: Request) -> None:
        assert isinstance(self._core, ServerProtocol)
        response = self._core.accept(request)
        if response.status_code == 101 and self._core.subprotocol != SUBPROTOCOL:
            response = self._core.reject(400, f"This is a CSI Bridge hub: it speaks the subprotocol {SUBPROTOCOL}.\n")
        self._core.send_response(response)
        if response.status_code == 101:
            self._link = self._make_link(self)
        else:
            self._reason = "it did not ask for a CSI Bridge session"

    def _on_response(self, _response: Response) -> None:
        assert self._opened is not None
        error = self._core.handshake_exc
        if self._opened.done():  # the dial was given up meanwhile
            self.abort("the dial was given up")
        elif error is None:
            self._link = self._make_link(self)
            self._opened.set_result(self._link)
            self.flush_soon()
        else:
            self._opened.set_exception(error)

    def _write_core(self) -> None:
        data = b"".join(self._core.data_to_send())
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _flush_scheduled(self) -> None:
        self._scheduled = False
        if self._later is not None:
            self._later.cancel()
            self._later = None
        self.flush()

    def _close_soon(self) -> None:
        """Close the socket when what was written has left, but do not wait for a peer that does not read."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()
            self._loop.call_later(self._limits.keepalive_s, self.abort, "the peer does not read")

    def _give_up_waiting(self) -> None:
        """A client that connected and never asked for the upgrade; a session has its own hello time."""
        if self._link is None:
            self.abort("it sent no WebSocket handshake")


class _Raw(asyncio.Protocol):
    """A TCP connection before TLS: it reads nothing, so that TLS sees the first byte."""

    def __init__(self, on_made: Callable[[asyncio.Transport], None] | None = None) -> None:
        self._on_made = on_made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.pause_reading()
        if self._on_made is not None:
            self._on_made(self._transport)


class Listener:
    """A listening socket that makes a link of every connection. For a UNIX socket, plain TCP, or TCP with TLS.

    The TLS context is asked for per connection, so that a certificate renewed on disk is used from the next one on.
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
    ) -> None:
        """A listener on a bound, listening socket, which it owns from now on.

        Args:
            sock: TCP or UNIX.
            hello: what the acceptor answers with.
            handler: decides on each hello and serves the streams.
            limits: of each session.
            tls: the current server context; None for plain.
            allow_uids: on a UNIX socket, who may connect; None for anyone whom the file mode lets in.
            max_connections: more are closed at once.
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

    @property
    def address(self) -> str:
        """Where it listens, for people and tests: a path, or `host:port`."""
        name = self._sock.getsockname()
        return name if isinstance(name, str) else f"{name[0]}:{name[1]}"

    async def start(self) -> None:
        """Take connections."""
        loop = asyncio.get_running_loop()
        factory = self._make if self._tls is None else lambda: _Raw(self._start_tls)
        if self._sock.family == socket.AF_UNIX:
            self._server = await loop.create_unix_server(factory, sock=self._sock)
        else:
            self._server = await loop.create_server(factory, sock=self._sock)

    def stop_accepting(self) -> None:
        """Take no more connections; those there are go on."""
        if self._server is not None:
            self._server.close()

    async def close(self) -> None:
        """Close the socket and every connection."""
        self.stop_accepting()
        for task in self._handshakes:
            task.cancel()
        for websocket in list(self._websockets):
            websocket.abort("the listener was closed")
        await asyncio.gather(*self._handshakes, return_exceptions=True)
        self._sock.close()

    def _make(self) -> WebSocket:
        core = ServerProtocol(subprotocols=[SUBPROTOCOL], max_size=MAX_FRAME_BYTES, logger=_QUIET)
        return WebSocket(core, self._limits, self._make_link, on_made=self._admit, on_end=self._websockets.discard)

    def _admit(self, websocket: WebSocket) -> None:
        self._websockets.add(websocket)
        peer = websocket.peer()
        if len(self._websockets) > self._max_connections:
            log.warning("%s was turned away: %d connections is the limit", peer.address, self._max_connections)
            websocket.abort("too many connections")
        elif peer.uid is not None and self._allow_uids is not None and peer.uid not in self._allow_uids:
            log.warning("%s was turned away: its uid is not on --uds-allow-uid", peer.address)
            websocket.abort("this uid may not connect")

    def _make_link(self, websocket: WebSocket) -> Link:
        loop = asyncio.get_running_loop()
        session = Session(self._hello, dialler=False, limits=self._limits, now=loop.time())
        return Link(session, self._handler, loop=loop, writer=websocket, peer_identity=websocket.peer())

    def _start_tls(self, raw: asyncio.Transport) -> None:
        task = asyncio.get_running_loop().create_task(self._handshake(raw), name="TLS handshake")
        self._handshakes.add(task)
        task.add_done_callback(self._handshakes.discard)

    async def _handshake(self, raw: asyncio.Transport) -> None:
        assert self._tls is not None
        loop = asyncio.get_running_loop()
        address = raw.get_extra_info("peername")
        if len(self._websockets) + len(self._handshakes) > self._max_connections:
            log.warning("%s was turned away: %d connections is the limit", address, self._max_connections)
            raw.abort()
            return
        _tune(raw, self._limits)
        websocket = self._make()
        try:
            secure = await loop.start_tls(
                raw, websocket, self._tls(), server_side=True, ssl_handshake_timeout=self._limits.hello_timeout_s
            )
        except OSError as error:  # SSLError and a lost connection are both OSErrors
            log.warning("the TLS handshake with %s failed: %s", address, _why(error))
            raw.abort()
            return
        except BaseException:
            raw.abort()
            raise
        assert secure is not None
        websocket.connection_made(secure)


def listen_tcp(address: HostPort) -> socket.socket:
    """A listening TCP socket.

    Raises:
        SettingsError: nothing can listen there.
    """
    try:
        family = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        return socket.create_server((address.host, address.port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise SettingsError("--listen", str(address), f"cannot listen there: {error.strerror or error}") from error


async def dial(
    endpoint: Endpoint, hello: Hello, handler: LinkHandler, *, limits: Limits, tls: ssl.SSLContext | None = None
) -> Link:
    """Make one link: connect, TLS, WebSocket, hello. The whole has the hello's time.

    Raises:
        DialError: nobody answers there, or not as a hub does.
        HandshakeRefused: the hub refused our hello.
    """
    try:
        async with asyncio.timeout(limits.hello_timeout_s):
            return await _dial(endpoint, hello, handler, limits, tls)
    except TimeoutError:
        raise DialError(str(endpoint), f"no answer within {limits.hello_timeout_s:g} s") from None
    except InvalidStatus as error:
        raise DialError(str(endpoint), f"what listens there is no hub: HTTP {error.response.status_code}") from error
    except (InvalidHandshake, ssl.SSLError, OSError) as error:
        raise DialError(str(endpoint), _why(error)) from error


async def _dial(
    endpoint: Endpoint, hello: Hello, handler: LinkHandler, limits: Limits, tls: ssl.SSLContext | None
) -> Link:
    loop = asyncio.get_running_loop()
    greeted: asyncio.Future[None] = loop.create_future()

    def make_link(websocket: WebSocket) -> Link:
        session = Session(hello, dialler=True, limits=limits, now=loop.time())
        return Link(session, _Greeting(handler, greeted), loop=loop, writer=websocket, peer_identity=websocket.peer())

    uri = parse_uri(f"{'wss' if endpoint.tls else 'ws'}://{endpoint.host or 'localhost'}:{endpoint.port or 80}/")
    core = ClientProtocol(uri, subprotocols=[SUBPROTOCOL], max_size=MAX_FRAME_BYTES, logger=_QUIET)
    websocket = WebSocket(core, limits, make_link)
    try:
        await _connect(endpoint, websocket, limits, tls)
        link = await websocket.opened()
        await greeted
    except BaseException:
        greeted.cancel()
        websocket.abort("the dial was given up")
        raise
    return link


async def _connect(endpoint: Endpoint, websocket: WebSocket, limits: Limits, tls: ssl.SSLContext | None) -> None:
    loop = asyncio.get_running_loop()
    if endpoint.path is not None:
        await loop.create_unix_connection(lambda: websocket, str(endpoint.path))
    elif not endpoint.tls:
        await loop.create_connection(lambda: websocket, endpoint.host, endpoint.port)
    else:
        assert tls is not None
        raw, _ = await loop.create_connection(_Raw, endpoint.host, endpoint.port)
        _tune(raw, limits)
        try:
            secure = await loop.start_tls(raw, websocket, tls, server_hostname=endpoint.host)
        except BaseException:
            raw.abort()
            raise
        assert secure is not None
        websocket.connection_made(secure)  # start_tls() leaves that to its caller


class _Greeting:
    """A dialler's handler: it hears how the hello was answered, and passes the rest on."""

    __slots__ = ("_greeted", "_handler", "closed", "draining", "origin", "serve")

    def __init__(self, handler: LinkHandler, greeted: asyncio.Future[None]) -> None:
        self._handler = handler
        self._greeted = greeted
        self.origin = handler.origin
        self.serve = handler.serve
        self.draining = handler.draining
        self.closed = handler.closed

    def greeted(self, link: Link) -> None:
        if not self._greeted.done():
            self._greeted.set_result(None)
            self._handler.greeted(link)

    def refused(self, _link: Link, reason: str, message: str) -> None:
        if not self._greeted.done():
            lost = reason == Reason.LINK_LOST
            self._greeted.set_exception(ConnectionError(message) if lost else HandshakeRefused(reason, message))


def _tune(transport: asyncio.BaseTransport, limits: Limits) -> None:
    sock = transport.get_extra_info("socket")
    with contextlib.suppress(OSError):  # a socket that just closed: its own error comes by the protocol
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _NOTSENT_CHUNKS * limits.chunk_bytes)
    cast("asyncio.Transport", transport).set_write_buffer_limits(high=_WRITE_BUFFER_BYTES, low=0)


def _why(error: BaseException) -> str:
    """A foreign error in the words of this project."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {error.reason or error}"
    if isinstance(error, OSError) and error.errno:
        return f"{errno.errorcode.get(error.errno, '')} {error.strerror}".strip()
    return str(error) or type(error).__name__


def _close_reason(core: ClientProtocol | ServerProtocol) -> str:
    received = core.close_rcvd
    if received is not None and received.reason:
        return f"the peer closed the WebSocket: {received.reason}"
    if core.parser_exc is not None:
        return f"the peer broke the WebSocket protocol: {core.parser_exc}"
    return "the peer closed the connection"
