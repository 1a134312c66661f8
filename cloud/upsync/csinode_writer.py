"""A CSINode writer: the drivers of nodes without a kubelet, with their node ids and topology keys, as agents tell them.

Rules:

* A CSINode belongs to its Node, and goes with it.
* One driver at a time is written: one that the API server does not take holds up no other.
* The node id and the topology keys of an entry cannot change: it is removed, and added anew. How many volumes a driver
  takes changes in place, where the API server allows that (KEP-4876); elsewhere it is done the same way.
* Entries of drivers that the node does not tell of go if the hub wrote them, and if it stays so for a while: an agent
  that lost its disk does not know its drivers before they register again, and the attacher and the provisioner do
  without them until then (docs/csi-contract.md#a-restarting-driver-keeps-its-csinode-entry). Others' entries stay.
* If two nodes have one node id, `cloud.sync.node_ids` tells people so.
"""

import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from cloud.kube import RESOURCES, Body, KubeError
from cloud.upsync.ownership import find, remember_drivers, written_drivers
from cloud.upsync.write_api import WriteApi
from common.objects import Ref

_NODES: Final = RESOURCES["Node"]
_CSI_NODES: Final = RESOURCES["CSINode"]


_GRACE_S: Final = 120.0
"""For so long a driver that the node does not tell of keeps its entry: as long as an agent remembers one that left."""


class CSINodeWriter:
    """Writes what nodes tell of their drivers."""

    def __init__(self, api: WriteApi, *, now: Callable[[], float] = time.monotonic) -> None:
        """Nothing is written yet.

        Args:
            api: where the CSINodes are.
            now: seconds of a clock that never goes back.
        """
        self._api, self._now = api, now
        self._missed: dict[str, dict[str, float]] = {}
        """By node: the drivers that it does not tell of, though they have entries, and since when."""

    async def write(self, node: str, ref: Ref, fact: Mapping[str, Any] | None) -> float | None:
        """Bring a CSINode into line with what its node tells. None: it tells of no driver any more.

        Returns:
            In how many seconds an entry goes, if one is to.

        Raises:
            KubeError: to be tried again; without its Node, too.
        """
        found = await find(self._api, _CSI_NODES, ref.name)
        told = {entry["name"]: entry for entry in fact["spec"]["drivers"]} if fact is not None else {}
        if fact is not None:
            found = await self._owned(node, found)
        missed = self._miss(node, written_drivers(found) - told.keys() if found is not None else ())
        if found is None:
            return None
        if gone := {name for name, since in missed.items() if since + _GRACE_S <= self._now()}:
            found = await self._write_entries(found, without=gone)
        await self._write_told(node, found, told)
        left = [since for name, since in missed.items() if name not in gone]
        return min(left) + _GRACE_S - self._now() if left else None

    def forget(self, node: str, _ref: Ref) -> None:
        """Nothing is written of the node's drivers any more."""
        self._missed.pop(node, None)

    def problems(self) -> list[str]:
        """What people must mend: nothing that does not stand elsewhere."""
        return []

    def _miss(self, node: str, drivers: Collection[str]) -> Mapping[str, float]:
        """These are missed now, and no others; since when each is."""
        before = self._missed.pop(node, {})
        missed = {name: before.get(name, self._now()) for name in drivers}
        if missed:
            self._missed[node] = missed
        return missed

    async def _write_told(self, node: str, found: Body, told: Mapping[str, Body]) -> None:
        refused: KubeError | None = None
        for entry in told.values():
            try:
                found = await self._write_entry(found, entry)
            except KubeError as error:
                if error.reason != "Invalid":
                    raise
                refused = error
                found = await self._api.get(_CSI_NODES, node)
        if refused is not None:
            raise refused

    async def _owned(self, node: str, found: Body | None) -> Body:
        """The CSINode, made if there is none, with the Node as it is now for its owner."""
        owner = await self._api.get(_NODES, node)
        uid = owner["metadata"]["uid"]
        reference = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid}
        if found is None:
            metadata = {"name": node, "ownerReferences": [reference]}
            body = {"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": metadata, "spec": {"drivers": []}}
            return await self._api.create(_CSI_NODES, body)
        references = found["metadata"].get("ownerReferences") or []
        if any(it["uid"] == uid for it in references):
            return found
        others = [it for it in references if it["kind"] != "Node"]  # one that is gone would take the CSINode along
        return await self._patch(found, {"ownerReferences": [*others, reference]}, {})

    async def _write_entry(self, found: Body, entry: Body) -> Body:
        name = entry["name"]
        old = next((it for it in _entries(found) if it["name"] == name), None)
        if old is None:
            return await self._write_entries(found, without={name}, added=entry)
        if _identity(old) == _identity(entry):
            if _count(old) == _count(entry):
                return found
            try:
                return await self._write_entries(found, without={name}, added=entry)
            except KubeError as error:
                if error.reason != "Invalid":  # before Kubernetes 1.35 this cannot change in place, either
                    raise
        found = await self._write_entries(found, without={name})
        return await self._write_entries(found, without={name}, added=entry)

    async def _write_entries(self, found: Body, *, without: Collection[str], added: Body | None = None) -> Body:
        """The CSINode without the entries of some drivers, and with one; which of them are the hub's goes along."""
        entries = [it for it in _entries(found) if it["name"] not in without]
        ours = set(written_drivers(found)).difference(without)
        if added is not None:
            entries.append(added)
            ours.add(added["name"])
        return await self._patch(found, {"annotations": remember_drivers(ours)}, {"spec": {"drivers": entries}})

    async def _patch(self, found: Body, metadata: Body, change: Body) -> Body:
        """Change the state that was found, and no other."""
        name, version = found["metadata"]["name"], found["metadata"]["resourceVersion"]
        return await self._api.patch(_CSI_NODES, name, {"metadata": {"resourceVersion": version, **metadata}, **change})


def _entries(found: Body) -> list[Body]:
    return list((found.get("spec") or {}).get("drivers") or ())


def _identity(entry: Body) -> tuple[str, frozenset[str]]:
    """What cannot change in an entry."""
    return entry["nodeID"], frozenset(entry.get("topologyKeys") or ())


def _count(entry: Body) -> int | None:
    """How many volumes the driver takes on the node; None: it did not say."""
    count: int | None = (entry.get("allocatable") or {}).get("count")
    return count
