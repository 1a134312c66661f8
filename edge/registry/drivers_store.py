"""The drivers store: the drivers of this node by name, in memory and on disk.

Rules:

* One name, one driver.
* A driver that left stays known for a while (docs/csi-contract.md#a-restarting-driver-keeps-its-csinode-entry), and
  calls to it go on while its socket is there. A driver from before the agent's start stays known until it registers or
  leaves.
* The sockets of node plugins and the drivers with a topology stay known for good, also after a restart.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from edge.drivers import ASK_AGAIN_S
from edge.registry.driver_file import DriverFile, Kept
from edge.registry.driver_sockets import DriverSockets, Seat, fits
from edge.registry.node_driver import NodeDriver
from edge.registry.registration import Registration, Version

log = logging.getLogger("csi_bridge.edge.registrar")

OPERATORS: Version = (1,)
"""The version of a driver that an operator named: the lowest one."""

_STORE_AGAIN_S = 60.0
"""The wait after a failed write."""


class DriversStore:
    """The known drivers.

    Attributes:
        node_plugins: for each name, the last socket of its node plugin.
        with_topology: the names with a topology of their own, when that was last known of all of their sockets.
    """

    def __init__(
        self, node: str, path: Path, sockets: DriverSockets, *, grace_s: float, clock: Callable[[], float]
    ) -> None:
        """A store with the drivers of the agent's last run. Reads a small file.

        Args:
            node: this node's name.
            path: the path of the file.
            sockets: the sockets, with a seat for each one that an operator names; a driver that the operator no longer
                names is forgotten.
            grace_s: how long a driver that left is still known.
            clock: a monotonic clock, seconds.
        """
        self._node = node
        self._sockets = sockets
        self._grace_s = grace_s
        self._clock = clock
        self._known: dict[str, NodeDriver] = {}
        self._periods: dict[str, float] = {}
        self._file = DriverFile(path)
        self._storing = asyncio.Lock()
        self._stored = self._file.read()
        self.node_plugins = dict(self._stored.node_plugins)
        self.with_topology = set(self._stored.with_topology)
        for found in self._stored.drivers:
            if not fits(found.endpoint):
                continue
            seat = sockets.seat(Path(found.endpoint))
            if seat.driver.named:
                self.install(replace(found, socket="", version=OPERATORS, gone=False), seat)
            elif found.socket:
                self.install(found, seat).gone_at_s = clock() if found.gone else None
        sockets.tidy()

    @property
    def path(self) -> Path:
        """The path of the file."""
        return self._file.path

    def __iter__(self) -> Iterator[NodeDriver]:
        return iter(list(self._known.values()))

    def find(self, name: str) -> NodeDriver | None:
        """The driver of a name, also after it has left."""
        return self._known.get(name)

    def install(self, registration: Registration, seat: Seat) -> NodeDriver:
        """Give the name to the driver at a seat, in place of an earlier one."""
        name = registration.name
        known = self._known.setdefault(name, NodeDriver(registration, seat.driver, self._node))
        if (before := self._sockets.seat_of(known.driver)) is not None:
            before.names.discard(name)
        seat.names.add(name)
        known.registration, known.driver = registration, seat.driver
        seat.driver.ask_every_s = self._period(name)
        known.file, known.gone_at_s = None, None
        return known

    def forget(self, name: str) -> None:
        """Forget the driver of a name."""
        known = self._known.pop(name)
        if (seat := self._sockets.seat_of(known.driver)) is not None:
            seat.names.discard(name)

    def leave(self, socket: str) -> bool:
        """Note that a registration socket is gone or was replaced. Returns whether a driver had registered by it."""
        left = [known for known in self if known.registration.socket == socket and known.gone_at_s is None]
        for known in left:
            known.file = None
            if known.driver.named:
                known.registration = replace(known.registration, socket="", version=OPERATORS)
            else:
                known.gone_at_s = self._clock()
                known.registration = replace(known.registration, gone=True)
            log.info("driver %s is no longer registered: its socket %s is gone", known.name, socket)
        return bool(left)

    def expire(self) -> bool:
        """Forget the drivers and sockets whose grace is over. Returns whether there were any."""
        before = self._clock() - self._grace_s
        gone = [known for known in self if known.gone_at_s is not None and known.gone_at_s <= before]
        for known in gone:
            log.info("driver %s left more than %g s ago and is forgotten", known.name, self._grace_s)
            self.forget(known.name)
        return self._sockets.forget(before) or bool(gone)

    def ask_every(self, name: str, seconds: float | None) -> None:
        """Set the seconds between two questions to the driver of a name; None: the usual ones."""
        if seconds is None:
            self._periods.pop(name, None)
        else:
            self._periods[name] = seconds
        if (known := self._known.get(name)) is not None:
            known.driver.ask_every_s = self._period(name)

    def _period(self, name: str) -> float:
        return min(self._periods.get(name, ASK_AGAIN_S), ASK_AGAIN_S)

    # ---- its life ----------------------------------------------------------------------------------------------------

    def idle_s(self) -> float | None:
        """The seconds until a driver expires or a write is due; None if nothing is due."""
        since = [known.gone_at_s for known in self]
        since += self._sockets.lost_at()
        waits = [max(at_s + self._grace_s - self._clock(), 0.0) for at_s in since if at_s is not None]
        if self._to_keep() != self._stored:
            waits.append(_STORE_AGAIN_S)
        return min(waits, default=None)

    async def write(self) -> None:
        """Write the drivers to the disk, if they have changed. A full disk blocks no registration."""
        async with self._storing:
            wanted = self._to_keep()
            if wanted == self._stored:
                return
            try:
                await asyncio.to_thread(self._file.write, wanted)
            except OSError as error:
                log.warning("%s cannot be written: %s; a restart would not know what changed", self._file.path, error)
                return
            self._stored = wanted

    def _to_keep(self) -> Kept:
        drivers = tuple(self._known[name].registration for name in sorted(self._known))
        return Kept(drivers, dict(self.node_plugins), frozenset(self.with_topology))
