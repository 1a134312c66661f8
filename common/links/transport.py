"""A transport: one WebSocket under one link, over TCP, TLS or a UNIX socket.

Only this module and `common.links.websocket_frames` import `websockets`.

This module's `asyncio.Protocol` moves the bytes, so that an idle connection has no task. Received bytes have three
readers, one after the other:

1. `websockets`' Sans-I/O core reads the head of the handshake (`_read_head`).
2. `common.links.websocket_frames` reads the usual frames, which hold one whole binary message each (`data_received`).
3. From the first other frame on, the core reads everything (`_read_foreign`).

The core also makes the handshake and the close. `common.net.tcp` has the parts of TCP and TLS below the WebSocket.

Rules:

* No compression: CSI messages are small, and compression costs memory for each of thousands of idle links.
* Every end has a reason, which reaches the link's handler and the log.
"""

import asyncio
import logging
import math
import socket
import time
from typing import cast

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidHandshake, InvalidStatus
from websockets.frames import Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from common.links.websocket_frames import FrameReader, frame
from common.net.endpoint import Endpoint
from common.net.peer import Peer
from common.net.sockets import peer_credentials
from common.net.tcp import LINGER_S, describe_error, limit_write_buffer, tune
from common.parsers import HostPort
from common.session import batch
from common.session.limits import Limits
from common.session.link import LATER_S, Link, Side

# Named in the WebSocket handshake, so that each side recognises a foreign peer before any frame.
_SUBPROTOCOL = Subprotocol("csi-bridge")

# The largest WebSocket message accepted. A session's messages have about two chunks; a newer peer may send more.
MAX_FRAME_BYTES = 1_048_576

# The most bytes of a WebSocket message beside those that credit covers: control frames, and heads of others.
_BESIDE_BYTES = 131_072

# The most bytes that may wait for a peer that does not read. A session's frames stop long before; only the library's
# own answers to a flood of WebSocket pings reach it.
_MOST_UNREAD_BYTES = 262_144

_END_OF_HEAD = b"\r\n\r\n"

_LONGEST_REFUSAL_CHARS = 200  # of a hub's refusal that an error shows

_QUIET = logging.getLogger("csi_bridge.websockets")
_QUIET.setLevel(logging.ERROR)  # the library logs every frame and handshake


class WebSocketOwner:
    """Hears how one WebSocket goes. This one is of a side that dials."""

    __slots__ = ()

    has_pages = False  # whether it takes connections whose clients ask for a page, not for the upgrade

    def made(self, websocket: "WebSocket") -> None:
        """The socket is connected. The owner may abort it."""

    def linked(self, link: Link) -> None:
        """The WebSocket handshake is done, and the link has begun."""

    def failed(self, level: int, why: str) -> None:
        """A client got no session, for this reason; with the level of its log line."""

    def ended(self) -> None:
        """The socket is closed, or given to `answer`. Called once."""

    def answer(self, path: str, writer: asyncio.StreamWriter) -> None:
        """Answer a plain `GET` of this path; the path is empty for another method."""


class WebSocket(asyncio.Protocol):
    """One WebSocket connection: gives received messages to its link, and writes the link's messages."""

    __slots__ = (
        "_began", "_core", "_ended", "_frames", "_head", "_is_client", "_kept", "_later", "_link", "_loop", "_made_at",
        "_opened", "_owner", "_reason", "_scheduled", "_side", "_timer", "_transport", "is_free", "lingers",
    )  # fmt: skip

    def __init__(
        self,
        side: Side,
        owner: WebSocketOwner = WebSocketOwner(),  # noqa: B008  # it has no state
        *,
        to: Endpoint | None = None,
        began: float | None = None,
    ) -> None:
        """A connection that is not open yet. It makes a link of `side` once the WebSocket handshake is done.

        `to` is what this side dials; None: it accepts. `began` is the time in the loop's clock at which the peer
        connected: its hello's time runs from there on.
        """
        self._core = _client(to) if to is not None else _server(side.limits)
        self._side = side
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._is_client = to is not None
        # Reads what follows the handshake; None after a frame that `websockets` must read, as all others after it.
        self._frames: FrameReader | None = FrameReader(is_masked=not self._is_client, largest=_largest(side.limits))
        self._head: bytes | None = b""  # the last bytes of the handshake's unfinished head; None after it
        self._began = self._loop.time() if began is None else began
        self._link: Link | None = None
        self._transport: asyncio.Transport | None = None
        self._opened: asyncio.Future[Link] | None = self._loop.create_future() if self._is_client else None
        self._ended = False
        self._made_at = math.inf  # when TLS had verified the peer, in seconds of the monotonic clock
        self.lingers = False  # whether the goodbye is written, and the socket only waits for the peer to close
        self.is_free = False
        self._kept: list[bytes] = []  # frames of the present batch
        self._scheduled = False
        self._later: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None  # ends a connection that takes too long
        self._reason = ""

    # ---- asyncio's side ----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is connected, with TLS if there is any. A client asks for the upgrade."""
        if self._ended:  # TLS has reported the end first
            return
        self._transport = cast("asyncio.Transport", transport)
        self._made_at = time.monotonic()
        limit_write_buffer(transport)
        if self._is_client:
            tune(transport.get_extra_info("socket"), self._side.limits)
        self._owner.made(self)
        if isinstance(self._core, ClientProtocol):
            self._core.send_request(self._core.connect())
            self._write_core()
        else:
            limit_s = self._side.limits.hello_timeout_s
            self._timer = self._loop.call_at(self._began + limit_s, self._give_up_waiting)
            self._read_core()
            self._after_handshake()

    def data_received(self, data: bytes) -> None:
        """Take bytes. With TLS they may come before `connection_made`, which then reads them."""
        frames = self._frames
        link = self._link
        if frames is None or link is None or self._head is not None:
            self._read_early(data)
            return
        messages = frames.read(data)
        now = self._loop.time()
        is_batch = len(messages) > 1 and batch.begin()
        try:
            for message in messages:
                link.receive(message, now)
        finally:
            if is_batch:
                batch.end()
        if frames.is_foreign:
            self._frames = None
            self._read_foreign(bytes(frames.rest))
        elif not messages:
            link.heard(now, len(data))

    def eof_received(self) -> None:
        if self._frames is not None:
            self._frames.rest.clear()  # it is cut in the middle of a frame, or before this side has answered
        self._core.receive_eof()
        if self._transport is not None:
            self._read_core()

    def connection_lost(self, exc: Exception | None) -> None:
        why = self._reason or (describe_error(exc) if exc else "the peer closed the connection")
        self._transport = None
        self._ended = True
        self.is_free = False
        if self._timer is not None:
            self._timer.cancel()
        if self._link is not None:
            self._link.lost(why)
        if self._opened is not None and not self._opened.done():
            self._opened.set_exception(ConnectionError(why))
        self._owner.ended()

    def pause_writing(self) -> None:
        self.is_free = False

    def resume_writing(self) -> None:
        self._open_way()
        self._flush()

    # ---- the link's side (`common.session.outbox.Writer`) ------------------------------------------------------------

    def write(self, data: bytes) -> None:
        data = frame(data, is_masked=self._is_client)
        if (writers := batch.current.writers) is None:
            assert self._transport is not None
            self._transport.write(data)
            return
        if not self._kept:
            writers.append(self._write_kept)
        self._kept.append(data)

    def flush_soon(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)

    def flush_later(self) -> None:
        if self._later is None and not self._scheduled:
            self._later = self._loop.call_later(LATER_S, self._flush)

    # ---- the dialler's and the listener's side -----------------------------------------------------------------------

    async def opened(self) -> Link:
        """Wait for a client's WebSocket handshake, and return the link.

        Raises ConnectionError: the server is no hub, or the connection ended first.
        """
        assert self._opened is not None
        return await self._opened

    def peer(self) -> Peer:
        assert self._transport is not None
        name = self._transport.get_extra_info("peername")
        # A socket's object takes longer than the rest of this, so a TCP connection has none.
        sock = self._transport.get_extra_info("socket") if not isinstance(name, tuple) else None
        if sock is not None and sock.family == socket.AF_UNIX:
            pid, uid, _ = peer_credentials(sock)
            return Peer(f"pid {pid} uid {uid}", local=True, uid=uid)
        host, port, *_ = name or ("?", 0)
        address = f"{host}:{port}"
        tls = self._transport.get_extra_info("ssl_object")
        certificate = tls.getpeercert(binary_form=True) if tls is not None and not self._is_client else None
        if not certificate:  # TLS has checked all that a client wants to know of its server's
            return Peer(address, local=False)
        from common.net.certificate import with_certificate  # noqa: PLC0415  # see its rules

        return with_certificate(address, certificate, proved_at=self._made_at)

    def turn_away(self, why: str) -> None:
        """Refuse the client's request for the upgrade with this reason. Call it before the request has come."""
        self._reason = why

    def abort(self, reason: str) -> None:
        """Close the socket at once. `opened` is cancelled."""
        self._reason = self._reason or reason
        if self._opened is not None:
            self._opened.cancel()
        self.is_free = False
        if self._transport is not None:
            self._transport.abort()

    # ---- reading and writing -----------------------------------------------------------------------------------------

    def _read_early(self, data: bytes) -> None:
        # The handshake, what came before it was over, and all that `websockets` must read.
        if self._head is not None:
            data = self._read_head(data)
        if self._frames is None:
            self._read_foreign(data)
            return
        self._frames.rest += data
        if self._transport is not None:
            self._read_core()
            self._after_handshake()

    def _read_head(self, data: bytes) -> bytes:
        before = self._head or b""
        end = (before + data).find(_END_OF_HEAD)
        if end < 0:
            self._head = (before + data)[-len(_END_OF_HEAD) + 1 :]
            rest = b""
        else:
            self._head = None
            start = end + len(_END_OF_HEAD) - len(before)
            data, rest = data[:start], data[start:]
        self._core.receive_data(data)
        return rest

    def _after_handshake(self) -> None:
        # The library reads the bytes after a response that is none.
        frames = self._frames
        if self._head is not None or self._ended or frames is None:
            return
        rest = bytes(frames.rest)
        frames.rest = bytearray()
        if self._link is not None:
            if rest:
                self.data_received(rest)
        else:
            self._frames = None
            self._read_foreign(rest)

    def _read_foreign(self, data: bytes) -> None:
        if self._link is not None and data:
            self._link.heard(self._loop.time(), len(data))
        if data:
            self._core.receive_data(data)
        if self._transport is not None:
            self._read_core()

    def _read_core(self) -> None:
        for event in self._core.events_received():
            if isinstance(event, Frame):
                self._on_frame(event)
            elif isinstance(event, Request):
                self._on_request(event)
            else:
                self._on_response(event)
        if self._ended:  # given to `answer`
            return
        self._write_core()
        if self._core.state is not State.OPEN:
            self.is_free = False
        if self._core.state is State.CLOSED or self._core.close_expected():
            self._reason = self._reason or _close_reason(self._core)
            self._tell_why_not_opened()
            self._close_soon()
        elif (
            not self.is_free
            and self._transport is not None
            and self._transport.get_write_buffer_size() > _MOST_UNREAD_BYTES
        ):
            self.abort("the peer asks for answers and does not read them")

    def _on_frame(self, frame: Frame) -> None:
        if frame.opcode is Opcode.BINARY and frame.fin and self._link is not None:
            self._link.receive(bytes(frame.data), self._loop.time())
        elif frame.opcode in {Opcode.TEXT, Opcode.CONT, Opcode.BINARY}:
            # Peers send each message as one binary frame; a proxy between them has no reason to cut 16 KiB.
            self._reason = "it sent a text or fragmented WebSocket message"
            self._core.fail(1003, "one binary frame per message, please")

    def _on_request(self, request: Request) -> None:
        assert isinstance(self._core, ServerProtocol)
        if self._owner.has_pages and not self._reason and not request.headers.get_all("Upgrade"):
            method = getattr(request, "method", "GET")  # which older versions of `websockets` do not tell
            self._hand_over(request.path if method == "GET" else "")
            return
        if not self._reason and request.headers.get_all("Origin"):
            self._reason = "it is a browser (its request has an Origin), and browsers get no session"
        response = self._core.reject(403, self._reason) if self._reason else self._core.accept(request)
        self._core.send_response(response)
        if response.status_code == 101:
            self._begin_link()
        elif not self._reason:
            self._reason = "it did not ask for a CSI Bridge session"

    def _hand_over(self, path: str) -> None:
        transport = self._transport
        self._transport = None
        self._ended = True
        assert transport is not None
        protocol = asyncio.StreamReaderProtocol(reader := asyncio.StreamReader())
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        self._owner.ended()
        self._owner.answer(path, asyncio.StreamWriter(transport, protocol, reader, self._loop))

    def _on_response(self, _response: Response) -> None:
        assert self._opened is not None
        error = self._core.handshake_exc
        if error is None and self._core.subprotocol != _SUBPROTOCOL:
            error = InvalidHandshake("it does not speak the subprotocol of a CSI Bridge hub")
        if self._opened.done():  # the dial was given up meanwhile
            self.abort("the dial was given up")
        elif error is None:
            self._opened.set_result(self._begin_link())
            self._flush()
        else:
            self._opened.set_exception(ConnectionError(_no_hub(error)))

    def _begin_link(self) -> Link:
        # A dial has a time limit of its own, which covers the hello, too.
        began = None if self._is_client else self._began
        self._link = Link(self._side, dialler=self._is_client, writer=self, began=began, peer_identity=self.peer())
        self._owner.linked(self._link)
        self._open_way()
        return self._link

    def _open_way(self) -> None:
        transport = self._transport
        self.is_free = transport is not None and not transport.is_closing() and self._core.state is State.OPEN

    def _flush(self) -> None:
        self._scheduled = False
        if self._later is not None:
            self._later.cancel()
            self._later = None
        link = self._link
        while self.is_free and link is not None:
            data = link.to_send()
            if not data:
                if link.over:
                    self._end(link)
                return
            self.write(data)
        if link is not None and link.over and self._transport is not None:  # its last words wait for room
            self._abort_later()

    def _write_kept(self) -> None:
        kept = self._kept
        self._kept = []
        if kept and self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join(kept))

    def _write_core(self) -> None:
        self._write_kept()
        data = b"".join(self._core.data_to_send())
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _end(self, link: Link) -> None:
        # The side that said goodbye waits `LINGER_S` for the peer to close first.
        if not link.said_goodbye:
            self._close_soon()
        elif not self.lingers:
            self.lingers = True
            self._loop.call_later(LINGER_S, self._close_soon)

    def _close_soon(self) -> None:
        # If the peer does not read, the connection is cut after a keepalive.
        self._write_kept()
        if self._transport is not None and not self._transport.is_closing():
            self.is_free = False
            self._transport.close()
            self._abort_later()

    def _abort_later(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(self._side.limits.keepalive_s, self.abort, "the peer does not read")

    def _give_up_waiting(self) -> None:
        # Later the session's hello has a limit.
        if self._link is None:
            self._reason = self._reason or f"no WebSocket handshake within {self._side.limits.hello_timeout_s:g} s"
            self._tell_why_not_opened()
            self.abort(self._reason)

    def _tell_why_not_opened(self) -> None:
        # There is no link to tell it: a client raises it, a server logs it.
        error = self._core.handshake_exc
        left = _left_early(self._core)
        if self._opened is not None:
            if error is not None and not left and not self._opened.done():
                self._opened.set_exception(ConnectionError(_no_hub(error)))
        elif self._link is None and self._transport is not None and not self._transport.is_closing():
            # A client that leaves without a word is a health check.
            level = logging.DEBUG if left else logging.WARNING
            self._owner.failed(level, self._reason)


def _client(to: Endpoint) -> ClientProtocol:
    address = HostPort(to.host or "localhost", to.port or 80)  # which brackets IPv6
    uri = parse_uri(f"{'wss' if to.tls else 'ws'}://{address}/")
    return ClientProtocol(uri, subprotocols=[_SUBPROTOCOL], max_size=MAX_FRAME_BYTES, logger=_QUIET)


def _server(limits: Limits) -> ServerProtocol:
    return ServerProtocol(subprotocols=[_SUBPROTOCOL], max_size=_largest(limits), logger=_QUIET)


def _largest(limits: Limits) -> int:
    # Where no message is large, a stranger makes this side hold little.
    return min(MAX_FRAME_BYTES, limits.session_window_bytes + _BESIDE_BYTES)


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
    # Whether the peer closed the connection before its half of the WebSocket handshake was whole.
    return core.handshake_exc is not None and isinstance(core.handshake_exc.__cause__, EOFError)
