"""Placement: sends each call to the node that it is for, and keeps what its answer says of where things are.

    pinned    the node that the caller names, else the only one that runs the driver
    local     each node has storage of its own: a create goes by its name, its source and the topology that is asked
              for, everything else by where the thing is
    auto      local if the vendor has a topology of its own on any node, else pinned

Rules:

* Ids are the vendor's, and never rewritten. Where something is stands in the ledger before anybody hears of it.
* A name that may have reached a node stays with it until that node has answered finally (RULE A9).
* Where something is that no record tells of is asked of its PersistentVolume, then of the call's node id, then of the
  nodes' own lists. What cannot be decided is UNAVAILABLE, never a guess and never "not found" (RULE B6).
* What was made here or deleted here is not sent to a node that only lists it, nor past a PersistentVolume that says
  otherwise.
* What would be one node's part of an answer is refused.
* What an operator lets a named node make or delete by hand is kept as well: so a call that nothing could place finds
  its way afterwards.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from cloud.nodes import Call, Reply
from cloud.placement import fleet as fleets
from cloud.placement.capabilities import merged
from cloud.placement.claims import Claim
from cloud.placement.fleet import Fleet, Fleets, Member, describes_itself
from cloud.placement.inventory import LISTED_BY, Unlisted, take
from cloud.placement.ledger import Ledger
from cloud.placement.requests import VOLUME, Thing, Whereabouts, made, read
from cloud.placement.segment import with_missing_topology, with_topology, without_topology
from cloud.routing import route
from common.errors import (
    CallError,
    FieldMissing,
    IdConflict,
    KnowledgeLost,
    NodeOffline,
    NoNodeFits,
    NoPlace,
    NotWhole,
    SeveralNodes,
    SourceElsewhere,
)
from common.reports import DriverReport
from common.status import Code, Origin, Status

if TYPE_CHECKING:
    from cloud.placement.affinity import Affinity

log = logging.getLogger("csi_bridge.hub.placement")

GET_CAPACITY: Final = "/csi.v1.Controller/GetCapacity"

_NOT_FINAL: Final = frozenset({Code.CANCELLED, Code.DEADLINE_EXCEEDED, Code.UNAVAILABLE, Code.ABORTED})
"""After these the sidecars ask again for the same name, because something may have been made (contract A.3)."""

_LIST_AGAIN_S = 60.0
"""A node is not asked for its list again so soon."""

_LISTS_AT_ONCE = 20
"""So many nodes list at once: thousands would fill the hub's links and its loop with answers that can wait."""


class Mode(StrEnum):
    """How a driver's volumes are placed; `--placement` of its proxy driver."""

    AUTO = "auto"
    PINNED = "pinned"
    LOCAL = "local"


class Nodes(fleets.Nodes, Protocol):
    """What is asked of `cloud.nodes.Nodes`."""

    def check(self, name: str, driver: str) -> None:
        """Whether a driver's call could be sent to a node now."""

    def call(self, name: str, call: Call) -> Reply:
        """Send a call to a node."""


class Placement:
    """Of every driver.

    Attributes:
        ledger: where things are.
        affinity: what PersistentVolumes say; None: this hub knows of none.
    """

    def __init__(self, nodes: Nodes, ledger: Ledger, *, losses: Callable[[], tuple[str, ...]]) -> None:
        """Placement over these nodes.

        Args:
            nodes: the nodes.
            ledger: where things are.
            losses: what the hub has lost of what nodes reported, in words.
        """
        self.ledger = ledger
        self.affinity: Affinity | None = None
        self._nodes = nodes
        self._losses = losses
        self._fleets = Fleets(nodes)
        self._listing: dict[tuple[str, str, str], float] = {}
        """When a node was last asked for its list, by driver, node and kind, in seconds of the monotonic clock."""
        self._listers: dict[tuple[str, str, str], asyncio.Task[None]] = {}
        self._list_slots = asyncio.Semaphore(_LISTS_AT_ONCE)

    # ---- questions ---------------------------------------------------------------------------------------------------

    def changed(self, driver: str) -> None:
        """What a node tells of the driver has changed."""
        self._fleets.changed(driver)

    def report(self, driver: str, wanted: str, mode: str) -> DriverReport | None:
        """What a proxy driver is to tell of its driver; None if nothing is known.

        Raises:
            NoRoute, KnowledgeLost: it is one node's to say, and nothing says which.
        """
        fleet = self._fleets.of(driver)
        if not self._is_local(fleet, wanted, mode):
            return self._nodes.find_report(driver, self._route(driver, wanted, fleet.members))
        telling = [member for member in fleet if describes_itself(member.report)]
        if not telling:
            return None
        segment = any(member.lacks_topology for member in telling)
        return merged([member.report for member in telling], segment=segment)

    async def call(self, call: Call, *, wanted: str, mode: str, goes_to: Callable[[str], None]) -> Reply:
        """Send a call to the node that it is for.

        Args:
            call: the call.
            wanted: the node that the caller names, or empty.
            mode: a `Mode` of a proxy driver's; empty: an operator asks by hand, and it is auto.
            goes_to: is told which node that is, before it is known whether it can be reached.

        Raises:
            CallError: it was sent to nobody.
        """
        fleet = self._fleets.of(call.driver)
        if self._is_local(fleet, wanted, mode):
            return await self._call_local(call, fleet, mode, goes_to)
        node = self._route(call.driver, wanted, fleet.members)
        goes_to(node)
        reply = self._nodes.call(node, call)
        return reply if mode else self._kept(reply, call, node)

    async def forget(self, node: str, driver: str = "") -> None:
        """A node is gone for good, or no longer runs a driver: so is what it had.

        Raises:
            PlacementNotKept: that cannot be written down, and nothing is forgotten.
        """
        for key in [key for key in self._listing if key[1] == node and driver in ("", key[0])]:
            del self._listing[key]
            if key in self._listers:
                self._listers[key].cancel()
        await self.ledger.forget(node, driver)

    async def close(self) -> None:
        """Ask no more nodes, and close the ledger."""
        listers = list(self._listers.values())
        for lister in listers:
            lister.cancel()
        await asyncio.gather(*listers, return_exceptions=True)
        await self.ledger.close()

    def _is_local(self, fleet: Fleet, wanted: str, mode: str) -> bool:
        if wanted or mode == Mode.PINNED:
            return False
        return mode == Mode.LOCAL or fleet.has_topology

    def _route(self, driver: str, wanted: str, nodes: Collection[str]) -> str:
        return route(driver, wanted, nodes, is_connected=self._nodes.is_connected, losses=self._losses())

    def _kept(self, reply: Reply, call: Call, node: str) -> Reply:
        """The reply to an operator's call: what that makes or ends is kept, whatever the driver's mode."""
        try:
            asked = read(call.method, call.request)
        except ValueError:  # the vendor's to judge
            return reply
        outcome = _Outcome(self.ledger, call, asked, node)
        return _PlacedReply(reply, outcome) if outcome.is_kept else reply

    # ---- where each node has storage of its own ----------------------------------------------------------------------

    async def _call_local(self, call: Call, fleet: Fleet, mode: str, goes_to: Callable[[str], None]) -> Reply:
        try:
            asked = read(call.method, call.request)
        except ValueError as error:
            raise NoPlace(call.driver, "what the call is about", str(error)) from error
        if asked.missing and len(fleet) > 1:
            raise FieldMissing(call.method, asked.missing)
        if asked.name:
            return await self._create(call, asked, fleet, mode, goes_to)
        node = self._find_node(call, asked, fleet)
        goes_to(node)
        member = fleet.members.get(node)
        outcome = _Outcome(self.ledger, call, asked, node, _edit(member, mode))
        reply = self._nodes.call(node, _for_vendor(call, member))
        return _PlacedReply(reply, outcome) if outcome.is_kept or outcome.edit is not None else reply

    async def _create(
        self, call: Call, asked: Whereabouts, fleet: Fleet, mode: str, goes_to: Callable[[str], None]
    ) -> Reply:
        node = self.ledger.holder(call.driver, asked.name) or self._choose(call, asked, fleet)
        goes_to(node)
        self._nodes.check(node, call.driver)
        member, claim = fleet.members.get(node), self.ledger.claim(call.driver, asked.name, node)
        try:
            await self.ledger.keep(claim)
            reply = self._nodes.call(node, _for_vendor(call, member))
        except BaseException as error:
            is_bug = not isinstance(
                error, CallError | asyncio.CancelledError
            )  # then it may have been sent all the same
            self.ledger.settle(claim, in_doubt=True if is_bug else None)
            raise
        return _PlacedReply(reply, _Outcome(self.ledger, call, asked, node, _edit(member, mode), claim))

    def _choose(self, call: Call, asked: Whereabouts, fleet: Fleet) -> str:
        """The node for something new: where its source is, else the first connected one that the topology allows."""
        if asked.things:
            return self._beside_source(call, asked, fleet)
        if asked.terms and (len(fleet) != 1 or any(member.segments for member in fleet)):
            node = self._best(call, asked, fleet)
        elif len(fleet) > 1:
            why = (
                "the call asks for no topology, and the driver runs on several; run external-provisioner with "
                "--feature-gates=Topology=true and --strict-topology, and use a StorageClass with "
                "volumeBindingMode WaitForFirstConsumer"
            )
            raise NoNodeFits(call.driver, asked.name, why)
        else:
            node = self._route(call.driver, "", fleet.members)
        if fleet.members[node].lacks_topology and not fleet.members[node].segments:
            why = f"the name of node {node} cannot be the value of a label, so no volume could be bound to it"
            raise NoNodeFits(call.driver, asked.name, why)
        return node

    def _best(self, call: Call, asked: Whereabouts, fleet: Fleet) -> str:
        fitting = list(dict.fromkeys(node for term in asked.terms for node in fleet.at(term)))
        if not fitting:
            known = ", ".join(member.node for member in list(fleet)[:10])
            why = f"none of those that run it ({known or 'none does'}) is where the topology of the call says"
            raise NoNodeFits(call.driver, asked.name, why)
        if len(fitting) > 1 and (losses := self.ledger.losses.standing):
            raise KnowledgeLost(call.driver, losses[0])
        return next(filter(self._nodes.is_connected, fitting), fitting[0])

    def _beside_source(self, call: Call, asked: Whereabouts, fleet: Fleet) -> str:
        node = self._find(call.driver, asked, fleet)
        member = fleet.members.get(node)
        if asked.terms and member is not None and not any(map(member.matches, asked.terms)):
            raise SourceElsewhere(call.driver, str(asked.things[0]), node)
        return node

    def _find_node(self, call: Call, asked: Whereabouts, fleet: Fleet) -> str:
        """The node for a call that makes nothing."""
        if asked.things:
            return self._find(call.driver, asked, fleet)
        if call.method == GET_CAPACITY and asked.terms:
            fitting = fleet.at(asked.terms[0])
            if len(fitting) == 1:
                return fitting[0]
        if len(fleet) > 1:
            raise NotWhole(call.driver, call.method, len(fleet))
        node = self._route(call.driver, "", fleet.members)
        if asked.terms and fleet.members[node].lacks_topology:  # it would answer for itself, being told of no topology
            raise NoNodeFits(call.driver, "GetCapacity", f"{node} alone runs it, and is not where the call says")
        return node

    def _find(self, driver: str, asked: Whereabouts, fleet: Fleet) -> str:
        """The one node that has all things of a call."""
        places = {str(thing): self._find_thing(driver, thing, asked.node_id, fleet) for thing in asked.things}
        if len(set(places.values())) > 1:
            raise SeveralNodes(driver, places)
        return next(iter(places.values()))

    def _find_thing(self, driver: str, thing: Thing, node_id: str, fleet: Fleet) -> str:
        known = self.ledger.find(driver, thing)
        witnesses = known.made or known.deleted
        if len(witnesses) == 1 and not self._is_ruled_out(driver, thing, witnesses[0], fleet):
            return witnesses[0]
        found = sorted([*known.made, *known.listed])
        if len(fleet) < 2 and set(found) <= fleet.members.keys():
            return self._route(driver, "", fleet.members)
        allowed, called = self._allowed(driver, thing, fleet), fleet.with_node_id(node_id)
        for nodes in (allowed, called):
            possible = [node for node in nodes if node in found] if found else nodes
            if len(possible) == 1:
                return possible[0]
        if known.made or len(found) > 1:
            raise IdConflict(driver, str(thing), found if len(found) > 1 else sorted({*found, *allowed}))
        unlisted = [each.node for each in fleet if not self.ledger.is_listed(driver, each.node, thing.kind)]
        if found and not unlisted:
            return found[0]
        self._ask_for_lists(driver, thing.kind, fleet)
        raise NoPlace(driver, str(thing), _why_unknown(unlisted, node_id, called))

    def _is_ruled_out(self, driver: str, thing: Thing, node: str, fleet: Fleet) -> bool:
        """Whether a PersistentVolume says that a thing is on other nodes of the fleet."""
        member = fleet.members.get(node)
        if self.affinity is None or thing.kind != VOLUME or member is None:
            return False
        return not self.affinity.allows(thing.id, driver, member) and bool(self._allowed(driver, thing, fleet))

    def _allowed(self, driver: str, thing: Thing, fleet: Fleet) -> list[str]:
        if self.affinity is None or thing.kind != VOLUME:
            return []
        return self.affinity.nodes(thing.id, driver, fleet) or []

    # ---- what the nodes list -----------------------------------------------------------------------------------------

    def _ask_for_lists(self, driver: str, kind: str, fleet: Fleet) -> None:
        """Let every node that can list what it has, in the background; a retry will find it."""
        now = time.monotonic()
        for member in fleet:
            key = (driver, member.node, kind)
            can = LISTED_BY.get(kind) in member.lists and self._nodes.is_connected(member.node)
            is_due = now - self._listing.get(key, -_LIST_AGAIN_S) >= _LIST_AGAIN_S and key not in self._listers
            if can and is_due:
                self._listing[key] = now
                lister = self._listers[key] = asyncio.create_task(self._list(*key), name=f"list-{member.node}")
                lister.add_done_callback(partial(self._forget_lister, key))

    def _forget_lister(self, key: tuple[str, str, str], _: asyncio.Task[None]) -> None:
        self._listers.pop(key, None)

    async def _list(self, driver: str, node: str, kind: str) -> None:
        try:
            async with self._list_slots:
                began = self.ledger.now()
                things = await take(self._nodes.call, driver, node, kind)
            await self.ledger.listed(driver, node, kind, things, began=began)
        except (CallError, Unlisted) as error:
            log.warning("edge node %s could not list each %s of driver %s: %s", node, kind, driver, error)
        else:
            log.info("edge node %s has listed each %s of driver %s: %d", node, kind, driver, len(things))


def _why_unknown(unlisted: Sequence[str], node_id: str, called: Sequence[str]) -> str:
    """Stays the same from one retry to the next, because users read it in events."""
    lists = f"of {', '.join(unlisted[:10])} there is no list" if unlisted else "no node lists it"
    same = f", {', '.join(called[:10])} all have the node id {node_id}" if len(called) > 1 else ""
    return (
        f"the hub has no record of it, no PersistentVolume tells{same}, and {lists}; csi-bridge call --node NODE asks "
        f"a node"
    )


_Edit = Callable[[str, bytes], bytes]


def _for_vendor(call: Call, member: Member | None) -> Call:
    if member is None or not member.lacks_topology:
        return call
    return replace(call, request=without_topology(call.method, call.request))


def _edit(member: Member | None, mode: str) -> _Edit | None:
    """What adds a node's topology to its vendor's answers, by method and message; None: nothing is added."""
    if member is None or not member.segments:
        return None
    if member.lacks_topology:
        return lambda method, answer: with_topology(method, answer, member.segments)
    if mode == Mode.LOCAL:
        return lambda method, answer: with_missing_topology(method, answer, member.segments)
    return None


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What is to be done with the outcome of one call.

    Attributes:
        ledger: where things are.
        call: the call.
        asked: what it says of itself.
        node: where it went.
        edit: what adds a topology to the answer.
        claim: the name's, of a call that makes something, unless the caller named the node.
    """

    ledger: Ledger
    call: Call
    asked: Whereabouts
    node: str
    edit: _Edit | None = None
    claim: Claim | None = None

    @property
    def is_kept(self) -> bool:
        """Whether there is anything to be done."""
        return bool(self.asked.name or self.asked.ends)

    def answer(self, message: bytes) -> bytes:
        """The answer as the caller gets it."""
        if self.edit is None:
            return message
        try:
            return self.edit(self.call.method, message)
        except ValueError:  # what does not parse is the caller's to judge, not ours
            return message

    async def ended(self, status: Status, message: bytes | None) -> None:
        """The node has told how the call ended.

        Raises:
            PlacementNotKept: it succeeded, and that cannot be written down: nobody may be told yet.
        """
        if not status.ok:
            self.settle(in_doubt=status.origin != Origin.VENDOR or status.code in _NOT_FINAL or self._exists(status))
        elif self.asked.name:
            things, in_doubt = self._made(message), True
            try:
                await self.ledger.made(self.call.driver, self.node, self.asked.name, things)
                in_doubt = not things
            finally:
                self.settle(in_doubt=in_doubt)
        else:
            await self.ledger.ended(self.call.driver, self.node, self.asked.ends)

    def _exists(self, status: Status) -> bool:
        """Whether the vendor says that there is something of this name, and nothing is known of it."""
        return status.code == Code.ALREADY_EXISTS and self.claim is not None and not self.claim.made

    def settle(self, *, in_doubt: bool | None) -> None:
        """The call has ended. See `Ledger.settle`."""
        if self.claim is not None:
            self.ledger.settle(self.claim, in_doubt=in_doubt)

    def _made(self, message: bytes | None) -> tuple[Thing, ...]:
        try:
            return made(self.call.method, message or b"")
        except ValueError:
            return ()


class _PlacedReply:
    """A node's reply (`cloud.nodes.Reply`) whose outcome is kept before its status is told."""

    def __init__(self, reply: Reply, outcome: _Outcome) -> None:
        self._reply, self._outcome = reply, outcome
        self._message: bytes | None = None
        self._is_over = False

    @property
    def status(self) -> Status | None:
        """The node's status, after the last message."""
        return self._reply.status

    @property
    def exhausted(self) -> bool:
        """Whether the last message was received, and the status is there."""
        return self._reply.exhausted

    async def receive(self) -> bytes | None:
        """The answer's next message, or None after the last one.

        Raises:
            CallError: as the node's reply, or the outcome cannot be written down.
        """
        try:
            message = await self._reply.receive()
        except CallError as error:
            self._abandon(in_doubt=None if isinstance(error, NodeOffline) else True)  # which says that it was not sent
            raise
        if message is not None:
            message = self._message = self._outcome.answer(message)
        if self._reply.status is not None and (message is None or self._reply.exhausted):
            await self._end(self._reply.status)
        return message

    def acknowledge(self, *, delivered: bool) -> None:
        """The answer reached the caller, or nobody took it."""
        self._reply.acknowledge(delivered=delivered)

    def cancel(self) -> None:
        """Nobody waits any more."""
        self._reply.cancel()
        self._abandon(in_doubt=True)

    def _abandon(self, *, in_doubt: bool | None) -> None:
        """No word of the node's will come."""
        if not self._is_over:
            self._is_over = True
            self._outcome.settle(in_doubt=in_doubt)

    async def _end(self, status: Status) -> None:
        if not self._is_over:
            self._is_over = True
            if self._outcome.is_kept:
                await asyncio.shield(self._outcome.ended(status, self._message))
