"""The succession: an operator's order that a new node, with the disk of an old one, serves the old one's volumes.

Rules:

* The old node must be denied and away, and the new one must be known and not denied. Nothing that a node says makes it
  a successor.
* The new node gets the old one's segment in place of its own one, because a Node's label has one value. So it must not
  have volumes of its own yet: theirs would be of no node. Those in the old one's segment are not its own: a hub that
  has lost its records gets the same order again.
* A kubelet labels its Node by itself (`edge.kubelet_relay`). So a node whose kubelet does is no successor.
* The same order goes on after a crash, and until then the old node gets no other successor. First the segments are
  written to the disk, then names and ids, and last the hub forgets the old node. Between the steps the volumes have no
  node that is connected.
"""

import logging

from cloud.abandon.node_ends import NodeEnds
from cloud.abandon.own_storage import handle_of, own_volumes
from cloud.kinds.fields import Body
from cloud.references import PERSISTENT_VOLUME
from cloud.sync_part import SyncPart
from cloud.trust import audit
from cloud.trust.audit import Event
from common.database_writer import WriteFailed
from common.errors import OperatorRefused
from common.objects import Ref
from common.operator_orders import Done, Replace
from common.topology import NODE_SEGMENT

log = logging.getLogger("csi_bridge.hub")


class Succession:
    """Carries out the order."""

    def __init__(self, ends: NodeEnds, part: SyncPart) -> None:
        """For one hub, with its parts, and its objects and facts."""
        self._ends, self._part = ends, part

    async def order(self, order: Replace, by: str) -> Done:
        """Make a node the successor of another one.

        Raises:
            OperatorRefused: the old one may come back, the new one cannot be its successor, or the disk is full.
            PlacementNotKept: names and ids cannot be moved now; the same order goes on.
        """
        ends, segments, old, new = self._ends, self._ends.segments, order.node, order.successor
        what = f"edge node {new} does not replace {old}"
        if old == new:
            raise OperatorRefused(what, "they are one node; to give its name to a new machine, see docs/trust.md")
        ends.check(old, what)
        begun = segments.successor_of(old)
        if begun not in ("", new):
            why = f"an order to replace it by {begun} was cut off; first run csi-bridge replace {old} {begun} again"
            raise OperatorRefused(what, why)
        if not begun and segments.value_of(new) != segments.value_of(old):  # else an older hub was cut off
            await self._check_new(old, new, what)
        ends.placement.check_settled(old)  # before the first write: nothing has changed then
        audit.add(Event.ORDER, who="operator", address=by, order="replace", node=old, successor=new)
        try:
            if not begun:
                await segments.replace(old, new)
        except WriteFailed as error:
            raise OperatorRefused(what, f"that cannot be written to the disk: {error}") from error
        await ends.placement.move(old, new)
        await ends.forget(old)
        segments.end_replacement(old)
        ends.nodes.judge_again()
        for driver in ends.nodes.drivers_of(new):
            ends.placement.changed(driver)
        self._part.write_again(new)
        log.warning("an operator made edge node %s the successor of %s, with its volumes", new, old)
        value = segments.value_of(new)
        return Done(
            said=[
                f"edge node {new} has the volumes of {old}, and its segment {NODE_SEGMENT}={value}",
                f"{old} is forgotten, and stays denied",
            ]
        )

    async def _check_new(self, old: str, new: str, what: str) -> None:
        if not self._ends.nodes.knows(new):
            raise OperatorRefused(what, f"the hub knows no edge node {new}; let it join first")
        if self._ends.denials.denies(new):
            raise OperatorRefused(what, f"{new} is denied")
        if self._ends.segments.value_of(new) != new:
            raise OperatorRefused(what, f"{new} is the successor of {self._ends.segments.value_of(new)} already")
        if self._has_label(new):
            why = f"its kubelet labels its Node {NODE_SEGMENT}={new}; give the machine the name {old} instead"
            raise OperatorRefused(what, why)
        volumes = self._volumes(what)
        left = own_volumes(volumes, old, self._owner)
        if not (left or self._ends.nodes.knows(old) or await self._ends.placement.knows(old)):
            raise OperatorRefused(what, f"the hub knows no edge node {old}, and nothing of its volumes")
        if own := own_volumes(volumes, new, self._owner):
            name = own[0]["metadata"]["name"]
            raise OperatorRefused(what, f"{new} has volumes of its own, such as PersistentVolume {name}")
        ledger, inherited = (await self._ends.placement.books()).ledger, {handle_of(it) for it in left}
        is_shared = self._ends.placement.elections.had  # such storage is no node's own
        made = [place for place, holding in ledger.holdings if place[2] == new and holding.is_made]
        strange = [
            str(thing) for driver, thing, _ in made if (driver, thing.id) not in inherited and not is_shared(driver)
        ]
        strange += [name for driver, name, hold in ledger.holds if hold.node == new and not is_shared(driver)]
        if strange:
            raise OperatorRefused(what, f"{new} has volumes of its own, such as {strange[0]}")

    def _has_label(self, node: str) -> bool:
        """Whether a kubelet has given its Node the node's own segment as a label."""
        body = self._part.source.body(Ref("Node", "", node)) if self._part.source is not None else None
        if body is None or self._part.mounts.kubelet_state(node) is None:
            return False
        return NODE_SEGMENT in (body["metadata"].get("labels") or {})

    def _volumes(self, what: str) -> list[Body]:
        """All PersistentVolumes; none if the hub follows none."""
        source = self._part.source
        if source is None:
            return []
        if not source.is_ready:
            raise OperatorRefused(what, "the hub has not read all PersistentVolumes yet")
        return [body for ref in source.refs(PERSISTENT_VOLUME) if (body := source.body(ref)) is not None]

    def _owner(self, driver: str, key: str, value: str) -> str:
        return self._ends.segments.owner(key, value, (), driver)
