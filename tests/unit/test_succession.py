"""A successor: a new node, with the disk of an old one, serves the old one's volumes by an operator's order."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from cloud.mounts import Mounts
from cloud.placement.claim_store import NO_NAME
from cloud.placement.requests import VOLUME, Thing
from cloud.sources.source import Item, Objects
from cloud.store import StoredSegment
from cloud.sync_part import SyncPart
from cloud.unique_segments import UniqueKeys, UniqueSegments
from common.csi import csi_pb2 as csi
from common.messages import Kind
from common.objects import Ref, Stamp
from common.reports import (
    CONTROLLER_GET_CAPABILITIES,
    GET_PLUGIN_CAPABILITIES,
    GET_PLUGIN_INFO,
    NODE_GET_INFO,
    Answer,
    DriverReport,
)
from tests.kit.hub_world import DRIVER, World, running
from tests.kit.linked import cut
from tests.kit.waiting import settle, until
from tests.unit.placement.world import Disk

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

_VOL = Thing(VOLUME, "vol-1")


def report(node: str) -> DriverReport:
    """Of a driver without a topology."""
    return DriverReport(
        DRIVER,
        node,
        {
            GET_PLUGIN_INFO: Answer(0, body=csi.GetPluginInfoResponse(name=DRIVER).SerializeToString()),
            GET_PLUGIN_CAPABILITIES: Answer(0, body=b""),
            CONTROLLER_GET_CAPABILITIES: Answer(0, body=b""),
            NODE_GET_INFO: Answer(0, body=csi.NodeGetInfoResponse(node_id=node).SerializeToString()),
        },
    )


class Stored:
    """The segments that were on disk."""

    def __init__(self, rows: list[StoredSegment]) -> None:
        self.segments = rows.copy
        self.drop_segment = rows.remove
        self.save_segment = rows.append

    async def move_segments(self, node: str, successor: str, more: Sequence[StoredSegment]) -> None:
        raise AssertionError


class Site:
    """A hub with a volume on the node old, which is away, and with the node new."""

    def __init__(self, world: World, objects: Objects, written: list[str]) -> None:
        self.world, self.objects, self.written = world, objects, written

    async def order(self, name: str, **arguments: str) -> str:
        """An order's refusal, empty if it was carried out."""
        stream = (await self.world.operator()).open(Kind.ORDER, json.dumps(arguments).encode(), method=name)
        async for _ in stream:
            pass
        assert stream.status is not None
        return stream.status.message

    async def replace(self, old: str = "old", new: str = "new") -> str:
        return await self.order("replace", node=old, successor=new)

    async def replace_in_turn(self) -> None:
        """New replaces old, and is away and denied then. The node third has come."""
        await self.order("deny", subject="old")
        assert await self.replace() == ""
        cut(next(link for link in self.world.links if link.peer.name == "new"))
        await self.order("deny", subject="new")
        await self.world.edge("third")
        self.world.nodes.report("third", [report("third")])

    def die_once(self) -> None:
        """Let the hub die at the second step of the next order."""
        move, failures = self.world.placement.claims.move, [OSError("killed")]

        async def killed(node: str, successor: str) -> None:
            if failures:
                raise failures.pop()
            await move(node, successor)

        self.world.placement.claims.move = killed  # type: ignore[method-assign]  # the hub dies here

    def put_volume(self, node: str) -> None:
        """A PersistentVolume of a node."""
        term = {"matchExpressions": [{"key": "csi-bridge.io/node", "operator": "In", "values": [node]}]}
        spec = {
            "csi": {"driver": DRIVER, "volumeHandle": _VOL.id},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
        }
        body = {"metadata": {"name": f"pv-{node}"}, "spec": spec}
        self.objects.update({Ref("PersistentVolume", "", f"pv-{node}"): Item(Stamp("u", node), body)})

    def at(self, value: str) -> list[str]:
        """The nodes in the segment of a value."""
        return self.world.placement.fleet(DRIVER).at({"csi-bridge.io/node": value})

    async def holders(self) -> list[str]:
        """The nodes that have the volume."""
        return (await self.world.placement.claims.look(DRIVER, "", [_VOL])).ids[_VOL].made


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    objects, written = Objects(), list[str]()
    objects.update({}, ready=True)
    part = SyncPart(source=objects, write_again=written.append, mounts=Mounts(objects, node_state=lambda _: None))
    async with running(World(tmp_path, part)) as world:
        site = Site(world, objects, written)
        await world.edge("old")
        world.nodes.report("old", [report("old")])
        world.placement.claims.record_later(DRIVER, "old", _VOL, "CreateVolume x")
        cut(world.links[-1])
        await settle()
        site.put_volume("old")
        await world.edge("new")
        world.nodes.report("new", [report("new")])
        disk = Disk(tmp_path)
        await until(lambda: disk.has(_VOL.id))  # a record that waits to be written cannot be moved
        yield site


async def test_the_successor_has_the_volumes_and_the_segment_and_the_old_node_is_forgotten(site: Site) -> None:
    assert (site.at("old"), site.at("new")) == (["old"], ["new"])
    await site.order("deny", subject="old")
    assert await site.replace() == ""
    assert (site.at("old"), site.at("new")) == (["new"], [])
    assert await site.holders() == ["new"]
    assert not site.world.nodes.knows("old")
    assert site.written == ["new"]
    fleet = site.world.placement.fleet(DRIVER)
    assert site.world.placement.affinity is not None
    assert site.world.placement.affinity.fit(_VOL.id, DRIVER, fleet).named == ["new"]


async def test_the_old_machine_gets_nothing_if_it_comes_back_under_its_name(site: Site) -> None:
    await site.order("deny", subject="old")
    assert await site.replace() == ""
    assert await site.order("allow", subject="old") == ""
    await site.world.edge("old")
    site.world.nodes.report("old", [report("old")])
    assert "edge node new is its successor" in site.world.nodes.why_refused(DRIVER, "old")
    assert site.at("old") == ["new"]


async def test_the_succession_survives_a_restart_and_ends_with_the_successor(site: Site, tmp_path: Path) -> None:
    await site.order("deny", subject="old")
    await site.replace()
    with closing(sqlite3.connect(tmp_path / "hub.db")) as database:
        rows = [StoredSegment(*row) for row in database.execute("SELECT key, value, driver, node FROM segments")]
    known = UniqueSegments(Stored(rows), UniqueKeys())
    assert known.value_of("new") == "old"
    assert known.owner("csi-bridge.io/node", "old", ()) == "new"
    assert known.owner("csi-bridge.io/node", "new", ()) == ""
    known.forget("new")
    assert (known.value_of("new"), known.owner("csi-bridge.io/node", "old", ())) == ("new", "old")


async def test_a_node_that_may_come_back_is_not_replaced(site: Site) -> None:
    assert (
        await site.replace() == "edge node new does not replace old: old may come back; first run csi-bridge deny old"
    )
    assert site.at("old") == ["old"]


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("old", "old", "they are one node"),
        ("old", "nobody", "the hub knows no edge node nobody"),
        ("ghost", "new", "the hub knows no edge node ghost"),
    ],
)
async def test_both_nodes_must_be_known_and_two(site: Site, old: str, new: str, why: str) -> None:
    await site.order("deny", subject="old")
    await site.order("deny", subject="ghost")
    assert why in await site.order("replace", node=old, successor=new)


async def test_a_denied_node_is_no_successor(site: Site) -> None:
    await site.order("deny", subject="old")
    await site.order("deny", subject="new")
    assert "new is denied" in await site.replace()


async def test_a_node_with_volumes_of_its_own_is_no_successor(site: Site) -> None:
    await site.order("deny", subject="old")
    site.put_volume("new")
    assert "new has volumes of its own, such as PersistentVolume pv-new" in await site.replace()


async def test_a_hub_that_has_lost_a_succession_gets_it_again(site: Site) -> None:
    await site.order("deny", subject="old")
    await site.replace()
    site.world.nodes._judge.segments.forget("new")  # hub.db is lost, and placement.db is not
    assert await site.replace() == ""
    assert site.world.nodes._judge.segments.value_of("new") == "old"  # as above


async def test_a_node_with_another_volume_than_the_old_ones_is_no_successor(site: Site) -> None:
    await site.order("deny", subject="old")
    site.world.placement.claims.record_later(DRIVER, "new", Thing(VOLUME, "vol-2"), "CreateVolume z")
    assert "new has volumes of its own, such as volume vol-2" in await site.replace()


async def test_a_node_with_a_create_under_way_is_no_successor(site: Site) -> None:
    await site.order("deny", subject="old")
    await site.world.placement.claims.claim(DRIVER, "CreateVolume y", "new", NO_NAME)
    assert "new has volumes of its own" in await site.replace()


async def test_a_node_with_a_call_of_a_shared_driver_under_way_is_a_successor(site: Site) -> None:
    await site.order("deny", subject="old")
    site.world.placement.elections.want("nfs.example")
    await site.world.placement.claims.claim("nfs.example", "DeleteVolume v", "new", NO_NAME)
    assert await site.replace() == ""


async def test_an_order_that_was_cut_off_after_its_first_step_goes_on(site: Site) -> None:
    await site.order("deny", subject="old")
    site.die_once()
    await site.replace()
    assert await site.holders() == ["old"]
    assert await site.replace() == ""
    assert await site.holders() == ["new"]


async def test_a_successor_is_replaced_in_its_turn(site: Site) -> None:
    await site.replace_in_turn()
    assert await site.replace("new", "third") == ""
    assert (site.at("old"), site.at("new"), site.at("third")) == (["third"], [], [])
    assert await site.holders() == ["third"]


async def test_the_replacement_of_a_successor_goes_on_after_it_was_cut_off(site: Site, tmp_path: Path) -> None:
    await site.replace_in_turn()
    site.die_once()
    await site.replace("new", "third")
    segments = site.world.nodes._judge.segments
    with closing(sqlite3.connect(tmp_path / "hub.db")) as database:
        rows = [StoredSegment(*row) for row in database.execute("SELECT key, value, driver, node FROM segments")]
    for known in (segments, UniqueSegments(Stored(rows), UniqueKeys())):  # also after a restart
        assert (known.successor_of("new"), known.value_of("third")) == ("third", "old")
    await site.world.edge("fourth")
    assert "an order to replace it by third was cut off; first run csi-bridge replace new third again" in (
        await site.replace("new", "fourth")
    )
    assert await site.replace("new", "third") == ""
    assert await site.holders() == ["third"]
    assert (segments.successor_of("new"), segments.value_of("third")) == ("", "old")


async def test_a_node_whose_kubelet_labels_it_is_no_successor(site: Site) -> None:
    await site.order("deny", subject="old")
    body = {"metadata": {"name": "new", "labels": {"csi-bridge.io/node": "new"}}}
    site.objects.update({Ref("Node", "", "new"): Item(Stamp("u", "1"), body)})
    assert "its kubelet labels its Node csi-bridge.io/node=new; give the machine the name old" in await site.replace()
    made = {"metadata": {**body["metadata"], "annotations": {"csi-bridge.io/made-by": "hub"}}}
    site.objects.update({Ref("Node", "", "new"): Item(Stamp("u", "2"), made)})
    assert await site.replace() == ""
