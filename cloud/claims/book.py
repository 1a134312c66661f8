"""The book of one driver: its claims, and the ids that its nodes list. Pure, and no method waits.

    claim   one row a name, with one state. The name is method and name of a create. Of a driver with an elected node it
            is also method and id of any other call that changes something (`requests`).
    id      a thing (volume, snapshot, group) at a node. It stands in the claim of the create that made it, or in that
            of the deletion of a thing that no create here made.
    list    the ids that only a node's list tells, and the kinds that a node has listed. They are in no record, but for
            a mark of the node (`Mark`): after a restart of the hub, the nodes are asked again

The states of a claim:

    running   a call of this name runs
    in doubt  none runs, and one may have made something that no answer named
    made      no call is open, and a thing that was made under the name exists
    deleted   all its things are deleted; the name is free

Rules:

* A name stays with its node while a call under it is open (running or in doubt), and while a thing that was made under
  it exists there (docs/csi-contract.md#a-name-stays-with-its-node).
* A final answer also settles every call that this hub sent before the answered one: they were for the same node and
  name. It settles no call that was sent later: the vendor may begin that one after it has decided on its answer.
* An id may be at several nodes. No node's id replaces another node's, so a conflict stays until an operator settles it.
"""

import heapq
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from cloud.claims.claim import Attempt, Claim, Id, Mark
from cloud.claims.requests import about
from cloud.claims.rules import LISTED_BY, Thing

# How long the book has the node of a deleted id. A sidecar that did not get the answer repeats the delete at its next
# resync, after 15 minutes (docs/csi-contract.md#a-deleted-id-keeps-its-node-for-an-hour).
GONE_S: Final = 3_600.0

# The deleted ids that the book had not before, and has for `GONE_S`. CSI deletes what does not exist with OK, so that a
# proxy driver can invent any number of them.
MOST_GONE: Final = 20_000

# The ids that only the lists of one node tell, of all its drivers together: 70,000 of the longest that CSI allows (128
# bytes), with `LISTED_BYTES` for each. Else a hostile node could fill the hub's memory.
MOST_LISTED_BYTES: Final = 16 * 1_048_576

LISTED_BYTES: Final = 100  # the size of a listed id, without its text


class Book:
    """All claims and lists of one driver."""

    def __init__(self) -> None:
        self.claims: dict[str, Claim] = {}  # by name
        self.ids: dict[Thing, dict[str, Id]] = {}  # by thing and node, all that stands in claims
        self.listed: dict[Thing, dict[str, float]] = {}  # by thing and node, when a list told it first
        # by node and kind: when the last list that the node has sent since the hub began was asked for, in seconds of
        # the monotonic clock.
        self.lists: dict[tuple[str, str], float] = {}
        self.marks: dict[str, Mark] = {}  # by node
        self.open: dict[str, int] = {}  # by node: the number of names with open calls
        self.opened: dict[str, str] = {}  # by name with open calls: their node
        # how many deletions were sent whose success the book does not note, because it has nothing of their things.
        self.deletions = 0
        self._about: dict[Thing, set[str]] = {}  # the names with open calls that are about a thing
        self._gone: dict[tuple[Thing, str], float] = {}  # when each deleted id was deleted, in the order of the records
        # The same as a heap, because clocks are set back at times. Ids that exist again may stay in it.
        self._ends: list[tuple[float, Thing, str]] = []
        # By node: the number of ids in claims and lists, those of deleted things included, and of `Mark.LISTED`.
        self._nodes: dict[str, int] = {}

    # ---- names -------------------------------------------------------------------------------------------------------

    def holders(self, name: str) -> list[str]:
        """The nodes that hold a name: that of its open calls, else those that have made something under it, sorted."""
        claim = self.claims.get(name)
        return [] if claim is None else [claim.node] if claim.is_open else sorted(claim.made_at)

    def open_about(self, name: str) -> list[Claim]:
        """The claims with open calls of a name, or about the same thing."""
        thing = about(name)
        names = {name, *self._about.get(thing, ())} if thing is not None else {name}
        return [self.claims[it] for it in sorted(names) if it in self.opened]

    def begin(self, name: str, node: str, now: float, *, lease_s: int = 0, machine: str = "") -> Attempt:
        """Begin a call under a name that no other node holds, or whose node surely runs none of it any more."""
        claim = self.claims.get(name)
        if claim is None:
            claim = self.claims[name] = Claim(name)
        elif claim.is_open and claim.node != node:
            claim = self.claims[name] = self.detach(claim)
        if not claim.is_open:
            claim.since = now
            claim.node = node
        elif (claim.lease_s, claim.machine) != (lease_s, machine):
            claim.is_confirmed = False
        claim.lease_s = lease_s
        claim.machine = machine
        attempt = Attempt(claim, self.deletions)
        self.index(claim)
        return attempt

    def detach(self, claim: Claim) -> Claim:
        """Put a claim without calls in the place of another one: the ends of its calls count no more."""
        new = self.claims[claim.name] = Claim(claim.name, ids=claim.ids, has_row=claim.has_row)
        self.index(new)
        return new

    def end_attempt(self, attempt: Attempt, *, in_doubt: bool | None) -> None:
        """Count the end of a call. `in_doubt`: it may have made something that no answer named.

        None: it made nothing and says nothing of earlier calls, because it was not sent, or because the vendor refused
        the requested topology.
        """
        claim = attempt.claim
        claim.running -= 1
        if in_doubt:
            claim.doubtful = max(claim.doubtful, attempt.number)
        elif in_doubt is not None:
            claim.certain = max(claim.certain, attempt.number)
        self.index(claim)

    def index(self, claim: Claim) -> None:
        """Bring the indexes in step with a claim whose calls or things have changed."""
        name = claim.name
        if self.claims.get(name) is not claim:  # forgotten meanwhile
            return
        is_open = claim.is_open
        if not is_open:
            claim.is_kept = claim.is_confirmed = False
        before = self.opened.get(name, "")
        node = claim.node if is_open else ""
        if before != node:
            self.opened[name] = node
            if not node:
                del self.opened[name]
            _count(self.open, before, -1)
            _count(self.open, node, 1)
        if bool(before) is not bool(node) and (thing := about(name)) is not None:
            names = self._about.setdefault(thing, set())
            (names.add if node else names.discard)(name)
            if not names:
                del self._about[thing]
        # The name is free: a later call of it begins with no doubt of earlier ones.
        if not (node or claim.ids):
            del self.claims[name]

    # ---- ids ---------------------------------------------------------------------------------------------------------

    def makers(self, thing: Thing) -> list[str]:
        return sorted(node for node, its in self.ids.get(thing, {}).items() if its.is_made)

    def deleted(self, thing: Thing) -> list[str]:
        """The nodes that have deleted a thing in the last hour (`GONE_S`), sorted."""
        return sorted(node for node, its in self.ids.get(thing, {}).items() if its.gone)

    def has(self, thing: Thing, node: str) -> bool:
        its = self.ids.get(thing, {}).get(node)
        return not its.gone if its is not None else node in self.listed.get(thing, ())

    def knows(self, thing: Thing) -> bool:
        return thing in self.ids or thing in self.listed

    @property
    def nodes(self) -> Iterable[str]:
        """All nodes that have or had things. Read it before the next await."""
        return self._nodes.keys()

    @property
    def gone_since(self) -> float:
        """When the oldest of the last `MOST_GONE` deletions was; 0 if there are fewer."""
        gone = self._gone
        return next(islice(gone.values(), len(gone) - MOST_GONE, None)) if len(gone) >= MOST_GONE else 0.0

    def put(self, name: str, thing: Thing, node: str, its: Id) -> list[Claim]:
        """Put a thing of a node into the claim of a name. Returns the claims that have changed."""
        claims = self.drop(thing, node) if thing in self.ids else []
        claim = self.claims.setdefault(name, Claim(name))
        claim.ids[thing, node] = self.ids.setdefault(thing, {})[node] = its
        _count(self._nodes, node, 1)
        if its.gone:
            self._gone[thing, node] = its.gone
            heapq.heappush(self._ends, (its.gone, thing, node))
            if len(self._ends) > 2 * len(self._gone) + 100:  # callers can delete one id any number of times
                self._ends = sorted((at, *place) for place, at in self._gone.items())
        return [*claims, claim]

    def drop(self, thing: Thing, node: str) -> list[Claim]:
        """Take a thing of a node out of its claim. Returns the claim, if there was one, for `index`."""
        its = self.ids.get(thing, {}).pop(node, None)
        if its is None:
            return []
        if not self.ids[thing]:
            del self.ids[thing]
        _count(self._nodes, node, -1)
        self._gone.pop((thing, node), None)
        claim = self.claims[its.name]
        del claim.ids[thing, node]
        return [claim]

    def purge(self, before: float) -> list[Claim]:
        """Drop the ids that were deleted before a moment. Returns their claims."""
        claims = list[Claim]()
        while self._ends and self._ends[0][0] < before:
            at, thing, node = heapq.heappop(self._ends)
            if self._gone.get((thing, node)) == at:
                claims += self.drop(thing, node)
        return claims

    # ---- nodes -------------------------------------------------------------------------------------------------------

    def concerns(self, node: str) -> bool:
        return node in self._nodes or node in self.open or any(its == node for its, _ in self.lists)

    def forget(self, node: str) -> tuple[list[Claim], bool]:
        """Drop all of a node but its mark. Its calls count no more.

        Returns the claims that have changed, and whether the node had things.
        """
        ids = {thing: its[node] for thing, its in self.ids.items() if node in its}
        listed = list(self.listed_by(node))
        had = bool(listed) or node in self.marks or any(not it.gone for it in ids.values())
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
        """Whether a list that began at a moment counts for a thing: no claim has it there, or it was deleted before."""
        its = self.ids.get(thing, {}).get(node)
        return its is None or 0 < its.gone < began

    def revive(self, thing: Thing, node: str, now: float) -> list[Claim]:
        """Note that a deleted thing exists again, according to a list. Returns the claims that have changed.

        It gets its name back, unless only a deletion told of it, or another node holds the name by now.
        """
        its = self.ids.get(thing, {}).get(node)
        if its is None or not its.gone:
            return []
        is_made = about(its.name) is None and set(self.holders(its.name)) <= {node}
        return self.put(its.name, thing, node, Id(its.name, now)) if is_made else self.drop(thing, node)

    def list(self, thing: Thing, node: str, since: float) -> bool:
        """Note that a node's list has a thing. Returns False if a claim has it there."""
        if node in self.ids.get(thing, ()):
            return False
        if node not in self.listed.setdefault(thing, {}):
            _count(self._nodes, node, 1)
        self.listed[thing][node] = since
        return True

    def unlist(self, thing: Thing, node: str) -> bool:
        """Note that a node's list has a thing no more. Returns whether it had it."""
        nodes = self.listed.get(thing, {})
        if nodes.pop(node, None) is None:
            return False
        _count(self._nodes, node, -1)
        if not nodes:
            del self.listed[thing]
        return True

    def listed_by(self, node: str) -> Iterator[Thing]:
        """All that only the lists of a node tell."""
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
        """Mark whether the lists of a node tell ids that no claim has. Returns whether the mark has changed."""
        if next(self.listed_by(node), None) is not None:
            return self.mark(node, Mark.LISTED)
        is_certain = all((node, kind) in self.lists for kind in LISTED_BY)
        return self.mark(node, None) if is_certain or self.marks.get(node) is not Mark.LISTED else False


def _count(counts: dict[str, int], node: str, more: int) -> None:
    if not (node and more):
        return
    counts[node] = counts.get(node, 0) + more
    if not counts[node]:
        del counts[node]


def listed_bytes(things: Iterable[Thing]) -> int:
    return sum(len(thing.id) + LISTED_BYTES for thing in things)
