"""Route: chooses the node for a call. Pure: `route` maps a call and a view to a decision, or raises the refusal.

* A pinned call goes to the node that the caller names, else to the only node that runs the driver.
* A local call is for a driver whose nodes each have volumes of their own. The rules below find the node.
* A shared call is for a driver whose storage every node reaches. One elected node serves it.
* The proxy driver's mode decides (`--placement`). In the mode shared every call is shared. In every other mode a call
  that names a node is pinned.
* The mode auto means local if the vendor has a topology on most nodes (`capabilities`), else pinned. An operator's
  calls have this mode.

A node holds a name if it may have carried out a create of this name (`Book.holders`).

For example, n1 and n2 run a driver with a topology, and its proxy driver names no node. So CreateVolume of pvc-1 is a
local call. It asks for the zone of n2, and goes there. If its outcome stays unknown, n2 holds the name: a retry goes
to n2, and is refused while n2 is away. DeleteVolume of the new id goes to n2, because the book has the id there.

Each function below is a list of rules, in the order in which they apply. Each rule stands at its branch.

If the hub chooses the node, or an operator sends the create by hand, the hub claims the name before it sends the
create. For a create that a proxy driver pins, the records learn of the outcome later, if at all (`Keeping`).
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Final

from cloud.claims.claim import Claim, Mark
from cloud.claims.requests import LONGEST_CHARS, needs, read
from cloud.claims.rules import CHANGES, GET_CAPACITY, KEYED, LISTINGS
from cloud.nodes.elections import DriverElection
from cloud.nodes.fleet import Fleet, Member
from cloud.placement import page_tokens
from cloud.placement.decisions import AskAll, CallInfo, Keeping, Route, Segment, View
from cloud.placement.find import ListsNeeded, can_list, find, only_node
from cloud.proxy.driver_settings import OF_NODES, Mode
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
    return mode in OF_NODES or fleet.has_topology


def read_info(driver: str, method: str, request: bytes, *, named_node: str, mode: str, fleet: Fleet) -> CallInfo:
    """Read the fields of a request that `route` needs.

    Returns empty fields for a pinned call that neither creates nor deletes.
    """
    is_placed = is_local(fleet, named_node, mode)
    is_shared = mode == Mode.SHARED and (method in KEYED or method in LISTINGS)
    if not (is_placed or is_shared or method in CHANGES):
        return CallInfo(driver, method, named_node=named_node, mode=mode)
    try:
        fields = read(method, request, is_pinned=not is_placed and mode != Mode.SHARED)
        needed = needs(method, request) if is_placed and fleet.is_mixed else frozenset()
    except ValueError as error:
        return CallInfo(driver, method, named_node=named_node, mode=mode, unreadable=str(error), is_placed=is_placed)
    # A shared call that creates nothing has its method and id as its name.
    name = fields.name or (fields.key if mode == Mode.SHARED else "")
    return CallInfo(
        driver, method, fields, named_node=named_node, mode=mode, needs=needed, name=name, is_placed=is_placed
    )


def route(info: CallInfo, now: View) -> Route | AskAll:
    """Decide where a call goes. Raises ListsNeeded, or CallError if no node may get it."""
    name = info.name
    if len(name) > LONGEST_CHARS:
        _check_name(info)
    holders = now.book.holders(name) if name in now.book.claims else []
    if info.mode == Mode.SHARED:
        decision: Route | AskAll = _shared(info, now)
    elif info.is_placed:
        decision = _local(info, now, holders)
    else:
        decision = _pinned(info, now, holders)
    # A new name needs room among the open creates of the driver. The last quarter of the room is for nodes with few of
    # them (`has_room`). A retry passes, because it may settle an outcome.
    if name and not holders and isinstance(decision, Route):
        own = now.book.open.get(decision.node, 0)
        together = len(now.book.opened)
        if not has_room(own, together, now.most_open, sharers=len(now.fleet.members)):
            raise _no_room(info, now, decision.node)
    return decision


def _no_room(info: CallInfo, now: View, node: str) -> CallError:
    return CallError(
        f"edge node {node} takes no new create of driver {info.driver}: too many earlier creates have an unknown "
        f"outcome. Their retries settle them; look at the driver on {node} and at the node's link, or raise "
        f"--max-open-creates of the hub ({now.most_open})"
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
    raise _unfit(info, f"a {subject} has {len(name)} characters", why)


def _unfit(info: CallInfo, subject: str, why: str) -> CallError:
    return CallError(f"no edge node of driver {info.driver} can be chosen for {subject}: {why}")


def _lacking(info: CallInfo, node: str, capability: str) -> CallError:
    return CallError(
        f"{info.method.rpartition('/')[2]} needs the capability {capability}, which driver {info.driver} has on most "
        f"of its edge nodes and lacks on {node}; run the same version of the driver there",
        node=node,
    )


def _pinned(info: CallInfo, now: View, holders: Sequence[str]) -> Route:
    # 1. The node that the caller names, else the only node that runs the driver, else refuse.
    node = only_node(info.driver, info.named_node, now.fleet.members, now)
    member = now.fleet.members.get(node)
    # 2. Only other nodes hold the name: refuse the create.
    if holders and node not in holders:
        raise name_elsewhere(info.driver, info.name, holders[0], node)
    # 3. Else send it. The book notes a create, an operator's deletion, and the deletion of an id that it has there.
    deletes = tuple(thing for thing in info.fields.deletes if info.is_by_hand or now.book.has(thing, node))
    if not (info.name or deletes):
        return Route(node, member)
    keeping = Keeping.FIRST if info.is_by_hand else Keeping.LATE
    has_own_ids = info.is_by_hand and now.fleet.has_topology
    return Route(node, member, keeping=keeping, deletes=deletes, has_own_ids=has_own_ids)


def _shared(info: CallInfo, now: View) -> Route | AskAll:
    election = now.election
    elected = election.elected if election is not None else None
    # 1. No node is elected: refuse.
    if election is None or elected is None:
        why = election.why_nobody() if election is not None else "it has no election"
        raise CallError(f"no edge node serves driver {info.driver} (--placement=shared): {why}")
    # 2. The request cannot be parsed: refuse.
    if info.unreadable:
        raise no_place(info.driver, "what the call is about", info.unreadable)
    node = info.named_node or elected.node
    # 3. The page token is another node's, and this node's driver does not know it: refuse.
    page = page_tokens.read(info.fields.token)
    if page is not None and page.node != node:
        raise token_unknown(info.method, page.node)
    # 4. The call changes nothing: the node that an operator names, else the elected node.
    if not info.name:
        chosen = Route(node, now.fleet.members.get(node), epoch=elected.epoch)
        return AskAll((chosen,)) if info.method in LISTINGS else chosen
    # 5. The hub has lost records, and several nodes run the driver: refuse. Another node may have an open call.
    if now.loss and len(now.fleet) > 1:
        raise knowledge_lost(info.driver, now.loss)
    # 6. A call of the name, or about the same thing, is open at another node: send the call there, but refuse it if
    #    that node is away or an operator names another one. An open create of the name does not count once its machine
    #    has surely stopped it: a retry is idempotent by the name.
    claims = now.book.open_about(info.name)
    stopped_nodes = frozenset(claim.node for claim in claims if claim.name == info.name and election.has_stopped(claim))
    open_nodes = {claim.node for claim in claims} - stopped_nodes
    holders = sorted(open_nodes, key=lambda holder: (holder not in now.connected, holder))
    if holders and node not in holders:
        if info.named_node or holders[0] not in now.connected:
            raise _open_elsewhere(info, holders[0], claims, election)
        node = holders[0]
    # 7. The open call runs on another machine, which had this node's name before: refuse, unless an operator names the
    #    node.
    known = election.known(node)
    machine = known.stored.instance
    has_other_machine = any(claim.machine not in ("", machine) for claim in claims if claim.node == node)
    if not info.named_node and node in holders and has_other_machine:
        raise _other_machine(info, node, claims, election)
    # 8. Else as rule 4.
    return Route(
        node,
        now.fleet.members.get(node),
        keeping=Keeping.OPEN,
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


def _local(info: CallInfo, now: View, holders: Sequence[str]) -> Route | AskAll:
    fields = info.fields
    # 1. The request cannot be parsed: refuse.
    if info.unreadable:
        raise no_place(info.driver, "what the call is about", info.unreadable)
    # 2. A required field is empty, and several nodes run the driver: refuse. With one node the vendor refuses the call.
    if fields.missing and len(now.fleet.members) > 1:
        # Not INVALID_ARGUMENT, which only vendors answer (docs/csi-contract.md#the-vendors-errors-pass-unchanged).
        raise CallError(f"{info.method.rpartition('/')[2]} needs the field {fields.missing}, which is empty")
    # 3. GetCapacity and a list of all things may go to several nodes.
    if info.method == GET_CAPACITY and now.fleet.members:
        return _capacity(info, now)
    if info.method in LISTINGS and not fields.things:
        return _list(info, now)
    # 4. A create, or a call about ids. If no node has the thing of a deletion, the vendor answers, and the hub records
    #    nothing.
    deletes = fields.deletes
    try:
        node = _node_for_create(info, now, holders) if fields.name else _node_for_call(info, now)
    except ListsNeeded as needed:
        node = _node_for_deletion(info, now, needed)
        deletes = ()
    # 5. The driver lacks a capability on the node that it has on most nodes: refuse.
    if info.needs:
        missing = info.needs & now.fleet.lacking(node)
        if missing:
            raise _lacking(info, node, min(missing))
    member = now.fleet.members.get(node)
    keeping = Keeping.FIRST if fields.name or deletes else Keeping.NEVER
    segment = _segment(member, info.mode)
    return Route(node, member, keeping=keeping, deletes=deletes, segment=segment)


def _node_for_create(info: CallInfo, now: View, holders: Sequence[str]) -> str:
    fields = info.fields
    fleet = now.fleet
    # 1. A node that holds the name. If several nodes hold it, a connected one comes first.
    if holders:
        return next((node for node in holders if node in now.connected), holders[0])
    # 2. The node of the source volume or snapshot.
    if fields.things:
        return _beside_source(info, now)
    # 3. A node in the requested topology.
    if fields.terms and (len(fleet.members) != 1 or any(member.segments for member in fleet)):
        node = _in_topology(info, now)
    # 4. The call requests no topology, and several nodes run the driver: refuse.
    elif len(fleet.members) > 1:
        why = (
            "the call asks for no topology, and the driver runs on several nodes; run external-provisioner with "
            "--feature-gates=Topology=true and --strict-topology, and use a StorageClass with volumeBindingMode "
            "WaitForFirstConsumer, or name the node with --node"
        )
        raise _unfit(info, fields.name, why)
    # 5. The only node. `only_node` refuses if the hub has lost records, or knows no node.
    elif fleet.members and not now.loss:
        (node,) = fleet.members
    else:
        node = only_node(info.driver, "", fleet.members, now)
    # 6. The vendor has no topology, and the hub cannot make one from the node's name: refuse.
    if fleet.members[node].lacks_topology and not fleet.members[node].segments:
        why = f"the name of node {node} cannot be the value of a label, so no volume could be bound to it"
        raise _unfit(info, fields.name, why)
    return node


def _beside_source(info: CallInfo, now: View) -> str:
    terms = info.fields.terms
    node = find(info, now)
    member = now.fleet.members.get(node)
    if terms and member is not None and member.tells_segments and not any(map(member.matches, terms)):
        # The scheduler chooses another node (docs/csi-contract.md#resource_exhausted-lets-the-scheduler-choose-again).
        raise CallError(
            f"{info.fields.things[0]} of driver {info.driver} is on edge node {node}, and a copy of it is requested "
            f"for another place; let the pod that uses the copy run on {node}",
            code=Code.RESOURCE_EXHAUSTED,
        )
    return node


def _in_topology(info: CallInfo, now: View) -> str:
    terms = info.fields.terms
    fleet = now.fleet
    fitting = list(dict.fromkeys(node for term in terms for node in fleet.at(term)))
    if not fitting:
        known = ", ".join(member.node for member in list(fleet)[:_SHOWN])
        why = f"none of the nodes that run it ({known or 'none does'}) is in the topology of the call"
        raise _unfit(info, info.fields.name, why)
    # Several nodes fit, and the lost records may have said which one holds this name: refuse.
    has_choice = len(terms) > 1 or len(fitting) > 1
    if has_choice and now.loss:
        raise knowledge_lost(info.driver, now.loss)
    # `fitting` is in the order of the preferred terms. Of the nodes that may carry the create out (of all, if none
    # may), the first connected one gets it, else the first one.
    able = [node for node in fitting if not (fleet.members[node].refused or info.needs & fleet.lacking(node))]
    best = able or fitting
    return next((node for node in best if node in now.connected), best[0])


def _node_for_call(info: CallInfo, now: View) -> str:
    # 1. The call is about ids: the node that has all of them.
    if info.fields.things:
        return find(info, now)
    # 2. It is about no id, and several nodes run the driver: refuse, because one node's answer would look complete.
    if len(now.fleet) > 1:
        raise CallError(
            f"{info.method.rpartition('/')[2]} would have to ask all {len(now.fleet)} edge nodes that run driver "
            f"{info.driver}, which the hub does not do yet; ask one: csi-bridge call --node NODE"
        )
    # 3. The only node.
    return only_node(info.driver, "", now.fleet.members, now)


def _node_for_deletion(info: CallInfo, now: View, needed: ListsNeeded) -> str:
    # The node for a deletion of a thing that no node has any more: the first node that its PersistentVolume allows.
    # Raises ListsNeeded until it is certain that the thing is gone.
    fields = info.fields
    fleet = now.fleet
    silent = [member.node for member in fleet if not can_list(member, needed.kind, now)]
    # 1. No PersistentVolume names a node, the call is no plain deletion, or a node that may have the thing cannot list.
    deletes_all = fields.deletes == fields.things
    can_all_list = set(needed.nodes).isdisjoint(silent)
    if not (needed.nodes and deletes_all and can_all_list):
        raise needed
    # 2. A node may have the thing although no list names it.
    why = _why_uncertain(info, now, silent)
    if why:
        why = f"the hub has no record of it, and {why}"
        raise ListsNeeded(needed.kind, no_place(info.driver, str(fields.things[0]), why)) from needed
    # 3. Not every node of the driver has sent a list that began after the call first came.
    if {*fleet.members, *now.book.nodes} - now.listed:
        raise needed
    return needed.nodes[0]


def _why_uncertain(info: CallInfo, now: View, silent: Sequence[str]) -> str:
    # The reason ends the sentence `the hub has no record of it, and …`. It is empty if no node has the thing. `silent`
    # are nodes that cannot be asked for a list.
    book = now.book
    members = now.fleet.members
    if now.loss:
        return f"has lost others ({now.loss}): see docs/troubleshooting.md#the-hub-has-lost-records"
    forgotten = sorted(node for node, mark in book.marks.items() if mark is Mark.FORGOTTEN and node not in members)
    if forgotten:
        return (
            f"has forgotten {', '.join(forgotten[:_SHOWN])}, which had volumes or snapshots; csi-bridge forget "
            f"{forgotten[0]} --abandon-volumes gives them up"
        )
    if silent:
        return f"{', '.join(silent[:_SHOWN])} cannot be asked for a list"
    if book.open:
        return f"does not know the outcome of a create on {', '.join(sorted(book.open)[:_SHOWN])} yet"
    if info.fields.has_secrets:
        return "sends the Secrets of this call to no node without it; csi-bridge call --node NODE sends it by hand"
    return ""


def _capacity(info: CallInfo, now: View) -> Route | AskAll:
    fleet = now.fleet
    terms = info.fields.terms
    if now.loss:
        raise knowledge_lost(info.driver, now.loss)
    nodes = fleet.at(terms[0]) if terms else list(fleet.members)
    # The node that has not told its topology may be in the requested one.
    if not nodes and fleet.untold:
        raise _unfit(info, "GetCapacity", f"edge node {fleet.untold} has not told its topology yet")
    able = [node for node in nodes if not info.needs & fleet.lacking(node)] if info.needs else nodes
    if nodes and not able:
        raise _lacking(info, nodes[0], min(info.needs))
    # The call goes to a single node as usual. With several nodes or none, the hub makes the answer.
    routes = _routes(info, fleet, (node for node in able if node in now.connected))
    return routes[0] if len(routes) == 1 else AskAll(routes)


def _list(info: CallInfo, now: View) -> Route | AskAll:
    fleet = now.fleet
    token = info.fields.token
    page = page_tokens.read(token)
    # 1. The hub has lost records, so it may not know all nodes: refuse.
    if now.loss:
        raise knowledge_lost(info.driver, now.loss)
    # 2. A node has things of the driver and has not reported it: refuse, because the list would look complete.
    unreported = sorted(set(now.book.nodes) - fleet.members.keys())
    if unreported:
        raise not_listed(info.driver, info.method, dict.fromkeys(unreported, "it has not reported the driver yet"))
    # 3. One node runs the driver, and the token is not the hub's: that node, with the driver's own token.
    if not fleet.members or (len(fleet) == 1 and page is None):
        node = only_node(info.driver, "", now.fleet.members, now)
        member = fleet.members.get(node)
        return Route(node, member, segment=_segment(member, info.mode))
    # 4. The token is of no list of these nodes: refuse.
    if token and (page is None or (page.own and page.node not in fleet.members)):
        raise token_unknown(info.method)
    # 5. The page's node and the next ones.
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
    if member is not None and member.segments and mode in OF_NODES:
        return Segment.MISSING
    return Segment.AS_IS
