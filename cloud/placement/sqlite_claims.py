"""The SQLite claim store: names and ids in the file `placement.db` of the state directory.

    holds          each hub's open creates: driver, name and owner; node. With an elected node other calls, too.
    elections      each driver's last election: node, epoch, time, cause.
    things         each node's ids: driver, kind, id and node; name of the create, time of the deletion.
    inventories    each list that the hub has: driver, node and kind.

Rules:

* Each change compares and sets the database's rows within one `BEGIN IMMEDIATE` transaction, so several stores on one
  file are correct. Each commit waits until the disk has it (`synchronous=FULL`).
* A store that is alone on its file, under the state directory's lock, answers `look` from its memory. A store that
  shares the file reads the rows.
* Memory gets a change after its commit; a change of the group `…_later` at once, and the disk when that works.
* A database that was lost is one of the losses (`cloud.losses`), and so is a `…_later` change that fails until the hub
  ends.
"""

import asyncio
import itertools
import sqlite3
import time
from collections.abc import Callable, Coroutine, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from cloud.election import Elected
from cloud.losses import Losses
from cloud.placement.claim_rules import Rows, Writer
from cloud.placement.claim_store import (
    USUAL,
    Claimed,
    HeldBy,
    Holding,
    IdEntry,
    Ledger,
    NameEntry,
    Place,
    Standing,
    Terms,
)
from cloud.placement.memory_rows import MemoryRows
from cloud.placement.requests import Thing
from cloud.placement.sqlite_rows import SCHEMA, SqliteRows, row_of
from common.database import open_database
from common.database_writer import RETRY_S, DatabaseWriter, Statement, WriteFailed
from common.errors import PlacementNotKept, SettingsError

_HOLD: Final = (
    "INSERT INTO holds VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET node = excluded.node, "
    "epoch = excluded.epoch, since = excluded.since, lease_s = excluded.lease_s, machine = excluded.machine "
    "WHERE epoch < excluded.epoch"
)
_FREE: Final = "DELETE FROM holds WHERE driver = ? AND name = ? AND owner = ? AND epoch <= ?"
_RECORD: Final = (
    "INSERT INTO things VALUES (?, ?, ?, ?, ?, 0, ?, ?, ?) ON CONFLICT DO UPDATE "
    "SET name = excluded.name, gone = 0, owner = excluded.owner, epoch = excluded.epoch, "
    "since = iif(gone > 0, excluded.since, since) WHERE name = '' OR gone > 0"
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class _Later:
    """A change that the file gets when that works.

    Attributes:
        driver: the driver.
        node: the node that it is about; empty if it only removes.
        change: the change of the rows.
    """

    driver: str
    node: str
    change: Callable[[Rows], None]


class SqliteClaims:
    """A claim store (`claim_store.ClaimStore`) in a file.

    Attributes:
        owner: this hub, in the entries that it writes.
        losses: the losses of the file.
    """

    def __init__(
        self,
        state_dir: Path,
        *,
        owner: str = "",
        alone: bool = True,
        retry_s: float = RETRY_S,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Open or create the file. `alone` means that no other store changes it.

        Raises:
            SettingsError: the file cannot be used, or a newer hub wrote it.
        """
        self.owner, self._now = owner, now
        self._path = state_dir / "placement.db"
        self._is_alone = alone
        self._memory = MemoryRows()
        self._later: dict[Hashable, _Later] = {}
        """The changes that memory has and the file may lack, in the order in which the file gets them."""
        self._forgetting: list[list[tuple[Hashable, _Later, Statement]]] = []
        """For each order to forget that waits for the file: the changes of the group `…_later` since it came."""
        self._ending: set[asyncio.Task[Any]] = set()
        """The changes that go on to their end, whoever waits for them."""
        self._epochs = itertools.count(1)
        try:
            self.losses = Losses(state_dir / "placement.losses")
            opened = open_database(self._path, SCHEMA, check=self._read, full=True)
            if opened.damaged is not None:
                self.losses.add(f"{self._path} was damaged, and is {opened.damaged} now")
            elif opened.was_new and self.losses.file_found and not self.losses.standing:
                self.losses.add(f"{self._path} was gone or empty")
            self.losses.create()
        except (OSError, sqlite3.Error) as error:
            raise SettingsError("--state-dir", str(state_dir), f"cannot be written: {error}") from error
        self._writer = DatabaseWriter(self._path, opened.connection, at_risk=self.losses.put_at_risk, retry_s=retry_s)

    def lost(self) -> tuple[str, ...]:
        """The losses that no operator has settled."""
        return self.losses.standing

    async def trust(self) -> tuple[str, ...]:
        """See `ClaimStore`."""
        return await asyncio.to_thread(self.losses.clear)

    async def look(self, driver: str, name: str, things: Iterable[Thing]) -> Standing:
        """See `ClaimStore`."""
        things = tuple(things)
        standing = self.glance(driver, name, things)
        if standing is None:
            standing = await self._transact(lambda rows: rows.standing(driver, name, things))
        return standing

    def glance(self, driver: str, name: str, things: Iterable[Thing]) -> Standing | None:
        """See `ClaimStore`. A store that is alone answers from its memory."""
        return self._memory.standing(driver, name, things) if self._is_alone else None

    async def claim(
        self, driver: str, name: str, node: str, expected: NameEntry, terms: Terms = USUAL
    ) -> Claimed[NameEntry] | HeldBy[NameEntry]:
        """See `ClaimStore`. A claim whose caller was cancelled before its transaction is not written."""
        writer, is_wanted = self._next_writer(), [True]

        def claim(rows: Rows) -> Claimed[NameEntry] | HeldBy[NameEntry]:
            if not is_wanted:
                return HeldBy(expected)
            return writer(rows).claim(driver, name, node, expected, terms)

        try:
            result = await self._transact(claim)
        except asyncio.CancelledError:
            is_wanted.clear()
            raise
        if (hold := result.entry.holds.get(self.owner)) is not None:
            self._remember(lambda rows: rows.set_hold(driver, name, self.owner, hold))
        return result

    async def record(
        self,
        driver: str,
        node: str,
        new: Mapping[Thing, Holding | None],
        expected: Mapping[Thing, IdEntry],
        *,
        alone: bool = False,
    ) -> Claimed[Mapping[Thing, IdEntry]] | HeldBy[Mapping[Thing, IdEntry]]:
        """See `ClaimStore`."""
        writer = self._next_writer()

        async def record() -> Claimed[Mapping[Thing, IdEntry]] | HeldBy[Mapping[Thing, IdEntry]]:
            result = await self._transact(lambda rows: writer(rows).record(driver, node, new, expected, alone=alone))
            if isinstance(result, Claimed):
                stamped = {thing: entry.holders.get(node) for thing, entry in result.entry.items()}
                self._remember(lambda rows: writer(rows).write(driver, node, stamped))
            return result

        return await self._to_the_end(record()) if new else Claimed({})

    async def listed(self, driver: str, node: str, kind: str, things: Iterable[Thing], *, began: float) -> None:
        """See `ClaimStore`."""
        writer, told = self._next_writer(), list(things)
        await self._to_the_end(self._change(lambda rows: writer(rows).listed(driver, node, kind, told, began=began)))

    async def forget(self, node: str, driver: str = "", *, is_given_up: bool = False) -> None:
        """See `ClaimStore`."""
        await self._to_the_end(self._forget(node, driver, is_given_up=is_given_up))

    async def _forget(self, node: str, driver: str, *, is_given_up: bool) -> None:
        writer = self._next_writer()
        waiting = {key: it for key, it in self._later.items() if it.node == node and driver in ("", it.driver)}
        came: list[tuple[Hashable, _Later, Statement]] = []
        self._forgetting.append(came)
        try:
            left = await self._transact(lambda rows: writer(rows).forget(node, driver, is_given_up=is_given_up))
        finally:
            self._forgetting = [each for each in self._forgetting if each is not came]
        for key, later in waiting.items():
            if self._later.get(key) is later:
                del self._later[key]
                self._writer.put(key)  # in place of the change
        for key, later, statement in came:  # the file may have got them before it forgot the node
            self._put(key, replace(later), statement)  # a copy: the end of the former write is not the end of this one
        self._remember(lambda rows: rows.forget(node, driver, left))

    async def knows(self, node: str, driver: str = "") -> bool:
        """See `ClaimStore`."""
        return await self._read_memory(lambda rows: rows.knows(node, driver))

    async def existing(self) -> list[Place]:
        """See `ClaimStore`."""
        return await self._read_memory(lambda rows: rows.existing())

    async def ledger(self) -> Ledger:
        """See `ClaimStore`."""
        ledger = Ledger([], [])
        for part in await self._read_memory(lambda rows: rows.ledger()):
            ledger.holdings.extend(part.holdings)
            ledger.holds.extend(part.holds)
            await asyncio.sleep(0)  # of 100,000 things it would take the loop half a second
        return ledger

    def hold_later(self, driver: str, name: str, node: str) -> None:
        """See `ClaimStore`."""
        writer = self._next_writer()
        hold = writer(self._memory).hold(self._memory.name(driver, name), node)
        later = _Later(driver, node, lambda rows: writer(rows).keep(driver, name, hold))
        self._put((driver, name), later, (_HOLD, row_of(driver, name, self.owner, hold)))

    def free_later(self, driver: str, name: str) -> None:
        """See `ClaimStore`."""
        epoch = next(self._epochs)
        later = _Later(driver, "", lambda rows: Writer(rows, self.owner, epoch).free(driver, name))
        self._put((driver, name), later, (_FREE, (driver, name, self.owner, epoch)))

    def record_later(self, driver: str, node: str, thing: Thing, name: str) -> None:
        """See `ClaimStore`."""
        if self._is_alone and node in self._memory.id(driver, thing).made:
            return
        epoch, now, place = next(self._epochs), self._now(), (driver, thing.kind, thing.id, node)
        later = _Later(
            driver, node, lambda rows: Writer(rows, self.owner, epoch, now).record_made(driver, node, thing, name)
        )
        self._put(place, later, (_RECORD, (*place, name, self.owner, epoch, now)))

    async def elections(self) -> Mapping[str, Elected]:
        """See `ClaimStore`."""
        return await self._read_memory(lambda rows: rows.elections())

    async def elect(self, driver: str, new: Elected, expected: Elected | None) -> Elected:
        """See `ClaimStore`."""
        writer = self._next_writer()

        async def elect() -> Elected:
            last = await self._transact(lambda rows: writer(rows).elect(driver, new, expected))
            self._remember(lambda rows: rows.set_elected(driver, last))
            return last

        return await self._to_the_end(elect())

    async def close(self) -> None:
        """See `ClaimStore`. A change whose caller has left may still have something to write: it comes first."""
        await asyncio.gather(*self._ending, return_exceptions=True)
        await self._writer.close()

    async def _to_the_end(self, work: Coroutine[Any, Any, T]) -> T:
        """Let work end even if its caller is cancelled: memory must get each change that the disk gets."""
        task = asyncio.ensure_future(work)
        self._ending.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._ending.discard(task)
        if not task.cancelled():
            task.exception()  # a caller that has left does not hear of it, and asyncio would log it as a bug

    def _next_writer(self) -> Callable[[Rows], Writer]:
        return partial(Writer, owner=self.owner, epoch=next(self._epochs), now=self._now())

    async def _transact(self, work: Callable[[SqliteRows], T]) -> T:
        try:
            return await self._writer.transact(lambda connection: work(SqliteRows(connection)))
        except WriteFailed as error:
            raise PlacementNotKept(str(self._path), error.why) from error

    async def _change(self, change: Callable[[Rows], None]) -> None:
        await self._transact(change)
        self._remember(change)

    def _put(self, key: Hashable, later: "_Later", statement: Statement) -> None:
        """Change memory now, and the file when that works."""
        for came in self._forgetting:
            came.append((key, later, statement))
        done = asyncio.get_running_loop().create_future()
        done.add_done_callback(partial(self._written, key, later))
        self._later.pop(key, None)
        self._later[key] = later
        later.change(self._memory)
        self._writer.put(key, statement, done=done)

    def _written(self, key: Hashable, later: "_Later", done: asyncio.Future[None]) -> None:
        if not done.cancelled() and done.exception() is None and self._later.get(key) is later:
            del self._later[key]

    def _remember(self, change: Callable[[Rows], None]) -> None:
        """Make a change of the file in memory. The changes that the file does not have yet come after it there too."""
        change(self._memory)
        for later in self._later.values():
            later.change(self._memory)

    async def _read_memory(self, read: Callable[[MemoryRows], T]) -> T:
        if self._is_alone:
            return read(self._memory)
        return read(await self._transact(lambda rows: rows.in_memory()))

    def _read(self, database: sqlite3.Connection) -> None:
        self._memory = SqliteRows(database).in_memory()
        highest = "SELECT max(epoch) FROM (SELECT epoch FROM holds UNION ALL SELECT epoch FROM things)"
        self._epochs = itertools.count((database.execute(highest).fetchone()[0] or 0) + 1)
