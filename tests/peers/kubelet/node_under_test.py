"""A node under test: what a scenario needs of a real kubelet with its cluster, and of an agent with its manifests."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

Object = dict[str, Any]


class NodeUnderTest(Protocol):
    """One node, and the part of a cluster that concerns it."""

    name: str

    @property
    def root(self) -> Path:
        """Its root directory, where drivers register and volumes appear."""

    def create(self, manifest: Object) -> Object:
        """Give the cluster an object; as it is then, with its UID. A claim is bound to the volume that it names."""

    def delete(self, kind: str, name: str, *, namespace: str | None = None) -> None:
        """Ask for an object's deletion; none of this name is fine."""

    def attach(self, attachment: Object, *, context: Mapping[str, str]) -> None:
        """Say that a volume is attached to the node, as the external attacher does."""

    def wait_detachable(self, attachment: str) -> None:
        """Wait until the node uses the volume no more, and its attachment is gone."""

    def grow(self, *, claim: str, namespace: str, volume: str, size: str, node_expansion: bool) -> None:
        """Give a volume and its claim the new size, as the external resizer does."""

    def claim(self, name: str, *, namespace: str) -> Object:
        """A claim, as the cluster has it."""

    def registration(self, driver: str) -> Object:
        """What the cluster knows of a driver on this node: entry of CSINode, node id, labels; empty for nothing."""

    def is_published(self, pod: str, *, namespace: str) -> bool:
        """Whether all volumes of a pod are there for its containers."""

    def is_gone(self, pod: str, *, namespace: str, uid: str) -> bool:
        """Whether a pod is gone from the cluster and from the node."""

    def has_finished(self, driver: str) -> bool:
        """Whether it is done with all volumes of a driver that no pod uses, as far as it tells."""

    def why_not(self, pod: str, *, namespace: str) -> str:
        """What the node says of a pod, for a failure's reader."""

    def kill(self) -> None:
        """End the node's process at once; mounts stay."""

    def start_again(self) -> None:
        """Start a node's process that was killed, and wait until it works."""
