"""Route: chooses the node of a call. Pure: `route` reads a call and a view, and returns a decision or raises a refusal.

A call is of one of three kinds:

* Pinned: the call goes to the node that the caller names, else to the only node that runs the driver.
* Local: each node of the driver has volumes of its own. The hub finds the node that has the volume, or chooses one.
* Shared: every node of the driver reaches the same storage. The call goes to the node that the hub has elected.

The proxy driver's mode (`--placement`) decides the kind. In the mode shared, every call is shared. In the other modes,
a call that names a node is pinned. The mode auto means local if the vendor has a topology on most nodes
(`capabilities`), else pinned. An operator's call counts as auto. If the driver has elections, every call counts as
shared, except in the mode local (`Placement.decide`).

A node holds a name while it has an open call of the name, or a thing that was made under it (`Book.holders`). A call is
open while it runs or its outcome is unknown.

An example: n1 and n2 run a driver with a topology, and the mode is auto.

1. CreateVolume of pvc-1 names no node, so it is local. It requests the zone of n2: the hub sends it to n2.
2. The link breaks before n2 answers. Now n2 holds the name. The hub refuses each retry until n2 is back.
3. A retry succeeds with the id vol-1, and the book records that n2 has vol-1. DeleteVolume of vol-1 goes to n2.

Each function that chooses a node is a list of numbered rules. A rule is a condition, a colon, and the hub's action. The
hub applies the rules in their order, and the first one that fits decides. A later rule may still refuse the node that
it has chosen.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Final

from cloud.claims.claim import Claim, Mark
from cloud.claims.requests import LONGEST_CHARS, needs, read
from cloud.claims.rules import CHANGES, GET_CAPACITY, LISTINGS, MUTATING
from cloud.nodes.elections import DriverElection
from cloud.nodes.fleet import Fleet, Member
from cloud.placement import page_tokens
from cloud.placement.decisions import AskAll, CallInfo, Recording, Route, Segment, View
from cloud.placement.find import ListsNeeded, can_list, find, named_or_only_node
from cloud.proxy.driver_settings import PER_NODE_MODES, Mode
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

# For one page of a list, the hub asks the page's node and this many of the next ones. external-attacher allows 15 s for
# all pages, so with 1,000 nodes each round of 65 has 0.9 s.
_AHEAD: Final = 64


def is_local(fleet: Fleet, named_node: str, mode: str) -> bool:
    """Whether the hub has to find the node: the caller names none, and each node has volumes of its own."""
    if named_node or mode in {Mode.PINNED, Mode.SHARED}:
        return False
    return mode in PER_NODE_MODES or fleet.has_topology


def read_info(driver: str, method: str, request: bytes, *, named_node: str, mode: str, fleet: Fleet) -> CallInfo:
    """Read the fields of a request that `route` needs.

    The fields are empty for a pinned call that neither creates nor deletes, and for a shared call that neither changes
    anything nor lists.
    """
    is_local_call = is_local(fleet, named_node, mode)
    is_shared = mode == Mode.SHARED and (method in MUTATING or method in LISTINGS)
    if not (is_local_call or is_shared or method in CHANGES):
        return CallInfo(driver, method, named_node=named_node, mode=mode)
    try:
        fields = read(method, request, is_pinned=not is_local_call and mode != Mode.SHARED)
        needed = needs(method, request) if is_local_call and fleet.is_mixed else frozenset()
    except ValueError as error:
        return CallInfo(driver, method, named_node=named_node, mode=mode, unreadable=str(error), is_local=is_local_call)
    # A shared call that creates nothing has its method and id as its name, such as `DeleteVolume vol-1`.
    name = fields.name or (fields.key if mode == Mode.SHARED else "")
    return CallInfo(
        driver, method, fields, named_node=named_node, mode=mode, needs=needed, name=name, is_local=is_local_call
    )


def route(info: CallInfo, view: View) -> Route | AskAll:
    """Decide where a call goes.

    Raises:
        CallError: the hub refuses the call.
        ListsNeeded: the hub refuses it, and asks nodes for lists. A retry may then find the node.
    """
    name = info.name
    if len(name) > LONGEST_CHARS:
        _check_name(info)
    holders = view.book.holders(name) if name in view.book.claims else []
    if info.mode == Mode.SHARED:
        decision: Route | AskAll = _shared(info, view)
    elif info.is_local:
        decision = _local(info, view, holders)
    else:
        decision = _pinned(info, view, holders)
    # The name is new, and the driver has too many names with open calls: refuse. The last quarter of the room is for
    # nodes with few of them (`has_room`). A retry needs no room, because it may settle an outcome.
    if name and not holders and isinstance(decision, Route):
        own = view.book.open_counts.get(decision.node, 0)
        together = len(view.book.open_at)
        if not has_room(own, together, view.most_open, sharers=len(view.fleet.members)):
            raise _no_room(info, view, decision.node)
    return decision


def _no_room(info: CallInfo, view: View, node: str) -> CallError:
    return CallError(
        f"edge node {node} takes no new create of driver {info.driver}: too many earlier creates have an unknown "
        f"outcome. Their retries settle them; look at the driver on {node} and at the node's link, or raise "
        f"--max-open-creates of the hub ({view.most_open})"
    )


def _check_name(info: CallInfo) -> None:
    # A long name would stay in the records for as long as its outcome is in doubt.
    method, _, name = info.name.partition(" ")
    is_create = bool(info.fields.name)
    longest = LONGEST_CHARS if is_create else 2 * LONGEST_CHARS  # a key may hold two ids
    if len(name) <= longest:
        return
    subject = "create whose name" if is_create else "call whose id"
    why = f"CSI allows 128 bytes for the name in {method}"
    raise _no_node(info, f"a {subject} has {len(name)} characters", why)


def _no_node(info: CallInfo, subject: str, why: str) -> CallError:
    return CallError(f"no edge node of driver {info.driver} can be chosen for {subject}: {why}")


def _lacking(info: CallInfo, node: str, capability: str) -> CallError:
    return CallError(
        f"{info.method.rpartition('/')[2]} needs the capability {capability}, which driver {info.driver} has on most "
        f"of its edge nodes and lacks on {node}; run the same version of the driver there",
        node=node,
    )


def _pinned(info: CallInfo, view: View, holders: Sequence[str]) -> Route:
    # 1. The caller names a node: choose it. It names none: choose the only node that runs the driver, or refuse.
    node = named_or_only_node(info.driver, info.named_node, view.fleet.members, view)
    member = view.fleet.members.get(node)
    # 2. Only other nodes hold the name of the create: refuse.
    if holders and node not in holders:
        raise name_elsewhere(info.driver, info.name, holders[0], node)
    # 3. The call makes nothing, and deletes nothing that the book has there: send it, and record nothing. The book also
    #    records an operator's deletion of an id that it does not have.
    deletes = tuple(thing for thing in info.fields.deletes if info.is_by_hand or view.book.has(thing, node))
    if not (info.name or deletes):
        return Route(node, member)
    # 4. The call makes or deletes something: send it, and record it.
    recording = Recording.AHEAD if info.is_by_hand else Recording.LATE
    has_own_ids = info.is_by_hand and view.fleet.has_topology
    return Route(node, member, recording=recording, deletes=deletes, has_own_ids=has_own_ids)


def _shared(info: CallInfo, view: View) -> Route | AskAll:
    election = view.election
    elected = election.elected if election is not None else None
    # 1. No node is elected: refuse.
    if election is None or elected is None:
        why = election.why_nobody() if election is not None else "it has no election"
        raise CallError(f"no edge node serves driver {info.driver} (--placement=shared): {why}")
    # 2. The request does not parse: refuse.
    if info.unreadable:
        raise no_place(info.driver, "what the call is about", info.unreadable)
    node = info.named_node or elected.node
    # 3. The page token is another node's: refuse. This node's driver does not know it.
    page = page_tokens.read(info.fields.token)
    if page is not None and page.node != node:
        raise token_unknown(info.method, page.node)
    # 4. The call changes nothing: send it to the node that an operator names, else to the elected node.
    if not info.name:
        chosen = Route(node, view.fleet.members.get(node), epoch=elected.epoch)
        return AskAll((chosen,)) if info.method in LISTINGS else chosen
    # 5. The hub has lost records, and several nodes run the driver: refuse. Another node may have an open call.
    if view.loss and len(view.fleet) > 1:
        raise knowledge_lost(info.driver, view.loss)
    # 6. Only other nodes have open calls of this name, or about the same thing: send the call to one of them, a
    #    connected one first. Refuse it if all of them are away, or if an operator names a node. For example, n1 lost
    #    its link during DeleteVolume of vol-1, and n2 is elected. The hub refuses ControllerPublishVolume of vol-1
    #    until n1 is back, and sends CreateVolume of pvc-2 to n2.
    #    An open create of this name does not count once its node has surely stopped it. The vendor knows the create by
    #    its name, so a retry on the elected node is idempotent.
    claims = view.book.open_about(info.name)
    stopped_nodes = frozenset(claim.node for claim in claims if claim.name == info.name and election.has_stopped(claim))
    open_nodes = {claim.node for claim in claims} - stopped_nodes
    open_at = sorted(open_nodes, key=lambda at: (at not in view.connected, at))
    if open_at and node not in open_at:
        if info.named_node or open_at[0] not in view.connected:
            raise _open_elsewhere(info, open_at[0], claims, election)
        node = open_at[0]
    # 7. An earlier machine with this node's name has the open call: refuse, unless an operator names the node.
    known = election.known(node)
    machine = known.stored.instance
    has_other_machine = any(claim.machine not in ("", machine) for claim in claims if claim.node == node)
    if not info.named_node and node in open_at and has_other_machine:
        raise _other_machine(info, node, claims, election)
    # 8. No rule refuses the call: send it to the node of rule 6, else to that of rule 4.
    return Route(
        node,
        view.fleet.members.get(node),
        recording=Recording.NAME_ONLY,
        epoch=elected.epoch,
        lease_s=known.lease_s if info.fields.name else 0,
        machine=machine,
        stopped_nodes=stopped_nodes,
    )


def _open_elsewhere(info: CallInfo, holder: str, claims: Iterable[Claim], election: DriverElection) -> CallError:
    until = _or_when_stopped(holder, info, claims, election)
    return CallError(
        f"{info.name} of driver {info.driver} has an open outcome on edge node {holder}, which is away or takes no "
        f"calls: it goes on when {holder} answers{until}; if {holder} is gone for good, switch its machine off, then "
        f"csi-bridge forget {holder}"
    )


def _other_machine(info: CallInfo, node: str, claims: Iterable[Claim], election: DriverElection) -> CallError:
    until = _or_when_stopped(node, info, claims, election)
    return CallError(
        f"{info.name} of driver {info.driver} has an open outcome on another machine that had the name of edge node "
        f"{node}: it goes on when that one is back{until}; if it is switched off for good, run the command that "
        f"csi-bridge audit shows for the call"
    )


def _or_when_stopped(node: str, info: CallInfo, claims: Iterable[Claim], election: DriverElection) -> str:
    """The end of an error message: when the open call has surely stopped. Empty if unknown."""
    ends = (election.stops_at(claim) for claim in claims if claim.node == node and claim.name == info.name)
    end = next(ends, math.inf)
    return f", or at {timestamp(end)}, when it has surely stopped" if end < math.inf else ""


def _local(info: CallInfo, view: View, holders: Sequence[str]) -> Route | AskAll:
    fields = info.fields
    # 1. The request does not parse: refuse.
    if info.unreadable:
        raise no_place(info.driver, "what the call is about", info.unreadable)
    # 2. A required field is empty, and several nodes run the driver: refuse. If one runs it, its vendor refuses.
    if fields.missing and len(view.fleet.members) > 1:
        # Not INVALID_ARGUMENT, which only vendors answer (docs/csi-contract.md#the-vendors-errors-pass-unchanged).
        raise CallError(f"{info.method.rpartition('/')[2]} needs the field {fields.missing}, which is empty")
    # 3. The call is GetCapacity, or it lists all things: apply the rules of `_capacity` or `_list`.
    if info.method == GET_CAPACITY and view.fleet.members:
        return _capacity(info, view)
    if info.method in LISTINGS and not fields.things:
        return _list(info, view)
    # 4. The call is a create: choose its node by `_node_for_create`.
    # 5. The call is no create: choose its node by `_node_for_call`.
    # 6. The call deletes a thing that no node has: choose its node by `_node_for_deletion`, and record nothing.
    deletes = fields.deletes
    try:
        node = _node_for_create(info, view, holders) if fields.name else _node_for_call(info, view)
    except ListsNeeded as needed:
        node = _node_for_deletion(info, view, needed)
        deletes = ()
    # 7. The call needs a capability that the driver has on most nodes, and lacks on that node: refuse.
    if info.needs:
        missing = info.needs & view.fleet.lacking(node)
        if missing:
            raise _lacking(info, node, min(missing))
    # 8. No rule refuses the call: send it to that node.
    member = view.fleet.members.get(node)
    recording = Recording.AHEAD if fields.name or deletes else Recording.NEVER
    segment = _segment(member, info.mode)
    return Route(node, member, recording=recording, deletes=deletes, segment=segment)


def _node_for_create(info: CallInfo, view: View, holders: Sequence[str]) -> str:
    fields = info.fields
    fleet = view.fleet
    # 1. Nodes hold the name: choose one of them, a connected one first.
    if holders:
        return next((node for node in holders if node in view.connected), holders[0])
    # 2. The create copies a volume or a snapshot: choose the node of this source.
    if fields.things:
        return _beside_source(info, view)
    # 3. The create requests a topology: choose a node in it. If the driver's only node has no topology, rule 5 applies.
    if fields.terms and (len(fleet.members) != 1 or any(member.segments for member in fleet)):
        node = _in_topology(info, view)
    # 4. The create requests no topology, and several nodes run the driver: refuse.
    elif len(fleet.members) > 1:
        why = (
            "the call asks for no topology, and the driver runs on several nodes; run external-provisioner with "
            "--feature-gates=Topology=true and --strict-topology, and use a StorageClass with volumeBindingMode "
            "WaitForFirstConsumer, or name the node with --node"
        )
        raise _no_node(info, fields.name, why)
    # 5. One node runs the driver: choose it. `named_or_only_node` refuses if the hub has lost records or knows no node.
    elif fleet.members and not view.loss:
        (node,) = fleet.members
    else:
        node = named_or_only_node(info.driver, "", fleet.members, view)
    # 6. The vendor on the node of rule 3 or 5 has no topology, and the node's name cannot be a label's value: refuse.
    if fleet.members[node].lacks_topology and not fleet.members[node].segments:
        why = f"the name of node {node} cannot be the value of a label, so no volume could be bound to it"
        raise _no_node(info, fields.name, why)
    return node


def _beside_source(info: CallInfo, view: View) -> str:
    terms = info.fields.terms
    node = find(info, view)
    member = view.fleet.members.get(node)
    # The source is on a node outside the requested topology: refuse.
    if terms and member is not None and member.tells_segments and not any(map(member.matches, terms)):
        # The scheduler chooses another node (docs/csi-contract.md#resource_exhausted-lets-the-scheduler-choose-again).
        raise CallError(
            f"{info.fields.things[0]} of driver {info.driver} is on edge node {node}, and a copy of it is requested "
            f"for another place; let the pod that uses the copy run on {node}",
            code=Code.RESOURCE_EXHAUSTED,
        )
    return node


def _in_topology(info: CallInfo, view: View) -> str:
    terms = info.fields.terms
    fleet = view.fleet
    # In the order of the preferred terms.
    fitting = list(dict.fromkeys(node for term in terms for node in fleet.at(term)))
    # 1. No node is in the topology: refuse.
    if not fitting:
        known = ", ".join(member.node for member in list(fleet)[:_SHOWN])
        why = f"none of the nodes that run it ({known or 'none does'}) is in the topology of the call"
        raise _no_node(info, info.fields.name, why)
    # 2. The topology leaves a choice, and the hub has lost records: refuse. A lost record may say which node holds the
    #    name.
    has_choice = len(terms) > 1 or len(fitting) > 1
    if has_choice and view.loss:
        raise knowledge_lost(info.driver, view.loss)
    # 3. Some of these nodes can carry the create out: choose the first connected one of them, else the first.
    # 4. None of them can: choose among all in the same way. The error of that node then tells the caller the reason.
    able = [node for node in fitting if not (fleet.members[node].refused or info.needs & fleet.lacking(node))]
    best = able or fitting
    return next((node for node in best if node in view.connected), best[0])


def _node_for_call(info: CallInfo, view: View) -> str:
    # 1. The call is about ids: choose the node that has all of them.
    if info.fields.things:
        return find(info, view)
    # 2. It is about no id, and several nodes run the driver: refuse. One node's answer would look complete.
    if len(view.fleet) > 1:
        raise CallError(
            f"{info.method.rpartition('/')[2]} would have to ask all {len(view.fleet)} edge nodes that run driver "
            f"{info.driver}, which the hub does not do yet; ask one: csi-bridge call --node NODE"
        )
    # 3. It is about no id, and one node runs the driver: choose this node.
    return named_or_only_node(info.driver, "", view.fleet.members, view)


def _node_for_deletion(info: CallInfo, view: View, needed: ListsNeeded) -> str:
    # Chooses a node to answer the deletion of a thing that no node has any more. Until that is certain, it raises
    # ListsNeeded.
    fields = info.fields
    fleet = view.fleet
    cannot_list = [member.node for member in fleet if not can_list(member, needed.kind, view)]
    # 1. A list has the thing (then `needed.nodes` is empty), the call is not only its deletion, or a node that may have
    #    it cannot list: refuse.
    deletes_all = fields.deletes == fields.things
    can_all_list = set(needed.nodes).isdisjoint(cannot_list)
    if not (needed.nodes and deletes_all and can_all_list):
        raise needed
    # 2. A node may have the thing although no list has it: refuse, and say why.
    why = _why_uncertain(info, view, cannot_list)
    if why:
        why = f"the hub has no record of it, and {why}"
        raise ListsNeeded(needed.kind, no_place(info.driver, str(fields.things[0]), why)) from needed
    # 3. A node has sent no list that began after the call first came: refuse.
    if {*fleet.members, *view.book.nodes} - view.listed:
        raise needed
    # 4. No node has the thing: choose the first node that its PersistentVolume allows.
    return needed.nodes[0]


def _why_uncertain(info: CallInfo, view: View, cannot_list: Sequence[str]) -> str:
    # The reason ends the sentence `the hub has no record of it, and …`. It is empty if no node has the thing.
    book = view.book
    members = view.fleet.members
    if view.loss:
        return f"has lost others ({view.loss}): see docs/troubleshooting.md#the-hub-has-lost-records"
    forgotten = sorted(node for node, mark in book.marks.items() if mark is Mark.FORGOTTEN and node not in members)
    if forgotten:
        return (
            f"has forgotten {', '.join(forgotten[:_SHOWN])}, which had volumes or snapshots; csi-bridge forget "
            f"{forgotten[0]} --abandon-volumes gives them up"
        )
    if cannot_list:
        return f"{', '.join(cannot_list[:_SHOWN])} cannot be asked for a list"
    if book.open_counts:
        return f"does not know the outcome of a create on {', '.join(sorted(book.open_counts)[:_SHOWN])} yet"
    if info.fields.has_secrets:
        return "sends the Secrets of this call to no node without it; csi-bridge call --node NODE sends it by hand"
    return ""


def _capacity(info: CallInfo, view: View) -> Route | AskAll:
    fleet = view.fleet
    terms = info.fields.terms
    # 1. The hub has lost records: refuse. It may not know all nodes.
    if view.loss:
        raise knowledge_lost(info.driver, view.loss)
    nodes = fleet.at(terms[0]) if terms else list(fleet.members)
    # 2. No known node is in the topology, and a node has not told its own: refuse. That node may be in it.
    if not nodes and fleet.untold:
        raise _no_node(info, "GetCapacity", f"edge node {fleet.untold} has not told its topology yet")
    # 3. Nodes are in the topology, and none of them can tell its capacity: refuse.
    able = [node for node in nodes if not info.needs & fleet.lacking(node)] if info.needs else nodes
    if nodes and not able:
        raise _lacking(info, nodes[0], min(info.needs))
    # 4. One node of these is connected: send the call to it.
    # 5. Several are connected, or none: ask them all. The hub then answers itself.
    routes = _routes(info, fleet, (node for node in able if node in view.connected))
    return routes[0] if len(routes) == 1 else AskAll(routes)


def _list(info: CallInfo, view: View) -> Route | AskAll:
    fleet = view.fleet
    token = info.fields.token
    page = page_tokens.read(token)
    # 1. The hub has lost records: refuse. It may not know all nodes.
    if view.loss:
        raise knowledge_lost(info.driver, view.loss)
    # 2. A node has things of the driver, and has not reported the driver: refuse. The list would look complete.
    unreported = sorted(set(view.book.nodes) - fleet.members.keys())
    if unreported:
        raise not_listed(info.driver, info.method, dict.fromkeys(unreported, "it has not reported the driver yet"))
    # 3. One node runs the driver, and the token is not the hub's: send the call there, with the driver's own token.
    #    `named_or_only_node` refuses if no node runs it.
    if not fleet.members or (len(fleet) == 1 and page is None):
        node = named_or_only_node(info.driver, "", view.fleet.members, view)
        member = fleet.members.get(node)
        return Route(node, member, segment=_segment(member, info.mode))
    # 4. The token is not the hub's, or it continues the list of a node that has left: refuse.
    if token and (page is None or (page.own and page.node not in fleet.members)):
        raise token_unknown(info.method)
    # 5. No rule refuses the list: ask the node of the page, and the next ones ahead.
    nodes = list(fleet.members)
    begin = bisect_left(nodes, page.node) if page is not None else 0
    return AskAll(_routes(info, fleet, nodes[begin : begin + 1 + _AHEAD]))


def _routes(info: CallInfo, fleet: Fleet, nodes: Iterable[str]) -> tuple[Route, ...]:
    members = ((node, fleet.members[node]) for node in nodes)
    return tuple(Route(node, member, segment=_segment(member, info.mode)) for node, member in members)


def _segment(member: Member | None, mode: str) -> Segment:
    if member is not None and member.lacks_topology:
        return Segment.ADDED
    # By the CSI spec, no topology in an answer means every node. Only `local` says that nodes have their own storage.
    if member is not None and member.segments and mode in PER_NODE_MODES:
        return Segment.MISSING
    return Segment.AS_IS
