"""The written facts: kept first, written then, a Node before it is acknowledged, and again when Kubernetes lost it."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from cloud.kube import KubeError
from cloud.sync.fact_files import FactFiles
from cloud.sync.facts import FactSink
from cloud.upsync.written_facts import WrittenFacts
from common.objects import Object, Ref, Stamp

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

NODE = Ref("Node", "", "n1")
CSI_NODE = Ref("CSINode", "", "n1")
CLAIM = Ref("PersistentVolumeClaim", "default", "data")
EVENT = Ref("Event", "default", "e")
BODIES: dict[Ref, dict[str, Any]] = {
    NODE: {"metadata": {"name": "n1"}, "status": {"volumesInUse": ["v"]}},
    CSI_NODE: {"metadata": {"name": "n1"}, "spec": {"drivers": [{"name": "d.csi", "nodeID": "n1"}]}},
    CLAIM: {"metadata": {"uid": "u"}, "status": {"capacity": {"storage": "1Gi"}}},
    EVENT: {"involvedObject": {"kind": "Node", "name": "n1"}, "reason": "Bad", "message": "it is", "type": "Warning"},
}


class Closures:
    is_ready = False

    def holds(self, node: str, ref: Ref) -> bool:
        return True


class Writer:
    """Notes what it is to write, and fails on demand."""

    def __init__(self) -> None:
        self.written: list[tuple[Ref, bool]] = []
        self.down = False

    async def write(self, node: str, ref: Ref, fact: dict[str, Any] | None) -> None:
        await asyncio.sleep(0)
        if self.down:
            raise KubeError(f"patch {ref}", 0, "", "nobody answers")
        self.written.append((ref, fact is not None))

    def problems(self) -> list[str]:
        return []


class Hearts:
    def __init__(self) -> None:
        self.heard: list[str] = []

    def up(self, node: str) -> None:
        self.heard.append(f"up {node}")

    def down(self, node: str) -> None:
        self.heard.append(f"down {node}")


async def _soon(_seconds: float) -> None:
    await asyncio.sleep(0)


class World:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.writer, self.hearts = Writer(), Hearts()
        self.facts = self.make()

    def make(self) -> WrittenFacts:
        files = FactFiles(self.directory)
        writers = {ref.kind: self.writer for ref in BODIES}
        return WrittenFacts(FactSink(Closures(), files), files, writers, self.hearts, pause=_soon)

    async def tell(self, ref: Ref, version: str = "1") -> None:
        await self.facts.store("n1", Object(ref, Stamp("", version), json.dumps(BODIES[ref]).encode()))

    async def settle(self) -> list[tuple[Ref, bool]]:
        """What was written since the last time."""
        for _ in range(20):
            await asyncio.sleep(0)
        written, self.writer.written = self.writer.written, []
        return written


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = World(tmp_path)
    yield world
    await world.facts.close()


async def test_a_node_is_acknowledged_when_kubernetes_has_it(world: World) -> None:
    world.writer.down = True
    telling = asyncio.create_task(world.tell(NODE))
    while not world.facts.problems():  # noqa: ASYNC110  # the disk is another thread's
        await asyncio.sleep(0)
    assert not telling.done()
    assert NODE in world.facts.stamps("n1")  # it is kept all the same
    world.writer.down = False
    await telling
    assert await world.settle() == [(NODE, True)]
    assert world.facts.problems() == []


@pytest.mark.parametrize("ref", [CSI_NODE, CLAIM, EVENT], ids=lambda ref: str(ref.kind))
async def test_anything_else_is_acknowledged_when_it_is_kept(world: World, ref: Ref) -> None:
    world.writer.down = True
    await world.tell(ref)
    assert world.writer.written == []
    world.writer.down = False
    await world.settle()


async def test_what_was_told_before_a_start_is_looked_at_again_but_no_event(world: World) -> None:
    for ref in BODIES:
        await world.tell(ref)
    await world.settle()
    await world.facts.close()
    world.facts = world.make()
    world.facts.begin()
    assert sorted(ref.kind for ref, _ in await world.settle()) == ["CSINode", "Node", "PersistentVolumeClaim"]


async def test_what_a_node_tells_no_more_is_written_as_nothing(world: World) -> None:
    await world.tell(CLAIM)
    await world.settle()
    await world.facts.drop("n1", CLAIM, "")
    assert await world.settle() == [(CLAIM, False)]


async def test_an_event_is_written_once_and_never_taken_back(world: World) -> None:
    await world.tell(EVENT)
    assert await world.settle() == [(EVENT, True)]
    await world.facts.drop("n1", EVENT, "")
    assert await world.settle() == []


async def test_a_node_that_was_deleted_is_written_again(world: World) -> None:
    for ref in (NODE, CSI_NODE, CLAIM):
        await world.tell(ref)
    await world.settle()
    world.facts.changed(NODE, gone=False)
    assert await world.settle() == []
    world.facts.changed(NODE, gone=True)
    assert sorted(ref.kind for ref, _ in await world.settle()) == ["CSINode", "Node"]
    world.facts.changed(Ref("Node", "", "other"), gone=True)
    assert await world.settle() == []


async def test_what_is_told_of_a_claim_is_looked_at_again_when_the_claim_changes(world: World) -> None:
    await world.tell(CLAIM)
    await world.settle()
    world.facts.changed(CLAIM, gone=False)
    assert await world.settle() == [(CLAIM, True)]


async def test_a_nodes_heart_beats_until_the_last_of_its_streams_has_ended(world: World) -> None:
    world.facts.up("n1")
    world.facts.up("n1")
    world.facts.down("n1")
    assert "down n1" not in world.hearts.heard
    world.facts.down("n1")
    assert world.hearts.heard[-1] == "down n1"
