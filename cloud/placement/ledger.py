"""The ledger: which node holds a name, and which nodes have an id, on disk before anybody is told.

    claims       driver, method and name of a create → the node that it was sent to, as long as something may have been
                 made there that no answer told of
    things       driver, kind and id → the nodes that have it, or had it, and the name under which it was made
    inventories  driver, node and kind: whether the node has listed all that it has

Rules:

* A name stays with its node for as long as `Claim` says.
* What was deleted is remembered for an hour: its deletion may be asked for again (contract A.10).
* Memory is asked, the file is written: those writes that wait together in one transaction, in a thread. What must not
  be told before waits until the disk has it (`synchronous=FULL`).
* That a name is settled needs no waiting: it is written with the next write that succeeds. Where the disk does not
  learn of it, the name stays with its node after a restart: an annoyance, and no untruth.
* So is a doubt about a name that nobody has had the disk keep (`keep`), when it arises, and what was made and nobody
  took (`note`). Until it is known whether somebody takes it, it is known in memory (`hold`).
* A ledger that was lost is one of the losses, like a damaged database of nodes (`cloud.losses`).
"""

import asyncio
import itertools
import logging
import sqlite3
import time
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, KeysView, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from cloud.losses import Losses
from cloud.placement.claims import Attempt, Claim
from cloud.placement.requests import Thing
from common.database import Schema, open_database, transaction
from common.errors import PlacementNotKept, SettingsError

log = logging.getLogger("csi_bridge.hub.ledger")

_SCHEMA = Schema(
    "hub",
    (
        (
            """CREATE TABLE IF NOT EXISTS claims (
                driver TEXT NOT NULL, name TEXT NOT NULL, node TEXT NOT NULL, PRIMARY KEY (driver, name)
            ) STRICT, WITHOUT ROWID""",
            """CREATE TABLE IF NOT EXISTS things (
                driver TEXT NOT NULL, kind TEXT NOT NULL, id TEXT NOT NULL, node TEXT NOT NULL, name TEXT NOT NULL,
                gone REAL NOT NULL, PRIMARY KEY (driver, kind, id, node)
            ) STRICT, WITHOUT ROWID""",
            """CREATE TABLE IF NOT EXISTS inventories (
                driver TEXT NOT NULL, node TEXT NOT NULL, kind TEXT NOT NULL, PRIMARY KEY (driver, node, kind)
            ) STRICT, WITHOUT ROWID""",
        ),
    ),
)

_GONE_S = 3_600.0
"""So long what is gone is remembered. The sidecars' resync is 15 minutes."""

_FREE = "DELETE FROM claims WHERE driver = ? AND name = ?"

_Statement = tuple[str, tuple[object, ...]]


class _Place(NamedTuple):
    """One thing at one node."""

    driver: str
    thing: Thing
    node: str


@dataclass(slots=True, eq=False)
class _Entry:
    """What is known of a place.

    Attributes:
        name: the name under which the thing was made; empty where that is unknown.
        gone: when it was deleted, in seconds since the epoch; 0 while it is there.
    """

    name: str
    gone: float = 0.0

    @property
    def is_made(self) -> bool:
        """Whether it is there, and was made as this hub saw."""
        return bool(self.name) and not self.gone

    @property
    def is_hearsay(self) -> bool:
        """Whether nothing but a list tells of it."""
        return not (self.name or self.gone)


class _Holding(NamedTuple):
    """What stands at a place, and what stood there before."""

    entry: _Entry
    former: _Entry | None


Held = Mapping[_Place, _Holding | None]
"""What `Ledger.hold` holds; None where it was known already."""


@dataclass(slots=True, eq=False)
class _Changing:
    """A place of which the disk is being told.

    Attributes:
        on_disk: what the disk has of it.
        writes: how many writes are under way.
    """

    on_disk: _Entry | None
    writes: int = 0


@dataclass(frozen=True, slots=True)
class Known:
    """The nodes of one thing, each in the order of their names.

    Attributes:
        made: those where it was made, as this hub saw.
        listed: those that have it as far as their own lists say, and nothing else does.
        deleted: those where it was deleted not long ago, as this hub saw.
    """

    made: list[str] = field(default_factory=list)
    listed: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)

    @property
    def nodes(self) -> list[str]:
        """All of them."""
        return [*self.made, *self.listed, *self.deleted]


class Ledger:
    """The file `placement.db` of the state directory.

    Attributes:
        losses: whether any of it was lost.
        now: seconds since the epoch.
    """

    def __init__(self, state_dir: Path, *, now: Callable[[], float] = time.time) -> None:
        """Open or create it. The caller holds the directory's lock.

        Args:
            state_dir: a directory that is there.
            now: seconds since the epoch.

        Raises:
            SettingsError: it cannot be used, or is a newer hub's.
        """
        self._path = state_dir / "placement.db"
        self.now = now
        self._claims: dict[tuple[str, str], Claim] = {}
        self._things: dict[tuple[str, Thing], dict[str, _Entry]] = {}
        self._counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        """By driver and node: of how many things anything is known."""
        self._gone: OrderedDict[_Place, float] = OrderedDict()
        """What was deleted, the oldest first, and when."""
        self._changing: dict[_Place, _Changing] = {}
        self._inventories: dict[tuple[str, str, str], set[_Place]] = {}
        """By driver, node and kind: what the node's last list told and nothing else does."""
        self._waiting: list[tuple[list[_Statement], asyncio.Future[None]]] = []
        self._untold: set[tuple[str, str]] = set()
        """Names of which the disk may have a claim that it needs no more, or lack one. Nobody waits for it."""
        self._noted: set[_Place] = set()
        """Places of which the disk does not know what memory does. Nobody waits for it."""
        self._writer: asyncio.Task[None] | None = None
        self._is_closed = False
        try:
            self.losses = Losses(state_dir / "placement.losses")
            opened = open_database(self._path, _SCHEMA, check=self._read, full=True)
            self._database = opened.connection
            if opened.damaged is not None:
                self.losses.add(f"{self._path} was damaged, and is {opened.damaged} now")
            elif opened.was_new and self.losses.file_found and not self.losses.standing:
                self.losses.add(f"{self._path} was gone or empty")
            self.losses.create()
        except (OSError, sqlite3.Error) as error:
            raise SettingsError("--state-dir", str(state_dir), f"cannot be written: {error}") from error

    # ---- questions ---------------------------------------------------------------------------------------------------

    def holder(self, driver: str, name: str) -> str:
        """The node that holds a create's name; empty if none does."""
        claim = self._claims.get((driver, name))
        return claim.node if claim is not None else ""

    def find(self, driver: str, thing: Thing) -> Known:
        """The nodes that have a thing, or had it."""
        known = Known()
        for node, entry in sorted(self._things.get((driver, thing), {}).items()):
            nodes = known.deleted if entry.gone else known.made if entry.is_made else known.listed
            nodes.append(node)
        return known

    def has(self, driver: str, thing: Thing, node: str) -> bool:
        """Whether a node has a thing, as far as is known."""
        entry = self._entry(_Place(driver, thing, node))
        return entry is not None and not entry.gone

    def nodes(self, driver: str) -> KeysView[str]:
        """The nodes that have things of a driver, or had them not long ago."""
        return self._counts.get(driver, Counter[str]()).keys()

    def is_listed(self, driver: str, node: str, kind: str) -> bool:
        """Whether the node has listed all things of a kind since the ledger began."""
        return (driver, node, kind) in self._inventories

    def knows(self, node: str, driver: str = "") -> bool:
        """Whether anything of a node stands here, or of one driver there."""
        return any(_concerns(node, driver, *each) for each in self._nodes())

    def volumes(self) -> Iterator[tuple[str, Thing, str]]:
        """What is there: driver, thing and node."""
        for (driver, thing), entries in self._things.items():
            for node, entry in entries.items():
                if not entry.gone:
                    yield driver, thing, node

    # ---- names -------------------------------------------------------------------------------------------------------

    def attempt(self, driver: str, name: str, node: str) -> Attempt:
        """A call that makes something is to be sent: its name is this node's if it is nobody's.

        `keep` its claim, unless it may do without the disk; then `Attempt.send` it; and `settle` it when it has ended,
        whether or not it was sent.
        """
        return Attempt(self._claims.setdefault((driver, name), Claim(driver, name, node)))

    async def keep(self, claim: Claim) -> None:
        """Let the disk have a claim.

        Raises:
            PlacementNotKept: it does not take it.
        """
        if not claim.is_kept:
            claim.is_tried = True
            await self._write([_claim_statement(claim)])
            claim.is_kept = True

    def settle(self, attempt: Attempt, *, in_doubt: bool | None) -> None:
        """A call under a name has ended (`Attempt.end`)."""
        attempt.end(in_doubt=in_doubt)
        self._release(attempt.claim)

    def _release(self, claim: Claim) -> None:
        """Forget a claim as far as it is of no use any more, and let the disk know of a doubt that it lacks.

        What was made keeps its name without a claim on the disk.
        """
        if self._claims.get(claim.key) is not claim:
            return
        is_lacking = claim.in_doubt and not claim.is_kept
        if is_lacking or (claim.is_settled and claim.is_tried):
            claim.is_tried, claim.is_kept = is_lacking, False
            self._untold.add(claim.key)
            self._start_writer()
        if claim.is_settled and not claim.made:
            del self._claims[claim.key]

    # ---- things in memory: what was made, and nobody has taken yet ---------------------------------------------------

    def hold(self, driver: str, node: str, name: str, things: Iterable[Thing]) -> Held:
        """These were made at a node under a name. `note` or `let_go` what is held then."""
        held: dict[_Place, _Holding | None] = {}
        for place in (_Place(driver, thing, node) for thing in things):
            former = self._entry(place)
            held[place] = None
            if former is None or not former.is_made:
                holding = held[place] = _Holding(_Entry(name), former)
                self._set(place, holding.entry)
        return held

    def note(self, held: Held) -> None:
        """Nobody took it: it stays known, unless something happened to it meanwhile. No disk is waited for."""
        for place, _ in self._still(held):
            self._noted.add(place)
            self._start_writer()

    def let_go(self, held: Held) -> None:
        """Somebody took it, and knows where it is: here stands what stood here before."""
        for place, holding in self._still(held):
            self._set(place, holding.former)

    def _still(self, held: Held) -> Iterator[tuple[_Place, _Holding]]:
        for place, holding in held.items():
            if holding is not None and self._entry(place) is holding.entry:
                yield place, holding

    # ---- things: each returns when the disk has it, or raises PlacementNotKept ---------------------------------------

    async def made(self, driver: str, node: str, name: str, things: Iterable[Thing]) -> None:
        """These were made at a node under a name. Where that cannot be written, nothing is known of them."""
        await self._change({_Place(driver, thing, node): _Entry(name) for thing in things})

    async def ended(self, driver: str, node: str, things: Iterable[Thing], *, by_hand: bool = False) -> None:
        """A node has deleted these. Where that cannot be written, they are there as before.

        Args:
            driver: the driver.
            node: the node.
            things: what it has deleted.
            by_hand: whether an operator named the node: what others have as well, and this node only by a list or not
                even by its own, is theirs alone from now on. If that was a conflict, now it is settled.
        """
        now, new = self.now(), dict[_Place, _Entry | None]()
        for place in (_Place(driver, thing, node) for thing in things):
            old = self._entry(place)
            is_settled = by_hand and self._is_by_lists(place) and self._is_elsewhere(place)
            new[place] = None if is_settled else _Entry(old.name if old is not None else "", now)
        await self._change(new, *self._without_old(now))

    async def listed(self, driver: str, node: str, kind: str, things: Iterable[Thing], *, began: float) -> None:
        """A node has listed all things of a kind that it has.

        Args:
            driver: the driver.
            node: the node.
            kind: their kind.
            things: what it listed.
            began: when it was asked for the list: what was deleted since may stand in it all the same.
        """
        key, told = (driver, node, kind), {_Place(driver, thing, node) for thing in things}
        known = {place: self._entry(place) for place in told | self._inventories.get(key, frozenset())}
        new: dict[_Place, _Entry | None] = {}
        for place, entry in known.items():
            if place not in told:
                if entry is not None and entry.is_hearsay:
                    new[place] = None
            elif entry is None or 0 < entry.gone < began:
                new[place] = _Entry(entry.name if entry is not None else "")
        statements = [_statement(place, entry) for place, entry in new.items()]
        if key not in self._inventories:
            statements.append(("INSERT OR REPLACE INTO inventories VALUES (?, ?, ?)", key))
        await self._write(statements)
        for place, entry in new.items():
            if self._entry(place) is known[place]:  # and nothing happened to it meanwhile
                self._set(place, entry)
        self._inventories[key] = {place for place in told if (entry := self._entry(place)) and entry.is_hearsay}

    async def forget(self, node: str, driver: str = "") -> None:
        """A node is gone for good, or no longer runs a driver: so is what it had."""
        where, values = ("node = ?", (node,)) if not driver else ("node = ? AND driver = ?", (node, driver))
        tables = ("claims", "things", "inventories")
        await self._write([(f"DELETE FROM {table} WHERE {where}", values) for table in tables])  # noqa: S608  # our own words
        for key in [key for key, claim in self._claims.items() if _concerns(node, driver, key[0], claim.node)]:
            del self._claims[key]
        had = [each for each, entries in self._things.items() if node in entries and driver in ("", each[0])]
        for other, thing in had:
            self._set(_Place(other, thing, node), None)
        for inventory in [each for each in self._inventories if _concerns(node, driver, *each[:2])]:
            del self._inventories[inventory]

    async def close(self) -> None:
        """Finish the writes that wait, then close the file."""
        while self._writer is not None:
            await asyncio.wait([self._writer])
        self._is_closed = True
        self._database.close()

    # ---- memory ------------------------------------------------------------------------------------------------------

    def _entry(self, place: _Place) -> _Entry | None:
        return self._things.get((place.driver, place.thing), {}).get(place.node)

    def _is_by_lists(self, place: _Place) -> bool:
        """Whether lists alone tell if a thing is at a place: a node that has listed nothing tells neither."""
        entry = self._entry(place)
        return entry.is_hearsay if entry is not None else self.is_listed(place.driver, place.node, place.thing.kind)

    def _is_elsewhere(self, place: _Place) -> bool:
        entries = self._things.get((place.driver, place.thing), {})
        return any(node != place.node and not entry.gone for node, entry in entries.items())

    def _set(self, place: _Place, entry: _Entry | None) -> None:
        """Set what is known of a place (None: nothing), and who holds the name under which something was made there."""
        entries = self._things.setdefault((place.driver, place.thing), {})
        old = entries.pop(place.node, None)
        self._count(place, (entry is not None) - (old is not None))
        self._gone.pop(place, None)
        if entry is not None:
            entries[place.node] = entry
            if entry.gone:
                self._gone[place] = entry.gone
        elif not entries:
            del self._things[place.driver, place.thing]
        if entry is not None and entry.is_made:
            claim = self._claims.setdefault((place.driver, entry.name), Claim(place.driver, entry.name, place.node))
            if claim.node == place.node:
                claim.made.add(place.thing)
        if old is not None and old.is_made and not (entry is not None and entry.is_made and entry.name == old.name):
            former = self._claims.get((place.driver, old.name))
            if former is not None and former.node == place.node:
                former.made.discard(place.thing)
                self._release(former)

    def _count(self, place: _Place, more: int) -> None:
        counts = self._counts[place.driver]
        counts[place.node] += more
        if not counts[place.node]:
            del counts[place.node]

    async def _change(self, new: Mapping[_Place, _Entry | None], *more: _Statement) -> None:
        """Set what is known of places, at once, in memory; and as the disk has it if the disk does not take it."""
        for place, entry in new.items():
            self._changing.setdefault(place, _Changing(self._entry(place))).writes += 1
            self._set(place, entry)
        try:
            await self._write([*itertools.starmap(_statement, new.items()), *more])
        except PlacementNotKept:
            for place, entry in new.items():
                if self._entry(place) is entry:  # and nothing has happened to it meanwhile
                    self._set(place, self._changing[place].on_disk)
            raise
        else:
            for place, entry in new.items():
                self._changing[place].on_disk = entry
        finally:
            for place in new:
                self._changing[place].writes -= 1
                if not self._changing[place].writes:
                    del self._changing[place]

    def _without_old(self, now: float) -> Iterator[_Statement]:
        """Forget what has been gone for long."""
        while self._gone and self._gone[place := next(iter(self._gone))] < now - _GONE_S:
            self._set(place, None)
            yield _statement(place, None)

    def _nodes(self) -> Iterator[tuple[str, str]]:
        """Driver and node of all that stands here."""
        yield from ((claim.driver, claim.node) for claim in self._claims.values())
        yield from ((driver, node) for (driver, _), entries in self._things.items() for node in entries)
        yield from ((driver, node) for driver, node, _ in self._inventories)

    # ---- the file ----------------------------------------------------------------------------------------------------

    async def _write(self, statements: list[_Statement]) -> None:
        """Raises: PlacementNotKept."""
        if not statements:
            return
        if self._is_closed:
            raise PlacementNotKept(str(self._path), "the hub has stopped")
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((statements, future))
        self._start_writer()
        await asyncio.shield(future)

    def _start_writer(self) -> None:
        if self._writer is None and not self._is_closed:
            self._writer = asyncio.create_task(self._write_waiting(), name="placement-ledger")

    async def _write_waiting(self) -> None:
        works = True
        while self._waiting or ((self._untold or self._noted) and works):
            batch, self._waiting = self._waiting, []
            untold, self._untold = self._untold, set()
            noted, self._noted = self._noted, set()
            statements = [each for some, _ in batch for each in some]
            statements += map(self._name_statement, untold)
            statements += [_statement(place, self._entry(place)) for place in noted]
            try:
                await asyncio.to_thread(self._commit, statements)
            except Exception as error:
                if not isinstance(error, sqlite3.Error):
                    log.exception("writing %s failed", self._path)
                works = False
                self._untold |= untold
                self._noted |= noted
                for _, future in batch:
                    future.set_exception(PlacementNotKept(str(self._path), str(error) or type(error).__name__))
                    future.exception()  # perhaps nobody waits any more, and asyncio would complain
            else:
                works = True
                for _, future in batch:
                    future.set_result(None)
        self._writer = None

    def _name_statement(self, key: tuple[str, str]) -> _Statement:
        """What lets the disk know whether a name is claimed."""
        claim = self._claims.get(key)
        return _claim_statement(claim) if claim is not None and claim.is_tried else (_FREE, key)

    def _commit(self, statements: list[_Statement]) -> None:
        with transaction(self._database):
            for statement, values in statements:
                self._database.execute(statement, values)

    def _read(self, database: sqlite3.Connection) -> None:
        self._claims, self._things, self._gone, self._inventories = {}, {}, OrderedDict(), {}
        self._counts.clear()
        for driver, name, node in database.execute("SELECT driver, name, node FROM claims"):
            self._claims[driver, name] = Claim(driver, name, node, sent=1, doubtful=1, is_tried=True, is_kept=True)
        for driver, node, kind in database.execute("SELECT driver, node, kind FROM inventories"):
            self._inventories[driver, node, kind] = set()
        rows = database.execute("SELECT driver, kind, id, node, name, gone FROM things ORDER BY gone")
        for driver, kind, id_, node, name, gone in rows:
            place, entry = _Place(driver, Thing(kind, id_), node), _Entry(name, gone)
            self._set(place, entry)
            if entry.is_hearsay and (driver, node, kind) in self._inventories:
                self._inventories[driver, node, kind].add(place)


def _claim_statement(claim: Claim) -> _Statement:
    """What lets the disk know it."""
    return "INSERT OR REPLACE INTO claims VALUES (?, ?, ?)", (*claim.key, claim.node)


def _statement(place: _Place, entry: _Entry | None) -> _Statement:
    """What lets the disk know it."""
    key = (place.driver, place.thing.kind, place.thing.id, place.node)
    if entry is None:
        return "DELETE FROM things WHERE driver = ? AND kind = ? AND id = ? AND node = ?", key
    return "INSERT OR REPLACE INTO things VALUES (?, ?, ?, ?, ?, ?)", (*key, entry.name, entry.gone)


def _concerns(node: str, driver: str, its_driver: str, its_node: str) -> bool:
    """Whether something is of a node, and of one driver if one is named."""
    return its_node == node and driver in ("", its_driver)
