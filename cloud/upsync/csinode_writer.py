"""A CSINode writer: writes the drivers of nodes without a kubelet, with their node ids and topology keys.

Rules:

* A CSINode belongs to its Node, and goes with it.
* Drivers are written one at a time: an entry that the API server refuses does not block the others.
* An entry that the API server does not let change in place is removed and added anew: always that of another node id or
  other topology keys, before Kubernetes 1.35 also that of another number of volumes (KEP-4876).
* If a node no longer reports a driver, the hub removes the entry that it wrote, but only after a while: an agent
  without its disk knows its drivers only when they register again
  (docs/csi-contract.md#a-restarting-driver-keeps-its-csinode-entry). Entries of other writers stay.
* If two nodes have one node id, `cloud.sync.fact_table` tells people so.
"""

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

from cloud.kube.client import RESOURCES, Body, Kube, KubeError, find, patch_found
from cloud.upsync.ownership import HUB, MADE_BY, remember_drivers, written_drivers
from cloud.upsync.writer import FactWriter
from common.objects.objects import Ref

_NODES: Final = RESOURCES["Node"]
_CSI_NODES: Final = RESOURCES["CSINode"]

_GRACE_S: Final = 120.0  # of the entry of an unreported driver: as long as an agent remembers a driver that left


class CSINodeWriter(FactWriter):
    """Writes the nodes' facts about their drivers."""

    def __init__(self, api: Kube, *, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__(api)
        self._now = now
        # For each node, the unreported drivers that have entries, with the time since when
        self._missed: dict[str, dict[str, float]] = {}

    async def write(self, node: str, ref: Ref, fact: Mapping[str, Any] | None) -> float | None:
        found = await find(self._api, _CSI_NODES, ref.name)
        owner = await self._api.get(_NODES, node) if fact is not None else None
        return await self.write_found(node, found, owner, fact["spec"]["drivers"] if fact is not None else ())

    async def write_found(
        self, node: str, found: Body | None, owner: Body | None, drivers: Iterable[Body]
    ) -> float | None:
        """Write the drivers into a CSINode that was found, or make it for its Node `owner`. Else as `write`.

        Raises KubeError, too, if another writer has changed or made the CSINode since it was looked for.
        """
        told = {entry["name"]: entry for entry in drivers}
        if owner is not None:
            found = await self._owned(owner, found)
        missed = self._miss(node, written_drivers(found) - told.keys() if found is not None else ())
        if found is None:
            return None
        if gone := {name for name, since in missed.items() if since + _GRACE_S <= self._now()}:
            found = await self._write_entries(found, without=gone)
        await self._write_told(node, found, told)
        left = [since for name, since in missed.items() if name not in gone]
        return min(left) + _GRACE_S - self._now() if left else None

    def forget(self, node: str, _ref: Ref) -> None:
        self._missed.pop(node, None)

    def _miss(self, node: str, drivers: Collection[str]) -> Mapping[str, float]:
        before = self._missed.pop(node, {})
        # A driver that is reported again begins anew when it is missed the next time.
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

    async def _owned(self, owner: Body, found: Body | None) -> Body:
        node, uid = owner["metadata"]["name"], owner["metadata"]["uid"]
        reference = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid}
        if found is None:
            metadata = {"name": node, "annotations": {MADE_BY: HUB}, "ownerReferences": [reference]}
            body = {"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": metadata, "spec": {"drivers": []}}
            return await self._api.create(_CSI_NODES, body)
        references = found["metadata"].get("ownerReferences") or []
        if any(it["uid"] == uid for it in references):
            return found
        others = [it for it in references if it["kind"] != "Node"]  # a deleted owner would take the CSINode along
        return await patch_found(self._api, _CSI_NODES, found, {"metadata": {"ownerReferences": [*others, reference]}})

    async def _write_entry(self, found: Body, entry: Body) -> Body:
        name = entry["name"]
        old = next((it for it in drivers_in(found) if it["name"] == name), None)
        if old is not None and _content(old) == _content(entry):
            return found
        try:
            return await self._write_entries(found, without={name}, added=entry)
        except KubeError as error:
            if old is None or error.reason != "Invalid":
                raise
        # The API server refuses the change in place.
        found = await self._write_entries(found, without={name})
        return await self._write_entries(found, without={name}, added=entry)

    async def _write_entries(self, found: Body, *, without: Collection[str], added: Body | None = None) -> Body:
        entries = [it for it in drivers_in(found) if it["name"] not in without]
        ours = set(written_drivers(found)).difference(without)
        if added is not None:
            entries.append(added)
            ours.add(added["name"])
        change = {"metadata": {"annotations": remember_drivers(ours)}, "spec": {"drivers": entries}}
        return await patch_found(self._api, _CSI_NODES, found, change)


def drivers_in(found: Body) -> list[Body]:
    return list((found.get("spec") or {}).get("drivers") or ())


def _content(entry: Body) -> tuple[str, frozenset[str], int | None]:
    count = (entry.get("allocatable") or {}).get("count")
    return entry["nodeID"], frozenset(entry.get("topologyKeys") or ()), count
