"""A database: an SQLite file in a state directory, opened by the same rules in every process.

Rules:

* WAL mode: survives a killed process without an fsync on each write, and a power cut leaves the old or the new state.
* A file that a newer program wrote is left alone, and is the operator's to solve.
* A damaged file is moved aside under a name of its own, loudly: the first one may hold more than its successors.
* One process at a time: two would each overwrite what the other one knows (`lock`).
* Only the owner may read it, its journal included (SQLite gives that the mode of the file).
"""

import errno
import fcntl
import logging
import os
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from common.errors import SettingsError, timestamp

log = logging.getLogger("csi_bridge.database")

_BUSY_S = 5.0
"""How long a statement waits for another connection's."""


@dataclass(frozen=True, slots=True)
class Schema:
    """What is in a file.

    Attributes:
        version: `PRAGMA user_version`; a file with a higher one is a newer program's.
        statements: what makes the tables, unless they are there.
        owner: who writes it, for messages: `hub`.
    """

    version: int
    statements: tuple[str, ...]
    owner: str


@dataclass(frozen=True, slots=True)
class Opened:
    """An open database.

    Attributes:
        connection: to be used by one thread at a time.
        was_new: whether nothing was in the file.
        damaged: where a damaged file is now, if there was one.
    """

    connection: sqlite3.Connection
    was_new: bool
    damaged: Path | None = None


def open_database(
    path: Path, schema: Schema, *, check: Callable[[sqlite3.Connection], None], full: bool = False
) -> Opened:
    """Open or create a database file.

    Args:
        path: the file, in a directory that is there.
        schema: what is in it.
        check: reads all that must be readable, here where damage can still be helped.
        full: whether each commit waits until the disk has it (`synchronous=FULL`).

    Raises:
        SettingsError: the file is a newer program's.
        OSError: it cannot be used.
        sqlite3.OperationalError: it cannot be used.
    """
    try:
        return connect(path, schema, check=check, full=full)
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError):  # no permission, no room: moving it aside helps nobody
            raise
        aside = path.with_name(f"{path.stem}-{timestamp(time.time())}.corrupt")
        log.error("%s is damaged (%s); it is moved to %s", path, error, aside)  # noqa: TRY400  # not a bug
        path.replace(aside)
        for suffix in ("-wal", "-shm"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)
        opened = connect(path, schema, check=check, full=full)
        return Opened(opened.connection, opened.was_new, aside)


def connect(path: Path, schema: Schema, *, check: Callable[[sqlite3.Connection], None], full: bool = False) -> Opened:
    """As `open_database`, but a damaged file stays where it is.

    Raises:
        sqlite3.DatabaseError: it is damaged, or cannot be used.
    """
    if not path.exists():
        path.touch(mode=0o600)
    connection = sqlite3.connect(path, check_same_thread=False, timeout=_BUSY_S)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute(f"PRAGMA synchronous={'FULL' if full else 'NORMAL'}")
        _check_version(connection, path, schema)
        was_new = not connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
        for statement in schema.statements:
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version={schema.version}")
        connection.commit()
        check(connection)
    except BaseException:
        connection.close()
        raise
    return Opened(connection, was_new)


def lock(file: Path) -> int:
    """The descriptor of a lock file, which is ours until it is closed.

    Raises:
        BlockingIOError: another process holds it.
        OSError: it cannot be made.
    """
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)  # one process at a time on a read-only disk too
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _check_version(connection: sqlite3.Connection, path: Path, schema: Schema) -> None:
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > schema.version:
        why = f"was written by a newer {schema.owner} (schema {version}, this one knows {schema.version})"
        raise SettingsError("--state-dir", str(path), why)
