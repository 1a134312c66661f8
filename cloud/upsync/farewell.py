"""A farewell: deletes the hub's objects of a node that is gone for good, as an operator has said.

Rules:

* If the hub made the Node, it is deleted, and its CSINode and its Lease go with it. From any other Node the hub only
  removes its own entries, as if the node reported no driver any more, and its condition.
* Each try deletes the found Node by its UID, so a Node that is made meanwhile stays. `written_facts` ends the tries
  when the node is back.
"""

from typing import Final

from cloud.kinds.nodes import PROBLEM
from cloud.kube import RESOURCES, Body, Kube, KubeError, find
from cloud.upsync.ownership import is_made
from cloud.upsync.writer import Writer
from common.objects import Ref

KIND: Final = "Farewell"
"""Its kind in `written_facts`. There is no such object: it stands for a node that is gone."""

_NODES: Final = RESOURCES["Node"]


class Farewell(Writer):
    """Deletes the Nodes of nodes that are gone for good."""

    def __init__(self, api: Kube) -> None:
        self._api = api

    async def write(self, node: str, _ref: Ref, _fact: Body | None) -> None:
        found = await find(self._api, _NODES, node)
        if found is None:
            return
        if not is_made(found):
            await self._remove_condition(node, found)
            return
        try:
            await self._api.delete(_NODES, node, uid=found["metadata"]["uid"])
        except KubeError as error:
            if not error.is_missing:
                raise

    async def _remove_condition(self, node: str, found: Body) -> None:
        conditions = (found.get("status") or {}).get("conditions") or []
        kept = [it for it in conditions if it["type"] != PROBLEM]
        if kept != conditions:
            version = {"resourceVersion": found["metadata"]["resourceVersion"]}
            change: Body = {"metadata": version, "status": {"conditions": kept}}
            await self._api.patch(_NODES, node, change, subresource="status")

    def problems(self) -> list[str]:
        """No problems."""
        return []
