"""The facts: what the nodes tell of themselves, and who may tell what.

Rules:

* A node tells of itself alone: its CSINode, its Node, its pods, the claims that these use, events of all those.
  Anything else is a node that lies (ValueError).
* What has just left a node's closure is no lie: the news crossed the deletion. An event of it is dropped, as Kubernetes
  would answer "not found", and the node hears nothing of it.
* A claim's fact is kept also then, until the node takes it back: it has told it, and would not tell the same again when
  the pod returns. It counts only while a pod of the node uses the claim, and who uses the fact looks (binding). So it
  is with a pod's: it counts only while the pod is the node's.
* Events are told once: they have no stamps, and are never taken back.
"""

import logging
from collections.abc import Mapping
from typing import Protocol

from cloud.sync.fact_kinds import Fact, check_ref, read_fact
from cloud.sync.fact_table import FactTable
from common.objects import Object, Ref, Stamp

log = logging.getLogger("csi_bridge.hub.facts")


class NodeClosures(Protocol):
    """What is asked of `closures.Closures`."""

    @property
    def is_ready(self) -> bool:
        """Whether what is missing in a closure is known to be gone."""

    def holds(self, node: str, ref: Ref) -> bool:
        """Whether the object is in the node's closure."""


class FactSink:
    """Takes what the nodes tell, if it is theirs to tell."""

    def __init__(self, closures: NodeClosures, table: FactTable) -> None:
        self._closures, self._table = closures, table

    def stamps(self, node: str) -> Mapping[Ref, Stamp]:
        """What is held of a node, without its events."""
        return {ref: fact.stamp for ref, fact in self._table.of(node).items()}

    def up(self, node: str) -> None:
        """The node tells its facts from now on. Nobody needs to know."""

    def down(self, node: str) -> None:
        """It tells them no more."""

    def observed(self, node: str) -> None:
        """A kubelet serves the node. Nobody needs to know."""

    async def store(self, node: str, obj: Object) -> bool:
        """Keep a fact, if it is of use to anybody. Whether it is; it is on the disk then.

        Raises:
            ValueError: it is not this node's to tell, or makes no sense.
            OSError: the disk is full or broken; the fact is to be told again.
        """
        check_ref(node, obj.ref)
        fact = Fact(obj.stamp, read_fact(obj))
        if obj.ref.kind == "Event":
            return await self._put_event(node, obj.ref, fact)
        await self._table.put(node, obj.ref, fact)
        return True

    async def void(self, node: str) -> None:
        """All that the node told is void.

        Raises:
            OSError: the disk is broken.
        """
        await self._table.forget(node)

    async def forget(self, node: str) -> None:
        """The node is gone for good, and all that it told. Errors as in `void`."""
        await self.void(node)

    async def drop(self, node: str, ref: Ref, uid: str) -> None:
        """The node tells this no more. An event stays: it has happened.

        Raises:
            ValueError: it is not this node's to tell.
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
        """Whether an object is the node itself or in its closure, or may be as far as is known."""
        return about == Ref("Node", "", node) or not self._closures.is_ready or self._closures.holds(node, about)
