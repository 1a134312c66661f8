"""The hub's part in an abandonment: what is the node's own, and when the hub refuses to say it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from cli import main
from cli.abandon import Progress
from cloud.abandon.cluster_release import GOES, Released
from cloud.placement.requests import GROUP, SNAPSHOT, VOLUME, Thing
from cloud.sources.source import Item, Objects
from cloud.sync_part import NoSync, SyncPart
from common.errors import BridgeError
from common.messages import Kind
from common.objects import Ref, Stamp
from tests.kit.hub_world import World, report, running
from tests.kit.linked import cut
from tests.kit.waiting import settle

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


class Facts(NoSync):
    """The facts of nodes, which count how often they are forgotten."""

    def __init__(self) -> None:
        self.forgotten: list[str] = []

    async def forget(self, node: str) -> None:
        self.forgotten.append(node)


class Site:
    """A hub with a cluster, and its node n1, which is away."""

    def __init__(self, world: World, source: Objects, facts: Facts) -> None:
        self.world, self.source, self.facts = world, source, facts

    def add_volume(self, name: str, node: str) -> None:
        term = {"matchExpressions": [{"key": "csi-bridge.io/node", "operator": "In", "values": [node]}]}
        spec = {
            "csi": {"driver": "disk.example", "volumeHandle": name},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
        }
        body = {"metadata": {"name": name, "uid": f"uid-{name}"}, "spec": spec}
        self.source.update({Ref("PersistentVolume", "", name): Item(Stamp(f"uid-{name}", "1"), body)})

    async def order(self, name: str, **arguments: Any) -> tuple[dict[str, Any], str]:
        """The answer to an order, and its refusal."""
        stream = (await self.world.operator()).open(Kind.ORDER, json.dumps(arguments).encode(), method=name)
        said = b"".join([message async for message in stream])
        assert stream.status is not None
        return json.loads(said or b"{}"), stream.status.message

    async def own_storage(self) -> tuple[dict[str, Any], str]:
        return await self.order("own-storage", node="n1")


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    source, facts = Objects(), Facts()
    source.update({}, ready=True)
    async with running(World(tmp_path, SyncPart(source=source, sync=facts))) as world:
        await world.edge()
        world.nodes.report("n1", [report()])
        cut(world.links[-1])
        await settle()
        yield Site(world, source, facts)


async def test_the_hub_names_the_volumes_in_the_nodes_segment_that_no_other_node_made(site: Site) -> None:
    await site.order("deny", subject="n1")
    for name, node in (("own", "n1"), ("of-n2", "n2"), ("made-by-n2", "n1")):
        site.add_volume(name, node)
    site.world.placement.claims.record_later("disk.example", "n2", Thing(VOLUME, "made-by-n2"), "CreateVolume v")
    answer, _ = await site.own_storage()
    assert answer == {"volumes": ["uid-own"], "snapshots": [], "groups": [], "is_known": True}


async def test_a_snapshot_of_storage_that_every_node_reaches_is_not_the_nodes_own(site: Site) -> None:
    await site.order("deny", subject="n1")
    for driver in ("disk.example", "nfs.example"):
        for made in (Thing(SNAPSHOT, "snap-1"), Thing(GROUP, "group-1")):
            site.world.placement.claims.record_later(driver, "n1", made, "CreateVolumeGroupSnapshot s")
    site.world.placement.elections.want("nfs.example")
    answer, _ = await site.own_storage()
    assert answer["snapshots"] == [{"driver": "disk.example", "id": "snap-1"}]
    assert answer["groups"] == [{"driver": "disk.example", "id": "group-1"}]


@pytest.mark.parametrize("order", ["own-storage", "abandon"])
async def test_a_node_that_may_come_back_is_not_abandoned(site: Site, order: str) -> None:
    refused = "edge node n1 is not abandoned: n1 may come back; first run csi-bridge deny n1"
    assert (await site.order(order, node="n1"))[1] == refused
    await site.order("deny", subject="serial=1A")  # its certificate alone
    assert (await site.order(order, node="n1"))[1] == refused
    await site.order("deny", subject="n1")
    assert (await site.order(order, node="n1"))[1] == ""
    await site.order("allow", subject="n1")
    assert (await site.order(order, node="n1"))[1] == refused
    assert len(site.facts.forgotten) == (order == "abandon")


async def test_an_abandoned_node_is_forgotten_last(site: Site) -> None:
    await site.order("deny", subject="n1")
    await site.order("abandon", node="n1")
    assert site.facts.forgotten == ["n1"]
    assert (await site.own_storage())[0]["is_known"]
    assert (await site.world.forget("n1")).ok
    assert not (await site.own_storage())[0]["is_known"]


async def test_a_hub_that_has_not_read_the_volumes_names_none(site: Site) -> None:
    await site.order("deny", subject="n1")
    site.source.update({}, ready=False)
    assert "has not read all PersistentVolumes yet" in (await site.own_storage())[1]


async def test_a_hub_without_a_cluster_names_none(tmp_path: Path) -> None:
    async with running(World(tmp_path)) as world:
        site = Site(world, Objects(), Facts())
        await site.order("deny", subject="n1")
        assert "follows no Kubernetes cluster" in (await site.own_storage())[1]


def test_without_a_kubeconfig_the_command_says_what_it_needs() -> None:
    answer = CliRunner().invoke(main.cli, ["forget", "n1", "--abandon-volumes"])
    assert answer.exit_code == 2
    assert "needs --kubeconfig: the hub may not delete volumes" in answer.stderr


def test_the_command_shows_changes_and_gives_up_three_minutes_after_the_last_one() -> None:
    volume, claim = (Released(kind, "x", GOES, "") for kind in ("PersistentVolume", "PersistentVolumeClaim"))
    progress = Progress(0.0)
    assert progress.note([volume, claim], 100.0) == ["goes: PersistentVolume x", "goes: PersistentVolumeClaim x"]
    assert progress.note([volume, claim], 200.0) == []
    assert progress.note([volume], 270.0) == []
    with pytest.raises(BridgeError, match=r"nothing has changed for 180 s; see what holds the objects above"):
        progress.note([volume], 451.0)
