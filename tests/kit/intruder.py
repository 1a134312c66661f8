"""An intruder: the attacker's tools beside `Stranger`: silent sockets, TLS contexts, and the size of its victim."""

import contextlib
import socket
import ssl
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil

from common.messages import Goodbye, Hello
from tests.kit.bridge import Bridge, Hub
from tests.kit.certificates import Authority
from tests.kit.enrolling import trusting
from tests.kit.stranger import HungUp, Stranger, hello


@contextlib.contextmanager
def lasting_hub(logs: Path, *flags: str) -> Iterator[Hub]:
    """A hub for all tests of a module, which waits long for the answers of strangers."""
    with tempfile.TemporaryDirectory(prefix="csi-") as name, Bridge(Path(name), logs) as bridge:
        yield bridge.start_hub(*flags, "--keepalive=60s")


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


def client_hello(authority: Authority) -> bytes:
    """Return the first bytes of a client's TLS, whose handshake a server can begin and never end."""
    received, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting(authority.path).wrap_bio(received, sent, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return sent.read()


def outcome(hub: Hub, said: Hello, tls: ssl.SSLContext | None = None) -> str:
    """Return the hub's answer to a hello: `welcome`, or the reason of its goodbye."""
    with Stranger(hub.address, tls=tls) as stranger:
        stranger.upgrade()
        stranger.frames(said)
        frame = stranger.next_frames()[0]
    return frame.reason if isinstance(frame, Goodbye) else "welcome"


def refusal_of(to: str | Path, said: Hello, *, tls: ssl.SSLContext | None = None) -> Goodbye:
    """Return the hub's goodbye, which is all of its answer to a hello."""
    with Stranger(to, tls=tls) as stranger:
        stranger.upgrade()
        stranger.frames(said)
        (goodbye,) = stranger.all_frames()
    assert isinstance(goodbye, Goodbye), goodbye
    return goodbye


def gets_in(hub: Hub, name: str, tls: ssl.SSLContext | None = None, *, role: str = "edge") -> bool:
    """Return whether the hub welcomes a peer. TLS 1.3 tells a client of its refusal only when the client reads."""
    try:
        with Stranger(hub.address, tls=tls) as stranger:
            stranger.greet(hello(role, name))
    except (AssertionError, HungUp, OSError):  # refused by a goodbye, or hung up on
        return False
    return True


def resident_bytes(hub: Hub) -> int:
    return int(psutil.Process(hub.process.pid).memory_info().rss)
