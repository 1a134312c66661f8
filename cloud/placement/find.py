"""Find: finds the node that has the things of a call. Pure.

The first rule that leaves one node decides. The book may say of a node that it made the thing, that it deleted it, or
that its list has it.

    1. the book: one node made the thing (if none did: one node deleted it), and no PersistentVolume is for
       other nodes
    2. PersistentVolumes with this handle: the nodes that they may be for; of these, the nodes with the vendor's node id
       in the call
    3. the book, for the nodes of rule 2 and for nodes that have things of the driver without having reported the
       driver: the one that made the thing; else the only one whose list has it, once all of them have sent a list
    4. the fleet: the only node that runs the driver, if no other node has things of the driver
    5. several nodes are left, or a PersistentVolume contradicts the book: refuse
    6. ask the nodes for lists, and refuse (`no_place`): a guess could be wrong, and "not found" needs proof. Only
       `route` knows the deletion of a thing that no node has

Rule 1 ignores lists: a node may list an id because the storage is shared, or because another thing has the same id. So
the node that made or deleted the thing comes first. A PersistentVolume that the hub has not read yet may contradict
rules 2 to 4. Until the hub has read all, these rules refuse (`no_place`). See
docs/csi-contract.md#not-found-needs-proof.
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
    """No rule decides, but the nodes' lists of a kind may help. Until then the caller gets `error`."""

    def __init__(self, kind: str, error: CallError, nodes: Sequence[str] = ()) -> None:
        self.kind = kind
        self.error = error
        self.nodes = nodes  # if no node is known to list the thing: those that may have it, by the PersistentVolumes
        super().__init__(str(error))


def only_node(driver: str, named_node: str, candidates: Collection[str], now: View) -> str:
    """The node that the caller names (`--nodeid`, `--node`), else the only candidate, connected or not.

    Raises:
        CallError: no node is named, and there is not exactly one candidate, or the hub does not know for certain which
            ones run the driver.
    """
    if named_node:
        return named_node
    if now.loss:
        raise knowledge_lost(driver, now.loss)
    if len(candidates) != 1:
        raise _no_route(
            driver, [name if name in now.connected else f"{name}, which is offline" for name in sorted(candidates)]
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


def find(info: CallInfo, now: View) -> str:
    """The one node that has all things of a call. Two of them on different nodes settle it: the others do not matter.

    Raises CallError and ListsNeeded by the table.
    """
    fields = info.fields
    is_known = not fields.parts or any(map(now.book.knows, fields.things))
    things = fields.things if is_known else fields.parts
    places: dict[str, str] = {}
    unknown: CallError | ListsNeeded | None = None
    for thing in things:
        try:
            places[str(thing)] = find_thing(info.driver, thing, fields.node_id, now)
        except (CallError, ListsNeeded) as error:
            unknown = unknown or error
    if len(set(places.values())) > 1:
        told = join_items([f"{what} is on {node}" for what, node in places.items()])
        raise CallError(
            f"driver {info.driver} can do this only within one edge node, and {told}", code=Code.FAILED_PRECONDITION
        )
    if unknown is not None:
        raise unknown
    return next(iter(places.values()))


def find_thing(driver: str, thing: Thing, node_id: str, now: View) -> str:
    """The node that has a thing. `node_id` is the vendor's id of the node that the call names, or empty.

    Raises CallError and ListsNeeded by the table.
    """
    fleet = now.fleet
    book = now.book
    makers = book.makers(thing)
    witnesses = makers or book.deleted(thing)
    if len(witnesses) == 1 and not _is_ruled_out(driver, thing, witnesses[0], now):
        return witnesses[0]
    if not fleet.members:
        return only_node(driver, "", (), now)
    fit = _by_affinity(driver, thing, now)
    called = fleet.with_node_id(node_id)
    nodes = [node for node in called if node in fit.possible] or fit.possible
    strangers = sorted(set(book.nodes) - fleet.members.keys())
    found = [node for node in (*nodes, *strangers) if book.has(thing, node)]
    if len(nodes) == 1 and nodes[0] in {*called, *fit.named} and (nodes[0] in found or not makers):
        return nodes[0]
    if len(found) == 1 and found[0] in makers:
        return found[0]
    if makers or len(found) > 1:
        several = join_items(found if len(found) > 1 else sorted({*makers, *fit.named}))
        raise CallError(
            f"driver {driver} has {thing} on several edge nodes ({several}) and the call does not say which; name one: "
            f"csi-bridge call --node NODE",
            code=Code.FAILED_PRECONDITION,
        )
    if not nodes:
        raise no_place(driver, str(thing), _NOT_HERE)
    if len(fleet) == 1 and not strangers:
        return only_node(driver, "", nodes, now)
    unlisted = [node for node in (*nodes, *strangers) if (node, thing.kind) not in book.lists]
    if found and not unlisted:
        return found[0]
    silent = [node for node in (*nodes, *strangers) if not can_list(fleet.members.get(node), thing.kind, now)]
    why = _why_unknown(_told_by_volumes(driver, thing, now, fit), silent, node_id, called)
    raise ListsNeeded(thing.kind, no_place(driver, str(thing), why), () if found else nodes)


def can_list(member: Member | None, kind: str, now: View) -> bool:
    if member is None or member.node not in now.connected or member.refused:
        return False
    return LISTED_BY.get(kind) in member.lists


def elsewhere(driver: str, thing: Thing, node: str, now: View) -> str:
    """Another node that the PersistentVolume of a thing is for, if it is not for this one; else empty."""
    volumes = _volumes_of(thing, now)
    if volumes is None or not _is_ruled_out(driver, thing, node, now):
        return ""
    return next(iter(volumes.fit(thing.id, driver, now.fleet).named))


def _is_ruled_out(driver: str, thing: Thing, node: str, now: View) -> bool:
    fleet = now.fleet
    volumes = _volumes_of(thing, now)
    member = fleet.members.get(node)
    if volumes is None or member is None or volumes.allows(thing.id, driver, member, fleet):
        return False
    return bool(volumes.fit(thing.id, driver, fleet).named)


def _by_affinity(driver: str, thing: Thing, now: View) -> Fit:
    volumes = _volumes_of(thing, now)
    if volumes is None:
        return Fit([], list(now.fleet.members))
    if not volumes.is_ready:
        raise no_place(driver, str(thing), _NOT_READ)
    return volumes.fit(thing.id, driver, now.fleet)


def _volumes_of(thing: Thing, now: View) -> Affinity | None:
    return now.volumes if thing.kind == VOLUME else None  # no other kind has one


def _told_by_volumes(driver: str, thing: Thing, now: View, fit: Fit) -> str:
    volumes = _volumes_of(thing, now)
    named = fit.named[:_SHOWN]
    others = sorted(set(fit.possible) - set(fit.named))[:_SHOWN]
    unknown = volumes.unknown_labels(thing.id, driver, now.fleet, others) if volumes is not None else {}
    labels = " or ".join(sorted({key for keys in unknown.values() for key in keys}))
    told = [f"for {', '.join(named)}"] if named else []
    told += [f"perhaps for {', '.join(unknown)}, whose label {labels} the hub does not know"] if unknown else []
    return f"its PersistentVolume is {' and '.join(told)}" if told else "no PersistentVolume names a node for it"


def _why_unknown(told: str, silent: Sequence[str], node_id: str, called: Sequence[str]) -> str:
    # It stays the same from one retry to the next, because users read it in events.
    lists = f"{', '.join(silent[:_SHOWN])} cannot be asked for a list" if silent else "the nodes' lists leave it open"
    same = f", {', '.join(called[:_SHOWN])} all have the node id {node_id}" if len(called) > 1 else ""
    return f"the hub has no record of it, {told}{same}, and {lists}; csi-bridge call --node NODE asks a node"
