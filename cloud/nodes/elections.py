"""The elections of all drivers whose storage every node reaches: decided by `election`, recorded, and then used.

Rules:

* A driver has elections from the first call or watch of a proxy driver with `--placement=shared` on.
* `follow` looks at the nodes twice a second, and at once after a change. It records a new election before any call is
  sent by it. If that fails, the last election stays, and the next look tries again.
* An epoch is the time of its election in seconds, or the next number after the last one. So agents take the epochs of a
  hub that has lost its records, or that was restored from a backup. Its first election confirms the node of the last
  one with a new epoch, so that agents refuse the calls of an earlier process of the hub.
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

from cloud.claims.claim import Claim
from cloud.claims.claims import Claims
from cloud.claims.election import SHOWN, Elected, ElectionRules, ServingCandidate, choose, others, why_nobody
from cloud.nodes.edge_nodes import DRIFT
from cloud.nodes.fleet import Fleets
from cloud.nodes.known_node import Moment
from cloud.sources.source import Source
from common.errors import CallError
from common.objects.objects import Ref
from common.observe.logs import of_peer
from common.observe.metrics import Metrics
from common.pages.hub import ElectionStatus
from common.pages.json_form import time_of

log = logging.getLogger("csi_bridge.hub.placement")

LOOK_S: Final = 0.5  # Between two looks at the nodes. A takeover is late by this time at most.

# Between two elections of a driver. Nodes that come and go in turn could else keep the hub's disk busy.
LEAST_S: Final = 1.0

_NO_CONTROLLER: Final = "has the driver without a controller"

MARGIN_S: Final = 5.0  # added to an agent's lease: its timers may be late by this time


class Elections:
    """The elections of all drivers. `follow` it as a task."""

    def __init__(
        self,
        fleets: Fleets,
        claims: Claims,
        source: Source | None,
        metrics: Metrics,
        *,
        rules: Callable[[str], ElectionRules],
    ) -> None:
        self.nodes = fleets.nodes
        self.fleets = fleets
        self.rules = rules
        self.monotonic = claims.monotonic
        self._claims = claims
        self._source = source
        self._metrics = metrics
        self._now = claims.now
        self.drivers: dict[str, DriverElection] = {}  # the election of each driver that a proxy driver wants one for
        # Called with the driver after each election; with each one that is more than a new epoch for the same node.
        self.changed: Callable[[str], None] = lambda _driver: None
        self.announce: Callable[[str, Elected], None] = lambda _driver, _elected: None
        self._news = asyncio.Event()
        self._is_over = False

    def want(self, driver: str) -> None:
        if driver not in self.drivers:
            made = self.drivers[driver] = DriverElection(self, driver, served=self.monotonic())
            self._metrics.show_election(driver, made.epoch, made.is_served)
            self._news.set()

    def labels(self, node: str) -> Mapping[str, str] | None:
        """The labels of a Node; none without a Node. None as a whole: the hub has not read the Nodes yet."""
        if self._source is None:
            return {}
        if not self._source.is_ready:
            return None
        body = self._source.body(Ref("Node", "", node))
        return (body["metadata"].get("labels") or {}) if body is not None else {}

    def had(self, driver: str) -> bool:
        """Whether a driver had an election in this process of the hub, or in an earlier one."""
        return driver in self.drivers or driver in self._claims.elections

    def served_by(self, node: str) -> list[str]:
        return sorted(
            driver for driver, it in self.drivers.items() if it.elected is not None and it.elected.node == node
        )

    def describe(self) -> list[ElectionStatus]:
        return [self.drivers[driver].describe() for driver in sorted(self.drivers)]

    def wake(self) -> None:
        self._news.set()

    def stop(self) -> None:
        """Hold no more elections: the hub drains, and the links end one after the other."""
        self._is_over = True

    async def follow(self) -> None:
        await self.look()
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S if self.drivers else None):
                    await self._news.wait()
            self._news.clear()
            await self.look()

    async def look(self) -> None:
        if self._is_over:
            return
        try:
            for election in list(self.drivers.values()):
                await self._look(election)
        except CallError as error:
            log.warning("no election can be held: %s", error)

    async def _look(self, it: "DriverElection") -> None:
        if it.elected is None and (last := self._claims.elections.get(it.driver)) is not None:
            await self._apply(it, replace(last, epoch=self._next_epoch(last)))
        rules = self.rules(it.driver)
        now = self.monotonic()
        if it.elected is not None:
            candidate = it.serving_candidate(it.elected.node)
            if not candidate.unfit and rules.admits(it.elected.node, candidate):
                it.served = now
                return
        if it.held is not None and now - it.held < LEAST_S:
            return
        choice = choose(it.elected, it.serving_candidates(), rules, served=it.served, now=now)
        if choice is not None:
            node, why = choice
            new = Elected(node, self._next_epoch(it.elected), self._now(), why)
            await self._apply(it, new)
            it.served = it.held = now
            self.announce(it.driver, new)

    def _next_epoch(self, last: Elected | None) -> int:
        return max(int(self._now()), last.epoch + 1 if last is not None else 1)

    async def _apply(self, it: "DriverElection", elected: Elected) -> None:
        await self._claims.elect(it.driver, elected)
        it.elected = elected
        node = elected.node
        epoch = elected.epoch
        why = elected.why
        line = "edge node %s serves driver %s (epoch %d): %s"
        log.warning(line, node, it.driver, epoch, why, extra=of_peer(f"edge {node}"))
        self.changed(it.driver)


class DriverElection:
    """The election of one driver."""

    def __init__(self, elections: Elections, driver: str, *, served: float) -> None:
        self.driver = driver
        # when the elected node was last seen able to serve, or when the hub began to look for one, in seconds of the
        # monotonic clock.
        self.served = served
        # when this hub has held the last election, in the same clock; None: it has held none.
        self.held: float | None = None
        self.elected: Elected | None = None  # the last election; None: there was none
        self._all = elections
        self.known = elections.nodes.of

    def serving_candidate(self, node: str) -> ServingCandidate:
        member = self._all.fleets.of(self.driver).members.get(node)
        if member is None:
            return ServingCandidate(unfit="is not known any more")
        candidate = ServingCandidate(unfit=_NO_CONTROLLER)
        if member.has_controller:
            candidate = self._all.nodes.of(node).serving_candidate(self.driver)
        return candidate._replace(labels=self._all.labels(node))

    def serving_candidates(self, most: int | None = None) -> dict[str, ServingCandidate]:
        """The candidates, fit or not, in the order of their names; at most so many."""
        return {node: self.serving_candidate(node) for node in islice(self._all.fleets.of(self.driver).members, most)}

    def why_nobody(self) -> str:
        return why_nobody(self.serving_candidates(SHOWN + 1), self._all.rules(self.driver))

    def stops_at(self, claim: Claim) -> float:
        """When the machine of an open create has surely stopped it, in seconds since the epoch.

        Infinity: it may be connected, or time alone proves nothing.
        """
        left = self._left(claim)
        return left.wall + _bound_s(claim) if left is not None else float("inf")

    def has_stopped(self, claim: Claim) -> bool:
        left = self._left(claim)
        return left is not None and self._all.monotonic() >= left.monotonic + _bound_s(claim)

    def epoch(self) -> float:
        """The number of the last election, for a metric; 0: there was none."""
        return self.elected.epoch if self.elected is not None else 0

    def trouble(self) -> str:
        """Why the elected node does not serve now; empty if it does."""
        return self.why_nobody() if self.elected is None else self.serving_candidate(self.elected.node).unfit

    def is_served(self) -> bool:
        return not self.trouble()

    def describe(self) -> ElectionStatus:
        it = self.elected or Elected("", 0, 0.0, "")
        candidates = self.serving_candidates()
        rules = self._all.rules(self.driver)
        standby, unfit = others(it.node, candidates, rules)
        return ElectionStatus(
            driver=self.driver,
            node=it.node,
            epoch=it.epoch,
            since=time_of(it.since) if it.node else None,
            why=it.why,
            trouble=self.trouble(),
            lease_s=self.known(it.node).lease_s,
            standby=standby,
            unfit=unfit,
            unmatched=rules.unmatched(candidates),
        )

    def _left(self, claim: Claim) -> Moment | None:
        # None while the machine is connected, or if the call goes on without the hub.
        return self._all.nodes.of(claim.node).gone_at(claim.machine) if claim.lease_s else None


def _bound_s(claim: Claim) -> float:
    return claim.lease_s * DRIFT + MARGIN_S
