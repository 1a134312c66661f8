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
from typing import Any, cast

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidHandshake, InvalidStatus
from websockets.frames import Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from common.endpoint import Endpoint
from common.limits import Limits
from common.link import Link
from common.parsers import HostPort
from common.sockets import peer_credentials

log = logging.getLogger("csi_bridge.transport")

_SUBPROTOCOL = Subprotocol("csi-bridge")
"""Named in the WebSocket handshake, so that a foreign server or client is told apart before any frame."""

PROBE = "csi-bridge-doctor"
"""The User-Agent of the doctor, which asks for an answer and for no session."""

MAX_FRAME_BYTES = 1_048_576
"""The largest WebSocket message accepted. A session's messages are about two chunks; this leaves a newer peer room."""

_NOTSENT_PART = 4
"""The part of a chunk, one in so many, that the kernel may hold unsent (TCP_NOTSENT_LOWAT) before it takes more: enough
to keep it busy, little enough for a slow link. With TLS, one chunk waits in the library as well."""

_WRITE_BUFFER_BYTES = 1
"""Above it we make no more frames: what the kernel did not take at once, the rest of one chunk, is all that waits here.
Measured at 64 kbit/s: with three or four chunks in all a pong comes after 10 s, when the peer is taken for dead."""

_LATER_S = 0.01
"""How long an acknowledgement may wait for company: nobody waits for it, and a system call is dear."""

LINGER_S = 0.2
"""How long the socket stays open after our goodbye. If it was closed, what crosses it would fail at the other end with
EPIPE, on a UNIX socket, before the goodbye that says that nothing ran was read there."""

_MOST_UNREAD_BYTES = 262_144
"""What may wait for a peer that does not read. Our frames stop long before it; only the library's own answers to a
flood of WebSocket pings get so far."""

_LONGEST_REFUSAL_CHARS = 200
"""A hub turns somebody away in one sentence."""

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
        "_ended",
        "_is_probe",
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
        "lingers",
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
        self._ended = False
        self.lingers = False
        """Whether all is said, and only the peer's end of the socket is still waited for."""
        self._paused = False
        self._scheduled = False
        self._later: asyncio.TimerHandle | None = None
        self._reason = ""
        self._is_probe = False

    # ---- asyncio's side ----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is connected (and TLS agreed): a client asks for the upgrade."""
        if self._ended:  # TLS told of the end first
            return
        self._transport = cast("asyncio.Transport", transport)
        tune(transport, self._limits)
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
        if self._transport is not None:
            self._read_core()

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed."""
        why = self._reason or (in_words(exc) if exc else "the peer closed the connection")
        self._transport = None
        self._ended = True
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
            data = link.pull() if link.session.has_output else b""
            if not data:
                if link.over:
                    self._end(link)
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

    @classmethod
    def dialling(cls, endpoint: Endpoint, limits: Limits, make_link: Callable[["WebSocket"], Link]) -> "WebSocket":
        """The dialler's side."""
        address = HostPort(endpoint.host or "localhost", endpoint.port or 80)  # which brackets IPv6
        uri = parse_uri(f"{'wss' if endpoint.tls else 'ws'}://{address}/")
        core = ClientProtocol(uri, subprotocols=[_SUBPROTOCOL], max_size=MAX_FRAME_BYTES, logger=_QUIET)
        return cls(core, limits, make_link)

    @classmethod
    def accepting(
        cls,
        limits: Limits,
        make_link: Callable[["WebSocket"], Link],
        *,
        on_made: Callable[["WebSocket"], None],
        on_end: Callable[["WebSocket"], None],
    ) -> "WebSocket":
        """The acceptor's side."""
        core = ServerProtocol(subprotocols=[_SUBPROTOCOL], max_size=MAX_FRAME_BYTES, logger=_QUIET)
        return cls(core, limits, make_link, on_made=on_made, on_end=on_end)

    async def opened(self) -> Link:
        """Wait for the WebSocket handshake (a client's).

        Raises:
            ConnectionError: something answered that is no hub, or the connection ended first.
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

    def turn_away(self, why: str) -> None:
        """Answer a client's request for the upgrade with these words; to be called before it has come."""
        self._reason = why

    def abort(self, reason: str) -> None:
        """Close the socket at once; nobody waits for it to open any more."""
        self._reason = self._reason or reason
        if self._opened is not None:
            self._opened.cancel()
        if self._transport is not None:
            self._transport.abort()

    # ---- the library's side ------------------------------------------------------------------------------------------

    def _read_core(self) -> None:
        ordinary = True
        for event in self._core.events_received():
            if isinstance(event, Frame):
                ordinary = ordinary and event.opcode is Opcode.BINARY
                self._on_frame(event)
            elif isinstance(event, Request):
                ordinary = False
                self._on_request(event)
            else:
                ordinary = False
                self._on_response(event)
        if ordinary and self._core.state is State.OPEN:  # the library has nothing to say to a message
            return
        self._write_core()
        if self._core.state is State.CLOSED or self._core.close_expected():
            self._reason = self._reason or _close_reason(self._core)
            self._tell_why_not_opened()
            self._close_soon()
        elif self._paused:
            self._check_that_it_reads()

    def _check_that_it_reads(self) -> None:
        if self._transport is not None and self._transport.get_write_buffer_size() > _MOST_UNREAD_BYTES:
            self.abort("it asks for answers and does not read them")

    def _on_frame(self, frame: Frame) -> None:
        if frame.opcode is Opcode.BINARY and frame.fin and self._link is not None:
            self._link.received(bytes(frame.data))
        elif frame.opcode in {Opcode.TEXT, Opcode.CONT, Opcode.BINARY}:
            # Our peers send each message as one binary frame; a proxy in between has no reason to cut 16 KiB.
            self._reason = "it sent a text or fragmented WebSocket message"
            self._core.fail(1003, "one binary frame per message, please")

    def _on_request(self, request: Request) -> None:
        assert isinstance(self._core, ServerProtocol)
        response = self._core.reject(403, self._reason) if self._reason else self._core.accept(request)
        self._core.send_response(response)
        if response.status_code == 101:
            self._link = self._make_link(self)
        elif not self._reason:
            self._is_probe = request.headers.get_all("User-Agent") == [PROBE]
            self._reason = "it did not ask for a CSI Bridge session"

    def _on_response(self, _response: Response) -> None:
        assert self._opened is not None
        error = self._core.handshake_exc
        if error is None and self._core.subprotocol != _SUBPROTOCOL:
            error = InvalidHandshake("it does not speak the subprotocol of a CSI Bridge hub")
        if self._opened.done():  # the dial was given up meanwhile
            self.abort("the dial was given up")
        elif error is None:
            self._link = self._make_link(self)
            self._opened.set_result(self._link)
            self.flush_soon()
        else:
            self._opened.set_exception(ConnectionError(_no_hub(error)))

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

    def _end(self, link: Link) -> None:
        """The session is over, and its last word is written: who was told closes, who told waits for that a little."""
        if not link.session.said_goodbye:
            self._close_soon()
        elif not self.lingers:
            self.lingers = True
            self._loop.call_later(LINGER_S, self._close_soon)

    def _close_soon(self) -> None:
        """Close the socket when what was written has left, but do not wait for a peer that does not read."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()
            self._loop.call_later(self._limits.keepalive_s, self.abort, "the peer does not read")

    def _give_up_waiting(self) -> None:
        """A client that connected and never asked for the upgrade; a session has its own hello time."""
        if self._link is None:
            self._reason = self._reason or f"no WebSocket handshake within {self._limits.hello_timeout_s:g} s"
            self._tell_why_not_opened()
            self.abort(self._reason)

    def _tell_why_not_opened(self) -> None:
        """The handshake failed, and there is no link to tell of it: a client raises it, a server logs it."""
        error = self._core.handshake_exc
        left = _left_early(self._core)
        if self._opened is not None:
            if error is not None and not left and not self._opened.done():
                self._opened.set_exception(ConnectionError(_no_hub(error)))
        elif self._link is None and self._transport is not None and not self._transport.is_closing():
            # Who says nothing and goes is a health check.
            level = logging.DEBUG if left else logging.INFO if self._is_probe else logging.WARNING
            log.log(level, "%s got no session: %s", self.peer().address, self._reason)


class RawTcp(asyncio.Protocol):
    """A TCP connection before TLS.

    What the peer says before TLS is in place is kept and handed over: uvloop reads once after `connection_made`,
    whatever that has paused (handles/basetransport.pyx), and a ClientHello lost so is a connection that hangs.
    """

    def __init__(self, on_made: Callable[["RawTcp"], None] | None = None) -> None:
        self.transport: asyncio.Transport
        self._on_made = on_made
        self._early = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is connected."""
        self.transport = cast("asyncio.Transport", transport)
        self.transport.pause_reading()
        if self._on_made is not None:
            self._on_made(self)

    def data_received(self, data: bytes) -> None:
        """The peer was quick."""
        self._early += data
        self.transport.pause_reading()

    async def secure(self, protocol: asyncio.Protocol, tls: ssl.SSLContext, **how: Any) -> asyncio.Transport:
        """Put TLS, and `protocol` on top, in our place; `how` is for `start_tls()`. Cancelling closes the connection.

        Raises:
            OSError: the handshake failed, and the connection is closed.
        """
        loop = asyncio.get_running_loop()
        if self.transport.is_closing():
            raise ConnectionResetError("the peer closed the connection")
        handshake = loop.create_task(loop.start_tls(self.transport, protocol, tls, **how), name="TLS handshake")
        try:
            await asyncio.sleep(0)  # TLS has our place now, and its beginning is scheduled
            loop.call_soon(self._hand_over)  # after that, and before the loop reads on
            secure = await handshake
        except BaseException:
            handshake.cancel()
            self.transport.abort()
            raise
        assert secure is not None
        return secure

    def _hand_over(self) -> None:
        tls = cast("asyncio.BufferedProtocol", self.transport.get_protocol())  # uvloop's is one without the base class
        while self._early:
            buffer = memoryview(tls.get_buffer(len(self._early)))
            piece = self._early[: len(buffer)]
            buffer[: len(piece)] = piece
            self._early = self._early[len(piece) :]
            tls.buffer_updated(len(piece))


def overlook_lost_handshakes(loop: asyncio.AbstractEventLoop) -> None:
    """Keep a traceback of uvloop's own out of the log: of TLS that begins on a connection whose peer has just gone.

    It begins in a callback (`start_tls`, loop.pyx), in which nobody can catch that. The protocol hears of its end all
    the same.
    """

    def complain(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        is_closed = isinstance(context.get("exception"), RuntimeError)
        if not (is_closed and "SSLProtocol.connection_made" in context["message"]):
            loop.default_exception_handler(context)

    loop.set_exception_handler(complain)


def tune(transport: asyncio.BaseTransport, limits: Limits) -> None:
    """Let a TCP connection hold little below the session (see the head)."""
    sock = transport.get_extra_info("socket")
    with contextlib.suppress(OSError):  # a socket that just closed: its own error comes by the protocol
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, limits.chunk_bytes // _NOTSENT_PART)
    cast("asyncio.Transport", transport).set_write_buffer_limits(high=_WRITE_BUFFER_BYTES, low=0)


def in_words(error: BaseException) -> str:
    """A foreign error in the words of this project."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {error.reason or error}"
    if isinstance(error, OSError) and error.errno:
        return f"{errno.errorcode.get(error.errno, '')} {error.strerror}".strip()
    if isinstance(error, UnicodeError):  # of the idna codec, whose words differ from Python to Python
        return "that is no host's name"
    return str(error) or type(error).__name__


def _no_hub(error: Exception) -> str:
    if not isinstance(error, InvalidStatus):
        return f"what listens there is no hub: {error}"
    response = error.response
    kinds = response.headers.get_all("Content-Type")  # get() raises if a website has two
    if response.status_code == 403 and any(kind.startswith("text/plain") for kind in kinds):
        return f"what listens there turned us away: {response.body.decode(errors='replace')[:_LONGEST_REFUSAL_CHARS]}"
    return f"what listens there is no hub: HTTP {response.status_code}"


def _close_reason(core: ClientProtocol | ServerProtocol) -> str:
    received = core.close_rcvd
    if received is not None and received.reason:
        return f"the peer closed the WebSocket: {received.reason}"
    if core.handshake_exc is not None and not _left_early(core):
        return f"it does not speak WebSocket: {core.handshake_exc}"
    if isinstance(core.parser_exc, EOFError):  # a killed process leaves so, and so does whatever relays TCP in between
        return "the connection was cut at the peer's end, without a goodbye"
    if core.parser_exc is not None:
        return f"the peer broke the WebSocket protocol: {core.parser_exc}"
    return "the peer closed the connection"


def _left_early(core: ClientProtocol | ServerProtocol) -> bool:
    """Whether the peer closed the connection before its half of the WebSocket handshake was whole."""
    return core.handshake_exc is not None and isinstance(core.handshake_exc.__cause__, EOFError)
