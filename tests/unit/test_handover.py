"""A hand-over takes the hub's marks, and nothing else; a farewell deletes what the hub made, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from cloud.kube import RESOURCES, KubeError
from cloud.upsync.farewell import Farewell
from cloud.upsync.handover import HandOver
from common.objects import Ref
from tests.kit.fake_api import FakeApi

Body = dict[str, Any]

HUBS = {"csi-bridge.io/made-by": "hub", "csi-bridge.io/drivers": '["d"]'}
NODE_IDS = {"csi.volume.kubernetes.io/nodeid": '{"d":"id-1"}'}


@pytest.fixture
def api() -> FakeApi:
    return FakeApi()


def put(api: FakeApi, kind: str, annotations: Body, **more: Any) -> None:
    api.put({"kind": kind, "metadata": {"name": "n1", "annotations": annotations}, **more})


def writes(api: FakeApi) -> list[str]:
    return [it for it in api.asked if not it.startswith("get")]


async def hand_over(api: FakeApi) -> None:
    await HandOver(api).write("n1", Ref("Kubelet", "", "n1"), None)


async def say_farewell(api: FakeApi) -> None:
    await Farewell(api).write("n1", Ref("Farewell", "", "n1"), None)


async def test_the_marks_go_and_what_stands_there_stays(api: FakeApi) -> None:
    put(api, "Node", {**HUBS, **NODE_IDS}, status={"volumesInUse": ["v"]})
    put(api, "CSINode", {"csi-bridge.io/drivers": '["d"]'}, spec={"drivers": [{"name": "d", "nodeID": "id-1"}]})
    await hand_over(api)
    node = await api.get(RESOURCES["Node"], "n1")
    assert node["metadata"]["annotations"] == NODE_IDS
    assert node["status"] == {"volumesInUse": ["v"]}
    csi_node = await api.get(RESOURCES["CSINode"], "n1")
    assert csi_node["metadata"]["annotations"] == {}
    assert csi_node["spec"] == {"drivers": [{"name": "d", "nodeID": "id-1"}]}


MARK = {"key": "csi-bridge.io/edge", "value": "agent", "effect": "NoSchedule"}
FULL = {"key": "node.kubernetes.io/disk-pressure", "effect": "NoSchedule"}


async def test_the_label_and_the_taint_of_a_node_without_a_kubelet_go_as_well(api: FakeApi) -> None:
    body = {"metadata": {"name": "n1", "annotations": HUBS, "labels": {"csi-bridge.io/edge": "agent", "site": "north"}}}
    api.put({"kind": "Node", **body, "spec": {"podCIDR": "10.1.0.0/24", "taints": [FULL, MARK]}})
    await hand_over(api)
    node = await api.get(RESOURCES["Node"], "n1")
    assert node["metadata"]["labels"] == {"site": "north"}
    assert node["spec"] == {"podCIDR": "10.1.0.0/24", "taints": [FULL]}


async def test_what_an_operator_made_of_the_label_and_the_taint_stays(api: FakeApi) -> None:
    labels, taints = {"csi-bridge.io/edge": "kubelet"}, [{**MARK, "value": "mine"}]
    body = {"metadata": {"name": "n1", "annotations": HUBS, "labels": labels}, "spec": {"taints": taints}}
    api.put({"kind": "Node", **body})
    await hand_over(api)
    node = await api.get(RESOURCES["Node"], "n1")
    assert (node["metadata"]["labels"], node["spec"]["taints"]) == (labels, taints)


async def test_the_label_and_the_taint_of_a_node_that_the_hub_did_not_make_stay(api: FakeApi) -> None:
    labels, annotations = {"csi-bridge.io/edge": "agent"}, {"csi-bridge.io/drivers": '["d"]'}
    body = {"metadata": {"name": "n1", "annotations": annotations, "labels": labels}, "spec": {"taints": [MARK]}}
    api.put({"kind": "Node", **body})
    await hand_over(api)
    node = await api.get(RESOURCES["Node"], "n1")
    assert (node["metadata"]["labels"], node["spec"]["taints"]) == (labels, [MARK])


async def test_where_the_hub_never_wrote_it_writes_nothing(api: FakeApi) -> None:
    await hand_over(api)
    put(api, "Node", NODE_IDS)
    put(api, "CSINode", {})
    await hand_over(api)
    assert writes(api) == []


async def test_a_hand_over_is_tried_again_while_the_api_server_is_away(api: FakeApi) -> None:
    put(api, "Node", HUBS)
    api.failures["patch"] = [KubeError("patch", 0, "", "nobody answers")]
    with pytest.raises(KubeError):
        await hand_over(api)
    await hand_over(api)
    assert (await api.get(RESOURCES["Node"], "n1"))["metadata"]["annotations"] == {}


async def test_a_node_that_the_hub_made_is_deleted_and_any_other_stays(api: FakeApi) -> None:
    put(api, "Node", HUBS)
    await say_farewell(api)
    assert writes(api) == ["delete nodes n1"]
    put(api, "Node", NODE_IDS)
    await say_farewell(api)
    assert writes(api) == ["delete nodes n1"]
    api.drop("Node", "n1")
    await say_farewell(api)


async def test_a_node_that_somebody_else_was_quicker_to_delete_is_gone_as_well(api: FakeApi) -> None:
    put(api, "Node", HUBS)
    api.failures["delete"] = [KubeError("delete", 404, "NotFound", "there is none")]
    await say_farewell(api)
    api.failures["delete"] = [KubeError("delete", 409, "Conflict", "its uid is another one")]
    with pytest.raises(KubeError):
        await say_farewell(api)
