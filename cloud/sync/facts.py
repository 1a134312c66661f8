"""The fact sink: takes the facts that nodes send, and checks that each node tells only of itself.

Rules:

* A node may send facts about its CSINode, its Node, its pods and the claims that these use, and Events about all these.
  Any other fact is an error of the node (ValueError).
* An object may leave the node's closure while its fact is under way. The sink drops an Event about such an object
  without an error, as Kubernetes would answer "not found".
* The sink keeps a fact about such a claim until the node takes it back: the node would not send it again when the pod
  returns. The fact counts only while a pod of the node uses the claim, which the user of the fact checks
  (`cloud.sources.manifests.binding`). In the same way a fact about a pod counts only while the pod is on the node.
* A node sends an Event once and never takes it back. Events have no stamps.
"""

import logging
from collections.abc import Mapping
from typing import Protocol

from cloud.sync.fact_kinds import Fact, check_ref, read_fact
from cloud.sync.fact_table import FactTable
from common.objects import Object, Ref, Stamp

log = logging.getLogger("csi_bridge.hub.facts")


class NodeClosures(Protocol):
    """Tells which objects each node has (`closures.Closures`)."""

    @property
    def is_ready(self) -> bool:
        """Whether an object that no closure has is surely gone."""

    def holds(self, node: str, ref: Ref) -> bool:
        """Whether the object is in the node's closure."""


class FactSink:
    """Takes the facts of all nodes."""

    def __init__(self, closures: NodeClosures, table: FactTable) -> None:
        self._closures, self._table = closures, table

    def stamps(self, node: str) -> Mapping[Ref, Stamp]:
        """The stamps of a node's facts, without Events."""
        return {ref: fact.stamp for ref, fact in self._table.of(node).items()}

    def up(self, node: str) -> None:
        """The node sends its facts from now on. This sink does nothing then."""

    def down(self, node: str) -> None:
        """It sends them no more. This sink does nothing then."""

    def observed(self, node: str) -> None:
        """A kubelet serves the node. This sink does nothing then."""

    async def store(self, node: str, obj: Object) -> bool:
        """Keep a fact. Returns True once it is in the database; False: it is an Event about an object that left.

        Raises:
            ValueError: the fact is not this node's to tell, or makes no sense.
            OSError: the disk is full or broken. The caller tries again.
        """
        check_ref(node, obj.ref)
        fact = Fact(obj.stamp, read_fact(obj))
        if obj.ref.kind == "Event":
            return await self._put_event(node, obj.ref, fact)
        await self._table.put(node, obj.ref, fact)
        return True

    async def void(self, node: str) -> None:
        """Remove all facts of a node.

        Raises:
            OSError: the disk is broken.
        """
        await self._table.forget(node)

    async def forget(self, node: str) -> None:
        """Remove all facts of a node that is gone for good. Raises as `void` does."""
        await self.void(node)

    async def drop(self, node: str, ref: Ref, uid: str) -> None:
        """The node takes back its fact about an object. Events stay.

        Raises:
            ValueError: the fact is not this node's to tell.
            OSError: the disk is broken.
        """
        check_ref(node, ref)
        held = self._table.of(node).get(ref)
        if held is not None and uid in ("", held.stamp.uid):
            await self._table.remove(node, ref)

    async def _put_event(self, node: str, ref: Ref, fact: Fact) -> bool:
        involved = fact.body["involvedObject"]
        about = Ref(involved["kind"], involved.get("namespace", ""), involved["name"])
        if not self._may_concern(node, about):
            log.debug("node %s sent %s, which it does not need any more: dropped", node, about)
            return False
        await self._table.put_event(node, ref, fact)
        return True

    def _may_concern(self, node: str, about: Ref) -> bool:
        """Whether an object is the node itself or in its closure. True until the closures are complete."""
        return about == Ref("Node", "", node) or not self._closures.is_ready or self._closures.holds(node, about)
