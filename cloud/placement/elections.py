"""The elections of all drivers whose storage every node reaches: decided by `election`, recorded, and then used.

Rules:

* A driver has elections from the first call or watch of a proxy driver with `--placement=shared` on.
* `follow` looks at the nodes twice a second, and at once after a change. It records a new election by compare-and-set
  in the claim store before any call is sent by it. If another hub was first, that hub's election counts.
* If the store cannot record it, the last election stays, and the next look tries again.
* An epoch is the time of its election in seconds, or the next number after the last one. So agents take the epochs of a
  hub that has lost its store, or that was restored from a backup. Its first election confirms the node of the last one
  with a new epoch, so that agents refuse the calls of an earlier process of the hub.
* A node has surely stopped a call once it has been away for the lease of its agent and a margin. After a restart, the
  hub does not know how long a node has been away: the time counts from the restart.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import Final

from cloud.edge_nodes import Nodes
from cloud.election import SHOWN, Elected, ElectionRules, Seat, choose, others, why_nobody
from cloud.placement.claim_store import ClaimStore, Hold
from cloud.placement.fleet import Fleet
from common.errors import PlacementNotKept
from common.logs import of_peer
from common.metrics import Metrics
from common.pages.hub import ElectionStatus
from common.pages.json_form import time_of

log = logging.getLogger("csi_bridge.hub.placement")

LOOK_S: Final = 0.5
"""Between two looks at the nodes. A takeover is late by this time at most."""

LEAST_S: Final = 1.0
"""Between two elections of a driver. Nodes that come and go in turn could else keep the hub's disk busy."""

_NO_CONTROLLER: Final = "has the driver without a controller"

MARGIN_S: Final = 5.0
"""Added to an agent's lease: its timers may be late by this time."""

DRIFT: Final = 1.01
"""The factor by which an agent's clock may be slower than the hub's. Quartz clocks are better than 0.1 %."""


class Elections:
    """The elections of all drivers. `follow` it as a task."""

    def __init__(
        self,
        nodes: Nodes,
        store: ClaimStore,
        metrics: Metrics,
        *,
        fleet: Callable[[str], Fleet],
        rules: Callable[[str], ElectionRules],
        labels: Callable[[str], Mapping[str, str] | None],
        now: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        """`labels` returns a node's labels; None: the hub has not read the Nodes yet."""
        self._nodes, self._store, self._metrics, self._fleet, self._rules = nodes, store, metrics, fleet, rules
        self._labels, self._now, self._monotonic = labels, now, monotonic
        self._drivers: dict[str, DriverElection] = {}
        self._last: Mapping[str, Elected] | None = None
        """The elections in the store; None: they have not been read."""
        self._subscribers: list[Callable[[str], None]] = []
        self._announce: list[Callable[[str, Elected], None]] = []
        self._news = asyncio.Event()
        self._is_over = False

    def subscribe(self, changed: Callable[[str], None]) -> None:
        """Call `changed` with the driver's name after each election."""
        self._subscribers.append(changed)

    def announce(self, told: Callable[[str, Elected], None]) -> None:
        """Call `told` with each election that this hub holds. A new epoch for the same node is none."""
        self._announce.append(told)

    def want(self, driver: str) -> None:
        """Elect a node of a driver from now on."""
        if driver not in self._drivers:
            made = self._drivers[driver] = DriverElection(self, driver, served=self._monotonic())
            self._metrics.show_election(driver, made.epoch, made.is_served)
            self._news.set()

    def of(self, driver: str) -> "DriverElection | None":
        """The election of a driver; None if no proxy driver wants one."""
        return self._drivers.get(driver)

    def had(self, driver: str) -> bool:
        """Whether a driver had an election in this process of the hub, or in an earlier one."""
        return driver in self._drivers or driver in (self._last or ())

    def served_by(self, node: str) -> list[str]:
        """The drivers that a node is elected for, sorted."""
        return sorted(
            driver for driver, it in self._drivers.items() if it.elected is not None and it.elected.node == node
        )

    def describe(self) -> list[ElectionStatus]:
        """Every election, for operators, sorted by the driver."""
        return [self._drivers[driver].describe() for driver in sorted(self._drivers)]

    def wake(self) -> None:
        """Look again soon: a node has changed."""
        self._news.set()

    def stop(self) -> None:
        """Hold no more elections: the hub drains, and the links end one after the other."""
        self._is_over = True

    async def follow(self) -> None:
        """Hold the elections, until cancelled."""
        await self.look()
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S if self._drivers else None):
                    await self._news.wait()
            self._news.clear()
            await self.look()

    async def look(self) -> None:
        """Hold each election that is due."""
        if self._is_over:
            return
        try:
            if self._last is None:
                self._last = await self._store.elections()
            for driver in list(self._drivers):
                await self._look(self._drivers[driver])
        except PlacementNotKept as error:
            log.warning("no election can be held: %s", error)

    async def _look(self, it: "DriverElection") -> None:
        assert self._last is not None
        if it.elected is None and (last := self._last.get(it.driver)) is not None:
            again = replace(last, epoch=self._next_epoch(last))
            self._apply(it, await self._store.elect(it.driver, again, last))
        rules, now = self._rules(it.driver), self._monotonic()
        if it.elected is not None:
            seat = self.seat(it.driver, it.elected.node)
            if not seat.unfit and rules.admits(it.elected.node, seat):
                it.served = now
                return
        if it.held is not None and now - it.held < LEAST_S:
            return
        choice = choose(it.elected, self.seats(it.driver), rules, served=it.served, now=now)
        if choice is not None:
            new = Elected(choice.node, self._next_epoch(it.elected), self._now(), choice.why)
            self._apply(it, await self._store.elect(it.driver, new, it.elected))
            it.served = it.held = now
            for told in self._announce if it.elected == new else ():
                told(it.driver, new)

    def _next_epoch(self, last: Elected | None) -> int:
        return max(int(self._now()), last.epoch + 1 if last is not None else 1)

    def _apply(self, it: "DriverElection", elected: Elected) -> None:
        it.elected = elected
        log.warning(
            "edge node %s serves driver %s (epoch %d): %s",
            elected.node,
            it.driver,
            elected.epoch,
            elected.why,
            extra=of_peer(f"edge {elected.node}"),
        )
        for changed in self._subscribers:
            changed(it.driver)

    def seat(self, driver: str, node: str) -> Seat:
        """A node of a driver as a candidate."""
        member = self._fleet(driver).members.get(node)
        if member is None:
            return Seat("is not known any more")
        seat = self._nodes.seat(node, driver) if member.has_controller else Seat(_NO_CONTROLLER)
        return seat._replace(labels=self._labels(node))

    def seats(self, driver: str, most: int | None = None) -> dict[str, Seat]:
        """The candidates for a driver, fit or not, in the order of their names; at most so many."""
        return {node: self.seat(driver, node) for node in islice(self._fleet(driver).members, most)}

    def rules(self, driver: str) -> ElectionRules:
        """The operator's rules for a driver."""
        return self._rules(driver)

    def lease_s(self, node: str) -> int:
        """See `decisions.Election`."""
        return self._nodes.lease_s(node)

    def machine(self, node: str) -> str:
        """See `decisions.Election`."""
        return self._nodes.machine(node)

    def stops(self, hold: Hold) -> tuple[float, float] | None:
        """When a machine has surely stopped a call, in the monotonic clock and since the epoch.

        None while it is connected, or if the call goes on without the hub.
        """
        left = self._nodes.left(hold.node, hold.machine) if hold.lease_s else None
        bound_s = hold.lease_s * DRIFT + MARGIN_S
        return (left[0] + bound_s, left[1] + bound_s) if left is not None else None

    def has_stopped(self, hold: Hold) -> bool:
        """See `decisions.Election`."""
        at = self.stops(hold)
        return at is not None and self._monotonic() >= at[0]


class DriverElection:
    """The election of one driver (`decisions.Election`).

    Attributes:
        driver: the driver.
        served: when the elected node was seen last that it can serve, or when the hub began to look for one, in seconds
            of the monotonic clock.
        held: when this hub has held the last election, in the same clock; None: it has held none.
        elected: the last election; None: there was none.
    """

    def __init__(self, elections: Elections, driver: str, *, served: float) -> None:
        self.driver, self.served = driver, served
        self.held: float | None = None
        self.elected: Elected | None = None
        self._elections = elections

    def why_nobody(self) -> str:
        """See `decisions.Election`."""
        return why_nobody(self._elections.seats(self.driver, SHOWN + 1), self._elections.rules(self.driver))

    def lease_s(self, node: str) -> int:
        """See `decisions.Election`."""
        return self._elections.lease_s(node)

    def machine(self, node: str) -> str:
        """See `decisions.Election`."""
        return self._elections.machine(node)

    def stops_at(self, hold: Hold) -> float:
        """See `decisions.Election`."""
        at = self._elections.stops(hold)
        return at[1] if at is not None else float("inf")

    def has_stopped(self, hold: Hold) -> bool:
        """See `decisions.Election`."""
        return self._elections.has_stopped(hold)

    def epoch(self) -> float:
        """The number of the last election, for a metric; 0: there was none."""
        return self.elected.epoch if self.elected is not None else 0

    def trouble(self) -> str:
        """Why the elected node does not serve now; empty if it does."""
        if self.elected is None:
            return self.why_nobody()
        return self._elections.seat(self.driver, self.elected.node).unfit

    def is_served(self) -> bool:
        """Whether the elected node serves now."""
        return not self.trouble()

    def describe(self) -> ElectionStatus:
        """The election, for operators."""
        it, seats, rules = self.elected, self._elections.seats(self.driver), self._elections.rules(self.driver)
        beside = others(it.node if it is not None else "", seats, rules)
        return ElectionStatus(
            driver=self.driver,
            node=it.node if it is not None else "",
            epoch=it.epoch if it is not None else 0,
            since=time_of(it.since) if it is not None else None,
            why=it.why if it is not None else "",
            trouble=self.trouble(),
            lease_s=self.lease_s(it.node) if it is not None else 0,
            standby=beside.standby,
            unfit=beside.unfit,
            unmatched=rules.unmatched(seats),
        )
