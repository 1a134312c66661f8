"""The verdicts: the leaks, and the things that cannot be judged. Pure.

    orphan   a node lists it, or the ledger has it as made; and nothing refers to it
    ghost    an object refers to it, and each node that can have it has sent a whole list without it
    stray    an agent tells that it is mounted, and that no pod wants it
    doubt    the ledger holds a name for a call whose outcome is not known, and no such call runs

Rules:

* The order of the readings is: references and ledger, the nodes' lists, references and ledger again. An object counts
  against an orphan if it is in one of both readings. A ghost's object must be in both. So a volume that is made or
  deleted while the audit runs is neither.
* The sidecar writes the object after it has got the volume. So an orphan is older than `grace_s`. If its age is not
  known, the hub must have run for so long: it remembers the creates since its start (`recent`).
* An open create may have made any thing on its node that has no record. Such a thing is not judged.
* A claim that waits for its volume refers to the volume that was made under its UID: the provisioner calls again.
* An object that is being removed is no ghost: the sidecar deletes the volume first.
* Each function yields a leak, or None after each thing that is none: the caller pauses between them.
"""

import shlex
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from cloud.claims.claim import IdEntry
from cloud.claims.ledger import Ledger
from cloud.claims.requests import about
from cloud.claims.rules import SNAPSHOT, VOLUME, Thing
from cloud.nodes.fleet import Fleet
from cloud.operators.tally import Candidate, Tally
from cloud.parts.references import PERSISTENT_VOLUME, UID_CHARS, Key, Reference, References
from cloud.placement.affinity import Fit
from common.objects.left_over import LeftOver
from common.operator_orders import Leak
from common.pages.json_form import time_of

ORPHAN = "orphan"
GHOST = "ghost"
STRAY = "stray"
DOUBT = "doubt"

LEAKS: Final = (ORPHAN, GHOST, STRAY, DOUBT)

# The kind of things that a method makes, as far as drivers list them.
_MADE_BY: Final = {"CreateVolume": VOLUME, "CreateSnapshot": SNAPSHOT, "CreateVolumeGroupSnapshot": SNAPSHOT}


@dataclass(frozen=True, slots=True, kw_only=True)
class Truths:
    """All that one audit knows."""

    drivers: Collection[str]
    before: References
    after: References
    opened: Ledger  # the hub's records before the lists
    closed: Ledger  # the hub's records after the lists, and after `after`
    tally: Tally
    fleets: Mapping[str, Fleet]
    fit: Callable[[str, str], Fit]  # the nodes that the PersistentVolumes of a handle are for, by driver and handle
    now: float  # the time of `closed`, in seconds since the epoch
    grace_s: float
    # The hub's records of both readings, for look-ups (`read_records`): by thing and node, the ledger's last entry
    holders: defaultdict[Key, dict[str, IdEntry]] = field(default_factory=lambda: defaultdict(dict))
    names: set[tuple[str, str]] = field(default_factory=set)  # driver and name of each open create
    places: set[tuple[str, str, str]] = field(default_factory=set)  # driver, node and kind of the thing of each of them
    # By driver and reason, the ids of the things that are not judged. The functions add to it.
    unjudged: defaultdict[tuple[str, str], list[str]] = field(default_factory=lambda: defaultdict(list))

    def unread(self, kind: str) -> str:
        """Why the objects for a kind of things were not read both times; empty if they were."""
        return self.before.unread.get(kind, "") or self.after.unread.get(kind, "")

    def skip(self, driver: str, why: str, thing: Thing) -> None:
        self.unjudged[driver, why].append(thing.id)


def read_records(truths: Truths) -> Iterator[None]:
    for ledger in (truths.opened, truths.closed):
        for it in ledger.open:
            truths.names.add((it.driver, it.name))
            if (kind := _MADE_BY.get(it.name.partition(" ")[0])) is not None:
                truths.places.add((it.driver, it.node, kind))
            yield
    for (driver, thing, node), holding in truths.closed.ids:
        if driver in truths.drivers:
            truths.holders[driver, thing][node] = holding
        yield


def referring(truths: Truths, wanted: str) -> Iterator[str]:
    for driver in truths.drivers:
        for thing in (Thing(VOLUME, wanted), Thing(SNAPSHOT, wanted)):
            named = (*truths.before.named.get((driver, thing), ()), *truths.after.named.get((driver, thing), ()))
            for reference in dict.fromkeys(map(str, named)):
                yield f"{reference} names {thing} of driver {driver}"
            for node, holding in truths.holders.get((driver, thing), {}).items():
                if holding.is_made:
                    uid = holding.name[-UID_CHARS:]
                    yield f"the hub's ledger has {thing} of driver {driver} on node {node}, made by {holding.name}"
                    if owner := truths.before.waiting.get(uid) or truths.after.waiting.get(uid):
                        yield f"{owner} waits for it"


def orphans(truths: Truths) -> Iterator[Leak | None]:
    listed: dict[tuple[str, Thing, str], list[Candidate]] = {}
    for found in truths.tally.candidates:
        # Without a topology several nodes may reach one storage, and list the same volume.
        own = found.node if truths.fleets[found.driver].has_topology else ""
        listed.setdefault((found.driver, found.thing, own), []).append(found)
        yield None
    for (driver, thing, _), here in listed.items():
        nodes = [found.node for found in here]
        size_bytes = max(found.size_bytes for found in here)
        yield _orphan(truths, (driver, thing), nodes, size_bytes)
    for (driver, thing), holders in truths.holders.items():
        for node, holding in holders.items():
            is_told = (driver, thing.kind, node) in truths.tally.complete or thing.kind not in (VOLUME, SNAPSHOT)
            if holding.is_made and not is_told and (driver, thing) not in truths.tally.seen:
                yield _orphan(truths, (driver, thing), [node], 0)
            else:
                yield None


def _orphan(truths: Truths, key: Key, nodes: list[str], size_bytes: int) -> Leak | None:
    driver, thing = key
    if key in truths.before.named or key in truths.after.named:
        return None
    if why := truths.unread(thing.kind):
        truths.skip(driver, why, thing)
        return None
    held = {node: holding for node, holding in truths.holders.get(key, {}).items() if node in nodes}
    names = sorted({holding.name for holding in held.values() if holding.is_made})
    for name in names:
        uid = name[-UID_CHARS:]
        if uid in truths.before.waiting or uid in truths.after.waiting:
            return None
    is_open = (
        any((driver, name) in truths.names for name in names)
        if names
        else any((driver, node, thing.kind) in truths.places for node in nodes)
    )
    if is_open:
        why = "a create that runs or is in doubt on its node may have made it; settle the doubts first"
        truths.skip(driver, why, thing)
        return None
    times = [max(holding.since, holding.deleted_at) for holding in held.values()]
    times += [at for node in nodes if (at := truths.closed.made.get((driver, thing, node)))]
    since = max(times, default=0.0)
    if truths.now - (since or truths.closed.complete_since) < truths.grace_s:
        truths.skip(driver, "it may be so new that nothing refers to it yet (--audit-grace)", thing)
        return None
    about = f"nothing refers to it; made by {', '.join(names)}" if names else "nothing refers to it"
    if not any((driver, thing.kind, node) in truths.tally.complete for node in nodes):
        about += "; its node has not listed it in this audit"
    return Leak(
        leak=ORPHAN,
        driver=driver,
        thing=thing.kind,
        id=thing.id,
        nodes=sorted(nodes),
        since=time_of(since) if since else None,
        size_bytes=size_bytes or None,
        about=about,
        settle=f"csi-bridge audit --driver {driver} --delete {shlex.quote(thing.id)}",
    )


def ghosts(truths: Truths) -> Iterator[Leak | None]:
    for key, references in truths.after.named.items():
        driver, thing = key
        if driver not in truths.drivers or key in truths.tally.seen or truths.unread(thing.kind):
            yield None
            continue
        known = {reference.uid for reference in truths.before.named.get(key, ())}
        for reference in references:
            if reference.uid in known and not reference.is_leaving:
                yield _ghost(truths, driver, thing, reference)


def _ghost(truths: Truths, driver: str, thing: Thing, reference: Reference) -> Leak | None:
    nodes = _possible(truths, driver, thing)
    if not nodes:
        truths.skip(driver, f"no node is known to have the volume of a {reference.kind}", thing)
        return None
    if any((driver, thing.kind, node) not in truths.tally.complete for node in nodes):
        truths.skip(driver, "a node that may have it has not listed all", thing)
        return None
    return Leak(
        leak=GHOST,
        driver=driver,
        thing=thing.kind,
        id=thing.id,
        nodes=sorted(nodes),
        since=time_of(reference.since) if reference.since else None,
        size_bytes=reference.size_bytes or None,
        about=f"{reference} names it, and no node that can have it lists it",
        settle=_removal(reference, is_in_files=truths.after.is_in_files),
    )


def _possible(truths: Truths, driver: str, thing: Thing) -> set[str]:
    holders = truths.holders.get((driver, thing), {})
    made = {node for node, holding in holders.items() if holding.is_made or holding.deleted_at}
    if thing.kind != VOLUME:
        return made or set(truths.fleets[driver].members)
    fit = truths.fit(driver, thing.id)
    return made | set(fit.named) or set(fit.possible)


def _removal(reference: Reference, *, is_in_files: bool) -> str:
    if is_in_files:
        return f"restore the volume, or remove {reference.kind} {reference.name} from the manifests"
    if reference.kind == PERSISTENT_VOLUME and reference.owner:
        namespace, _, name = reference.owner.removeprefix("claim ").partition("/")
        return f"kubectl delete persistentvolumeclaim -n {namespace} {name}"
    return f"kubectl delete {reference.kind.lower()} {reference.name}"


def doubts(truths: Truths) -> Iterator[Leak | None]:
    """The creates whose outcome is not known, one for each node that may have carried it out.

    Of a driver with an elected node, all calls that change something are here.
    """
    for driver, name, node, since, in_doubt in truths.closed.open:
        if driver not in truths.drivers or not in_doubt:
            yield None
            continue
        method, _, wanted = name.partition(" ")
        thing = about(name)
        field_name = "name" if thing is None else f"{thing.kind.replace(' ', '_')}_id"
        request = shlex.quote(f'{{"{field_name}": "{wanted if thing is None else thing.id}", …}}')
        yield Leak(
            leak=DOUBT,
            driver=driver,
            thing=method,
            id=wanted,
            nodes=[node],
            since=time_of(since) if since else None,
            size_bytes=None,
            about="the node may have carried it out; a retry of its caller settles it, too",
            settle=f"csi-bridge call {method} --driver {driver} --node {node} {request}",
        )


class ToldMount(NamedTuple):
    """A mount without a pod that a node's agent tells of."""

    node: str
    mount: LeftOver
    is_stale: bool  # whether the node is away by now


def strays(drivers: Collection[str], told: Iterable[ToldMount]) -> Iterator[Leak | None]:
    for node, one, is_stale in told:
        if one.driver and one.driver not in drivers:
            yield None
            continue
        about = [
            f"PersistentVolume {one.pv}" if one.pv else "",
            f"of pod {one.pod}, which is gone" if one.pod else "no pod wants it",
            one.why,
            "as told before the node went away" if is_stale else "",
        ]
        yield Leak(
            leak=STRAY,
            driver=one.driver,
            thing=VOLUME,
            id=one.handle,
            nodes=[node],
            since=time_of(one.since_s) if one.since_s else None,
            size_bytes=None,
            about="; ".join(part for part in about if part),
            settle=f"on node {node}: csi-bridge edge volumes",
        )
