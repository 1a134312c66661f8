"""The rows of the SQLite claim store: its schema, and reading and writing rows within a transaction."""

import sqlite3
from collections.abc import Iterable, Mapping
from typing import Final

from cloud.election import Elected
from cloud.placement.claim_store import (
    FORGOTTEN,
    LISTED_BYTES,
    MOST_GONE,
    NO_NAME,
    Hold,
    Holding,
    IdEntry,
    NameEntry,
    Standing,
)
from cloud.placement.memory_rows import MemoryRows
from cloud.placement.requests import Thing, about
from common.database import Schema

SCHEMA: Final = Schema(
    owner="hub",
    migrations=(
        (
            """CREATE TABLE holds (
                driver TEXT NOT NULL, name TEXT NOT NULL, owner TEXT NOT NULL, node TEXT NOT NULL,
                epoch INTEGER NOT NULL, since REAL NOT NULL, lease_s INTEGER NOT NULL, kind TEXT NOT NULL,
                id TEXT NOT NULL, machine TEXT NOT NULL, PRIMARY KEY (driver, name, owner)
            ) STRICT, WITHOUT ROWID""",
            "CREATE INDEX holds_by_thing ON holds (driver, kind, id) WHERE kind <> ''",
            """CREATE TABLE things (
                driver TEXT NOT NULL, kind TEXT NOT NULL, id TEXT NOT NULL, node TEXT NOT NULL, name TEXT NOT NULL,
                gone REAL NOT NULL, owner TEXT NOT NULL, epoch INTEGER NOT NULL, since REAL NOT NULL,
                PRIMARY KEY (driver, kind, id, node)
            ) STRICT, WITHOUT ROWID""",
            "CREATE INDEX things_by_name ON things (driver, name, node) WHERE gone = 0 AND name <> ''",
            "CREATE INDEX things_by_node ON things (node, driver, kind)",
            "CREATE INDEX things_by_gone ON things (gone) WHERE gone > 0",
            """CREATE TABLE inventories (
                driver TEXT NOT NULL, node TEXT NOT NULL, kind TEXT NOT NULL, PRIMARY KEY (driver, node, kind)
            ) STRICT, WITHOUT ROWID""",
            """CREATE TABLE elections (
                driver TEXT NOT NULL PRIMARY KEY, node TEXT NOT NULL, epoch INTEGER NOT NULL, since REAL NOT NULL,
                why TEXT NOT NULL
            ) STRICT, WITHOUT ROWID""",
        ),
    ),
)

_THING: Final = "driver = ? AND kind = ? AND id = ?"
_HOLD: Final = "node, epoch, since, lease_s, machine"


def row_of(driver: str, name: str, owner: str, hold: Hold) -> tuple[object, ...]:
    """The row of a hold."""
    kind, id_ = about(name) or ("", "")
    return driver, name, owner, hold.node, hold.epoch, hold.since, hold.lease_s, kind, id_, hold.machine


class SqliteRows:
    """The rows of an open transaction (`claim_rules.Rows`)."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def name(self, driver: str, name: str) -> NameEntry:
        """A name's entry."""
        held = f"SELECT owner, {_HOLD} FROM holds WHERE driver = ? AND name = ?"  # noqa: S608  # our own words
        holds = {owner: Hold(*rest) for owner, *rest in self._database.execute(held, (driver, name))}
        sql = "SELECT DISTINCT node FROM things WHERE driver = ? AND name = ? AND name <> '' AND gone = 0"
        made = frozenset(node for (node,) in self._database.execute(sql, (driver, name)))
        return NameEntry(holds, made, self._beside(driver, name))

    def _beside(self, driver: str, name: str) -> frozenset[tuple[str, Hold]]:
        thing = about(name)
        if thing is None:
            return frozenset()
        sql = f"SELECT name, {_HOLD} FROM holds WHERE {_THING} AND kind <> '' AND name <> ?"  # noqa: S608  # as above
        return frozenset((other, Hold(*rest)) for other, *rest in self._database.execute(sql, (driver, *thing, name)))

    def id(self, driver: str, thing: Thing) -> IdEntry:
        """An id's entry."""
        sql = f"SELECT node, name, gone, owner, epoch, since FROM things WHERE {_THING}"  # noqa: S608  # our own words
        rows = self._database.execute(sql, (driver, thing.kind, thing.id))
        return IdEntry({node: Holding(*rest) for node, *rest in rows})

    def at(self, driver: str, node: str, kind: str) -> Mapping[Thing, Holding]:
        """All holdings of one node, of one kind."""
        sql = "SELECT id, name, gone, owner, epoch, since FROM things WHERE node = ? AND driver = ? AND kind = ?"
        return {Thing(kind, id_): Holding(*rest) for id_, *rest in self._database.execute(sql, (node, driver, kind))}

    def listed_bytes(self, node: str) -> int:
        """The size of all ids that only the lists of a node tell."""
        sql = "SELECT coalesce(sum(length(id) + ?), 0) FROM things WHERE node = ? AND name = '' AND gone = 0"
        return int(self._database.execute(sql, (LISTED_BYTES, node)).fetchone()[0])

    def standing(self, driver: str, name: str, things: Iterable[Thing]) -> Standing:
        """A name and ids, the nodes with things of the driver, and their lists."""
        nodes = self._database.execute("SELECT DISTINCT node FROM things WHERE driver = ?", (driver,))
        lists = self._database.execute("SELECT node, kind FROM inventories WHERE driver = ?", (driver,))
        held = self._database.execute("SELECT node, count(*) FROM holds WHERE driver = ? GROUP BY node", (driver,))
        gone = "SELECT gone FROM things WHERE gone > 0 AND driver = ? ORDER BY gone DESC LIMIT 1 OFFSET ?"
        gone_since = self._database.execute(gone, (driver, MOST_GONE - 1)).fetchone()
        return Standing(
            self.name(driver, name) if name else NO_NAME,
            {thing: self.id(driver, thing) for thing in things},
            {node for (node,) in nodes},
            {(node, kind) for node, kind in lists},
            dict(held),
            gone_since[0] if gone_since is not None else 0.0,
        )

    def set_hold(self, driver: str, name: str, owner: str, hold: Hold | None) -> None:
        """Set or remove an owner's hold on a name."""
        if hold is not None:
            self._database.execute(
                "INSERT OR REPLACE INTO holds VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row_of(driver, name, owner, hold)
            )
        else:
            sql = "DELETE FROM holds WHERE driver = ? AND name = ? AND owner = ?"
            self._database.execute(sql, (driver, name, owner))

    def set_holding(self, driver: str, thing: Thing, node: str, holding: Holding | None) -> None:
        """Set or remove a node's holding of an id."""
        key = (driver, thing.kind, thing.id, node)
        if holding is not None:
            values = (*key, holding.name, holding.gone, holding.owner, holding.epoch, holding.since)
            self._database.execute("INSERT OR REPLACE INTO things VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", values)
        else:
            self._database.execute(f"DELETE FROM things WHERE {_THING} AND node = ?", key)  # noqa: S608  # our own words

    def set_listed(self, driver: str, node: str, kind: str) -> None:
        """Note that a node has listed all of a kind."""
        forgotten = "DELETE FROM inventories WHERE driver = ? AND node = ? AND kind = ?"
        self._database.execute(forgotten, (driver, node, FORGOTTEN))
        self._database.execute("INSERT OR REPLACE INTO inventories VALUES (?, ?, ?)", (driver, node, kind))

    def elected(self, driver: str) -> Elected | None:
        """The driver's last election; None: there was none."""
        sql = "SELECT node, epoch, since, why FROM elections WHERE driver = ?"
        row = self._database.execute(sql, (driver,)).fetchone()
        return Elected(*row) if row is not None else None

    def set_elected(self, driver: str, elected: Elected) -> None:
        """Set the driver's last election."""
        values = (driver, elected.node, elected.epoch, elected.since, elected.why)
        self._database.execute("INSERT OR REPLACE INTO elections VALUES (?, ?, ?, ?, ?)", values)

    def left(self, node: str, driver: str) -> set[str]:
        """See `claim_rules.Rows`."""
        sql = (
            "SELECT driver FROM things WHERE node = ? AND gone = 0 AND ? IN ('', driver) "
            "UNION SELECT driver FROM inventories WHERE node = ? AND kind = ?"
        )
        return {its for (its,) in self._database.execute(sql, (node, driver, node, FORGOTTEN))}

    def forget(self, node: str, driver: str, left: Iterable[str]) -> None:
        """See `claim_rules.Rows`. Elections stay: their numbers only grow."""
        where, values = ("node = ? AND driver = ?", (node, driver)) if driver else ("node = ?", (node,))
        for table in ("holds", "things", "inventories"):
            self._database.execute(f"DELETE FROM {table} WHERE {where}", values)  # noqa: S608  # our own words
        for its in left:
            self.set_listed(its, node, FORGOTTEN)

    def purge(self, before: float) -> None:
        """Remove the ids that were deleted before a moment."""
        self._database.execute("DELETE FROM things WHERE gone > 0 AND gone < ?", (before,))

    def in_memory(self) -> MemoryRows:
        """All rows in memory."""
        rows, read = MemoryRows(), self._database.execute
        held = f"SELECT driver, name, owner, {_HOLD} FROM holds"  # noqa: S608  # our own words
        for driver, name, owner, *rest in read(held):
            rows.set_hold(driver, name, owner, Hold(*rest))
        for driver, *rest in read("SELECT driver, node, epoch, since, why FROM elections"):
            rows.set_elected(driver, Elected(*rest))
        for driver, node, kind in read("SELECT driver, node, kind FROM inventories"):
            rows.set_listed(driver, node, kind)
        sql = "SELECT driver, kind, id, node, name, gone, owner, epoch, since FROM things ORDER BY gone"
        for driver, kind, id_, node, *rest in read(sql):
            rows.set_holding(driver, Thing(kind, id_), node, Holding(*rest))
        return rows
