"""A reserve: room that a database holds in its file and its journal, so that it takes writes when the disk is full.

Rules:

* The room in the file is pages of a table that was filled and dropped: SQLite uses free pages before it lets a file
  grow. The same transaction made the journal as large, and SQLite overwrites a journal from its beginning.
* SQLite removes the journal when a process closes the database. So the reserve holds that room in a file of its own
  while no process runs: `<database>-reserve`. A killed process leaves the journal.
* Growth uses up the free pages, also while the disk has room. The writer (`common.database_writer`) fills the reserve
  again when half of it is used.
"""

import contextlib
import os
import sqlite3
from pathlib import Path

from common.database import transaction

RESERVE_BYTES = 2 * 1_048_576
"""In the file, and as much in its journal. 2 MiB take some 7,000 volumes."""

_JOURNAL_PAGES = 250
"""After so many pages (1 MiB), SQLite copies the journal into the file: half of the journal's room."""

_BETWEEN_BYTES = 512 * 1_024
"""The room that is kept between two runs in addition to the journal: SQLite's shared memory, of other databases too."""

_SPARE_PAGES = 8
"""Free pages that a fill without room leaves alone: the table's own, and those of the schema."""


class Reserve:
    """The reserve of one database. The database's thread uses it."""

    def __init__(self, database: Path, *, size_bytes: int = RESERVE_BYTES) -> None:
        """The reserve of a database that is not open yet: give back the room that was kept since the last run.

        Raises:
            OSError: the file that keeps it cannot be removed.
        """
        self._between = Path(f"{database}-reserve")
        self._size_bytes = size_bytes
        self._between.unlink(missing_ok=True)

    def prepare(self, connection: sqlite3.Connection) -> None:
        """Bound the journal of an open database, and fill its reserve as far as the disk has room.

        Raises:
            sqlite3.Error: the disk has no room for all of it.
        """
        connection.execute(f"PRAGMA wal_autocheckpoint={_JOURNAL_PAGES}")
        try:
            self.fill(connection)
        except sqlite3.Error:
            _fill(connection, max(0, _free_bytes(connection) - _SPARE_PAGES * _page_bytes(connection)))
            raise

    def is_low(self, connection: sqlite3.Connection) -> bool:
        """Whether half of the reserve is used."""
        return _free_bytes(connection) < self._size_bytes // 2

    def fill(self, connection: sqlite3.Connection) -> None:
        """Fill the reserve.

        Raises:
            sqlite3.Error: the disk has no room. The reserve stays as it was.
        """
        _fill(connection, self._size_bytes)

    def keep(self) -> None:
        """Hold the room until the next run. Call it when the database is closed."""
        with contextlib.suppress(OSError), self._between.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, self._size_bytes + _BETWEEN_BYTES)


def _fill(connection: sqlite3.Connection, size_bytes: int) -> None:
    with transaction(connection):
        connection.execute("DROP TABLE IF EXISTS reserve")  # a killed process may have left it
        connection.execute("CREATE TABLE reserve (room BLOB)")
        connection.execute("INSERT INTO reserve VALUES (zeroblob(?))", (size_bytes,))
    with transaction(connection):
        connection.execute("DROP TABLE reserve")


def _free_bytes(connection: sqlite3.Connection) -> int:
    free: int = connection.execute("PRAGMA freelist_count").fetchone()[0]
    return free * _page_bytes(connection)


def _page_bytes(connection: sqlite3.Connection) -> int:
    size: int = connection.execute("PRAGMA page_size").fetchone()[0]
    return size
