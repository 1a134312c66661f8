"""The hub's store: what it knows of the nodes, on disk, so that a restarted hub can answer for nodes not yet back.

SQLite in WAL mode, `synchronous=NORMAL`: survives a killed process without an fsync on the call path. All writes
happen in one thread of their own, those that wait together in one transaction. Memory is the truth while the hub runs:
a write that fails (a full disk) is logged and counted, and the hub goes on.
"""

import asyncio
import logging
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from common.errors import SettingsError
from common.reports import DriverReport, decode_reports, encode_reports

log = logging.getLogger("csi_bridge.hub.store")

SCHEMA_VERSION = 1
"""`PRAGMA user_version`: a store of a newer version is left alone and the hub refuses to start."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS nodes (
    name TEXT PRIMARY KEY, instance TEXT NOT NULL, boot INTEGER NOT NULL, since REAL NOT NULL,
    connected INTEGER NOT NULL, reports BLOB NOT NULL
) STRICT, WITHOUT ROWID
"""

_SELECT = "SELECT name, instance, boot, since, connected, reports FROM nodes"

_Row = tuple[str, str, int, float, int, bytes]
Write = Callable[[sqlite3.Connection], object]


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
        """Open or create it. A file that is no database is moved aside: the nodes report again when they connect.

        Raises:
            SettingsError: the directory cannot be used, or the file is a newer hub's.
        """
        self._path = state_dir / "hub.db"
        self._rows: list[_Row] = []
        try:
            state_dir.mkdir(parents=True, exist_ok=True)
            self._database = self._open()
        except (OSError, sqlite3.Error) as error:
            raise SettingsError("--state-dir", str(state_dir), f"cannot be written: {error}") from error
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="hub-store")
        self._lock = threading.Lock()
        self._waiting: list[Write] = []
        self.failures = 0
        """Writes that were lost; the operator's status shows them."""

    def nodes(self) -> list[StoredNode]:
        """Every node that was on disk. To be asked once, at start."""
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
        """Write a node, soon, off the loop."""
        row = (node.name, node.instance, node.boot, node.since, int(node.connected), encode_reports(node.reports))
        self._submit(lambda database: database.execute("INSERT OR REPLACE INTO nodes VALUES (?, ?, ?, ?, ?, ?)", row))

    async def close(self) -> None:
        """Finish the writes that wait, then close the file."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, self._write_waiting)
        self._thread.shutdown()
        self._database.close()

    def _submit(self, write: Write) -> None:
        with self._lock:
            self._waiting.append(write)
            first = len(self._waiting) == 1
        if first:
            self._thread.submit(self._write_waiting)

    def _write_waiting(self) -> None:
        """In the store's thread: everything that waits, in one transaction."""
        with self._lock:
            writes, self._waiting = self._waiting, []
        if not writes:
            return
        try:
            with self._database:
                for write in writes:
                    write(self._database)
        except Exception as error:
            if isinstance(error, sqlite3.Error) and self.failures:
                log.error("cannot write %s: %s", self._path, error)  # noqa: TRY400  # the traceback was logged once
            else:
                log.exception("cannot write %s; the hub goes on without it", self._path)
            self.failures += len(writes)

    def _open(self) -> sqlite3.Connection:
        try:
            return self._connect()
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):  # no permission, no room: moving it aside helps nobody
                raise
            aside = self._path.with_suffix(".corrupt")
            log.error("%s is damaged (%s); it is moved to %s", self._path, error, aside)  # noqa: TRY400  # not a bug
            self._path.replace(aside)
            for suffix in ("-wal", "-shm"):
                Path(f"{self._path}{suffix}").unlink(missing_ok=True)
            return self._connect()

    def _connect(self) -> sqlite3.Connection:
        database = sqlite3.connect(self._path, check_same_thread=False, timeout=5.0)
        try:
            database.execute("PRAGMA journal_mode=WAL")
            database.execute("PRAGMA synchronous=NORMAL")
            self._check_version(database)
            database.execute(_SCHEMA)
            database.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
            database.commit()
            # All pages are read here, where a damaged one can still be helped, and not in nodes().
            self._rows = database.execute(_SELECT).fetchall()
        except BaseException:
            database.close()
            raise
        return database

    def _check_version(self, database: sqlite3.Connection) -> None:
        version = database.execute("PRAGMA user_version").fetchone()[0]
        if version > SCHEMA_VERSION:
            why = f"was written by a newer hub (schema {version}, this one knows {SCHEMA_VERSION})"
            raise SettingsError("--state-dir", str(self._path), why)
