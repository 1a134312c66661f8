"""GetCapacity of nodes with storage of their own: whose answer counts, and for how long."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from cloud.placement import capacity
from cloud.placement.capacity import GRACE_S
from common.csi import csi_pb2 as csi
from common.errors import (
    CallTimeout,
    CapabilityMissing,
    KnowledgeLost,
    NodeOffline,
    NoNodeFits,
    ReportRefused,
    VendorBroken,
)
from common.status import Code, Status
from tests.unit.placement.world import CONTROLLER, DRIVER, OK, RPC, World, on, report

if TYPE_CHECKING:
    from pathlib import Path

    from cloud.node_call import Call
    from tests.unit.placement.world import Vendor

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


async def free(world: World, node: str = "", **parameters: str) -> int:
    """What a sidecar gets for a node's segment, or for all."""
    asked = await world.ask("GetCapacity", request(on(node) if node else None, **parameters))
    assert asked.status.ok, asked.status
    return csi.GetCapacityResponse.FromString(asked.body).available_capacity


class Slow:
    """A vendor that answers when it is told to."""

    def __init__(self, answer: Vendor) -> None:
        self.asked, self.go, self._answer = asyncio.Event(), asyncio.Event(), answer

    async def __call__(self, call: Call) -> tuple[bytes | None, Status]:
        self.asked.set()
        await self.go.wait()
        said = self._answer(call)
        assert isinstance(said, tuple)
        return said


@pytest.fixture
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node with a last answer has no time for the next one."""
    monkeypatch.setattr(capacity, "_PATIENCE_S", 0.0)


async def test_a_segment_has_the_capacity_of_its_node(world: World) -> None:
    world.vendors = {"n1": has(1), "n2": has(2), "n3": has(3)}
    asked = await world.ask("GetCapacity", request(on("n2"), type="fast"))
    assert asked.node == "n2"
    assert csi.GetCapacityResponse.FromString(asked.body).available_capacity == 2
    assert world.calls == [("n2", CONTROLLER + "GetCapacity", request(type="fast").SerializeToString())]


async def test_without_a_segment_the_largest_nodes_capacity_counts_and_no_sum(world: World) -> None:
    world.vendors = {"n1": has(GIB), "n2": has(3 * GIB), "n3": has(2 * GIB)}
    assert await free(world) == 3 * GIB


async def test_the_largest_is_the_one_on_which_the_largest_volume_fits(world: World) -> None:
    world.vendors = {"n1": has(9 * GIB, largest=GIB), "n2": has(2 * GIB), "n3": has(2 * GIB, largest=2 * GIB)}
    assert await free(world) == 2 * GIB


async def test_several_nodes_in_a_vendors_own_zone_have_the_largest_ones_and_are_asked_for_the_zone(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, *(report(f"n{i}", segments={"zone": "b" if i == 3 else "a"}) for i in (1, 2, 3)))
    world.vendors = {"n1": has(1), "n2": has(2), "n3": has(3)}
    asked = await world.ask("GetCapacity", request({"zone": "a"}))
    assert csi.GetCapacityResponse.FromString(asked.body).available_capacity == 2
    assert {call[2] for call in world.calls} == {request({"zone": "a"}).SerializeToString()}
    await world.placement.close()


async def test_a_segment_of_no_node_has_none(world: World) -> None:
    assert await free(world, "n9") == 0
    assert not world.calls


async def test_a_segment_may_be_that_of_a_node_which_has_not_told_its_own_yet(tmp_path: Path) -> None:
    world = World(tmp_path, report("n1", segments={"zone": "a"}), report("n2", segments={}))
    with pytest.raises(NoNodeFits, match="edge node n2 has not told its topology yet"):
        await world.ask("GetCapacity", request({"zone": "b"}))
    await world.placement.close()


async def test_lost_reports_may_have_been_of_the_largest_node(tmp_path: Path) -> None:
    world = World(tmp_path, report("n1"), lost=("hub.db was damaged",))
    with pytest.raises(KnowledgeLost):
        await free(world)
    await world.placement.close()


async def test_the_only_nodes_answer_passes_as_it_is(tmp_path: Path) -> None:
    world = World(tmp_path, report("n1"))
    world.refuse("n1", Code.INVALID_ARGUMENT)
    assert (await world.ask("GetCapacity", request())).status.code == Code.INVALID_ARGUMENT
    await world.placement.close()


# -------------------- slow nodes --------------------


@pytest.mark.usefixtures("no_patience")
async def test_a_slow_nodes_last_answer_counts_and_its_next_one_is_taken_when_it_comes(world: World) -> None:
    world.vendors["n1"] = has(5)
    assert await free(world, "n1") == 5
    slow = world.vendors["n1"] = Slow(has(7))
    assert [await free(world, "n1") for _ in range(3)] == [5, 5, 5]
    assert len(world.calls) == 2  # it is not asked again while it is at it
    slow.go.set()
    await asyncio.gather(*world.placement._capacity._running.values())
    world.vendors["n1"] = Slow(has(9))
    assert await free(world, "n1") == 7


@pytest.mark.usefixtures("no_patience")
async def test_a_last_answer_counts_for_its_own_request_and_for_ten_minutes(world: World) -> None:
    world.vendors["n1"] = has(5)
    assert await free(world, "n1", type="fast") == 5
    slow = world.vendors["n1"] = Slow(has(7))
    waiting = asyncio.create_task(free(world, "n1", type="slow"))
    assert await free(world, "n1", type="fast") == 5
    world.monotonic += 601.0
    late = asyncio.create_task(free(world, "n1", type="fast"))
    await asyncio.sleep(0)
    slow.go.set()
    assert (await waiting, await late) == (7, 7)


async def test_a_slow_node_without_a_last_answer_takes_its_callers_time_and_no_more(world: World) -> None:
    world.vendors["n1"] = Slow(has(7))
    with pytest.raises(CallTimeout, match="edge node n1"):
        await world.ask("GetCapacity", request(on("n1")), timeout_s=0.0)


async def test_the_last_answers_of_a_node_are_bounded(world: World) -> None:
    world.vendors["n1"] = has(5)
    for i in range(40):
        await free(world, "n1", type=str(i))
    assert len(world.placement._capacity._last[DRIVER, "n1"]) == 16
    world.vendors["n1"] = lambda _: (csi.GetCapacityResponse(available_capacity=6).SerializeToString() * 200, OK)
    assert await free(world, "n1", type="large") == 6
    world.away = {"n1"}
    with pytest.raises(NodeOffline):
        await free(world, "n1", type="large")


# -------------------- nodes that are away, or answer with errors --------------------


async def test_a_node_that_is_away_keeps_its_last_answer_for_the_grace_and_has_nothing_then(world: World) -> None:
    world.vendors["n1"] = has(5)
    assert await free(world, "n1") == 5
    world.away, world.since["n1"] = {"n1"}, world.now
    world.now += GRACE_S - 1.0
    assert await free(world, "n1") == 5
    world.now += 1.0
    assert await free(world, "n1") == 0
    world.away = set()
    assert await free(world, "n1") == 5


async def test_a_node_that_left_before_it_answered_is_an_error_until_the_grace_is_over(world: World) -> None:
    world.away, world.since["n1"] = {"n1"}, world.now
    with pytest.raises(NodeOffline):
        await free(world, "n1")
    world.now += GRACE_S
    assert await free(world, "n1") == 0


async def test_after_its_own_start_the_hub_waits_for_a_node_that_left_long_before(world: World) -> None:
    world.away, world.since["n1"] = {"n1"}, world.now - 3_600.0
    with pytest.raises(NodeOffline):
        await free(world, "n1")
    world.now += GRACE_S
    assert await free(world, "n1") == 0


async def test_a_node_that_is_away_or_broken_takes_nothing_from_the_others(world: World) -> None:
    world.vendors = {"n1": has(5), "n2": lambda _: (None, Status(Code.INTERNAL, "no")), "n3": has(9)}
    world.away = {"n3"}
    assert await free(world) == 5


async def test_if_no_node_answers_the_vendors_own_error_is_the_answer(world: World) -> None:
    world.refuse("n2", Code.INTERNAL)
    world.away = {"n1", "n3"}
    assert (await world.ask("GetCapacity", request())).status.code == Code.INTERNAL


async def test_all_nodes_away_for_long_have_nothing(world: World) -> None:
    world.away = {"n1", "n2", "n3"}
    with pytest.raises(NodeOffline):
        await free(world)
    world.now += GRACE_S
    assert await free(world) == 0


async def test_a_refused_nodes_last_answer_does_not_count(world: World) -> None:
    world.vendors["n1"] = has(5)
    assert await free(world, "n1") == 5
    world.refused["n1"] = "so it is"
    world.placement.changed(DRIVER)
    with pytest.raises(ReportRefused):
        await free(world, "n1")


async def test_an_answer_that_does_not_parse_is_no_capacity(world: World) -> None:
    world.vendors["n1"] = lambda _: (b"\xff", OK)
    with pytest.raises(VendorBroken, match="does not parse"):
        await free(world, "n1")
    world.vendors["n2"] = has(3)
    assert await free(world) == 3


async def test_nodes_that_lack_the_capability_are_left_out(tmp_path: Path) -> None:
    can = (RPC.CREATE_DELETE_VOLUME, RPC.GET_CAPACITY)
    world = World(tmp_path, *(report(f"n{i}", capabilities=can if i < 3 else can[:1]) for i in (1, 2, 3)))
    world.vendors = {"n1": has(1), "n2": has(2), "n3": has(3)}
    assert await free(world) == 2
    with pytest.raises(CapabilityMissing, match="n3"):
        await free(world, "n3")
    await world.placement.close()


async def test_what_is_kept_of_a_node_goes_with_it(world: World) -> None:
    world.vendors["n1"] = has(5)
    assert await free(world, "n1") == 5
    await world.placement.forget("n1")
    world.away = {"n1"}
    with pytest.raises(NodeOffline):
        await free(world, "n1")


async def test_a_caller_that_leaves_leaves_the_question_to_the_next_one(world: World) -> None:
    slow = world.vendors["n1"] = Slow(has(7))
    first = asyncio.create_task(free(world, "n1"))
    await slow.asked.wait()
    first.cancel()
    await asyncio.wait([first])
    second = asyncio.create_task(free(world, "n1"))
    for _ in range(5):  # until it waits for the same question
        await asyncio.sleep(0)
    slow.go.set()
    assert await second == 7
    assert len(world.calls) == 1
