"""The floor: a bare relay of bytes between two UNIX sockets, on uvloop.

    python bench/floor.py FROM TO [accepts|dials CA CERTIFICATE KEY]

Three of them in a row show the cost of three hops in Python on this machine that do no work. A figure is read beside
this cost, because machines differ more than bridges do. The relay that `accepts` and the one that `dials` have TLS
between them, with certificates of both.
"""

import asyncio
import socket
import ssl
import sys
from collections.abc import Sequence
from contextlib import suppress

import uvloop

_MOST_BYTES = 65_536


_HANDSHAKE_S = 5.0


def tls_context(side: int, files: Sequence[str]) -> ssl.SSLContext:
    """Return a context of TLS 1.3 with certificates on both sides, as the bridge's links have it."""
    ca, certificate, key = files
    context = ssl.SSLContext(side)
    context.minimum_version, context.verify_mode = ssl.TLSVersion.TLSv1_3, ssl.CERT_REQUIRED
    context.load_verify_locations(ca)
    context.load_cert_chain(certificate, key)
    if side == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0
    return context


def _join(near: socket.socket, far: socket.socket) -> None:
    """Pass bytes from each end to the other; when one end closes, close both."""
    loop = asyncio.get_running_loop()

    def carry(source: socket.socket, sink: socket.socket) -> None:
        # A bench's calls are small. One that does not fit the sink's buffer breaks the relay, and the figure with it.
        with suppress(ssl.SSLWantReadError):  # a part of a TLS record has come
            while data := source.recv(_MOST_BYTES):
                sink.sendall(data)
                if not isinstance(source, ssl.SSLSocket) or not source.pending():
                    return
            for end in (near, far):
                loop.remove_reader(end)
                end.close()

    loop.add_reader(near, carry, near, far)
    loop.add_reader(far, carry, far, near)


def _secured(end: socket.socket, context: ssl.SSLContext, *, accepts: bool) -> ssl.SSLSocket:
    end.settimeout(_HANDSHAKE_S)
    secured = context.wrap_socket(end, server_side=accepts, server_hostname=None if accepts else "localhost")
    secured.settimeout(0)
    return secured


async def _relay(source: str, target: str, side: str = "", *files: str) -> None:
    loop = asyncio.get_running_loop()
    accepts = side == "accepts"
    tls = tls_context(ssl.PROTOCOL_TLS_SERVER if accepts else ssl.PROTOCOL_TLS_CLIENT, files) if files else None
    with socket.socket(socket.AF_UNIX) as listener:
        listener.settimeout(0)
        listener.bind(source)
        listener.listen()
        while True:
            near, _ = await loop.sock_accept(listener)
            far = socket.socket(socket.AF_UNIX)
            far.settimeout(0)
            with suppress(OSError):  # the bench only looked whether it listens
                if tls is not None and accepts:
                    near = _secured(near, tls, accepts=True)
                await loop.sock_connect(far, target)
                if tls is not None and not accepts:
                    far = _secured(far, tls, accepts=False)
                _join(near, far)


if __name__ == "__main__":
    uvloop.run(_relay(*sys.argv[1:]))
