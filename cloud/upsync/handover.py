"""A hand-over: takes the hub's marks from the Node and the CSINode of a node that a kubelet serves now.

Rules:

* The marks say that nobody else is that Node's kubelet, and which entries are the hub's to remove. Without them the hub
  has no more to say there than about any Node of a cluster.
* Of a Node that the hub made go also the label and the taints `csi-bridge.io/edge=agent`, which say that no kubelet is
  there. With another value they are an operator's.
* Nothing else is touched: what stands there is the kubelet's to keep or to change. A Node that was deleted under a
  kubelet would come back only with the kubelet's next start.
"""

from typing import Final

from cloud.kube import RESOURCES, Body
from cloud.node_marks import AGENT, EDGE
from cloud.upsync.ownership import find, is_made, unmarked
from cloud.upsync.write_api import WriteApi
from common.objects import Ref

KIND: Final = "Kubelet"
"""The kind under which `written_facts` has it: there is no such object, but a node that is handed over."""


class HandOver:
    """Hands nodes over."""

    def __init__(self, api: WriteApi) -> None:
        """Nothing is handed over yet."""
        self._api = api

    async def write(self, node: str, _ref: Ref, _fact: Body | None) -> None:
        """Take the marks from a node's objects.

        Raises:
            KubeError: to be tried again.
        """
        for kind in ("Node", "CSINode"):
            found = await find(self._api, RESOURCES[kind], node)
            if found is not None and (marks := unmarked(found)):
                version = {"resourceVersion": found["metadata"]["resourceVersion"]}
                change: Body = {"metadata": {**version, "annotations": marks}}
                if is_made(found):
                    _open(found, change)
                await self._api.patch(RESOURCES[kind], node, change)

    def forget(self, _node: str, _ref: Ref) -> None:
        """Nothing here is remembered."""

    def problems(self) -> list[str]:
        """Nothing here waits for people."""
        return []


def _open(node: Body, change: Body) -> None:
    """Add to a merge patch the removal of the label and the taints that keep pods away from a Node."""
    if (node["metadata"].get("labels") or {}).get(EDGE) == AGENT:
        change["metadata"]["labels"] = {EDGE: None}
    taints = (node.get("spec") or {}).get("taints") or []
    kept = [it for it in taints if (it["key"], it.get("value")) != (EDGE, AGENT)]
    if kept != taints:
        change["spec"] = {"taints": kept or None}
