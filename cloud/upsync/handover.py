"""A hand-over: what the hub does with its objects of a node that a kubelet serves now, or that is gone for good.

Rules for a node with a kubelet, which gets the Node, CSINode and Lease without the hub's marks:

* The marks say that the hub stands in for that Node's kubelet, and which entries the hub may remove. Without them the
  hub treats the Node like any other.
* From a Node that the hub made it also removes the label and the taints `csi-bridge.io/edge=agent`, which say that no
  kubelet is there. With another value they are an operator's, and stay.
* A node that the hub made is handed over once a kubelet has set an address of it, which no agent can. Else a hostile
  node could draw pods that do not tolerate its taint, with their volumes and Secrets.
* All else stays for the kubelet. The hub does not delete the Node: a kubelet makes a new one only when it starts.

Rules for a node whose kubelet cannot write CSINodes: KubeEdge's EdgeCore keeps its CSINode and all CSIDrivers in its
own memory (edge/pkg/edged/kubeclientbridge in its sources).

* An administrator says so by the label `csi-bridge.io/edge=kubeedge` of the Node, and the operator by
  `--edgecore-nodes`. The hub never guesses it: it would fight a kubelet.
* The CSINode gets the drivers that the node's agent reports, as far as the reports count. Without it no volume is
  attached, and csi-provisioner knows no topology.
* The Node gets the topology labels that it lacks. All else of it is EdgeCore's, which also writes the node ids.
* If another writer has written in the CSINode, the hub writes nothing there, and says so.

Rules for a node that is gone for good, as an operator has said:

* If the hub made the Node, it is deleted, and its CSINode and its Lease go with it. From any other Node the hub only
  removes its own entries, as if the node reported no driver any more, and its condition.
* Each try deletes the found Node by its UID, so a Node that is made meanwhile stays. `written_facts` ends the tries
  when the node is back.
"""

from typing import Final

from cloud.kinds.nodes import PROBLEM
from cloud.kube.client import RESOURCES, Body, Kube, KubeError, delete_found, find, patch_found
from cloud.kube.node_marks import AGENT, EDGE, EDGECORE
from cloud.nodes.edge_nodes import Nodes
from cloud.nodes.report_judge import csi_node_entry, told_topology
from cloud.upsync.csinode_writer import CSINodeWriter, drivers_in
from cloud.upsync.node_writer import NodeChange
from cloud.upsync.ownership import HUB, LEASES, MADE_BY, annotation, has_edgecore, is_made, unmarked, written_drivers
from cloud.upsync.writer import FactWriter
from common.objects.objects import Ref

# Kinds in `written_facts`. There are no such objects: they stand for the node.
KUBELET: Final = "Kubelet"
GONE: Final = "Gone"

# A kubelet that starts adds this annotation to a CSINode that it finds.
_KUBELETS: Final = "storage.alpha.kubernetes.io/migrated-plugins"

_LOOK_S: Final = 60.0  # the time between two looks at a Node and its CSINode: somebody may have deleted the CSINode


class HandOver(FactWriter):
    """Hands nodes over to their kubelets."""

    async def write(self, node: str, _ref: Ref, _fact: Body | None) -> float | None:
        for kind, namespace in (("Node", ""), ("CSINode", ""), ("Lease", LEASES)):
            await self._hand_over(node, kind, namespace)
        return None

    async def _hand_over(self, node: str, kind: str, namespace: str) -> None:
        found = await find(self._api, RESOURCES[kind], node, namespace)
        if found is not None and (marks := unmarked(found)):
            change: Body = {"metadata": {"annotations": marks}}
            if kind == "Node" and is_made(found):
                _check_kubelet(node, found)
                _let_pods_in(found, change)
            await patch_found(self._api, RESOURCES[kind], found, change)


class EdgeCores(HandOver):
    """Hands nodes over to their kubelets, and writes the CSINodes of nodes with EdgeCore."""

    def __init__(self, api: Kube, nodes: Nodes, csi_nodes: CSINodeWriter) -> None:
        super().__init__(api)
        self._nodes = nodes
        self._csi_nodes = csi_nodes

    async def write(self, node: str, ref: Ref, fact: Body | None) -> float | None:
        self._problems.pop((node, ref), None)
        found = await find(self._api, RESOURCES["Node"], node)
        if found is None or not has_edgecore(found):
            self._csi_nodes.forget(node, ref)
            return await super().write(node, ref, fact)
        if is_made(found):
            # no CSINode: it stays the hub's, with the entries from the time without a kubelet
            _check_kubelet(node, found)
            await self._hand_over(node, "Lease", LEASES)
            await self._hand_over(node, "Node", "")
            return 0.0
        # first: a Node that has the label by mistake gets nothing
        csi_node = await find(self._api, RESOURCES["CSINode"], node)
        _check_sole_writer(node, csi_node)
        reports = self._nodes.of(node).present()
        labels = {key: value for report in reports for key, value in told_topology(report).items()}
        change = NodeChange(node, found, {"metadata": {"labels": labels}})
        if added := change.labels():
            await patch_found(self._api, RESOURCES["Node"], found, {"metadata": {"labels": added}})
        if change.problems:
            self._problems[node, ref] = change.problems
        drivers = filter(None, map(csi_node_entry, reports))
        # the CSINode that was checked: a kubelet may have written it since
        again_s = await self._csi_nodes.write_found(node, csi_node, found, drivers)
        return min(again_s or _LOOK_S, _LOOK_S)


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


def _check_sole_writer(node: str, csi_node: Body | None) -> None:
    if csi_node is None:
        return
    others = {it["name"] for it in drivers_in(csi_node)} - written_drivers(csi_node)
    if others or annotation(csi_node, MADE_BY) != HUB or annotation(csi_node, _KUBELETS):
        why = (
            f"its Node has the label {EDGE}={EDGECORE}, but another writer, perhaps a kubelet, has written its "
            f"CSINode; remove the label if a kubelet runs there, or else delete the CSINode"
        )
        raise KubeError(f"write the CSINode of node {node}", 0, "AnotherWriter", why)


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
