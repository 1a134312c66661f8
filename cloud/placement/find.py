"""Find: finds the node that has the things of a call. Pure. The rules stand in `find_thing`.

A guess could be wrong: a node without the volume answers DeleteVolume with OK, and the volume stays elsewhere. So the
hub refuses a call until a source shows the node (docs/csi-contract.md#not-found-needs-proof). It uses these sources, in
this order:

* the book: a node made the thing, or a node deleted it
* the nodeAffinity of the PersistentVolumes with this handle
* the vendor's node id in the call
* the reports: only one node runs the driver
* the lists of all nodes in question

Lists come last. A node may list an id because the storage is shared, or because another thing has the same id.

Only `route` decides the deletion of a thing that no node has.
"""

from collections.abc import Collection, Sequence
from typing import Final

from cloud.claims.rules import LISTED_BY, VOLUME, Thing
from cloud.nodes.fleet import Member
from cloud.placement.affinity import Affinity, Fit
from cloud.placement.decisions import CallInfo, View
from common.errors import CallError, knowledge_lost, no_place
from common.status import Code
from common.wording import join_items

_SHOWN: Final = 10  # a message names at most this many nodes

_NOT_READ: Final = "the hub has not read every PersistentVolume yet; csi-bridge status says why"

_NOT_HERE: Final = (
    "its PersistentVolume is for none of the nodes that have reported the driver; look at the agent's log on the node "
    "that it is for"
)


class ListsNeeded(Exception):
    """No rule finds the node, but lists of things of a kind may. Until then the caller gets `error`."""

    def __init__(self, kind: str, error: CallError, nodes: Sequence[str] = ()) -> None:
        self.kind = kind
        self.error = error
        self.nodes = nodes  # the nodes that the PersistentVolumes allow; empty if a list has the thing
        super().__init__(str(error))


def named_or_only_node(driver: str, named_node: str, candidates: Collection[str], view: View) -> str:
    """The node that the caller names (`--nodeid`, `--node`), else the only candidate, connected or not.

    Raises:
        CallError: the caller names no node, and there are several candidates or none. Or the hub has lost records, so
            it may not know all candidates.
    """
    if named_node:
        return named_node
    if view.loss:
        raise knowledge_lost(driver, view.loss)
    if len(candidates) != 1:
        raise _no_route(
            driver, [name if name in view.connected else f"{name}, which is offline" for name in sorted(candidates)]
        )
    return next(iter(candidates))


def _no_route(driver: str, nodes: Sequence[str]) -> CallError:
    return CallError(
        f"driver {driver} runs on several edge nodes ({join_items(nodes)}) and the call names none; set "
        f"--placement=local or shared, or --nodeid, on the proxy driver, or, if a node is gone or no longer runs "
        f"the driver, run csi-bridge forget NODE [DRIVER] on the hub's host"
        if nodes
        else f"no edge node has reported driver {driver} to the hub yet; check that an agent is connected and that "
        f"its --driver names the driver's socket"
    )


def find(info: CallInfo, view: View) -> str:
    """The node that has all things of a call.

    Raises:
        CallError: two things are on different nodes, or a rule of `find_thing` refuses.
        ListsNeeded: see `find_thing`.
    """
    fields = info.fields
    # A group that the book does not know is on the node of its snapshots.
    is_known = not fields.parts or any(map(view.book.knows, fields.things))
    things = fields.things if is_known else fields.parts
    places: dict[str, str] = {}
    unknown: CallError | ListsNeeded | None = None
    for thing in things:
        try:
            places[str(thing)] = find_thing(info.driver, thing, fields.node_id, view)
        except (CallError, ListsNeeded) as error:
            unknown = unknown or error
    # No node can serve the call, whatever is unknown of the other things.
    if len(set(places.values())) > 1:
        told = join_items([f"{what} is on {node}" for what, node in places.items()])
        raise CallError(
            f"driver {info.driver} can do this only within one edge node, and {told}", code=Code.FAILED_PRECONDITION
        )
    if unknown is not None:
        raise unknown
    return next(iter(places.values()))


def find_thing(driver: str, thing: Thing, node_id: str, view: View) -> str:
    """The node that has a thing. `node_id` is the vendor's id of the node that the call names, or empty.

    Raises:
        CallError: a rule refuses.
        ListsNeeded: no rule finds the node, and the nodes' lists may show it.
    """
    fleet = view.fleet
    book = view.book
    # 1. One node made the thing, or none made it and one deleted it: choose this node, unless the PersistentVolume is
    #    for other nodes.
    makers = book.makers(thing)
    recorded = makers or book.deleted(thing)
    if len(recorded) == 1 and not _is_ruled_out(driver, thing, recorded[0], view):
        return recorded[0]
    # 2. No node has reported the driver: refuse.
    if not fleet.members:
        return named_or_only_node(driver, "", (), view)
    # 3. The hub has not read all PersistentVolumes: refuse. One of the others may be for another node.
    fit = _by_affinity(driver, thing, view)
    # In question are the nodes that the PersistentVolumes allow; if some of these have the node id in the call, only
    # they. A node that has things of the driver, but has not reported the driver, is in question, too.
    called = fleet.with_node_id(node_id)
    nodes = [node for node in called if node in fit.possible] or fit.possible
    unreported = sorted(set(book.nodes) - fleet.members.keys())
    found = [node for node in (*nodes, *unreported) if book.has(thing, node)]
    # 4. The PersistentVolume or the node id leaves one node, and the book does not contradict it: choose this node.
    if len(nodes) == 1 and nodes[0] in {*called, *fit.named} and (nodes[0] in found or not makers):
        return nodes[0]
    # 5. One node in question made the thing, and no other one has it: choose this node.
    if len(found) == 1 and found[0] in makers:
        return found[0]
    # 6. Several nodes have the thing, or the PersistentVolume contradicts the book: refuse.
    if makers or len(found) > 1:
        several = join_items(found if len(found) > 1 else sorted({*makers, *fit.named}))
        raise CallError(
            f"driver {driver} has {thing} on several edge nodes ({several}) and the call does not say which; name one: "
            f"csi-bridge call --node NODE",
            code=Code.FAILED_PRECONDITION,
        )
    # 7. The PersistentVolume allows none of the nodes that have reported the driver: refuse.
    if not nodes:
        raise no_place(driver, str(thing), _NOT_HERE)
    # 8. One node runs the driver, and no other node has things of it: choose this node.
    if len(fleet) == 1 and not unreported:
        return named_or_only_node(driver, "", nodes, view)
    unlisted = [node for node in (*nodes, *unreported) if (node, thing.kind) not in book.lists]
    # 9. All nodes in question have sent a list, and one list has the thing: choose its node.
    if found and not unlisted:
        return found[0]
    # 10. No rule chooses a node: refuse, and ask for lists.
    cannot_list = [node for node in (*nodes, *unreported) if not can_list(fleet.members.get(node), thing.kind, view)]
    why = _why_unknown(_told_by_volumes(driver, thing, view, fit), cannot_list, node_id, called)
    raise ListsNeeded(thing.kind, no_place(driver, str(thing), why), () if found else nodes)


def can_list(member: Member | None, kind: str, view: View) -> bool:
    if member is None or member.node not in view.connected or member.refused:
        return False
    return LISTED_BY.get(kind) in member.lists


def elsewhere(driver: str, thing: Thing, node: str, view: View) -> str:
    """Another node that the PersistentVolume of a thing is for. Empty if it may be for this node."""
    volumes = _volumes_of(thing, view)
    if volumes is None or not _is_ruled_out(driver, thing, node, view):
        return ""
    return next(iter(volumes.fit(thing.id, driver, view.fleet).named))


def _is_ruled_out(driver: str, thing: Thing, node: str, view: View) -> bool:
    fleet = view.fleet
    volumes = _volumes_of(thing, view)
    member = fleet.members.get(node)
    if volumes is None or member is None or volumes.allows(thing.id, driver, member, fleet):
        return False
    return bool(volumes.fit(thing.id, driver, fleet).named)


def _by_affinity(driver: str, thing: Thing, view: View) -> Fit:
    volumes = _volumes_of(thing, view)
    if volumes is None:
        return Fit([], list(view.fleet.members))
    if not volumes.is_ready:
        raise no_place(driver, str(thing), _NOT_READ)
    return volumes.fit(thing.id, driver, view.fleet)


def _volumes_of(thing: Thing, view: View) -> Affinity | None:
    return view.volumes if thing.kind == VOLUME else None  # no other kind has one


def _told_by_volumes(driver: str, thing: Thing, view: View, fit: Fit) -> str:
    volumes = _volumes_of(thing, view)
    named = fit.named[:_SHOWN]
    others = sorted(set(fit.possible) - set(fit.named))[:_SHOWN]
    unknown = volumes.unknown_labels(thing.id, driver, view.fleet, others) if volumes is not None else {}
    labels = " or ".join(sorted({key for keys in unknown.values() for key in keys}))
    told = [f"for {', '.join(named)}"] if named else []
    told += [f"perhaps for {', '.join(unknown)}, whose label {labels} the hub does not know"] if unknown else []
    return f"its PersistentVolume is {' and '.join(told)}" if told else "no PersistentVolume names a node for it"


def _why_unknown(told: str, cannot_list: Sequence[str], node_id: str, called: Sequence[str]) -> str:
    # The text stays the same from one retry to the next, because users read it in Events.
    without = f"{', '.join(cannot_list[:_SHOWN])} cannot be asked for a list"
    lists = without if cannot_list else "the nodes' lists leave it open"
    same = f", {', '.join(called[:_SHOWN])} all have the node id {node_id}" if len(called) > 1 else ""
    return f"the hub has no record of it, {told}{same}, and {lists}; csi-bridge call --node NODE asks a node"
