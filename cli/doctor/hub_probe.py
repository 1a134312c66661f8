"""A probe of a hub's address: connect, TLS with both certificates, and one HTTP answer, without becoming its peer.

The probe sends no hello, because a hello in the agent's name would replace the agent's own link. If the hub refuses the
agent's hello, the agent's status and `csi-bridge nodes` on the hub's host tell the reason.
"""

import asyncio
import contextlib
import ssl
import time
from dataclasses import dataclass

from common.endpoint import Endpoint
from common.errors import DialError
from common.parsers import HostPort
from common.tcp import in_words
from common.transport import PROBE

_MOST_BYTES = 16_384
"""The part of an answer's head that is read; a hub's head has 200 bytes."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The hub's answer.

    Attributes:
        status: the status line.
        date: the Date header; empty if there is none.
        asked: the time of the request, seconds since the epoch.
        answered: the time of the answer.
    """

    status: str
    date: str
    asked: float
    answered: float

    @property
    def is_hub(self) -> bool:
        """Whether a WebSocket server answered: it requires an upgrade, and the probe requests none."""
        return " 426 " in self.status


async def probe(endpoint: Endpoint, tls: ssl.SSLContext | None) -> Answer:
    """Make one request.

    Args:
        endpoint: the hub's address on the network.
        tls: this side's certificate and CA; None for `ws://`.

    Raises:
        DialError: the hub does not answer, or TLS failed.
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
