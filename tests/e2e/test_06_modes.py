"""Volumes of every kind: raw block, on several nodes at once, of one pod alone, and inline in a pod."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.e2e.vendors import NFS, NODES, OWN, SAN
from tests.kit.waiting import wait_for

if TYPE_CHECKING:
    from tests.e2e.cluster import Cluster
    from tests.e2e.tenant import Tenant


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


def test_a_volume_of_one_pod_alone_goes_to_the_next_pod_when_the_first_is_gone(
    cluster: Cluster, tenant: Tenant
) -> None:
    driver = cluster.driver(SAN)
    tenant.claim("data", driver, access_mode="ReadWriteOncePod")
    tenant.start_pod("first", "k1", "data")
    tenant.write("first", "data/file", "hello")
    tenant.start_pod("second", "k1", "data", wait=False)
    wait_for(
        lambda: any("ReadWriteOncePod" in it for it in tenant.api.events("second", namespace=tenant.namespace)),
        what="word of the volume that another pod has",
        instead=lambda: tenant.tell("second"),
    )

    tenant.delete_pod("first")
    tenant.wait_running("second")
    assert tenant.read("second", "data/file") == "hello"


@pytest.mark.parametrize("node", ["k1", OWN])
def test_an_inline_volume_comes_and_goes_with_its_pod(cluster: Cluster, tenant: Tenant, node: str) -> None:
    driver = cluster.driver(NFS)
    before = driver.directories()
    inline = {"scratch": {"driver": driver.name, "volumeAttributes": {"size": "16Mi"}}}
    tenant.start_pod("web", node, inline=inline)
    tenant.write("web", "scratch/file", "hello")
    assert tenant.read("web", "scratch/file") == "hello"
    (handle,) = set(driver.directories()).difference(before)
    assert (driver.state / "volumes" / handle / "data" / "file").read_text() == "hello"

    tenant.delete_pod("web")
    assert driver.directories() == before
