"""The pending state: this hub's knowledge of names and ids that the claim store does not have.

The rule is that the claim store has a create's name before the hub sends the create, and its things before the caller
gets the success. A create that the caller pins to a node (`Keeping.LATE`) is exempt, so that it is as fast as at the
vendor's own socket. The hub writes the name only if the outcome is in doubt. It writes the things only if nobody took
the answer. Until then only this hub's memory has them: other hubs do not see them, and a killed hub forgets them. That
is safe as long as the caller pins all creates of a name to one node.

Rules:

* `over` adds the pending state to the store's answer, so that every decision of this hub sees both.
* State that moves to the store while the hub reads the store would be in neither: `look` then reads again.
* Creates of one name are under way at one node only. `begin` checks that and notes the create without an await between.
* `Pending` keeps the things of a success until the caller has taken the answer. Then the caller knows their node, and
  the hub drops them. If nobody takes the answer, the store records them (`ClaimStore.record_later`).
"""

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Final

from cloud.placement.attempts import Attempt, OpenName
from cloud.placement.claim_store import ClaimStore, Hold, Holding, Ledger, NameEntry, Place, Standing
from cloud.placement.recent import Recent
from cloud.placement.requests import Thing

Untaken = dict[Place, object]
"""Things that one `Pending.keep` keeps. The token of each tells this success from a later one with the same thing."""

_ELSEWHERE: Final = object()
"""Instead of a token: another success keeps the thing already."""


@dataclass(slots=True, eq=False)
class _Look:
    """A look at the store that waits for its answer.

    Attributes:
        driver: the driver.
        name: the name, or empty.
        is_stale: whether this hub has given the store a change meanwhile that the answer may lack.
    """

    driver: str
    name: str
    is_stale: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Remembered:
    """Names and things of a node (`Pending.of`)."""

    names: list[OpenName]
    untaken: dict[Place, tuple[str, object]]


@dataclass(frozen=True, slots=True)
class Books:
    """All that this hub knows of names and ids at one moment, for the leak audit.

    Attributes:
        ledger: the entries of the claim store.
        running: driver, name and node of each name with creates of this hub under way.
        doubted: the names among these of which an earlier create is in doubt.
        made: when the things were made that the store does not have, in seconds since the epoch.
        complete_since: no thing that was made after this time is missing in `made` and the store.
    """

    ledger: Ledger
    running: frozenset[tuple[str, str, str]]
    doubted: frozenset[tuple[str, str]]
    made: Mapping[Place, float]
    complete_since: float


class Pending:
    """The names and ids that this hub holds in memory, for all drivers.

    Attributes:
        store: the claim store, which all hubs share.
        now: seconds since the epoch.
    """

    def __init__(self, store: ClaimStore, *, now: Callable[[], float]) -> None:
        self.store, self.now = store, now
        self._names: dict[tuple[str, str], OpenName] = {}
        self._not_held: dict[str, dict[str, int]] = {}
        """By driver and node: how many of these names the store does not hold."""
        self._untaken: dict[Place, tuple[str, object]] = {}
        """The name of the create and the token, for each thing of an answer that the caller has not taken yet."""
        self._recent = Recent(now())
        self._looks: set[_Look] = set()

    async def look(self, driver: str, name: str, things: Iterable[Thing]) -> Standing:
        """The store's answer, without this hub's pending state, but with all that this hub has given to the store.

        Raises:
            PlacementNotKept: the store cannot be reached.
        """
        look = _Look(driver, name)
        self._looks.add(look)
        try:
            standing = await self.store.look(driver, name, things)
            while look.is_stale:
                look.is_stale = False
                standing = await self.store.look(driver, name, things)
            return standing
        finally:
            self._looks.discard(look)

    def glance(self, driver: str, name: str, things: Iterable[Thing]) -> Standing | None:
        """The same as `look` without a wait; None if the store has to wait."""
        return self.store.glance(driver, name, things)

    def over(self, standing: Standing, driver: str, name: str) -> Standing:
        """The store's entries with the pending names and things added."""
        ours = self._names.get((driver, name))
        entry = standing.name
        if ours is not None:
            entry = replace(entry, holds={**entry.holds, self.store.owner: Hold(ours.node)})
        if more := self._not_held.get(driver):
            counts = {node: count + standing.open.get(node, 0) for node, count in more.items()}
            standing = standing._replace(open={**standing.open, **counts})
        if not self._untaken:
            return standing if entry is standing.name else standing._replace(name=entry)
        ids, nodes = dict(standing.ids), standing.nodes
        for (its_driver, thing, node), (made_as, _) in self._untaken.items():
            if its_driver != driver:
                continue
            nodes = nodes if node in nodes else {*nodes, node}
            if made_as == name:
                entry = replace(entry, made=entry.made | {node})
            if thing in ids and node not in ids[thing].made:
                ids[thing] = ids[thing].replaced(node, Holding(made_as))
        return standing._replace(name=entry, ids=ids, nodes=nodes)

    # ---- names -------------------------------------------------------------------------------------------------------

    def begin(
        self, driver: str, name: str, node: str, entry: NameEntry, over: AbstractSet[str] = frozenset()
    ) -> Attempt | None:
        """Begin a create at a node; None if this hub has one of the same name at another node.

        Args:
            driver: the driver.
            name: method and name of the create.
            node: the node.
            entry: the store's entry. If it has a hold of this hub while no create of this hub runs, an earlier create
                is in doubt.
            over: nodes whose holds do not count any more.
        """
        ours = self._names.get((driver, name))
        if ours is None:
            hold = entry.holds.get(self.store.owner)
            hold = None if hold is not None and hold.node in over else hold
            if hold is not None and hold.node != node:
                return None
            doubts = int(hold is not None)
            ours = OpenName(driver, name, node, sent=doubts, doubtful=doubts, is_held=hold is not None)
            ours.is_shared = bool(entry.holds.keys() - {self.store.owner})
            self._names[ours.key] = ours
            self._count(ours, int(not ours.is_held))
        return Attempt(ours) if ours.node == node else None

    def hold(self, ours: OpenName, *, is_held: bool) -> None:
        """Note whether the store holds a name."""
        self._count(ours, int(ours.is_held) - int(is_held))
        ours.is_held = is_held

    def end(self, attempt: Attempt, *, in_doubt: bool | None) -> None:
        """End a create (`Attempt.end`). The store learns of a doubt that it lacks, and of a name that is free."""
        attempt.end(in_doubt=in_doubt)
        ours = attempt.name
        if self._names.get(ours.key) is not ours:  # `forget` has dropped the name meanwhile
            return
        if ours.in_doubt and not ours.is_held:
            self.hold(ours, is_held=True)
            self.store.hold_later(ours.driver, ours.name, ours.node)
            self._moved(ours.driver, ours.name)
        if ours.is_settled and (ours.is_held or ours.claims):
            self.hold(ours, is_held=False)
            ours.is_confirmed, ours.claims = False, 0
            self.store.free_later(ours.driver, ours.name)
            self._moved(ours.driver, ours.name)
        if not ours.attempts:
            self._drop(ours)

    def free(self, driver: str, names: Iterable[str]) -> None:
        """Free names whose outcome does not matter any more. One with calls under way stays."""
        for name in names:
            if (driver, name) not in self._names:
                self.store.free_later(driver, name)
                self._moved(driver, name)

    # ---- things that were made, and that the caller has not taken ----------------------------------------------------

    def keep(self, driver: str, node: str, name: str, things: Iterable[Thing]) -> Untaken:
        """Keep things that a node has made under a name, until `record` or `drop`."""
        untaken: Untaken = {}
        for place in ((driver, thing, node) for thing in things):
            token = untaken[place] = object() if place not in self._untaken else _ELSEWHERE
            if token is not _ELSEWHERE:
                self._untaken[place] = name, token
        return untaken

    def record(self, untaken: Untaken) -> None:
        """Let the store record things whose answer nobody took, unless they were deleted or forgotten meanwhile."""
        for (driver, thing, node), name in self._pop(untaken):
            self.store.record_later(driver, node, thing, name)
            self._moved(driver)

    def drop(self, untaken: Untaken) -> None:
        """Drop things whose answer the caller has taken: the caller knows their node."""
        self._recent.add((place for place, _ in self._pop(untaken)), self.now())

    def gone(self, driver: str, node: str, things: Iterable[Thing]) -> None:
        """Drop things that the vendor has deleted."""
        for thing in things:
            self._untaken.pop((driver, thing, node), None)

    def of(self, node: str, driver: str = "") -> Remembered:
        """Everything of a node at this moment, or of one driver there."""
        return Remembered(
            [ours for ours in self._names.values() if ours.node == node and driver in ("", ours.driver)],
            {place: held for place, held in self._untaken.items() if place[2] == node and driver in ("", place[0])},
        )

    def forget(self, known: Remembered) -> None:
        """Drop what `of` found, and nothing that came later. If its creates still run, their ends change nothing."""
        for ours in known.names:
            if self._names.get(ours.key) is ours:
                self._drop(ours)
        for place, held in known.untaken.items():
            if self._untaken.get(place) == held:
                del self._untaken[place]

    def existing(self) -> list[Place]:
        """The things that it keeps."""
        return list(self._untaken)

    async def books(self) -> Books:
        """All that this hub knows. Raises PlacementNotKept if the store cannot be reached."""
        before = self._running()  # a create that ends while the ledger is read stands here, or in the ledger
        ledger = await self.store.ledger()
        running = before | self._running()  # one that begins meanwhile has a hold there, and is no doubt
        doubted = frozenset(ours.key for ours in self._names.values() if ours.in_doubt)
        made = {**self._recent.all(), **dict.fromkeys(self._untaken, self.now())}
        return Books(ledger, running, doubted, made, self._recent.complete_since)

    def _running(self) -> frozenset[tuple[str, str, str]]:
        return frozenset((ours.driver, ours.name, ours.node) for ours in self._names.values())

    def knows(self, node: str, driver: str) -> bool:
        """Whether it has anything of a node, or of one driver there."""
        places = [(ours.driver, ours.node) for ours in self._names.values()]
        places += [(its_driver, its_node) for its_driver, _, its_node in self._untaken]
        return any(its_node == node and driver in ("", its_driver) for its_driver, its_node in places)

    def _drop(self, ours: OpenName) -> None:
        del self._names[ours.key]
        self._count(ours, -int(not ours.is_held))

    def _count(self, ours: OpenName, more: int) -> None:
        if not more:
            return
        of_nodes = self._not_held.setdefault(ours.driver, {})
        of_nodes[ours.node] = of_nodes.get(ours.node, 0) + more
        if not of_nodes[ours.node]:
            del of_nodes[ours.node]

    def _moved(self, driver: str, name: str = "") -> None:
        """The store gets a change of a name, or of things of the driver: looks that wait may lack it."""
        for look in self._looks:
            if look.driver == driver and name in ("", look.name):
                look.is_stale = True

    def _pop(self, untaken: Untaken) -> list[tuple[Place, str]]:
        found = [(place, self._untaken[place][0]) for place, token in untaken.items() if self._has(place, token)]
        for place, _ in found:
            del self._untaken[place]
        return found

    def _has(self, place: Place, token: object) -> bool:
        return place in self._untaken and self._untaken[place][1] is token
