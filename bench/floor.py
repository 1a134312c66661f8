"""The floor: a bare relay of bytes between two sockets, on uvloop. Each is a UNIX socket's path or HOST:PORT.

    python bench/floor.py FROM TO

Three of them in a row show the cost of three hops in Python on this machine that do no work. A figure is read beside
this cost, because machines differ more than bridges do.
"""

import asyncio
import socket
import sys

import uvloop

_MOST_BYTES = 65_536


def _join(near: socket.socket, far: socket.socket) -> None:
    """Pass bytes from each end to the other; when one end closes, close both."""
    loop = asyncio.get_running_loop()

    def carry(source: socket.socket, sink: socket.socket) -> None:
        # A bench's calls are small. One that does not fit the sink's buffer breaks the relay, and the figure with it.
        if data := source.recv(_MOST_BYTES):
            sink.sendall(data)
            return
        for end in (near, far):
            loop.remove_reader(end)
            end.close()

    loop.add_reader(near, carry, near, far)
    loop.add_reader(far, carry, far, near)


def _socket(address: str) -> tuple[socket.socket, str | tuple[str, int]]:
    """Return a new socket of the address' family, and the address as the socket wants it."""
    if "/" in address:
        made, parsed = socket.socket(socket.AF_UNIX), address
    else:
        host, _, port = address.rpartition(":")
        made, parsed = socket.socket(socket.AF_INET), (host, int(port))
    made.settimeout(0)
    return made, parsed


def _at_once(end: socket.socket) -> None:
    """Have TCP send each write at once."""
    if end.family == socket.AF_INET:
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


async def _relay(source: str, target: str) -> None:
    loop = asyncio.get_running_loop()
    listener, address = _socket(source)
    with listener:
        listener.bind(address)
        listener.listen()
        while True:
            near, _ = await loop.sock_accept(listener)
            far, address = _socket(target)
            await loop.sock_connect(far, address)
            for end in (near, far):
                _at_once(end)
            _join(near, far)


if __name__ == "__main__":
    uvloop.run(_relay(*sys.argv[1:]))
