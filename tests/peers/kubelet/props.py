"""The props of a scene: a driver's process, its volumes, and what the cluster holds for them, under their own names."""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from common.csi import csi_pb2 as pb
from tests.kit.leftovers import clear
from tests.kit.peers import manifests
from tests.kit.peers.testdriver import start_testdriver
from tests.kit.processes import Supervisor
from tests.kit.sidecar import Sidecar
from tests.peers.kubelet import cluster_objects as objects
from tests.peers.kubelet import tree
from tests.peers.kubelet.cluster_objects import Inline, Volume
from tests.peers.kubelet.node_under_test import NodeUnderTest, Object
from tests.peers.kubelet.scenario import Scenario


class Props:
    """What one scenario needs on one node.

    Args:
        scenario: what is played.
        directory: for the driver and its state; its path must be short.
        number: no other scene of the same node has it.

    Attributes:
        vendor: the driver's process.
        names: what this run's names and ids stand for, for the record.
    """

    def __init__(self, scenario: Scenario, *, node: NodeUnderTest, directory: Path, number: int) -> None:
        self.driver = f"d{number:03}.oracle.csi"
        self.namespace = f"n{number:03}-oracle"  # where claims, Secrets and pods are
        self.volumes = {volume.name: volume for volume in scenario.volumes}  # the scenario's, by name
        self._scenario = scenario
        self._node = node
        self._directory = directory
        self._handles: dict[str, str] = {}
        self._contexts: dict[str, dict[str, str]] = {}
        self._attached: set[str] = set()
        self._made: list[Object] = []
        self._supervisor = Supervisor(directory / "logs")
        attach = () if scenario.driver.attach else ("--no-attach",)
        self.vendor = start_testdriver(
            self._supervisor,
            directory,
            name=self.driver,
            node_id=node.name,
            flags=("--no-topology", *attach, *scenario.driver.flags),
        )
        self.names = {
            str(node.root): "ROOT",
            str(self.vendor.state): "STATE",
            self.driver: "DRIVER",
            self.namespace: "NAMESPACE",
            node.name: "NODE",
        }

    def set_up(self) -> None:
        """Make the volumes, and all objects but pods."""
        self.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}})
        self.create(self._scenario.driver.manifest(self.driver))
        self.create(manifests.storage_class(self.driver, allowVolumeExpansion=True))
        for volume in self.volumes.values():
            self._make(volume)

    def remove_objects(self) -> None:
        """Delete what was created; namespaces stay, the cluster does not finish with them in time."""
        for manifest in reversed(self._made):
            if manifest["kind"] != "Namespace":
                meta = manifest["metadata"]
                self._node.delete(manifest["kind"], meta["name"], namespace=meta.get("namespace"))

    def stop(self, *, pods: Iterable[str]) -> None:
        """Stop the driver, and unmount and detach what is left of it on the node."""
        self._supervisor.stop()
        for place in (self._directory, *self.places(pods)):
            clear(place)

    def create(self, manifest: Object) -> None:
        """Give the cluster an object, until the end of the scene."""
        self._node.create(manifest)
        self._made.append(manifest)

    def create_secret(self, volume: str, purpose: str) -> None:
        named = self.volumes[volume]
        self.create(objects.secret(named.secret_name(purpose), named.secrets[purpose], namespace=self.namespace))

    def create_inline_secrets(self, inlines: Iterable[Inline]) -> None:
        for inline in inlines:
            if inline.secret:
                self.create(objects.secret(inline.secret_name, inline.secret, namespace=self.namespace))

    def name_pod(self, pod: str, uid: str, inlines: Iterable[Inline]) -> None:
        self.names[uid] = f"UID({pod})"
        for inline in inlines:
            handle = f"csi-{hashlib.sha256(f'{uid}{inline.name}'.encode()).hexdigest()}"
            attachment = objects.attachment_name(handle=handle, driver=self.driver, node=self._node.name)
            self.names[handle] = f"INLINE({pod}, {inline.name})"
            self.names[attachment] = f"ATTACHMENT({inline.name})"
            self.names[f"kubernetes.io~csi/{inline.name}"] = f"kubernetes.io~csi/NAME({inline.name})"

    def pv(self, volume: str) -> str:
        return f"pv-{self.namespace}-{volume}"

    def places(self, pods: Iterable[str]) -> list[Path]:
        """Where the node puts what it makes, for pods of these UIDs."""
        names = [self.pv(volume) for volume in self.volumes]
        return tree.places(self._node.root, driver=self.driver, volumes=names, pods=pods)

    def data(self, volume: str) -> Path:
        return self.vendor.state / "volumes" / self._handles[volume] / "data"

    # What sidecars ask of the driver.

    def publish_to_node(self, volume: str) -> None:
        """What external-attacher asks, if volumes are attached."""
        if not self._scenario.driver.attach:
            return
        request = pb.ControllerPublishVolumeRequest(
            volume_id=self._handles[volume],
            node_id=self._node.name,
            volume_capability=self.volumes[volume].capability(),
            readonly=self.volumes[volume].read_only,
        )
        answer = self._ask("ControllerPublishVolume", request)
        self._contexts[volume] = {**answer.publish_context, "attached-as": volume}

    def expand(self, volume: str, size: str) -> bool:
        """What external-resizer asks. Whether the node has a part in it."""
        request = pb.ControllerExpandVolumeRequest(volume_id=self._handles[volume])
        request.volume_capability.CopyFrom(self.volumes[volume].capability())
        request.capacity_range.required_bytes = _bytes(size)
        return bool(self._ask("ControllerExpandVolume", request).node_expansion_required)

    # Attachments.

    def unattached(self, volumes: Iterable[str]) -> list[str]:
        """Those of the volumes that a pod needs to have attached first."""
        return sorted(set(volumes) - self._attached) if self._scenario.driver.attach else []

    def attach(self, volume: str) -> None:
        self._node.attach(self._attachment(volume), context=self._contexts[volume])
        self._attached.add(volume)

    def wait_detached(self, volumes: Iterable[str]) -> None:
        """Wait until the cluster has detached volumes that no pod uses any more."""
        for volume in sorted(self._attached.intersection(volumes)):
            self._node.wait_detachable(self._attachment(volume)["metadata"]["name"])
            self._attached.remove(volume)

    def _attachment(self, volume: str) -> Object:
        handle, name = self._handles[volume], self.pv(volume)
        return objects.attachment(handle=handle, driver=self.driver, node=self._node.name, volume=name)

    def _make(self, volume: Volume) -> None:
        request = pb.CreateVolumeRequest(name=f"{self.driver}-{volume.name}", volume_capabilities=[volume.capability()])
        request.capacity_range.required_bytes = _bytes(volume.size)
        handle = self._handles[volume.name] = self._ask("CreateVolume", request).volume.volume_id
        name = self.pv(volume.name)
        self.names |= {
            handle: f"HANDLE({volume.name})",
            hashlib.sha256(handle.encode()).hexdigest(): f"HASH({volume.name})",
            name: f"PV({volume.name})",
            self._attachment(volume.name)["metadata"]["name"]: f"ATTACHMENT({volume.name})",
        }
        for purpose in volume.secrets:
            if purpose not in volume.late_secrets:
                self.create_secret(volume.name, purpose)
        claim = volume.claim(namespace=self.namespace, volume=name, storage_class=self.driver)
        self.create(volume.persistent_volume(name, driver=self.driver, handle=handle, claim=claim))
        self.create(claim)

    def _ask(self, method: str, request: Any) -> Any:
        with Sidecar(self.vendor.socket) as sidecar:
            outcome = sidecar.call(method, request)
        assert outcome.ok, f"{method}: {outcome.refusal}"
        return outcome.answer


def _bytes(size: str) -> int:
    return int(size.removesuffix("Mi")) << 20
