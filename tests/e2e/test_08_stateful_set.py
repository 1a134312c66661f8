"""A StatefulSet whose pods are on three nodes, each with a volume of its own node's, is rolled."""

import pytest

from tests.e2e.cluster import Cluster
from tests.e2e.tenant import Tenant
from tests.e2e.vendors import LVM, NODES, SSD, Vendor
from tests.kit.peers.kube_api import Object


@pytest.mark.parametrize("vendor", [SSD, LVM], ids=lambda it: it.name)
def test_each_pod_keeps_its_node_and_its_data_when_all_are_made_anew(
    cluster: Cluster, tenant: Tenant, vendor: Vendor
) -> None:
    driver = cluster.driver(vendor)
    tenant.start_set("web", driver, replicas=len(NODES))
    before = _pods(tenant)
    assert sorted(_node(pod) for pod in before.values()) == sorted(NODES)
    for name, pod in before.items():
        tenant.write(name, "data/file", name)
        handle = tenant.claims(driver).wait_bound(f"data-{name}")["spec"]["csi"]["volumeHandle"]
        assert driver.places(handle) == [_node(pod)]

    tenant.restart_set("web")

    after = _pods(tenant)
    for name, pod in before.items():
        assert after[name]["metadata"]["uid"] != pod["metadata"]["uid"]
        assert _node(after[name]) == _node(pod)
        assert tenant.read(name, "data/file") == name


def _pods(tenant: Tenant) -> dict[str, Object]:
    return {it["metadata"]["name"]: it for it in tenant.api.all("Pod", namespace=tenant.namespace)}


def _node(pod: Object) -> str:
    return str(pod["spec"]["nodeName"])
