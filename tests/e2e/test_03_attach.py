"""A volume is attached before it is staged, and detached when nothing of it is left on the node."""

import pytest

from tests.e2e.cluster import Cluster
from tests.e2e.tenant import Tenant
from tests.e2e.vendors import OWN, SAN
from tests.kit.peers.testdriver import RunningDriver
from tests.kit.testdriver.call_log import Call
from tests.kit.waiting import wait_for


@pytest.mark.parametrize("node", ["k1", OWN])
def test_a_volume_is_attached_for_its_pod_and_detached_after_it(cluster: Cluster, tenant: Tenant, node: str) -> None:
    driver = cluster.driver(SAN)
    volume = tenant.claim("data", driver)
    handle = volume["spec"]["csi"]["volumeHandle"]
    assert tenant.attachments(volume) == []

    tenant.start_pod("web", node, "data")
    (attachment,) = tenant.attachments(volume)
    assert attachment["status"]["attached"]
    assert (attachment["spec"]["attacher"], attachment["spec"]["nodeName"]) == (driver.name, node)
    known = tenant.api.get("Node", node)
    assert known is not None
    assert f"kubernetes.io/csi/{driver.name}^{handle}" in known["status"]["volumesInUse"]
    tenant.write("web", "data/file", "hello")

    tenant.delete_pod("web")
    wait_for(lambda: not tenant.attachments(volume), what="end of the attachment", timeout_s=60.0)

    def calls(process: RunningDriver, method: str) -> list[Call]:
        return [call for call in process.calls(method) if call.fields["volume_id"] == handle]

    # The sidecar asks again if it does not see yet what it wrote itself.
    attached, *again = calls(driver.pinned, "ControllerPublishVolume")
    (staged,) = calls(driver.on[node], "NodeStageVolume")
    (unstaged,) = calls(driver.on[node], "NodeUnstageVolume")
    detached, *once_more = calls(driver.pinned, "ControllerUnpublishVolume")
    assert {call.fields["node_id"] for call in (attached, *again, detached, *once_more)} == {node}
    assert {call.code for call in (attached, *again, staged, unstaged, detached, *once_more)} == {"OK"}
    assert attached.end is not None
    assert unstaged.end is not None
    assert attached.end < staged.start
    assert unstaged.end < detached.start


def test_a_volume_leaves_one_node_before_another_gets_it(cluster: Cluster, tenant: Tenant) -> None:
    driver = cluster.driver(SAN)
    volume = tenant.claim("data", driver)
    tenant.start_pod("first", "k1", "data")
    tenant.write("first", "data/file", "hello")
    tenant.start_pod("second", OWN, "data", wait=False)
    wait_for(
        lambda: any("Multi-Attach" in it for it in tenant.api.events("second", namespace=tenant.namespace)),
        what="word of the volume that is still elsewhere",
        timeout_s=60.0,
    )
    assert [it["spec"]["nodeName"] for it in tenant.attachments(volume)] == ["k1"]

    tenant.delete_pod("first")
    tenant.wait_running("second")
    assert tenant.read("second", "data/file") == "hello"
    assert [it["spec"]["nodeName"] for it in tenant.attachments(volume)] == [OWN]
