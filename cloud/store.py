"""The hub's store: its nodes on disk, so that a restarted hub can answer for nodes that are not back yet.

Rules:

* `hub.db` follows the rules of `common.database`. No call waits for the disk: memory is the truth while the hub runs,
  and a `DatabaseWriter` retries a write that fails until it works.
"""

import logging
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from common.database import Schema, open_database
from common.database_writer import RETRY_S, DatabaseWriter, Statement
from common.errors import SettingsError
from common.reports import DriverReport, decode_reports, encode_reports
from common.state_directory import make_state_directory

log = logging.getLogger("csi_bridge.hub.store")

SCHEMA = Schema(
    "hub",
    (
        (
            """CREATE TABLE nodes (
                name TEXT PRIMARY KEY, instance TEXT NOT NULL, boot INTEGER NOT NULL, since REAL NOT NULL,
                connected INTEGER NOT NULL, reports BLOB NOT NULL
            ) STRICT, WITHOUT ROWID""",
            """CREATE TABLE segments (
                key TEXT NOT NULL, value TEXT NOT NULL, driver TEXT NOT NULL, node TEXT NOT NULL,
                PRIMARY KEY (key, value, driver)
            ) STRICT, WITHOUT ROWID""",
            "CREATE TABLE offers (driver TEXT PRIMARY KEY, report BLOB NOT NULL) STRICT, WITHOUT ROWID",
        ),
    ),
)
"""Of `hub.db`."""


@dataclass(frozen=True, slots=True)
class StoredNode:
    """A node as the store knows it; `since` is when it last connected or left, in seconds since the epoch."""

    name: str
    instance: str
    boot: int
    since: float
    connected: bool
    reports: tuple[DriverReport, ...]


class StoredSegment(NamedTuple):
    """A unique topology segment, and the node that has it for a driver."""

    key: str
    value: str
    driver: str
    node: str


class Store:
    """The database file `hub.db` in the state directory.

    Attributes:
        state_dir: the state directory.
    """

    def __init__(self, state_dir: Path, *, retry_s: float = RETRY_S) -> None:
        """Open or create the file. A damaged file is renamed.

        Raises:
            SettingsError: the directory cannot be used, or a newer hub wrote the file.
        """
        self.state_dir = state_dir
        self._path = state_dir / "hub.db"
        self._rows: list[tuple[str, str, int, float, int, bytes]] = []
        self._segments: list[StoredSegment] = []
        self._offers: list[tuple[str, bytes]] = []
        try:
            make_state_directory(state_dir)
            database = open_database(self._path, SCHEMA, check=self._read_rows).connection
        except (OSError, sqlite3.Error) as error:
            raise SettingsError("--state-dir", str(state_dir), f"cannot be written: {error}") from error
        self._writer = DatabaseWriter(self._path, database, retry_s=retry_s)

    @property
    def trouble(self) -> str:
        """Why writing fails; empty while it works."""
        return self._writer.trouble

    def nodes(self) -> list[StoredNode]:
        """All nodes that were on disk. The hub calls this once, when it starts."""
        rows, self._rows = self._rows, []
        found = []
        for name, instance, boot, since, connected, reports in rows:
            try:
                drivers = tuple(decode_reports(reports))
            except ValueError as error:
                log.warning("the stored reports of node %s are unreadable and dropped: %s", name, error)
                drivers = ()
            found.append(StoredNode(name, instance, boot, since, bool(connected), drivers))
        return found

    def save(self, node: StoredNode) -> None:
        """Write a node soon, in the writer's thread."""
        row = (node.name, node.instance, node.boot, node.since, int(node.connected), encode_reports(node.reports))
        self._writer.put(node.name, ("INSERT OR REPLACE INTO nodes VALUES (?, ?, ?, ?, ?, ?)", row))

    def forget(self, name: str) -> None:
        """Remove a node soon, in the writer's thread."""
        self._writer.put(name, ("DELETE FROM nodes WHERE name = ?", (name,)))

    def segments(self) -> list[StoredSegment]:
        """All unique segments that were on disk. The hub calls this once, when it starts."""
        rows, self._segments = self._segments, []
        return rows

    def save_segment(self, segment: StoredSegment) -> None:
        """Write a unique segment soon, in the writer's thread."""
        self._writer.put(segment[:3], ("INSERT OR REPLACE INTO segments VALUES (?, ?, ?, ?)", tuple(segment)))

    def drop_segment(self, segment: StoredSegment) -> None:
        """Remove a unique segment soon, in the writer's thread."""
        sql = "DELETE FROM segments WHERE key = ? AND value = ? AND driver = ?"
        self._writer.put(segment[:3], (sql, segment[:3]))

    def offers(self) -> dict[str, DriverReport]:
        """The offer of each driver that was on disk (`cloud.placement.offers`). The hub calls this once."""
        rows, self._offers = self._offers, []
        found = {}
        for driver, report in rows:
            try:
                (found[driver],) = decode_reports(report)
            except ValueError as error:
                log.warning("the stored offer of driver %s is unreadable and dropped: %s", driver, error)
        return found

    def save_offer(self, driver: str, offer: DriverReport | None) -> None:
        """Write or remove the offer of a driver soon, in the writer's thread."""
        statement: Statement = "DELETE FROM offers WHERE driver = ?", (driver,)
        if offer is not None:
            statement = "INSERT OR REPLACE INTO offers VALUES (?, ?)", (driver, encode_reports([offer]))
        self._writer.put(("offer", driver), statement)

    async def close(self) -> None:
        """Finish the writes that wait, then close the files."""
        await self._writer.close()

    def _read_rows(self, database: sqlite3.Connection) -> None:
        self._rows = database.execute("SELECT name, instance, boot, since, connected, reports FROM nodes").fetchall()
        read = "SELECT key, value, driver, node FROM segments ORDER BY key, value, driver"
        self._segments = [StoredSegment(*row) for row in database.execute(read)]
        self._offers = database.execute("SELECT driver, report FROM offers").fetchall()
