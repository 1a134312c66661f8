"""A database writer: the one thread that writes to a database, so that no write blocks the event loop.

    commit     makes one attempt; ends once the write is committed, and raises if it fails
    persist    retries; returns once the write is committed, or False when the writer is closed
    put        returns at once, and retries; a newer `put` of the same key replaces a waiting one

Rules:

* Writes that wait together share one transaction (`BEGIN IMMEDIATE`), in the order in which they came. Each has a
  savepoint of its own, so that a write that fails does not undo the others. A statement that comes alone needs neither.
* A `put` that comes alone is written at once. Of a burst, all within `_GATHER_S` are one transaction. A caller that
  waits ends the gathering.
* `put` and `persist` are retried every `retry_s`, before newer writes; a `commit` retries them at once, and ends the
  retries of those that it `replaces`.
* The writer logs a failure once, and logs when writing works again.
* If a caller is cancelled, its write goes on.
* All callers that wait are on one event loop. A write costs one wake-up of the thread and one of the loop.
"""

import asyncio
import logging
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from common.errors import BridgeError
from common.store.database import transaction

log = logging.getLogger("csi_bridge.database")

RETRY_S = 5.0  # the wait before a retry: people may make room on a full disk meanwhile
# How long `put`s gather after a write: thousands of agents dial within seconds. A process that is killed loses them.
_GATHER_S = 0.02

Statement = tuple[str, tuple[object, ...]]  # SQL, and the values of its question marks


class WriteFailed(OSError):
    """A write failed. A database holds nothing of it; Kubernetes may hold its first rows (`Records.write`)."""

    def __init__(self, place: Path | str, why: str) -> None:
        self.place = place
        self.why = why
        super().__init__(f"{place} cannot be written: {why}")


@dataclass(slots=True, eq=False)
class _Write:
    statements: Sequence[Statement]
    done: asyncio.Future[None] | None = None  # its end; None if nobody waits for it
    is_retried: bool = False  # after a failure, instead of giving the failure to the caller
    replaces: Iterable[Hashable] = ()  # the keys of the `put`s before it that nobody needs any more once it is written


@dataclass(frozen=True, slots=True)
class LateConnection:
    """A connection that is made later, because the file could not be written when the process started."""

    trouble: str  # why not
    connect: Callable[[], sqlite3.Connection]  # makes it, in the writer's thread
    connected: Callable[[], None]  # called on the loop after its first write


class DatabaseWriter:
    """Writes to one database."""

    def __init__(
        self,
        path: Path,
        connection: sqlite3.Connection | LateConnection,
        *,
        meanwhile: str = "it is tried again",
        retry_s: float = RETRY_S,
    ) -> None:
        """Start the writer's thread, which alone uses the connection. `close` closes it.

        `path` and `meanwhile`, the consequence of a failure, are for the log.
        """
        self._late = connection if isinstance(connection, LateConnection) else None
        self._connection = connection if isinstance(connection, sqlite3.Connection) else None
        self._path = path
        self._meanwhile = meanwhile
        self._retry_s = retry_s
        self._mutex = threading.Lock()  # for the fields that follow
        self._waiting: dict[Hashable, _Write] = {}  # in the order of their coming: a `put` by its key
        self._is_awaited = False  # whether a caller waits for one of them
        self._rests_until = 0.0  # when they are due if nobody waits for them, on the monotonic clock
        self._sleeps = False  # whether the thread waits for `_woken`
        self._gives_up = self._closing = False
        self._woken = queue.SimpleQueue[None]()  # `threading.Condition` costs twice as much
        self.trouble = self._late.trouble if self._late is not None else ""
        self._thread = threading.Thread(target=self._run, name=f"write-{path.name}", daemon=True)
        self._thread.start()

    # ---- for callers -------------------------------------------------------------------------------------------------

    def commit(
        self, statements: Iterable[Statement], *, replaces: Iterable[Hashable] = (), is_retried: bool = False
    ) -> asyncio.Future[None]:
        """Execute statements in one transaction, in its place among the other writes. WriteFailed: none was executed.

        Earlier `put`s with the keys `replaces` are not retried once it is committed. With `is_retried` as `persist`.
        """
        done = asyncio.get_running_loop().create_future()
        write = _Write([*statements], done, is_retried, replaces)
        with self._mutex:
            if self._closing:
                done.set_exception(WriteFailed(self._path, "the process is stopping"))
                return done
            self._waiting[write] = write
            self._is_awaited = True
            if self._sleeps:
                self._wake()
        return done

    async def persist(self, statements: Iterable[Statement]) -> bool:
        """Execute statements in one transaction, and retry until it is committed. False: the writer is closed."""
        try:
            await self.commit(statements, is_retried=True)
        except WriteFailed:
            return False
        return True

    def put(self, key: Hashable, *statements: Statement) -> None:
        """Execute statements soon, in place of those that wait under the same key, and retry. For any thread."""
        with self._mutex:
            is_first = not self._waiting
            self._waiting.pop(key, None)  # so that the new write comes after all others
            self._waiting[key] = _Write(statements, is_retried=True)
            if is_first and self._sleeps:  # else the thread sleeps no longer than until they are due
                self._wake()

    def end_retries(self) -> None:
        """Retry nothing any more: from now on each write, waiting or new, gets one attempt."""
        with self._mutex:
            self._gives_up = True
            if self._sleeps:
                self._wake()

    async def close(self) -> None:
        """Make one more attempt at all waiting writes, and close the connection."""
        with self._mutex:
            self._gives_up = self._closing = True
            if self._sleeps:
                self._wake()
        await asyncio.to_thread(self._thread.join)
        if self._connection is not None:
            self._connection.close()

    def _wake(self) -> None:
        self._sleeps = False
        self._woken.put(None)

    # ---- in the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._mutex:
                batch = self._waiting
                rest_s = 0.0
                if batch and not (self._is_awaited or self._gives_up):
                    rest_s = self._rests_until - time.monotonic()
                is_due = bool(batch) and rest_s <= 0.0
                if is_due:
                    self._waiting = {}
                    self._is_awaited = False
                elif self._closing:
                    return
                else:
                    self._sleeps = True
            if is_due:
                self._write(batch)
                continue
            try:  # noqa: SIM105  # `suppress` is three more functions, and both threads wait for them
                self._woken.get(timeout=rest_s if batch else None)
            except queue.Empty:
                pass
            self._sleeps = False

    def _write(self, batch: dict[Hashable, _Write]) -> None:
        failed: dict[Hashable, Exception] = {}
        for (key, write), error in zip(batch.items(), self._transact([*batch.values()]), strict=True):
            if error is not None:
                failed[key] = error
                continue
            for it in write.replaces:
                failed.pop(it, None)
        again: dict[Hashable, _Write] = {}
        with self._mutex:
            if failed and not self._gives_up:
                again = {key: batch[key] for key in failed if batch[key].is_retried}
                older = {key: write for key, write in again.items() if key not in self._waiting}
                self._waiting = older | self._waiting
            self._rests_until = time.monotonic() + (self._retry_s if again else _GATHER_S)
        self._note_trouble(next(iter(failed.values()), None))
        ended = [(it.done, failed.get(key)) for key, it in batch.items() if it.done is not None and key not in again]
        if ended:
            try:  # noqa: SIM105  # as above
                ended[0][0].get_loop().call_soon_threadsafe(self._settle, ended, len(failed) < len(batch))
            except RuntimeError:  # the loop has ended
                pass

    def _transact(self, writes: list[_Write]) -> list[Exception | None]:
        try:
            if self._connection is None:
                assert self._late is not None
                self._connection = self._late.connect()
            if len(writes) == 1 and len(writes[0].statements) == 1:  # SQLite commits it by itself
                self._connection.execute(*writes[0].statements[0])
                results: list[Exception | None] = [None]
            else:
                with transaction(self._connection):
                    results = [_attempt(self._connection, write) for write in writes]
        except Exception as error:  # noqa: BLE001  # the callers get it
            return [error] * len(writes)
        return results

    def _note_trouble(self, error: Exception | None) -> None:
        if error is None:
            if self.trouble:
                log.info("%s is written again, and nothing is missing in it", self._path)
            self.trouble = ""
            return
        trouble = _text(error)
        if trouble != self.trouble:
            bug = None if isinstance(error, sqlite3.Error | OSError | BridgeError) else error
            log.error("cannot write %s; %s: %s", self._path, self._meanwhile, trouble, exc_info=bug)
        self.trouble = trouble

    def _settle(self, outcomes: list[tuple[asyncio.Future[None], Exception | None]], works: bool) -> None:  # noqa: FBT001  # a callback
        if works and self._late is not None:
            self._late.connected()
            self._late = None
        for done, error in outcomes:
            if done.done():  # the caller was cancelled
                continue
            if error is None:
                done.set_result(None)
            else:
                failed = WriteFailed(self._path, _text(error))
                failed.__cause__ = error
                done.set_exception(failed)


def _attempt(connection: sqlite3.Connection, write: _Write) -> Exception | None:
    # After an error it leaves nothing in the transaction.
    connection.execute("SAVEPOINT one")
    try:
        for sql, values in write.statements:
            connection.execute(sql, values)
    except Exception as error:
        if not connection.in_transaction:
            raise
        connection.execute("ROLLBACK TO one")
        connection.execute("RELEASE one")
        return error
    connection.execute("RELEASE one")
    return None


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__
