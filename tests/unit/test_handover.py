"""A hand-over takes the hub's marks, and nothing else; a removal deletes what the hub made, and nothing else."""

from typing import Any

import pytest

from cloud.kinds.nodes import PROBLEM
from cloud.kube.client import RESOURCES, KubeError
from cloud.upsync.handover import HandOver, Removal
from common.objects.objects import Ref
from tests.kit.fake_api import FakeApi

Body = dict[str, Any]

HUBS = {"csi-bridge.io/made-by": "hub", "csi-bridge.io/drivers": '["d"]'}
NODE_IDS = {"csi.volume.kubernetes.io/nodeid": '{"d":"id-1"}'}


@pytest.fixture
def api() -> FakeApi:
    return FakeApi()


def put(api: FakeApi, kind: str, annotations: Body, **more: Any) -> None:
    api.put({"kind": kind, "metadata": {"name": "n1", "annotations": annotations}, **more})


HOSTNAME = {"type": "Hostname", "address": "n1"}
KUBELETS = [{"type": "InternalIP", "address": "192.0.2.1"}, HOSTNAME]


def writes(api: FakeApi) -> list[str]:
    return [it for it in api.asked if not it.startswith("get")]


async def hand_over(api: FakeApi) -> None:
    await HandOver(api).write("n1", Ref("Kubelet", "", "n1"), None)


async def remove(api: FakeApi) -> None:
    await Removal(api).write("n1", Ref("Gone", "", "n1"), None)


async def test_the_marks_go_and_what_stands_there_stays(api: FakeApi) -> None:
    put(api, "Node", {**HUBS, **NODE_IDS}, status={"volumesInUse": ["v"], "addresses": KUBELETS})
    put(api, "CSINode", {"csi-bridge.io/drivers": '["d"]'}, spec={"drivers": [{"name": "d", "nodeID": "id-1"}]})
    await hand_over(api)
    node = await api.get(RESOURCES["Node"], "n1")
    assert node["metadata"]["annotations"] == NODE_IDS
    assert node["status"] == {"volumesInUse": ["v"], "addresses": KUBELETS}
    csi_node = await api.get(RESOURCES["CSINode"], "n1")
    assert csi_node["metadata"]["annotations"] == {}
    assert csi_node["spec"] == {"drivers": [{"name": "d", "nodeID": "id-1"}]}


MARK = {"key": "csi-bridge.io/edge", "value": "agent", "effect": "NoSchedule"}
FULL = {"key": "node.kubernetes.io/disk-pressure", "effect": "NoSchedule"}


def marked(annotations: Body, label: str, taint: Body) -> Body:
    """Node n1, with this label and this taint beside those of others."""
    labels = {"csi-bridge.io/edge": label, "site": "north"}
    metadata = {"name": "n1", "annotations": annotations, "labels": labels}
    spec = {"podCIDR": "10.1.0.0/24", "taints": [FULL, taint]}
    return {"kind": "Node", "metadata": metadata, "spec": spec, "status": {"addresses": KUBELETS}}


async def test_the_label_and_the_taint_of_a_node_without_a_kubelet_go_as_well(api: FakeApi) -> None:
    api.put(marked(HUBS, "agent", MARK))
    await hand_over(api)
    node = await api.get(RESOURCES["Node"], "n1")
    assert node["metadata"]["labels"] == {"site": "north"}
    assert node["spec"] == {"podCIDR": "10.1.0.0/24", "taints": [FULL]}


async def test_a_node_that_only_says_that_it_has_a_kubelet_keeps_label_and_taint(api: FakeApi) -> None:
    put(api, "CSINode", {"csi-bridge.io/drivers": '["d"]'})
    for addresses in ([], [HOSTNAME]):
        api.put({**marked(HUBS, "agent", MARK), "status": {"addresses": addresses}})
        with pytest.raises(KubeError, match="no kubelet has set an address"):
            await hand_over(api)
    assert writes(api) == []


@pytest.mark.parametrize(
    "node",
    [marked(HUBS, "kubelet", {**MARK, "value": "mine"}), marked({"csi-bridge.io/drivers": '["d"]'}, "agent", MARK)],
    ids=["what an operator made of them", "a node that the hub did not make"],
)
async def test_a_label_and_a_taint_that_are_not_the_hubs_stay(api: FakeApi, node: Body) -> None:
    api.put(node)
    await hand_over(api)
    found = await api.get(RESOURCES["Node"], "n1")
    assert (found["metadata"]["labels"], found["spec"]) == (node["metadata"]["labels"], node["spec"])


async def test_where_the_hub_never_wrote_it_writes_nothing(api: FakeApi) -> None:
    await hand_over(api)
    put(api, "Node", NODE_IDS)
    put(api, "CSINode", {})
    await hand_over(api)
    assert writes(api) == []


async def test_a_hand_over_is_tried_again_while_the_api_server_is_away(api: FakeApi) -> None:
    put(api, "Node", HUBS, status={"addresses": KUBELETS})
    api.failures["patch"] = [KubeError("patch", 0, "", "nobody answers")]
    with pytest.raises(KubeError):
        await hand_over(api)
    await hand_over(api)
    assert (await api.get(RESOURCES["Node"], "n1"))["metadata"]["annotations"] == {}


async def test_a_node_that_the_hub_made_is_deleted_and_any_other_stays(api: FakeApi) -> None:
    put(api, "Node", HUBS)
    await remove(api)
    assert writes(api) == ["delete nodes n1"]
    put(api, "Node", NODE_IDS)
    await remove(api)
    assert writes(api) == ["delete nodes n1"]
    api.drop("Node", "n1")
    await remove(api)


async def test_a_removal_takes_what_the_agent_said_must_be_solved_from_a_node_of_a_kubelet(api: FakeApi) -> None:
    ready, problem = {"type": "Ready", "status": "True"}, {"type": PROBLEM, "status": "True", "message": "full"}
    put(api, "Node", NODE_IDS, status={"conditions": [ready, problem]})
    await remove(api)
    assert (await api.get(RESOURCES["Node"], "n1"))["status"] == {"conditions": [ready]}


async def test_a_node_that_somebody_else_was_quicker_to_delete_is_gone_as_well(api: FakeApi) -> None:
    put(api, "Node", HUBS)
    api.failures["delete"] = [KubeError("delete", 404, "NotFound", "there is none")]
    await remove(api)
    api.failures["delete"] = [KubeError("delete", 409, "Conflict", "its uid is another one")]
    with pytest.raises(KubeError):
        await remove(api)
