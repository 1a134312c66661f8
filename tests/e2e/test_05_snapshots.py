"""Snapshots by the stock csi-snapshotter and snapshot-controller, volumes restored from them, and clones."""

import pytest

from tests.e2e.cluster import Cluster
from tests.e2e.tenant import Tenant
from tests.e2e.vendors import NFS, OWN, SAN, Vendor
from tests.kit.waiting import wait_for


@pytest.mark.parametrize(("vendor", "node"), [(SAN, "k1"), (NFS, OWN)], ids=["san.csi-k1", "nfs.csi-o1"])
def test_a_restored_volume_and_a_clone_hold_what_was_there_before_and_go_their_own_ways(
    cluster: Cluster, tenant: Tenant, vendor: Vendor, node: str
) -> None:
    driver = cluster.driver(vendor)
    tenant.claim("data", driver)
    tenant.start_pod("web", node, "data")
    tenant.write("web", "data/file", "before")
    snapshot = tenant.snapshot("yesterday", driver, claim="data")
    tenant.claim("clone", driver, dataSource={"kind": "PersistentVolumeClaim", "name": "data"})
    tenant.write("web", "data/file", "after")

    source = {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "yesterday"}
    tenant.claim("restored", driver, dataSource=source)
    tenant.start_pod("again", node, "restored", "clone")
    assert [tenant.read("again", f"{volume}/file") for volume in ("restored", "clone")] == ["before"] * 2
    tenant.write("again", "clone/file", "its own")
    assert tenant.read("web", "data/file") == "after"

    tenant.delete_pod("web")
    tenant.let_go("data", driver)
    assert tenant.read("again", "restored/file") == "before"
    tenant.api.delete("VolumeSnapshot", "yesterday", namespace=tenant.namespace)
    tenant.api.wait_gone("VolumeSnapshotContent", snapshot["status"]["boundVolumeSnapshotContentName"])
    wait_for(
        lambda: list((driver.state / "snapshots").iterdir()) == [],
        what="end of the snapshot at the edge",
        instead=lambda: list((driver.state / "snapshots").iterdir()),
    )
