"""Volumes of every kind: raw block, and on several nodes at once. test_upstream.py has those of one pod alone."""

import pytest

from tests.e2e.cluster import Cluster
from tests.e2e.tenant import Tenant
from tests.e2e.vendors import NFS, NODES, OWN, SAN


@pytest.mark.parametrize(("node", "other"), [("k1", OWN), (OWN, "k1")])
def test_a_block_volume_is_a_device_whose_content_stays(
    cluster: Cluster, tenant: Tenant, node: str, other: str
) -> None:
    driver = cluster.driver(SAN)
    tenant.claim("disk", driver, volume_mode="Block")
    tenant.start_pod("web", node, devices=["disk"])
    tenant.write_device("web", "disk", "hello")
    assert tenant.read_device("web", "disk", 5) == "hello"

    tenant.delete_pod("web")
    tenant.start_pod("web", other, devices=["disk"])
    assert tenant.read_device("web", "disk", 5) == "hello"


def test_pods_on_all_nodes_share_a_volume(cluster: Cluster, tenant: Tenant) -> None:
    driver = cluster.driver(NFS)
    tenant.claim("data", driver, access_mode="ReadWriteMany")
    for node in NODES:
        tenant.start_pod(node, node, "data")
        tenant.write(node, f"data/{node}", f"hello from {node}")

    for reader in NODES:
        for writer in NODES:
            assert tenant.read(reader, f"data/{writer}") == f"hello from {writer}"
    tenant.delete_pod("k1")
    assert tenant.read("k2", "data/k1") == "hello from k1"
