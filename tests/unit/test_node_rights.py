"""The rights of nodes: the hub believes a node the drivers that it reports, and gives it no volume of others."""

import json
from typing import Any

import pytest

from cloud.kinds.nodes import NODE_IDS
from cloud.nodes.node_rights import NodeRights
from common.objects.objects import Ref
from tests.kit.cluster_objects import pod, volume
from tests.kit.trusting import SaidNodes

ZONE = "topology.d.example/zone"
CSI_NODE, NODE = Ref("CSINode", "", "n1"), Ref("Node", "", "n1")


def rights(*named: str) -> NodeRights:
    """Those of nodes whose reports of d.example have the zone z1. Each zone is the node's of its number."""
    return NodeRights(SaidNodes({"d.example": {ZONE: "z1"}}, named))  # type: ignore[arg-type]  # as in `TRUSTING`


def entry(driver: str, *keys: str) -> dict[str, Any]:
    return {"name": driver, "nodeID": "id", "topologyKeys": list(keys)}


def bound_to(*zones: tuple[str, ...]) -> Any:
    """A PersistentVolume with a term for each of these."""
    terms = [{"matchExpressions": [{"key": ZONE, "operator": "In", "values": list(values)}]} for values in zones]
    return volume("v", nodeAffinity={"required": {"nodeSelectorTerms": terms}})


def test_of_a_csinode_count_the_drivers_that_the_node_reports_with_their_topology() -> None:
    told = [entry("d.example", ZONE), entry("other.example")]
    assert rights().believed("n1", CSI_NODE, {"spec": {"drivers": told}}) == {"spec": {"drivers": told[:1]}}
    foreign = {"spec": {"drivers": [entry("d.example", ZONE, "rack")]}}
    assert rights().believed("n1", CSI_NODE, foreign) == {"spec": {"drivers": []}}


def test_of_a_node_count_the_labels_and_ids_of_the_drivers_that_it_reports() -> None:
    labels = {ZONE: "z1", "topology.other.example/zone": "z2"}
    ids = {NODE_IDS: json.dumps({"d.example": "id", "other.example": "id"})}
    status = {"volumesInUse": ["kubernetes.io/csi/d.example^v"]}
    told = {"metadata": {"labels": labels, "annotations": ids}, "status": status}
    believed = {"labels": {ZONE: "z1"}, "annotations": {NODE_IDS: json.dumps({"d.example": "id"})}}
    assert rights().believed("n1", NODE, told) == {"metadata": believed, "status": status}
    assert rights().believed("n1", NODE, {"metadata": {"labels": {ZONE: "z2"}}}) == {"metadata": {"labels": {}}}


def test_ids_that_cannot_be_read_stay_so_that_the_writer_names_them() -> None:
    told = {"metadata": {"annotations": {NODE_IDS: "{"}}}
    assert rights().believed("n1", NODE, told) == told


@pytest.mark.parametrize("body", [volume("v"), pod("p", volumes=[{"name": "v", "csi": {"driver": "d.example"}}])])
def test_a_node_gets_no_volume_of_a_driver_that_its_certificate_does_not_name(body: Any) -> None:
    ref = Ref(body["kind"], "", "v")
    assert rights().why_not("n1", ref, body) == ""
    assert rights("d.example").why_not("n1", ref, body) == ""
    why = "the node's certificate is for other.example, and not for d.example"
    assert rights("other.example").why_not("n1", ref, body) == why


@pytest.mark.parametrize(
    ("zones", "owner"),
    [([("z2",)], "n2"), ([("z2", "z3")], "n2"), ([("z1",)], ""), ([("z2",), ("z1", "z2")], ""), ([], "")],
    ids=["another node's", "two others'", "its own", "one term of two", "of no node"],
)
def test_a_node_gets_no_volume_whose_affinity_needs_the_segment_of_another_one(
    zones: list[tuple[str, ...]], owner: str
) -> None:
    why = f"its nodeAffinity names edge node {owner} alone" if owner else ""
    assert rights().why_not("n1", Ref("PersistentVolume", "", "v"), bound_to(*zones)) == why
