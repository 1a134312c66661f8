"""A claim that asks for more gets it while its pod runs: the sidecar expands the volume, the node its file system."""

import pytest

from tests.e2e.cluster import Cluster
from tests.e2e.tenant import LARGE_BYTES, SMALL_BYTES, Tenant
from tests.e2e.vendors import OWN, SAN


@pytest.mark.parametrize("node", ["k1", OWN])
def test_claim_and_file_system_grow_under_a_running_pod(cluster: Cluster, tenant: Tenant, node: str) -> None:
    driver = cluster.driver(SAN)
    claims = tenant.growing(driver)
    claims.ask("data", size_bytes=SMALL_BYTES)
    handle = claims.wait_bound("data")["spec"]["csi"]["volumeHandle"]
    tenant.start_pod("web", node, "data")
    tenant.write("web", "data/file", "hello")
    small = tenant.size_bytes("web", "data")
    assert small <= SMALL_BYTES

    claims.grow("data", LARGE_BYTES)
    done = tenant.wait_size("data", LARGE_BYTES)
    assert "allocatedResourceStatuses" not in done["status"]
    assert SMALL_BYTES < tenant.size_bytes("web", "data") <= LARGE_BYTES
    assert tenant.read("web", "data/file") == "hello"
    assert {
        where: [call.code for call in process.calls("NodeExpandVolume") if call.fields["volume_id"] == handle]
        for where, process in driver.on.items()
    } == {"k1": [], "k2": [], OWN: [], node: ["OK"]}
