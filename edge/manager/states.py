"""The states of this node's volumes, in a database that is written before a driver is called.

Rules (docs/csi-contract.md#the-state-is-on-disk-before-the-call):

* The file is `volumes.db` in the state directory, by the rules of `common.database`. With `durable` each write waits
  for the disk.
* No row means that no driver was called for the volume. `UNCERTAIN` is written before the call and stays until the
  driver has answered. If the write fails, the caller gets an error and does not call the driver.
* A row contains no secret, mount option or publish context. Of the call's arguments it has a hash.
* A damaged file is renamed; the directories below the root directory then tell which volumes may be mounted.
"""

import asyncio
import logging
import os
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from common.database import Schema, lock, open_database
from common.errors import SettingsError
from edge.volume_errors import NotReady
from edge.volumes import VolumeKey

log = logging.getLogger("csi_bridge.edge.states")

SCHEMA_VERSION = 1
"""An older agent leaves a file of a newer version alone and refuses to start (`common.database`)."""

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""If a row has another boot id, the machine has rebooted since, and the row's mount is gone."""

_LONGEST_ERROR = 1_024
"""Stored characters of an error: a driver may answer with megabytes."""


class State(StrEnum):
    """The state of a mount that has a row. A mount without a row was never begun, or is undone."""

    UNCERTAIN = "uncertain"
    DONE = "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A volume that is staged on this node, or may be.

    Attributes:
        name: the PV's name.
        reconstructed: known from the disk alone, so a driver's refusal does not prove that nothing is mounted.
        attached: it needs its attachment, and is listed in the node's `volumesInUse`.
        attachment_uid: the attachment under which it was staged; empty if it needed none or that is unknown.
        mount_point: its staging directory was a mount point when the staging was done.
        arguments: a hash of the driver's arguments, or a note that the driver was not called; empty if unknown.
        size_bytes: the size to which this node has expanded it; 0 if unknown.
        boot: the boot id under which the staging was done.
        since: the start of this state, in seconds since the epoch.
        error: the reason why the last step failed; empty if it succeeded.
    """

    driver: str
    handle: str
    name: str = ""
    block: bool = False
    state: State = State.UNCERTAIN
    reconstructed: bool = False
    attached: bool = False
    attachment_uid: str = ""
    mount_point: bool = False
    arguments: str = ""
    size_bytes: int = 0
    boot: str = ""
    since: float = 0.0
    error: str = ""

    @property
    def key(self) -> VolumeKey:
        """The volume's identity."""
        return VolumeKey(self.driver, self.handle)


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """A volume that is published to a pod, or may be.

    Attributes:
        name: the PV's name, or the inline volume's.
        volume_name: the pod's name for it. Empty if the volume is known from the disk alone; then `pod_namespace` and
            `pod_name` are empty too.
        mount_point: its target was a mount point when the publication was done.
    """

    driver: str
    handle: str
    name: str
    pod_uid: str
    pod_namespace: str = ""
    pod_name: str = ""
    volume_name: str = ""
    block: bool = False
    ephemeral: bool = False
    state: State = State.UNCERTAIN
    reconstructed: bool = False
    mount_point: bool = False
    arguments: str = ""
    boot: str = ""
    since: float = 0.0
    error: str = ""

    @property
    def key(self) -> VolumeKey:
        """The volume's identity."""
        return VolumeKey(self.driver, self.handle)


Row = Device | Publication

_KEYS: dict[type[Row], tuple[str, ...]] = {
    Device: ("driver", "handle"),
    Publication: ("driver", "handle", "name", "pod_uid"),
}
_TABLES: dict[type[Row], str] = {Device: "devices", Publication: "publications"}
_TYPES = {str: "TEXT", State: "TEXT", bool: "INTEGER", int: "INTEGER", float: "REAL"}


def _schema(kind: type[Row], table: str) -> str:
    columns = ", ".join(f"{column.name} {_TYPES[column.type]} NOT NULL" for column in fields(kind))  # type: ignore[index]  # no string annotations here
    return (
        f"CREATE TABLE IF NOT EXISTS {table} ({columns}, PRIMARY KEY ({', '.join(_KEYS[kind])})) STRICT, WITHOUT ROWID"
    )


_SCHEMA = Schema(SCHEMA_VERSION, tuple(_schema(kind, table) for kind, table in _TABLES.items()), owner="edge agent")


class VolumeStates:
    """The rows in the database file `volumes.db` in the state directory."""

    def __init__(self, state_dir: Path, *, durable: bool = False) -> None:
        """Open or create the file. A file that is no database is renamed.

        Args:
            state_dir: created if it is missing.
            durable: every write survives a power cut, and waits for the disk.

        Raises:
            SettingsError: another agent uses the file, or a newer agent has written it.
            OSError: it cannot be written, perhaps for a while: the disk is full or read-only.
        """
        self._path = state_dir / "volumes.db"
        self._found: list[Row] = []
        try:
            state_dir.mkdir(parents=True, exist_ok=True)
            self._lock_file = lock(state_dir / "volumes.lock")
            try:
                opened = open_database(self._path, _SCHEMA, check=self._read, full=durable)
            except BaseException:
                os.close(self._lock_file)
                raise
        except BlockingIOError:
            raise SettingsError("--state-dir", str(state_dir), "another edge agent is using it") from None
        except sqlite3.Error as error:
            raise OSError(f"{self._path} cannot be written: {error}") from error
        self._database = opened.connection
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="edge-volume-states")
        self._lock = threading.Lock()
        self._waiting: list[_Write] = []
        self._writing = False
        self.trouble = ""
        """Why the last write failed; empty if it succeeded."""

    def rows(self) -> list[Row]:
        """Return every row that was on disk at start. Call it once."""
        rows, self._found = self._found, []
        return rows

    async def put(self, row: Row) -> None:
        """Write a row in place of its predecessor; it is on disk when this returns. Cancelling does not undo it.

        Raises:
            NotReady: it could not be written.
        """
        row = replace(row, error=row.error[:_LONGEST_ERROR])
        columns = ", ".join("?" for _ in fields(row))
        await self._submit(f"INSERT OR REPLACE INTO {_TABLES[type(row)]} VALUES ({columns})", astuple(row))  # noqa: S608  # our own names

    async def drop(self, row: Row) -> None:
        """Remove a row whose mount is undone. Cancelling does not undo the removal.

        Raises:
            NotReady: it could not be written.
        """
        keys = _KEYS[type(row)]
        where = " AND ".join(f"{key} = ?" for key in keys)
        statement = f"DELETE FROM {_TABLES[type(row)]} WHERE {where}"  # noqa: S608  # our own names
        await self._submit(statement, tuple(getattr(row, key) for key in keys))

    async def close(self) -> None:
        """Finish the queued writes, then close the files."""
        await asyncio.to_thread(self._thread.shutdown)
        self._database.close()
        os.close(self._lock_file)

    # ---- writing -----------------------------------------------------------------------------------------------------

    async def _submit(self, statement: str, values: tuple[Any, ...]) -> None:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def tell(error: Exception | None) -> None:
            loop.call_soon_threadsafe(_settle, done, error)

        with self._lock:
            self._waiting.append(_Write(statement, values, tell))
            idle, self._writing = not self._writing, True
        if idle:
            self._thread.submit(self._write_waiting)
        await done

    def _write_waiting(self) -> None:
        """In the writer thread: write all queued rows, each batch in one transaction, until the queue is empty."""
        while True:
            with self._lock:
                writes, self._waiting = self._waiting, []
                self._writing = bool(writes)
            if not writes:
                return
            self._write(writes)

    def _write(self, writes: "list[_Write]") -> None:
        failed = None
        try:
            with self._database:
                for write in writes:
                    self._database.execute(write.statement, write.values)
        except Exception as error:
            if len(writes) > 1 and not isinstance(error, sqlite3.Error):
                for write in writes:  # the fault is in one row; the others must not fail with it
                    self._write([write])
                return
            trouble = str(error) or type(error).__name__
            if trouble != self.trouble:
                text = "cannot write %s; no driver is asked for anything until it works: %s"
                bug = None if isinstance(error, sqlite3.Error) else error
                log.error(text, self._path, trouble, exc_info=bug)  # noqa: TRY400  # most are no bugs
            self.trouble = trouble
            failed = NotReady(f"the volume's state cannot be written to {self._path}: {trouble}")
        else:
            if self.trouble:
                log.info("%s is written again", self._path)
            self.trouble = ""
        for write in writes:
            write.tell(failed)

    # ---- opening -----------------------------------------------------------------------------------------------------

    def _read(self, database: sqlite3.Connection) -> None:
        self._found = [row for kind, table in _TABLES.items() for row in _read(database, kind, table)]


@dataclass(slots=True)
class _Write:
    statement: str
    values: tuple[Any, ...]
    tell: Callable[[Exception | None], None]


def read_boot() -> str:
    """Return the id of the machine's present boot."""
    return BOOT_ID.read_text().strip()


def _read(database: sqlite3.Connection, kind: type[Row], table: str) -> list[Row]:
    names = ", ".join(column.name for column in fields(kind))
    found = database.execute(f"SELECT {names} FROM {table}").fetchall()  # noqa: S608  # our own names
    return [_row(kind, values) for values in found]


def _row(kind: type[Row], values: tuple[Any, ...]) -> Row:
    given: dict[str, Any] = {
        column.name: bool(value) if column.type is bool else value
        for column, value in zip(fields(kind), values, strict=True)
    }
    given["state"] = State.DONE if given["state"] == State.DONE else State.UNCERTAIN
    return kind(**given)


def _settle(done: asyncio.Future[None], error: Exception | None) -> None:
    if done.done():  # the caller was cancelled
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)
