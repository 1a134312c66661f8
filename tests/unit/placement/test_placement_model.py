"""Placement under everything at once: calls that overlap, get lost, fail and are given up, a full disk, a killed hub.

Whatever happened: a name is never sent to a second node while the first one may have made something under it; a volume
whose creation was told is found; no deletion goes to a node that did not make the volume; and when all is well again,
every name can be used, and in the end none is held.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as st

from cloud.placement.requests import VOLUME, Thing
from common.csi import csi_pb2 as csi
from common.errors import CallError, LinkLost, NodeOffline
from common.status import Code, Status
from tests.unit.placement.world import DRIVER, OK, Asked, World, create, delete, on, report

if TYPE_CHECKING:
    from cloud.nodes import Call

NODES = ("n1", "n2")
NAMES = ("a", "b")
ANY = st.integers(0, 3)

ACTIONS = st.one_of(
    st.tuples(st.just("create"), st.sampled_from("aab"), st.sampled_from(NODES)),
    st.tuples(st.just("answer"), ANY, st.sampled_from(["made", "made", "final", "busy", "busy and made", "exists"])),
    st.tuples(st.just("delete"), ANY, st.sampled_from(["done", "lost", "done and lost", "final"])),
    st.tuples(st.just("create"), st.sampled_from("aab"), st.sampled_from(NODES)),
    st.tuples(st.just("answer"), ANY, st.sampled_from(["made", "made", "final", "busy", "busy and made", "exists"])),
    st.tuples(st.sampled_from(["lose", "leave"]), ANY),
    st.tuples(
        st.just("away"), st.sampled_from(NODES), st.sampled_from(["away", "there", "there, and one call is lost"])
    ),
    st.tuples(st.just("disk"), st.booleans()),
    st.tuples(st.just("kill")),
)
STEPS = st.lists(st.tuples(ACTIONS, st.sampled_from([True, True, True, False])), min_size=10, max_size=40)
"""What is done, and whether everything then comes to rest."""

Answer = tuple[bytes | None, Status]


@dataclass
class Node:
    """A node's agent and its vendor.

    Attributes:
        name: the node's name.
        volumes: ids by name.
        ever: the ids that it ever made.
        under_way: what its vendor is asked to make, by name: who asks again waits with the others (RULE A10).
        unsent: whether the next call does not arrive.
        deletion: how the next deletion ends.
    """

    name: str
    volumes: dict[str, str] = field(default_factory=dict)
    ever: set[str] = field(default_factory=set)
    under_way: dict[str, asyncio.Future[Answer]] = field(default_factory=dict)
    unsent: bool = False
    deletion: str = "done"


@dataclass(eq=False)
class Attempt:
    """One CreateVolume of a caller's."""

    name: str
    task: asyncio.Task[Asked]
    link: asyncio.Future[Answer]


class Play:
    """A hub, three nodes, and callers."""

    def __init__(self, directory: Path) -> None:
        self.world = World(directory, *map(report, NODES))
        self.nodes = {name: Node(name) for name in NODES}
        self.world.vendors = {name: self.vendor(node) for name, node in self.nodes.items()}
        self.attempts: list[Attempt] = []
        self.told: dict[str, str] = {}
        """Where the volumes are whose creation was told, and that are there."""
        self.known: set[str] = set()
        """The volumes whose creation was told ever: somebody wants each deleted in the end."""
        self.wrong: list[str] = []

    # ---- the nodes

    def vendor(self, node: Node) -> Any:
        async def answer(call: Call) -> Answer:
            if node.unsent:
                node.unsent = False
                raise NodeOffline(node.name, 0.0)
            if call.method.endswith("DeleteVolume"):
                return self.delete_at(node, csi.DeleteVolumeRequest.FromString(call.request).volume_id)
            return await self.create_at(node, csi.CreateVolumeRequest.FromString(call.request).name)

        return answer

    async def create_at(self, node: Node, name: str) -> Answer:
        for other in self.nodes.values():
            if other is not node and (name in other.volumes or name in other.under_way):
                self.wrong.append(f"{name} is sent to {node.name}, and may be at {other.name}")
        running = node.under_way.setdefault(name, asyncio.get_running_loop().create_future())
        link = next(it.link for it in self.attempts if it.task is asyncio.current_task())
        await asyncio.wait([running, link], return_when=asyncio.FIRST_COMPLETED)
        return link.result() if link.done() else running.result()

    def delete_at(self, node: Node, volume: str) -> Answer:
        if volume not in node.ever:
            self.wrong.append(f"{volume} is to be deleted at {node.name}, which never made it")
        if node.deletion == "final":
            return None, Status(Code.INTERNAL)
        if node.deletion != "lost":
            node.volumes = {name: id_ for name, id_ in node.volumes.items() if id_ != volume}
            self.told.pop(volume, None)
        if node.deletion != "done":
            raise LinkLost(node.name, "cut")
        return b"", OK

    def make(self, node: Node, name: str) -> bytes:
        """What the vendor has under a name, made now if there is nothing."""
        volume = node.volumes.setdefault(name, f"{node.name}-{name}-{len(node.ever)}")
        node.ever.add(volume)
        return csi.CreateVolumeResponse(volume=csi.Volume(volume_id=volume)).SerializeToString()

    # ---- actions

    def do_create(self, name: str, node: str) -> None:
        asking = self.world.ask("CreateVolume", create(name, on(node)))
        task = asyncio.create_task(asking)
        self.attempts.append(Attempt(name, task, asyncio.get_running_loop().create_future()))

    def do_answer(self, index: int, how: str) -> None:
        """One vendor's work ends. It says finally that it failed only if nothing is there that nobody was told of."""
        running = [(node, name) for node in self.nodes.values() for name in node.under_way]
        if not running:
            return
        node, name = running[index % len(running)]
        has = node.volumes.get(name)
        answer: Answer = (None, Status(Code.UNAVAILABLE))
        if how == "made":
            answer = (self.make(node, name), OK)
        elif how == "busy and made":
            self.make(node, name)
        elif how == "exists" and has:
            answer = (None, Status(Code.ALREADY_EXISTS))
        elif how == "final" and (has is None or has in self.told):
            answer = (None, Status(Code.INTERNAL))
        node.under_way.pop(name).set_result(answer)

    def do_lose(self, index: int) -> None:
        if self.attempts:
            link = self.attempts[index % len(self.attempts)].link
            if not link.done():
                link.set_exception(LinkLost("n", "cut"))
                link.exception()

    def do_leave(self, index: int) -> None:
        if self.attempts:
            self.attempts[index % len(self.attempts)].task.cancel()

    def do_away(self, node: str, how: str) -> None:
        (self.world.away.add if how == "away" else self.world.away.discard)(node)
        self.nodes[node].unsent = how.endswith("lost")

    async def do_delete(self, index: int, how: str) -> None:
        if self.known:
            for node in self.nodes.values():
                node.deletion = how
            with contextlib.suppress(CallError):
                await self.world.ask("DeleteVolume", delete(sorted(self.known)[index % len(self.known)]))

    def do_disk(self, full: bool) -> None:
        self.world.disk_is_full = full

    async def do_kill(self) -> None:
        """The hub dies: what is not on the disk is lost, and so are its calls. The nodes go on."""
        self.world.disk_is_full = True
        for attempt in self.attempts:
            attempt.task.cancel()
        await asyncio.gather(*(attempt.task for attempt in self.attempts), return_exceptions=True)
        await self.world.restart()
        self.world.disk_is_full = False

    async def rest(self) -> None:
        """Until nothing moves by itself any more."""
        ledger = self.world.placement.ledger
        for _ in range(12):
            await asyncio.sleep(0)
            if ledger._writer is not None:
                await asyncio.wait([ledger._writer])

    # ---- what must be so

    def look(self) -> None:
        for attempt in [attempt for attempt in self.attempts if attempt.task.done()]:
            self.attempts.remove(attempt)
            if not attempt.task.cancelled() and attempt.task.exception() is None and attempt.task.result().status.ok:
                asked = attempt.task.result()
                volume = csi.CreateVolumeResponse.FromString(asked.body).volume.volume_id
                self.known.add(volume)
                if volume in self.nodes[asked.node].volumes.values():
                    self.told[volume] = asked.node
        placement = self.world.placement
        fleet = placement._fleets.of(DRIVER)
        for volume, node in self.told.items():
            assert placement._find_thing(DRIVER, Thing(VOLUME, volume), "", fleet) == node
        assert not self.wrong

    async def finish(self) -> None:
        """All is well again: every name can be used, and none is held when all is deleted."""
        self.do_disk(False)
        self.world.away = set()
        for node in self.nodes.values():
            node.unsent, node.deletion = False, "done"
        await self.rest()
        while any(node.under_way for node in self.nodes.values()):
            self.do_answer(0, "made")
            await self.rest()
        self.look()
        for name in NAMES:
            self.do_create(name, "n1")
            await self.rest()
            self.do_answer(0, "made")
            await self.rest()
            self.look()
            assert any(name in node.volumes and node.volumes[name] in self.told for node in self.nodes.values())
        for volume in self.known:
            assert (await self.world.ask("DeleteVolume", delete(volume))).status.ok
        assert not any(node.volumes for node in self.nodes.values()), "a volume was made, and nobody was told"
        await self.world.restart()
        assert not self.world.placement.ledger._claims
        await self.world.placement.close()


@settings(max_examples=200, deadline=None)
@given(STEPS)
def test_no_name_is_on_two_nodes_and_no_volume_is_lost(steps: list[tuple[tuple[Any, ...], bool]]) -> None:
    async def play(directory: Path) -> None:
        it = Play(directory)
        for (what, *how), rests in steps:
            done = getattr(it, f"do_{what}")(*how)
            if done is not None:
                await done
            if rests:
                await it.rest()
            it.look()
        await it.finish()

    memory = Path("/dev/shm")  # where a hundred databases are made in no time
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as directory:
        asyncio.run(play(Path(directory)))
