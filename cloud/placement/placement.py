"""Placement: sends each CSI call to its edge node, in three steps.

    decide    `decide`: maps a snapshot to the node, or to a refusal; pure
    claim     `claim_store`: gives the name of a create to the node, unless another node holds it; then decide again
    carry     `carry`: sends the call, watches its end, and tells the claim store

A list or a capacity of several nodes takes another way: the hub asks nodes, and answers itself (`fan_out`).

Rules:

* Ids are the vendor's, and the hub never changes them.
* A call that needs no claim is decided and sent without a wait.
* A name goes to one node until that node has answered finally (docs/csi-contract.md#a-name-stays-with-its-node), in
  every mode. The exemption for pinned creates stands in `pending`.
* The hub also records what an operator makes or deletes by hand, so that later calls find it.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from cloud.edge_nodes import Nodes
from cloud.election import ElectionRules
from cloud.node_call import Call, Caller, Reply
from cloud.placement.attempts import Attempt
from cloud.placement.capabilities import with_topology
from cloud.placement.capacity import largest
from cloud.placement.carry import PlacedCall, carry
from cloud.placement.claim_store import NOTHING, ClaimStore, HeldBy, IdEntry, Place, Standing
from cloud.placement.decide import ask_for, decide, is_local, only_node
from cloud.placement.decisions import (
    Ask,
    AskAll,
    AskForLists,
    Keeping,
    Mode,
    Refuse,
    Send,
    Snapshot,
    Volumes,
)
from cloud.placement.elections import Elections
from cloud.placement.fan_out import FanOut
from cloud.placement.find import elsewhere
from cloud.placement.fleet import Fleet, Fleets
from cloud.placement.foreign_ids import ForeignIds
from cloud.placement.inventory import Inventories
from cloud.placement.offers import Offers
from cloud.placement.pages import Pages
from cloud.placement.pending import Books, Pending
from cloud.placement.requests import LISTINGS, Thing
from common.errors import NameElsewhere, PlacementNotKept
from common.metrics import Metrics
from common.reports import DriverReport

log = logging.getLogger("csi_bridge.hub.placement")

_TRIES: Final = 5
"""How often the hub decides again, after another create has taken the name. From then on the name has a node."""


class Placement:
    """Routes the calls of every driver to the nodes that have its volumes.

    Attributes:
        claims: names and ids.
        affinity: the PersistentVolumes; None: this hub follows none.
        inventories: asks nodes for all that they have.
        elections: elect the nodes that serve drivers whose storage every node reaches.
    """

    def __init__(
        self,
        nodes: Nodes,
        claims: ClaimStore,
        *,
        offers: Offers,
        metrics: Metrics,
        losses: Callable[[], tuple[str, ...]],
        owners: Callable[[Mapping[str, str]], set[str]],
        affinity: Volumes | None,
        most_open: int,
        rules: Callable[[str], ElectionRules],
        labels: Callable[[str], Mapping[str, str] | None],
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`most_open` limits the names that a driver's nodes hold for creates that run or are in doubt.

        `affinity` is None if this hub follows no PersistentVolumes.
        `labels` returns None until the hub has read the Nodes.
        """
        self.claims, self.affinity = claims, affinity
        self.inventories = Inventories(nodes.call, claims, now=now, monotonic=monotonic)
        self._pages = Pages(nodes.call, look=self._records, elsewhere=self._elsewhere, now=now)
        self._nodes, self._losses, self._owners = nodes, losses, owners
        self._connected = _Connected(nodes)
        self._fleets = Fleets(nodes, offers)
        self._foreign = ForeignIds(metrics, self._elsewhere, self._others)
        self._pending = Pending(claims, now=now)
        self._most_open = most_open
        self.elections = Elections(
            nodes, claims, metrics, fleet=self._fleets.of, rules=rules, labels=labels, now=now, monotonic=monotonic
        )

    # ---- questions ---------------------------------------------------------------------------------------------------

    def changed(self, driver: str) -> None:
        """A node's report of the driver has changed."""
        self._fleets.changed(driver)
        self.elections.wake()

    def report(self, driver: str, wanted: str, mode: str) -> DriverReport | None:
        """The report of a driver that its proxy driver gets; None if nothing is known.

        Raises:
            NoRoute, KnowledgeLost: one node decides it, and the hub cannot tell which.
        """
        fleet = self._fleets.of(driver)
        if mode == Mode.SHARED:
            self.elections.want(driver)
            election = self.elections.of(driver)
            wanted = election.elected.node if election is not None and election.elected is not None else ""
            if not wanted:
                return None
        if not is_local(fleet, wanted, mode):
            member = fleet.members.get(only_node(driver, wanted, self._snapshot(fleet, NOTHING)))
            return member.report if member is not None and not member.refused else None
        return with_topology(fleet.offer.report) if fleet.offer is not None else None

    def lacking(self, node: str, drivers: Iterable[str]) -> dict[str, list[str]]:
        """By driver: the capabilities that sidecars are offered and that a node lacks."""
        found = {driver: sorted(self._fleets.of(driver).lacking(node)) for driver in drivers}
        return {driver: missing for driver, missing in found.items() if missing}

    def conflicts(self, node: str) -> list[str]:
        """The node's answers that were not passed on, or that are missing in a list, a sentence each."""
        return [*self._foreign.told_by(node), *self._pages.problems(node)]

    async def existing(self) -> list[Place]:
        """Every thing that exists, and its nodes."""
        return list(dict.fromkeys([*await self.claims.existing(), *self._pending.existing()]))

    def fleet(self, driver: str) -> Fleet:
        """The nodes that run a driver."""
        return self._fleets.of(driver)

    async def books(self) -> Books:
        """All names and ids at one moment. Raises PlacementNotKept if the claim store cannot be reached."""
        return await self._pending.books()

    async def knows(self, node: str, driver: str = "") -> bool:
        """Whether the hub keeps anything of a node, or of one driver there."""
        return self._pending.knows(node, driver) or await self.claims.knows(node, driver)

    # ---- calls -------------------------------------------------------------------------------------------------------

    def call_now(
        self, call: Call, caller: Caller, *, wanted: str, mode: str, goes_to: Callable[[str], None]
    ) -> Reply | None:
        """Send a call to its node without a wait. Returns None if the claim store has to wait, or to write first.

        Then the call is not sent, and `call` sends it. The arguments and the errors are those of `call`.
        """
        ask = self._ask(call, wanted, mode)
        standing = self._pending.glance(ask.driver, ask.name, ask.things) if ask.needs_claims else NOTHING
        if standing is None:
            return None
        send = self._decide(ask, standing, goes_to)
        if isinstance(send, AskAll):
            return self._ask_all(call, caller, ask, send)
        if not ask.name:
            return self._send(call, caller, ask, send)
        attempt = self._begin(ask, send, standing) if send.keeping is Keeping.LATE else None
        return self._send(call, caller, ask, send, attempt) if attempt is not None else None

    async def call(
        self, call: Call, caller: Caller, *, wanted: str, mode: str, goes_to: Callable[[str], None]
    ) -> Reply:
        """Send a call to its node, once the claim store has answered and has written what it must.

        Args:
            call: the call.
            caller: gets the answer.
            wanted: the node that the caller names, or empty.
            mode: a `Mode` of the proxy driver's; empty: an operator asks by hand, and it is auto.
            goes_to: called with the node, before the hub knows whether it can reach it.

        Raises:
            CallError: it was not sent.
        """
        ask = self._ask(call, wanted, mode)
        for _ in range(_TRIES):
            standing = await self._pending.look(ask.driver, ask.name, ask.things) if ask.needs_claims else NOTHING
            send = self._decide(ask, standing, goes_to)
            if isinstance(send, AskAll):
                return self._ask_all(call, caller, ask, send)
            if not ask.name:
                return self._send(call, caller, ask, send)
            attempt, node = await self._claim(ask, send, standing), send.node
            if attempt is not None:
                return self._send(call, caller, ask, send, attempt)
        holders = self._pending.over(standing, ask.driver, ask.name).name.nodes or [node]
        raise NameElsewhere(ask.driver, ask.name, holders[0], node)

    async def forget(self, node: str, driver: str = "", *, is_given_up: bool = False) -> None:
        """Remove everything of a node that is gone for good, or of a driver that it no longer runs.

        What the node makes meanwhile stays: it may come back while the store writes.

        Args:
            node: the node.
            driver: the driver; empty: all of them.
            is_given_up: whether nobody wants its things any more (`ClaimStore.forget`).

        Raises:
            PlacementNotKept: the store cannot be written, and nothing is removed.
        """
        self.inventories.forget(node, driver)
        self._foreign.forget(node, driver)
        self._pages.forget(node, driver)
        known = self._pending.of(node, driver)
        await self.claims.forget(node, driver, is_given_up=is_given_up)
        self._pending.forget(known)

    async def close(self) -> None:
        """Ask no more nodes, and close the claim store."""
        await self.inventories.close()
        await self._pages.close()
        await self.claims.close()

    def _snapshot(self, fleet: Fleet, claims: Standing) -> Snapshot:
        lost_reports, lost_claims = self._losses(), self.claims.lost()
        return Snapshot(fleet, self._connected, claims, self.affinity, lost_reports, lost_claims, self._most_open)

    def _elsewhere(self, driver: str, thing: Thing, node: str) -> str:
        return elsewhere(driver, thing, node, self._snapshot(self._fleets.of(driver), NOTHING))

    async def _records(self, driver: str, things: Iterable[Thing]) -> Mapping[Thing, IdEntry]:
        return self._pending.over(await self._pending.look(driver, "", things), driver, "").ids

    def _others(self, node: str, terms: Iterable[Mapping[str, str]]) -> str:
        """Another node that has unique segments of a topology, if no term of it is without such; else empty."""
        owners = [next(iter(self._owners(term) - {node}), "") for term in terms]
        return owners[0] if owners and all(owners) else ""

    def _ask(self, call: Call, wanted: str, mode: str) -> Ask:
        fleet = self._fleets.of(call.driver)
        if mode == Mode.SHARED or self._is_elected(call.driver, mode):
            self.elections.want(call.driver)
            mode = Mode.SHARED
        return ask_for(call.driver, call.method, call.request, wanted=wanted, mode=mode, fleet=fleet)

    def _is_elected(self, driver: str, mode: str) -> bool:
        """Whether a call of another placement, or of an operator, must not run beside calls of an elected node."""
        if not mode:
            return self.elections.had(driver)
        return mode != Mode.LOCAL and self.elections.of(driver) is not None

    def _decide(self, ask: Ask, standing: Standing, goes_to: Callable[[str], None]) -> Send | AskAll:
        claims = self._pending.over(standing, ask.driver, ask.name)
        snapshot = self._snapshot(self._fleets.of(ask.driver), claims)
        if ask.is_shared:
            snapshot = snapshot._replace(election=self.elections.of(ask.driver))
        elif ask.asked.ends:
            snapshot = snapshot._replace(listed=self.inventories.listed(ask.driver, ask.asked.ends[0]))
        match decide(ask, snapshot):
            case Send() as send:
                goes_to(send.node)
                self.inventories.sent(ask.driver, ask.asked.ends)
                if send.is_placed and ask.asked.ends and not send.ends:
                    what = ", ".join(map(str, ask.asked.ends))
                    log.warning(
                        "no edge node of driver %s has %s: node %s answers its deletion", ask.driver, what, send.node
                    )
                return send
            case AskAll() as ask_all:
                if len(ask_all.sends) == 1:
                    goes_to(ask_all.sends[0].node)
                return ask_all
            case AskForLists(kind, nodes, error):
                self.inventories.ask(ask.driver, kind, nodes, ends=ask.asked.ends)
                raise error
            case Refuse(error, node):
                if node:
                    goes_to(node)
                raise error

    def _send(self, call: Call, caller: Caller, ask: Ask, send: Send, attempt: Attempt | None = None) -> Reply:
        if send.passes:
            return self._nodes.call(send.node, call._replace(epoch=send.epoch) if send.epoch else call, caller)
        return carry(call, PlacedCall(ask, send, self._pending, self._foreign, attempt), self._nodes.call, caller)

    def _ask_all(self, call: Call, caller: Caller, ask: Ask, ask_all: AskAll) -> Reply:
        if call.method not in LISTINGS:
            work = largest(self._nodes.call, call, ask_all.sends)
        elif ask.is_shared:
            work = self._pages.of_elected(call, ask_all.sends[0])
        else:
            work = self._pages.page(call, ask_all.sends)
        return FanOut(work, caller, name=f"call {call.call_id}")

    def _begin(self, ask: Ask, send: Send, standing: Standing) -> Attempt | None:
        """An attempt at the name of a create; None if this hub has a create of that name at another node."""
        self._nodes.check(send.node, ask.driver)
        return self._pending.begin(ask.driver, ask.name, send.node, standing.name, send.terms.over)

    async def _claim(self, ask: Ask, send: Send, standing: Standing) -> Attempt | None:
        """An attempt at the name of a create, which the node holds now; None: another node got the name meanwhile."""
        attempt = self._begin(ask, send, standing)
        if attempt is None or send.keeping is Keeping.LATE or attempt.name.is_confirmed:
            return attempt
        attempt.name.claims += 1
        try:
            result = await self.claims.claim(ask.driver, ask.name, send.node, standing.name, send.terms)
        except BaseException as error:
            attempt.name.claims -= isinstance(error, PlacementNotKept)  # which says that the store has nothing of it
            self._pending.end(attempt, in_doubt=None)
            raise
        if isinstance(result, HeldBy):
            attempt.name.claims -= 1
            self._pending.hold(attempt.name, is_held=self.claims.owner in result.entry.holds)
            self._pending.end(attempt, in_doubt=None)
            return None
        self._pending.hold(attempt.name, is_held=True)
        attempt.name.is_confirmed = True
        return attempt


class _Connected:
    """The connected nodes, for `in`."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    def __contains__(self, node: object) -> bool:
        return self._nodes.is_connected(str(node))
