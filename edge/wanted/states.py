"""The states of this node's volumes, in a database that is written before a driver is called.

Rules (docs/csi-contract.md#the-state-is-on-disk-before-the-call):

* The file is `volumes.db` in the state directory, by the rules of `common.store.database`. With `durable` each write
  waits for the disk.
* No row means that no driver was called for the volume. `UNCERTAIN` is written before the call and stays until the
  driver has answered. If the write fails, the caller gets an error and does not call the driver.
* A row contains no secret, mount option or publish context. Of the call's arguments it has a hash.
* A damaged file is renamed; the directories below the root directory then tell which volumes may be mounted.
"""

import os
import sqlite3
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from common.errors import SettingsError
from common.store.database import Schema, lock, open_database
from common.store.database_writer import DatabaseWriter, WriteFailed
from edge.disk.found_volumes import Published, Staged
from edge.volume_errors import NotReady

# If a row has another boot id, the machine has rebooted since, and the row's mount is gone.
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

_LONGEST_ERROR = 1_024  # stored characters of an error: a driver may answer with megabytes


class State(StrEnum):
    """The state of a mount that has a row. A mount without a row was never begun, or is undone."""

    UNCERTAIN = "uncertain"
    DONE = "done"


class Handover(StrEnum):
    """How far a deferred volume has come on its way to the runtime. Each is written before its work begins."""

    NONE = ""  # the runtime does not know the device
    # The device was blank, and a file system with the row's UUID is being made. What is found of it is no data.
    FORMATTING = "formatting"
    HANDED = "handed over"  # a guest may use the device, until the end of this boot or the unpublication


# The `runtime` of a volume that its driver has deferred: the agent does not know to which runtime.
BY_DRIVER = "by its driver"


@dataclass(frozen=True, slots=True, kw_only=True)
class Device(Staged):
    """A volume that is staged on this node, or may be."""

    state: State = State.UNCERTAIN
    # Known from the disk alone, so a driver's refusal does not prove that nothing is mounted.
    reconstructed: bool = False
    attached: bool = False  # it is listed in the node's `volumesInUse`
    attachment_uid: str = ""  # the attachment under which it was staged; empty if it needed none or that is unknown
    mount_point: bool = False  # its staging directory was a mount point when the staging was done
    arguments: str = ""  # a hash of the driver's arguments, or a note that the driver was not called; empty if unknown
    size_bytes: int = 0  # the size to which this node has expanded it; 0 if unknown
    boot: str = ""
    since: float = 0.0  # the start of this state, in seconds since the epoch
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication(Published):
    """A volume that is published to a pod, or may be."""

    pod_namespace: str = ""
    pod_name: str = ""
    # The pod's name for it. Empty if the volume is known from the disk alone; then `pod_namespace` and `pod_name` are
    # empty too.
    volume_name: str = ""
    state: State = State.UNCERTAIN
    reconstructed: bool = False
    mount_point: bool = False
    arguments: str = ""
    boot: str = ""
    since: float = 0.0
    error: str = ""
    # The runtime that the volume is deferred to (`Deferral.runtime`), or `BY_DRIVER`; empty if the driver mounts it.
    runtime: str = ""
    fs_type: str = ""  # of the deferred volume's file system, as `fs_uuid`; empty until it was seen or chosen
    fs_uuid: str = ""
    handover: Handover = Handover.NONE

    @property
    def agent_defers(self) -> bool:
        """Whether the agent defers it, and not its driver. For the driver it is then a block volume."""
        return bool(self.runtime) and self.block

    def is_handed(self, boot: str) -> bool:
        """Whether a guest may use it in this boot."""
        return self.handover is Handover.HANDED and self.boot == boot

    @property
    def guard(self) -> Published:
        """The place in the pod's directory where a deferred volume has its guard: a file system's."""
        return replace(self, block=False)


Row = Device | Publication

_KEYS: dict[type[Row], tuple[str, ...]] = {
    Device: ("driver", "handle"),
    Publication: ("driver", "handle", "name", "pod_uid"),
}
_TABLES: dict[type[Row], str] = {Device: "devices", Publication: "publications"}

# Of `volumes.db`. A new field of `Device` or `Publication` needs a migration that adds its column.
SCHEMA = Schema(
    "edge agent",
    (
        (
            """CREATE TABLE devices (
                driver TEXT NOT NULL, handle TEXT NOT NULL, name TEXT NOT NULL, block INTEGER NOT NULL,
                state TEXT NOT NULL, reconstructed INTEGER NOT NULL, attached INTEGER NOT NULL,
                attachment_uid TEXT NOT NULL, mount_point INTEGER NOT NULL, arguments TEXT NOT NULL,
                size_bytes INTEGER NOT NULL, boot TEXT NOT NULL, since REAL NOT NULL, error TEXT NOT NULL,
                PRIMARY KEY (driver, handle)
            ) STRICT, WITHOUT ROWID""",
            """CREATE TABLE publications (
                driver TEXT NOT NULL, handle TEXT NOT NULL, name TEXT NOT NULL, pod_uid TEXT NOT NULL,
                pod_namespace TEXT NOT NULL, pod_name TEXT NOT NULL, volume_name TEXT NOT NULL, block INTEGER NOT NULL,
                ephemeral INTEGER NOT NULL, state TEXT NOT NULL, reconstructed INTEGER NOT NULL,
                mount_point INTEGER NOT NULL, arguments TEXT NOT NULL, boot TEXT NOT NULL, since REAL NOT NULL,
                error TEXT NOT NULL, runtime TEXT NOT NULL, fs_type TEXT NOT NULL, fs_uuid TEXT NOT NULL,
                handover TEXT NOT NULL, PRIMARY KEY (driver, handle, name, pod_uid)
            ) STRICT, WITHOUT ROWID""",
        ),
    ),
)


class VolumeStates:
    """The rows in the database file `volumes.db` in the state directory."""

    def __init__(self, state_dir: Path, *, durable: bool = False) -> None:
        """Open or create the file. `durable` writes survive a power cut.

        Raises:
            SettingsError: another agent uses it, or a newer agent wrote it.
            OSError: it cannot be written, which may pass: a full disk, a read-only one.
        """
        self._path = state_dir / "volumes.db"
        self._found: list[Row] = []
        try:
            state_dir.mkdir(parents=True, exist_ok=True)
            self._lock_file = lock(state_dir / "volumes.lock")
            try:
                connection = open_database(self._path, SCHEMA, check=self._read, full=durable)
            except BaseException:
                os.close(self._lock_file)
                raise
        except BlockingIOError:
            raise SettingsError("--state-dir", str(state_dir), "another edge agent is using it") from None
        except sqlite3.Error as error:
            raise OSError(f"{self._path} cannot be written: {error}") from error
        self._writer = DatabaseWriter(
            self._path, connection, meanwhile="no driver is asked for anything until it works"
        )

    @property
    def trouble(self) -> str:
        return self._writer.trouble

    def rows(self) -> list[Row]:
        """All rows that were on disk. The agent calls this once, when it starts."""
        rows = self._found
        self._found = []
        return rows

    async def put(self, row: Row) -> None:
        """Write a row; return once the disk has it, else raise NotReady. Cancelling does not undo it."""
        values = {**asdict(row), "error": row.error[:_LONGEST_ERROR]}
        columns = ", ".join(values)
        marks = ", ".join("?" * len(values))
        statement = f"INSERT OR REPLACE INTO {_TABLES[type(row)]} ({columns}) VALUES ({marks})"  # noqa: S608  # our own names
        await self._commit(statement, tuple(values.values()))

    async def drop(self, row: Row) -> None:
        """Remove a row whose mount is undone; as `put`."""
        keys = _KEYS[type(row)]
        where = " AND ".join(f"{key} = ?" for key in keys)
        statement = f"DELETE FROM {_TABLES[type(row)]} WHERE {where}"  # noqa: S608  # our own names
        await self._commit(statement, tuple(getattr(row, key) for key in keys))

    async def close(self) -> None:
        await self._writer.close()
        os.close(self._lock_file)

    async def _commit(self, statement: str, values: tuple[Any, ...]) -> None:
        try:
            await self._writer.commit([(statement, values)])
        except WriteFailed as error:
            raise NotReady(f"the volume's state cannot be written to {error.place}: {error.why}") from error

    def _read(self, database: sqlite3.Connection) -> None:
        self._found = [row for kind in _TABLES for row in _read(database, kind)]


def read_boot() -> str:
    return BOOT_ID.read_text().strip()


def _read(database: sqlite3.Connection, kind: type[Row]) -> list[Row]:
    columns = ", ".join(column.name for column in fields(kind))
    found = database.execute(f"SELECT {columns} FROM {_TABLES[kind]}").fetchall()  # noqa: S608  # our own names
    return [_row(kind, values) for values in found]


def _row(kind: type[Row], values: tuple[Any, ...]) -> Row:
    given: dict[str, Any] = {
        column.name: bool(value) if column.type is bool else value
        for column, value in zip(fields(kind), values, strict=True)
    }
    # A state that this agent does not know proves nothing about the mount.
    given["state"] = State.DONE if given["state"] == State.DONE else State.UNCERTAIN
    # Another value comes only from a newer schema, and the file of a newer schema is refused.
    if "handover" in given:
        given["handover"] = Handover(given["handover"])
    return kind(**given)
