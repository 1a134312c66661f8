"""An intruder: the attacker's tools beside `Stranger`: silent sockets, TLS contexts, and the size of its victim."""

from __future__ import annotations

import contextlib
import socket
import ssl
from typing import TYPE_CHECKING

import psutil

from tests.kit.stranger import HungUp, Stranger, hello

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.kit.bridge import Hub
    from tests.kit.certificates import Authority, Pem


@contextlib.contextmanager
def connections(hub: Hub, count: int, *, host: str = "127.0.0.1", saying: bytes = b"") -> Iterator[list[socket.socket]]:
    """Connect so many times from a loopback address, and say so much on each."""
    target, _, port = hub.address.rpartition(":")
    with contextlib.ExitStack() as opened:
        made = []
        for _ in range(count):
            made.append(opened.enter_context(socket.create_connection((target, int(port)), source_address=(host, 0))))
            with contextlib.suppress(ConnectionError):
                made[-1].sendall(saying)
        yield made


def client_of(authority: Authority, pem: Pem | None = None) -> ssl.SSLContext:
    """Return a client's context that trusts the authority and shows a certificate, or none."""
    context = ssl.create_default_context(cafile=authority.path)
    if pem is not None:
        context.load_cert_chain(pem.cert, pem.key)
    return context


def client_hello(authority: Authority) -> bytes:
    """Return the first bytes of a client's TLS, whose handshake a server can begin and never end."""
    received, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_of(authority).wrap_bio(received, sent, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return sent.read()


def gets_in(hub: Hub, node: str, tls: ssl.SSLContext | None = None) -> bool:
    try:
        with Stranger(hub.address, tls=tls) as stranger:
            stranger.greet(hello("edge", node))
    except (HungUp, OSError):
        return False
    return True


def resident_bytes(hub: Hub) -> int:
    return int(psutil.Process(hub.process.pid).memory_info().rss)
