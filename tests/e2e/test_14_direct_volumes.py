"""A pod whose runtime mounts its volume in its guest: from claim to data, through an expansion and a second pod."""

import os
from pathlib import Path

from tests.e2e.cluster import Cluster
from tests.e2e.own_node import OwnNode
from tests.e2e.tenant import MIB, Tenant
from tests.e2e.vendors import DISK, OWN
from tests.kit.guest import mount_info
from tests.kit.peers.kube_api import Object
from tests.kit.waiting import wait_for

ASKS = {"csi-bridge.io/direct-volumes": "data"}


def size_bytes(node: OwnNode, inside: Path) -> int:
    found = os.statvfs(node.seen(inside))
    return found.f_blocks * found.f_frsize


def test_a_guest_gets_its_volume_through_an_expansion_and_a_second_pod(cluster: Cluster, tenant: Tenant) -> None:
    driver, node = cluster.driver(DISK), cluster.own
    tenant.create_own({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "kata"},
                       "handler": "kata"})  # fmt: skip
    claims = tenant.own_class(driver, allowVolumeExpansion=True, parameters={"csi.storage.k8s.io/fstype": "ext4"})
    claims.ask("data", size_bytes=64 * MIB)
    handle = claims.wait_bound("data")["spec"]["csi"]["volumeHandle"]

    pod = tenant.start_pod("web", OWN, "data", annotations=ASKS, runtimeClassName="kata")
    with node.guest(pod, "data") as inside:
        node.seen(inside / "file").write_text("written by the guest")
        assert size_bytes(node, inside) < 64 * MIB
        claims.grow("data", 192 * MIB)
        wait_for(lambda: _waits_for_its_node(tenant), what="claim that waits for its node", timeout_s=120)
        assert size_bytes(node, inside) < 64 * MIB
    (shown,) = (it for it in node.volumes() if it["uid"] == pod["metadata"]["uid"])
    assert (shown["state"], shown["runtime"]) == ("published", "kata, go")
    assert mount_info(node.run_dir, Path(shown["path"]))["fstype"] == "ext4"

    tenant.delete_pod("web")
    assert list((node.run_dir / "kata-containers/shared/direct-volumes").iterdir()) == []
    again = tenant.start_pod("again", OWN, "data", annotations=ASKS, runtimeClassName="kata")
    tenant.wait_size("data", 192 * MIB)
    with node.guest(again, "data") as inside:
        assert node.seen(inside / "file").read_text() == "written by the guest"
        assert size_bytes(node, inside) > 150 * MIB
    published = [call for call in driver.pinned.calls("NodePublishVolume") if call.fields["volume_id"] == handle]
    assert [call.code for call in published] == ["OK", "OK"]


def _waits_for_its_node(tenant: Tenant) -> Object | None:
    claim = tenant.api.get("PersistentVolumeClaim", "data", namespace=tenant.namespace)
    assert claim is not None
    events = tenant.api.all("Event", namespace=tenant.namespace)
    told = any(it["reason"] == "FileSystemResizeRequired" for it in events)
    return claim if told and claim["status"].get("allocatedResourceStatuses") else None
