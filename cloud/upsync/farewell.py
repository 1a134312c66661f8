"""A farewell: deletes what the hub made for a node that is gone for good, as an operator says.

Rules:

* Deleted is the Node, if the hub made it; its CSINode and its Lease belong to it, and go with it. Of any other Node the
  hub only takes back its own entries, as if the node had told that it has no driver any more.
* Each try deletes the Node that it finds, by its UID: one that is made between look and deletion stays. That no try
  finds the Node of a node that is back is the business of `written_facts`.
"""

from typing import Final

from cloud.kube import RESOURCES, Body, KubeError
from cloud.upsync.ownership import find, is_made
from cloud.upsync.write_api import WriteApi
from common.objects import Ref

KIND: Final = "Farewell"
"""The kind under which `written_facts` has it: there is no such object, but a node that is gone."""

_NODES: Final = RESOURCES["Node"]


class Farewell:
    """Deletes Nodes."""

    def __init__(self, api: WriteApi) -> None:
        """Nothing is deleted yet."""
        self._api = api

    async def write(self, node: str, _ref: Ref, _fact: Body | None) -> None:
        """Delete a node's Node.

        Raises:
            KubeError: to be tried again.
        """
        found = await find(self._api, _NODES, node)
        if found is None or not is_made(found):
            return
        try:
            await self._api.delete(_NODES, node, uid=found["metadata"]["uid"])
        except KubeError as error:
            if not error.is_missing:
                raise

    def forget(self, _node: str, _ref: Ref) -> None:
        """Nothing here is remembered."""

    def problems(self) -> list[str]:
        """Nothing here waits for people."""
        return []
