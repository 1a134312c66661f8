"""A farewell: deletes the hub's objects of a node that is gone for good, as an operator has said.

Rules:

* If the hub made the Node, it is deleted, and its CSINode and its Lease go with it. From any other Node the hub only
  removes its own entries, as if the node reported no driver any more, and its condition.
* Each try deletes the found Node by its UID, so a Node that is made meanwhile stays. `written_facts` ends the tries
  when the node is back.
"""

from typing import Final

from cloud.kinds.nodes import PROBLEM
from cloud.kube import RESOURCES, Body, delete_found, find, patch_found
from cloud.upsync.ownership import is_made
from cloud.upsync.writer import Writer
from common.objects import Ref

KIND: Final = "Farewell"  # Its kind in `written_facts`. There is no such object: it stands for a node that is gone.
_NODES: Final = RESOURCES["Node"]


class Farewell(Writer):
    """Deletes the Nodes of nodes that are gone for good."""

    async def write(self, node: str, _ref: Ref, _fact: Body | None) -> None:
        found = await find(self._api, _NODES, node)
        if found is not None and is_made(found):
            await delete_found(self._api, _NODES, found)
        elif found is not None:
            conditions = (found.get("status") or {}).get("conditions") or []
            kept = [it for it in conditions if it["type"] != PROBLEM]
            if kept != conditions:
                await patch_found(self._api, _NODES, found, {"status": {"conditions": kept}}, subresource="status")
