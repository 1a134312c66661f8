"""Free TCP ports on loopback, for processes that are told where to listen."""

from __future__ import annotations

import random
import socket

# Below Linux' range for outgoing connections, which could take a port between our look and the peer's bind.
_FIRST, _LAST = 20_000, 32_000


def free_ports(count: int) -> list[int]:
    """Distinct ports that nobody listens on at this moment."""
    ports: list[int] = []
    while len(ports) < count:
        port = random.randint(_FIRST, _LAST)
        if port not in ports and _is_free(port):
            ports.append(port)
    return ports


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
