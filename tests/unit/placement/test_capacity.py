"""GetCapacity of nodes with storage of their own: whose answer counts."""

import pytest

from cloud.nodes.question import Question
from common.csi import csi_pb2 as csi
from common.errors import CallError, VendorBroken, node_offline
from common.status import Code, Status
from tests.kit.placed_nodes import CONTROLLER, DRIVER, OK, RPC, Placed, Placing, Vendor, on, report

GIB = 1 << 30


def has(free: int, *, largest: int | None = None) -> Vendor:
    """A vendor with so much room, in volumes of at most that size."""
    told = csi.GetCapacityResponse(available_capacity=free)
    if largest is not None:
        told.maximum_volume_size.value = largest
    return lambda _: (told.SerializeToString(), OK)


def request(term: dict[str, str] | None = None, **parameters: str) -> csi.GetCapacityRequest:
    asked = csi.GetCapacityRequest(parameters=parameters)
    if term is not None:
        asked.accessible_topology.segments.update(term)
    return asked


async def free(world: Placed, node: str = "", **parameters: str) -> int:
    """What a sidecar gets for a node's segment, or for all."""
    asked = await world.ask("GetCapacity", request(on(node) if node else None, **parameters))
    assert asked.status.ok, asked.status
    return csi.GetCapacityResponse.FromString(asked.body).available_capacity


async def test_a_segment_has_the_capacity_of_its_node(world: Placed) -> None:
    world.vendors = {"n1": has(1), "n2": has(2), "n3": has(3)}
    asked = await world.ask("GetCapacity", request(on("n2"), type="fast"))
    assert asked.node == "n2"
    assert csi.GetCapacityResponse.FromString(asked.body).available_capacity == 2
    assert world.calls == [("n2", CONTROLLER + "GetCapacity", request(type="fast").SerializeToString())]


async def test_the_largest_is_the_one_on_which_the_largest_volume_fits(world: Placed) -> None:
    world.vendors = {"n1": has(9 * GIB, largest=GIB), "n2": has(2 * GIB), "n3": has(2 * GIB, largest=2 * GIB)}
    assert await free(world) == 2 * GIB


async def test_several_nodes_in_a_vendors_own_zone_have_the_largest_ones_and_are_asked_for_the_zone(
    placed: Placing,
) -> None:
    world = placed(*(report(f"n{i}", segments={"zone": "b" if i == 3 else "a"}) for i in (1, 2, 3)))
    world.vendors = {"n1": has(1), "n2": has(2), "n3": has(3)}
    asked = await world.ask("GetCapacity", request({"zone": "a"}))
    assert csi.GetCapacityResponse.FromString(asked.body).available_capacity == 2
    assert {call[2] for call in world.calls} == {request({"zone": "a"}).SerializeToString()}


async def test_a_segment_of_no_node_has_none(world: Placed) -> None:
    assert await free(world, "n9") == 0
    assert not world.calls


async def test_a_segment_may_be_that_of_a_node_which_has_not_told_its_own_yet(placed: Placing) -> None:
    world = placed(report("n1", segments={"zone": "a"}), report("n2", segments={}))
    with pytest.raises(CallError, match="edge node n2 has not told its topology yet"):
        await world.ask("GetCapacity", request({"zone": "b"}))


async def test_lost_records_may_have_been_of_the_largest_node(placed: Placing) -> None:
    world = placed(report("n1"), lost="state.db was gone")
    with pytest.raises(CallError, match="has lost records"):
        await free(world)


async def test_the_only_nodes_answer_passes_as_it_is(placed: Placing) -> None:
    world = placed(report("n1"))
    world.refuse("n1", Code.INVALID_ARGUMENT)
    assert (await world.ask("GetCapacity", request())).status.code == Code.INVALID_ARGUMENT


async def test_a_node_that_is_away_has_no_capacity_until_it_is_back(world: Placed) -> None:
    world.vendors["n1"] = has(5)
    world.away = {"n1"}
    assert await free(world, "n1") == 0
    assert not world.calls
    world.away = set()
    assert await free(world, "n1") == 5


async def test_a_node_that_leaves_while_it_is_asked_is_an_error(world: Placed) -> None:
    def leave(_: Question) -> tuple[bytes, Status]:
        raise node_offline("n1", 0.0)

    world.vendors["n1"] = leave
    with pytest.raises(CallError, match="is offline since"):
        await free(world, "n1")


async def test_a_node_that_is_away_or_broken_takes_nothing_from_the_others(world: Placed) -> None:
    world.vendors = {"n1": has(5), "n2": lambda _: (None, Status(Code.INTERNAL, "no")), "n3": has(9)}
    world.away = {"n3"}
    assert await free(world) == 5


async def test_if_no_node_answers_the_vendors_own_error_is_the_answer(world: Placed) -> None:
    world.refuse("n2", Code.INTERNAL)
    world.away = {"n1", "n3"}
    assert (await world.ask("GetCapacity", request())).status.code == Code.INTERNAL


async def test_all_nodes_away_have_nothing(world: Placed) -> None:
    world.away = {"n1", "n2", "n3"}
    assert await free(world) == 0


async def test_a_refused_node_is_an_error(world: Placed) -> None:
    world.refused["n1"] = "so it is"
    world.placement.changed(DRIVER)
    with pytest.raises(CallError, match="edge node n1 gets no call"):
        await free(world, "n1")


async def test_an_answer_that_does_not_parse_is_no_capacity(world: Placed) -> None:
    world.vendors = dict.fromkeys(world.reports, lambda _: (b"\xff", OK))
    with pytest.raises(VendorBroken, match="does not parse"):
        await free(world)
    world.vendors["n2"] = has(3)
    assert await free(world) == 3


async def test_nodes_that_lack_the_capability_are_left_out(placed: Placing) -> None:
    can = (RPC.CREATE_DELETE_VOLUME, RPC.GET_CAPACITY)
    world = placed(*(report(f"n{i}", capabilities=can if i < 3 else can[:1]) for i in (1, 2, 3)))
    world.vendors = {"n1": has(1), "n2": has(2), "n3": has(3)}
    assert await free(world) == 2
    with pytest.raises(CallError, match="n3"):
        await free(world, "n3")
