"""A probe of a hub's address: connect, TLS with both certificates, and one HTTP answer, without becoming its peer.

A hello in the agent's name would replace the agent's own link, so none is said: what the hub has against a hello tell
the agent itself, and `csi-bridge nodes` on the hub's host.
"""

import asyncio
import contextlib
import ssl
import time
from dataclasses import dataclass

from common.endpoint import Endpoint
from common.errors import DialError
from common.parsers import HostPort
from common.transport import PROBE, in_words

_MOST_BYTES = 16_384
"""Of an answer's head; a hub's has 200."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the hub answered.

    Attributes:
        status: the status line.
        date: the header; empty if there is none.
        asked: when it was asked, in seconds since the epoch.
        answered: when its answer came.
    """

    status: str
    date: str
    asked: float
    answered: float

    @property
    def is_hub(self) -> bool:
        """Whether a WebSocket server answered: it wants an upgrade, which was not asked for."""
        return " 426 " in self.status


async def probe(endpoint: Endpoint, tls: ssl.SSLContext | None) -> Answer:
    """Ask once.

    Args:
        endpoint: where the hub listens, over the network.
        tls: our certificate and CA; None for `ws://`.

    Raises:
        DialError: nobody answers there, or TLS failed.
    """
    try:
        reader, writer = await asyncio.open_connection(
            endpoint.host, endpoint.port, ssl=tls, server_hostname=endpoint.host if tls is not None else None
        )
        try:
            asked = time.time()
            host = HostPort(endpoint.host, endpoint.port)
            writer.write(f"GET / HTTP/1.1\r\nHost: {host}\r\nUser-Agent: {PROBE}\r\n\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            return _read(head, asked, time.time())
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        raise DialError(str(endpoint), "the server there does not answer as a hub does") from error
    except (OSError, UnicodeError) as error:  # a TLS error is an OSError; a UnicodeError: the name cannot be a host's
        raise DialError(str(endpoint), in_words(error)) from error


def _read(head: bytes, asked: float, answered: float) -> Answer:
    status, *lines = head[:_MOST_BYTES].decode("latin-1").split("\r\n")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return Answer(status, headers.get("date", ""), asked, answered)
