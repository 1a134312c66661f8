"""The state: a SQLite database, and transactions on it. All SQL is here.

Rules:

* What a caller was told is on disk before it is told: WAL with `synchronous=FULL`, one fsync a transaction.
* Several processes share the file; a writer takes SQLite's write lock when it begins, so what it read stays true.
* No transaction is open while data is copied, mounted or formatted: `Phase` says what is under way.
"""

import contextlib
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, Generic, TypeVar, get_type_hints

from tests.kit.testdriver.records import Attachment, Group, Node, Publication, Snapshot, Staging, Volume

LOCK_WAIT_S = 30.0
"""How long a transaction waits for another process' one. They are short; this is for a machine that is busy."""

_CONTENT = """layout TEXT NOT NULL, size_bytes INTEGER NOT NULL, fs_type TEXT NOT NULL, fs_bytes INTEGER NOT NULL,
    node TEXT NOT NULL"""
_MADE = "seq INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL, phase TEXT NOT NULL, owner TEXT NOT NULL"

_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS volumes ({_MADE}, volume_id TEXT UNIQUE NOT NULL, {_CONTENT}, parameters TEXT NOT NULL,
    mutable_parameters TEXT NOT NULL, source_kind TEXT NOT NULL, source_id TEXT NOT NULL, ephemeral INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS volumes_by_name ON volumes (name);
CREATE TABLE IF NOT EXISTS snapshots ({_MADE}, snapshot_id TEXT UNIQUE NOT NULL, {_CONTENT},
    source_volume_id TEXT NOT NULL, group_id TEXT NOT NULL, created_ns INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS snapshots_by_name ON snapshots (name);
CREATE TABLE IF NOT EXISTS groups ({_MADE}, group_id TEXT UNIQUE NOT NULL, sources TEXT NOT NULL,
    created_ns INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS nodes (node_id TEXT PRIMARY KEY, capacity_bytes INTEGER NOT NULL,
    max_volumes INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS attachments (volume_id TEXT NOT NULL, node_id TEXT NOT NULL, mode INTEGER NOT NULL,
    readonly INTEGER NOT NULL, fingerprint TEXT NOT NULL, PRIMARY KEY (volume_id, node_id));
CREATE TABLE IF NOT EXISTS stagings (volume_id TEXT NOT NULL, node_id TEXT NOT NULL, path TEXT NOT NULL,
    mode INTEGER NOT NULL, fingerprint TEXT NOT NULL, PRIMARY KEY (volume_id, node_id));
CREATE TABLE IF NOT EXISTS publications (node_id TEXT NOT NULL, target TEXT NOT NULL, volume_id TEXT NOT NULL,
    mode INTEGER NOT NULL, readonly INTEGER NOT NULL, arguments TEXT NOT NULL, PRIMARY KEY (node_id, target));
"""

Record = TypeVar("Record")


class Table(Generic[Record]):
    """One table, as records. Conditions are column=value, ANDed. Column names are our own code's, never a request's."""

    def __init__(self, connection: sqlite3.Connection, name: str, record: type[Record]) -> None:
        self._connection = connection
        self._name = name
        self._record = record
        self._hints = get_type_hints(record)
        self._columns = [field.name for field in fields(record)]  # type: ignore[arg-type]  # every record is a dataclass
        self._select = f"SELECT {','.join(self._columns)} FROM {name} "  # our own names

    def put(self, record: Record) -> None:
        """Insert the record, or replace the one with the same key. A record without `seq` gets the next number."""
        values = {name: getattr(record, name) for name in self._columns}
        if values.get("seq") == 0:
            del values["seq"]
        marks = ",".join("?" * len(values))
        self._run(f"REPLACE INTO {self._name} ({','.join(values)}) VALUES ({marks})", values)  # our own names

    def get(self, **where: object) -> Record | None:
        """The only, or the first, record."""
        row = self._run(f"{self._select} {_condition(where)} LIMIT 1", where).fetchone()
        return None if row is None else self._load(row)

    def all(self, **where: object) -> list[Record]:
        """The records, in no order."""
        return [self._load(row) for row in self._run(self._select + _condition(where), where)]

    def page(self, after: int, length: int, /, **where: object) -> list[Record]:
        """At most `length` records (-1: all) with a higher `seq` than `after`, in its order."""
        condition = _condition(where, "seq > ?")
        rows = self._run(f"{self._select} {condition} ORDER BY seq LIMIT {length:d}", {**where, "seq": after})
        return [self._load(row) for row in rows]

    def total(self, column: str, **where: object) -> int:
        """The sum of a column; 0 without records."""
        sql = f"SELECT COALESCE(SUM({column}), 0) FROM {self._name} {_condition(where)}"  # our own names
        return int(self._run(sql, where).fetchone()[0])

    def delete(self, **where: object) -> None:
        """Remove the records; no error if there is none."""
        self._run(f"DELETE FROM {self._name} {_condition(where)}", where)  # our own names

    def _run(self, sql: str, values: dict[str, Any]) -> sqlite3.Cursor:
        return self._connection.execute(sql, list(values.values()))

    def _load(self, row: tuple[Any, ...]) -> Record:
        return self._record(**{name: self._value(name, value) for name, value in zip(self._columns, row, strict=True)})

    def _value(self, name: str, value: Any) -> Any:
        hint = self._hints[name]
        return hint(value) if hint is bool or issubclass(hint, StrEnum) else value


def _condition(where: Iterable[str], *more: str) -> str:
    terms = " AND ".join([*(f"{name} = ?" for name in where), *more])
    return f"WHERE {terms}" if terms else ""


@dataclass(frozen=True, slots=True)
class Tables:
    """Every table, within one transaction."""

    volumes: Table[Volume]
    snapshots: Table[Snapshot]
    groups: Table[Group]
    nodes: Table[Node]
    attachments: Table[Attachment]
    stagings: Table[Staging]
    publications: Table[Publication]


class State:
    """The database of one state directory. Any thread may use it; transactions of one process run one at a time."""

    def __init__(self, file: Path) -> None:
        self._lock = threading.Lock()
        # Transactions are begun by hand, and the lock above serialises the threads.
        self._connection = sqlite3.connect(file, timeout=LOCK_WAIT_S, isolation_level=None, check_same_thread=False)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.executescript(_SCHEMA)
        self._tables = Tables(
            volumes=Table(self._connection, "volumes", Volume),
            snapshots=Table(self._connection, "snapshots", Snapshot),
            groups=Table(self._connection, "groups", Group),
            nodes=Table(self._connection, "nodes", Node),
            attachments=Table(self._connection, "attachments", Attachment),
            stagings=Table(self._connection, "stagings", Staging),
            publications=Table(self._connection, "publications", Publication),
        )

    @contextlib.contextmanager
    def writing(self) -> Iterator[Tables]:
        """A transaction that may write: all of it is on disk at the end, or nothing if it raises."""
        with self._transaction("BEGIN IMMEDIATE"):
            yield self._tables

    @contextlib.contextmanager
    def reading(self) -> Iterator[Tables]:
        """A transaction that sees one moment and writes nothing."""
        with self._transaction("BEGIN"):
            yield self._tables

    @contextlib.contextmanager
    def _transaction(self, begin: str) -> Iterator[None]:
        with self._lock:
            self._connection.execute(begin)
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Close the file. Nothing may use the state afterwards."""
        with self._lock:
            self._connection.close()
