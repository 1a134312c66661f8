"""The sole uses: one node at a time has a volume with a single writer that Kubernetes attaches to no node.

An agent claims such a volume before it stages it for the first time (`common.objects.sole_use`). The hub acknowledges a
claim when it is recorded (`FactTable`). Until then the agent stages nothing; a refusal names the node that has the
volume, and the agent asks again.

Rules, in this order:

* A claim counts if a pod of its node wants the volume.
* It is refused while a claim of another node is stored. A stored claim counts while its node is away, and after a
  restart of the hub, until the node withdraws it, or until an operator's fence, the taint out-of-service or `forget`.
* A claim of a machine counts also when another machine has taken its name (`FactTable.earlier_use`), for all other
  nodes, until an operator says that the earlier machine is off.
* Kubelets claim nothing. While a pod of a node with a kubelet wants the volume, a claim is refused.
* A refusal removes an earlier claim of this node: it has not staged the volume, because then it would not ask again. So
  no two nodes wait for each other.
"""

import asyncio
from collections.abc import Callable

from cloud.detach.mounts import Mounts
from cloud.sync.fact_kinds import Fact
from cloud.sync.fact_table import FactTable
from common.objects.objects import Ref
from common.objects.sole_use import sole_use


class SoleUse:
    """The sole uses of all volumes. `begin` completes it."""

    def __init__(self, table: FactTable, mounts: Mounts) -> None:
        self._table = table
        self._mounts = mounts
        self._turn = asyncio.Lock()
        self._absence: Callable[[str], str]
        self._is_given_up: Callable[[str], bool]

    def begin(self, absence: Callable[[str], str], is_given_up: Callable[[str], bool]) -> None:
        """Take the functions that tell how a node is away, and whether its mounts count no more."""
        self._absence = absence
        self._is_given_up = is_given_up

    async def claim(self, node: str, ref: Ref, fact: Fact) -> None:
        """Store a node's claim to a volume. Raises OSError, or ValueError with the node that has it and the way out."""
        async with self._turn:  # no other claim is stored between the check and the write
            if why := self._why_not(node, ref, fact):
                if ref in self._table.of(node):
                    await self._table.remove(node, ref)
                raise ValueError(why)
            await self._table.settle_failed(ref)  # else the next hub could take another node's claim for granted
            await self._table.put(node, ref, fact, stray=True)

    def _why_not(self, node: str, ref: Ref, fact: Fact) -> str:
        driver = fact.body["spec"]["driver"]
        handle = fact.body["spec"]["volumeHandle"]
        if ref != sole_use(driver, handle):
            return f"{ref} is not the name of this volume's claim"
        wanting = self._mounts.nodes_wanting(driver, handle)
        if node not in wanting:
            return f"no pod of node {node} wants volume {handle} of driver {driver}"
        for other in sorted(self._table.nodes()):
            if other != node and ref in self._table.of(other) and not self._is_given_up(other):
                return self._has(other, "has the volume")
        for other, used in sorted(self._table.earlier_use.items()):
            if other != node and ref.name in used and not self._is_given_up(other):
                return (
                    f"an earlier machine of node {other} had the volume; if it is off for certain: csi-bridge fence "
                    f"{other}, or the taint node.kubernetes.io/out-of-service"
                )
        for other in sorted(wanting - {node}):
            has_kubelet = self._mounts.has_node(other) and self._mounts.kubelet_state(other) is not None
            if has_kubelet and not self._is_given_up(other):
                return self._has(other, "has a kubelet, and a pod that may use the volume")
        return ""

    def _has(self, node: str, what: str) -> str:
        if absence := self._absence(node):
            return (
                f"node {node} {what}, and {absence}: bring it back, or if it is dead: csi-bridge fence {node}, or the "
                f"taint node.kubernetes.io/out-of-service"
            )
        return (
            f"node {node} {what}; one node at a time may have it (attachRequired: false): delete its pods that use it"
        )
