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
from cloud.placement.decisions import AskAll, CallInfo, Keeping, Route, Segment, Terms, View
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


def is_local(fleet: Fleet, named_node: str, mode: str) -> bool:
    """Whether the hub has to find the node: the caller names none, and each node has volumes of its own."""
    if named_node or mode in {Mode.PINNED, Mode.SHARED}:
        return False
    return mode == Mode.LOCAL or fleet.has_topology


def read_info(driver: str, method: str, request: bytes, *, named_node: str, mode: str, fleet: Fleet) -> CallInfo:
    """Read the fields of a request that `route` needs; none if the call is pinned and makes and ends nothing."""
    is_placed = is_local(fleet, named_node, mode)
    if not (is_placed or method in CHANGES or (mode == Mode.SHARED and (method in KEYED or method in LISTINGS))):
        return CallInfo(driver, method, NOTHING_ASKED, named_node, mode)
    try:
        fields = read(method, request, is_pinned=not is_placed and mode != Mode.SHARED)
        needed = needs(method, request) if is_placed and fleet.is_mixed else frozenset()
    except ValueError as error:
        return CallInfo(driver, method, NOTHING_ASKED, named_node, mode, str(error), is_placed=is_placed)
    name = fields.name or (fields.key if mode == Mode.SHARED else "")
    return CallInfo(driver, method, fields, named_node, mode, "", needed, name, is_placed)


def route(info: CallInfo, now: View) -> Route | AskAll:
    """Decide where a call goes. Raises ListsNeeded, or CallError if no node may get it."""
    name = info.name
    if len(name) > LONGEST_CHARS:
        _check_name(info)
    holders = now.book.holders(name) if name in now.book.claims else []
    if info.mode == Mode.SHARED:
        found: Route | AskAll = _shared(info, now)
    else:
        found = _local(info, now, holders) if info.is_placed else _pinned(info, now, holders)
    if name and not holders and isinstance(found, Route):
        own, together = now.book.open.get(found.node, 0), len(now.book.opened)
        if not has_room(own, together, now.most_open, sharers=len(now.fleet.members)):
            raise CallError(
                f"edge node {found.node} gets no create of a new name of driver {info.driver}, because the outcome of "
                f"too many others is not known; their retries settle them: look at the driver on {found.node} and at "
                f"the node's link, or raise --max-open-creates of the hub ({now.most_open})"
            )
    return found


def _check_name(info: CallInfo) -> None:
    method, _, name = info.name.partition(" ")
    if len(name) > (LONGEST_CHARS if info.fields.name else 2 * LONGEST_CHARS):
        what = f"a {'create whose name' if info.fields.name else 'call whose id'} has {len(name)} characters"
        raise _unfit(info, what, f"CSI allows 128 bytes for the name in {method}")


def _unfit(info: CallInfo, what: str, why: str) -> CallError:
    return CallError(f"no edge node of driver {info.driver} can be chosen for {what}: {why}")


def _lacking(info: CallInfo, node: str, capability: str) -> CallError:
    return CallError(
        f"{info.method.rpartition('/')[2]} needs the capability {capability}, which driver {info.driver} has on most "
        f"of its edge nodes and lacks on {node}; run the same version of the driver there",
        node=node,
    )


def _pinned(info: CallInfo, now: View, holders: Sequence[str]) -> Route:
    node = only_node(info.driver, info.named_node, now.fleet.members, now)
    member = now.fleet.members.get(node)
    if holders and node not in holders:
        raise name_elsewhere(info.driver, info.name, holders[0], node)
    ends = tuple(thing for thing in info.fields.ends if info.is_by_hand or now.book.has(thing, node))
    if not (info.name or ends):
        return Route(node, member)
    keeping = Keeping.FIRST if info.is_by_hand else Keeping.LATE
    has_own_ids = info.is_by_hand and now.fleet.has_topology
    return Route(node, member, keeping=keeping, ends=ends, has_own_ids=has_own_ids)


def _shared(info: CallInfo, now: View) -> Route | AskAll:
    election = now.election
    elected = election.elected if election is not None else None
    if election is None or elected is None:
        why = election.why_nobody() if election is not None else "it has no election"
        raise CallError(f"no edge node serves driver {info.driver} (--placement=shared): {why}")
    if info.unreadable:
        raise no_place(info.driver, "what the call is about", info.unreadable)
    node = info.named_node or elected.node
    at = page_tokens.read(info.fields.token)
    if at is not None and at.node != node:
        raise token_unknown(info.method, at.node)
    if not info.name:
        chosen = Route(node, now.fleet.members.get(node), epoch=elected.epoch)
        return AskAll((chosen,)) if info.method in LISTINGS else chosen
    if now.loss and len(now.fleet) > 1:
        raise knowledge_lost(info.driver, now.loss)
    claims = now.book.open_about(info.name)
    over = frozenset(it.node for it in claims if it.name == info.name and election.has_stopped(it))
    holders = sorted({it.node for it in claims} - over, key=lambda holder: (holder not in now.connected, holder))
    if holders and node not in holders:
        if info.named_node or holders[0] not in now.connected:
            holder, until = holders[0], _until(holders[0], info, claims, election)
            raise CallError(
                f"{info.name} of driver {info.driver} has an open outcome on edge node {holder}, which is away or "
                f"takes no calls: it goes on when {holder} answers{until}; if {holder} is gone for good, switch its "
                f"machine off, then csi-bridge forget {holder}"
            )
        node = holders[0]
    known = election.known(node)
    machine = known.stored.instance
    others = (it for it in claims if it.node == node and it.machine not in ("", machine))
    if not info.named_node and node in holders and any(others):
        until = _until(node, info, claims, election)
        raise CallError(
            f"{info.name} of driver {info.driver} has an open outcome on another machine that had the name of edge "
            f"node {node}: it goes on when that one is back{until}; if it is switched off for good, run the command "
            f"that csi-bridge audit shows for the call"
        )
    terms = Terms(known.lease_s if info.fields.name else 0, machine, over)
    return Route(node, now.fleet.members.get(node), keeping=Keeping.OPEN, epoch=elected.epoch, terms=terms)


def _until(node: str, info: CallInfo, claims: Iterable[Claim], election: DriverElection) -> str:
    at = next((election.stops_at(it) for it in claims if it.node == node and it.name == info.name), math.inf)
    return f", or at {timestamp(at)}, when it has surely stopped" if at < math.inf else ""


def _local(info: CallInfo, now: View, holders: Sequence[str]) -> Route | AskAll:
    fields = info.fields
    if info.unreadable:
        raise no_place(info.driver, "what the call is about", info.unreadable)
    if fields.missing and len(now.fleet.members) > 1:
        # Not INVALID_ARGUMENT, which only vendors answer (docs/csi-contract.md#the-vendors-errors-pass-unchanged).
        raise CallError(f"{info.method.rpartition('/')[2]} needs the field {fields.missing}, which is empty")
    if info.method == GET_CAPACITY and now.fleet.members:
        return _capacity(info, now)
    if info.method in LISTINGS and not fields.things:
        return _list(info, now)
    ends = fields.ends
    try:
        node = _node_for_create(info, now, holders) if fields.name else _node_for_call(info, now)
    except ListsNeeded as needed:
        node, ends = _node_for_deletion(info, now, needed), ()
    if info.needs and (missing := info.needs & now.fleet.lacking(node)):
        raise _lacking(info, node, min(missing))
    member = now.fleet.members.get(node)
    keeping = Keeping.FIRST if fields.name or ends else Keeping.NEVER
    segment = _segment(member, info.mode)
    return Route(node, member, keeping=keeping, ends=ends, segment=segment)


def _node_for_create(info: CallInfo, now: View, holders: Sequence[str]) -> str:
    fields, fleet = info.fields, now.fleet
    if holders:
        return next((node for node in holders if node in now.connected), holders[0])
    if fields.things:
        return _beside_source(info, now)
    if fields.terms and (len(fleet.members) != 1 or any(member.segments for member in fleet)):
        node = _in_topology(info, now)
    elif len(fleet.members) > 1:
        why = (
            "the call asks for no topology, and the driver runs on several nodes; run external-provisioner with "
            "--feature-gates=Topology=true and --strict-topology, and use a StorageClass with volumeBindingMode "
            "WaitForFirstConsumer, or name the node with --node"
        )
        raise _unfit(info, fields.name, why)
    elif fleet.members and not now.loss:
        (node,) = fleet.members
    else:
        node = only_node(info.driver, "", fleet.members, now)
    if fleet.members[node].lacks_topology and not fleet.members[node].segments:
        why = f"the name of node {node} cannot be the value of a label, so no volume could be bound to it"
        raise _unfit(info, fields.name, why)
    return node


def _beside_source(info: CallInfo, now: View) -> str:
    fields, node = info.fields, find(info, now)
    member = now.fleet.members.get(node)
    if fields.terms and member is not None and member.tells_segments and not any(map(member.matches, fields.terms)):
        # The scheduler chooses another node (docs/csi-contract.md#resource_exhausted-lets-the-scheduler-choose-again).
        raise CallError(
            f"{fields.things[0]} of driver {info.driver} is on edge node {node}, and a copy of it is requested for "
            f"another place; let the pod that uses the copy run on {node}",
            code=Code.RESOURCE_EXHAUSTED,
        )
    return node


def _in_topology(info: CallInfo, now: View) -> str:
    fields, fleet = info.fields, now.fleet
    fitting = list(dict.fromkeys(node for term in fields.terms for node in fleet.at(term)))
    if not fitting:
        known = ", ".join(member.node for member in list(fleet)[:_SHOWN])
        why = f"none of the nodes that run it ({known or 'none does'}) is in the topology of the call"
        raise _unfit(info, fields.name, why)
    is_choice = len(fields.terms) > 1 or len(fitting) > 1  # another term may have a node that the hub has lost
    if is_choice and now.loss:
        raise knowledge_lost(info.driver, now.loss)
    able = [node for node in fitting if not (fleet.members[node].refused or info.needs & fleet.lacking(node))]
    best = able or fitting
    return next((node for node in best if node in now.connected), best[0])


def _node_for_call(info: CallInfo, now: View) -> str:
    if info.fields.things:
        return find(info, now)
    if len(now.fleet) > 1:
        raise CallError(
            f"{info.method.rpartition('/')[2]} would have to ask all {len(now.fleet)} edge nodes that run driver "
            f"{info.driver}, which the hub does not do yet; ask one: csi-bridge call --node NODE"
        )
    return only_node(info.driver, "", now.fleet.members, now)


def _node_for_deletion(info: CallInfo, now: View, needed: ListsNeeded) -> str:
    """A node for the deletion of a thing that no node has. Raises ListsNeeded while that is not certain."""
    fields, fleet = info.fields, now.fleet
    silent = [member.node for member in fleet if not can_list(member, needed.kind, now)]
    if not needed.nodes or fields.ends != fields.things or not set(needed.nodes).isdisjoint(silent):
        raise needed
    if why := _why_uncertain(info, now, silent):
        why = f"the hub has no record of it, and {why}"
        raise ListsNeeded(needed.kind, no_place(info.driver, str(fields.things[0]), why)) from needed
    if {*fleet.members, *now.book.nodes} - now.listed:
        raise needed
    return needed.nodes[0]


def _why_uncertain(info: CallInfo, now: View, silent: Sequence[str]) -> str:
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
    if info.fields.has_secrets:
        return "sends the Secrets of this call to no node without it; csi-bridge call --node NODE sends it by hand"
    return ""


def _capacity(info: CallInfo, now: View) -> Route | AskAll:
    fleet, terms = now.fleet, info.fields.terms
    if now.loss:
        raise knowledge_lost(info.driver, now.loss)
    nodes = fleet.at(terms[0]) if terms else list(fleet.members)
    if not nodes and fleet.untold:
        raise _unfit(info, "GetCapacity", f"edge node {fleet.untold} has not told its topology yet")
    able = [node for node in nodes if not info.needs & fleet.lacking(node)] if info.needs else nodes
    if nodes and not able:
        raise _lacking(info, nodes[0], min(info.needs))
    routes = _routes(info, fleet, (node for node in able if node in now.connected))
    return routes[0] if len(routes) == 1 else AskAll(routes)


def _list(info: CallInfo, now: View) -> Route | AskAll:
    fleet, token = now.fleet, info.fields.token
    at = page_tokens.read(token)
    if now.loss:
        raise knowledge_lost(info.driver, now.loss)
    if strangers := sorted(set(now.book.nodes) - fleet.members.keys()):
        raise not_listed(info.driver, info.method, dict.fromkeys(strangers, "it has not reported the driver yet"))
    if not fleet.members or (len(fleet) == 1 and at is None):
        node = only_node(info.driver, "", now.fleet.members, now)
        member = fleet.members.get(node)
        return Route(node, member, segment=_segment(member, info.mode))
    if token and (at is None or (at.own and at.node not in fleet.members)):
        raise token_unknown(info.method)
    nodes = list(fleet.members)
    begin = bisect_left(nodes, at.node) if at is not None else 0
    return AskAll(_routes(info, fleet, nodes[begin : begin + 1 + _AHEAD]))


def _routes(info: CallInfo, fleet: Fleet, nodes: Iterable[str]) -> tuple[Route, ...]:
    found = ((node, fleet.members[node]) for node in nodes)
    return tuple(Route(node, member, segment=_segment(member, info.mode)) for node, member in found)


def _segment(member: Member | None, mode: str) -> Segment:
    if member is not None and member.lacks_topology:
        return Segment.ADDED
    if member is not None and member.segments and mode == Mode.LOCAL:
        return Segment.MISSING
    return Segment.AS_IS
