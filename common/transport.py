"""A transport: one WebSocket under one link, over TCP, TLS or a UNIX socket. Only this module imports `websockets`.

`websockets`' Sans-I/O core parses and builds the frames; this module's `asyncio.Protocol` moves the bytes. Compared
with the library's own asyncio layer, this saves a quarter of a hop's CPU, and an idle connection has no task.

Rules:

* The socket queues little: about two chunks that the kernel has not sent (TCP_NOTSENT_LOWAT, a small write buffer).
  Bytes in that queue delay every later ping and call.
* No compression: CSI messages are small, and compression costs memory for each of thousands of idle links.
* Every end has a reason, which reaches the link's handler and the log.
"""

import asyncio
import contextlib
import errno
import logging
import math
import os
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any, cast

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidHandshake, InvalidStatus
from websockets.frames import Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from common.alerts import sending_alerts
from common.endpoint import Endpoint
from common.limits import Limits
from common.link import Link
from common.parsers import HostPort
from common.peer import Peer, with_certificate
from common.sockets import peer_credentials

_SUBPROTOCOL = Subprotocol("csi-bridge")
"""Named in the WebSocket handshake, so that each side recognises a foreign peer before any frame."""

PROBE = "csi-bridge-doctor"
"""The User-Agent of the doctor, which wants an HTTP answer and no session."""

MAX_FRAME_BYTES = 1_048_576
"""The largest WebSocket message accepted. A session's messages have about two chunks; a newer peer may send more."""

_NOTSENT_PART = 4
"""The kernel may hold a chunk divided by this number unsent (TCP_NOTSENT_LOWAT) before it takes more: enough to keep it
busy, and little enough for a slow link. With TLS, one chunk also waits in the library."""

_WRITE_BUFFER_BYTES = 1
"""With more unwritten bytes than this, no further frame is made: at most the rest of one chunk waits here. Measured at
64 kbit/s: with three or four chunks in all, a pong takes 10 s, and the peer counts as dead."""

_LATER_S = 0.01
"""How long an acknowledgement may wait to be written with other bytes: it is not urgent, and a system call is slow."""

LINGER_S = 0.2
"""How long the socket stays open after this side's goodbye. If it closed at once, the peer's next write on a UNIX
socket would fail with EPIPE before the peer has read the goodbye, which says which streams never ran."""

_MOST_UNREAD_BYTES = 262_144
"""The most bytes that may wait for a peer that does not read. A session's frames stop long before; only the library's
own answers to a flood of WebSocket pings reach it."""

_LONGEST_REFUSAL_CHARS = 200
"""The longest text of a hub's refusal that an error shows."""

_QUIET = logging.getLogger("csi_bridge.websockets")
_QUIET.setLevel(logging.ERROR)  # the library logs every frame and handshake


_REFUSED_ALERTS = frozenset(
    {
        "access denied", "bad certificate", "certificate expired", "certificate required", "certificate revoked",
        "certificate unknown", "unknown ca", "unsupported certificate",
    }
)  # fmt: skip
"""The TLS alerts with which a peer refuses this side's certificate (RFC 8446, 6.2)."""

_LONGEST_CLIENT_HELLO_BYTES = 16_384
"""The longest TLS record (RFC 8446, 5.1), and so the longest first piece of a ClientHello."""

OnPlain = Callable[[str, asyncio.StreamWriter], None]
"""Called with the path of a plain `GET`, or empty for another method, and the writer of its answer."""


class WebSocket(asyncio.Protocol):
    """One WebSocket connection: gives received messages to its link, and writes the link's messages."""

    __slots__ = (
        "_began",
        "_core",
        "_ended",
        "_is_probe",
        "_later",
        "_limits",
        "_link",
        "_loop",
        "_made_at",
        "_make_link",
        "_on_end",
        "_on_failed",
        "_on_made",
        "_on_plain",
        "_opened",
        "_paused",
        "_peer",
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
        on_plain: OnPlain | None = None,
        on_failed: Callable[["WebSocket", int, str], None] | None = None,
        began: float | None = None,
    ) -> None:
        """A connection that is not open yet.

        Args:
            core: the library's protocol for this side.
            limits: the session's limits, for the chunk size and the hello's time.
            make_link: called once the WebSocket handshake is done.
            on_made: called once when the socket is connected; it may abort.
            on_end: called once when the socket is closed, or handed to `on_plain`.
            on_plain: takes over a connection whose client asks for a page, not for the upgrade.
            on_failed: called when a client got no session, with the level of its log line and the reason.
            began: the time in the loop's clock at which the peer connected: its hello's time runs from there on.
        """
        self._core = core
        self._limits = limits
        self._make_link = make_link
        self._on_made = on_made
        self._on_end = on_end
        self._on_plain = on_plain
        self._on_failed = on_failed
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time() if began is None else began
        self._link: Link | None = None
        self._transport: asyncio.Transport | None = None
        self._opened: asyncio.Future[Link] | None = (
            self._loop.create_future() if isinstance(core, ClientProtocol) else None
        )
        self._ended = False
        self._peer: Peer | None = None
        self._made_at = math.inf
        """When TLS had verified the peer, in seconds of the monotonic clock."""
        self.lingers = False
        """Whether the goodbye is written, and the socket only waits for the peer to close."""
        self._paused = False
        self._scheduled = False
        self._later: asyncio.TimerHandle | None = None
        self._reason = ""
        self._is_probe = False

    # ---- asyncio's side ----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is connected, with TLS if there is any. A client asks for the upgrade."""
        if self._ended:  # TLS has reported the end first
            return
        self._transport = cast("asyncio.Transport", transport)
        self._made_at = time.monotonic()
        tune(transport, self._limits)
        if self._on_made is not None:
            self._on_made(self)
        if isinstance(self._core, ClientProtocol):
            self._core.send_request(self._core.connect())
            self._write_core()
        else:
            self._loop.call_at(self._began + self._limits.hello_timeout_s, self._give_up_waiting)
            self._read_core()

    def data_received(self, data: bytes) -> None:
        """Take bytes. With TLS they may come before `connection_made`, which then reads them."""
        if self._link is not None:
            self._link.session.heard(self._loop.time(), len(data))
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
        """Make no more frames: the socket's buffer is full."""
        self._paused = True

    def resume_writing(self) -> None:
        """Go on writing: the socket has room again."""
        self._paused = False
        self.flush()

    # ---- the link's side ---------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write the link's messages now. The loop still joins all writes of one turn in one system call."""
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
        """Write at the end of this turn of the loop."""
        if not self._scheduled and not self._paused:
            self._scheduled = True
            self._loop.call_soon(self._flush_scheduled)

    def flush_later(self) -> None:
        """Write within `_LATER_S`, or together with an earlier write."""
        if self._later is None and not self._scheduled and not self._paused:
            self._later = self._loop.call_later(_LATER_S, self._flush_scheduled)

    @classmethod
    def dialling(cls, endpoint: Endpoint, limits: Limits, make_link: Callable[["WebSocket"], Link]) -> "WebSocket":
        """A WebSocket for the dialler."""
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
        on_plain: OnPlain | None = None,
        on_failed: Callable[["WebSocket", int, str], None] | None = None,
        began: float | None = None,
    ) -> "WebSocket":
        """A WebSocket for the acceptor."""
        core = ServerProtocol(subprotocols=[_SUBPROTOCOL], max_size=MAX_FRAME_BYTES, logger=_QUIET)
        return cls(
            core,
            limits,
            make_link,
            on_made=on_made,
            on_end=on_end,
            on_plain=on_plain,
            on_failed=on_failed,
            began=began,
        )

    async def opened(self) -> Link:
        """Wait for a client's WebSocket handshake, and return the link.

        Raises:
            ConnectionError: the server is no hub, or the connection ended first.
        """
        assert self._opened is not None
        return await self._opened

    def peer(self) -> Peer:
        """The peer, as far as the socket knows it. Its certificate is read once."""
        self._peer = self._peer or self._find_peer()
        return self._peer

    def _find_peer(self) -> Peer:
        assert self._transport is not None
        sock = self._transport.get_extra_info("socket")
        if sock is not None and sock.family == socket.AF_UNIX:
            pid, uid, _ = peer_credentials(sock)
            return Peer(f"pid {pid} uid {uid}", local=True, uid=uid)
        host, port, *_ = self._transport.get_extra_info("peername") or ("?", 0)
        tls = self._transport.get_extra_info("ssl_object")
        certificate = tls.getpeercert(binary_form=True) if tls is not None else None
        address = f"{host}:{port}"
        if not certificate:
            return Peer(address, local=False)
        return with_certificate(address, certificate, proved_at=self._made_at)

    @property
    def began(self) -> float:
        """When the peer connected, in the loop's clock."""
        return self._began

    def turn_away(self, why: str) -> None:
        """Refuse the client's request for the upgrade with this reason. Call it before the request has come."""
        self._reason = why

    def abort(self, reason: str) -> None:
        """Close the socket at once. `opened` is cancelled."""
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
        if self._ended:  # handed over
            return
        if ordinary and self._core.state is State.OPEN:  # the library answers no binary message
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
            # Peers send each message as one binary frame; a proxy between them has no reason to cut 16 KiB.
            self._reason = "it sent a text or fragmented WebSocket message"
            self._core.fail(1003, "one binary frame per message, please")

    def _on_request(self, request: Request) -> None:
        assert isinstance(self._core, ServerProtocol)
        if self._on_plain is not None and not self._reason and not request.headers.get_all("Upgrade"):
            method = getattr(request, "method", "GET")  # which older versions of `websockets` do not tell
            self._hand_over(request.path if method == "GET" else "", self._on_plain)
            return
        if not self._reason and request.headers.get_all("Origin"):
            self._reason = "it is a browser (its request has an Origin), and browsers get no session"
        response = self._core.reject(403, self._reason) if self._reason else self._core.accept(request)
        self._core.send_response(response)
        if response.status_code == 101:
            self._link = self._make_link(self)
        elif not self._reason:
            self._is_probe = request.headers.get_all("User-Agent") == [PROBE]
            self._reason = "it did not ask for a CSI Bridge session"

    def _hand_over(self, path: str, on_plain: OnPlain) -> None:
        """Leave the connection to another: this one hears and writes no more."""
        transport, self._transport, self._ended = self._transport, None, True
        assert transport is not None
        protocol = asyncio.StreamReaderProtocol(reader := asyncio.StreamReader())
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if self._on_end is not None:
            self._on_end(self)
        on_plain(path, asyncio.StreamWriter(transport, protocol, reader, self._loop))

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
        """Close after the session's end. The side that said goodbye waits `LINGER_S` for the peer to close first."""
        if not link.session.said_goodbye:
            self._close_soon()
        elif not self.lingers:
            self.lingers = True
            self._loop.call_later(LINGER_S, self._close_soon)

    def _close_soon(self) -> None:
        """Close the socket when all written bytes have left. If the peer does not read, cut it after a keepalive."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()
            self._loop.call_later(self._limits.keepalive_s, self.abort, "the peer does not read")

    def _give_up_waiting(self) -> None:
        """End a connection whose client never asked for the upgrade. Afterwards the session's hello has a limit."""
        if self._link is None:
            self._reason = self._reason or f"no WebSocket handshake within {self._limits.hello_timeout_s:g} s"
            self._tell_why_not_opened()
            self.abort(self._reason)

    def _tell_why_not_opened(self) -> None:
        """Report a failed handshake, for which there is no link: a client raises it, a server logs it."""
        error = self._core.handshake_exc
        left = _left_early(self._core)
        if self._opened is not None:
            if error is not None and not left and not self._opened.done():
                self._opened.set_exception(ConnectionError(_no_hub(error)))
        elif self._link is None and self._transport is not None and not self._transport.is_closing():
            # A client that leaves without a word is a health check.
            level = logging.DEBUG if left else logging.INFO if self._is_probe else logging.WARNING
            if self._on_failed is not None:
                self._on_failed(self, level, self._reason)


class RawTcp(asyncio.Protocol):
    """A TCP connection before TLS.

    It keeps early bytes and hands them over to TLS: uvloop reads once after `connection_made`, although that has paused
    reading (handles/basetransport.pyx). Without the ClientHello in these bytes, the connection would hang.

    A server's connection waits for the first TLS record before `on_flight`. TLS takes 60 KB, and a silent client none.
    """

    def __init__(
        self,
        on_made: Callable[["RawTcp"], None] | None = None,
        *,
        on_flight: Callable[["RawTcp"], None] | None = None,
        on_lost: Callable[["RawTcp"], None] | None = None,
    ) -> None:
        """A connection that is not made yet.

        Args:
            on_made: called when the socket is connected.
            on_flight: called when the client's first TLS record has come, or bytes that are not TLS. None on the
                client's side.
            on_lost: called if the connection ends before TLS.
        """
        self.transport: asyncio.Transport
        self._on_made = on_made
        self._on_flight = on_flight
        self._on_lost = on_lost
        self._early = bytearray()
        self._rest: socket.socket | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is connected."""
        self.transport = cast("asyncio.Transport", transport)
        if self._on_flight is None:
            self.transport.pause_reading()
        if self._on_made is not None:
            self._on_made(self)

    def data_received(self, data: bytes) -> None:
        """Keep bytes that came before TLS was in place."""
        self._early += data
        if self._on_flight is None:
            self.transport.pause_reading()
        elif _has_first_record(self._early):
            on_flight, self._on_flight = self._on_flight, None
            self.transport.pause_reading()
            on_flight(self)

    def connection_lost(self, _exc: Exception | None) -> None:
        """The connection ended before TLS."""
        if self._on_lost is not None:
            self._on_lost(self)

    async def secure(self, protocol: asyncio.Protocol, tls: ssl.SSLContext, **how: Any) -> asyncio.Transport:
        """Replace this protocol by TLS with `protocol` on top. `how` goes to `start_tls()`.

        Cancelling it closes the connection.

        Raises:
            OSError: the handshake failed, and the connection is closed.
        """
        loop = asyncio.get_running_loop()
        if self.transport.is_closing():
            raise ConnectionResetError("the peer closed the connection")
        alerting = sending_alerts(tls, self._send_last)
        handshake = loop.create_task(loop.start_tls(self.transport, protocol, alerting, **how), name="TLS handshake")
        try:
            await asyncio.sleep(0)  # TLS has replaced this protocol now, and its beginning is scheduled
            loop.call_soon(self._hand_over)  # after that, and before the loop reads on
            secure = await handshake
        except BaseException as error:
            handshake.cancel()
            self.transport.abort()
            if self._rest is not None:
                with contextlib.closing(self._rest):
                    await asyncio.sleep(LINGER_S if isinstance(error, OSError) else 0)
            raise
        assert secure is not None
        return secure

    def _send_last(self, alert: bytes) -> None:
        """Send TLS's alert. `secure` keeps the connection for a moment then, so that no reset overtakes it.

        The event loop closes its own socket right after this, without the alert. This is a second handle of it.
        """
        with contextlib.suppress(OSError):  # the peer is gone already
            self._rest = socket.socket(fileno=os.dup(self.transport.get_extra_info("socket").fileno()))
            self._rest.settimeout(0.0)
            self._rest.send(alert)
            self._rest.shutdown(socket.SHUT_WR)

    def _hand_over(self) -> None:
        tls = cast("asyncio.BufferedProtocol", self.transport.get_protocol())  # uvloop's is one without the base class
        while self._early:
            buffer = memoryview(tls.get_buffer(len(self._early)))
            piece = self._early[: len(buffer)]
            buffer[: len(piece)] = piece
            self._early = self._early[len(piece) :]
            tls.buffer_updated(len(piece))


def _has_first_record(early: bytes | bytearray) -> bool:
    """Whether the bytes have a whole first TLS record, or cannot begin one, which TLS itself then says."""
    if early[:1] != b"\x16" or len(early) > _LONGEST_CLIENT_HELLO_BYTES:
        return True
    return len(early) >= 5 and len(early) >= 5 + int.from_bytes(early[3:5])


def overlook_lost_handshakes(loop: asyncio.AbstractEventLoop) -> None:
    """Keep a traceback of uvloop out of the log: TLS began on a connection whose peer has just left.

    TLS begins in a callback (`start_tls`, loop.pyx), where nobody can catch the error. The protocol still learns that
    the connection ended.
    """

    def complain(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        is_closed = isinstance(context.get("exception"), RuntimeError)
        if not (is_closed and "SSLProtocol.connection_made" in context["message"]):
            loop.default_exception_handler(context)

    loop.set_exception_handler(complain)


def tune(transport: asyncio.BaseTransport, limits: Limits) -> None:
    """Let a TCP connection queue few bytes (see the module's docstring)."""
    sock = transport.get_extra_info("socket")
    with contextlib.suppress(OSError):  # the socket has just closed: the protocol gets that error
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, limits.chunk_bytes // _NOTSENT_PART)
    cast("asyncio.Transport", transport).set_write_buffer_limits(high=_WRITE_BUFFER_BYTES, low=0)


def in_words(error: BaseException) -> str:
    """A library's error in the words of this project."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return _tls_in_words(error)
    if isinstance(error, OSError) and error.errno:
        return f"{errno.errorcode.get(error.errno, '')} {error.strerror}".strip()
    if isinstance(error, UnicodeError):  # from the idna codec, whose text differs between Python versions
        return "that is no host's name"
    return str(error) or type(error).__name__


def _tls_in_words(error: ssl.SSLError) -> str:
    reason = error.reason or str(error)
    alert = reason.partition("_ALERT_")[2].lower().replace("_", " ")
    if alert in _REFUSED_ALERTS:
        return f"the peer refuses this side's certificate, with the TLS alert {alert!r}"
    return f"the peer ended TLS with the alert {alert!r}" if alert else f"TLS failed: {reason}"


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
    if isinstance(core.parser_exc, EOFError):  # a killed process, or a killed TCP relay between the peers
        return "the connection was cut at the peer's end, without a goodbye"
    if core.parser_exc is not None:
        return f"the peer broke the WebSocket protocol: {core.parser_exc}"
    return "the peer closed the connection"


def _left_early(core: ClientProtocol | ServerProtocol) -> bool:
    """Whether the peer closed the connection before its half of the WebSocket handshake was whole."""
    return core.handshake_exc is not None and isinstance(core.handshake_exc.__cause__, EOFError)
