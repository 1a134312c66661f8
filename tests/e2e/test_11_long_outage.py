"""A node is offline for longer than the sidecars' longest pause. Then all converges, and nobody starts anything."""

from tests.e2e.cluster import Cluster
from tests.e2e.tenant import LARGE_BYTES, MIB, SMALL_BYTES, Tenant
from tests.e2e.vendors import SAN
from tests.kit.peers.deployment import SIDECARS
from tests.kit.waiting import let_pass

_OUTAGE_S = 45.0  # the sidecars' pauses grow to 10 s here (`deployment`), the agent's to 30 s

_CONVERGED_LIMIT_S = 120.0

_MIDDLE_BYTES = 384 * MIB


def test_whatever_was_asked_for_meanwhile_is_done_afterwards(cluster: Cluster, tenant: Tenant) -> None:
    driver, node, api = cluster.driver(SAN), cluster.node("k1"), tenant.api
    before = set(driver.directories())
    classed = tenant.growing(driver)
    classed.ask("grows", size_bytes=SMALL_BYTES)
    classed.wait_bound("grows")
    tenant.claim("kept", driver)
    goes = tenant.claim("goes", driver)
    tenant.start_pod("web", "k2", "grows")
    # Every sidecar calls once: one whose driver was started again finds out at its next call, and ends.
    classed.grow("grows", _MIDDLE_BYTES)
    tenant.wait_size("grows", _MIDDLE_BYTES)
    tenant.snapshot("yesterday", driver, claim="kept")
    sidecars = {name: driver.keeper.pid(name) for name in SIDECARS}

    node.cut()
    tenant.claims(driver).ask("new", size_bytes=64 * MIB)
    classed.grow("grows", LARGE_BYTES)
    api.delete("PersistentVolumeClaim", "goes", namespace=tenant.namespace)
    tenant.start_pod("late", "k2", "kept", wait=False)
    let_pass(_OUTAGE_S)
    assert tenant.claims(driver).phase("new") == "Pending"
    node.heal()

    new = tenant.claims(driver).wait_bound("new", timeout_s=_CONVERGED_LIMIT_S)
    api.wait_gone("PersistentVolume", goes["metadata"]["name"], timeout_s=_CONVERGED_LIMIT_S)
    tenant.wait_running("late", timeout_s=_CONVERGED_LIMIT_S)
    tenant.write("late", "kept/file", "hello")
    assert tenant.read("late", "kept/file") == "hello"
    tenant.wait_size("grows", LARGE_BYTES)
    assert tenant.size_bytes("web", "grows") > _MIDDLE_BYTES
    made = set(driver.directories()).difference(before)
    assert new["spec"]["csi"]["volumeHandle"] in made
    assert goes["spec"]["csi"]["volumeHandle"] not in made
    assert len(made) == len(["grows", "kept", "new"])
    assert {name: driver.keeper.pid(name) for name in SIDECARS} == sidecars
