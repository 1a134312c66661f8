"""Free TCP ports on loopback, for processes that get their port from a test."""

import itertools
import os
import random
import socket
from collections.abc import Iterator

# Below Linux' range for outgoing connections, which could take a port between the check and the peer's bind.
_FIRST, _WORKERS, _EACH = 20_000, 8, 1_500


def free_ports(count: int) -> list[int]:
    """Return ports that no process listens on now, and that were not returned before."""
    return list(itertools.islice(filter(_is_free, _ports), count))


def _own_ports() -> Iterator[int]:
    """Yield this xdist worker's ports for ever, from a random start: another run may use the same ones."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _WORKERS
    own = range(_FIRST + worker * _EACH, _FIRST + (worker + 1) * _EACH)
    start = random.randrange(_EACH)
    return itertools.cycle([*own[start:], *own[:start]])


_ports = _own_ports()


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
