"""Placement under everything at once: calls that overlap, get lost, fail and are given up, a full disk, killed hubs.

Whatever happened: a name is never sent to a second node while the first one may have made something under it; a volume
whose creation was told is found; no deletion goes to a node that did not make the volume; nobody hears that a create
failed because of where it was wanted, while something may be elsewhere that the hub does not know of; and when all is
well again, every name can be used, and in the end none is held.

The exception (`cloud.claims.claims`): some creates are pinned to a node. Of their successes no more is known once
the caller has them, and of what is under way nothing if the hub dies, nor of a doubt on a full disk, nor of a success
there that nobody took.

And whatever the hub knows of a volume, be it little, old or of another volume of the same id: a call goes to the node
that has it, or to none. A deletion goes to another node only if no node has it.
"""

import asyncio
import contextlib
import tempfile
from dataclasses import dataclass, field
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from cloud.claims.book import Book
from cloud.claims.claim import IdEntry, Mark
from cloud.claims.requests import deletion_of
from cloud.claims.rules import VOLUME, Thing
from cloud.nodes.question import Question
from cloud.placement.decisions import Route, View
from cloud.placement.find import ListsNeeded, find_thing
from cloud.placement.route import read_info, route
from cloud.proxy.driver_settings import Mode
from cloud.records.records import RecordKind
from common.csi import csi_pb2 as csi
from common.csi.reports import DriverReport
from common.errors import CallError, LinkLost, node_offline
from common.objects.topology import NODE_SEGMENT
from common.status import Code, Status
from common.store.database_writer import WriteFailed
from tests.kit.examples import examples
from tests.kit.placed_nodes import (
    CONTROLLER,
    DRIVER,
    OK,
    RPC,
    Asked,
    Placed,
    affinity,
    create,
    delete,
    fleet,
    on,
    report,
)
from tests.kit.state_db import records_in
from tests.kit.waiting import settle

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
    """A node's agent and its vendor."""

    name: str
    volumes: dict[str, str] = field(default_factory=dict)  # ids by name
    ever: set[str] = field(default_factory=set)  # the ids that it ever made
    # What its vendor is asked to make, by name: a retry waits with the others.
    under_way: dict[str, asyncio.Future[Answer]] = field(default_factory=dict)
    unsent: bool = False  # whether the next call does not arrive
    deletion: str = "done"  # how the next deletion ends


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
        self.directory = directory
        self.nodes = {name: Node(name) for name in NODES}
        self.hub = Placed(self.directory, *self.reports())
        self.hub.vendors = {name: self.vendor(node) for name, node in self.nodes.items()}
        self.attempts: list[Attempt] = []
        self.told: dict[str, str] = {}
        """Where the volumes are whose creation was told to callers who were not pinned, and that are there."""
        self.pinned: dict[str, str] = {}  # where the volumes are, or were, whose creation was told to pinned callers
        self.heard: set[str] = set()
        """The volumes of which the hub knows by a pinned call's success, whether or not anybody took it."""
        self.orphans: set[tuple[str, str]] = set()
        """Node and name of what was pinned, and of which the disk knew nothing when the hub died."""
        self.known: set[str] = set()  # the volumes whose creation was told ever: somebody wants each deleted in the end
        self.wrong: list[str] = []

    def reports(self) -> list[DriverReport]:
        """What the nodes tell."""
        return [report(name, segments=self.at(name) if self.own else None) for name in NODES]

    def at(self, node: str) -> dict[str, str]:
        """A node's term."""
        return {"zone": node} if self.own else on(node)

    # ---- the nodes

    def vendor(self, node: Node) -> Any:
        async def answer(call: Question) -> Answer:
            if node.unsent:
                node.unsent = False
                raise node_offline(node.name, 0.0)
            if call.method.endswith("DeleteVolume"):
                return self.delete_at(node, csi.DeleteVolumeRequest.FromString(call.request).volume_id)
            request = csi.CreateVolumeRequest.FromString(call.request)
            wanted = [dict(each.segments) for each in request.accessibility_requirements.requisite]
            is_elsewhere = self.own and self.at(node.name) not in wanted
            return await self.create_at(node, request.name, call.call_id, is_elsewhere=is_elsewhere)

        return answer

    async def create_at(self, node: Node, name: str, caller: str, *, is_elsewhere: bool) -> Answer:
        for other in self.nodes.values():
            if other is not node and self.may_have(other, name):
                self.wrong.append(f"{name} is sent to {node.name}, and may be at {other.name}")
        if is_elsewhere:
            return None, Status(Code.RESOURCE_EXHAUSTED)
        running = node.under_way.setdefault(name, asyncio.get_running_loop().create_future())
        attempt = next(it for it in self.attempts if it.task.get_name() == caller)
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
        volumes = {node.name: node.volumes.get(name, "") for node in self.nodes.values()}
        return [
            node.name
            for node in self.nodes.values()
            if self.may_have(node, name) and not self.hub.book.has(Thing(VOLUME, volumes[node.name]), node.name)
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
            raise LinkLost(node.name)
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
            asked = await self.hub.ask("CreateVolume", create(name, self.at(node)))
            if asked.status.code == Code.RESOURCE_EXHAUSTED and (there := self.unknown(name)):
                self.wrong.append(f"{name} is said to have failed, and may be at {', '.join(there)}")
            return asked
        delivered, request = how == "pinned", create(name, self.at(node))
        asked = await self.hub.ask("CreateVolume", request, mode=Mode.PINNED, wanted=node, delivered=delivered)
        if delivered and asked.status.ok:
            self.pinned[volume_in(asked.body)] = asked.node
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
                link.set_exception(LinkLost("n"))
                link.exception()

    def do_leave(self, index: int) -> None:
        if self.attempts:
            self.attempts[index % len(self.attempts)].task.cancel()

    def do_away(self, node: str, how: str) -> None:
        (self.hub.away.add if how == "away" else self.hub.away.discard)(node)
        self.nodes[node].unsent = how.endswith("lost")

    async def do_delete(self, index: int, how: str, pinned: bool) -> None:
        if self.known:
            for node in self.nodes.values():
                node.deletion = how
            volume = sorted(self.known)[index % len(self.known)]
            with contextlib.suppress(CallError):
                await self.delete(volume, pinned=pinned)

    async def delete(self, volume: str, *, pinned: bool) -> Asked:
        """A deletion; pinned if it must be: of what a pinned caller made nobody else knows."""
        home = self.told.get(volume, "") if pinned else ""
        home = home or self.pinned.get(volume, "")
        return await self.hub.ask("DeleteVolume", delete(volume), mode=Mode.PINNED if home else Mode.LOCAL, wanted=home)

    def do_disk(self, full: bool) -> None:
        (self.hub.disk.fill if full else self.hub.disk.empty)()

    async def do_kill(self) -> None:
        """The hub dies: what is not written is lost, and so are its calls. The nodes go on."""
        self.hub.disk.fill()  # from now on it writes nothing
        unknown = {attempt.name for attempt in self.attempts if attempt.how != "placed"} | self.lacking()
        self.heard = {volume for volume in self.heard if self.hub.disk.has(volume)}
        self.orphans |= {(node, name) for node in NODES for name in unknown}
        for attempt in self.attempts:
            attempt.task.cancel()
        await asyncio.gather(*(attempt.task for attempt in self.attempts), return_exceptions=True)
        await self.hub.restart()
        self.do_disk(False)

    def lacking(self) -> set[str]:
        """The names of which the hub knows a node that its disk lacks: a pinned call waits for no disk."""
        found = dict[str, set[str]]()
        for (_, name), body in records_in(self.directory, RecordKind.CLAIM).items():
            found[name] = {body["node"]} if body["state"] == "open" else set()
            found[name] |= {it["node"] for it in body.get("ids", ()) if not it.get("gone")}
        known = {name: set(self.hub.book.holders(f"CreateVolume {name}")) for name in NAMES}
        return {name for name, nodes in known.items() if not nodes <= found.get(f"CreateVolume {name}", set())}

    async def rest(self) -> None:
        """Until nothing moves by itself any more."""
        for _ in range(6):
            await settle()
            with contextlib.suppress(WriteFailed):  # the disk may be full
                await self.hub.records.write([])

    # ---- what must be so

    def look(self) -> None:
        for attempt in [attempt for attempt in self.attempts if attempt.task.done()]:
            self.attempts.remove(attempt)
            is_answered = not attempt.task.cancelled() and attempt.task.exception() is None
            if is_answered and attempt.task.result().status.ok and not attempt.how.endswith("not delivered"):
                asked = attempt.task.result()
                volume = volume_in(asked.body)
                self.known.add(volume)
                if attempt.how == "placed" and volume in self.nodes[asked.node].volumes.values():
                    self.told[volume] = asked.node
        for volume, node in self.told.items():
            assert find_thing(DRIVER, Thing(VOLUME, volume), "", self.hub.placement._view(DRIVER)) == node
        assert not self.wrong

    async def finish(self) -> None:
        """All is well again: every name can be used, and none is held when all is deleted."""
        self.do_disk(False)
        self.hub.away = set()
        for node in self.nodes.values():
            node.unsent, node.deletion = False, "done"
        await self.rest()
        while any(node.under_way for node in self.nodes.values()):
            self.do_answer(0, "made")
            await self.rest()
        self.look()
        for name in NAMES:
            asking = self.hub.ask("CreateVolume", create(name, *map(self.at, NODES)))
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
        await self.hub.restart()
        assert not any(self.hub.book.holders(f"CreateVolume {name}") for name in NAMES)
        await self.hub.close()


def volume_in(body: bytes | None) -> str:
    """What a CreateVolume's answer names."""
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

AT_ONCE = [
    (("create", "a", "n1", "placed"), False),
    (("create", "a", "n2", "placed"), True),
    (("answer", 0, "busy and made"), True),
    (("kill",), True),
    (("create", "a", "n2", "placed"), True),
]
"""Two creates of a name at once, and the hub dies."""

UNSENT = [
    (("create", "a", "n1", "placed"), True),
    (("away", "n1", "there, and one call is lost"), True),
    (("create", "a", "n1", "placed"), True),
    (("create", "a", "n2", "placed"), True),
]
"""A create that is not sent, while another one of its name is under way."""

EXISTS = [
    (("create", "a", "n1", "placed"), True),
    (("answer", 0, "busy and made"), True),
    (("create", "a", "n1", "placed"), True),
    (("answer", 0, "exists"), True),
    (("create", "a", "n2", "placed"), True),
]
"""A vendor that says that something exists of which the hub does not know."""

LATE_LOOK = [
    (("create", "b", "n2", "pinned"), True),
    (("answer", 0, "busy and made"), False),
    (("create", "b", "n1", "pinned"), True),
]
"""A doubt that is being written when the next create comes."""

Steps = list[tuple[tuple[Any, ...], bool]]


DOUBT_ON_A_FULL_DISK: Steps = [
    (("create", "b", "n1", "placed"), True),
    (("answer", 0, "made"), True),
    (("disk", True), True),
    (("delete", 0, "done", False), True),
    (("create", "b", "n2", "pinned"), True),
    (("answer", 0, "busy and made"), True),
    (("kill",), True),
]
"""The deletion of one volume, and the doubt about a pinned one of its name, are both not written."""


async def play(it: Play, steps: Steps) -> None:
    for (what, *how), rests in steps:
        done = getattr(it, f"do_{what}")(*how)
        if done is not None:
            await done
        if rests:
            await it.rest()
        it.look()
    await it.finish()


@examples(160)
@given(STEPS, st.booleans())
@example(steps=LATE_WORD, own=False)
@example(steps=UNTAKEN_SUCCESS, own=False)
@example(steps=EXISTS, own=False)
@example(steps=AT_ONCE, own=True)
@example(steps=UNSENT, own=False)
@example(steps=LATE_LOOK, own=False)
@example(steps=DOUBT_ON_A_FULL_DISK, own=False)
def test_no_name_is_on_two_nodes_and_no_volume_is_lost(steps: Steps, own: bool) -> None:
    async def run(directory: Path) -> None:
        await play(Play(directory, own=own), steps)

    memory = Path("/dev/shm")  # where a hundred databases are made in no time
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as directory:
        asyncio.run(run(Path(directory)))


# -------------------- where a volume is, whatever is known of it --------------------

SITES = ("n1", "n2", "n3")
NOWHERE = frozenset[str]()
NONE = st.just(NOWHERE)
SOME = st.sampled_from([frozenset(some) for count in range(4) for some in combinations(SITES, count)])


@dataclass(frozen=True)
class Case:
    """A volume of which a call is, and what the hub knows of it."""

    home: str  # the node that has it
    others: frozenset[str]  # those that have another volume of this id
    fleet: frozenset[str]  # those that have reported the driver
    own: bool  # whether vendors have a topology of their own
    hides: frozenset[str]  # those whose vendor has not told it
    named: frozenset[str]  # the nodes that its PersistentVolume names; empty: there is none
    node_id: bool  # whether the call tells the vendor's id of its node
    listed: frozenset[str]  # those that have listed what they have
    stale: bool  # whether that was before `home` had it
    made: frozenset[str]  # those whose volume was made by this hub
    deleted: frozenset[str]  # those that had one more of this id, which this hub has deleted


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
def told(node: str, *, own: bool, hides: bool, lists: bool = False) -> DriverReport:
    """What a node has reported."""
    capabilities = (RPC.CREATE_DELETE_VOLUME, *[RPC.LIST_VOLUMES] * lists)
    return report(node, segments=({} if hides else {"zone": node}) if own else None, capabilities=capabilities)


def known(case: Case, thing: Thing) -> Book:
    """What the hub would know."""
    book = Book()
    if case.home not in case.fleet:
        book.put("CreateVolume another", Thing(VOLUME, "another"), case.home, IdEntry("CreateVolume another", 0.0))
    for node in SITES:
        has = node == case.home or node in case.others
        if has and node in case.made:
            book.put(f"CreateVolume {node}", thing, node, IdEntry(f"CreateVolume {node}", 0.0))
        elif not has and node in case.deleted:
            book.put(deletion_of(thing), thing, node, IdEntry(deletion_of(thing), 0.0, deleted_at=1.0))
        elif node in case.listed:
            book.lists[node, VOLUME] = 0.0
            if has and not (node == case.home and case.stale):
                book.list(thing, node, 0.0)
    return book


@examples(300)
@given(cases())
def test_a_call_goes_to_the_node_that_has_its_volume_or_to_none(case: Case) -> None:
    thing, key = Thing(VOLUME, "vol-1"), "zone" if case.own else NODE_SEGMENT
    nodes = fleet(*(told(node, own=case.own, hides=node in case.hides) for node in case.fleet))
    volumes = affinity(*case.named, handle="vol-1", key=key) if case.named else None
    now = View(nodes, case.fleet, known(case, thing), volumes)
    node_id = f"id-of-{case.home}" if case.node_id else ""
    refused: CallError | None = None
    try:
        node = find_thing(DRIVER, thing, node_id, now)
    except ListsNeeded as needed:
        refused = needed.error
    except CallError as error:
        refused = error
    if refused is None:
        assert node == case.home or node not in case.fleet  # where nothing can be sent to it
    elif refused.code != Code.UNAVAILABLE:
        assert case.others


HIDDEN = ("there is none", "its list is older", "it is away", "it cannot list", "it is new", "it is forgotten", "lost")
"""Why no list has a volume that exists, if nothing else is known of it."""


@examples(300)
@given(cases(), st.sampled_from(HIDDEN), SOME)
def test_a_deletion_goes_to_another_node_only_if_no_node_has_the_volume(
    case: Case, why: str, earlier: frozenset[str]
) -> None:
    home, key = {case.home}, "zone" if case.own else NODE_SEGMENT
    is_new = why in HIDDEN[4:]
    members, named = frozenset(SITES) - (home if is_new else NOWHERE), case.named & home if is_new else case.named
    fresh = members - (home if why == "its list is older" else NOWHERE)
    unable = home if why == "it cannot list" else NOWHERE
    nodes = fleet(*(told(it, own=case.own, hides=it in case.hides, lists=it not in unable) for it in sorted(members)))
    book = Book()
    book.lists = {(node, VOLUME): 0.0 for node in earlier | fresh}
    if why == "it is new":
        book.put("CreateVolume another", Thing(VOLUME, "another"), case.home, IdEntry("CreateVolume another", 0.0))
    if why == "it is forgotten":
        book.mark(case.home, Mark.FORGOTTEN)
    now = View(
        nodes,
        members - (home if why == "it is away" else NOWHERE),
        book,
        affinity(*named, handle="vol-1", key=key) if named else None,
        "state.db was gone" if why == "lost" else "",
        listed=fresh,
    )
    request = delete().SerializeToString()
    info = read_info(DRIVER, CONTROLLER + "DeleteVolume", request, named_node="", mode=Mode.LOCAL, fleet=nodes)
    try:
        decision = route(info, now)
    except (CallError, ListsNeeded):
        assert why != "there is none"
        return
    assert isinstance(decision, Route)
    if why == "there is none":
        assert not case.named or case.own or decision.node in case.named
    else:
        assert decision.node == case.home
