"""A kubelet node: a control plane and a real kubelet, as a `NodeUnderTest`.

The controllers are real as well: they bind claims, write VolumeAttachments and `volumesAttached`, and remove them. Only
the sidecars' part is done by hand: saying that a volume is attached, and that it has grown.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.kit.peers.control_plane import ControlPlane
from tests.kit.waiting import wait_for
from tests.peers.kubelet.kubelet_process import Kubelet
from tests.peers.kubelet.node_under_test import Object

_CLAIM = "PersistentVolumeClaim"
_NAME = "node-under-test"


class KubeletNode:
    """A cluster of one node.

    Args:
        directory: for everything; its path must be short.
        peer: finds a peer's binary by name.
    """

    def __init__(self, directory: Path, *, peer: Callable[[str], Path]) -> None:
        self.name = _NAME
        self._directory = directory
        self._peer = peer
        self._plane = ControlPlane(directory / "plane", peer=peer, nodes=(self.name,))
        self._kubelet: Kubelet | None = None

    @property
    def kubelet(self) -> Kubelet:
        assert self._kubelet is not None, "the node was not started"
        return self._kubelet

    @property
    def root(self) -> Path:
        return self.kubelet.root

    def start(self) -> None:
        """Start the cluster; the node is ready when this returns."""
        self._plane.start()
        kubeconfig = self._plane.node_kubeconfig(self.name)
        self._kubelet = Kubelet(self._directory / "k", peer=self._peer, node=self.name, kubeconfig=kubeconfig)
        self._plane.await_kubelet(self.name)
        self._kubelet.start()
        self._plane.api.wait_until("Node", self.name, _is_ready, what="ready", timeout_s=180.0)

    def stop(self) -> None:
        if self._kubelet is not None:
            self._kubelet.stop()
        self._plane.stop()

    def create(self, manifest: Object) -> Object:
        """Create an object; a claim is bound when this returns."""
        made = self._plane.api.create(manifest)
        if manifest["kind"] == _CLAIM:
            meta = manifest["metadata"]
            return self._plane.api.wait_until(
                _CLAIM, meta["name"], lambda it: it["status"]["phase"] == "Bound", what="bound",
                namespace=meta["namespace"],
            )  # fmt: skip
        return made

    def delete(self, kind: str, name: str, *, namespace: str | None = None) -> None:
        self._plane.api.delete(kind, name, namespace=namespace)

    def attach(self, attachment: Object, *, context: Mapping[str, str]) -> None:
        """Wait for the VolumeAttachment of the attach-detach controller, and answer it as external-attacher does."""
        name = attachment["metadata"]["name"]
        self._plane.api.wait_until("VolumeAttachment", name, lambda _: True, what="made")
        status = {"attached": True, "attachmentMetadata": dict(context)}
        self._plane.api.patch_status("VolumeAttachment", name, {"status": status})

    def wait_detachable(self, attachment: str) -> None:
        """Wait until the attach-detach controller has deleted the VolumeAttachment."""
        self._plane.api.wait_gone("VolumeAttachment", attachment)

    def grow(self, *, claim: str, namespace: str, volume: str, size: str, node_expansion: bool) -> None:
        """Change spec and status of both as external-resizer does, for a claim that asks for more."""
        api = self._plane.api
        api.patch(_CLAIM, claim, {"spec": {"resources": {"requests": {"storage": size}}}}, namespace=namespace)
        api.patch("PersistentVolume", volume, {"spec": {"capacity": {"storage": size}}})
        status = {
            "allocatedResources": {"storage": size},
            "allocatedResourceStatuses": {"storage": "NodeResizePending"} if node_expansion else None,
            "capacity": None if node_expansion else {"storage": size},
        }
        changes = {key: value for key, value in status.items() if value is not None}
        api.patch_status(_CLAIM, claim, {"status": changes}, namespace=namespace)

    def claim(self, name: str, *, namespace: str) -> Object:
        found = self._plane.api.get(_CLAIM, name, namespace=namespace)
        assert found is not None, f"there is no claim {namespace}/{name}"
        return found

    def registration(self, driver: str) -> Object:
        csi_node = self._plane.api.get("CSINode", self.name) or {"spec": {"drivers": None}}
        node = self._plane.api.get("Node", self.name) or {"metadata": {}}
        ids = json.loads(node["metadata"].get("annotations", {}).get("csi.volume.kubernetes.io/nodeid", "{}"))
        entry: Object = next((it for it in csi_node["spec"]["drivers"] or () if it["name"] == driver), {})
        labels = {key: value for key, value in node["metadata"].get("labels", {}).items() if driver in key}
        return {"entry": entry, "node id": ids.get(driver, ""), "labels": labels}

    def is_published(self, pod: str, *, namespace: str) -> bool:
        """Whether the pod runs: the kubelet starts no container before all volumes are published."""
        found = self._plane.api.get("Pod", pod, namespace=namespace)
        return found is not None and found["status"].get("phase") == "Running"

    def is_gone(self, pod: str, *, namespace: str, uid: str) -> bool:
        return not (self.root / "pods" / uid).exists() and self._plane.api.get("Pod", pod, namespace=namespace) is None

    def has_finished(self, _driver: str) -> bool:
        """It does not tell."""
        return True

    def why_not(self, pod: str, *, namespace: str) -> str:
        return "\n".join([*self._plane.api.events(pod, namespace=namespace), self.kubelet.process.log_tail()])

    def kill(self) -> None:
        self.kubelet.kill()

    def start_again(self) -> None:
        """Start the kubelet that was killed."""
        self.kubelet.start_again()
        wait_for(lambda: self.kubelet.process.running, what="running kubelet")


def _is_ready(node: Object) -> bool:
    conditions = node.get("status", {}).get("conditions", [])
    return any(it["type"] == "Ready" and it["status"] == "True" for it in conditions)
