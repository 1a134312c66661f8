"""A node fact: what this node tells the hub of itself: its CSINode, and the drivers' ids, labels and volumes in use.

Rules:

* What a kubelet writes into CSINode and Node (contract.md C.2): the drivers with their node ids and topology keys, the
  annotation with the ids, the topology as labels, and `status.volumesInUse`.
* A volume that is attached stands in `volumesInUse`, and the hub has stored that, before it is staged for the first
  time; it stands there until it is unstaged (RULE C12). Away from the hub such a first stage waits; a volume that was
  staged before does not ask.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from common.objects import Ref
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


class NodeFacts:
    """The facts of one node. Nothing is told before the first `tell`: until then what was told before stays true."""

    def __init__(self, node: str, store: Store, drivers: Drivers) -> None:
        self._store, self._drivers = store, drivers
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
                "status": {"volumesInUse": list(volumes_in_use)},
            },
        )

    async def in_use_acked(self, _key: VolumeKey) -> None:
        """Wait until the hub has stored what was told last, in which the volume stands."""
        await self._store.wait_acked(self._node)
