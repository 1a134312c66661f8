"""The link of a node is cut before, during and after each step of a volume's life.

Before: the step is asked for while the link is down. During: it is cut while the vendor works. After: the vendor has
answered, and the answer is lost on the link. Each time there is one volume afterwards, in the right state, and events
have told the cause.
"""

from collections.abc import Callable

import pytest

from tests.e2e.cluster import Cluster, Driver
from tests.e2e.node import Node
from tests.e2e.tenant import LARGE_BYTES, MIB, SMALL_BYTES, Tenant
from tests.e2e.vendors import OWN, SAN
from tests.kit.peers.kube_api import Object
from tests.kit.peers.testdriver import RunningDriver
from tests.kit.waiting import let_pass, wait_for

_ALONE_S = 2.0
_DONE_LIMIT_S = 120.0  # a dial comes at least every 30 s, the sidecars' retry every 10 s

_SLOWLY = "delay:8s"
"""A busy machine stalls for less, between a call's beginning and the blow to its link. Hub and agent hear nothing for
10 s at least before they take a stalled link for dead."""

moments = pytest.mark.parametrize("moment", ["before", "during", "after"])


def strike(
    moment: str, *, node: Node, vendor: RunningDriver, method: str, act: Callable[[], object], told: Callable[[], bool]
) -> None:
    """Act, with the link cut at a moment of the call that this causes, and heal the link when the cause was told.

    Args:
        moment: before, during or after.
        node: whose link.
        vendor: who serves the call.
        method: the call's.
        act: causes it.
        told: whether somebody has been told of the cause.
    """
    calls = len(vendor.calls(method))

    def begun() -> bool:
        return len(vendor.calls(method)) > calls

    def ended() -> bool:
        return begun() and vendor.calls(method)[-1].end is not None

    try:
        if moment == "before":
            node.cut()
            act()
        else:
            vendor.set_faults(f"{method}={_SLOWLY}")
            act()
            wait_for(begun, what=f"{method} at {node.name}", timeout_s=_DONE_LIMIT_S, instead=node.tell)
            if moment == "after":
                node.stall()
                wait_for(ended, what=f"end of {method} at {node.name}", instead=node.tell)
            node.cut()
        wait_for(told, what=f"word of the cause, {moment} {method}", timeout_s=_DONE_LIMIT_S, instead=node.tell)
    finally:
        vendor.set_faults()
        node.heal()


def names_the_node(tenant: Tenant, name: str, node: str, *, namespaced: bool = True) -> Callable[[], bool]:
    """Whether an event about an object names the edge node."""
    namespace = tenant.namespace if namespaced else None

    def look() -> bool:
        return any(f"edge node {node}" in event for event in tenant.api.events(name, namespace=namespace))

    return look


def nobody_is() -> bool:
    """True a little later: nobody asks the node, which works by itself, or knows of nothing to do."""
    let_pass(_ALONE_S)
    return True


@pytest.fixture
def driver(cluster: Cluster) -> Driver:
    return cluster.driver(SAN)


@moments
def test_create(cluster: Cluster, tenant: Tenant, driver: Driver, moment: str) -> None:
    before = driver.directories()
    claims = tenant.claims(driver)

    strike(
        moment,
        node=cluster.node("k1"),
        vendor=driver.pinned,
        method="CreateVolume",
        act=lambda: claims.ask("data", size_bytes=64 * MIB),
        told=names_the_node(tenant, "data", "k1"),
    )

    volume = claims.wait_bound("data", timeout_s=_DONE_LIMIT_S)
    assert set(driver.directories()).difference(before) == {volume["spec"]["csi"]["volumeHandle"]}
    tenant.start_pod("web", "k1", "data")
    tenant.write("web", "data/file", "hello")
    assert tenant.read("web", "data/file") == "hello"


@moments
def test_attach(cluster: Cluster, tenant: Tenant, driver: Driver, moment: str) -> None:
    volume = tenant.claim("data", driver)

    strike(
        moment,
        node=cluster.node("k1"),
        vendor=driver.pinned,
        method="ControllerPublishVolume",
        act=lambda: tenant.start_pod("web", "k2", "data", wait=False),
        told=names_the_node(tenant, "web", "k1"),
    )

    tenant.wait_running("web", timeout_s=_DONE_LIMIT_S)
    tenant.write("web", "data/file", "hello")
    assert tenant.read("web", "data/file") == "hello"
    assert [it["spec"]["nodeName"] for it in tenant.attachments(volume)] == ["k2"]


@moments
def test_stage(cluster: Cluster, tenant: Tenant, driver: Driver, moment: str) -> None:
    node, vendor = cluster.node(OWN), driver.on[OWN]
    handle = tenant.claim("data", driver)["spec"]["csi"]["volumeHandle"]

    strike(
        moment,
        node=node,
        vendor=vendor,
        method="NodeStageVolume",
        act=lambda: tenant.start_pod("web", OWN, "data", wait=False),
        told=nobody_is,
    )

    tenant.wait_running("web", timeout_s=_DONE_LIMIT_S)
    tenant.write("web", "data/file", "hello")
    assert tenant.read("web", "data/file") == "hello"
    assert [call.code for call in vendor.calls("NodeStageVolume") if call.fields["volume_id"] == handle] == ["OK"]
    tenant.api.wait_until(
        "Pod", "web", has_volumes, what="with its volumes", namespace=tenant.namespace, timeout_s=_DONE_LIMIT_S
    )


@moments
@pytest.mark.parametrize("part", ["controller", "node"])
def test_expand(cluster: Cluster, tenant: Tenant, driver: Driver, part: str, moment: str) -> None:
    claims = tenant.growing(driver)
    claims.ask("data", size_bytes=SMALL_BYTES)
    handle = claims.wait_bound("data")["spec"]["csi"]["volumeHandle"]
    tenant.start_pod("web", OWN, "data")
    tenant.write("web", "data/file", "hello")

    where = {"controller": "k1", "node": OWN}[part]
    strike(
        moment,
        node=cluster.node(where),
        vendor=driver.on[where],
        method={"controller": "ControllerExpandVolume", "node": "NodeExpandVolume"}[part],
        act=lambda: claims.grow("data", LARGE_BYTES),
        told=names_the_node(tenant, "data", "k1") if part == "controller" else nobody_is,
    )

    tenant.wait_size("data", LARGE_BYTES)
    assert SMALL_BYTES < tenant.size_bytes("web", "data") <= LARGE_BYTES
    assert tenant.read("web", "data/file") == "hello"
    assert handle in driver.directories()


@moments
def test_delete(cluster: Cluster, tenant: Tenant, driver: Driver, moment: str) -> None:
    before = driver.directories()
    volume = tenant.claim("data", driver)["metadata"]["name"]

    strike(
        moment,
        node=cluster.node("k1"),
        vendor=driver.pinned,
        method="DeleteVolume",
        act=lambda: tenant.api.delete("PersistentVolumeClaim", "data", namespace=tenant.namespace),
        told=names_the_node(tenant, volume, "k1", namespaced=False),
    )

    tenant.api.wait_gone("PersistentVolume", volume, timeout_s=_DONE_LIMIT_S)
    assert driver.directories() == before


def has_volumes(pod: Object) -> bool:
    conditions = pod["status"].get("conditions", ())
    return any((it["type"], it["status"]) == ("csi-bridge.io/VolumesMounted", "True") for it in conditions)
