"""A volume that exists at the edge is given to a pod by a PersistentVolume that somebody wrote."""

import pytest

from tests.e2e.cluster import Cluster
from tests.e2e.tenant import Tenant
from tests.e2e.vendors import NFS, OWN, SAN, Vendor


@pytest.mark.parametrize("node", ["k1", OWN])
def test_a_pod_reads_what_was_in_the_volume_before_and_leaves_what_it_wrote(
    cluster: Cluster, tenant: Tenant, node: str
) -> None:
    driver = cluster.driver(NFS)
    handle = driver.make_volume(f"{tenant.namespace}-old")
    directory = driver.state / "volumes" / handle / "data"
    (directory / "old").write_text("from long ago")

    tenant.static_claim("data", driver, handle)
    tenant.start_pod("web", node, "data")
    assert tenant.read("web", "data/old") == "from long ago"
    tenant.write("web", "data/new", "hello")

    tenant.delete_pod("web")
    tenant.api.delete("PersistentVolumeClaim", "data", namespace=tenant.namespace)
    tenant.api.wait_gone("PersistentVolumeClaim", "data", namespace=tenant.namespace)
    assert (directory / "new").read_text() == "hello"


@pytest.mark.parametrize("vendor", [SAN, NFS], ids=lambda it: it.name)
def test_pod_after_pod_on_both_kinds_of_node_finds_what_the_one_before_wrote(
    cluster: Cluster, tenant: Tenant, vendor: Vendor
) -> None:
    driver = cluster.driver(vendor)
    tenant.static_claim("data", driver, driver.make_volume(f"{tenant.namespace}-moving"))

    for number, node in enumerate(["k1", OWN, "k2"]):
        tenant.start_pod("web", node, "data")
        tenant.write("web", f"data/{number}", node)
        assert tenant.read("web", "data/0") == "k1"
        tenant.delete_pod("web")
