"""The bridge's own topology segment, and what can be one."""

import pytest

from common.csi.csi_pb2 import GetPluginCapabilitiesResponse, NodeGetInfoResponse, PluginCapability, Topology
from common.objects.topology import (
    NODE_SEGMENT,
    has_topology,
    segment_of,
    told_node_info,
    why_no_segment,
    with_topology,
)


def _capabilities(*services: int) -> bytes:
    return GetPluginCapabilitiesResponse(
        capabilities=[
            PluginCapability(service=PluginCapability.Service(type=number))  # type: ignore[arg-type]  # by number, as on the wire
            for number in services
        ]
    ).SerializeToString()


def test_a_vendor_that_names_accessibility_constraints_has_a_topology() -> None:
    assert has_topology(b"\n\x04\n\x02\b\x01\n\x04\n\x02\b\x02")


@pytest.mark.parametrize("services", [(), (1,), (1, 3, 5), (99,)])
def test_a_vendor_that_does_not_has_none(services: tuple[int, ...]) -> None:
    assert not has_topology(_capabilities(*services))


def test_a_way_of_expansion_with_the_same_number_is_no_topology() -> None:
    offline = PluginCapability.VolumeExpansion(type=PluginCapability.VolumeExpansion.OFFLINE)
    answer = GetPluginCapabilitiesResponse(capabilities=[PluginCapability(volume_expansion=offline)])

    assert not has_topology(answer.SerializeToString())


def test_capabilities_that_do_not_parse_are_an_error_in_words() -> None:
    with pytest.raises(ValueError, match="GetPluginCapabilities does not parse"):
        has_topology(b"\xff\xff")


def test_a_nodes_segment_is_its_name() -> None:
    assert segment_of("edge-1.example") == {"csi-bridge.io/node": "edge-1.example"}


@pytest.mark.parametrize("node", ["", "n" * 64, "-n", "n.", "n 1", "n/1", "nö"])
def test_a_node_whose_name_can_be_no_label_has_no_segment(node: str) -> None:
    assert segment_of(node) == {}
    assert "cannot be the value of the label csi-bridge.io/node" in why_no_segment(node)


def test_a_segment_is_added_to_what_the_vendor_says() -> None:
    vendors = NodeGetInfoResponse(node_id="id-7", accessible_topology=Topology(segments={"rack": "r1"}))

    told = NodeGetInfoResponse.FromString(told_node_info(vendors.SerializeToString(), "n1", own_topology=False))

    assert told.node_id == "id-7"
    assert dict(told.accessible_topology.segments) == {"rack": "r1", NODE_SEGMENT: "n1"}


def test_the_vendors_bytes_come_first_and_unchanged_also_what_the_contract_does_not_know() -> None:
    unknown = b"\n\x02id\xf2\x3f\x03new"  # field 1 "id", field 1022 "new"

    told = told_node_info(unknown, "n1", own_topology=False)

    assert told == unknown + b"\x1a\x1a\n\x18\n\x12csi-bridge.io/node\x12\x02n1"


@pytest.mark.parametrize(
    ("own", "node", "changed"),
    [(False, "n1", True), (True, "n1", False), (False, "n" * 64, False)],
    ids=["no topology", "a topology of its own", "a node without a segment"],
)
def test_a_segment_is_due_where_the_vendor_has_no_topology_and_the_node_can_have_one(
    own: bool, node: str, changed: bool
) -> None:
    told = told_node_info(b"\n\x02id", node, own_topology=own)

    assert (told != b"\n\x02id") is changed


def test_a_topology_that_another_process_announces_is_added_to_the_vendors_bytes() -> None:
    said = _capabilities(1) + b"\xf2\x3f\x03new"

    told = with_topology(said)

    assert told.startswith(said)
    assert has_topology(told)
