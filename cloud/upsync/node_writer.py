"""A node writer: makes the missing Nodes of nodes without a kubelet, and writes the agents' facts into them.

Rules:

* `volumesInUse` is written first, and faults in the rest do not delay it: until it is written, agents stage nothing
  (docs/csi-contract.md#volumesinuse-comes-before-staging).
* Into a Node that the hub made it also writes the machine's capacity, as a kubelet does, so that the scheduler uses the
  Node. A changed `allocatable` stays while the capacity is the same.
* The labels and taints of `cloud.kube.node_marks` are only in the request that makes the Node: an operator's later
  changes stay.
* An existing label with another value stays. From a fact the hub sets no label that a kubelet may not set
  (NodeRestriction), and of the bridge's own labels only `csi-bridge.io/node`: the bridge's DaemonSets and pods select
  nodes by the others.
* The value of `csi-bridge.io/node` is the node's own name: with another one the node would get that node's pods and
  Secrets.
* The only annotation taken from a fact has the drivers' node ids. Ids of unreported drivers stay, unless the hub wrote
  them.
* If the node has no fact any more, its labels and `volumesInUse` stay: they may still be right.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from cloud.kinds.nodes import NODE_IDS, in_use, read_ids
from cloud.kinds.rules.fields import LONGEST_LABEL_CHARS, part
from cloud.kube.client import RESOURCES, Body, Kube, find, patch_found
from cloud.kube.node_marks import is_label, is_reserved
from cloud.sync.in_use import InUse
from cloud.upsync.ownership import HUB, MADE_BY, annotation, is_made, remember_drivers, written_drivers
from cloud.upsync.writer import FactWriter
from common.objects.objects import Ref
from common.objects.quantity import bytes_of
from common.objects.topology import NODE_SEGMENT

_NODES: Final = RESOURCES["Node"]

# The controller-manager attaches volumes only to nodes that have this annotation with the value "true".
_ATTACHED: Final = "volumes.kubernetes.io/controller-managed-attach-detach"

_SHOWN_CHARS: Final = 100  # a text that cannot be a label is cut here


class NodeWriter(FactWriter):
    """Writes the nodes' facts about themselves."""

    def __init__(
        self, api: Kube, in_use: InUse, *, labels: Mapping[str, str] | None = None, taints: Sequence[Body] = ()
    ) -> None:
        super().__init__(api)
        self._in_use = in_use
        self._labels = labels or {}
        self._taints = taints

    async def write(self, node: str, ref: Ref, fact: Mapping[str, Any] | None) -> None:
        self._problems.pop((node, ref), None)
        if fact is not None:
            self._in_use.begin(node, in_use(fact))
        found = await find(self._api, _NODES, ref.name)
        if found is None and fact is None:
            return
        if found is None:
            found = await self._api.create(_NODES, self._new_node(node))
        if fact is not None:
            found = await self._write_in_use(node, found, fact)
        change = NodeChange(node, found, fact)
        if metadata := change.metadata():
            found = await patch_found(self._api, _NODES, found, {"metadata": metadata})
        if fact is not None:
            if change.problems:
                self._problems[node, ref] = change.problems
            if is_made(found) and (status := _status_change(node, part(found, "status"), part(fact, "status"))):
                await self._write_status(node, found, status)

    def _new_node(self, node: str) -> Body:
        metadata = {
            "name": node,
            "labels": {**self._labels, **_base_labels(node, None)},
            "annotations": {MADE_BY: HUB, _ATTACHED: "true"},
        }
        spec = {"spec": {"taints": list(self._taints)}} if self._taints else {}
        return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, **spec}

    async def _write_in_use(self, node: str, found: Body, fact: Mapping[str, Any]) -> Body:
        reported = in_use(fact)
        present = in_use(found)
        self._in_use.note(node, set(reported).intersection(present))  # these are in the Node even if the request fails
        if reported != present:
            found = await self._write_status(node, found, {"volumesInUse": reported})
            self._in_use.note(node, reported)
        return found

    async def _write_status(self, node: str, found: Body, change: Body) -> Body:
        # Without the version, which each heartbeat changes: no other writer has these fields.
        body = {"metadata": {"uid": found["metadata"]["uid"]}, "status": change}
        return await self._api.patch(_NODES, node, body, subresource="status")


class NodeChange:
    """What a fact changes in a Node's metadata. `problems` are for people, in sentences."""

    def __init__(self, node: str, found: Body, fact: Mapping[str, Any] | None) -> None:
        self.problems: list[str] = []
        self._node = node
        self._found = found
        self._fact = fact

    def metadata(self) -> Body:
        parts = {"labels": self.labels(), "annotations": self._annotations()}
        return {name: changed for name, changed in parts.items() if changed}

    def labels(self) -> Body:
        present = self._found["metadata"].get("labels") or {}
        added: dict[str, str] = {}
        base = _base_labels(self._node, self._fact) if is_made(self._found) else {}
        for name, value in (*base.items(), *sorted(part(self._fact or {}, "metadata", "labels").items())):
            has = present.get(name, added.get(name))
            if name == NODE_SEGMENT and value != self._node:
                self._problem(f"says that it is {name}={value}, which only the node of that name may be")
            elif has is None and is_reserved(name):
                self._problem(f"says that it is {name}={value}: only administrators may set this label")
            elif has is None and not is_label(name, value):
                # the API server would refuse all labels of the request
                shown = ascii(f"{name}={value}"[:_SHOWN_CHARS])
                self._problem(f"says that it is {shown}, which cannot be a label: correct the topology of the driver")
            elif has is None:
                added[name] = value
            elif has != value:
                self._problem(
                    f"says that it is {name}={value}, but its Node has the label {name}={has}, which stays: "
                    f"remove that label, or correct the topology of the driver"
                )
        return added

    def _annotations(self) -> Body:
        change: Body = {}
        if is_made(self._found):
            if not annotation(self._found, _ATTACHED):
                change[_ATTACHED] = "true"
        elif self._fact is not None and annotation(self._found, _ATTACHED) != "true":
            self._problem(
                f"has a Node that the hub did not make, without the annotation {_ATTACHED}=true: nothing is attached "
                f"to it. Set the annotation, or delete the Node, and the hub makes it"
            )
        return {**change, **self._node_ids()}

    def _node_ids(self) -> Body:
        present = read_ids(annotation(self._found, NODE_IDS))
        reported = read_ids(annotation(self._fact or {}, NODE_IDS))
        if present is None or reported is None:
            whose = "of its Node" if present is None else "that it tells"
            self._problem(f"has no node ids in Kubernetes: the annotation {NODE_IDS} {whose} cannot be read")
            return {}
        before = written_drivers(self._found)
        ids = {**{name: text for name, text in present.items() if name not in before}, **reported}
        ours = {name for name, text in reported.items() if name in before or present.get(name) != text}
        change: Body = {}
        if ids != present:
            text = json.dumps(ids, separators=(",", ":"), sort_keys=True, ensure_ascii=False)
            change[NODE_IDS] = text if ids else None
        if ours != before:
            change |= remember_drivers(ours)
        return change

    def _problem(self, why: str) -> None:
        self.problems.append(f"node {self._node} {why}")


def _base_labels(node: str, fact: Mapping[str, Any] | None) -> Mapping[str, str]:
    # Those that a kubelet sets without its drivers. The agent runs only on Linux.
    labels = {"kubernetes.io/os": "linux"}
    if len(node) <= LONGEST_LABEL_CHARS:
        labels["kubernetes.io/hostname"] = node
    if architecture := part(fact or {}, "status", "nodeInfo").get("architecture"):
        labels["kubernetes.io/arch"] = architecture
    return labels


def _status_change(node: str, status: Mapping[str, Any], reported: Mapping[str, Any]) -> Body:
    change: Body = {}
    capacity = part(reported, "capacity")
    info = part(reported, "nodeInfo")
    # as numbers: the API server may spell an amount in another way
    if any(bytes_of(part(status, "capacity").get(name)) != bytes_of(amount) for name, amount in capacity.items()):
        change |= {"capacity": capacity, "allocatable": capacity}
    if any(part(status, "nodeInfo").get(name) != text for name, text in info.items()):
        change["nodeInfo"] = info
    if not status.get("addresses"):
        change["addresses"] = [{"type": "Hostname", "address": node}]
    return change
