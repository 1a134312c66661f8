"""Beside KubeEdge's EdgeCore, whose kubelet sees no CSINode and no CSIDriver of the cluster, the hub writes CSINodes.

The csi-driver of the StatefulSet in KubeEdge's CSI proposal has its arguments and variables from docs/from-kubeedge.md,
and runs by the command of the image csidriver. Its sidecars are current ones.
"""

import re
from collections.abc import Iterator

import pytest
import yaml

from tests.e2e.cluster import Cluster, Driver
from tests.e2e.edgecore_node import LABEL, EdgeCoreNode
from tests.e2e.supervisors import KeepingSupervisor
from tests.e2e.tenant import MIB, Tenant
from tests.e2e.vendors import EDGECORE, HOSTPATH, PLAIN
from tests.kit.bridge import Proxy
from tests.kit.deployed import ROOT, arguments, with_flags
from tests.kit.operator import hub_state
from tests.kit.peers import csi_client, manifests
from tests.kit.peers.kube_api import Object
from tests.kit.prefork import PROGRAM
from tests.kit.waiting import wait_for

pytestmark = pytest.mark.one_hub  # the StatefulSet knows one socket

_SIDECARS = ("csi-provisioner", "csi-attacher")


@pytest.fixture(scope="module")
def hostpath(cluster: Cluster) -> Iterator[Driver]:
    """KubeEdge's example, whose StatefulSet calls the node with EdgeCore."""
    cluster.api.create(HOSTPATH.manifest())
    cluster.api.create(manifests.storage_class(HOSTPATH.name))
    node = cluster.node(EDGECORE)
    vendor = node.add_vendor(HOSTPATH, state=None)
    proxy = Proxy(HOSTPATH.name, "", None, node.directory / "cloud", node.logs, ())
    places = {"endpoint": f"unix://{proxy.socket}", "kubeedge_endpoint": f"unix://{cluster.bridge.hub.uds}"}
    proxy.process.command = [
        "env",
        f"PATH={PROGRAM.parent}:/usr/bin:/bin",
        f"CSI_BRIDGE_DRIVER_STATE_DIR={proxy.cache.parent}",
        "sh",
        str(ROOT / "deploy/images/csidriver"),
        *with_flags(arguments(_documented()), nodeid=EDGECORE, **places),
    ]
    proxy.start()
    proxy.process.wait_until(lambda: csi_client.is_ready(csi_client.probe(proxy.socket)), what="Identity")
    keeper = KeepingSupervisor(node.logs / "sidecars")
    sidecars = cluster.sidecars(keeper)
    for name in _SIDECARS:
        sidecars.start(name, proxy.socket)
    yield Driver(vendor=HOSTPATH, proxy=proxy, keeper=keeper, on={EDGECORE: vendor})
    keeper.stop()
    proxy.stop()


def test_the_statefulset_of_the_csi_proposal_makes_attaches_mounts_and_deletes_a_volume(
    cluster: Cluster, tenant: Tenant, hostpath: Driver
) -> None:
    cluster.plane.wait_registered(hostpath.name, EDGECORE)
    volume = tenant.claim("csi-hostpath-pvc", hostpath)
    handle = volume["spec"]["csi"]["volumeHandle"]
    assert hostpath.directories() == [handle]

    tenant.start_pod("my-csi-app", EDGECORE, "csi-hostpath-pvc")
    (attachment,) = tenant.attachments(volume)
    assert attachment["status"]["attached"]
    attached = [it for it in hostpath.pinned.calls("ControllerPublishVolume") if it.fields["volume_id"] == handle]
    assert {it.fields["node_id"] for it in attached} == {EDGECORE}
    tenant.write("my-csi-app", "csi-hostpath-pvc/file", "hello")
    assert tenant.read("my-csi-app", "csi-hostpath-pvc/file") == "hello"

    tenant.delete_pod("my-csi-app")
    wait_for(lambda: not tenant.attachments(volume), what="end of the attachment", timeout_s=60.0)
    tenant.let_go("csi-hostpath-pvc", hostpath)
    assert hostpath.directories() == []


def test_a_driver_that_attaches_nothing_has_its_volumes_on_the_node_and_needs_no_relay(
    cluster: Cluster, tenant: Tenant
) -> None:
    driver = cluster.driver(PLAIN)
    claims = tenant.claims(driver)
    claims.ask("data", size_bytes=64 * MIB)
    tenant.start_pod("web", EDGECORE, "data")
    volume = claims.wait_bound("data")
    handle = volume["spec"]["csi"]["volumeHandle"]
    assert driver.places(handle) == [EDGECORE]
    (term,) = volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
    assert term["matchExpressions"] == [{"key": "csi-bridge.io/node", "operator": "In", "values": [EDGECORE]}]
    (attachment,) = tenant.attachments(volume)  # csi-attacher confirms it, and asks the driver nothing
    assert attachment["status"]["attached"]
    tenant.write("web", "data/file", "hello")

    tenant.delete_pod("web")
    claims.let_go("data")
    wait_for(lambda: not driver.places(handle), what="end of the volume at the edge")


def test_the_hub_writes_the_csinode_and_nothing_of_the_node_but_labels(cluster: Cluster) -> None:
    cluster.driver(PLAIN)
    csi_node, node = cluster.api.get("CSINode", EDGECORE), cluster.api.get("Node", EDGECORE)
    assert csi_node is not None
    assert node is not None
    entry = {"name": PLAIN.name, "nodeID": EDGECORE, "topologyKeys": ["csi-bridge.io/node"]}
    assert entry in csi_node["spec"]["drivers"]
    assert csi_node["metadata"]["annotations"]["csi-bridge.io/made-by"] == "hub"
    assert LABEL.items() <= node["metadata"]["labels"].items()
    assert node["metadata"]["labels"]["csi-bridge.io/node"] == EDGECORE
    assert not any(name.startswith("csi-bridge.io/") for name in node["metadata"]["annotations"])
    edgecore = cluster.node(EDGECORE)
    assert isinstance(edgecore, EdgeCoreNode)
    assert {it["name"] for it in edgecore.csi_node()["spec"]["drivers"]} >= {PLAIN.name}


def test_the_hub_writes_nothing_beside_a_kubelet_whose_node_has_the_label_by_mistake(cluster: Cluster) -> None:
    cluster.node("k1").agent.wait_connected()
    before = cluster.api.get("CSINode", "k1")
    assert before is not None
    hub = cluster.bridge.hub.uds

    def is_refused() -> bool:
        return any(
            "another writer, perhaps a kubelet, has written its CSINode" in it for it in hub_state(hub)["problems"]
        )

    cluster.api.patch("Node", "k1", {"metadata": {"labels": LABEL}})
    wait_for(is_refused, what="the refusal", timeout_s=60.0)
    assert cluster.api.get("CSINode", "k1") == before
    cluster.api.patch("Node", "k1", {"metadata": {"labels": dict.fromkeys(LABEL)}})
    wait_for(lambda: not is_refused(), what="the end of the refusal", timeout_s=120.0)
    assert cluster.api.get("CSINode", "k1") == before


def _documented() -> Object:
    """The container csi-driver of the StatefulSet, as the page shows it."""
    page = (ROOT / "docs/from-kubeedge.md").read_text()
    (text,) = re.findall(r"```yaml\n(containers:\n.*?)```", page, re.DOTALL)
    (container,) = yaml.safe_load(text)["containers"]
    found: Object = container
    return found
