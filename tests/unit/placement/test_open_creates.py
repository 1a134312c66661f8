"""A driver whose creates end without an answer: how many names the hub keeps for it, and what goes on at the limit."""

import asyncio

import pytest

from cloud.claims.book import DELETED_KEPT_S
from cloud.proxy.driver_settings import Mode
from common.errors import CallError
from common.status import Code, Status
from tests.kit.placed_nodes import OK, Placed, Placing, create, delete, on, report

MOST = 8
REFUSAL = "raise --max-open-creates of the hub"

NODES = ("n1", "n2", "n3")


@pytest.fixture
async def world(placed: Placing) -> Placed:
    """Node n1 of a hub with a low limit."""
    return placed(report("n1"), most_open=MOST)


async def fill(world: Placed, node: str, mode: str = Mode.LOCAL) -> int:
    """Let creates of new names at a node end in doubt, until the hub refuses one. Returns how many it took."""
    world.refuse(node, Code.UNAVAILABLE)
    for number in range(MOST + 1):
        try:
            await world.ask("CreateVolume", create(f"{node}-{number}", on(node)), mode=mode)
        except CallError as error:
            if REFUSAL not in str(error):
                raise
            return number
    raise AssertionError("the hub takes any number of names")


@pytest.mark.parametrize("mode", [Mode.LOCAL, Mode.PINNED])
async def test_a_driver_has_a_limited_number_of_creates_in_doubt_also_after_a_restart(world: Placed, mode: str) -> None:
    assert await fill(world, "n1", mode) == MOST
    await world.restart()
    with pytest.raises(CallError, match=REFUSAL):
        await world.ask("CreateVolume", create("pvc-1", on("n1")), mode=mode)
    assert not world.holder("pvc-1")


@pytest.mark.parametrize("mode", [Mode.LOCAL, Mode.PINNED])
async def test_creates_that_run_at_once_count_as_those_in_doubt(world: Placed, mode: str) -> None:
    gate = asyncio.get_running_loop().create_future()
    world.vendors["n1"] = lambda _: gate
    asked = (world.ask("CreateVolume", create(f"pvc-{number}", on("n1")), mode=mode) for number in range(2 * MOST))
    running = [asyncio.create_task(each) for each in asked]
    await asyncio.wait(running, return_when=asyncio.FIRST_EXCEPTION)
    gate.set_result((None, Status(Code.RESOURCE_EXHAUSTED)))
    ends = await asyncio.gather(*running, return_exceptions=True)
    assert sum(REFUSAL in str(end) for end in ends) == MOST
    world.make("n1")
    assert (await world.ask("CreateVolume", create("after", on("n1")), mode=mode)).status == OK
    assert not world.book.open_counts


@pytest.mark.parametrize("mode", [Mode.LOCAL, Mode.PINNED])
async def test_at_the_limit_retries_pass_and_each_that_ends_makes_room(world: Placed, mode: str) -> None:
    await fill(world, "n1", mode)
    asked = await world.ask("CreateVolume", create("n1-0", on("n1")), mode=mode)
    assert (asked.node, asked.status.code) == ("n1", Code.UNAVAILABLE)
    world.make("n1", "vol-0")
    assert (await world.ask("CreateVolume", create("n1-0", on("n1")), mode=mode)).status == OK
    world.make("n1", "vol-1")
    assert (await world.ask("CreateVolume", create("pvc-1", on("n1")), mode=mode)).status == OK


async def test_a_node_that_leaves_all_its_creates_in_doubt_leaves_room_for_the_others(
    placed: Placing,
) -> None:
    world = placed(*map(report, NODES), most_open=MOST)
    assert MOST // 2 < await fill(world, "n1") < MOST
    world.make("n2", "vol-2")
    for number in range(2 * MOST):
        assert (await world.ask("CreateVolume", create(f"n2-{number}", on("n2")))).status == OK


async def test_deletes_and_creates_of_volumes_that_exist_pass_at_the_limit(world: Placed) -> None:
    await world.has_made("n1")
    await fill(world, "n1")
    world.make("n1", "vol-1")
    assert (await world.ask("CreateVolume", create("pvc-1", on("n1")))).status == OK
    assert (await world.ask("DeleteVolume", delete("vol-1"))).status == OK


async def test_invented_ids_of_deleted_volumes_leave_a_limited_number_of_records_for_an_hour(
    world: Placed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloud.claims.book.MOST_DELETED", MOST)
    await world.has_made("n1")
    for number in range(2 * MOST):
        assert (await world.ask("DeleteVolume", delete(f"invented-{number}"))).status == OK
    assert sum(world.disk.has(f"invented-{number}") for number in range(2 * MOST)) == MOST
    assert (await world.ask("DeleteVolume", delete("vol-1"))).status == OK
    assert world.book.ids
    world.now += DELETED_KEPT_S + 1
    await world.ask("DeleteVolume", delete("later"))
    assert [world.disk.has(volume) for volume in ("invented-0", "vol-1", "later")] == [False, False, True]
