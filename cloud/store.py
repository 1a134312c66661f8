"""The hub's store: what it knows of the nodes, on disk, so that a restarted hub can answer for nodes not yet back.

Rules:

* SQLite with the rules of `common.database`: survives a killed process without an fsync on the call path.
* All writes happen in one thread of their own, those that wait together in one transaction. Memory is the truth while
  the hub runs: a write that fails (a full disk) is tried again until it works.
* What is lost all the same is one of the `losses`, which outlive the hub: a damaged database, reports that nobody can
  read, writes that still failed when the hub ended.
"""

import asyncio
import logging
import os
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from cloud.losses import Losses
from common.database import Schema, lock, open_database
from common.errors import SettingsError
from common.reports import DriverReport, decode_reports, encode_reports

log = logging.getLogger("csi_bridge.hub.store")

SCHEMA_VERSION = 1
"""A store of a newer version is left alone and the hub refuses to start (`common.database`)."""

_TABLE = """
CREATE TABLE IF NOT EXISTS nodes (
    name TEXT PRIMARY KEY, instance TEXT NOT NULL, boot INTEGER NOT NULL, since REAL NOT NULL,
    connected INTEGER NOT NULL, reports BLOB NOT NULL
) STRICT, WITHOUT ROWID
"""

_SCHEMA = Schema(SCHEMA_VERSION, (_TABLE,), owner="hub")

_RETRY_S = 5.0
"""Between a write that failed and the next try: a disk is emptied by people."""

_Row = tuple[str, str, int, float, int, bytes]


@dataclass(frozen=True, slots=True)
class StoredNode:
    """A node as the store knows it; `since` is when it came or went last, in seconds since the epoch."""

    name: str
    instance: str
    boot: int
    since: float
    connected: bool
    reports: tuple[DriverReport, ...]


class Store:
    """The database file `hub.db` in the state directory."""

    def __init__(self, state_dir: Path) -> None:
        """Open or create it. A file that is no database is moved aside, and is a loss.

        Raises:
            SettingsError: the directory cannot be used, another hub uses it, or the file is a newer hub's.
        """
        self._path = state_dir / "hub.db"
        self._rows: list[_Row] = []
        try:
            state_dir.mkdir(parents=True, exist_ok=True)
            self._lock_file = lock(state_dir / "hub.lock")
            try:
                self.losses = Losses(state_dir / "hub.losses")
                self._database = self._open()
                self.losses.create()
            except BaseException:
                os.close(self._lock_file)
                raise
        except BlockingIOError:
            raise SettingsError("--state-dir", str(state_dir), "another hub is using it") from None
        except (OSError, sqlite3.Error) as error:
            raise SettingsError("--state-dir", str(state_dir), f"cannot be written: {error}") from error
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="hub-store")
        self._lock = threading.Lock()
        self._waiting: dict[str, _Row | None] = {}
        """What is to be written, by node; None: the node is forgotten."""
        self._writing = False
        self._closing = threading.Event()
        self.trouble = ""
        """Why writing fails; empty while it works."""

    def nodes(self) -> list[StoredNode]:
        """Every node that was on disk. To be asked once, at start."""
        rows, self._rows = self._rows, []
        found = []
        for name, instance, boot, since, connected, reports in rows:
            try:
                drivers = tuple(decode_reports(reports))
            except ValueError as error:
                log.warning("the stored reports of node %s are unreadable and dropped: %s", name, error)
                self.losses.add(f"the stored reports of edge node {name} were unreadable")
                drivers = ()
                self.save(StoredNode(name, instance, boot, since, bool(connected), drivers))  # so that it is told once
            found.append(StoredNode(name, instance, boot, since, bool(connected), drivers))
        return found

    def save(self, node: StoredNode) -> None:
        """Write a node, soon, off the loop."""
        row = (node.name, node.instance, node.boot, node.since, int(node.connected), encode_reports(node.reports))
        self._submit(node.name, row)

    def forget(self, name: str) -> None:
        """Remove a node, soon, off the loop."""
        self._submit(name, None)

    async def close(self) -> None:
        """Finish the writes that wait, then close the files."""
        self._closing.set()
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, self._write_waiting)
        self._thread.shutdown()
        self._database.close()
        os.close(self._lock_file)

    def _submit(self, name: str, row: _Row | None) -> None:
        with self._lock:
            self._waiting[name] = row
            idle, self._writing = not self._writing, True
        if idle:
            self._thread.submit(self._write_waiting)

    def _write_waiting(self) -> None:
        """In the store's thread: write until nothing waits; what fails is tried again until the hub ends."""
        while True:
            with self._lock:
                rows, self._waiting = self._waiting, {}
                self._writing = bool(rows)
            if not rows:
                return
            if self._write(rows):
                continue
            with self._lock:
                self._waiting = rows | self._waiting  # what came since is newer
            if self._closing.wait(_RETRY_S):
                return

    def _write(self, rows: dict[str, _Row | None]) -> bool:
        """Everything that waits, in one transaction. False if it failed."""
        try:
            with self._database:
                for name, row in rows.items():
                    if row is None:
                        self._database.execute("DELETE FROM nodes WHERE name = ?", (name,))
                    else:
                        self._database.execute("INSERT OR REPLACE INTO nodes VALUES (?, ?, ?, ?, ?, ?)", row)
        except Exception as error:
            trouble = str(error) or type(error).__name__
            if trouble != self.trouble:
                bug = None if isinstance(error, sqlite3.Error) else error
                log.error("cannot write %s; it is tried again: %s", self._path, trouble, exc_info=bug)  # noqa: TRY400
            self.trouble = trouble
            self.losses.put_at_risk(f"{self._path} could not be written to the end")
            return False
        if self.trouble:
            log.info("%s is written again, and nothing is missing in it", self._path)
            self.trouble = ""
            self.losses.put_at_risk("")
        return True

    def _open(self) -> sqlite3.Connection:
        opened = open_database(self._path, _SCHEMA, check=self._read_rows)
        if opened.damaged is not None:
            self.losses.add(f"{self._path} was damaged, and is {opened.damaged} now")
        elif opened.was_new and self.losses.file_found and not self.losses.standing:
            self.losses.add(f"{self._path} was gone or empty")
        return opened.connection

    def _read_rows(self, database: sqlite3.Connection) -> None:
        self._rows = database.execute("SELECT name, instance, boot, since, connected, reports FROM nodes").fetchall()
