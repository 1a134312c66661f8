"""The hub's store: its nodes on disk, so that a restarted hub can answer for nodes that are not back yet.

Rules:

* `hub.db` follows the rules of `common.database`. No call waits for the disk: memory is the truth while the hub runs,
  and a `DatabaseWriter` retries a write that fails until it works.
* It keeps a reserve, so that writes go on when the disk is full (`common.database_reserve`).
* The store keeps its losses on disk (`cloud.losses`): a damaged database, stored reports that are unreadable, writes
  that still failed when the hub ended.
"""

import logging
import os
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from cloud.losses import Losses
from common.database import Schema, lock, open_database
from common.database_reserve import Reserve
from common.database_writer import RETRY_S, DatabaseWriter
from common.errors import SettingsError
from common.reports import DriverReport, decode_reports, encode_reports

log = logging.getLogger("csi_bridge.hub.store")

SCHEMA = Schema(
    "hub",
    (
        (
            """CREATE TABLE IF NOT EXISTS nodes (
                name TEXT PRIMARY KEY, instance TEXT NOT NULL, boot INTEGER NOT NULL, since REAL NOT NULL,
                connected INTEGER NOT NULL, reports BLOB NOT NULL
            ) STRICT, WITHOUT ROWID""",
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


class Store:
    """The database file `hub.db` in the state directory.

    Attributes:
        losses: the losses of the state directory.
    """

    def __init__(self, state_dir: Path, *, retry_s: float = RETRY_S) -> None:
        """Open or create the file. A damaged file is renamed, and is a loss.

        Args:
            state_dir: made if it is missing.
            retry_s: between a write that failed and its retry.

        Raises:
            SettingsError: the directory cannot be used, another hub uses it, or a newer hub wrote the file.
        """
        self._path = state_dir / "hub.db"
        self._rows: list[tuple[str, str, int, float, int, bytes]] = []
        try:
            state_dir.mkdir(parents=True, exist_ok=True)
            self._lock_file = lock(state_dir / "hub.lock")
            try:
                self.losses = Losses(state_dir / "hub.losses")
                reserve = Reserve(self._path)
                database = self._open()
                self.losses.create()
            except BaseException:
                os.close(self._lock_file)
                raise
        except BlockingIOError:
            raise SettingsError("--state-dir", str(state_dir), "another hub is using it") from None
        except (OSError, sqlite3.Error) as error:
            raise SettingsError("--state-dir", str(state_dir), f"cannot be written: {error}") from error
        self._writer = DatabaseWriter(
            self._path, database, at_risk=self.losses.put_at_risk, retry_s=retry_s, reserve=reserve
        )

    @property
    def trouble(self) -> str:
        """Why writing fails, or soon will; empty while it works."""
        shortage = self._writer.shortage
        return self._writer.trouble or (shortage and f"{self._path} goes on in its reserved room: {shortage}")

    def nodes(self) -> list[StoredNode]:
        """All nodes that were on disk. The hub calls this once, when it starts."""
        rows, self._rows = self._rows, []
        found = []
        for name, instance, boot, since, connected, reports in rows:
            try:
                drivers = tuple(decode_reports(reports))
            except ValueError as error:
                log.warning("the stored reports of node %s are unreadable and dropped: %s", name, error)
                self.losses.add(f"the stored reports of edge node {name} were unreadable")
                drivers = ()
                self.save(StoredNode(name, instance, boot, since, bool(connected), drivers))  # the next hub: no loss
            found.append(StoredNode(name, instance, boot, since, bool(connected), drivers))
        return found

    def save(self, node: StoredNode) -> None:
        """Write a node soon, in the writer's thread."""
        row = (node.name, node.instance, node.boot, node.since, int(node.connected), encode_reports(node.reports))
        self._writer.put(node.name, ("INSERT OR REPLACE INTO nodes VALUES (?, ?, ?, ?, ?, ?)", row))

    def forget(self, name: str) -> None:
        """Remove a node soon, in the writer's thread."""
        self._writer.put(name, ("DELETE FROM nodes WHERE name = ?", (name,)))

    async def close(self) -> None:
        """Finish the writes that wait, then close the files."""
        await self._writer.close()
        os.close(self._lock_file)

    def _open(self) -> sqlite3.Connection:
        opened = open_database(self._path, SCHEMA, check=self._read_rows)
        if opened.damaged is not None:
            self.losses.add(f"{self._path} was damaged, and is {opened.damaged} now")
        elif opened.was_new and self.losses.file_found and not self.losses.standing:
            self.losses.add(f"{self._path} was gone or empty")
        return opened.connection

    def _read_rows(self, database: sqlite3.Connection) -> None:
        self._rows = database.execute("SELECT name, instance, boot, since, connected, reports FROM nodes").fetchall()
