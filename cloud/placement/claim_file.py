"""The claim file: the rows of all books in `placement.db` of the state directory.

    claims      one row a name: driver and name; state, node of the open calls, ids (JSON)
    listed      an id that only a node's list tells
    lists       each kind that a node has listed
    elections   each driver's last election: node, epoch, time, cause

Rules:

* Each commit waits until the disk has it (`synchronous=FULL`).
* Each write has whole rows, as the book has them in the moment in which the write takes its place among the others. So
  the last one is the truth. It replaces an older `put` of the same name.
* `write` makes one attempt. If it fails, the file has nothing of it. It goes on if its caller is cancelled.
* `put` returns at once. The write is retried until it works.
"""

import asyncio
import json
import sqlite3
from collections.abc import Coroutine, Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

from cloud.election import Elected
from cloud.placement.book import FORGOTTEN, Book
from cloud.placement.claim import Row, State
from cloud.placement.requests import Thing
from common.database import Schema, open_database
from common.database_writer import DatabaseWriter, Statement, WriteFailed
from common.errors import PlacementNotKept, SettingsError

SCHEMA: Final = Schema(
    owner="hub",
    migrations=(
        (
            """CREATE TABLE holds (
                driver TEXT NOT NULL, name TEXT NOT NULL, owner TEXT NOT NULL, node TEXT NOT NULL,
                epoch INTEGER NOT NULL, since REAL NOT NULL, lease_s INTEGER NOT NULL, kind TEXT NOT NULL,
                id TEXT NOT NULL, machine TEXT NOT NULL, PRIMARY KEY (driver, name, owner)
            ) STRICT, WITHOUT ROWID""",
            """CREATE TABLE things (
                driver TEXT NOT NULL, kind TEXT NOT NULL, id TEXT NOT NULL, node TEXT NOT NULL, name TEXT NOT NULL,
                gone REAL NOT NULL, owner TEXT NOT NULL, epoch INTEGER NOT NULL, since REAL NOT NULL,
                PRIMARY KEY (driver, kind, id, node)
            ) STRICT, WITHOUT ROWID""",
            """CREATE TABLE inventories (
                driver TEXT NOT NULL, node TEXT NOT NULL, kind TEXT NOT NULL, PRIMARY KEY (driver, node, kind)
            ) STRICT, WITHOUT ROWID""",
            """CREATE TABLE elections (
                driver TEXT NOT NULL PRIMARY KEY, node TEXT NOT NULL, epoch INTEGER NOT NULL, since REAL NOT NULL,
                why TEXT NOT NULL
            ) STRICT, WITHOUT ROWID""",
        ),
        (
            """CREATE TABLE claims (
                driver TEXT NOT NULL, name TEXT NOT NULL, state TEXT NOT NULL, node TEXT NOT NULL, since REAL NOT NULL,
                lease_s INTEGER NOT NULL, machine TEXT NOT NULL, ids TEXT NOT NULL, PRIMARY KEY (driver, name)
            ) STRICT, WITHOUT ROWID""",
            """CREATE TABLE listed (
                driver TEXT NOT NULL, node TEXT NOT NULL, kind TEXT NOT NULL, id TEXT NOT NULL, since REAL NOT NULL,
                PRIMARY KEY (driver, node, kind, id)
            ) STRICT, WITHOUT ROWID""",
            """INSERT INTO claims SELECT driver, CASE
                    WHEN name <> '' THEN name WHEN kind = 'volume' THEN 'DeleteVolume ' || id
                    WHEN kind = 'snapshot' THEN 'DeleteSnapshot ' || id ELSE 'DeleteVolumeGroupSnapshot ' || id END,
                iif(max(gone = 0), 'made', 'deleted'), '', 0, 0, '',
                json_group_array(json_array(kind, id, node, since, gone))
                FROM things WHERE name <> '' OR gone > 0 GROUP BY 1, 2""",
            """INSERT INTO claims SELECT driver, name, 'open', node, since, lease_s, machine, '[]' FROM holds WHERE true
                ON CONFLICT DO UPDATE SET state = 'open', node = excluded.node, since = excluded.since,
                lease_s = excluded.lease_s, machine = excluded.machine""",
            "INSERT INTO listed SELECT driver, node, kind, id, since FROM things WHERE name = '' AND gone = 0",
            "ALTER TABLE inventories RENAME TO lists",
            "DROP TABLE holds",
            "DROP TABLE things",
        ),
    ),
)

_CLAIM: Final = "INSERT OR REPLACE INTO claims VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_NO_CLAIM: Final = "DELETE FROM claims WHERE driver = ? AND name = ?"
_LISTED: Final = "INSERT OR REPLACE INTO listed VALUES (?, ?, ?, ?, ?)"
_NOT_LISTED: Final = "DELETE FROM listed WHERE driver = ? AND node = ? AND kind = ? AND id = ?"
_LIST: Final = "INSERT OR REPLACE INTO lists VALUES (?, ?, ?)"
_NO_LIST: Final = "DELETE FROM lists WHERE driver = ? AND node = ? AND kind = ?"
_FORGET: Final = (
    "DELETE FROM listed WHERE driver = ? AND node = ?",
    "DELETE FROM lists WHERE driver = ? AND node = ?",
)
_ELECT: Final = "INSERT OR REPLACE INTO elections VALUES (?, ?, ?, ?, ?)"

Key = tuple[str, str]
"""Driver and name of a claim."""


class Listed(NamedTuple):
    """A row of `listed`, or of `lists` if it has no id."""

    driver: str
    node: str
    kind: str
    id: str = ""
    since: float = 0.0


class ClaimFile:
    """The rows on the disk.

    Attributes:
        claims: the claims that the file had when it was opened. Their reader empties this.
        listed: the lists that it had then; as above.
        elections: the last election of each driver, as it is known to be on the disk.
    """

    def __init__(self, state_dir: Path, *, retry_s: float) -> None:
        """Open or create the file, and migrate an older one.

        Raises:
            SettingsError: the file cannot be used, or a newer hub wrote it.
        """
        self._path = state_dir / "placement.db"
        self._ending: set[asyncio.Task[None]] = set()
        try:
            opened = open_database(self._path, SCHEMA, check=self._read, full=True)
        except (OSError, sqlite3.Error) as error:
            raise SettingsError("--state-dir", str(state_dir), f"cannot be written: {error}") from error
        self._writer = DatabaseWriter(self._path, opened.connection, retry_s=retry_s)

    def put(self, driver: str, book: Book, name: str) -> None:
        """Write the row of a claim as it is now, when that works. Without a claim the row is removed."""
        if (claim := book.claims.get(name)) is not None:
            claim.has_row = True
        self._writer.put((driver, name), _claim(driver, book, name))

    def write(
        self,
        driver: str,
        book: Book,
        names: Iterable[str] = (),
        *,
        listed: Iterable[tuple[Thing, str]] = (),
        marks: Iterable[tuple[str, str]] = (),
    ) -> asyncio.Future[None]:
        """Write what a book has now of names, of listed things and of lists (`Book.lists`), all or nothing.

        Returns:
            The end of the write, which raises PlacementNotKept if the file has nothing of it.
        """
        rows = {(driver, name): _claim(driver, book, name) for name in names}
        others = [_listed(driver, book, thing, node) for thing, node in listed]
        others += [(_LIST if mark in book.lists else _NO_LIST, (driver, *mark)) for mark in marks]
        return self._write(rows, others)

    def forget(self, node: str, of_drivers: Iterable[tuple[str, Book, Iterable[str], bool]]) -> asyncio.Future[None]:
        """Remove all of a node, as `write` does. Per driver: book, names, and whether it is `FORGOTTEN` then."""
        rows, others = dict[Key, Statement](), list[Statement]()
        for driver, book, names, is_left in of_drivers:
            rows |= {(driver, name): _claim(driver, book, name, without=node) for name in names}
            others += [(sql, (driver, node)) for sql in _FORGET]
            others += [(_LIST, (driver, node, FORGOTTEN))] * is_left
        return self._write(rows, others)

    async def elect(self, driver: str, new: Elected) -> None:
        """Record an election. Raises PlacementNotKept if that fails."""
        await self._write({}, [(_ELECT, (driver, new.node, new.epoch, new.since, new.why))])
        self.elections[driver] = new

    def to_the_end(self, work: Coroutine[Any, Any, None]) -> asyncio.Future[None]:
        """Let work end even if its caller is cancelled: memory and file must get the same."""
        task = asyncio.ensure_future(work)
        self._ending.add(task)
        task.add_done_callback(self._ended)
        return asyncio.shield(task)

    async def close(self) -> None:
        """Make one more attempt at the waiting writes, and close the file."""
        await asyncio.gather(*self._ending, return_exceptions=True)
        await self._writer.close()

    def _write(self, rows: dict[Key, Statement], others: list[Statement]) -> asyncio.Future[None]:
        return self.to_the_end(self._finish(self._writer.submit([*rows.values(), *others], replaces=rows)))

    async def _finish(self, done: asyncio.Future[None]) -> None:
        try:
            await done
        except WriteFailed as error:
            raise PlacementNotKept(str(self._path), error.why) from error

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._ending.discard(task)
        if not task.cancelled():
            task.exception()  # a caller that has left does not hear of it, and asyncio would log it as a bug

    def _read(self, database: sqlite3.Connection) -> None:
        read = database.execute
        rows = read("SELECT driver, name, state, node, since, lease_s, machine, ids FROM claims")
        try:
            self.claims = [
                ((driver, name), Row._make((State(state), *its, _ids(ids)))) for driver, name, state, *its, ids in rows
            ]
        except (TypeError, ValueError) as error:
            raise sqlite3.DatabaseError(f"a claim cannot be read: {error}") from error
        self.listed = [Listed(*row) for row in read("SELECT driver, node, kind, id, since FROM listed")]
        self.listed += [Listed(*row) for row in read("SELECT driver, node, kind FROM lists")]
        elected = read("SELECT driver, node, epoch, since, why FROM elections")
        self.elections = {driver: Elected(*rest) for driver, *rest in elected}


def _ids(text: str) -> tuple[Any, ...]:
    ids = [(kind, id_, node, float(since), float(gone)) for kind, id_, node, since, gone in json.loads(text)]
    if not all(isinstance(word, str) for kind, id_, node, *_ in ids for word in (kind, id_, node)):
        raise TypeError("an id is no text")
    return tuple(ids)


def _claim(driver: str, book: Book, name: str, *, without: str = "") -> Statement:
    claim = book.claims.get(name)
    row = claim.row(without) if claim is not None else None
    return (_CLAIM, (driver, name, *row[:-1], json.dumps(row.ids))) if row is not None else (_NO_CLAIM, (driver, name))


def _listed(driver: str, book: Book, thing: Thing, node: str) -> Statement:
    since = book.listed.get(thing, {}).get(node)
    return (_LISTED, (driver, node, *thing, since)) if since is not None else (_NOT_LISTED, (driver, node, *thing))
