"""The drivers store: the drivers of this node by name, in memory and in the driver file.

Rules:

* One name, one driver.
* The store remembers a driver that left for a grace period, and calls to it go on while its socket exists
  (docs/csi-contract.md#a-restarting-driver-keeps-its-csinode-entry). A driver of the file stays until it registers, or
  is seen to leave.
* The store never forgets where node plugins were and which drivers have a topology.
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
"""The version of a driver that an operator named: no version is lower."""

_STORE_AGAIN_S = 60.0
"""After a write that failed."""


class DriversStore:
    """Holds the known drivers.

    Attributes:
        node_plugins: by driver name: the last socket of its node plugin.
        with_topology: the drivers that had a topology of their own when the agent last knew all of their sockets.
    """

    def __init__(
        self, node: str, path: Path, sockets: DriverSockets, *, grace_s: float, clock: Callable[[], float]
    ) -> None:
        """Load the file. `sockets` has a seat for each named socket; named drivers without one are forgotten."""
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
        return self._file.path

    def __iter__(self) -> Iterator[NodeDriver]:
        return iter(list(self._known.values()))

    def find(self, name: str) -> NodeDriver | None:
        return self._known.get(name)

    def install(self, registration: Registration, seat: Seat) -> NodeDriver:
        """Give a name to the driver at a seat, in place of the driver that had it."""
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
        known = self._known.pop(name)
        if (seat := self._sockets.seat_of(known.driver)) is not None:
            seat.names.discard(name)

    def leave(self, socket: str) -> bool:
        """A registration socket is gone or replaced. Returns whether a driver was registered by it."""
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
        """Forget the drivers and sockets whose grace period is over. Returns whether there was any."""
        before = self._clock() - self._grace_s
        gone = [known for known in self if known.gone_at_s is not None and known.gone_at_s <= before]
        for known in gone:
            log.info("driver %s left more than %g s ago and is forgotten", known.name, self._grace_s)
            self.forget(known.name)
        return self._sockets.forget(before) or bool(gone)

    def ask_every(self, name: str, seconds: float | None) -> None:
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
        since = [known.gone_at_s for known in self]
        since += self._sockets.lost_at()
        waits = [max(at_s + self._grace_s - self._clock(), 0.0) for at_s in since if at_s is not None]
        if self._to_keep() != self._stored:
            waits.append(_STORE_AGAIN_S)
        return min(waits, default=None)

    async def write(self) -> None:
        """Write the file if it differs from memory. A full disk keeps no driver from registering."""
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
