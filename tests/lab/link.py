"""A link: a relay between two ends of the bridge that delays, limits, stalls, cuts and rebinds.

    async with Link(to="127.0.0.1:10350", delay_s=0.2) as link:
        ...  # dial link.address
        link.stall()
        link.heal()

Addresses are `host:port` or `unix:///path`. Only what is sent is delayed: the relay itself accepts a connection, so
TCP's own handshake costs nothing here, while TLS's does. For a link in a process of its own run this
file; `remote.py` says how.
"""

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Self

from tests.lab import sockets
from tests.lab.pipe import Line, Pipe, Tally, Way

WAYS: tuple[Way, Way] = ("up", "down")


@dataclass(frozen=True)
class Stats:
    """What went through a link."""

    accepted: int  # connections since the beginning
    open: int  # connections now
    bytes_up: int  # from whoever dialled
    bytes_down: int  # from the target
    turns: int  # see `Tally`; the sum over all connections
    round_trips: int  # half of it, rounded down


class Link:
    """A relay from `address` to `to`."""

    def __init__(
        self,
        *,
        to: str,
        listen: str = "127.0.0.1:0",
        delay_s: float = 0.0,
        rate_bits_s: float | None = None,
        buffer_bytes: int = 16 * 1024,
    ) -> None:
        # Its delay, rate and buffer; may be changed at any time (small kernel buffers come with a rate given at the
        # start only).
        self.line = Line(delay_s=delay_s, rate_bits_s=rate_bits_s, buffer_bytes=buffer_bytes)
        self._small = rate_bits_s is not None
        self._to, self._listen = to, listen
        self._listener: sockets.Listener | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._connections: set[_Connection] = set()
        self._stalled: set[Way] = set()
        self._opens = asyncio.Event()
        self._opens.set()
        self._tallies: list[Tally] = []

    @property
    def address(self) -> str:
        """Where to dial, in the form of `to`. It stays the same through every cut."""
        return self._listener.address if self._listener else self._listen

    @property
    def stats(self) -> Stats:
        turns = sum(tally.turns for tally in self._tallies)
        return Stats(
            accepted=len(self._tallies),
            open=len(self._connections),
            bytes_up=sum(tally.bytes_up for tally in self._tallies),
            bytes_down=sum(tally.bytes_down for tally in self._tallies),
            turns=turns,
            round_trips=turns // 2,
        )

    async def __aenter__(self) -> Self:
        self._listener = sockets.Listener(self._listen, small=self._small)
        self._accept()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.cut()
        assert self._listener is not None
        self._listener.close()

    # -------------------- faults --------------------

    def stall(self, way: Way | Literal["both"] = "both") -> None:
        """Nothing moves any more, and nobody is told: connections stay, what is on the line stays there.

        With both ways stalled, a new connection is accepted and nothing more.
        """
        self._stalled |= set(WAYS) if way == "both" else {way}
        if way == "both":
            self._opens.clear()
        for connection in self._connections:
            connection.flow(self._stalled)

    async def cut(self, new: Literal["refuse", "hold"] = "refuse") -> None:
        """Reset every connection. New ones are refused, or held: accepted and left without an answer until `heal`."""
        self._opens.clear()
        if new == "refuse":
            await self._refuse()
        else:
            self._accept()
        for connection in list(self._connections):
            await connection.reset()

    def rebind(self) -> None:
        """Forget the connections there are, as a NAT that lost its table: silent for ever. New ones get through."""
        for connection in self._connections:
            connection.forget()

    def heal(self) -> None:
        """End every stall and cut. What was held goes on; what was reset or forgotten stays so."""
        self._stalled.clear()
        self._opens.set()
        for connection in self._connections:
            connection.flow(self._stalled)
        self._accept()

    # -------------------- connections --------------------

    def _accept(self) -> None:
        assert self._listener is not None, "use the link as an async context manager"
        self._listener.resume()
        if self._accepting is None:
            self._accepting = asyncio.create_task(self._accept_all(self._listener), name=f"lab link {self.address}")

    async def _refuse(self) -> None:
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.wait([self._accepting])
            self._accepting = None
        if self._listener is not None:
            self._listener.pause()

    async def _accept_all(self, listener: sockets.Listener) -> None:
        while True:
            connection = _Connection(await listener.accept(), self.line)
            connection.flow(self._stalled)
            self._tallies.append(connection.tally)
            self._connections.add(connection)
            connection.start(self._to, opens=self._opens, small=self._small, ended=self._connections.discard)


class _Connection:
    """One connection through the link: the socket that was accepted, the one dialled for it, and two pipes."""

    def __init__(self, accepted: socket.socket, line: Line) -> None:
        self.tally = Tally()
        self._accepted, self._line = accepted, line
        self._dialled: socket.socket | None = None
        self._flows: dict[Way, asyncio.Event] = {way: asyncio.Event() for way in WAYS}
        self._forgotten = False
        self._task: asyncio.Task[None] | None = None

    def start(self, to: str, *, opens: asyncio.Event, small: bool, ended: Callable[["_Connection"], None]) -> None:
        self._task = asyncio.create_task(self._run(to, opens, small=small), name=f"lab connection to {to}")
        self._task.add_done_callback(lambda _: ended(self))

    def flow(self, stalled: set[Way]) -> None:
        for way, flows in self._flows.items():
            if way in stalled or self._forgotten:
                flows.clear()
            else:
                flows.set()

    def forget(self) -> None:
        self._forgotten = True
        self.flow(set(WAYS))

    async def reset(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._close(in_order=False)  # a task that never began has closed nothing

    async def _run(self, to: str, opens: asyncio.Event, *, small: bool) -> None:
        in_order = False
        try:
            await opens.wait()
            self._dialled = await sockets.dial(to, small=small)
            await self._carry(self._accepted, self._dialled)
            in_order = True
        except* OSError:
            pass  # one side reset, or the target refused: the other side sees a reset
        finally:
            self._close(in_order=in_order)

    def _close(self, *, in_order: bool) -> None:
        for end in filter(None, (self._accepted, self._dialled)):
            sockets.close(end, in_order=in_order)

    async def _carry(self, accepted: socket.socket, dialled: socket.socket) -> None:
        ends: dict[Way, tuple[socket.socket, socket.socket]] = {"up": (accepted, dialled), "down": (dialled, accepted)}
        async with asyncio.TaskGroup() as pipes:
            for way, (source, sink) in ends.items():
                pipe = Pipe(source, sink, way=way, line=self._line, tally=self.tally, flows=self._flows[way])
                pipes.create_task(pipe.run(), name=f"lab pipe {way}")


if __name__ == "__main__":
    from tests.lab.remote import main

    main()
