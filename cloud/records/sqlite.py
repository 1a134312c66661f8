"""The records in a file of the state directory: `state.db`, an SQLite database.

Rules:

* The file follows the rules of `common.store.database`, with `full`: a finished write outlives a power cut. A damaged
  one stops the hub from starting.
* One thread writes. Changes that wait together share a transaction, so a burst costs one wait for the disk.
* The changes of one `write` are written all or none.
* One hub at a time uses the directory.
"""

import asyncio
import functools
import json
import sqlite3
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, TypeVar

from cloud.records.directory import StateDirectory
from cloud.records.records import Adopt, Body, Change, Key, Now, RecordKind, damaged, read_all
from common.errors import SettingsError
from common.store.database import Schema, connect
from common.store.database_writer import RETRY_S, DatabaseWriter, Statement

# Keys are JSON lists of texts, bodies are JSON objects.
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

_PUT: Final = "INSERT OR REPLACE INTO records VALUES (?, ?, ?)"
_DROP: Final = "DELETE FROM records WHERE kind = ? AND key = ?"

T = TypeVar("T")


_body_text = json.JSONEncoder(separators=(",", ":")).encode
_key_text = functools.lru_cache(1_024)(json.JSONEncoder().encode)  # a name is written two or three times


class SqliteRecords:
    """The records in `state.db` (`Records`)."""

    def __init__(self, state_dir: Path, *, retry_s: float = RETRY_S) -> None:
        """Open or create the file, and read it.

        Raises SettingsError if the directory cannot be used, another hub uses it, or the file is damaged or a newer
        hub's.
        """
        self._path = state_dir / "state.db"
        self._found: dict[str, list[tuple[Key, Body]]] = {}
        self._directory = StateDirectory(state_dir)
        try:
            database = connect(self._path, SCHEMA, check=self._read, full=True)
        except BaseException as error:
            self._directory.close()
            if isinstance(error, sqlite3.OperationalError | OSError):
                raise SettingsError("--state-dir", str(state_dir), f"cannot be written: state.db: {error}") from error
            if isinstance(error, sqlite3.Error | ValueError):
                raise damaged(str(self._path), str(error)) from error
            raise
        self._writer = DatabaseWriter(self._path, database, retry_s=retry_s)

    @property
    def trouble(self) -> str:
        return self._writer.trouble

    def take(self, kind: RecordKind, read: Callable[[Key, Body], T]) -> list[T]:
        return read_all(self._found.pop(kind, ()), read, kind=kind, place=str(self._path))

    def watch(self, kind: RecordKind, now: Now, adopt: Adopt | None = None) -> None:
        """Nobody else changes the file."""

    def write(self, changes: Iterable[Change]) -> asyncio.Future[None]:
        statements = {}
        for it in changes:
            statements[it.kind, it.key] = _statement(it)
        return self._writer.commit(statements.values(), replaces=statements)

    def put(self, change: Change) -> None:
        self._writer.put((change.kind, change.key), _statement(change))

    async def still_leads(self) -> None:
        """No other hub has the file."""

    async def close(self) -> None:
        await self._writer.close()
        self._directory.close()

    def _read(self, database: sqlite3.Connection) -> None:
        for kind, key, body in database.execute("SELECT kind, key, body FROM records"):
            self._found.setdefault(kind, []).append((tuple(json.loads(key)), json.loads(body)))


def _statement(change: Change) -> Statement:
    key = _key_text(change.key)
    if change.body is None:
        return _DROP, (change.kind, key)
    return _PUT, (change.kind, key, _body_text(change.body))
