"""What an operator lets the hub forget, and where that failed halfway."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from cloud.hub_process import Assembled, assemble
from cloud.placement.decisions import Mode
from cloud.placement.requests import VOLUME, Thing
from cloud.placement.sqlite_claims import SqliteClaims
from cloud.store import Store
from cloud.sync_part import SyncPart
from cloud.trust.policy_file import PolicyFile
from cloud.trust.trust_store import TrustStore
from common.certificate_ends import CertificateEnds
from common.messages import Kind
from common.metrics import Metrics
from common.peer import Peer as Address
from common.reports import encode_reports
from common.status import Code, Status
from common.version import introduce
from tests.support.audit import RecordedAudit
from tests.support.linked import Peer, cut, link_pair
from tests.support.waiting import settle, until
from tests.unit.placement.world import DRIVER, Disk, World, create, report

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine
    from pathlib import Path

    from common.link import Link
    from common.messages import Hello
    from tests.unit.placement.world import Asked


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[Assembled]:
    store = Store(tmp_path)
    trust = TrustStore(tmp_path)
    made = assemble(
        store,
        SqliteClaims(tmp_path),
        Metrics(),
        SyncPart(),
        audit=RecordedAudit(),
        trust=trust,
        policy=PolicyFile(None, tmp_path, audit=RecordedAudit()),
        ends=CertificateEnds(None, None, Metrics()),
        insecure=True,
        max_nodes=3,
        settings={},
    )
    yield made
    await made.placement.close()
    await trust.close()
    await store.close()


async def come(hub: Assembled, hello: Hello, *, local: bool) -> tuple[Link, Link]:
    """A peer's link, at the hub's end and at its own."""
    links = link_pair(hub.hub, Peer(accepts=False), hello, identity=Address("here", local=local, uid=0))
    await settle()
    return links


async def forgotten(operator: Link, node: str) -> Status:
    """How an operator's order ends."""
    stream = operator.open(Kind.FORGET, node=node)
    while await stream.receive() is not None:
        pass
    assert stream.status is not None
    return stream.status


async def test_a_node_whose_things_could_not_be_forgotten_can_be_forgotten_again(
    hub: Assembled, tmp_path: Path
) -> None:
    at_hub, agent = await come(hub, introduce("edge", "n1", instance="i", boot=1), local=False)
    agent.open(Kind.REPORT, encode_reports([report("n1")]))
    await settle()
    placement, disk = hub.placement, Disk(tmp_path)
    placement.claims.record_later(DRIVER, "n1", Thing(VOLUME, "vol-1"), "CreateVolume pvc-1")
    await until(lambda: disk.has("vol-1"))
    cut(at_hub)
    await settle()
    at_hub, operator = await come(hub, introduce("operator", "", instance="o"), local=True)
    disk.fill()
    status = await forgotten(operator, "n1")
    assert (status.code, "disk is full" in status.message) == (Code.UNAVAILABLE, True)
    assert await placement.knows("n1")
    disk.empty()
    assert (await forgotten(operator, "n1")).ok
    assert not await placement.knows("n1")
    assert "the hub knows no such node" in (await forgotten(operator, "n1")).message
    cut(at_hub)
    await settle()


async def test_nothing_is_forgotten_that_a_node_makes_while_it_is_being_forgotten(tmp_path: Path) -> None:
    world = World(tmp_path, report("n1"))

    def create_at_n1(name: str) -> Coroutine[Any, Any, Asked]:
        return world.ask("CreateVolume", create(name), mode=Mode.PINNED, wanted="n1", delivered=False)

    world.make("n1", "vol-before")
    await create_at_n1("before")
    with world.disk.slow():
        forgetting = asyncio.create_task(world.placement.forget("n1"))
        await settle()
        world.make("n1", "vol-meanwhile")
        await create_at_n1("meanwhile")
        world.refuse("n1", Code.UNAVAILABLE)
        await create_at_n1("in doubt")
        gate = asyncio.get_running_loop().create_future()
        world.vendors["n1"] = lambda _: gate
        running = asyncio.create_task(create_at_n1("runs on"))
        await settle()
    await forgetting
    gate.set_result((None, Status(Code.UNAVAILABLE)))
    await running
    for _ in range(2):
        assert [world.places(volume) for volume in ("vol-before", "vol-meanwhile")] == [[], ["n1"]]
        assert [world.holder(name) for name in ("CreateVolume in doubt", "CreateVolume runs on")] == ["n1", "n1"]
        await world.restart()
    await world.placement.close()
