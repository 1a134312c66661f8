"""This node's reports about itself for the hub: its machine, its drivers' ids and labels, its volumes in use.

Rules:

* The CSINode and Node contain the fields that a kubelet writes (kubernetes pkg/volume/csi/nodeinfomanager): the drivers
  with node ids and topology keys, the annotation with the ids, and the topology as labels. The Node also has
  `status.volumesInUse`, and the machine's capacity for the scheduler.
* A volume that is one node's at a time has a claim besides, from its listing in `volumesInUse` to its end
  (`common.objects.sole_use`). The hub confirms the claim of one node at a time.
* The Node also tells which volumes the agent fences (`common.objects.offline_policy`).
* The Node also tells of mounts that no pod wants (`common.objects.left_over`), for the hub's leak audit. The hub keeps
  them.
* A driver's volume limit may change while it runs. It is asked as often as its CSIDriver object says
  (`nodeAllocatableUpdatePeriodSeconds`), and at least once a minute.
"""

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final

from common.objects import left_over
from common.objects.left_over import LeftOver
from common.objects.objects import Ref
from common.objects.sole_use import KIND, sole_use
from edge.registry.driver_registry import DriverRegistry
from edge.registry.registration import csi_node_drivers, node_annotations, node_labels
from edge.reports.machine import Machine
from edge.stores.fact_store import FactStore
from edge.stores.object_store import ObjectStore
from edge.volumes import VolumeKey

# The shortest interval between two questions for the limit: Kubernetes' own minimum (KEP-4876).
_SHORTEST_PERIOD_S: Final = 10.0


def ask_as_said(objects: ObjectStore, drivers: DriverRegistry, changed: Iterable[Ref]) -> None:
    """Set how often each driver is asked for its volume limit, from its changed, new or deleted CSIDriver object."""
    for ref in changed:
        if ref.kind == "CSIDriver":
            drivers.ask_every(ref.name, _period(objects, ref))


def _period(objects: ObjectStore, ref: Ref) -> float | None:
    try:
        found = objects.get(ref)
        seconds = found.read()["spec"].get("nodeAllocatableUpdatePeriodSeconds") if found is not None else None
        return max(float(seconds), _SHORTEST_PERIOD_S) if seconds is not None else None
    except (AttributeError, KeyError, OSError, TypeError, ValueError):  # use the default
        return None


class NodeFacts:
    """The facts of one node. Until the first `tell`, the facts from before the agent's start stay in force."""

    def __init__(
        self,
        node: str,
        store: FactStore,
        drivers: DriverRegistry,
        machine: Machine,
        fence: Callable[[], dict[str, Any]] = dict,
    ) -> None:
        self._store = store
        self._drivers = drivers
        self._machine = machine
        self._fence = fence
        self._name = node
        self._node = Ref("Node", "", node)
        self._csi_node = Ref("CSINode", "", node)
        self._left: tuple[LeftOver, ...] = ()
        self._claimed: set[Ref] = set()

    def tell(
        self, volumes_in_use: Sequence[str], sole: Collection[VolumeKey], left: Iterable[LeftOver] | None = None
    ) -> None:
        """Report the present state. A fact that has not changed is not sent again.

        `sole` are those of the volumes in use that are one node's at a time. `left` are the mounts that no pod wants;
        None means those of the last report.
        """
        if left is not None:
            self._left = tuple(left)
        named = {"name": self._name}
        fence = self._fence()
        registrations = self._drivers.registrations
        self._store.put(
            self._csi_node,
            {
                "apiVersion": "storage.k8s.io/v1",
                "kind": "CSINode",
                "metadata": named,
                "spec": {"drivers": csi_node_drivers(registrations)},
            },
        )
        self._store.put(
            self._node,
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {
                    **named,
                    "annotations": node_annotations(registrations),
                    "labels": node_labels(registrations),
                },
                "status": {
                    "volumesInUse": list(volumes_in_use),
                    "leftOver": left_over.write(self._left),
                    **({"fence": fence} if fence else {}),
                    "capacity": dict(self._machine.capacity),
                    "nodeInfo": dict(self._machine.info),
                },
            },
        )

        claims = {sole_use(key.driver, key.handle): key for key in sole}
        there = set(self._store.refs(KIND)) | self._claimed
        for ref in there - claims.keys():
            self._store.drop(ref)
        for ref in claims.keys() - there:
            self._claim(ref, claims[ref])
        self._claimed = set(claims)

    async def in_use_acked(self, sole: VolumeKey | None) -> None:
        """Return once the hub has stored the latest Node fact, with its `volumesInUse`.

        The hub has to confirm a new claim to the volume `sole`, too, which is one node's at a time. Raises FactRefused
        if the hub does not let the node have it now.
        """
        await self._store.wait_acked(self._node)
        if sole is not None:
            ref = sole_use(sole.driver, sole.handle)
            self._claim(ref, sole)
            await self._store.wait_acked(ref)

    def _claim(self, ref: Ref, key: VolumeKey) -> None:
        # The time makes it a new fact: what the hub said to an earlier claim does not count.
        spec = {"driver": key.driver, "volumeHandle": key.handle}
        self._store.put(ref, {"spec": spec, "metadata": {"creationTimestamp": str(time.time())}})


LEFT_SETTLE_S: Final = 5.0  # a mount without a pod that the agent takes down within this time is no news
