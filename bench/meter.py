"""A meter: a relay in front of the hub that notes the time, size and direction of all bytes.

It runs in a thread of the bench. It is used where few bytes pass while the bench waits, or where the bench counts bytes
and measures no time.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

_MOST_BYTES = 262_144


@dataclass(frozen=True)
class Chunk:
    """Bytes that went through at once.

    Attributes:
        at: seconds since the epoch.
        down: they came from the hub.
        size_bytes: their number.
    """

    at: float
    down: bool
    size_bytes: int


class Meter:
    """A relay.

    Attributes:
        address: the address to dial.
        chunks: all chunks, in order.
        ups: the time of each connection, in seconds since the epoch.
    """

    def __init__(self, to: str) -> None:
        host, _, port = to.rpartition(":")
        self._to = host, int(port)
        self.chunks: list[Chunk] = []
        self.ups: list[float] = []
        self._open: list[socket.socket] = []
        self._closed = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, name="meter", daemon=True).start()

    def bytes_since(self, at: float, *, down: bool) -> int:
        """Return the bytes that went one way after a moment."""
        return sum(chunk.size_bytes for chunk in list(self.chunks) if chunk.at >= at and chunk.down is down)

    def quiet_s(self) -> float:
        """Return for how many seconds no byte went either way."""
        return time.time() - max((chunk.at for chunk in self.chunks[-4:]), default=0.0)

    @contextlib.contextmanager
    def closed(self) -> Iterator[None]:
        """End every connection, and refuse new ones meanwhile."""
        self._closed = True
        self.cut()
        try:
            yield
        finally:
            self._closed = False

    def cut(self) -> None:
        """End every connection."""
        while self._open:
            with contextlib.suppress(OSError):
                self._open.pop().shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Stop relaying."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                if not self._closed:
                    self._join(near)
                else:
                    near.close()

    def _join(self, near: socket.socket) -> None:
        try:
            far = socket.create_connection(self._to)
        except OSError:  # the hub is away, so the meter closes too
            near.close()
            return
        self.ups.append(time.time())
        self._open += [near, far]
        for down, source, sink in ((False, near, far), (True, far, near)):
            sink.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._carry, args=(source, sink), kwargs={"down": down}, daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket, *, down: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_MOST_BYTES):
                self.chunks.append(Chunk(time.time(), down, len(data)))
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
