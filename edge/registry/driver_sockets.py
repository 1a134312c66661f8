"""A driver's socket: one `Driver` for each, whoever found it and by whichever path, while somebody wants it."""

import asyncio
import contextlib
import errno
import functools
import os
import socket as sockets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from common.parsers import LONGEST_SOCKET_PATH_BYTES
from common.sockets import FileId, file_id
from common.tasks import Tasks, supervised
from edge.drivers import Driver


@dataclass(eq=False)
class Seat:
    """One driver socket, and who wants it.

    Attributes:
        driver: what calls go through.
        names: the drivers that are known to be there.
        finders: who found it in passing, each with the time since when it is gone for him, or None.
        asking: registrations that are just asking the driver.
    """

    driver: Driver
    names: set[str] = field(default_factory=set)
    finders: dict[str, float | None] = field(default_factory=dict)
    asking: int = 0
    _left: asyncio.Event | None = None
    _deserted: frozenset[FileId] = frozenset()

    @property
    def wanted(self) -> bool:
        """Whether anybody wants it."""
        return self.driver.named or bool(self.names) or bool(self.finders)

    @property
    def was_only_found(self) -> bool:
        """Whether it is wanted for no other reason than that its socket was seen."""
        return bool(self.finders) and not self.driver.named and not self.names

    @property
    def is_deserted(self) -> bool:
        """Whether the driver has left its socket to another one; a new file there is a driver again."""
        return bool(self._deserted) and file_id(str(self.driver.socket)) in self._deserted

    def mark_if_deserted(self) -> None:
        """The driver serves the same elsewhere now: if nobody listens here, it is called here no more."""
        file = file_id(str(self.driver.socket))
        if nobody_listens(self.driver.socket):
            self._deserted = frozenset({file, None})

    def watch(self, tasks: Tasks) -> None:
        """Have the driver asked what it is, now and then, until `leave`."""
        if self._left is None:
            self._left = asyncio.Event()
            tasks.start(_watch(self.driver, self._left), name=f"driver at {self.driver.socket}")

    def leave(self) -> None:
        """Nobody wants it any more."""
        if self._left is not None:
            self._left.set()


async def _watch(driver: Driver, left: asyncio.Event) -> None:
    async with supervised() as tasks:
        tasks.start(driver.watch(), name=f"ask {driver.socket}")
        await left.wait()


class DriverSockets:
    """All of them on this node."""

    def __init__(self, node: str, *, max_message_bytes: int, heard: Callable[[Seat], None]) -> None:
        """None yet.

        Args:
            node: this node's name.
            max_message_bytes: the largest answer taken of a driver.
            heard: called when a driver answers something else than before of itself.
        """
        self._node = node
        self._max_message_bytes = max_message_bytes
        self._heard = heard
        self._seats: dict[str, Seat] = {}
        self._left: list[Driver] = []

    def __iter__(self) -> Iterator[Seat]:
        return iter(list(self._seats.values()))

    @property
    def drivers(self) -> list[Driver]:
        """The drivers that may be called."""
        return [seat.driver for seat in self if seat.wanted and not seat.is_deserted]

    def seat(self, socket: Path) -> Seat:
        """The seat of a socket, a new one if it has none."""
        identity = _identity(socket)
        if identity not in self._seats:
            driver = Driver(
                socket,
                self._node,
                max_message_bytes=self._max_message_bytes,
                changed=functools.partial(self._changed, identity),
            )
            self._seats[identity] = Seat(driver)
        return self._seats[identity]

    def is_at(self, socket: Path, seat: Seat) -> bool:
        """Whether a seat is that of a socket."""
        return self._seats.get(_identity(socket)) is seat

    def is_unasked(self, socket: Path) -> bool:
        """Whether a driver may be at a socket, and nobody knows yet if it answers."""
        seat = self._seats.get(_identity(socket))
        return seat is not None and not seat.driver.asked

    def seat_of(self, driver: Driver) -> Seat | None:
        """The seat of a driver."""
        return next((seat for seat in self if seat.driver is driver), None)

    @contextlib.contextmanager
    def asking(self, socket: Path) -> Iterator[Seat]:
        """A seat that stays while a registration asks its driver."""
        seat = self.seat(socket)
        seat.asking += 1
        try:
            yield seat
        finally:
            seat.asking -= 1
            self.tidy()

    def tidy(self) -> None:
        """Give up the seats that nobody wants."""
        for identity, seat in list(self._seats.items()):
            if not seat.wanted and not seat.asking:
                del self._seats[identity]
                seat.leave()
                self._left.append(seat.driver)

    def watch(self, tasks: Tasks) -> None:
        """Have the wanted ones asked what they are."""
        for seat in self:
            if seat.wanted:
                seat.watch(tasks)

    async def close_left(self) -> None:
        """Close the connections to those that were given up."""
        while self._left:
            await self._left.pop().close()

    async def close(self) -> None:
        """Close the connections to all."""
        self._left += [seat.driver for seat in self]
        await self.close_left()

    # ---- found in passing --------------------------------------------------------------------------------------------

    def found(self, finder: str, socket: Path) -> bool:
        """Somebody saw a socket that he does not register. Whether that is news."""
        seat = self.seat(socket)
        if seat.finders.get(finder, 0.0) is None:
            return False
        seat.finders[finder] = None
        return True

    def lost(self, finder: str, now: float) -> bool:
        """What somebody saw is gone. Whether that is news."""
        seen = [seat for seat in self if seat.finders.get(finder, 0.0) is None]
        for seat in seen:
            seat.finders[finder] = now
        return bool(seen)

    def forget(self, before: float) -> bool:
        """Forget what was lost before a time. Whether there was anything."""
        over = [(seat, finder) for seat, finder, since in self._lost() if since <= before]
        for seat, finder in over:
            del seat.finders[finder]
        return bool(over)

    def lost_at(self) -> Iterator[float]:
        """When each was lost that is yet to be forgotten."""
        return (since for _, _, since in self._lost())

    def _lost(self) -> Iterator[tuple[Seat, str, float]]:
        """What is to be forgotten, by whom it was lost, and when."""
        for seat in self:
            yield from ((seat, finder, since) for finder, since in seat.finders.items() if since is not None)

    def _changed(self, identity: str) -> None:
        if (seat := self._seats.get(identity)) is not None:
            self._heard(seat)


def _identity(socket: Path) -> str:
    """The same for each path of a socket: a kubelet's directory often has two names."""
    return os.path.realpath(socket)


def nobody_listens(socket: Path) -> bool:
    """Whether a connection is refused there. One that has to wait, or that is not allowed, is not."""
    with sockets.socket(sockets.AF_UNIX) as probe:
        probe.setblocking(False)  # noqa: FBT003  # the standard library's own signature
        return probe.connect_ex(str(socket)) in {errno.ECONNREFUSED, errno.ENOENT}


def fits(socket: str) -> bool:
    """Whether a text can be the path of a socket."""
    return socket.startswith("/") and "\0" not in socket and len(os.fsencode(socket)) <= LONGEST_SOCKET_PATH_BYTES
