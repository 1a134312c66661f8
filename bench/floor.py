"""The floor: bytes moved from one UNIX socket to another, three times over, by bare relays on uvloop.

    python bench/floor.py FROM TO       one of the relays

What they add to a call is what three hops in Python cost on this machine before any of them does a thing. A figure is
read beside it, because machines differ more than bridges do.
"""

import asyncio
import sys
from pathlib import Path
from typing import cast

import uvloop

_HOPS = 3


class _End(asyncio.Protocol):
    """One end of a relay: what comes in goes out at the other end."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.other: _End | None = None
        self._waiting: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's says of itself that it is none

    def data_received(self, data: bytes) -> None:
        if self.other is None or self.other.transport is None:
            self._waiting.append(data)
        else:
            self.other.transport.write(data)

    def join(self, other: "_End") -> None:
        """Send on what came before there was another end."""
        self.other = other
        for data in self._waiting:
            self.data_received(data)

    def connection_lost(self, _exc: Exception | None) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()


async def _relay(source: Path, target: Path) -> None:
    loop = asyncio.get_running_loop()
    dials: set[asyncio.Task[None]] = set()

    async def dial(near: _End) -> None:
        far = _End()
        far.other = near
        await loop.create_unix_connection(lambda: far, str(target))
        near.join(far)

    class Near(_End):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            task = loop.create_task(dial(self), name="dial")
            dials.add(task)
            task.add_done_callback(dials.discard)

    await loop.create_unix_server(Near, str(source))
    await asyncio.get_running_loop().create_future()


def hops(target: Path, entry: Path) -> list[tuple[Path, Path]]:
    """From where to where each hop carries, the last one before `target` first."""
    stops = [target, *(entry.with_name(f"{entry.name}.{number}") for number in range(1, _HOPS)), entry]
    return [(stops[number + 1], stops[number]) for number in range(_HOPS)]


if __name__ == "__main__":
    uvloop.run(_relay(Path(sys.argv[1]), Path(sys.argv[2])))
