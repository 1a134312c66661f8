"""A pod with Kata's RuntimeClass on a node with a kubelet: its runtime gets the block device, and not the file system.

The kubelet and containerd are real. The handler `kata` is runc, so the container sees the guard, and a stand-in is the
guest beside it.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.e2e.cluster import Cluster, Driver
from tests.e2e.container_image import IMAGE
from tests.e2e.kubelet_node import KubeletNode
from tests.e2e.tenant import MIB, Tenant
from tests.e2e.vendors import DIRECT
from tests.kit.fake_shim import FakeShim
from tests.kit.guest import SANDBOX, mount_info
from tests.kit.peers.claims import Claims
from tests.kit.peers.kube_api import Object
from tests.kit.waiting import wait_for

KATA = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "kata"}, "handler": "kata"}

PARAMETERS = {"csi.storage.k8s.io/fstype": "ext4", "csi-bridge.io/direct-volume": "true"}


@pytest.fixture
def node(cluster: Cluster) -> KubeletNode:
    found = cluster.node("k1")
    assert isinstance(found, KubeletNode)
    return found


@pytest.fixture
def driver(cluster: Cluster) -> Driver:
    return cluster.driver(DIRECT)


@pytest.fixture
def claims(tenant: Tenant, driver: Driver) -> Claims:
    tenant.create_own(KATA)
    made = tenant.own_class(driver, allowVolumeExpansion=True, parameters=PARAMETERS)
    made.ask("data", size_bytes=64 * MIB)
    made.wait_bound("data")
    return made


def start(tenant: Tenant, name: str, **spec: Any) -> Object:
    return tenant.start_pod(name, "k1", "data", runtimeClassName="kata", **spec)


def _container(**mount: str) -> Object:
    mounts = [{"name": "data", "mountPath": "/data", **mount}]
    return {"name": "main", "image": IMAGE, "imagePullPolicy": "Never", "volumeMounts": mounts}


def volume_of(claims: Claims) -> str:
    return str(claims.wait_bound("data")["metadata"]["name"])


@contextmanager
def running(node: KubeletNode, pod: Object, volume: str) -> Iterator[tuple[Path, FakeShim]]:
    """A guest that runs, with its shim."""
    with node.guest(pod, volume) as inside, FakeShim(node.run_dir / "vc/sbs", SANDBOX) as shim:
        yield inside, shim


def calls_of(driver: Driver, handle: str) -> list[tuple[str, str]]:
    methods = ("NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume")
    found = [call for method in methods for call in driver.pinned.calls(method) if call.fields["volume_id"] == handle]
    return [(call.method, str(call.code)) for call in sorted(found, key=lambda call: call.start)]


def test_a_guest_keeps_its_volume_while_the_kubelet_and_the_agent_restart_and_the_next_one_finds_its_data(
    node: KubeletNode, driver: Driver, tenant: Tenant, claims: Claims
) -> None:
    volume = claims.wait_bound("data")
    handle = volume["spec"]["csi"]["volumeHandle"]
    assert volume["spec"]["csi"]["volumeAttributes"]["csi-bridge.io/direct-volume"] == "true"
    name = volume_of(claims)
    pod = start(tenant, "web", securityContext={"fsGroup": 4321})
    with running(node, pod, name) as (inside, _shim):
        info = mount_info(node.run_dir, node.guest(pod, name).target)
        assert (info["fstype"], info["metadata"]) == (
            "ext4", {"fsGroup": "4321", "fsGroupChangePolicy": "Always"})  # fmt: skip
        node.seen(inside / "file").write_text("written by the guest")
        with pytest.raises(AssertionError, match="Read-only file system"):
            node.write(pod, "data/file", "the runtime has overlooked the volume")
        assert node.has_logged("Lchown failed")  # the guard takes no group, and the kubelet goes on
        before = calls_of(driver, handle)
        assert before == [("NodeStageVolume", "OK"), ("NodePublishVolume", "OK")]
        node.agent.kill()
        node.restart_agent()
        node.restart_kubelet()
        node.wait_mounted_again(name)
        again = tenant.wait_running("web")
        assert again["status"]["containerStatuses"][0]["restartCount"] == 0
        assert calls_of(driver, handle) == before
        assert mount_info(node.run_dir, node.guest(pod, name).target) == info
    tenant.delete_pod("web")
    assert list((node.run_dir / "kata-containers/shared/direct-volumes").iterdir()) == []
    undone = [("NodeUnpublishVolume", "OK"), ("NodeUnstageVolume", "OK")]
    wait_for(lambda: calls_of(driver, handle) == [*before, *undone], what="the end at the driver", timeout_s=60)
    second = start(tenant, "again")
    with running(node, second, name) as (inside, _shim):
        assert node.seen(inside / "file").read_text() == "written by the guest"


def test_the_kubelet_gets_the_usage_from_the_shim(node: KubeletNode, tenant: Tenant, claims: Claims) -> None:
    name = volume_of(claims)
    pod = start(tenant, "web")
    with running(node, pod, name) as (_inside, shim):
        usage = [{"available": 900, "total": 1000, "used": 100, "unit": 1}, {"available": 7, "total": 9, "used": 2,
                                                                            "unit": 2}]  # fmt: skip
        device = mount_info(node.run_dir, node.guest(pod, name).target)["device"]
        shim.usage = {device: {"usage": usage}}
        told = "NodeGetVolumeStats"
        wait_for(lambda: node.answered(DIRECT.name, told), what=told, timeout_s=90, instead=node.tell)
    # The kubelet's own page of its usage needs more of this machine than it has.
    assert shim.asked[0] == ("GET", f"http://shim/direct-volume/stats?path={quote(device, safe='')}")


def test_a_claim_that_grows_under_its_pod_waits_for_the_next_pod(
    node: KubeletNode, tenant: Tenant, claims: Claims
) -> None:
    name = volume_of(claims)
    pod = start(tenant, "web")
    with running(node, pod, name):
        claims.grow("data", 192 * MIB)
        why = "has grown, and its file system has not"
        wait_for(
            lambda: why in str(_claim(tenant)["status"]), what=why, timeout_s=120, instead=lambda: tenant.tell("web")
        )
        assert _claim(tenant)["status"]["capacity"]["storage"] == "64Mi"
    tenant.delete_pod("web")
    second = start(tenant, "again")
    tenant.wait_size("data", 192 * MIB)
    with running(node, second, name) as (inside, _shim):
        found = os.statvfs(node.seen(inside))
        assert found.f_blocks * found.f_frsize > 150 * MIB


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({}, "the pod has no runtimeClassName"),
        ({"runtimeClassName": "kata", "containers": [_container(subPath="part")]}, "a container uses a subPath of it"),
    ],
    ids=["without-kata", "sub-path"],
)
def test_a_pod_that_cannot_have_it_hears_why_and_the_driver_gets_no_call(
    driver: Driver, tenant: Tenant, claims: Claims, spec: dict[str, Any], why: str
) -> None:
    handle = claims.wait_bound("data")["spec"]["csi"]["volumeHandle"]
    tenant.start_pod("web", "k1", "data", wait=False, **spec)

    def events() -> str:
        return "\n".join(tenant.api.events("web", namespace=tenant.namespace))

    wait_for(lambda: why in events(), what=why, timeout_s=120, instead=lambda: tenant.tell("web"))
    tenant.delete_pod("web")
    assert calls_of(driver, handle) == []


def _claim(tenant: Tenant) -> Object:
    found = tenant.api.get("PersistentVolumeClaim", "data", namespace=tenant.namespace)
    assert found is not None
    return found
