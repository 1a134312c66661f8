"""The rows of a claim store in memory. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

from cloud.election import Elected
from cloud.placement.claim_store import (
    FORGOTTEN,
    LISTED_BYTES,
    MOST_GONE,
    NO_ID,
    NO_NAME,
    Hold,
    Holding,
    IdEntry,
    Ledger,
    NameEntry,
    Place,
    Standing,
)
from cloud.placement.requests import Thing, about

_PART = 1_000
"""Things in one part of the ledger: one millisecond."""


class MemoryRows:
    """All names, ids and lists (`claim_rules.Rows`)."""

    def __init__(self) -> None:
        self._holds: dict[tuple[str, str], dict[str, Hold]] = {}
        self._made: dict[tuple[str, str], dict[tuple[str, Thing], None]] = {}
        """By driver and name: node and id of each thing that was made under it and exists."""
        self._ids: dict[tuple[str, Thing], dict[str, Holding]] = {}
        self._nodes: dict[str, dict[str, dict[Thing, Holding]]] = {}
        """The same holdings by driver and node."""
        self._lists: dict[str, set[tuple[str, str]]] = {}
        self._open: dict[str, dict[str, int]] = {}
        """By driver and node: the number of holds."""
        self._gone: dict[str, dict[tuple[Thing, str], float]] = {}
        """By driver: when each deleted id was deleted, in the order of the records."""
        self._about: dict[tuple[str, Thing], set[str]] = {}
        """By driver and thing: the held names about it."""
        self._elected: dict[str, Elected] = {}

    # ---- reading -----------------------------------------------------------------------------------------------------

    def name(self, driver: str, name: str) -> NameEntry:
        """A name's entry."""
        holds, made, beside = (
            self._holds.get((driver, name)),
            self._made.get((driver, name)),
            self._beside(driver, name),
        )
        if not (holds or made or beside):
            return NO_NAME
        return NameEntry(dict(holds or ()), frozenset(node for node, _ in made or ()), beside)

    def _beside(self, driver: str, name: str) -> frozenset[tuple[str, Hold]]:
        thing = about(name)
        names = self._about.get((driver, thing), ()) if thing is not None else ()
        return frozenset(
            (other, hold) for other in names if other != name for hold in self._holds[driver, other].values()
        )

    def id(self, driver: str, thing: Thing) -> IdEntry:
        """An id's entry."""
        holders = self._ids.get((driver, thing))
        return IdEntry(dict(holders)) if holders else NO_ID

    def at(self, driver: str, node: str, kind: str) -> Mapping[Thing, Holding]:
        """All holdings of one node, of one kind."""
        things = self._nodes.get(driver, {}).get(node, {})
        return {thing: holding for thing, holding in things.items() if thing.kind == kind}

    def listed_bytes(self, node: str) -> int:
        """The size of all ids that only the lists of a node tell."""
        held = (nodes.get(node, {}) for nodes in self._nodes.values())
        only = (thing for things in held for thing, holding in things.items() if holding.is_listed_only)
        return sum(len(thing.id) + LISTED_BYTES for thing in only)

    def standing(self, driver: str, name: str, things: Iterable[Thing]) -> Standing:
        """A name and ids. All else in it are live views: read them before the next await."""
        return Standing(
            self.name(driver, name) if name else NO_NAME,
            {thing: self.id(driver, thing) for thing in things},
            self._nodes.get(driver, {}).keys(),
            self._lists.get(driver, frozenset()),
            self._open.get(driver, {}),
            self._gone_since(driver),
        )

    def _gone_since(self, driver: str) -> float:
        gone = self._gone.get(driver, {})
        return next(islice(gone.values(), len(gone) - MOST_GONE, None)) if len(gone) >= MOST_GONE else 0.0

    def knows(self, node: str, driver: str) -> bool:
        """Whether anything of a node is here, or of one driver there."""
        return any(_concerns(node, driver, *each) for each in self._places())

    def existing(self) -> list[Place]:
        """Every thing that exists, and its nodes."""
        return [
            (driver, thing, node)
            for (driver, thing), holders in self._ids.items()
            for node, holding in holders.items()
            if not holding.gone
        ]

    def ledger(self) -> Iterator[Ledger]:
        """All entries, in parts: first the holds, and with each later part the holdings of some things.

        The rows may change between two parts. Then a create that has ended meanwhile has its hold in the first part, or
        its things in a later one, or both.
        """
        yield Ledger([], [(*key, hold) for key, holds in self._holds.items() for hold in holds.values()])
        ids = iter(list(self._ids))
        while some := list(islice(ids, _PART)):
            held = ((key, self._ids.get(key, {})) for key in some)
            yield Ledger([((*key, node), holding) for key, by in held for node, holding in by.items()], [])

    def _places(self) -> Iterator[tuple[str, str]]:
        yield from ((driver, hold.node) for (driver, _), holds in self._holds.items() for hold in holds.values())
        yield from ((driver, node) for driver, nodes in self._nodes.items() for node in nodes)
        yield from (
            (driver, node) for driver, lists in self._lists.items() for node, kind in lists if kind != FORGOTTEN
        )

    # ---- writing -----------------------------------------------------------------------------------------------------

    def set_hold(self, driver: str, name: str, owner: str, hold: Hold | None) -> None:
        """Set or remove an owner's hold on a name."""
        holds = self._holds.setdefault((driver, name), {})
        old = holds.pop(owner, None)
        self._count(driver, old, -1)
        self._count(driver, hold, 1)
        if hold is not None:
            holds[owner] = hold
        elif not holds:
            del self._holds[driver, name]
        if (thing := about(name)) is not None:
            names = self._about.setdefault((driver, thing), set())
            (names.add if holds else names.discard)(name)
            if not names:
                del self._about[driver, thing]

    def _count(self, driver: str, hold: Hold | None, more: int) -> None:
        if hold is None:
            return
        of_nodes = self._open.setdefault(driver, {})
        of_nodes[hold.node] = of_nodes.get(hold.node, 0) + more
        if not of_nodes[hold.node]:
            del of_nodes[hold.node]

    def set_holding(self, driver: str, thing: Thing, node: str, holding: Holding | None) -> None:
        """Set or remove a node's holding of an id."""
        nodes = self._nodes.setdefault(driver, {})
        holders, things = self._ids.setdefault((driver, thing), {}), nodes.setdefault(node, {})
        old = holders.pop(node, None)
        gone = self._gone.setdefault(driver, {})
        gone.pop((thing, node), None)
        if old is not None and old.is_made:
            made = self._made[driver, old.name]
            del made[node, thing]
            if not made:
                del self._made[driver, old.name]
        if holding is not None:
            holders[node] = things[thing] = holding
            if holding.is_made:
                self._made.setdefault((driver, holding.name), {})[node, thing] = None
            if holding.gone:
                gone[thing, node] = holding.gone
            return
        things.pop(thing, None)
        if not holders:
            del self._ids[driver, thing]
        if not things:
            del nodes[node]

    def set_listed(self, driver: str, node: str, kind: str) -> None:
        """Note that a node has listed all of a kind."""
        lists = self._lists.setdefault(driver, set())
        lists.discard((node, FORGOTTEN))
        lists.add((node, kind))

    def elected(self, driver: str) -> Elected | None:
        """The driver's last election; None: there was none."""
        return self._elected.get(driver)

    def elections(self) -> Mapping[str, Elected]:
        """The last election of each driver."""
        return dict(self._elected)

    def set_elected(self, driver: str, elected: Elected) -> None:
        """Set the driver's last election."""
        self._elected[driver] = elected

    def left(self, node: str, driver: str) -> set[str]:
        """See `claim_rules.Rows`."""
        forgotten = {its for its, lists in self._lists.items() if (node, FORGOTTEN) in lists}
        held = ((its, nodes.get(node, {})) for its, nodes in self._nodes.items() if driver in ("", its))
        return forgotten | {its for its, things in held if not all(holding.gone for holding in things.values())}

    def forget(self, node: str, driver: str, left: Iterable[str]) -> None:
        """See `claim_rules.Rows`. Elections stay: their numbers only grow."""
        for (its, name), holds in list(self._holds.items()):
            for owner, hold in list(holds.items()):
                if _concerns(node, driver, its, hold.node):
                    self.set_hold(its, name, owner, None)
        for its in [driver] if driver else list(self._nodes):
            for thing in list(self._nodes.get(its, {}).get(node, ())):
                self.set_holding(its, thing, node, None)
        for its, lists in self._lists.items():
            lists -= {(its_node, kind) for its_node, kind in lists if _concerns(node, driver, its, its_node)}
        for its in left:
            self.set_listed(its, node, FORGOTTEN)

    def purge(self, before: float) -> None:
        """Remove the ids that were deleted before a moment."""
        for driver, gone in self._gone.items():
            for thing, node in [place for place, at in gone.items() if at < before]:  # clocks are set back at times
                self.set_holding(driver, thing, node, None)


def _concerns(node: str, driver: str, its_driver: str, its_node: str) -> bool:
    return its_node == node and driver in ("", its_driver)
