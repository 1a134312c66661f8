"""A node fact: what this node tells the hub of itself: its machine, its drivers' ids and labels, its volumes in use.

Rules:

* What a kubelet writes into CSINode and Node (contract.md C.2): the drivers with their node ids and topology keys, the
  annotation with the ids, the topology as labels, and `status.volumesInUse`; and what the machine has, so that the
  scheduler finds room on it.
* How many volumes a driver takes may change while it runs: it is asked as often as its CSIDriver object says
  (`nodeAllocatableUpdatePeriodSeconds`), and at least once a minute.
* A volume that is attached stands in `volumesInUse`, and the hub has stored that, before it is staged for the first
  time; it stands there until it is unstaged (RULE C12). Away from the hub such a first stage waits; a volume that was
  staged before does not ask.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol

from common.objects import Object, Ref
from edge.machine import Machine
from edge.volumes import VolumeKey


class Store(Protocol):
    """Where facts wait for the hub (`edge.metastore`)."""

    def put_fact(self, ref: Ref, body: dict[str, Any]) -> None:
        """Tell this in place of what was told of `ref` before; nothing if it is the same."""

    async def wait_acked(self, ref: Ref) -> None:
        """Wait until the hub has stored the newest state."""


class Drivers(Protocol):
    """What the registry tells (`edge.registry.driver_registry`)."""

    def csi_node(self) -> list[dict[str, Any]]:
        """The CSINode's `spec.drivers`."""

    def node_annotations(self) -> dict[str, str]:
        """The Node's annotation with the drivers' ids for it."""

    def node_labels(self) -> dict[str, str]:
        """The drivers' topology."""


_SHORTEST_PERIOD_S: Final = 10.0
"""Between two questions: Kubernetes' own least (KEP-4876)."""


class Objects(Protocol):
    """The objects that this node was told of (`edge.metastore`)."""

    def get(self, ref: Ref) -> Object | None:
        """One of them. OSError if the disk does not give it."""

    def refs(self, kind: str) -> list[Ref]:
        """All of a kind."""


class Askers(Protocol):
    """Who asks the drivers (`edge.registry.driver_registry`)."""

    def ask_every(self, name: str, seconds: float | None) -> None:
        """Ask a driver so often what it says of itself; None: as often as any other."""


class UpdatePeriods:
    """How often each driver is asked how many volumes it takes."""

    def __init__(self, objects: Objects, askers: Askers) -> None:
        """What the objects say now holds."""
        self._objects, self._askers = objects, askers
        self.changed(objects.refs("CSIDriver"))

    def changed(self, refs: Iterable[Ref]) -> None:
        """Objects have changed, come or gone."""
        for ref in refs:
            if ref.kind == "CSIDriver":
                self._askers.ask_every(ref.name, self._period(ref))

    def _period(self, ref: Ref) -> float | None:
        try:
            found = self._objects.get(ref)
            seconds = found.read()["spec"].get("nodeAllocatableUpdatePeriodSeconds") if found is not None else None
            return max(float(seconds), _SHORTEST_PERIOD_S) if seconds is not None else None
        except (AttributeError, KeyError, OSError, TypeError, ValueError):  # as any other, then
            return None


class NodeFacts:
    """The facts of one node. Nothing is told before the first `tell`: until then what was told before stays true."""

    def __init__(self, node: str, store: Store, drivers: Drivers, machine: Machine) -> None:
        self._store, self._drivers, self._machine = store, drivers, machine
        self._name = node
        self._node = Ref("Node", "", node)
        self._csi_node = Ref("CSINode", "", node)

    def tell(self, volumes_in_use: Sequence[str]) -> None:
        """Tell how it is now. What is the same is not told again."""
        named = {"name": self._name}
        self._store.put_fact(
            self._csi_node,
            {
                "apiVersion": "storage.k8s.io/v1",
                "kind": "CSINode",
                "metadata": named,
                "spec": {"drivers": self._drivers.csi_node()},
            },
        )
        self._store.put_fact(
            self._node,
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {
                    **named,
                    "annotations": self._drivers.node_annotations(),
                    "labels": self._drivers.node_labels(),
                },
                "status": {
                    "volumesInUse": list(volumes_in_use),
                    "capacity": dict(self._machine.capacity),
                    "nodeInfo": dict(self._machine.info),
                },
            },
        )

    async def in_use_acked(self, _key: VolumeKey) -> None:
        """Wait until the hub has stored what was told last, in which the volume stands."""
        await self._store.wait_acked(self._node)
