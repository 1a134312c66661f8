"""Which node something new goes to."""

import grpc
import pytest

from common.csi import csi_pb2 as pb
from examples.dirdriver import topology
from examples.dirdriver.errors import CsiError
from tests.kit.testdriver import placing

KEY = topology.topology_key("dirdriver.csi")
NODES = ["n1", "n2", "n3"]


def term(node: str) -> pb.Topology:
    return topology.topology_of(KEY, node)


def wanted(*, requisite: tuple[str, ...] = (), preferred: tuple[str, ...] = ()) -> pb.TopologyRequirement:
    return pb.TopologyRequirement(
        requisite=[term(node) for node in requisite], preferred=[term(node) for node in preferred]
    )


def candidates(requirement: pb.TopologyRequirement) -> list[str]:
    return list(placing.candidates(requirement, KEY, NODES))


def test_the_key_is_made_from_the_drivers_name() -> None:
    assert KEY == "topology.dirdriver.csi/node"


def test_without_terms_every_node_will_do_and_this_one_comes_first() -> None:
    assert candidates(wanted()) == ["n1", "n2", "n3"]


def test_preferred_terms_come_first_in_their_order_then_the_rest_of_the_requisite_ones() -> None:
    assert candidates(wanted(requisite=("n1", "n2", "n3"), preferred=("n3", "n2"))) == ["n3", "n2", "n1"]


def test_nodes_that_nobody_knows_are_no_candidates() -> None:
    assert candidates(wanted(requisite=("elsewhere", "n2"))) == ["n2"]


def test_a_term_with_a_key_that_is_not_ours_matches_no_node() -> None:
    foreign = pb.Topology(segments={KEY: "n1", "topology.kubernetes.io/zone": "z"})

    assert candidates(pb.TopologyRequirement(requisite=[foreign])) == []


def test_the_first_node_with_room_is_taken() -> None:
    place = placing.place(wanted(preferred=("n2", "n3")), KEY, NODES, has_room=lambda node: node == "n3", what="volume")

    assert place == "n3"


@pytest.mark.parametrize(
    ("requirement", "room", "why"),
    [
        (wanted(requisite=("elsewhere",)), True, "allow none of the nodes n1, n2, n3"),
        (wanted(), False, "not enough free"),
    ],
)
def test_where_nothing_fits_the_resource_is_exhausted_so_that_the_provisioner_tries_another_node(
    requirement: pb.TopologyRequirement, why: str, *, room: bool
) -> None:
    with pytest.raises(CsiError, match=why) as failure:
        placing.place(requirement, KEY, NODES, has_room=lambda _node: room, what="volume")

    assert failure.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
