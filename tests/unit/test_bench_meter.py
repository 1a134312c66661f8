"""The meter of the bench: what it counts, and that it can be closed and opened again."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING

import pytest

from bench.meter import Chunk, Meter

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def meter() -> Iterator[Meter]:
    """A meter before nobody."""
    meter = Meter("127.0.0.1:1")
    yield meter
    meter.close()


def test_bytes_are_counted_from_a_moment_on_and_by_their_way(meter: Meter) -> None:
    meter.chunks += [
        Chunk(1.0, down=True, size_bytes=5),
        Chunk(2.0, down=True, size_bytes=70),
        Chunk(2.5, down=False, size_bytes=900),
        Chunk(3.0, down=True, size_bytes=1000),
    ]

    assert meter.bytes_since(2.0, down=True) == 1070
    assert meter.bytes_since(0.0, down=False) == 900


def test_what_is_relayed_arrives_and_is_noted() -> None:
    near, far, one, other = *socket.socketpair(), *socket.socketpair()
    meter = Meter("127.0.0.1:1")
    carrier = threading.Thread(target=meter._carry, args=(far, one), kwargs={"down": True})
    carrier.start()
    near.sendall(b"an object")
    near.close()
    carrier.join()

    assert other.recv(100) == b"an object"
    assert [(chunk.down, chunk.size_bytes) for chunk in meter.chunks] == [(True, 9)]
    other.close()
    meter.close()
