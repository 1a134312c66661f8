"""Each node has storage of its own: a volume is made where its pod was scheduled, and everything later goes there."""

import pytest

from tests.e2e.cluster import Cluster
from tests.e2e.tenant import LARGE_BYTES, MIB, SMALL_BYTES, Tenant
from tests.e2e.vendors import LVM, NODES, OWN, PAST_THE_RELAY, SSD, Vendor
from tests.kit.peers.kube_api import Object
from tests.kit.peers.testdriver import RunningDriver
from tests.kit.waiting import wait_for

_KEYS = {SSD.name: f"topology.{SSD.name}/node", LVM.name: "csi-bridge.io/node"}
"""The topology key of a driver of its own, and of the bridge's for one without."""

_TOLD_LIMIT_S = 60.0

vendors = pytest.mark.parametrize("vendor", [SSD, LVM], ids=lambda it: it.name)
nodes = pytest.mark.parametrize("node", NODES)


@vendors
@nodes
def test_a_volume_is_made_where_its_pod_is_and_the_pod_comes_back_to_it(
    cluster: Cluster, tenant: Tenant, vendor: Vendor, node: str
) -> None:
    driver = cluster.driver(vendor)
    claims = tenant.claims(driver)
    claims.ask("data", size_bytes=64 * MIB)
    assert claims.phase("data") == "Pending"

    tenant.start_pod("web", node, "data")
    volume = claims.wait_bound("data")
    handle = volume["spec"]["csi"]["volumeHandle"]
    assert driver.places(handle) == [node]
    assert _affinity(volume) == [{"key": _KEYS[vendor.name], "operator": "In", "values": [node]}]
    tenant.write("web", "data/file", "hello")

    tenant.delete_pod("web")
    pod = tenant.start_pod("web", None, "data")
    assert pod["spec"]["nodeName"] == node
    assert tenant.read("web", "data/file") == "hello"

    tenant.delete_pod("web")
    claims.let_go("data")
    wait_for(lambda: not driver.places(handle), what="end of the volume at the edge")


@vendors
def test_a_restored_volume_is_on_the_node_of_its_snapshot_and_nowhere_else(
    cluster: Cluster, tenant: Tenant, vendor: Vendor
) -> None:
    driver = cluster.driver(vendor)
    claims = tenant.claims(driver)
    claims.ask("data", size_bytes=64 * MIB)
    tenant.start_pod("web", "k2", "data")
    tenant.write("web", "data/file", "before")
    tenant.snapshot("yesterday", driver, claim="data")
    tenant.write("web", "data/file", "after")
    source = {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "yesterday"}
    claims.ask("restored", size_bytes=64 * MIB, dataSource=source)

    tenant.start_pod("elsewhere", OWN, "restored", wait=False)
    wait_for(
        lambda: any("is on edge node k2" in it for it in _events(tenant, "restored")),
        what="word of the node that has the snapshot",
        timeout_s=_TOLD_LIMIT_S,
        instead=lambda: tenant.tell("elsewhere"),
    )
    assert claims.phase("restored") == "Pending"
    tenant.api.delete("Pod", "elsewhere", namespace=tenant.namespace)
    tenant.wait_gone("elsewhere")

    tenant.start_pod("again", "k2", "restored")
    assert driver.places(claims.wait_bound("restored")["spec"]["csi"]["volumeHandle"]) == ["k2"]
    assert tenant.read("again", "restored/file") == "before"
    assert tenant.read("web", "data/file") == "after"


def test_without_the_relay_a_driver_without_a_topology_is_refused_with_the_reason(
    cluster: Cluster, tenant: Tenant
) -> None:
    driver = cluster.driver(PAST_THE_RELAY)
    tenant.claims(driver).ask("data", size_bytes=64 * MIB)
    tenant.start_pod("web", "k1", "data", wait=False)

    wait_for(
        lambda: any("no topology key found for node k1" in it for it in _events(tenant, "data")),
        what="the refusal",
        timeout_s=_TOLD_LIMIT_S,
        instead=lambda: tenant.tell("web"),
    )
    (problem,) = (it for it in cluster.node("k1").agent.status()["problems"] if driver.name in it)
    assert "give its node-driver-registrar --kubelet-registration-path=" in problem


@pytest.mark.parametrize("node", ["k2", OWN])
def test_a_volume_grows_on_its_node(cluster: Cluster, tenant: Tenant, node: str) -> None:
    driver = cluster.driver(LVM)
    claims = tenant.growing(driver)
    claims.ask("data", size_bytes=SMALL_BYTES)
    tenant.start_pod("web", node, "data")
    tenant.write("web", "data/file", "hello")
    handle = claims.wait_bound("data")["spec"]["csi"]["volumeHandle"]

    claims.grow("data", LARGE_BYTES)
    tenant.wait_size("data", LARGE_BYTES)
    assert SMALL_BYTES < tenant.size_bytes("web", "data") <= LARGE_BYTES
    assert tenant.read("web", "data/file") == "hello"
    for method in ("ControllerExpandVolume", "NodeExpandVolume"):
        asked = {name for name, it in driver.on.items() if _asked(it, method, handle)}
        assert asked == {node}


@pytest.mark.one_hub
@vendors
def test_a_hub_that_lost_its_ledger_finds_volumes_by_their_affinity_and_snapshots_by_the_nodes_lists(
    cluster: Cluster, tenant: Tenant, vendor: Vendor
) -> None:
    driver = cluster.driver(vendor)
    claims = tenant.claims(driver)
    handles = {}
    for node in NODES:
        claims.ask(node, size_bytes=64 * MIB)
        tenant.start_pod(node, node, node)
        handles[node] = claims.wait_bound(node)["spec"]["csi"]["volumeHandle"]
        tenant.write(node, f"{node}/file", node)
    old = tenant.snapshot("old", driver, claim="k2")["status"]["boundVolumeSnapshotContentName"]
    lists = len(cluster.bridge.hub.logged("has listed"))

    cluster.bridge.hub.stop()
    placements = [it["metadata"]["name"] for it in tenant.api.all("VolumePlacement")]
    assert placements
    for name in placements:
        tenant.api.delete("VolumePlacement", name)
    cluster.bridge.hub.start()

    for node in NODES:
        tenant.snapshot(f"of-{node}", driver, claim=node)
        snapshots = driver.on[node].calls("CreateSnapshot")
        assert any(call.fields["source_volume_id"] == handles[node] for call in snapshots)
        tenant.delete_pod(node)
        tenant.start_pod(node, None, node)
        assert tenant.read(node, f"{node}/file") == node
        tenant.delete_pod(node)
        claims.let_go(node)
        assert driver.places(handles[node]) == []
    assert len(cluster.bridge.hub.logged("has listed")) == lists

    tenant.api.delete("VolumeSnapshot", "old", namespace=tenant.namespace)
    tenant.api.wait_gone("VolumeSnapshotContent", old, timeout_s=_TOLD_LIMIT_S)
    claims.ask("new", size_bytes=64 * MIB)
    tenant.start_pod("new", "k2", "new")
    assert driver.places(claims.wait_bound("new")["spec"]["csi"]["volumeHandle"]) == ["k2"]


def _events(tenant: Tenant, claim: str) -> list[str]:
    return tenant.api.events(claim, namespace=tenant.namespace)


def _affinity(volume: Object) -> list[Object]:
    (term,) = volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
    found: list[Object] = term["matchExpressions"]
    return found


def _asked(process: RunningDriver, method: str, handle: str) -> bool:
    return any(call.fields["volume_id"] == handle for call in process.calls(method))
