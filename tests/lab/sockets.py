"""An address of the lab: `host:port` or `unix:///path`, and the plain sockets that the link makes for it."""

import asyncio
import contextlib
import socket
import struct
from pathlib import Path

Sockaddr = str | tuple[str, int]

SMALL_BUFFER_BYTES = 4096
"""Of the relay's own sockets on a line with a rate: what waits shall wait in the line's buffer or at the sender."""

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER on, for 0 s: closing a TCP socket then sends RST (socket(7))


def resolve(address: str) -> tuple[socket.AddressFamily, Sockaddr]:
    if address.startswith("unix:"):
        return socket.AF_UNIX, address.removeprefix("unix:").replace("//", "", 1)
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    return (socket.AF_INET6 if ":" in host else socket.AF_INET), (host, int(port))


def make(family: socket.AddressFamily, *, small: bool) -> socket.socket:
    """A non-blocking socket that sends every write at once. Small buffers have to be asked for before it connects."""
    made = socket.socket(family)
    made.setblocking(False)
    if small:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER_BYTES)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL_BUFFER_BYTES)
    if family != socket.AF_UNIX:
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


async def dial(address: str, *, small: bool) -> socket.socket:
    """A socket connected to an address. Raises OSError."""
    family, sockaddr = resolve(address)
    dialled = make(family, small=small)
    try:
        await asyncio.get_running_loop().sock_connect(dialled, sockaddr)
    except BaseException:
        dialled.close()
        raise
    return dialled


def close(open_socket: socket.socket, *, in_order: bool) -> None:
    """Close a socket. Out of order, the other side sees a reset (a UNIX socket's other side sees the end)."""
    if open_socket.fileno() < 0:
        return
    if not in_order and open_socket.family != socket.AF_UNIX:
        open_socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    open_socket.close()


class Listener:
    """An address that can stop and resume listening without losing it to another process."""

    def __init__(self, address: str, *, small: bool) -> None:
        self._small = small
        self._family, self._sockaddr = resolve(address)
        self._holder: socket.socket | None = None
        self.address = address  # where it listens, with the real port
        if self._family != socket.AF_UNIX:
            # Bound and never listening, it keeps the port ours while the kernel refuses connections to it.
            self._holder = self._bound()
            host, port = self._sockaddr = self._holder.getsockname()[:2]
            self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._socket: socket.socket | None = None
        self.resume()

    def resume(self) -> None:
        if self._socket is None:
            self._unlink()
            self._socket = self._bound()
            self._socket.listen(1024)

    def pause(self) -> None:
        """Refuse connections, including those that nobody has accepted yet."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def close(self) -> None:
        self.pause()
        self._unlink()
        if self._holder is not None:
            self._holder.close()

    async def accept(self) -> socket.socket:
        """The next connection. Raises OSError when paused."""
        if self._socket is None:
            raise ConnectionAbortedError("paused")
        accepted, _ = await asyncio.get_running_loop().sock_accept(self._socket)
        if self._family != socket.AF_UNIX:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return accepted

    def _bound(self) -> socket.socket:
        bound = make(self._family, small=self._small)
        if self._family != socket.AF_UNIX:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(self._sockaddr)
        return bound

    def _unlink(self) -> None:
        if self._family == socket.AF_UNIX:
            with contextlib.suppress(FileNotFoundError):
                Path(str(self._sockaddr)).unlink()
