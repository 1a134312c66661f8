"""A claim is bound to a volume that is made for it at the edge, and what a pod writes to it stays."""

import pytest

from tests.e2e.cluster import Cluster
from tests.e2e.tenant import Tenant
from tests.e2e.vendors import NFS, OWN, SAN, Vendor
from tests.kit.waiting import wait_for


@pytest.mark.parametrize("node", ["k1", OWN])
@pytest.mark.parametrize("vendor", [SAN, NFS], ids=lambda it: it.name)
def test_data_outlives_the_pod_and_goes_with_the_claim(
    cluster: Cluster, tenant: Tenant, vendor: Vendor, node: str
) -> None:
    driver = cluster.driver(vendor)
    before = driver.directories()

    volume = tenant.claim("data", driver)
    tenant.start_pod("web", node, "data")
    tenant.write("web", "data/file", "hello")
    assert tenant.read("web", "data/file") == "hello"
    assert set(driver.directories()).difference(before) == {volume["spec"]["csi"]["volumeHandle"]}

    tenant.delete_pod("web")
    tenant.start_pod("web", node, "data")
    assert tenant.read("web", "data/file") == "hello"

    tenant.delete_pod("web")
    tenant.let_go("data", driver)
    wait_for(lambda: driver.directories() == before, what="end of the volume at the edge", instead=driver.directories)
