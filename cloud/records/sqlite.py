"""The records in a file of the state directory: `state.db`, an SQLite database.

Rules:

* The file follows the rules of `common.database`, with `full`: what is written outlives a power cut. A damaged one
  stops the hub from starting.
* One thread writes. Changes that wait together share a transaction, so a burst costs one wait for the disk.
* The changes of one `write` are written all or none.
* One hub at a time uses the directory.
"""

import asyncio
import json
import os
import secrets
import sqlite3
from collections.abc import Callable, Iterable
from hashlib import sha256
from pathlib import Path
from typing import Final, TypeVar

from cloud.records.records import Body, Change, Changed, Key, Kind, damaged, read_all
from common.database import Schema, connect, lock
from common.database_writer import RETRY_S, DatabaseWriter, Statement
from common.errors import SettingsError
from common.state_directory import make_state_directory

SCHEMA: Final = Schema(
    "hub",
    (
        (
            """CREATE TABLE records (
                kind TEXT NOT NULL, key TEXT NOT NULL, body TEXT NOT NULL, PRIMARY KEY (kind, key)
            ) STRICT, WITHOUT ROWID""",
        ),
    ),
)
"""Of `state.db`. Keys are JSON lists of texts, bodies are JSON objects."""

LEAST_FREE_BYTES: Final = 16 * 1_048_576
"""The room on the disk that writes which `grow` leave to all others."""

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_PLACE_CHARS: Final = 16
_EARLIER: Final = ("placement.db", "hub.db", "trust.db")
"""The files of hubs before `state.db`, which this one cannot read."""

_PUT: Final = "INSERT OR REPLACE INTO records VALUES (?, ?, ?)"
_DROP: Final = "DELETE FROM records WHERE kind = ? AND key = ?"

T = TypeVar("T")


class SqliteRecords:
    """The records in `state.db` (`Records`)."""

    def __init__(self, state_dir: Path, *, retry_s: float = RETRY_S) -> None:
        """Open or create the file, and read it.

        Raises:
            SettingsError: the directory cannot be used, another hub uses it, the file is damaged, or a newer hub wrote
                it.
        """
        self._path = state_dir / "state.db"
        self._found: dict[str, list[tuple[Key, Body]]] = {}
        try:
            make_state_directory(state_dir)
            self._lock_file = lock(state_dir / "hub.lock")
        except BlockingIOError:
            raise SettingsError("--state-dir", str(state_dir), "another hub is using it") from None
        except OSError as error:
            raise SettingsError("--state-dir", str(state_dir), f"cannot be written: {error}") from error
        try:
            _refuse_earlier(state_dir)
            database = connect(self._path, SCHEMA, check=self._read, full=True).connection
        except BaseException as error:
            os.close(self._lock_file)
            if isinstance(error, sqlite3.OperationalError | OSError):
                raise SettingsError("--state-dir", str(state_dir), f"cannot be written: state.db: {error}") from error
            if isinstance(error, sqlite3.Error | ValueError):
                raise damaged(str(self._path), str(error)) from error
            raise
        self._writer = DatabaseWriter(self._path, database, retry_s=retry_s, least_free_bytes=LEAST_FREE_BYTES)

    @property
    def place(self) -> str:
        """Names the locked directory, for as long as this machine runs. A copy of it has another name."""
        found = os.fstat(self._lock_file)
        try:
            boot = _BOOT_ID.read_text()
        except OSError:
            boot = secrets.token_hex()
        return sha256(f"{boot} {found.st_dev} {found.st_ino}".encode()).hexdigest()[:_PLACE_CHARS]

    @property
    def trouble(self) -> str:
        """Why writing fails; empty while it works."""
        return self._writer.trouble

    def take(self, kind: Kind, read: Callable[[Key, Body], T]) -> list[T]:
        """All records of a kind (`Records.take`)."""
        return read_all(self._found.pop(kind, ()), read, kind=kind, place=str(self._path))

    def watch(self, kind: Kind, changed: Changed) -> None:
        """Nobody else changes the file."""

    def write(self, changes: Iterable[Change], *, grows: bool = False) -> asyncio.Future[None]:
        """Write changes, all or none (`Records.write`)."""
        statements = {(it.kind, it.key): _statement(it) for it in changes}
        return self._writer.submit(statements.values(), grows=grows, replaces=statements)

    def put(self, change: Change) -> None:
        """Write a change soon (`Records.put`)."""
        self._writer.put((change.kind, change.key), _statement(change))

    async def close(self) -> None:
        """Make one more attempt at the waiting writes, and close the file."""
        await self._writer.close()
        os.close(self._lock_file)

    def _read(self, database: sqlite3.Connection) -> None:
        for kind, key, body in database.execute("SELECT kind, key, body FROM records"):
            self._found.setdefault(kind, []).append((tuple(json.loads(key)), json.loads(body)))


def _statement(change: Change) -> Statement:
    key = json.dumps(change.key)
    if change.body is None:
        return _DROP, (change.kind, key)
    return _PUT, (change.kind, key, json.dumps(change.body, separators=(",", ":")))


def _refuse_earlier(state_dir: Path) -> None:
    """Raise SettingsError if an earlier hub has left its files and this one has none yet: nothing may be forgotten."""
    left = [name for name in _EARLIER if (state_dir / name).exists()]
    if left and not (state_dir / "state.db").exists():
        why = (
            f"has records of an earlier version ({', '.join(left)}), which this one cannot read: go on with that "
            f"version, or delete all volumes first and then move these files away"
        )
        raise SettingsError("--state-dir", str(state_dir), why)
