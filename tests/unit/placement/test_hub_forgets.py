"""What an operator lets the hub forget, and where that failed halfway."""

import asyncio
from functools import partial
from pathlib import Path

from cloud.claims.rules import VOLUME, Thing
from cloud.proxy.driver_settings import Mode
from common.csi.reports import encode_reports
from common.messages import Kind
from common.status import Code, Status
from tests.kit.hub_in_memory import Hub, running
from tests.kit.linked import cut
from tests.kit.placed_nodes import DRIVER, Placing, create, record, report
from tests.kit.waiting import settle


async def test_a_node_whose_things_could_not_be_forgotten_can_be_forgotten_again(tmp_path: Path) -> None:
    async with running(Hub(tmp_path)) as hub:
        agent = await hub.edge("n1")
        agent.open(Kind.REPORT, encode_reports([report("n1")]))
        await settle()
        placement = hub.placement
        record(placement.claims, DRIVER, "n1", Thing(VOLUME, "vol-1"), "CreateVolume pvc-1")
        cut(hub.links[0])
        await settle()
        hub.records.room = 0
        status = await hub.forget("n1")
        assert (status.code, "no space left on device" in status.message) == (Code.UNAVAILABLE, True)
        assert placement.claims.knows("n1")
        hub.records.room = None
        assert (await hub.forget("n1")).ok
        assert not placement.claims.knows("n1")
        assert "the hub knows no such node" in (await hub.forget("n1")).message


async def test_nothing_is_forgotten_that_a_node_makes_while_it_is_being_forgotten(placed: Placing) -> None:
    world = placed(report("n1"))

    create_at_n1 = partial(world.ask, "CreateVolume", mode=Mode.PINNED, wanted="n1", delivered=False)
    world.make("n1", "vol-before")
    await create_at_n1(create("before"))
    with world.disk.slow():
        forgetting = asyncio.create_task(world.placement.forget("n1"))
        await settle()
        world.make("n1", "vol-meanwhile")
        await create_at_n1(create("meanwhile"))
        world.refuse("n1", Code.UNAVAILABLE)
        await create_at_n1(create("in doubt"))
        gate = asyncio.get_running_loop().create_future()
        world.vendors["n1"] = lambda _: gate
        created = asyncio.create_task(create_at_n1(create("runs on")))
        await settle()
    await forgetting
    gate.set_result((None, Status(Code.UNAVAILABLE)))
    await created
    for _ in range(2):
        assert [world.places(volume) for volume in ("vol-before", "vol-meanwhile")] == [[], ["n1"]]
        assert [world.holder(name) for name in ("CreateVolume in doubt", "CreateVolume runs on")] == ["n1", "n1"]
        await world.restart()
