"""The abandonment: the hub's part in the release of a node's own storage, which the command `forget` does.

Rules:

* The node must be denied and away. The command asks before each of its passes, so that it stops if the node may come
  back.
* The hub names the node's own storage, and changes none of it.
* Until the hub forgets the node, it knows the node's segments. So the command asks it to forget the node last, and a
  later command goes on with the same objects.
"""

import logging

from cloud.claims.rules import GROUP, SNAPSHOT, VOLUME
from cloud.nodes.edge_nodes import Nodes
from cloud.operators.own_storage import Handle, own_volumes
from cloud.parts.references import PERSISTENT_VOLUME
from cloud.parts.sync_part import SyncPart
from cloud.placement.placement import Placement
from cloud.trust import audit
from cloud.trust.audit import Event
from cloud.trust.denials import Denials
from common.errors import order_refused
from common.operator_orders import Abandon, Done, MadeAlone, NodeStorage, OwnStorage

log = logging.getLogger("csi_bridge.hub")


class Abandonment:
    """Carries out the orders."""

    def __init__(self, nodes: Nodes, placement: Placement, denials: Denials, part: SyncPart) -> None:
        self._nodes = nodes
        self._placement = placement
        self._denials = denials
        self._part = part

    async def own_storage(self, order: OwnStorage, _by: str) -> NodeStorage:
        """Name the node's own storage. Raises CallError if it may come back, or the cluster is not read."""
        node = order.node
        what = self._check(order.node)
        source = self._part.source
        if source is None:
            raise order_refused(what, "the hub follows no Kubernetes cluster")
        if not source.is_ready:
            raise order_refused(what, "the hub has not read all PersistentVolumes yet; try again")
        makers = self._makers()
        # Storage of a driver with elections is reached by other nodes, whoever made the snapshot once.
        had = self._placement.elections.had
        alone = [it for it, nodes in makers.items() if nodes == {node} and not had(it[1][0])]
        elsewhere = {handle for (kind, handle), nodes in makers.items() if kind == VOLUME and nodes - {node}}
        bodies = [body for ref in source.refs(PERSISTENT_VOLUME) if (body := source.body(ref)) is not None]
        own = own_volumes(
            bodies, node, lambda driver, key, value: self._nodes.segments.owner(key, value, (node,), driver), elsewhere
        )
        return NodeStorage(
            volumes=[body["metadata"]["uid"] for body in own],
            snapshots=[MadeAlone(driver=driver, id=its) for kind, (driver, its) in alone if kind == SNAPSHOT],
            groups=[MadeAlone(driver=driver, id=its) for kind, (driver, its) in alone if kind == GROUP],
            is_known=self._nodes.knows(node) or self._placement.claims.knows(node),
        )

    async def abandon(self, order: Abandon, by: str) -> Done:
        """Forget the node's facts, and delete its Node and CSINode if the hub made them.

        If the hub has forgotten the node, its things are given up. Raises CallError.
        """
        what = self._check(order.node)
        audit.add(Event.ORDER, who="operator", address=by, order="abandon", node=order.node)
        log.warning("an operator releases the storage of edge node %s, which is gone for good", order.node)
        try:
            await self._part.sync.forget(order.node)
        except OSError as error:
            raise order_refused(what, f"its facts cannot be removed: {error}") from error
        if not (self._nodes.knows(order.node) or self._placement.claims.knows(order.node)):
            await self._placement.forget(order.node, is_given_up=True)
        return Done(said=[])

    def _makers(self) -> dict[tuple[str, Handle], set[str]]:
        found: dict[tuple[str, Handle], set[str]] = {}
        for driver, thing, node in self._placement.claims.existing():
            if node in self._placement.claims.book(driver).makers(thing):
                found.setdefault((thing.kind, (driver, thing.id)), set()).add(node)
        return found

    def _check(self, node: str) -> str:
        what = f"edge node {node} is not abandoned"
        if not self._denials.denies(node):
            raise order_refused(what, f"{node} may come back; first run csi-bridge deny {node}")
        if self._nodes.is_connected(node):
            raise order_refused(what, f"{node} is still connected; its links end at once, so try again")
        return what
