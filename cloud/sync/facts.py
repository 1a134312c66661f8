"""The fact sink: takes the facts that nodes send, and checks that each node tells only of itself.

Rules:

* A node may send facts about its CSINode, its Node, its pods and the claims that these use, and Events about all these.
  Any other fact is an error of the node (ValueError).
* Facts count only for objects that are, or were, in the node's closure. Until the closure is known, all facts count.
* An object may leave the closure while its fact is under way, or while the hub is down. The sink keeps a fact about
  such a claim until the node takes it back: the node would not send it again when the pod returns. It is written only
  while a pod of the node uses the claim, which the user of the fact checks (`cloud.sources.manifests.binding`).
  In the same way a fact about a pod counts only while the pod is on the node.
* After a restart the sink cannot tell such an object from one that the node never had. It keeps the fact as a *stray*
  one, in a small part of the node's quota (`cloud.sync.fact_quota`).
* A node sends an Event once and never takes it back. Events have no stamps. One that does not count is dropped.
"""

from collections.abc import Awaitable, Callable, Mapping

from cloud.sync.closures import Closures
from cloud.sync.fact_kinds import Fact, check_ref, read_fact
from cloud.sync.fact_table import FactTable
from common.objects import sole_use
from common.objects.objects import Object, Ref, Stamp


class FactSink:
    """Takes the facts of all nodes."""

    def __init__(
        self, closures: Closures, table: FactTable, claim: Callable[[str, Ref, Fact], Awaitable[None]]
    ) -> None:
        """`claim` stores a node's claim to a volume. It raises ValueError and OSError as `store` does."""
        self.table = table
        self._closures = closures
        self._claim = claim

    def stamps(self, node: str) -> Mapping[Ref, Stamp]:
        return self.table.stamps(node)

    def up(self, node: str) -> None:
        """Note one more stream on which the node sends facts. This sink does nothing then."""

    def down(self, node: str) -> None:
        """Note that one of these streams has ended. This sink does nothing then."""

    def observed(self, node: str) -> None:
        """Note that a kubelet serves the node from now on. This sink does nothing then."""

    async def store(self, node: str, obj: Object) -> bool:
        """Keep a fact. Returns True once it is stored; False: it does not count, and is kept if it has room.

        Raises ValueError if the fact is not this node's to tell, makes no sense, or has no room in the node's quota;
        OSError if the disk is full or broken: the caller tries again.
        """
        check_ref(node, obj.ref)
        fact = Fact(obj.stamp, read_fact(obj))
        if obj.ref.kind == "Event":
            involved = fact.body["involvedObject"]
            about = Ref(involved["kind"], involved.get("namespace", ""), involved["name"])
            if counts := self._may_concern(node, about):
                self.table.put_event(node, obj.ref, fact)
            return counts
        if obj.ref.kind == sole_use.KIND:
            await self._claim(node, obj.ref, fact)
            return True
        stray = not self.table.has_accepted(node, obj.ref) and not self._may_concern(node, obj.ref)
        await self.table.put(node, obj.ref, fact, stray=stray)
        return not stray

    async def forget(self, node: str) -> None:
        await self.table.forget(node)
        self._closures.forget(node)

    async def drop(self, node: str, ref: Ref, uid: str) -> None:
        check_ref(node, ref)
        held = self.table.of(node).get(ref)
        if held is not None and uid in ("", held.stamp.uid):
            await self.table.remove(node, ref)

    def _may_concern(self, node: str, about: Ref) -> bool:
        return about in (Ref("Node", "", node), Ref("CSINode", "", node)) or self._closures.may_concern(node, about)
