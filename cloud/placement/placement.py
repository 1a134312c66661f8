"""Placement: sends each call to the node that it is for, and keeps what its answer says of where things are.

    pinned    the node that the caller names, else the only one that runs the driver
    local     each node has storage of its own: a create goes by its name, its source and the topology that is asked
              for, everything else by where the thing is
    auto      local if the vendor has a topology of its own on any node, else pinned

Rules:

* Ids are the vendor's, and never rewritten. Where something is stands in the ledger before anybody hears of it.
* A name that may have reached a node stays with it until that node has answered finally (RULE A9), whatever the mode:
  who pins a call to another node is refused, and who asks for a topology that the node has not is told nothing final.
* Where the hub chooses the node the disk knows of the name before the call is sent; where the node is named, only if a
  doubt remains or nobody took a success, for that path is to be as fast as the vendor's own socket.
* Where something is that no record tells of is asked of its PersistentVolume, then of the call's node id, then of the
  nodes' own lists: each tells only where those before it leave a choice. What cannot be decided is UNAVAILABLE, never a
  guess and never "not found" (RULE B6).
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
from typing import Final, Protocol

from cloud.edge_nodes import Call, Reply
from cloud.placement import fleet as fleets
from cloud.placement.affinity import Affinity, Fit
from cloud.placement.capabilities import merged
from cloud.placement.claims import Attempt
from cloud.placement.fleet import Fleet, Fleets, Member, describes_itself
from cloud.placement.inventory import LISTED_BY, Unlisted, take
from cloud.placement.ledger import Held, Ledger
from cloud.placement.requests import VOLUME, Thing, Whereabouts, changes, made, read
from cloud.placement.segment import with_missing_topology, with_topology, without_topology
from cloud.routing import route
from common.errors import (
    CallError,
    FieldMissing,
    IdConflict,
    KnowledgeLost,
    NameElsewhere,
    NodeOffline,
    NoNodeFits,
    NoPlace,
    NotWhole,
    SeveralNodes,
    SourceElsewhere,
)
from common.reports import DriverReport
from common.status import Code, Origin, Status

log = logging.getLogger("csi_bridge.hub.placement")

GET_CAPACITY: Final = "/csi.v1.Controller/GetCapacity"

_NOT_FINAL: Final = frozenset({Code.CANCELLED, Code.DEADLINE_EXCEEDED, Code.UNAVAILABLE, Code.ABORTED})
"""After these the sidecars ask again for the same name, because something may have been made (contract A.3)."""

_SHOWN: Final = 10
"""So many nodes are named in a message."""

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
    """What is asked of `cloud.edge_nodes.Nodes`."""

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
        return await self._call_pinned(call, fleet, node, by_hand=not mode)

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

    async def _call_pinned(self, call: Call, fleet: Fleet, node: str, *, by_hand: bool) -> Reply:
        """Send a call as it is to the node that it must go to.

        What an operator makes or deletes by hand is kept. Of a proxy driver's calls the names are held, and what the
        ledger knows and they delete is gone from it.
        """
        if not changes(call.method):
            return self._nodes.call(node, call)
        try:
            asked = read(call.method, call.request)
        except ValueError:  # the vendor's to judge
            return self._nodes.call(node, call)
        if not by_hand:
            asked = replace(asked, ends=tuple(it for it in asked.ends if self.ledger.has(call.driver, it, node)))
        attempt = self._attempt(call.driver, asked.name, node)
        member = fleet.members.get(node)
        return await self._send(
            call, _Outcome(self.ledger, call, asked, node, member, attempt, is_written=by_hand, is_by_hand=by_hand)
        )

    def _attempt(self, driver: str, name: str, node: str) -> Attempt | None:
        """A create under its name, at the node that it is to be sent to; None: the call makes nothing.

        Raises:
            NameElsewhere: another node has it.
            CallError: as `Nodes.check`.
        """
        if not name:
            return None
        holder = self.ledger.holder(driver, name)
        if holder not in ("", node):
            raise NameElsewhere(driver, name, holder, node)
        self._nodes.check(node, driver)
        return self.ledger.attempt(driver, name, node)

    async def _send(self, call: Call, outcome: "_Outcome") -> Reply:
        """Send a call, as the vendor is to see it, once its name is kept."""
        if not outcome.is_kept and outcome.edit is None:
            return self._nodes.call(outcome.node, call)
        try:
            if outcome.attempt is not None:
                if outcome.is_written:
                    await self.ledger.keep(outcome.attempt.claim)
                outcome.attempt.send()
            return _PlacedReply(self._nodes.call(outcome.node, call), outcome)
        except BaseException as error:
            is_bug = not isinstance(error, CallError | asyncio.CancelledError)  # and may have come after it was sent
            outcome.settle(in_doubt=True if is_bug else None)
            raise

    # ---- where each node has storage of its own ----------------------------------------------------------------------

    async def _call_local(self, call: Call, fleet: Fleet, mode: str, goes_to: Callable[[str], None]) -> Reply:
        try:
            asked = read(call.method, call.request)
        except ValueError as error:
            raise NoPlace(call.driver, "what the call is about", str(error)) from error
        if asked.missing and len(fleet) > 1:
            raise FieldMissing(call.method, asked.missing)
        if asked.name:
            node = self.ledger.holder(call.driver, asked.name) or self._choose(call, asked, fleet)
        else:
            node = self._find_node(call, asked, fleet)
        goes_to(node)
        member = fleet.members.get(node)
        sent, edit = _for_vendor(call, member), _edit(member, mode)
        attempt = self._attempt(call.driver, asked.name, node)
        return await self._send(sent, _Outcome(self.ledger, call, asked, node, member, attempt, edit))

    def _choose(self, call: Call, asked: Whereabouts, fleet: Fleet) -> str:
        """The node for something new: where its source is, else the first connected one that the topology allows."""
        if asked.things:
            return self._beside_source(call, asked, fleet)
        if asked.terms and (len(fleet) != 1 or any(member.segments for member in fleet)):
            node = self._best(call, asked, fleet)
        elif len(fleet) > 1:
            why = (
                "the call asks for no topology, and the driver runs on several nodes; run external-provisioner with "
                "--feature-gates=Topology=true and --strict-topology, and use a StorageClass with volumeBindingMode "
                "WaitForFirstConsumer, or name the node with --node"
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
            known = ", ".join(member.node for member in list(fleet)[:_SHOWN])
            why = f"none of the nodes that run it ({known or 'none does'}) is in the topology of the call"
            raise NoNodeFits(call.driver, asked.name, why)
        is_choice = len(asked.terms) > 1 or len(fitting) > 1  # nodes that were lost as well may fit the other terms
        if is_choice and (losses := self.ledger.losses.standing):
            raise KnowledgeLost(call.driver, losses[0])
        return next(filter(self._nodes.is_connected, fitting), fitting[0])

    def _beside_source(self, call: Call, asked: Whereabouts, fleet: Fleet) -> str:
        node = self._find(call.driver, asked, fleet)
        member = fleet.members.get(node)
        if asked.terms and member is not None and member.tells_segments and not any(map(member.matches, asked.terms)):
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
            raise NoNodeFits(
                call.driver, "GetCapacity", f"only {node} runs it, and {node} is not in the topology of the call"
            )
        return node

    def _find(self, driver: str, asked: Whereabouts, fleet: Fleet) -> str:
        """The one node that has all things of a call."""
        is_known = not asked.parts or any(self.ledger.find(driver, thing).nodes for thing in asked.things)
        things = asked.things if is_known else asked.parts
        places = {str(thing): self._find_thing(driver, thing, asked.node_id, fleet) for thing in things}
        if len(set(places.values())) > 1:
            raise SeveralNodes(driver, places)
        return next(iter(places.values()))

    def _find_thing(self, driver: str, thing: Thing, node_id: str, fleet: Fleet) -> str:
        known = self.ledger.find(driver, thing)
        witnesses = known.made or known.deleted
        if len(witnesses) == 1 and not self._is_ruled_out(driver, thing, witnesses[0], fleet):
            return witnesses[0]
        if not fleet.members:
            return self._route(driver, "", ())
        fit = self._by_affinity(driver, thing, fleet)
        called = fleet.with_node_id(node_id)
        nodes = [node for node in called if node in fit.possible] or fit.possible
        strange = sorted(self.ledger.nodes(driver) - fleet.members.keys())
        found = [node for node in (*nodes, *strange) if node in known.made or node in known.listed]
        if len(nodes) == 1 and nodes[0] in (*called, *fit.named) and (nodes[0] in found or not known.made):
            return nodes[0]
        if len(found) == 1 and found[0] in known.made:
            return found[0]
        if known.made or len(found) > 1:
            raise IdConflict(driver, str(thing), found if len(found) > 1 else sorted({*known.made, *fit.named}))
        if not nodes:
            raise NoPlace(driver, str(thing), _NOT_HERE)
        if len(fleet) == 1 and not strange:
            return self._route(driver, "", nodes)
        unlisted = [node for node in (*nodes, *strange) if not self.ledger.is_listed(driver, node, thing.kind)]
        if found and not unlisted:
            return found[0]
        self._ask_for_lists(driver, thing.kind, fleet)
        told = self._told_by_volumes(driver, thing, fleet, fit)
        raise NoPlace(driver, str(thing), _why_unknown(told, unlisted, node_id, called))

    def _is_ruled_out(self, driver: str, thing: Thing, node: str, fleet: Fleet) -> bool:
        """Whether a PersistentVolume says that a thing is on other nodes of the fleet."""
        member, affinity = fleet.members.get(node), self._affinity_of(thing)
        if affinity is None or member is None or affinity.allows(thing.id, driver, member, fleet):
            return False
        return bool(affinity.fit(thing.id, driver, fleet).named)

    def _by_affinity(self, driver: str, thing: Thing, fleet: Fleet) -> Fit:
        """The nodes that PersistentVolumes name, and all that they do not rule out.

        Raises:
            NoPlace: not every PersistentVolume is known yet.
        """
        affinity = self._affinity_of(thing)
        if affinity is None:
            return Fit([], list(fleet.members))
        if not affinity.is_ready:
            raise NoPlace(driver, str(thing), _NOT_READ)
        return affinity.fit(thing.id, driver, fleet)

    def _affinity_of(self, thing: Thing) -> Affinity | None:
        """What PersistentVolumes say, of what they say anything at all."""
        return self.affinity if thing.kind == VOLUME else None

    def _told_by_volumes(self, driver: str, thing: Thing, fleet: Fleet, fit: Fit) -> str:
        """What PersistentVolumes tell of where a thing is, in words."""
        affinity, named = self._affinity_of(thing), fit.named[:_SHOWN]
        others = sorted(set(fit.possible) - set(fit.named))[:_SHOWN]
        unknown = affinity.unknown_labels(thing.id, driver, fleet, others) if affinity is not None else {}
        labels = " or ".join(sorted({key for keys in unknown.values() for key in keys}))
        told = [f"for {', '.join(named)}"] if named else []
        told += [f"perhaps for {', '.join(unknown)}, whose label {labels} the hub does not know"] if unknown else []
        return f"its PersistentVolume is {' and '.join(told)}" if told else "no PersistentVolume names a node for it"

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


_NOT_READ: Final = "the hub has not read every PersistentVolume yet; csi-bridge status says why"

_NOT_HERE: Final = (
    "its PersistentVolume is for none of the nodes that have reported the driver; look at the agent's log on the node "
    "that it is for"
)


def _why_unknown(told: str, unlisted: Sequence[str], node_id: str, called: Sequence[str]) -> str:
    """Stays the same from one retry to the next, because users read it in events."""
    lists = f"{', '.join(unlisted[:_SHOWN])} sent no list" if unlisted else "no node lists it"
    same = f", {', '.join(called[:_SHOWN])} all have the node id {node_id}" if len(called) > 1 else ""
    return f"the hub has no record of it, {told}{same}, and {lists}; csi-bridge call --node NODE asks a node"


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
        member: what is known of that node.
        attempt: the one at its name, of a call that makes something.
        edit: what adds a topology to the answer.
        is_written: whether the name is on the disk before the call is sent, and what was made before that is told.
        is_by_hand: whether an operator sent it to this node.
    """

    ledger: Ledger
    call: Call
    asked: Whereabouts
    node: str
    member: Member | None
    attempt: Attempt | None
    edit: _Edit | None = None
    is_written: bool = True
    is_by_hand: bool = False

    @property
    def is_kept(self) -> bool:
        """Whether the ledger is to know of it."""
        return self.attempt is not None or bool(self.asked.ends)

    @property
    def is_over_once_delivered(self) -> bool:
        """Whether nothing tells of a success until the caller has it."""
        return self.attempt is not None and not self.is_written

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
            self.settle(in_doubt=self._leaves_doubt(status))
        elif self.attempt is not None:
            things, in_doubt = self._made(message), True
            try:
                await self.ledger.made(self.call.driver, self.node, self.asked.name, things)
                in_doubt = not things
            finally:
                self.settle(in_doubt=in_doubt)
        else:
            await self.ledger.ended(self.call.driver, self.node, self.asked.ends, by_hand=self.is_by_hand)

    def check(self, status: Status) -> None:
        """Whether the caller may be told how the call ended.

        Who hears a final word forgets what an earlier call may have made: one about another place has to wait until the
        node has answered for its own (RULE A9). But where the caller chose the node, or nothing is known of the node's
        place, the vendor may have answered just what was asked before (RULE A12).

        Raises:
            NameElsewhere: it failed finally, and that says nothing of what an earlier call may have made.
        """
        if status.ok or self._leaves_doubt(status) is not None or self.attempt is None or self.member is None:
            return
        is_by_hub = self.is_written and not self.is_by_hand
        if is_by_hub and self.member.tells_segments and not self.attempt.claim.is_settled:
            raise NameElsewhere(self.call.driver, self.asked.name, self.node, "a topology that this node does not have")

    def _leaves_doubt(self, status: Status) -> bool | None:
        """Whether something may have been made in spite of an error; None: that says nothing of earlier attempts."""
        if status.origin != Origin.VENDOR or status.code in _NOT_FINAL or self._exists(status):
            return True
        return None if self._is_for_others else False

    @property
    def _is_for_others(self) -> bool:
        """Whether the vendor was asked for a topology that its node has not: it refuses that whatever it has made."""
        if not self.asked.terms or self.member is None or self.member.lacks_topology:
            return False
        return not any(map(self.member.matches, self.asked.terms))

    def _exists(self, status: Status) -> bool:
        """Whether the vendor says that there is something of this name, and nothing is known of it."""
        return status.code == Code.ALREADY_EXISTS and self.attempt is not None and not self.attempt.claim.made

    def hold(self, message: bytes | None) -> Held:
        """It succeeded: what was made is known, whether or not somebody takes the answer."""
        things = self._made(message) if self.attempt is not None else ()
        return self.ledger.hold(self.call.driver, self.node, self.asked.name, things)

    def settle(self, *, in_doubt: bool | None) -> None:
        """The call has ended. See `Ledger.settle`."""
        if self.attempt is not None:
            self.ledger.settle(self.attempt, in_doubt=in_doubt)

    def _made(self, message: bytes | None) -> tuple[Thing, ...]:
        try:
            return made(self.call.method, message or b"")
        except ValueError:
            return ()


class _PlacedReply:
    """A node's reply (`cloud.edge_nodes.Reply`) whose outcome is kept before its status is told."""

    def __init__(self, reply: Reply, outcome: _Outcome) -> None:
        self._reply, self._outcome = reply, outcome
        self._message: bytes | None = None
        self._held: Held = {}
        """What a success made that nobody has taken yet."""
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
            CallError: as the node's reply, or the outcome cannot be written down or be told.
        """
        try:
            message = await self._reply.receive()
        except CallError as error:
            self._settle(in_doubt=None if isinstance(error, NodeOffline) else True)  # which says that it was not sent
            raise
        if message is not None:
            message = self._message = self._outcome.answer(message)
        if self._reply.status is not None and (message is None or self._reply.exhausted):
            await self._end(self._reply.status)
        return message

    def acknowledge(self, *, delivered: bool) -> None:
        """The answer reached the caller, or nobody took it."""
        self._reply.acknowledge(delivered=delivered)
        if delivered:
            self._outcome.ledger.let_go(self._held)
            self._settle(in_doubt=False)
        else:
            self._give_up()

    def cancel(self) -> None:
        """Nobody waits any more."""
        self._reply.cancel()
        self._give_up()

    def _settle(self, *, in_doubt: bool | None) -> None:
        """No other word of the node's will come."""
        if not self._is_over:
            self._is_over = True
            self._outcome.settle(in_doubt=in_doubt)

    def _give_up(self) -> None:
        """Nobody takes the answer, as far as it came."""
        if not self._is_over:
            if self._reply.status is not None and self._reply.status.ok:
                self._hold()
            self._outcome.ledger.note(self._held)
            self._settle(in_doubt=not self._held)

    def _hold(self) -> None:
        self._held = self._held or self._outcome.hold(self._message)

    async def _end(self, status: Status) -> None:
        if self._is_over:
            return
        if status.ok and self._outcome.is_over_once_delivered:
            self._hold()
            return
        self._is_over = True
        if self._outcome.is_kept:
            await asyncio.shield(self._outcome.ended(status, self._message))
            self._outcome.check(status)
