"""An alert: TLS's last message to a peer whose handshake failed, such as `certificate expired`.

OpenSSL writes it, and both asyncio and uvloop close the connection without sending it (`_on_handshake_complete`,
sslproto). So a client would read a reset connection, and not the reason. A context of `sending_alerts` gives the alert
to its connection's own sender.

Each connection of such a context also leaves out two steps that both libraries take for nobody, and that cost a server
a tenth of a millisecond at each handshake.
"""

import ssl
from collections.abc import Callable
from typing import Any, cast

Send = Callable[[bytes], None]  # sends an alert to the peer, now: the connection closes right after it


class _AlertingObject(ssl.SSLObject):
    incoming: ssl.MemoryBIO
    outgoing: ssl.MemoryBIO
    send: Send | None = None

    def do_handshake(self) -> None:
        """Go on with the handshake. A server's that has no new bytes is not given to OpenSSL: it would only wait."""
        if self.server_side and not (self.incoming.pending or self.incoming.eof):
            raise ssl.SSLWantReadError
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError:
            if self.send is not None and (alert := self.outgoing.read()):
                self.send(alert)
            raise
        self.send = None

    def getpeercert(self, binary_form: bool = False) -> Any:  # noqa: FBT001, FBT002  # the library's own
        """The peer's certificate as DER. In the other form the libraries ask for it, and nobody reads it."""
        return super().getpeercert(binary_form=True) if binary_form else None


class _StandIn:
    # Makes one connection of another context. A real context would cost each connection 0.2 ms and 20 KB.

    __slots__ = ("_real", "_send")

    __class__ = property(lambda _self: ssl.SSLContext)  # as unittest.mock's objects do it

    def __init__(self, real: ssl.SSLContext, send: Send) -> None:
        self._real = real
        self._send = send

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *args: Any, **how: Any) -> ssl.SSLObject:
        made = self._real.wrap_bio(incoming, outgoing, *args, **how)
        if isinstance(made, _AlertingObject):
            made.incoming = incoming
            made.outgoing = outgoing
            made.send = self._send
        return made


def sending_alerts(context: ssl.SSLContext, send: Send) -> ssl.SSLContext:
    """A context for one `start_tls()`, whose connection gives the alert of a failed handshake to `send`."""
    context.sslobject_class = _AlertingObject
    return cast("ssl.SSLContext", _StandIn(context, send))
