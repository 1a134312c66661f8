"""A hand-over: what the hub does with its objects of a node that a kubelet serves now, or that is gone for good.

Rules for a node with a kubelet, which gets the Node, CSINode and Lease without the hub's marks:

* The marks say that the hub stands in for that Node's kubelet, and which entries the hub may remove. Without them the
  hub treats the Node like any other.
* From a Node that the hub made it also removes the label and the taints `csi-bridge.io/edge=agent`, which say that no
  kubelet is there. With another value they are an operator's, and stay.
* A node that the hub made is handed over once a kubelet has set an address of it, which no agent can. Else a hostile
  node could draw pods that do not tolerate its taint, with their volumes and Secrets.
* All else stays for the kubelet. The hub does not delete the Node: a kubelet makes a new one only when it starts.

Rules for a node that is gone for good, as an operator has said:

* If the hub made the Node, it is deleted, and its CSINode and its Lease go with it. From any other Node the hub only
  removes its own entries, as if the node reported no driver any more, and its condition.
* Each try deletes the found Node by its UID, so a Node that is made meanwhile stays. `written_facts` ends the tries
  when the node is back.
"""

from typing import Final

from cloud.kinds.nodes import PROBLEM
from cloud.kube.client import RESOURCES, Body, KubeError, delete_found, find, patch_found
from cloud.kube.node_marks import AGENT, EDGE
from cloud.upsync.ownership import LEASES, is_made, unmarked
from cloud.upsync.writer import FactWriter
from common.objects.objects import Ref

# Kinds in `written_facts`. There are no such objects: they stand for the node.
KUBELET: Final = "Kubelet"
GONE: Final = "Gone"


class HandOver(FactWriter):
    """Hands nodes over to their kubelets."""

    async def write(self, node: str, _ref: Ref, _fact: Body | None) -> None:
        for kind, namespace in (("Node", ""), ("CSINode", ""), ("Lease", LEASES)):
            found = await find(self._api, RESOURCES[kind], node, namespace)
            if found is not None and (marks := unmarked(found)):
                change: Body = {"metadata": {"annotations": marks}}
                if kind == "Node" and is_made(found):
                    _check_kubelet(node, found)
                    _let_pods_in(found, change)
                await patch_found(self._api, RESOURCES[kind], found, change)


class Removal(FactWriter):
    """Deletes the Nodes of nodes that are gone for good."""

    async def write(self, node: str, _ref: Ref, _fact: Body | None) -> None:
        found = await find(self._api, RESOURCES["Node"], node)
        if found is not None and is_made(found):
            await delete_found(self._api, RESOURCES["Node"], found)
        elif found is not None:
            conditions = (found.get("status") or {}).get("conditions") or []
            kept = [it for it in conditions if it["type"] != PROBLEM]
            if kept != conditions:
                change = {"status": {"conditions": kept}}
                await patch_found(self._api, RESOURCES["Node"], found, change, subresource="status")


def _check_kubelet(node: str, found: Body) -> None:
    addresses = (found.get("status") or {}).get("addresses") or ()
    if all(it["type"] == "Hostname" for it in addresses):
        why = "its agent says that it has a kubelet, but no kubelet has set an address yet; its taint stays until then"
        raise KubeError(f"hand over node {node}", 0, "NoKubelet", why)


def _let_pods_in(node: Body, change: Body) -> None:
    if (node["metadata"].get("labels") or {}).get(EDGE) == AGENT:
        change["metadata"]["labels"] = {EDGE: None}
    taints = (node.get("spec") or {}).get("taints") or []
    kept = [it for it in taints if (it["key"], it.get("value")) != (EDGE, AGENT)]
    if kept != taints:
        change["spec"] = {"taints": kept or None}
