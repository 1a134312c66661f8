"""A TCP connection under a WebSocket: its beginning before TLS, its options, and the words for its errors.

The socket queues little: about two chunks that the kernel has not sent (TCP_NOTSENT_LOWAT, a small write buffer).
Bytes in that queue delay every later ping and call.
"""

import asyncio
import contextlib
import errno
import os
import random
import socket
import ssl
from collections.abc import Callable
from typing import Any, TypeVar, cast

from common.net.alerts import sending_alerts
from common.session.limits import Limits

# Time for one connection; then the next one is begun. TCP repeats a lost SYN after 1, 3, 7 and 15 s, so one that began
# while the line was cut would wait on when the line is back.
CONNECT_S = 5.0

# How long the socket stays open after this side's last words: a TLS alert, or the goodbye. If it closed at once, the
# peer's next write on a UNIX socket would fail with EPIPE before the peer has read the goodbye, which says which
# streams never ran.
LINGER_S = 0.2

# The kernel may hold a chunk divided by this number unsent (TCP_NOTSENT_LOWAT) before it takes more: enough to keep it
# busy, and little enough for a slow link. With TLS, one chunk also waits in the library.
_NOTSENT_PART = 4

# With more unwritten bytes than this, no further frame is made: at most the rest of one chunk waits here. Measured at
# 64 kbit/s: with three or four chunks in all, a pong takes 10 s, and the peer counts as dead.
_WRITE_BUFFER_BYTES = 1

# The TLS alerts with which a peer refuses this side's certificate (RFC 8446, 6.2).
_REFUSED_ALERTS = frozenset(
    {
        "access denied", "bad certificate", "certificate expired", "certificate required", "certificate revoked",
        "certificate unknown", "unknown ca", "unsupported certificate",
    }
)  # fmt: skip

_LONGEST_CLIENT_HELLO_BYTES = 16_384  # the longest TLS record (RFC 8446, 5.1)

P = TypeVar("P", bound=asyncio.BaseProtocol)


class RawTcp(asyncio.Protocol):
    """A TCP connection before TLS, or before a WebSocket without TLS.

    It keeps early bytes and hands them over: uvloop reads once after `connection_made`, although that has paused
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
        """A connection that is not made yet. `on_made` hears of the socket's connect, `on_lost` of an end before TLS.

        `on_flight` is called when the client's first TLS record has come, or bytes that are not TLS; it is None on the
        client's side.
        """
        self.transport: asyncio.Transport
        self._on_made = on_made
        self._on_flight = on_flight
        self._on_lost = on_lost
        self._early = bytearray()
        self._rest: socket.socket | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        if self._on_flight is None:
            self.transport.pause_reading()
        if self._on_made is not None:
            self._on_made(self)

    def data_received(self, data: bytes) -> None:
        self._early += data
        if self._on_flight is None:
            self.transport.pause_reading()
        elif _has_first_record(self._early):
            on_flight = self._on_flight
            self._on_flight = None
            self.transport.pause_reading()
            on_flight(self)

    def connection_lost(self, _exc: Exception | None) -> None:
        if self._on_lost is not None:
            self._on_lost(self)

    def hand_over(self, protocol: asyncio.Protocol) -> None:
        """Replace this protocol by one that goes on without TLS. Raises OSError if the connection has ended."""
        if self.transport.is_closing():
            raise ConnectionResetError("the peer closed the connection")
        self.transport.set_protocol(protocol)
        protocol.connection_made(self.transport)
        if self._early:
            protocol.data_received(bytes(self._early))
        self.transport.resume_reading()

    async def secure(self, protocol: asyncio.Protocol, tls: ssl.SSLContext, **how: Any) -> asyncio.Transport:
        """Replace this protocol by TLS with `protocol` on top. `how` goes to `start_tls()`.

        Cancelling it closes the connection. Raises OSError: the handshake failed, and the connection is closed.
        """
        loop = asyncio.get_running_loop()
        if self.transport.is_closing():
            raise ConnectionResetError("the peer closed the connection")
        alerting = sending_alerts(tls, self._send_last)
        handshake = loop.create_task(loop.start_tls(self.transport, protocol, alerting, **how), name="TLS handshake")
        try:
            await asyncio.sleep(0)  # TLS has replaced this protocol now, and its beginning is scheduled
            loop.call_soon(self._hand_over_to_tls)  # after that, and before the loop reads on
            secure = await handshake
        except BaseException as error:
            handshake.cancel()
            self.transport.abort()
            if self._rest is not None:
                with contextlib.closing(self._rest):
                    # Whoever cancels this waits for nobody to read the alert.
                    await asyncio.sleep(LINGER_S if isinstance(error, OSError) else 0)
            raise
        assert secure is not None
        return secure

    def _send_last(self, alert: bytes) -> None:
        # The event loop closes its own socket right after this, without TLS's alert. This is a second handle of it.
        # `secure` keeps the connection for a moment then, so that no reset overtakes the alert.
        with contextlib.suppress(OSError):  # the peer is gone already
            self._rest = socket.socket(fileno=os.dup(self.transport.get_extra_info("socket").fileno()))
            self._rest.settimeout(0.0)
            self._rest.send(alert)
            self._rest.shutdown(socket.SHUT_WR)

    def _hand_over_to_tls(self) -> None:
        tls = cast("asyncio.BufferedProtocol", self.transport.get_protocol())  # uvloop's is one without the base class
        while self._early:
            buffer = memoryview(tls.get_buffer(len(self._early)))
            piece = self._early[: len(buffer)]
            buffer[: len(piece)] = piece
            self._early = self._early[len(piece) :]
            tls.buffer_updated(len(piece))


def _has_first_record(early: bytes | bytearray) -> bool:
    # Whether the bytes have a whole first TLS record, or cannot begin one, which TLS itself then says.
    if early[:1] != b"\x16" or len(early) > _LONGEST_CLIENT_HELLO_BYTES:
        return True
    return len(early) >= 5 and len(early) >= 5 + int.from_bytes(early[3:5])


async def connect(make: Callable[[], P], host: str, port: int, *, limit_s: float) -> tuple[asyncio.Transport, P]:
    """Connect to the first address of a host that takes the connection; begin anew until cancelled if one is silent.

    The order is random within a family: of two hubs with one name, the resolver's first one may not lead. Each address
    has its part of `limit_s`, in which all should be tried. uvloop has no happy eyeballs (RFC 8305). Raises OSError:
    the host has no address, or all of its addresses refused.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    preferred = found[0][0] if found else None
    found = sorted(found, key=lambda it: (it[0] != preferred, random.random()))  # noqa: S311  # no secret
    while True:
        is_silent = False
        refusal = OSError("the host has no address")
        for *_, address in found:
            try:
                async with asyncio.timeout(min(CONNECT_S, limit_s / len(found))):
                    transport, protocol = await loop.create_connection(make, str(address[0]), port)
                    return transport, protocol
            except TimeoutError:
                is_silent = True
            except OSError as error:
                refusal = error
        if not is_silent:
            raise refusal


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


def tune(sock: socket.socket | None, limits: Limits) -> None:
    """Send at once, and let the kernel hold few unsent bytes. Connections inherit both from a listening socket.

    None: the connection has closed meanwhile, and its protocol hears of that.
    """
    if sock is not None:
        with contextlib.suppress(OSError):  # it has just closed, or is a UNIX socket
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, limits.chunk_bytes // _NOTSENT_PART)


def limit_write_buffer(transport: asyncio.BaseTransport) -> None:
    """Let a transport hold the rest of one message at most."""
    cast("asyncio.Transport", transport).set_write_buffer_limits(high=_WRITE_BUFFER_BYTES, low=0)


def describe_error(error: BaseException) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return _describe_tls_error(error)
    if isinstance(error, OSError) and error.errno:
        return f"{errno.errorcode.get(error.errno, '')} {error.strerror}".strip()
    if isinstance(error, UnicodeError):  # from the idna codec, whose text differs between Python versions
        return "that is no host's name"
    return str(error) or type(error).__name__


def _describe_tls_error(error: ssl.SSLError) -> str:
    reason = error.reason or str(error)
    alert = reason.partition("_ALERT_")[2].lower().replace("_", " ")
    if alert in _REFUSED_ALERTS:
        return f"the peer refuses this side's certificate, with the TLS alert {alert!r}"
    return f"the peer ended TLS with the alert {alert!r}" if alert else f"TLS failed: {reason}"
