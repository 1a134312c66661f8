"""The sockets of drivers: one `Driver` object for each socket in use, under whichever path it was found."""

import asyncio
import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from common.net.sockets import UNSERVED, FileId, file_id, knock
from common.observe.tasks import Tasks
from common.parsers import LONGEST_SOCKET_PATH_BYTES
from edge.calls.drivers import Driver
from edge.settings import AgentSettings


@dataclass(eq=False)
class SharedSocket:
    """One driver socket and its users. Without users it is given up."""

    driver: Driver
    names: set[str] = field(default_factory=set)  # the names of the drivers that are known to be there
    # For each registration socket or path that led an observer here, the time at which it was lost, or None.
    finders: dict[str, float | None] = field(default_factory=dict)
    asking: int = 0  # the number of registrations that are calling the driver now
    _watching: asyncio.Task[object] | None = None
    _deserted: frozenset[FileId] = frozenset()

    @property
    def wanted(self) -> bool:
        return self.driver.named or bool(self.names) or bool(self.finders)

    @property
    def was_only_found(self) -> bool:
        return bool(self.finders) and not self.driver.named and not self.names

    @property
    def is_deserted(self) -> bool:
        """Whether the driver has moved to another socket and left this file. A new file here is a driver again."""
        return bool(self._deserted) and file_id(str(self.driver.socket)) in self._deserted

    def mark_if_deserted(self) -> None:
        """Stop calling this socket if nothing listens on it: the driver now serves the same services on another one."""
        file = file_id(str(self.driver.socket))
        if knock(self.driver.socket) in UNSERVED:
            self._deserted = frozenset({file, None})

    def watch(self, tasks: Tasks) -> None:
        if self._watching is None:
            self._watching = tasks.start(self.driver.watch(), name=f"driver at {self.driver.socket}")

    def leave(self) -> None:
        if self._watching is not None:
            self._watching.cancel()


class DriverSockets:
    """All driver sockets of this node."""

    def __init__(self, settings: AgentSettings, heard: Callable[[SharedSocket], None]) -> None:
        self._settings, self._heard = settings, heard
        self._seats: dict[str, SharedSocket] = {}
        self._left: list[Driver] = []

    def __iter__(self) -> Iterator[SharedSocket]:
        return iter(list(self._seats.values()))

    @property
    def drivers(self) -> list[Driver]:
        return [seat.driver for seat in self if seat.wanted and not seat.is_deserted]

    def seat(self, socket: Path) -> SharedSocket:
        identity = _identity(socket)
        if identity not in self._seats:
            limit, changed = self._settings.max_message_bytes, functools.partial(self._changed, identity)
            driver = Driver(socket, self._settings.node, max_message_bytes=limit, changed=changed)
            self._seats[identity] = SharedSocket(driver)
        return self._seats[identity]

    def find(self, socket: Path) -> SharedSocket | None:
        return self._seats.get(_identity(socket))

    @contextlib.contextmanager
    def asking(self, socket: Path) -> Iterator[SharedSocket]:
        """Yield the seat of a socket, which stays while a registration calls its driver."""
        seat = self.seat(socket)
        seat.asking += 1
        try:
            yield seat
        finally:
            seat.asking -= 1
            self.tidy()

    def tidy(self) -> None:
        for identity, seat in list(self._seats.items()):
            if not seat.wanted and not seat.asking:
                del self._seats[identity]
                seat.leave()
                self._left.append(seat.driver)

    def watch(self, tasks: Tasks) -> None:
        for seat in self:
            if seat.wanted:
                seat.watch(tasks)

    async def close_left(self) -> None:
        while self._left:
            await self._left.pop().close()

    async def close(self) -> None:
        self._left += [seat.driver for seat in self]
        await self.close_left()

    # ---- seen without registering ------------------------------------------------------------------------------------

    def found(self, finder: str, socket: Path) -> bool:
        """Note that a finder leads to a socket. Returns whether that is news: it did not, or had lost it."""
        seat = self.seat(socket)
        if seat.finders.get(finder, 0.0) is None:
            return False
        seat.finders[finder] = None
        return True

    def lost(self, finder: str, now: float) -> bool:
        """Note when a finder lost its sockets. Returns whether it had any."""
        # None: found, and not lost. A finder that a socket does not have counts as lost.
        seen = [seat for seat in self if seat.finders.get(finder, 0.0) is None]
        for seat in seen:
            seat.finders[finder] = now
        return bool(seen)

    def forget(self, before: float) -> bool:
        over = [(seat, finder) for seat, finder, since in self._lost() if since <= before]
        for seat, finder in over:
            del seat.finders[finder]
        return bool(over)

    def lost_at(self) -> Iterator[float]:
        return (since for _, _, since in self._lost())

    def _lost(self) -> Iterator[tuple[SharedSocket, str, float]]:
        for seat in self:
            yield from ((seat, finder, since) for finder, since in seat.finders.items() if since is not None)

    def _changed(self, identity: str) -> None:
        if (seat := self._seats.get(identity)) is not None:
            self._heard(seat)


def _identity(socket: Path) -> str:
    # One identity for all paths of a socket: a kubelet's directory often has two names.
    return os.path.realpath(socket)


def fits(socket: str) -> bool:
    return socket.startswith("/") and "\0" not in socket and len(os.fsencode(socket)) <= LONGEST_SOCKET_PATH_BYTES
