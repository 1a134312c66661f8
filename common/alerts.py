"""An alert: TLS's last message to a peer whose handshake failed, such as `certificate expired`.

OpenSSL writes it, and both asyncio and uvloop close the connection without sending it (`_on_handshake_complete`,
sslproto). So a client would read a reset connection, and not the reason. A context of this module gives the alert to
the connection's own sender.
"""

import contextlib
import ssl
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

Send = Callable[[bytes], None]
"""Sends an alert to the peer, now: the connection closes right after it."""

_send: ContextVar[Send | None] = ContextVar("csi_bridge_send_alert", default=None)


@contextlib.contextmanager
def sending_alerts(send: Send) -> Iterator[None]:
    """Use `send` for the alerts of connections whose TLS starts in a task that this block creates."""
    token = _send.set(send)
    try:
        yield
    finally:
        _send.reset(token)


class _AlertingObject(ssl.SSLObject):
    """One side of a TLS connection, which sends its alert if the handshake fails."""

    outgoing: ssl.MemoryBIO
    send: Send | None

    def do_handshake(self) -> None:
        """Go on with the handshake."""
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError:
            alert = self.outgoing.read()
            if alert and self.send is not None:
                self.send(alert)
            raise


class AlertingContext(ssl.SSLContext):
    """A TLS context whose connections send the alert of a failed handshake."""

    sslobject_class = _AlertingObject

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *args: Any, **how: Any) -> ssl.SSLObject:
        """A connection over two buffers. asyncio and uvloop call this in the context of the task that starts TLS."""
        made = super().wrap_bio(incoming, outgoing, *args, **how)
        assert isinstance(made, _AlertingObject)
        made.outgoing, made.send = outgoing, _send.get()
        return made
