"""An operator's order to abandon a node: when the hub refuses it, and what the hub does last."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from cloud.abandon.release import NotReleased, Pass
from cloud.placement.requests import GROUP, SNAPSHOT, Thing
from cloud.sync_part import SyncPart
from common.messages import Kind
from common.operator_orders import Released
from tests.kit.hub_world import World, report, running
from tests.kit.linked import cut
from tests.kit.waiting import settle

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from cloud.abandon.own_storage import Owner, Records

_GOES, _KEPT = Released(kind="PersistentVolume", name="pv", fate="goes"), Released(kind="Node", name="n1", fate="kept")


class FakeRelease:
    """A cluster whose objects a test sets."""

    def __init__(self) -> None:
        self.found: list[Released] = []
        self.runs: list[bool] = []
        self.error: NotReleased | None = None
        self.began, self.may_go_on = asyncio.Event(), asyncio.Event()
        self.may_go_on.set()

    async def run(self, node: str, owner: Owner, records: Records, *, is_dry: bool) -> Pass:
        self.records = records
        assert owner("d", "csi-bridge.io/node", node) == node
        self.runs.append(is_dry)
        self.began.set()
        await self.may_go_on.wait()
        if self.error is not None:
            raise self.error
        return Pass(self.found, {node}, {"shop"})


class Site:
    """A hub with a cluster, and its node n1, which is away."""

    def __init__(self, world: World, release: FakeRelease) -> None:
        self.world, self.release = world, release

    async def order(self, name: str, **arguments: Any) -> tuple[dict[str, Any], str]:
        """The answer to an order, and its refusal."""
        stream = (await self.world.operator()).open(Kind.ORDER, json.dumps(arguments).encode(), method=name)
        said = b"".join([message async for message in stream])
        assert stream.status is not None
        return json.loads(said or b"{}"), stream.status.message

    async def abandon(self, *, sure: bool = True) -> tuple[dict[str, Any], str]:
        return await self.order("abandon", node="n1", sure=sure)


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    release = FakeRelease()
    async with running(World(tmp_path, SyncPart(release=release))) as world:
        await world.edge()
        world.nodes.report("n1", [report()])
        cut(world.links[-1])
        await settle()
        yield Site(world, release)


async def test_a_snapshot_of_storage_that_every_node_reaches_is_not_the_nodes_own(site: Site) -> None:
    await site.order("deny", subject="n1")
    for driver in ("disk.example", "nfs.example"):
        for made in (Thing(SNAPSHOT, "snap-1"), Thing(GROUP, "group-1")):
            site.world.placement.claims.record_later(driver, "n1", made, "CreateVolumeGroupSnapshot s")
    site.world.placement.elections.want("nfs.example")
    await site.abandon(sure=False)
    assert site.release.records.alone == {("disk.example", "snap-1")}
    assert site.release.records.groups == {("disk.example", "group-1")}


async def test_a_node_that_may_come_back_is_not_abandoned(site: Site) -> None:
    _, refusal = await site.abandon(sure=False)
    assert refusal == "edge node n1 is not abandoned: n1 may come back; first run csi-bridge deny n1"
    assert site.release.runs == []


async def test_a_node_whose_certificate_alone_is_denied_is_not_abandoned(site: Site) -> None:
    await site.order("deny", subject="serial=1A")
    _, refusal = await site.abandon()
    assert "n1 may come back" in refusal


async def test_a_dry_run_lists_the_objects_with_the_command_that_allows_it(site: Site) -> None:
    site.release.found = [_GOES]
    await site.order("deny", subject="n1")
    answer, _ = await site.abandon(sure=False)
    assert answer["found"] == [{"kind": "PersistentVolume", "name": "pv", "fate": "goes", "why": ""}]
    assert answer["done"] is False
    assert "kubectl patch validatingadmissionpolicy csi-bridge-hub-abandon" in answer["said"][1]
    assert r'"value": "{\"n1\": \"shop\"}"' in answer["said"][1]
    assert site.release.runs == [True]


async def test_the_node_is_forgotten_once_all_is_released_and_stays_denied(site: Site) -> None:
    await site.order("deny", subject="n1")
    site.release.found = [_GOES]
    assert (await site.abandon())[0]["done"] is False
    assert site.world.nodes.knows("n1")
    site.release.found = [_KEPT]
    assert (await site.abandon())[0]["done"] is True
    assert not site.world.nodes.knows("n1")
    assert (await site.abandon())[0]["done"] is True  # again: nothing is left


async def test_a_node_that_is_being_abandoned_cannot_be_allowed(site: Site) -> None:
    await site.order("deny", subject="n1")
    site.release.found = [_GOES]
    site.release.may_go_on.clear()
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(site.abandon())
        await site.release.began.wait()
        _, refusal = await site.order("allow", subject="n1")
        assert refusal.startswith("edge node n1 stays denied: its storage is being released now")
        _, second = await site.abandon()
        assert "another operator's order for it is under way" in second
        site.release.may_go_on.set()
    assert first.result()[0]["found"]
    assert (await site.order("allow", subject="n1"))[1] == ""
    assert "n1 may come back" in (await site.abandon())[1]


async def test_a_node_of_a_kubelet_stands_in_the_way(site: Site) -> None:
    await site.order("deny", subject="n1")
    site.release.found = [Released(kind="Node", name="n1", fate="blocks", why="delete it"), _GOES]
    _, refusal = await site.abandon()
    assert refusal == "edge node n1 is not abandoned: Node n1 is in the way; delete it"
    assert site.release.runs == [True]


async def test_without_permission_the_hub_names_the_files_and_the_command(site: Site) -> None:
    await site.order("deny", subject="n1")
    site.release.error = NotReleased("Kubernetes: no", is_forbidden=True)
    _, refusal = await site.abandon()
    assert "apply deploy/cloud/abandon, and run kubectl patch validatingadmissionpolicy" in refusal


async def test_a_hub_without_a_cluster_releases_nothing(tmp_path: Path) -> None:
    async with running(World(tmp_path)) as world:
        site = Site(world, FakeRelease())
        await site.order("deny", subject="n1")
        assert "follows no Kubernetes cluster" in (await site.abandon())[1]
