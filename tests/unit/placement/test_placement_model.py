"""Placement under everything at once: calls that overlap, get lost, fail and are given up, a full disk, a killed hub.

Whatever happened: a name is never sent to a second node while the first one may have made something under it; a volume
whose creation was told is found; no deletion goes to a node that did not make the volume; nobody hears that a create
failed because of where it was wanted, while something may be elsewhere that the hub does not know of; and when all is
well again, every name can be used, and in the end none is held. Some calls are pinned to a node: of their successes no
more is known once the caller has them, and of what is under way nothing if the hub dies, nor of a doubt on a full disk,
nor of a success there that nobody took.

And whatever the hub knows of a volume, be it little, old or of another volume of the same id: a call goes to the node
that has it, or to none.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from dataclasses import dataclass, field
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cloud.placement.ledger import _Entry, _Place
from cloud.placement.placement import Mode
from cloud.placement.requests import VOLUME, Thing
from common.csi import csi_pb2 as csi
from common.errors import CODES, CallError, LinkLost, NodeOffline
from common.status import Code, Status
from common.topology import NODE_SEGMENT
from tests.support.examples import examples
from tests.unit.placement.world import DRIVER, OK, Asked, World, affinity, create, delete, on, report

if TYPE_CHECKING:
    from cloud.edge_nodes import Call
    from cloud.placement.ledger import Ledger
    from common.reports import DriverReport

NODES = ("n1", "n2")
NAMES = ("a", "b")
ANY = st.integers(0, 3)
HOW = st.sampled_from(["placed", "placed", "pinned", "pinned, and not delivered"])

ACTIONS = st.one_of(
    st.tuples(st.just("create"), st.sampled_from("aab"), st.sampled_from(NODES), HOW),
    st.tuples(st.just("answer"), ANY, st.sampled_from(["made", "made", "final", "busy", "busy and made", "exists"])),
    st.tuples(st.just("delete"), ANY, st.sampled_from(["done", "lost", "done and lost", "final"]), st.booleans()),
    st.tuples(st.just("create"), st.sampled_from("aab"), st.sampled_from(NODES), HOW),
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
    how: str
    task: asyncio.Task[Asked]
    link: asyncio.Future[Answer]


class Play:
    """A hub, two nodes, and callers. The vendor may have a topology of its own."""

    def __init__(self, directory: Path, *, own: bool) -> None:
        self.own = own
        self.world = World(directory, *(report(name, segments=self.at(name) if own else None) for name in NODES))
        self.nodes = {name: Node(name) for name in NODES}
        self.world.vendors = {name: self.vendor(node) for name, node in self.nodes.items()}
        self.attempts: list[Attempt] = []
        self.told: dict[str, str] = {}
        """Where the volumes are whose creation was told to callers who were not pinned, and that are there."""
        self.pinned: dict[str, str] = {}
        """Where the volumes are, or were, whose creation was told to pinned callers."""
        self.heard: set[str] = set()
        """The volumes of which a pinned call's success came to the hub, whether or not anybody took it."""
        self.orphans: set[tuple[str, str]] = set()
        """Node and name of what was pinned, and of which the disk knew nothing when the hub died."""
        self.known: set[str] = set()
        """The volumes whose creation was told ever: somebody wants each deleted in the end."""
        self.wrong: list[str] = []

    def at(self, node: str) -> dict[str, str]:
        """A node's term."""
        return {"zone": node} if self.own else on(node)

    # ---- the nodes

    def vendor(self, node: Node) -> Any:
        async def answer(call: Call) -> Answer:
            if node.unsent:
                node.unsent = False
                raise NodeOffline(node.name, 0.0)
            if call.method.endswith("DeleteVolume"):
                return self.delete_at(node, csi.DeleteVolumeRequest.FromString(call.request).volume_id)
            request = csi.CreateVolumeRequest.FromString(call.request)
            wanted = [dict(each.segments) for each in request.accessibility_requirements.requisite]
            return await self.create_at(node, request.name, is_elsewhere=self.own and self.at(node.name) not in wanted)

        return answer

    async def create_at(self, node: Node, name: str, *, is_elsewhere: bool) -> Answer:
        for other in self.nodes.values():
            if other is not node and self.may_have(other, name):
                self.wrong.append(f"{name} is sent to {node.name}, and may be at {other.name}")
        if is_elsewhere:
            return None, Status(Code.RESOURCE_EXHAUSTED)
        running = node.under_way.setdefault(name, asyncio.get_running_loop().create_future())
        attempt = next(it for it in self.attempts if it.task is asyncio.current_task())
        await asyncio.wait([running, attempt.link], return_when=asyncio.FIRST_COMPLETED)
        body, status = attempt.link.result() if attempt.link.done() else running.result()
        if status.ok and attempt.how != "placed":  # such a success needs no disk
            self.heard.add(volume_in(body))
        return body, status

    def may_have(self, node: Node, name: str) -> bool:
        """Whether a node has something under a name or may get it, and the hub has to know."""
        if (node.name, name) in self.orphans:
            return False
        volume = node.volumes.get(name)
        is_unknown = volume in self.pinned and volume not in self.told
        return name in node.under_way or (volume is not None and not is_unknown)

    def unknown(self, name: str) -> list[str]:
        """The nodes that may have something under a name of which the hub does not know."""
        has = self.world.placement.ledger.has
        return [
            node.name
            for node in self.nodes.values()
            if self.may_have(node, name) and not has(DRIVER, Thing(VOLUME, node.volumes.get(name, "")), node.name)
        ]

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

    def do_create(self, name: str, node: str, how: str) -> None:
        link = asyncio.get_running_loop().create_future()
        self.attempts.append(Attempt(name, how, asyncio.create_task(self.create(name, node, how)), link))

    async def create(self, name: str, node: str, how: str) -> Asked:
        if how == "placed":
            asked = await self.world.ask("CreateVolume", create(name, self.at(node)))
            if asked.status.code == Code.RESOURCE_EXHAUSTED and (there := self.unknown(name)):
                self.wrong.append(f"{name} is said to have failed, and may be at {', '.join(there)}")
            return asked
        delivered, request = how == "pinned", create(name, self.at(node))
        asked = await self.world.ask("CreateVolume", request, mode=Mode.PINNED, wanted=node, delivered=delivered)
        if delivered and asked.status.ok:
            self.pinned[volume_of(asked)] = asked.node
        return asked

    def do_answer(self, index: int, how: str) -> None:
        """One vendor's work ends. It says finally that it failed only if the hub knows all that is there."""
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
        elif how == "final" and (has is None or has in self.told or has in self.heard):
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

    async def do_delete(self, index: int, how: str, pinned: bool) -> None:
        if self.known:
            for node in self.nodes.values():
                node.deletion = how
            with contextlib.suppress(CallError):
                await self.delete(sorted(self.known)[index % len(self.known)], pinned=pinned)

    async def delete(self, volume: str, *, pinned: bool) -> Asked:
        """A deletion; pinned if it must be: of what a pinned caller made nobody else knows."""
        home = self.told.get(volume, "") if pinned else ""
        home = home or self.pinned.get(volume, "")
        return await self.world.ask(
            "DeleteVolume", delete(volume), mode=Mode.PINNED if home else Mode.LOCAL, wanted=home
        )

    def do_disk(self, full: bool) -> None:
        self.world.disk_is_full = full

    async def do_kill(self) -> None:
        """The hub dies: what is not on the disk is lost, and so are its calls. The nodes go on."""
        self.world.disk_is_full = True
        unknown = {attempt.name for attempt in self.attempts if attempt.how != "placed"}
        ledger = self.world.placement.ledger
        untold = {name for _, name in ledger._untold}
        untold |= {entry.name for place in ledger._noted if (entry := ledger._entry(place)) is not None}
        unknown |= {name.removeprefix("CreateVolume ") for name in untold}
        self.orphans |= {(node, name) for node in NODES for name in unknown}
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
            is_answered = not attempt.task.cancelled() and attempt.task.exception() is None
            if is_answered and attempt.task.result().status.ok and not attempt.how.endswith("not delivered"):
                asked = attempt.task.result()
                volume = volume_of(asked)
                self.known.add(volume)
                if attempt.how == "placed" and volume in self.nodes[asked.node].volumes.values():
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
            asking = self.world.ask("CreateVolume", create(name, *map(self.at, NODES)))
            link = asyncio.get_running_loop().create_future()
            self.attempts.append(Attempt(name, "placed", asyncio.create_task(asking), link))
            await self.rest()
            self.do_answer(0, "made")
            await self.rest()
            self.look()
            assert any(name in node.volumes and node.volumes[name] in self.told for node in self.nodes.values())
        for volume in self.known:
            assert (await self.delete(volume, pinned=False)).status.ok
        left = {(node.name, name) for node in self.nodes.values() for name in node.volumes}
        assert left <= self.orphans, "a volume was made, and nobody was told"
        await self.world.restart()
        assert not self.world.placement.ledger._claims
        await self.world.placement.close()


def volume_of(asked: Asked) -> str:
    """What a CreateVolume's answer names."""
    return volume_in(asked.body)


def volume_in(body: bytes | None) -> str:
    """What it names, as it comes from the vendor."""
    return csi.CreateVolumeResponse.FromString(body or b"").volume.volume_id


LATE_WORD = [
    (("create", "a", "n1", "placed"), True),
    (("create", "a", "n1", "placed"), False),
    (("lose", 1), False),
    (("answer", 0, "final"), True),
    (("create", "a", "n2", "placed"), True),
]
"""A final word that is heard after the loss of a call that the vendor began after it."""

UNTAKEN_SUCCESS = [
    (("create", "a", "n1", "pinned, and not delivered"), True),
    (("answer", 0, "made"), True),
    (("create", "a", "n1", "pinned"), True),
    (("answer", 0, "final"), True),
    (("create", "a", "n2", "placed"), True),
]
"""A success that nobody took, and a final word to a retry."""


@examples(80)
@given(STEPS, st.booleans())
@example(steps=LATE_WORD, own=False)
@example(steps=UNTAKEN_SUCCESS, own=False)
def test_no_name_is_on_two_nodes_and_no_volume_is_lost(steps: list[tuple[tuple[Any, ...], bool]], own: bool) -> None:
    async def play(directory: Path) -> None:
        it = Play(directory, own=own)
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


# -------------------- where a volume is, whatever is known of it --------------------

SITES = ("n1", "n2", "n3")
NOWHERE = frozenset[str]()
NONE = st.just(NOWHERE)
SOME = st.sampled_from([frozenset(some) for count in range(4) for some in combinations(SITES, count)])


@dataclass(frozen=True)
class Case:
    """A volume of which a call is, and what the hub knows of it.

    Attributes:
        home: the node that has it.
        others: those that have another volume of this id.
        fleet: those that have reported the driver.
        own: whether vendors have a topology of their own.
        hides: those whose vendor has not told it.
        named: the nodes that its PersistentVolume names; empty: there is none.
        node_id: whether the call tells the vendor's id of its node.
        listed: those that have listed what they have.
        stale: whether that was before `home` had it.
        made: those whose volume was made by this hub.
        deleted: those that had one more of this id, which this hub has deleted.
    """

    home: str
    others: frozenset[str]
    fleet: frozenset[str]
    own: bool
    hides: frozenset[str]
    named: frozenset[str]
    node_id: bool
    listed: frozenset[str]
    stale: bool
    made: frozenset[str]
    deleted: frozenset[str]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Those in which the hub can know: nothing that it goes by is wrong, unless something better says so."""
    home, own, hides = draw(st.sampled_from(SITES)), draw(st.booleans()), draw(SOME)
    is_new = draw(st.booleans())  # its agent has yet to come, or is one of those that the hub has lost
    named = draw(NONE | SOME.map(lambda some: some | {home}))
    is_told = bool(named) and not (own and hides)
    fleet = draw(SOME) - named - {home} if is_new else draw(SOME) | {home}
    node_id = draw(st.booleans()) and not is_new
    wrong = frozenset(SITES) - named if is_told and not is_new else NOWHERE
    others, made, deleted = draw(SOME) - {home}, draw(SOME), draw(SOME)
    return Case(
        home=home,
        others=others,
        fleet=fleet,
        own=own,
        hides=hides,
        named=named,
        node_id=node_id,
        listed=draw(SOME),
        stale=draw(st.booleans()) and (node_id or (is_told and not named & others)),
        made=made if home in made else made & wrong,
        deleted=deleted & wrong,
    )


@cache
def told(node: str, *, own: bool, hides: bool) -> DriverReport:
    """What a node has reported."""
    return report(node, segments=({} if hides else {"zone": node}) if own else None)


def know(ledger: Ledger, case: Case, thing: Thing) -> None:
    """Let the ledger have what it would have seen. No disk: this is of what is known, not of how it is kept."""
    for known in (ledger._things, ledger._claims, ledger._inventories, ledger._counts, ledger._gone):
        known.clear()
    if case.home not in case.fleet:
        ledger._set(_Place(DRIVER, Thing(VOLUME, "another"), case.home), _Entry("CreateVolume another"))
    for node in SITES:
        place, has = _Place(DRIVER, thing, node), node == case.home or node in case.others
        if has and node in case.made:
            ledger._set(place, _Entry(f"CreateVolume {node}"))
        elif not has and node in case.deleted:
            ledger._set(place, _Entry(f"CreateVolume {node}", 1.0))
        elif node in case.listed:
            ledger._inventories[DRIVER, node, VOLUME] = set()
            if has and not (node == case.home and case.stale):
                ledger._set(place, _Entry(""))


@pytest.mark.hypothesis  # it draws its examples inside
def test_a_call_goes_to_the_node_that_has_its_volume_or_to_none(tmp_path: Path) -> None:
    world, thing = World(tmp_path), Thing(VOLUME, "vol-1")
    placement = world.placement

    @examples(300)
    @given(cases())
    def ask(case: Case) -> None:
        world.reports = {node: told(node, own=case.own, hides=node in case.hides) for node in case.fleet}
        placement.changed(DRIVER)
        know(placement.ledger, case, thing)
        key = "zone" if case.own else NODE_SEGMENT
        placement.affinity = affinity(*case.named, handle="vol-1", key=key) if case.named else None
        node_id = f"id-of-{case.home}" if case.node_id else ""
        refused: CallError | None = None
        try:
            node = placement._find_thing(DRIVER, thing, node_id, placement._fleets.of(DRIVER))
        except CallError as error:
            refused = error
        if refused is None:
            assert node == case.home or node not in case.fleet  # where nothing can be sent to it
        elif CODES[type(refused)] != Code.UNAVAILABLE:
            assert case.others

    ask()
    asyncio.run(placement.close())
