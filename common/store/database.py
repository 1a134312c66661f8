"""A database: an SQLite file in a state directory, opened by the same rules in every process.

Rules:

* The file's `PRAGMA user_version` is the version of its schema. `open_database` makes the tables of a new file and
  migrates an older file, each step in one transaction.
* `open_database` refuses a file that a newer program wrote, before SQLite can change the file or its journal.
* WAL mode: a killed process loses no commit. A power cut may lose the newest commits, unless `full` is set.
* `open_database` renames a damaged file and begins a new one. It never overwrites an earlier renamed file.
* One process at a time uses a database (`lock`).
* Only the owner may read the file; SQLite gives its journal the same mode.
"""

import contextlib
import errno
import fcntl
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from common.errors import newer_state, timestamp
from common.store.files import unused

log = logging.getLogger("csi_bridge.database")

_BUSY_S = 5.0  # how long a statement waits for another connection's lock
_READ_BUSY_S = 1.0  # a reader may run on the event loop, which waits with it
_CACHE_KIB = 512  # of each connection; SQLite's default is 2 MiB, and a process has up to six connections


@dataclass(frozen=True, slots=True)
class Schema:
    """The shape of a database file, and how to reach it from every earlier one."""

    owner: str  # the program that writes the file, for messages: `hub`
    # SQL; the first makes version 1 in an empty file. A migration that was released never changes
    migrations: tuple[tuple[str, ...], ...]

    @property
    def version(self) -> int:
        return len(self.migrations)


def open_database(
    path: Path, schema: Schema, *, check: Callable[[sqlite3.Connection], None], full: bool = False
) -> sqlite3.Connection:
    """Open or create a database file, and migrate it if it is older than the schema.

    `check` reads everything that must be readable, so that damage shows now. With `full`, each commit waits until the
    disk has it (`synchronous=FULL`). The connection is for one thread at a time, and begins no transaction by itself.
    Raises SettingsError: a newer program wrote the file; OSError or sqlite3.OperationalError: it cannot be used, or
    cannot be migrated.
    """
    try:
        return connect(path, schema, check=check, full=full)
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError):  # no permission, no room: a new file would fail as well
            raise
        aside = unused(path.with_name(f"{path.stem}-{timestamp(time.time())}.corrupt"))
        log.error("%s is damaged (%s); it is moved to %s", path, error, aside)  # noqa: TRY400  # not a bug
        path.replace(aside)
        for suffix in ("-wal", "-shm"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)
        return connect(path, schema, check=check, full=full)


def connect(
    path: Path, schema: Schema, *, check: Callable[[sqlite3.Connection], None], full: bool = False
) -> sqlite3.Connection:
    """As `open_database`, but a damaged file keeps its name (sqlite3.DatabaseError)."""
    refuse_newer(path, schema)
    if not path.exists():
        path.touch(mode=0o600)
    connection = sqlite3.connect(path, check_same_thread=False, timeout=_BUSY_S, isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute(f"PRAGMA synchronous={'FULL' if full else 'NORMAL'}")
        _bound_cache(connection)
        _migrate(connection, path, schema)
        check(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def refuse_newer(path: Path, schema: Schema) -> None:
    """Raise SettingsError if a newer program wrote the file. Changes neither the file nor its journal."""
    if (version := _peek_version(path)) > schema.version:
        raise newer_state(path, schema.owner, version, schema.version)


def connect_to_read(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=_READ_BUSY_S)
    try:
        _bound_cache(connection)
    except BaseException:
        connection.close()
        raise
    return connection


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Commit the statements of the block together, or none of them if it raises.

    It holds the write lock from its beginning: the values that the block reads are those that its writes replace.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # SQLite ends it by itself after some errors
            connection.execute("ROLLBACK")
        raise


def lock(file: Path) -> int:
    """Take a lock file, until the returned descriptor is closed. BlockingIOError: another process holds it."""
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


def _bound_cache(connection: sqlite3.Connection) -> None:
    connection.execute(f"PRAGMA cache_size=-{_CACHE_KIB}")  # a negative number means KiB


def _peek_version(path: Path) -> int:
    # A commit that is only in the journal counts: the newer program may have been killed after its migration. The
    # version is 0 if it cannot be read without a change to the file or its journal.
    journal = Path(f"{path}-wal")
    how = "ro" if journal.exists() and journal.stat().st_size else "ro&immutable=1"
    try:
        with contextlib.closing(sqlite3.connect(f"file:{quote(str(path))}?mode={how}", uri=True)) as connection:
            return _read_version(connection)
    except sqlite3.Error:
        return 0


def _read_version(connection: sqlite3.Connection) -> int:
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return version


def _migrate(connection: sqlite3.Connection, path: Path, schema: Schema) -> None:
    before = _read_version(connection)
    for version, migration in enumerate(schema.migrations[before:], before + 1):
        try:
            with transaction(connection):
                for statement in migration:
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version={version}")
        except sqlite3.DatabaseError as error:
            if type(error) is sqlite3.DatabaseError:  # damage; other errors are the disk's or the migration's
                raise
            raise sqlite3.OperationalError(f"the migration to schema {version} failed: {error}") from error
    if 0 < before < schema.version:
        log.info("%s is migrated from schema %d to %d", path, before, schema.version)
