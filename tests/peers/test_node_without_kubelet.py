"""A node without a kubelet on a real control plane: its objects come from the API server, and what it tells goes there.

The hub runs with the permissions that deploy/cloud gives it, and no other.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from common.csi import csi_pb2 as csi
from tests.integration.dirdriver.support import needs_mounts
from tests.support.edge_node import DRIVER, NODE, EdgeNode, csi_driver, pod, volume
from tests.support.sidecar import Sidecar
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tests.peers.support.control_plane import ControlPlane

Object = dict[str, Any]

pytestmark = [needs_mounts, pytest.mark.timeout(180)]

_DEPLOY = Path(__file__).parents[2] / "deploy/cloud"
_KEY = "kubernetes.io/csi/" + DRIVER


class ClusterNode(EdgeNode):
    """A node whose hub follows an API server."""

    def __init__(self, directory: Path, logs: Path, plane: ControlPlane) -> None:
        super().__init__(directory, logs)
        self._plane = plane
        plane.apply(_DEPLOY / "hub-rbac.yaml")
        self._kubeconfig = plane.service_account_kubeconfig("csi-bridge", "csi-bridge-hub")

    def start(self, *flags: str, driver_flags: Iterable[str] = ("--no-attach",), hub_flags: Iterable[str] = ()) -> None:
        """Start vendor, hub and agent."""
        self.start_vendor(driver_flags)
        self._plane.api.create(csi_driver(attach="--no-attach" not in driver_flags))
        self.bridge.start_hub(f"--kubeconfig={self._kubeconfig}", *hub_flags)
        self.start_agent(*flags)

    def __exit__(self, *failure: object) -> None:
        api = self._plane.api
        for each in api.all("Pod", namespace="default"):
            api.delete_now("Pod", each["metadata"]["name"], namespace="default")
        for kind in ("PersistentVolumeClaim", "PersistentVolume", "VolumeAttachment", "CSIDriver", "CSINode", "Node"):
            for each in api.all(kind):
                api.delete_now(kind, each["metadata"]["name"], namespace=each["metadata"].get("namespace"))
        super().__exit__(*failure)


@pytest.fixture
def node(short_dir: Path, tmp_path: Path, control_plane: ControlPlane) -> Iterator[ClusterNode]:
    with ClusterNode(short_dir, tmp_path, control_plane) as node:
        yield node


def create(plane: ControlPlane, *objects: Object) -> None:
    for each in objects:
        plane.api.create(each)


def test_a_pods_claim_is_mounted_and_the_cluster_knows_the_node_and_its_driver(
    node: ClusterNode, control_plane: ControlPlane
) -> None:
    api = control_plane.api
    node.start()
    create(control_plane, *volume("data", node.make_volume("data")), pod("web", "data"))

    (path,) = node.wait_published("web")
    (path / "file").write_text("hello")

    csi_node = api.wait_until("CSINode", NODE, lambda it: bool(it["spec"]["drivers"]), what="with its driver")
    assert [(it["name"], it["nodeID"]) for it in csi_node["spec"]["drivers"]] == [(DRIVER, NODE)]
    known = api.get("Node", NODE)
    assert known is not None
    assert csi_node["metadata"]["ownerReferences"][0]["uid"] == known["metadata"]["uid"]
    assert DRIVER in known["metadata"]["annotations"]["csi.volume.kubernetes.io/nodeid"]
    assert known["metadata"]["annotations"]["volumes.kubernetes.io/controller-managed-attach-detach"] == "true"

    api.delete_now("Pod", "web", namespace="default")
    node.wait_clean()
    create(control_plane, pod("again", "data"))
    (path,) = node.wait_published("again")
    assert (path / "file").read_text() == "hello"


def test_a_volume_that_is_attached_stands_in_volumes_in_use_before_it_is_staged(
    node: ClusterNode, control_plane: ControlPlane
) -> None:
    api = control_plane.api
    node.start(driver_flags=())
    handle = node.make_volume("data")
    create(control_plane, *volume("data", handle), pod("web", "data"))

    # The controller-manager makes the attachment, because the hub's Node asks for that; here the test attaches.
    made = wait_for(lambda: api.all("VolumeAttachment"), what="VolumeAttachment", timeout_s=60.0, instead=node.tell)
    assert [it.method for it in node.calls()] == []
    with Sidecar(node.driver.socket) as attacher:
        mode = csi.VolumeCapability(access_mode={"mode": "SINGLE_NODE_WRITER"}, mount={})
        request = csi.ControllerPublishVolumeRequest(volume_id=handle, node_id=NODE, volume_capability=mode)
        assert attacher.call("ControllerPublishVolume", request).ok
    api.patch_status("VolumeAttachment", made[0]["metadata"]["name"], {"status": {"attached": True}})
    node.wait_published("web")
    known = api.get("Node", NODE)
    assert known is not None
    assert known["status"]["volumesInUse"] == [f"{_KEY}^{handle}"]

    api.delete_now("Pod", "web", namespace="default")
    node.wait_clean()
    api.wait_until("Node", NODE, lambda it: not it["status"].get("volumesInUse"), what="without volumes in use")


def test_a_secret_is_read_by_name_and_one_that_may_not_be_read_is_named(
    node: ClusterNode, control_plane: ControlPlane
) -> None:
    api = control_plane.api
    node.start()
    secret = {"metadata": {"name": "storage-credentials", "namespace": "default"}, "stringData": {"password": "p"}}
    create(control_plane, {"apiVersion": "v1", "kind": "Secret", **secret})
    source = {"nodeStageSecretRef": {"name": "storage-credentials", "namespace": "default"}}
    create(control_plane, *volume("data", node.make_volume("data"), source=source), pod("web", "data"))

    wait_for(
        lambda: any("secrets" in it and "storage-credentials" in it for it in node.problems()),
        what="word about the missing permission",
        instead=node.tell,
    )
    assert not any("password" in it for it in node.problems())
    control_plane.apply(_DEPLOY / "hub-secrets-rbac.yaml")
    node.wait_published("web", timeout_s=100.0)
    api.delete("Secret", "storage-credentials", namespace="default")


def test_while_the_api_server_is_away_a_node_that_knows_its_pods_goes_on(
    node: ClusterNode, control_plane: ControlPlane
) -> None:
    node.start()
    create(control_plane, *volume("data", node.make_volume("data")), pod("web", "data"))
    node.wait_published("web")
    node.agent.kill()
    node.wipe_mounts()
    control_plane.api_server.kill()
    try:
        node.restart_agent()
        node.wait_published("web")
        wait_for(lambda: any("Kubernetes" in it for it in node.problems()), what="word about it", instead=node.tell)
    finally:
        control_plane.api_server.start()
        control_plane.api_server.wait_until(control_plane.ready, what="being ready")
    wait_for(lambda: not node.problems(), what="end of the trouble", timeout_s=60.0, instead=node.tell)
    create(control_plane, *volume("more", node.make_volume("more")), pod("other", "more"))
    node.wait_published("other", timeout_s=60.0)


def test_a_pod_that_is_deleted_ends_when_nothing_of_its_volumes_is_left(
    node: ClusterNode, control_plane: ControlPlane
) -> None:
    api = control_plane.api
    node.start()
    web = pod("web", "data", terminationGracePeriodSeconds=2)
    create(control_plane, *volume("data", node.make_volume("data")), web)
    node.wait_published("web")
    api.wait_until("Pod", "web", _has_volumes, what="with its volumes", namespace="default")

    api.delete("Pod", "web", namespace="default")
    wait_for(lambda: api.get("Pod", "web", namespace="default") is None, what="end of the pod", instead=node.tell)
    node.wait_clean()


def test_an_expansion_that_the_node_finishes_stands_in_the_claim(
    node: ClusterNode, control_plane: ControlPlane
) -> None:
    api = control_plane.api
    node.start()
    handle = node.make_volume("data")
    create(control_plane, *volume("data", handle), pod("web", "data"))
    node.wait_published("web")

    with Sidecar(node.driver.socket) as resizer:
        request = csi.ControllerExpandVolumeRequest(volume_id=handle, capacity_range={"required_bytes": 32 << 20})
        assert resizer.call("ControllerExpandVolume", request).ok
    api.patch("PersistentVolume", "pv-data", {"spec": {"capacity": {"storage": "32Mi"}}})
    waits = {
        "allocatedResources": {"storage": "32Mi"},
        "allocatedResourceStatuses": {"storage": "NodeResizePending"},
        "conditions": [{"type": "FileSystemResizePending", "status": "True"}],
    }
    api.patch_status("PersistentVolumeClaim", "data", {"status": waits}, namespace="default")

    done = api.wait_until("PersistentVolumeClaim", "data", _is_large, what="of 32 MiB", namespace="default")
    assert "allocatedResourceStatuses" not in done["status"]
    assert not done["status"].get("conditions")


def _has_volumes(pod: Object) -> bool:
    conditions = pod["status"].get("conditions", ())
    return any((it["type"], it["status"]) == ("csi-bridge.io/VolumesMounted", "True") for it in conditions)


def _is_large(claim: Object) -> bool:
    return bool(claim["status"]["capacity"]["storage"] == "32Mi")
