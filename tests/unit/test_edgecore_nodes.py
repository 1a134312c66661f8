"""A node whose kubelet is EdgeCore: the hub writes its CSINode from the agent's reports, but not beside a kubelet."""

import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from cloud.kube.client import RESOURCES, KubeError, Resource
from cloud.nodes.known_node import KnownNode, Moment
from cloud.nodes.node_records import StoredNode
from cloud.nodes.visit import Visit
from cloud.upsync.csinode_writer import CSINodeWriter
from cloud.upsync.handover import EdgeCores
from common.csi.csi_pb2 import NodeGetInfoResponse
from common.csi.reports import NODE_GET_INFO, Answer, DriverReport
from common.objects.objects import Ref
from tests.kit.fake_api import FakeApi
from tests.kit.placed_nodes import DRIVER, report

Body = dict[str, Any]

KUBELET = Ref("Kubelet", "", "n1")
LABELS = {"csi-bridge.io/edge": "kubeedge", "kubernetes.io/hostname": "n1"}
ENTRY = {"name": DRIVER, "nodeID": "id-of-n1", "topologyKeys": ["csi-bridge.io/node"]}
MIGRATED = {"storage.alpha.kubernetes.io/migrated-plugins": "kubernetes.io/aws-ebs"}
MADE = {"csi-bridge.io/made-by": "hub"}


class EdgeCoreNode(KnownNode):
    """Node n1, which is connected and has told what it reports (`cloud.nodes.edge_nodes.Nodes`, too)."""

    def __init__(self, *reports: DriverReport) -> None:
        told = {it.driver: it for it in reports}
        visit = Visit("n1", None, 0.0, told=told)  # type: ignore[arg-type]  # nobody asks for its link
        super().__init__(StoredNode("n1", reports=reports), Moment(0.0, 0.0), visit=visit)

    def of(self, _name: str) -> KnownNode:
        return self


class Cluster:
    """An API server with the Node n1, and the hub that follows it."""

    def __init__(self) -> None:
        self.api = FakeApi()
        self.now = 0.0
        self.node = EdgeCoreNode(report("n1"))
        self.label(LABELS)
        csi_nodes = CSINodeWriter(self.api, now=lambda: self.now)  # type: ignore[arg-type]  # it has what is needed
        self.writer = EdgeCores(self.api, self.node, csi_nodes)  # type: ignore[arg-type]  # both have what is needed

    def label(self, labels: Body, **annotations: str) -> None:
        self.api.put({"kind": "Node", "metadata": {"name": "n1", "labels": labels, "annotations": annotations}})

    def put_csi_node(self, annotations: Body, *drivers: Body) -> None:
        metadata = {"name": "n1", "annotations": annotations}
        self.api.put({"kind": "CSINode", "metadata": metadata, "spec": {"drivers": list(drivers)}})

    async def write(self) -> float | None:
        return await self.writer.write("n1", KUBELET, None)

    async def drivers(self) -> list[Body]:
        found: list[Body] = (await self.api.get(RESOURCES["CSINode"], "n1"))["spec"]["drivers"]
        return found

    def writes(self) -> list[str]:
        return [it for it in self.api.asked if not it.startswith("get")]


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


async def test_the_csinode_has_the_reported_drivers_and_the_node_the_labels_that_it_lacks(cluster: Cluster) -> None:
    assert await cluster.write() == 60.0
    assert await cluster.drivers() == [ENTRY]
    csi_node = await cluster.api.get(RESOURCES["CSINode"], "n1")
    assert [it["kind"] for it in csi_node["metadata"]["ownerReferences"]] == ["Node"]
    node = await cluster.api.get(RESOURCES["Node"], "n1")
    assert node["metadata"]["labels"] == {**LABELS, "csi-bridge.io/node": "n1"}
    assert node["metadata"]["annotations"] == {}  # the ids there are EdgeCore's

    before = cluster.writes()
    await cluster.write()
    assert cluster.writes() == before


async def test_a_driver_with_a_topology_has_its_own_keys_and_its_limit(cluster: Cluster) -> None:
    zoned = report("n1", segments={"zone.example/rack": "7"})
    info = NodeGetInfoResponse.FromString(zoned.answers[NODE_GET_INFO].body)
    info.max_volumes_per_node = 5
    answers = {**zoned.answers, NODE_GET_INFO: Answer(0, body=info.SerializeToString())}
    cluster.node = EdgeCoreNode(DriverReport(DRIVER, "n1", answers))
    cluster.writer = EdgeCores(cluster.api, cluster.node, CSINodeWriter(cluster.api))  # type: ignore[arg-type]  # as above
    await cluster.write()
    assert await cluster.drivers() == [{**ENTRY, "topologyKeys": ["zone.example/rack"], "allocatable": {"count": 5}}]


@pytest.mark.parametrize("info", [Answer(12, "no Node service"), Answer(0, body=b"\xff"), Answer(0)])
async def test_a_driver_that_does_not_say_who_the_node_is_gets_no_entry(cluster: Cluster, info: Answer) -> None:
    told = report("n1")
    cluster.node.stored = StoredNode("n1", reports=(DriverReport(DRIVER, "n1", {**told.answers, NODE_GET_INFO: info}),))
    await cluster.write()
    assert await cluster.drivers() == []


async def test_a_driver_that_the_agent_reports_no_more_goes_after_a_while_and_stays_while_the_node_is_away(
    cluster: Cluster,
) -> None:
    await cluster.write()
    assert cluster.node.visit is not None
    visit, cluster.node.visit = cluster.node.visit, None
    cluster.now = 1000.0
    await cluster.write()
    assert await cluster.drivers() == [ENTRY]

    visit.told = {}
    cluster.node.visit = visit
    assert await cluster.write() == 60.0
    assert await cluster.drivers() == [ENTRY]
    cluster.now += 120.0
    await cluster.write()
    assert await cluster.drivers() == []


async def test_over_a_line_that_breaks_again_and_again_no_driver_is_lost(cluster: Cluster) -> None:
    await cluster.write()
    for cluster.now in (0.0, 60.0, 120.0, 180.0):  # at each look the agent has connected anew, and reported nothing
        cluster.node.visit = Visit("n1", None, time.monotonic())  # type: ignore[arg-type]  # as above
        await cluster.write()
    assert await cluster.drivers() == [ENTRY]


async def test_a_csinode_that_somebody_deleted_is_made_anew(cluster: Cluster) -> None:
    await cluster.write()
    cluster.api.drop("CSINode", "n1")
    await cluster.write()
    assert await cluster.drivers() == [ENTRY]


@pytest.mark.parametrize(
    "put",
    [
        lambda cluster: cluster.put_csi_node({}),
        lambda cluster: cluster.put_csi_node({}, ENTRY),
        lambda cluster: cluster.put_csi_node(MADE, {"name": "other.example", "nodeID": "x", "topologyKeys": None}),
        lambda cluster: cluster.put_csi_node({**MADE, **MIGRATED}),
    ],
    ids=["made by a kubelet", "with the same driver", "with a driver of another writer", "with a kubelet's mark"],
)
async def test_beside_another_writer_the_hub_writes_nothing_and_says_so(
    cluster: Cluster, put: Callable[[Cluster], None]
) -> None:
    put(cluster)
    before = await cluster.api.get(RESOURCES["CSINode"], "n1")
    with pytest.raises(KubeError, match="another writer, perhaps a kubelet, has written its CSINode; remove the label"):
        await cluster.write()
    assert await cluster.api.get(RESOURCES["CSINode"], "n1") == before
    assert cluster.writes() == []


async def test_a_csinode_that_a_kubelet_writes_after_the_look_stays_as_it_is(cluster: Cluster) -> None:
    patch, find = cluster.api.patch, cluster.api.get

    async def patch_late(resource: Resource, *args: Any, **more: Any) -> Body:
        if resource.kind == "Node":
            cluster.put_csi_node({**MADE, **MIGRATED})
        return await patch(resource, *args, **more)

    cluster.put_csi_node(MADE)
    cluster.api.patch = patch_late  # type: ignore[method-assign]  # the kubelet writes at this moment
    with pytest.raises(KubeError, match="its resourceVersion is another one"):
        await cluster.write()
    assert (await find(RESOURCES["CSINode"], "n1"))["spec"]["drivers"] == []


async def test_a_look_at_a_written_node_reads_each_object_once(cluster: Cluster) -> None:
    await cluster.write()
    cluster.api.asked.clear()
    await cluster.write()
    assert cluster.api.asked == ["get nodes n1", "get csinodes n1"]


async def test_a_topology_that_cannot_be_a_label_is_a_problem_and_stops_no_other_driver(cluster: Cluster) -> None:
    sick = replace(report("n1", segments={"rack.example/name": "rack 7"}), driver="sick.example")
    cluster.node = EdgeCoreNode(sick, report("n1"))
    cluster.writer = EdgeCores(cluster.api, cluster.node, CSINodeWriter(cluster.api))  # type: ignore[arg-type]  # as above
    await cluster.write()
    node = await cluster.api.get(RESOURCES["Node"], "n1")
    assert node["metadata"]["labels"] == {**LABELS, "csi-bridge.io/node": "n1"}
    assert any(
        "says that it is 'rack.example/name=rack 7', which cannot be a label" in it for it in cluster.writer.problems()
    )
    assert ENTRY in await cluster.drivers()


@pytest.mark.parametrize("labels", [{}, {"csi-bridge.io/edge": "kubelet"}, {"csi-bridge.io/edge": "agent"}])
async def test_without_the_label_of_an_administrator_the_hub_writes_nothing(cluster: Cluster, labels: Body) -> None:
    cluster.label(labels)
    assert await cluster.write() is None
    assert cluster.writes() == []


async def test_once_the_label_is_gone_the_csinode_is_the_kubelets(cluster: Cluster) -> None:
    await cluster.write()
    cluster.label({})
    assert await cluster.write() is None
    csi_node = await cluster.api.get(RESOURCES["CSINode"], "n1")
    assert csi_node["metadata"]["annotations"] == {}
    assert await cluster.drivers() == [ENTRY]


async def test_a_node_that_had_no_kubelet_goes_to_edgecore_and_the_hub_writes_on_in_its_csinode(
    cluster: Cluster,
) -> None:
    cluster.put_csi_node({**MADE, "csi-bridge.io/drivers": json.dumps([DRIVER])}, {**ENTRY, "nodeID": "earlier"})
    cluster.label(LABELS, **MADE)
    lease = {"name": "n1", "namespace": "kube-node-lease", "annotations": MADE}
    cluster.api.put({"kind": "Lease", "metadata": lease})
    with pytest.raises(KubeError, match="no kubelet has set an address yet"):
        await cluster.write()
    assert cluster.writes() == []
    found = await cluster.api.get(RESOURCES["Node"], "n1")
    cluster.api.put({**found, "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}})
    assert await cluster.write() == 0.0
    for kind, namespace in (("Node", ""), ("Lease", "kube-node-lease")):
        found = await cluster.api.get(RESOURCES[kind], "n1", namespace)
        assert found["metadata"]["annotations"] == {}
    await cluster.write()
    assert await cluster.drivers() == [ENTRY]


async def test_a_label_with_another_value_stays_and_is_a_problem(cluster: Cluster) -> None:
    cluster.label({**LABELS, "csi-bridge.io/node": "n2"})
    await cluster.write()
    assert any("csi-bridge.io/node=n2, which stays" in it for it in cluster.writer.problems())
    assert await cluster.drivers() == [ENTRY]
    cluster.label(LABELS)
    await cluster.write()
    assert cluster.writer.problems() == []
