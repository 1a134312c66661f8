"""The floor: a bare relay of bytes between two UNIX sockets, on uvloop.

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


async def _relay(source: str, target: str) -> None:
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.settimeout(0)
        listener.bind(source)
        listener.listen()
        while True:
            near, _ = await loop.sock_accept(listener)
            far = socket.socket(socket.AF_UNIX)
            far.settimeout(0)
            await loop.sock_connect(far, target)
            _join(near, far)


if __name__ == "__main__":
    uvloop.run(_relay(*sys.argv[1:]))
