"""Route: chooses the node for a call. Pure: `route` maps a call and a view to a decision, or raises the refusal.

* A pinned call goes to the node that the caller names, else to the only node that runs the driver.
* A local call is for a driver whose nodes each have volumes of their own. The rules below find the node.
* A shared call is for a driver whose storage every node reaches. One elected node serves it.
* Any other call that names a node is pinned. For the rest the proxy driver's mode decides (`--placement`).
* The mode auto means local if the vendor has a topology on most nodes (`capabilities`), else pinned. An operator's
  calls have this mode.

A node holds a name if it may have carried out a create of this name (`Book.holders`).

    call                   the first rule that applies decides
    create, long name      refuse: the name would stay in the records for as long as its outcome is in
                           doubt, and CSI allows 128 bytes
    create, new name       refuse if the nodes hold too many names for open creates of the driver; the
                           last quarter is for nodes with few (`has_room`). A retry passes
    shared                 1. no node is elected (`election`): refuse
                           2. it changes something, and the hub has lost records: refuse (`knowledge_lost`)
                           3. a call about the same thing, or a create of the name, is open on a node: this node; if it
                              is away, or another machine has its name by now, refuse. An open create
                              no longer counts once its machine has surely stopped it: a retry is idempotent by the name
                           4. the node that an operator names
                           5. the elected node
                           6. it is the next page of a list of another node: refuse (`token_unknown`)
    pinned                 1. the node that the caller names
                           2. the only node that runs the driver
                           3. refuse; `knowledge_lost` if the hub has lost records
    pinned create          as above, and refuse if only other nodes hold the name (`name_elsewhere`)
    local, unparsable      refuse: `no_place`
    local, needs more      the driver lacks a capability on the node that it has on most nodes: refuse (`_lacking`)
    local, lacks a field   several nodes run the driver: refuse; else as below, and the vendor
                           refuses it
    local create           1. a node that holds the name; of several, a connected one first
                           2. the node of the source volume or snapshot; if the requested topology is elsewhere, refuse
                              it
                           3. the only node in the requested topology
                           4. the hub has lost records, so another node may hold this one: refuse
                              (`knowledge_lost`)
                           5. the first connected node in the topology, preferred terms first; if none is connected,
                              the first node. Nodes that may carry the create out come before the others
                           6. the only node, if no topology is requested
                           7. refuse
    local, about ids       the node that has all of them (`find`); several nodes: refuse
    local deletion of a    the first node that may have it by its PersistentVolume: the vendor there answers, and the
    thing that no node has hub records nothing. Only when every node of the driver has sent a list that began after the
                           call first came. Refuse (`no_place`) while a node is away or cannot list, records are lost, a
                           node was forgotten with its things, a create is open, or if the call has Secrets
    local GetCapacity      the connected nodes in the topology (without one: of all nodes) that have the capability.
                           One: this node; none or several: `AskAll`. Refuse if all lack the capability, records are
                           lost, or no node is in the topology and one has not told its own
    local list of all      `AskAll`: the page's node and the next ones; with one node, this node. Refuse if a node has
                           things of the driver and has not reported it (`not_listed`), records are lost
                           (`knowledge_lost`), or the token is of no list (`token_unknown`)
    local, about no id     the only node; several nodes: refuse, as one node's answer would look complete

If the hub chooses the node, or an operator sends the create by hand, the hub claims the name before it sends the
create. For a create that a proxy driver pins, the records learn of the outcome later, if at all (`Keeping`).
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Final

from cloud.claims.claim import Claim, Mark
from cloud.claims.requests import LONGEST_CHARS, NOTHING_ASKED, needs, read
from cloud.claims.rules import CHANGES, GET_CAPACITY, KEYED, LISTINGS
from cloud.nodes.elections import DriverElection
from cloud.nodes.fleet import Fleet, Member
from cloud.placement import page_tokens
from cloud.placement.decisions import Ask, AskAll, Keeping, Segment, Send, Terms, View
from cloud.placement.find import ListsNeeded, can_list, find, only_node
from cloud.proxy.driver_settings import Mode
from common.errors import (
    CallError,
    knowledge_lost,
    name_elsewhere,
    no_place,
    not_listed,
    timestamp,
    token_unknown,
)
from common.session.limits import has_room
from common.status import Code

_SHOWN: Final = 10  # a message names at most this many nodes

# The nodes of a list that are asked ahead. Of external-attacher's 15 s for all pages, 1,000 nodes have 0.9 s each.
_AHEAD: Final = 64


def is_local(fleet: Fleet, wanted: str, mode: str) -> bool:
    """Whether the hub has to find the node: the caller names none, and each node has volumes of its own."""
    if wanted or mode in {Mode.PINNED, Mode.SHARED}:
        return False
    return mode == Mode.LOCAL or fleet.has_topology


def ask_for(driver: str, method: str, request: bytes, *, wanted: str, mode: str, fleet: Fleet) -> Ask:
    """Read the fields of a request that `route` needs; none if the call is pinned and makes and ends nothing."""
    is_placed = is_local(fleet, wanted, mode)
    if not (is_placed or method in CHANGES or (mode == Mode.SHARED and (method in KEYED or method in LISTINGS))):
        return Ask(driver, method, NOTHING_ASKED, wanted, mode)
    try:
        asked = read(method, request, is_pinned=not is_placed and mode != Mode.SHARED)
        needed = needs(method, request) if is_placed and fleet.is_mixed else frozenset()
    except ValueError as error:
        return Ask(driver, method, NOTHING_ASKED, wanted, mode, str(error), is_placed=is_placed)
    name = asked.name or (asked.key if mode == Mode.SHARED else "")
    return Ask(driver, method, asked, wanted, mode, "", needed, name, is_placed)


def route(ask: Ask, now: View) -> Send | AskAll:
    """Decide where a call goes. Raises ListsNeeded, or CallError if no node may get it."""
    name = ask.name
    if len(name) > LONGEST_CHARS:
        _check_name(ask)
    holders = now.book.holders(name) if name in now.book.claims else []
    if ask.mode == Mode.SHARED:
        found: Send | AskAll = _shared(ask, now)
    else:
        found = _local(ask, now, holders) if ask.is_placed else _pinned(ask, now, holders)
    if name and not holders and isinstance(found, Send):
        own, together = now.book.open.get(found.node, 0), len(now.book.opened)
        if not has_room(own, together, now.most_open, sharers=len(now.fleet.members)):
            raise CallError(
                f"edge node {found.node} gets no create of a new name of driver {ask.driver}, because the outcome of "
                f"too many others is not known; their retries settle them: look at the driver on {found.node} and at "
                f"the node's link, or raise --max-open-creates of the hub ({now.most_open})"
            )
    return found


def _check_name(ask: Ask) -> None:
    method, _, name = ask.name.partition(" ")
    if len(name) > (LONGEST_CHARS if ask.asked.name else 2 * LONGEST_CHARS):
        what = f"a {'create whose name' if ask.asked.name else 'call whose id'} has {len(name)} characters"
        raise _unfit(ask, what, f"CSI allows 128 bytes for the name in {method}")


def _unfit(ask: Ask, what: str, why: str) -> CallError:
    return CallError(f"no edge node of driver {ask.driver} can be chosen for {what}: {why}")


def _lacking(ask: Ask, node: str, capability: str) -> CallError:
    return CallError(
        f"{ask.method.rpartition('/')[2]} needs the capability {capability}, which driver {ask.driver} has on most of "
        f"its edge nodes and lacks on {node}; run the same version of the driver there",
        node=node,
    )


def _pinned(ask: Ask, now: View, holders: Sequence[str]) -> Send:
    node = only_node(ask.driver, ask.wanted, now.fleet.members, now)
    member = now.fleet.members.get(node)
    if holders and node not in holders:
        raise name_elsewhere(ask.driver, ask.name, holders[0], node)
    ends = tuple(thing for thing in ask.asked.ends if ask.is_by_hand or now.book.has(thing, node))
    if not (ask.name or ends):
        return Send(node, member)
    keeping = Keeping.FIRST if ask.is_by_hand else Keeping.LATE
    has_own_ids = ask.is_by_hand and now.fleet.has_topology
    return Send(node, member, keeping=keeping, ends=ends, has_own_ids=has_own_ids)


def _shared(ask: Ask, now: View) -> Send | AskAll:
    election = now.election
    elected = election.elected if election is not None else None
    if election is None or elected is None:
        why = election.why_nobody() if election is not None else "it has no election"
        raise CallError(f"no edge node serves driver {ask.driver} (--placement=shared): {why}")
    if ask.unreadable:
        raise no_place(ask.driver, "what the call is about", ask.unreadable)
    node = ask.wanted or elected.node
    at = page_tokens.read(ask.asked.token)
    if at is not None and at.node != node:
        raise token_unknown(ask.method, at.node)
    if not ask.name:
        send = Send(node, now.fleet.members.get(node), epoch=elected.epoch)
        return AskAll((send,)) if ask.method in LISTINGS else send
    if now.loss and len(now.fleet) > 1:
        raise knowledge_lost(ask.driver, now.loss)
    claims = now.book.open_about(ask.name)
    over = frozenset(it.node for it in claims if it.name == ask.name and election.has_stopped(it))
    holders = sorted({it.node for it in claims} - over, key=lambda holder: (holder not in now.connected, holder))
    if holders and node not in holders:
        if ask.wanted or holders[0] not in now.connected:
            holder, until = holders[0], _until(holders[0], ask, claims, election)
            raise CallError(
                f"{ask.name} of driver {ask.driver} has an open outcome on edge node {holder}, which is away or takes "
                f"no calls: it goes on when {holder} answers{until}; if {holder} is gone for good, switch its machine "
                f"off, then csi-bridge forget {holder}"
            )
        node = holders[0]
    machine = election.machine(node)
    others = (it for it in claims if it.node == node and it.machine not in ("", machine))
    if not ask.wanted and node in holders and any(others):
        until = _until(node, ask, claims, election)
        raise CallError(
            f"{ask.name} of driver {ask.driver} has an open outcome on another machine that had the name of edge node "
            f"{node}: it goes on when that one is back{until}; if it is switched off for good, run the command that "
            f"csi-bridge audit shows for the call"
        )
    terms = Terms(election.lease_s(node) if ask.asked.name else 0, machine, over)
    return Send(node, now.fleet.members.get(node), keeping=Keeping.OPEN, epoch=elected.epoch, terms=terms)


def _until(node: str, ask: Ask, claims: Iterable[Claim], election: DriverElection) -> str:
    at = next((election.stops_at(it) for it in claims if it.node == node and it.name == ask.name), math.inf)
    return f", or at {timestamp(at)}, when it has surely stopped" if at < math.inf else ""


def _local(ask: Ask, now: View, holders: Sequence[str]) -> Send | AskAll:
    asked = ask.asked
    if ask.unreadable:
        raise no_place(ask.driver, "what the call is about", ask.unreadable)
    if asked.missing and len(now.fleet.members) > 1:
        # Not INVALID_ARGUMENT, which only vendors answer (docs/csi-contract.md#the-vendors-errors-pass-unchanged).
        raise CallError(f"{ask.method.rpartition('/')[2]} needs the field {asked.missing}, which is empty")
    if ask.method == GET_CAPACITY and now.fleet.members:
        return _capacity(ask, now)
    if ask.method in LISTINGS and not asked.things:
        return _list(ask, now)
    ends = asked.ends
    try:
        node = _node_for_create(ask, now, holders) if asked.name else _node_for_call(ask, now)
    except ListsNeeded as needed:
        node, ends = _node_for_deletion(ask, now, needed), ()
    if ask.needs and (missing := ask.needs & now.fleet.lacking(node)):
        raise _lacking(ask, node, min(missing))
    member = now.fleet.members.get(node)
    keeping = Keeping.FIRST if asked.name or ends else Keeping.NEVER
    segment = _segment(member, ask.mode)
    return Send(node, member, keeping=keeping, ends=ends, segment=segment)


def _node_for_create(ask: Ask, now: View, holders: Sequence[str]) -> str:
    asked, fleet = ask.asked, now.fleet
    if holders:
        return next((node for node in holders if node in now.connected), holders[0])
    if asked.things:
        return _beside_source(ask, now)
    if asked.terms and (len(fleet.members) != 1 or any(member.segments for member in fleet)):
        node = _in_topology(ask, now)
    elif len(fleet.members) > 1:
        why = (
            "the call asks for no topology, and the driver runs on several nodes; run external-provisioner with "
            "--feature-gates=Topology=true and --strict-topology, and use a StorageClass with volumeBindingMode "
            "WaitForFirstConsumer, or name the node with --node"
        )
        raise _unfit(ask, asked.name, why)
    elif fleet.members and not now.loss:
        (node,) = fleet.members
    else:
        node = only_node(ask.driver, "", fleet.members, now)
    if fleet.members[node].lacks_topology and not fleet.members[node].segments:
        why = f"the name of node {node} cannot be the value of a label, so no volume could be bound to it"
        raise _unfit(ask, asked.name, why)
    return node


def _beside_source(ask: Ask, now: View) -> str:
    asked, node = ask.asked, find(ask, now)
    member = now.fleet.members.get(node)
    if asked.terms and member is not None and member.tells_segments and not any(map(member.matches, asked.terms)):
        # The scheduler chooses another node (docs/csi-contract.md#resource_exhausted-lets-the-scheduler-choose-again).
        raise CallError(
            f"{asked.things[0]} of driver {ask.driver} is on edge node {node}, and a copy of it is requested for "
            f"another place; let the pod that uses the copy run on {node}",
            code=Code.RESOURCE_EXHAUSTED,
        )
    return node


def _in_topology(ask: Ask, now: View) -> str:
    asked, fleet = ask.asked, now.fleet
    fitting = list(dict.fromkeys(node for term in asked.terms for node in fleet.at(term)))
    if not fitting:
        known = ", ".join(member.node for member in list(fleet)[:_SHOWN])
        why = f"none of the nodes that run it ({known or 'none does'}) is in the topology of the call"
        raise _unfit(ask, asked.name, why)
    is_choice = len(asked.terms) > 1 or len(fitting) > 1  # another term may have a node that the hub has lost
    if is_choice and now.loss:
        raise knowledge_lost(ask.driver, now.loss)
    able = [node for node in fitting if not (fleet.members[node].refused or ask.needs & fleet.lacking(node))]
    best = able or fitting
    return next((node for node in best if node in now.connected), best[0])


def _node_for_call(ask: Ask, now: View) -> str:
    if ask.asked.things:
        return find(ask, now)
    if len(now.fleet) > 1:
        raise CallError(
            f"{ask.method.rpartition('/')[2]} would have to ask all {len(now.fleet)} edge nodes that run driver "
            f"{ask.driver}, which the hub does not do yet; ask one: csi-bridge call --node NODE"
        )
    return only_node(ask.driver, "", now.fleet.members, now)


def _node_for_deletion(ask: Ask, now: View, needed: ListsNeeded) -> str:
    """A node for the deletion of a thing that no node has. Raises ListsNeeded while that is not certain."""
    asked, fleet = ask.asked, now.fleet
    silent = [member.node for member in fleet if not can_list(member, needed.kind, now)]
    if not needed.nodes or asked.ends != asked.things or not set(needed.nodes).isdisjoint(silent):
        raise needed
    if why := _why_uncertain(ask, now, silent):
        why = f"the hub has no record of it, and {why}"
        raise ListsNeeded(needed.kind, no_place(ask.driver, str(asked.things[0]), why)) from needed
    if {*fleet.members, *now.book.nodes} - now.listed:
        raise needed
    return needed.nodes[0]


def _why_uncertain(ask: Ask, now: View, silent: Sequence[str]) -> str:
    """Why a node may have a thing although no list tells it; empty: none of these reasons.

    Returns the end of the sentence `the hub has no record of it, and …`. `silent` are nodes that cannot be asked for a
    list.
    """
    book, fleet = now.book, now.fleet
    if now.loss:
        return f"has lost others ({now.loss}): see docs/troubleshooting.md#the-hub-has-lost-records"
    if left := sorted(
        node for node, mark in book.marks.items() if mark is Mark.FORGOTTEN and node not in fleet.members
    ):
        return (
            f"has forgotten {', '.join(left[:_SHOWN])}, which had volumes or snapshots; csi-bridge forget {left[0]} "
            f"--abandon-volumes gives them up"
        )
    if silent:
        return f"{', '.join(silent[:_SHOWN])} cannot be asked for a list"
    if book.open:
        return f"does not know the outcome of a create on {', '.join(sorted(book.open)[:_SHOWN])} yet"
    if ask.asked.has_secrets:
        return "sends the Secrets of this call to no node without it; csi-bridge call --node NODE sends it by hand"
    return ""


def _capacity(ask: Ask, now: View) -> Send | AskAll:
    fleet, terms = now.fleet, ask.asked.terms
    if now.loss:
        raise knowledge_lost(ask.driver, now.loss)
    nodes = fleet.at(terms[0]) if terms else list(fleet.members)
    if not nodes and fleet.untold:
        raise _unfit(ask, "GetCapacity", f"edge node {fleet.untold} has not told its topology yet")
    able = [node for node in nodes if not ask.needs & fleet.lacking(node)] if ask.needs else nodes
    if nodes and not able:
        raise _lacking(ask, nodes[0], min(ask.needs))
    sends = _sends(ask, fleet, (node for node in able if node in now.connected))
    return sends[0] if len(sends) == 1 else AskAll(sends)


def _list(ask: Ask, now: View) -> Send | AskAll:
    fleet, token = now.fleet, ask.asked.token
    at = page_tokens.read(token)
    if now.loss:
        raise knowledge_lost(ask.driver, now.loss)
    if strangers := sorted(set(now.book.nodes) - fleet.members.keys()):
        raise not_listed(ask.driver, ask.method, dict.fromkeys(strangers, "it has not reported the driver yet"))
    if not fleet.members or (len(fleet) == 1 and at is None):
        node = only_node(ask.driver, "", now.fleet.members, now)
        member = fleet.members.get(node)
        return Send(node, member, segment=_segment(member, ask.mode))
    if token and (at is None or (at.own and at.node not in fleet.members)):
        raise token_unknown(ask.method)
    nodes = list(fleet.members)
    begin = bisect_left(nodes, at.node) if at is not None else 0
    return AskAll(_sends(ask, fleet, nodes[begin : begin + 1 + _AHEAD]))


def _sends(ask: Ask, fleet: Fleet, nodes: Iterable[str]) -> tuple[Send, ...]:
    found = ((node, fleet.members[node]) for node in nodes)
    return tuple(Send(node, member, segment=_segment(member, ask.mode)) for node, member in found)


def _segment(member: Member | None, mode: str) -> Segment:
    if member is not None and member.lacks_topology:
        return Segment.ADDED
    if member is not None and member.segments and mode == Mode.LOCAL:
        return Segment.MISSING
    return Segment.AS_IS
