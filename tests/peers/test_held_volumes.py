"""The stock attacher detaches from a node with a kubelet that is away: the hub holds the volume, and lets it go.

The hub runs with the permissions that deploy/ gives it, and no other. No kubelet runs here: the test writes what
it would write.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from common.csi import csi_pb2 as csi
from tests.kit.bridge import Bridge
from tests.kit.deployed import hub_roles
from tests.kit.operator import by_hand
from tests.kit.peers import manifests
from tests.kit.peers.cluster_node import HUB
from tests.kit.peers.control_plane import ControlPlane
from tests.kit.peers.kube_api import KubeApi
from tests.kit.peers.sidecars import Sidecars
from tests.kit.peers.testdriver import RunningDriver, start_testdriver
from tests.kit.processes import Supervisor
from tests.kit.requests import create
from tests.kit.waiting import wait_for

pytestmark = pytest.mark.slow

MOUNT = csi.VolumeCapability(mount={}, access_mode={"mode": "SINGLE_NODE_WRITER"})

SINCE = "2026-01-31T12:00:00Z"


class Site:
    """Node n1 serves a driver's controller; a volume is attached to another node, which has a kubelet.

    Attributes:
        node: the name of that node, of the volume and of its attachment.
    """

    def __init__(self, api: KubeApi, bridge: Bridge, vendor: RunningDriver, node: str, handle: str) -> None:
        self.api, self.bridge, self.vendor, self.node, self._handle = api, bridge, vendor, node, handle

    def tell(self, *, ready: str, in_use: bool = True) -> None:
        """Write what a kubelet or the node controller would write."""
        condition = {"type": "Ready", "status": ready, "lastTransitionTime": SINCE, "lastHeartbeatTime": SINCE}
        name = f"kubernetes.io/csi/{self.vendor.name}^{self._handle}"
        self.api.patch_status(
            "Node", self.node, {"status": {"conditions": [condition], "volumesInUse": [name] * in_use}}
        )

    def held(self) -> str:
        found = self.api.get("VolumeAttachment", self.node)
        assert found is not None, "it is detached"
        return str(found["status"].get("detachError", {}).get("message", ""))

    def detached(self) -> int:
        return len(self.vendor.calls("ControllerUnpublishVolume"))


@pytest.fixture
def site(
    short_dir: Path, supervisor: Supervisor, namespace: str, control_plane: ControlPlane, sidecars: Sidecars
) -> Iterator[Site]:
    api, name, node = control_plane.api, f"{namespace}.csi", f"w-{namespace}"
    control_plane.apply(hub_roles())
    (short_dir / "n1").mkdir()
    vendor = start_testdriver(supervisor, short_dir / "n1", name=name, node_id="n1")
    with Bridge(short_dir, supervisor.directory) as bridge:
        bridge.start_hub(f"--kubeconfig={control_plane.service_account_kubeconfig('csi-bridge', HUB)}")
        bridge.start_agent("n1", vendor.socket)
        proxy = bridge.start_proxy(name, node="n1")
        bridge.wait_routed(sidecar := proxy.sidecar())
        made = sidecar.call("CreateVolume", create("data", volume_capabilities=[MOUNT]))
        assert made.ok, made.refusal
        site = Site(api, bridge, vendor, node, made.answer.volume.volume_id)
        api.create(manifests.node(node))
        api.create(manifests.csi_node(node, drivers={name: "n1"}))
        site.tell(ready="True")
        api.create(manifests.persistent_volume(node, driver=name, handle=site._handle))
        api.create(manifests.volume_attachment(node, driver=name, node=node, volume=node))
        sidecars.start("csi-attacher", proxy.socket, "--retry-interval-max=1s")
        api.wait_status("VolumeAttachment", node, "attached")
        yield site


def test_the_taint_out_of_service_lets_the_volume_of_a_node_go_that_is_away(site: Site) -> None:
    site.tell(ready="Unknown")
    site.api.delete("VolumeAttachment", site.node)
    wait_for(lambda: "its Node is not Ready since " in site.held(), what="refused detach")
    assert f"is not detached from node {site.node}: its Node is not Ready since " in site.held()
    assert "and had it mounted; bring the node back, or, if its machine is off for certain, run" in site.held()
    assert site.detached() == 0
    taint = {"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}
    site.api.patch("Node", site.node, {"spec": {"taints": [taint]}})
    site.api.wait_gone("VolumeAttachment", site.node)
    assert site.detached() == 1


def test_a_fence_lets_it_go_and_so_does_a_kubelet_that_has_unmounted(site: Site) -> None:
    site.tell(ready="Unknown")
    site.api.delete("VolumeAttachment", site.node)
    wait_for(lambda: "its Node is not Ready since " in site.held(), what="refused detach")
    done = by_hand("fence", site.node, "--yes", f"--hub=unix://{site.bridge.hub.uds}")
    assert done.returncode == 0, done.stderr
    site.api.wait_gone("VolumeAttachment", site.node)
    site.api.create(manifests.volume_attachment(site.node, driver=site.vendor.name, node=site.node, volume=site.node))
    site.api.wait_status("VolumeAttachment", site.node, "attached")
    site.tell(ready="True")
    site.api.delete("VolumeAttachment", site.node)
    wait_for(lambda: "it still has it mounted" in site.held(), what="refused detach")
    site.tell(ready="True", in_use=False)
    site.api.wait_gone("VolumeAttachment", site.node)
