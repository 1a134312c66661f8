"""Placement: finds the edge node of each CSI call. `route` decides, `claims` records, and `cloud.calls.call` sends.

If a list or a capacity concerns several nodes, the hub asks them and answers itself (`answer`).

Rules:

* The hub never changes the vendor's ids.
* In every mode, all creates of a name go to one node until that node gives a final answer
  (docs/csi-contract.md#a-name-stays-with-its-node). `claims` has the exception for pinned creates.
* The hub decides a call and takes its name without an await. It may wait for the records only after that.
* The hub also records things that an operator makes or deletes by hand, so later calls find them.
"""

import logging
from collections.abc import Callable, Iterable

from cloud.claims.claims import Claims
from cloud.claims.rules import CHANGES, DELETIONS, LISTINGS, Thing
from cloud.hub_settings import HubSettings
from cloud.nodes.capabilities import with_topology
from cloud.nodes.elections import Elections
from cloud.nodes.fleet import Fleets
from cloud.nodes.question import Answer, Question
from cloud.placement.affinity import Affinity, Fit
from cloud.placement.capacity import largest
from cloud.placement.decisions import AskAll, CallInfo, Route, View
from cloud.placement.find import ListsNeeded, can_list, elsewhere, named_or_only_node
from cloud.placement.foreign_ids import ForeignIds
from cloud.placement.inventory import Inventories
from cloud.placement.pages import ListPages
from cloud.placement.route import is_local, read_info, route
from cloud.proxy.driver_settings import PER_NODE_MODES, Mode
from cloud.sources.source import Source
from common.csi.reports import DriverReport
from common.observe.metrics import Metrics

log = logging.getLogger("csi_bridge.hub.placement")


class Placement:
    """Finds the nodes that have each driver's volumes."""

    def __init__(
        self,
        fleets: Fleets,
        claims: Claims,
        source: Source | None,
        settings: HubSettings,
        metrics: Metrics,
        *,
        loss: Callable[[], str],
    ) -> None:
        """`loss` returns the loss of records, in a sentence. Without a `source` the hub follows no objects."""
        nodes = fleets.nodes
        self.claims = claims
        self.affinity = Affinity(source) if source is not None else None
        self.inventories = Inventories(nodes, claims)
        self._pages = ListPages(nodes, claims, self._elsewhere)
        self._nodes = nodes
        self.fleets = fleets
        self._loss = loss
        self.foreign = ForeignIds(metrics, nodes.segments, self._elsewhere)
        self._most_open = settings.max_open_creates
        self.elections = Elections(fleets, claims, source, metrics, rules=settings.election_rules)

    # ---- questions ---------------------------------------------------------------------------------------------------

    def changed(self, driver: str) -> None:
        self.fleets.changed(driver)
        self.elections.wake()

    def report(self, driver: str, node: str, mode: str) -> DriverReport | None:
        """The report of a driver for its proxy driver; None if the hub knows none.

        `node` is the node that the proxy driver names, or empty. Raises CallError if the report is one node's, and the
        hub cannot tell whose.
        """
        fleet = self.fleets.of(driver)
        if mode == Mode.SHARED:
            self.elections.want(driver)
            election = self.elections.drivers.get(driver)
            node = election.elected.node if election is not None and election.elected is not None else ""
            if not node:
                return None
        if not is_local(fleet, node, mode):
            member = fleet.members.get(named_or_only_node(driver, node, fleet.members, self._view(driver)))
            return member.report if member is not None and not member.refused else None
        return with_topology(fleet.offer.report) if fleet.offer is not None else None

    def lacking(self, node: str, drivers: Iterable[str]) -> dict[str, list[str]]:
        """By driver: the capabilities that sidecars are offered and that a node lacks."""
        found = {driver: sorted(self.fleets.of(driver).lacking(node)) for driver in drivers}
        return {driver: missing for driver, missing in found.items() if missing}

    def conflicts(self, node: str) -> list[str]:
        """The node's answers that callers did not get, and the faults of its lists, a sentence each."""
        return [*self.foreign.told_by(node), *self._pages.problems(node)]

    def fit(self, driver: str, handle: str) -> Fit:
        """The nodes that the PersistentVolumes of a handle are for. A hub without objects rules none out."""
        fleet = self.fleets.of(driver)
        return self.affinity.fit(handle, driver, fleet) if self.affinity is not None else Fit([], list(fleet.members))

    # ---- calls -------------------------------------------------------------------------------------------------------

    def decide(
        self, driver: str, method: str, request: bytes, *, named_node: str, mode: str
    ) -> tuple[CallInfo, Route | AskAll]:
        """Decide where a call goes. If only the nodes' lists can tell, ask for them. Raises CallError: the hub refuses.

        `named_node` is the node that the caller names, or empty. `mode` is the proxy driver's `Mode`, or empty for an
        operator's call, which counts as auto.
        """
        elections = self.elections
        fleet = self.fleets.of(driver)
        # Calls of a pinned or auto proxy driver, and of operators, must not run beside open calls of an elected node.
        is_elected = mode not in PER_NODE_MODES and (
            driver in elections.drivers or (not mode and elections.had(driver))
        )
        if mode == Mode.SHARED or is_elected:
            elections.want(driver)
            mode = Mode.SHARED
        view = self._view(driver)
        book = view.book
        if mode and mode != Mode.SHARED and not is_local(fleet, named_node, mode):
            node = named_or_only_node(driver, named_node, fleet.members, view)
            if method not in CHANGES or (method in DELETIONS and node not in book.nodes):
                book.unnoted_deletions += method in DELETIONS
                return CallInfo(driver, method, named_node=named_node, mode=mode), Route(node, fleet.members.get(node))
        info = read_info(driver, method, request, named_node=named_node, mode=mode, fleet=fleet)
        deletes = info.fields.deletes
        if mode == Mode.SHARED:
            view = view._replace(election=self.elections.drivers.get(driver))
        elif deletes:
            view = view._replace(listed=self.inventories.listed(driver, deletes[0]))
        try:
            found = route(info, view)
        except ListsNeeded as needed:
            nodes = [it.node for it in view.fleet if can_list(it, needed.kind, view)]
            self.inventories.ask(driver, needed.kind, nodes, deletes=deletes)
            raise needed.error from None
        if deletes and isinstance(found, Route):
            self.inventories.deletion_sent(driver, deletes)
            book.unnoted_deletions += len(found.deletes) < len(deletes)
            if info.is_local and not found.deletes:
                what = ", ".join(map(str, deletes))
                log.warning("no edge node of driver %s has %s: node %s answers its deletion", driver, what, found.node)
        return info, found

    async def answer(self, question: Question, info: CallInfo, ask_all: AskAll) -> Answer:
        if question.method not in LISTINGS:
            return await largest(self._nodes, question, ask_all.routes)
        if info.mode == Mode.SHARED:
            return await self._pages.of_elected(question, ask_all.routes[0])
        return await self._pages.page(question, ask_all.routes)

    async def forget(self, node: str, driver: str = "", *, is_given_up: bool = False) -> None:
        """Remove all of a node that is gone for good, or of a driver that it no longer runs (`Claims.forget`)."""
        self.inventories.forget(node, driver)
        self.foreign.forget(node, driver)
        self._pages.forget(node, driver)
        await self.claims.forget(node, driver, is_given_up=is_given_up)

    async def close(self) -> None:
        await self.inventories.close()
        await self._pages.close()

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _view(self, driver: str) -> View:
        fleet = self.fleets.of(driver)
        book = self.claims.book(driver)
        return View(fleet, self._nodes.connected, book, self.affinity, self._loss(), self._most_open)

    def _elsewhere(self, driver: str, thing: Thing, node: str) -> str:
        if self.affinity is None or not self.affinity.names(driver, thing.id):
            return ""
        return elsewhere(driver, thing, node, self._view(driver))
