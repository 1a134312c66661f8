"""The node rights: the facts about its drivers that a node may tell, and the volumes that it may get.

A hostile node could else tell a driver that it may not run, or the topology of another node: the scheduler would put
pods there, and the node would get their volumes and Secrets.

Rules:

* Of a node's CSINode and Node count the drivers whose report counts (`cloud.nodes.report_judge`), and the topology that
  these reports have. The rest counts as not told.
* A node gets no volume of a driver that its certificate does not name, if it names some. It gets no PersistentVolume
  whose nodeAffinity needs, in each term, a unique segment of another node (`cloud.nodes.unique_segments`).
"""

import json
from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any

from cloud.kinds.nodes import NODE_IDS, read_ids
from cloud.kinds.persistentvolumes import node_terms
from cloud.kinds.pods import inline_drivers
from cloud.kinds.rules.fields import Body, part
from cloud.nodes.edge_nodes import Nodes
from common.objects.node_selector import choices
from common.objects.objects import Ref


class NodeRights:
    """`changed` is called with a node's name when the hub may believe the node other things than before."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self.changed: Callable[[str], None] = lambda _: None
        nodes.subscribe(lambda _driver, node: self.changed(node))

    def believed(self, node: str, ref: Ref, body: Body) -> Body:
        """A fact's body without the parts that the node may not tell."""
        match ref.kind:
            case "CSINode":
                kept = [it for it in body["spec"]["drivers"] if self._is_reported(node, it)]
                return {**body, "spec": {"drivers": kept}}
            case "Node":
                return {**body, "metadata": self._believed_metadata(node, body.get("metadata") or {})}
        return body

    def why_not(self, node: str, ref: Ref, body: Body) -> str:
        """Why a node gets nothing that an object needs, nor the object itself unless it is a pod; else empty."""
        match ref.kind:
            case "Pod":
                return next(filter(None, (self._why_not_driver(node, driver) for driver in inline_drivers(body))), "")
            case "PersistentVolume":
                return self._why_not_volume(node, body)
        return ""

    def _why_not_volume(self, node: str, volume: Body) -> str:
        driver = part(volume, "spec", "csi").get("driver", "")
        if why := self._why_not_driver(node, driver):
            return why
        others = [self._other_owner(node, term, driver) for term in node_terms(volume)]
        return f"its nodeAffinity names edge node {others[0]} alone" if others and all(others) else ""

    def _why_not_driver(self, node: str, driver: str) -> str:
        named = self._nodes.of(node).rights
        if not named or not driver or driver in named:
            return ""
        return f"the node's certificate is for {', '.join(named)}, and not for {driver}"

    def _other_owner(self, node: str, term: Mapping[str, Any], driver: str) -> str:
        # A term selects another node if one of its keys has only unique segments of others.
        for key, values in choices(term):
            owners = [self._nodes.owner(key, value, driver) for value in values]
            if owners and all(owners) and node not in owners:
                return owners[0]
        return ""

    def _is_reported(self, node: str, entry: Mapping[str, Any]) -> bool:
        topology = self._nodes.of(node).reported().get(entry["name"])
        return topology is not None and topology.keys() >= set(entry.get("topologyKeys") or ())

    def _believed_metadata(self, node: str, metadata: Mapping[str, Any]) -> dict[str, Any]:
        reported = self._nodes.of(node).reported()
        kept = dict(metadata)
        if "labels" in metadata:
            segments = {segment for topology in reported.values() for segment in topology.items()}
            kept["labels"] = dict(metadata["labels"].items() & segments)
        if NODE_IDS in metadata.get("annotations", {}):
            kept["annotations"] = dict(_believed_ids(metadata["annotations"], reported))
        return kept


def _believed_ids(annotations: Mapping[str, str], reported: Container[str]) -> Iterator[tuple[str, str]]:
    for name, text in annotations.items():
        ids = read_ids(text) if name == NODE_IDS else None
        yield name, text if ids is None else json.dumps({it: ids[it] for it in ids if it in reported})
