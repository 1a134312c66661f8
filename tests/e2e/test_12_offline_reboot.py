"""A node without a kubelet is offline: its pods have their volumes all the same, after a reboot too.

When the link is back, the node does what was decided in the cloud meanwhile.
"""

import pytest

from tests.e2e.cluster import Cluster
from tests.e2e.tenant import Tenant
from tests.e2e.vendors import NFS, OWN, SAN, Vendor
from tests.kit.waiting import wait_for


@pytest.mark.parametrize("vendor", [SAN, NFS], ids=lambda it: it.name)
def test_a_pod_restarts_with_its_volume_and_later_goes_with_what_was_decided_meanwhile(
    cluster: Cluster, tenant: Tenant, vendor: Vendor
) -> None:
    driver, node = cluster.driver(vendor), cluster.own
    for claim in ("stays", "goes", "comes"):
        tenant.claim(claim, driver)
    for claim in ("stays", "goes"):
        tenant.start_pod(claim, OWN, claim)
        tenant.write(claim, f"{claim}/file", claim)

    node.cut()
    node.power_off(loops_of=driver.state)
    assert node.machine.is_on is False
    node.boot()

    # Without any word from the cloud.
    for claim in ("stays", "goes"):
        tenant.wait_running(claim)
        assert tenant.read(claim, f"{claim}/file") == claim
    tenant.write("stays", "stays/file", "written offline")

    # In the cloud, of which the node hears nothing.
    tenant.api.delete("Pod", "goes", namespace=tenant.namespace)
    tenant.start_pod("comes", OWN, "comes", wait=False)
    assert tenant.read("goes", "goes/file") == "goes"

    node.heal()
    tenant.wait_running("comes")
    tenant.write("comes", "comes/file", "hello")
    assert tenant.read("comes", "comes/file") == "hello"
    tenant.wait_gone("goes")
    wait_for(
        lambda: not any(it["pod"] == "goes" for it in node.volumes()),
        what="end of the deleted pod's volume",
        instead=node.tell,
    )
    assert tenant.read("stays", "stays/file") == "written offline"
