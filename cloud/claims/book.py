"""The book of one driver: its claims, and the ids that its nodes list. Pure, and no method waits.

    claim   one row for each name, with one state. The name of a create is its method and name, `CreateVolume pvc-1`. If
            the driver has an elected node, any other call that changes something also has a name: its method and id,
            such as `DeleteVolume vol-1` (`requests`).
    id      a thing (volume, snapshot, group) at a node. It stands in the claim of the create that made it. If the hub
            knows no such create, it stands in the claim of its deletion.
    list    the ids that only a node's list names, and the kinds that a node has listed. The records have only a mark of
            the node (`Mark`). After a restart, the hub asks the nodes again.

The states of a claim:

    running   a call of this name runs
    in doubt  no call runs, but an earlier one may have made something that no answer named
    made      no call is open, and a thing that a create of this name made exists
    deleted   all things of the name are deleted; the name is free

A call is open if it runs or is in doubt.

Rules:

* A node holds a name while it has an open call of the name, or a thing that was made under the name
  (docs/csi-contract.md#a-name-stays-with-its-node).
* A final answer settles its call, and each call of the name that this hub sent earlier. It settles no later call: the
  vendor may have decided on the answer before it began the later call.
* Several nodes may have the same id. No node replaces the entry of another one, so a conflict stays until an operator
  settles it.
"""

import heapq
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from cloud.claims.claim import Attempt, Claim, IdEntry, Mark
from cloud.claims.requests import about
from cloud.claims.rules import LISTED_BY, Thing

# How long the book keeps the node of a deleted id. A sidecar that did not get the answer repeats the deletion at its
# next resync, after 15 minutes (docs/csi-contract.md#a-deleted-id-keeps-its-node-for-an-hour).
DELETED_KEPT_S: Final = 3_600.0

# After so many deletions within `DELETED_KEPT_S`, the book takes no deleted id that it did not have before. A vendor
# answers the deletion of an id that does not exist with OK, so a proxy driver can invent any number of them.
MOST_DELETED: Final = 20_000

# The largest size of all ids that only the lists of one node name. It has room for 70,000 of the longest ids that CSI
# allows (128 bytes), with `LISTED_BYTES` for each. Without this limit, a hostile node could fill the hub's memory.
MOST_LISTED_BYTES: Final = 16 * 1_048_576

LISTED_BYTES: Final = 100  # the size of a listed id, without its text


class Book:
    """All claims and lists of one driver."""

    def __init__(self) -> None:
        self.claims: dict[str, Claim] = {}  # by name
        self.ids: dict[Thing, dict[str, IdEntry]] = {}  # by thing and node: all ids in claims
        self.listed: dict[Thing, dict[str, float]] = {}  # by thing and node: when a list first had it
        # by node and kind: when the hub asked for the node's last complete list, in monotonic seconds.
        self.lists: dict[tuple[str, str], float] = {}
        self.marks: dict[str, Mark] = {}  # by node
        self.open_counts: dict[str, int] = {}  # by node: the number of names with open calls
        self.open_at: dict[str, str] = {}  # by name with open calls: their node
        # The number of deletions that the hub has sent without noting their things. Such a deletion may remove what a
        # running create has made (`Claims.record_unacknowledged`).
        self.unnoted_deletions = 0
        self._about: dict[Thing, set[str]] = {}  # the names with open calls that are about a thing
        # By thing and node: when each deleted id was deleted. The order is that in which the book learned of them.
        self._deleted: dict[tuple[Thing, str], float] = {}
        # The same times as a heap, because clocks are set back at times. It may have entries of ids that exist again.
        self._deletion_heap: list[tuple[float, Thing, str]] = []
        # By node: the number of its ids in claims and lists, also of deleted things, plus one for `Mark.LISTED`.
        self._nodes: dict[str, int] = {}

    # ---- names -------------------------------------------------------------------------------------------------------

    def holders(self, name: str) -> list[str]:
        """The nodes that hold a name, sorted: the node of its open calls, else the nodes that made things under it."""
        claim = self.claims.get(name)
        if claim is None:
            return []
        return [claim.node] if claim.is_open else sorted(claim.made_at)

    def open_about(self, name: str) -> list[Claim]:
        """The claims with open calls of a name, or with open calls about the thing in the name."""
        thing = about(name)
        names = {name, *self._about.get(thing, ())} if thing is not None else {name}
        return [self.claims[it] for it in sorted(names) if it in self.open_at]

    def begin(self, name: str, node: str, now: float, *, lease_s: int = 0, machine: str = "") -> Attempt:
        """Begin a call under a name. Another node must have no open call of it, or must have surely stopped it."""
        claim = self.claims.get(name)
        if claim is None:
            claim = self.claims[name] = Claim(name)
        elif claim.is_open and claim.node != node:
            claim = self.claims[name] = self.detach(claim)
        if not claim.is_open:
            claim.since = now
            claim.node = node
        elif (claim.lease_s, claim.machine) != (lease_s, machine):
            claim.is_confirmed = False  # the record shows the earlier lease or machine
        claim.lease_s = lease_s
        claim.machine = machine
        attempt = Attempt(claim, self.unnoted_deletions)
        self.index(claim)
        return attempt

    def detach(self, claim: Claim) -> Claim:
        """Replace a claim by one without calls. The book then ignores the ends of the old claim's calls."""
        new = self.claims[claim.name] = Claim(claim.name, ids=claim.ids, has_row=claim.has_row)
        self.index(new)
        return new

    def end_attempt(self, attempt: Attempt, *, in_doubt: bool | None) -> None:
        """Count the end of a call. `in_doubt`: it may have made something that no answer named.

        None: the call made nothing, and settles no earlier call. The hub did not send it, or the vendor refused the
        requested topology.
        """
        claim = attempt.claim
        claim.running -= 1
        if in_doubt:
            claim.last_doubtful = max(claim.last_doubtful, attempt.number)
        elif in_doubt is not None:
            claim.last_final = max(claim.last_final, attempt.number)
        self.index(claim)

    def index(self, claim: Claim) -> None:
        """Bring the indexes in step with a claim whose calls or things have changed."""
        name = claim.name
        if self.claims.get(name) is not claim:  # replaced (`detach`), or dropped as free
            return
        is_open = claim.is_open
        if not is_open:
            claim.must_record = claim.is_confirmed = False
        before = self.open_at.get(name, "")
        node = claim.node if is_open else ""
        if before != node:
            if node:
                self.open_at[name] = node
            else:
                del self.open_at[name]
            _count(self.open_counts, before, -1)
            _count(self.open_counts, node, 1)
        if bool(before) is not bool(node) and (thing := about(name)) is not None:
            names = self._about.setdefault(thing, set())
            (names.add if node else names.discard)(name)
            if not names:
                del self._about[thing]
        # The name is free: a later call of it begins without doubts of earlier ones.
        if not (node or claim.ids):
            del self.claims[name]

    # ---- ids ---------------------------------------------------------------------------------------------------------

    def makers(self, thing: Thing) -> list[str]:
        return sorted(node for node, entry in self.ids.get(thing, {}).items() if entry.is_made)

    def deleted(self, thing: Thing) -> list[str]:
        """The nodes that have deleted a thing in the last hour (`DELETED_KEPT_S`), sorted."""
        return sorted(node for node, entry in self.ids.get(thing, {}).items() if entry.deleted_at)

    def has(self, thing: Thing, node: str) -> bool:
        entry = self.ids.get(thing, {}).get(node)
        return not entry.deleted_at if entry is not None else node in self.listed.get(thing, ())

    def knows(self, thing: Thing) -> bool:
        return thing in self.ids or thing in self.listed

    @property
    def nodes(self) -> Iterable[str]:
        """All nodes that have things, or have deleted things lately. Read it before the next await."""
        return self._nodes.keys()

    @property
    def oldest_counted_deletion(self) -> float:
        """When the oldest of the last `MOST_DELETED` deletions was; 0 if there are fewer."""
        times = self._deleted.values()
        return next(islice(times, len(times) - MOST_DELETED, None)) if len(times) >= MOST_DELETED else 0.0

    def put(self, name: str, thing: Thing, node: str, entry: IdEntry) -> list[Claim]:
        """Put a thing of a node into the claim of a name. Returns the claims that have changed."""
        claims = self.drop(thing, node) if thing in self.ids else []
        claim = self.claims.setdefault(name, Claim(name))
        claim.ids[thing, node] = self.ids.setdefault(thing, {})[node] = entry
        _count(self._nodes, node, 1)
        if entry.deleted_at:
            self._deleted[thing, node] = entry.deleted_at
            heapq.heappush(self._deletion_heap, (entry.deleted_at, thing, node))
            if len(self._deletion_heap) > 2 * len(self._deleted) + 100:  # callers can delete one id any number of times
                self._deletion_heap = sorted((at, *place) for place, at in self._deleted.items())
        return [*claims, claim]

    def drop(self, thing: Thing, node: str) -> list[Claim]:
        """Take a thing of a node out of its claim. Returns the claim, if there was one, for `index`."""
        entry = self.ids.get(thing, {}).pop(node, None)
        if entry is None:
            return []
        if not self.ids[thing]:
            del self.ids[thing]
        _count(self._nodes, node, -1)
        self._deleted.pop((thing, node), None)
        claim = self.claims[entry.name]
        del claim.ids[thing, node]
        return [claim]

    def purge(self, before: float) -> list[Claim]:
        """Drop the ids that were deleted before a moment. Returns their claims."""
        claims = list[Claim]()
        while self._deletion_heap and self._deletion_heap[0][0] < before:
            at, thing, node = heapq.heappop(self._deletion_heap)
            if self._deleted.get((thing, node)) == at:
                claims += self.drop(thing, node)
        return claims

    # ---- nodes -------------------------------------------------------------------------------------------------------

    def concerns(self, node: str) -> bool:
        return node in self._nodes or node in self.open_counts or any(lister == node for lister, _ in self.lists)

    def forget(self, node: str) -> tuple[list[Claim], bool]:
        """Drop everything of a node but its mark. The book then ignores the ends of its calls.

        Returns the claims that have changed, and whether the node had things.
        """
        ids = {thing: entries[node] for thing, entries in self.ids.items() if node in entries}
        listed = list(self.listed_by(node))
        had = bool(listed) or node in self.marks or any(not it.deleted_at for it in ids.values())
        changed = [claim for thing in ids for claim in self.drop(thing, node)]
        changed += [self.detach(it) for it in list(self.claims.values()) if it.is_open and it.node == node]
        for claim in changed:
            self.index(claim)
        for thing in listed:
            self.unlist(thing, node)
        self.lists = {it: at for it, at in self.lists.items() if it[0] != node}
        return changed, had

    # ---- lists -------------------------------------------------------------------------------------------------------

    def may_list(self, thing: Thing, node: str, began: float) -> bool:
        """Whether a list counts for a thing: no claim has the thing there, or the list began after its deletion."""
        entry = self.ids.get(thing, {}).get(node)
        return entry is None or 0 < entry.deleted_at < began

    def revive(self, thing: Thing, node: str, now: float) -> list[Claim]:
        """Note that a list has a deleted thing, so it exists again. Returns the claims that have changed.

        The thing gets its name back, if the book knows the create, and no other node holds the name by now.
        """
        entry = self.ids.get(thing, {}).get(node)
        if entry is None or not entry.deleted_at:
            return []
        is_made = about(entry.name) is None and set(self.holders(entry.name)) <= {node}
        return self.put(entry.name, thing, node, IdEntry(entry.name, now)) if is_made else self.drop(thing, node)

    def list(self, thing: Thing, node: str, since: float) -> bool:
        """Note that a node's list has a thing. Returns False if a claim has it there."""
        if node in self.ids.get(thing, ()):
            return False
        if node not in self.listed.setdefault(thing, {}):
            _count(self._nodes, node, 1)
        self.listed[thing][node] = since
        return True

    def unlist(self, thing: Thing, node: str) -> bool:
        """Note that a node's list no longer has a thing. Returns whether it had the thing before."""
        nodes = self.listed.get(thing, {})
        if nodes.pop(node, None) is None:
            return False
        _count(self._nodes, node, -1)
        if not nodes:
            del self.listed[thing]
        return True

    def listed_by(self, node: str) -> Iterator[Thing]:
        """All things that only the lists of a node name."""
        return (thing for thing, nodes in self.listed.items() if node in nodes)

    def mark(self, node: str, mark: Mark | None) -> bool:
        """Mark a node. Returns whether the mark has changed."""
        old = self.marks.get(node)
        _count(self._nodes, node, (mark is Mark.LISTED) - (old is Mark.LISTED))
        if mark is not None:
            self.marks[node] = mark
        else:
            self.marks.pop(node, None)
        return mark is not old

    def mark_lists(self, node: str) -> bool:
        """Mark a node if its lists name ids that no claim has, else unmark it. Returns whether the mark has changed."""
        if next(self.listed_by(node), None) is not None:
            return self.mark(node, Mark.LISTED)
        # A `LISTED` mark of an earlier hub stays until the node has listed every kind: one of its ids may be of a kind
        # that it has not listed yet.
        has_listed_all = all((node, kind) in self.lists for kind in LISTED_BY)
        return self.mark(node, None) if has_listed_all or self.marks.get(node) is not Mark.LISTED else False


def _count(counts: dict[str, int], node: str, more: int) -> None:
    if not (node and more):
        return
    counts[node] = counts.get(node, 0) + more
    if not counts[node]:
        del counts[node]


def listed_bytes(things: Iterable[Thing]) -> int:
    return sum(len(thing.id) + LISTED_BYTES for thing in things)
