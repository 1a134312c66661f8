"""A database writer: the one thread that writes to a database, so that no write blocks the event loop.

    commit, submit    make one attempt; the first returns once the write is committed, and raises if it fails
    persist           retries; returns once the write is committed, or False when the writer is closed
    put               returns at once, and retries; a newer `put` of the same key replaces a waiting one

Rules:

* A `put` that comes alone is written at once. Of a burst, all within `_GATHER_S` are one transaction. A caller that
  waits ends the gathering.
* Writes that wait together share one transaction (`BEGIN IMMEDIATE`), in the order in which they came. Each has a
  savepoint of its own, so that a write that fails does not undo the others.
* `put` and `persist` are retried every `retry_s`, before newer writes; a `commit` retries them at once, and ends the
  retries of those that it `replaces` (`submit`).
* The writer logs a failure once, and logs when writing works again.
* If a caller is cancelled, its write goes on.
"""

import asyncio
import contextlib
import itertools
import logging
import operator
import sqlite3
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from common.database import transaction
from common.errors import BridgeError

log = logging.getLogger("csi_bridge.database")

RETRY_S = 5.0  # the wait before a retry: people may make room on a full disk meanwhile

_GATHER_S = 0.02
"""How long `put`s gather after a write. A transaction costs as much as a dial's other work for the database, and
thousands of agents dial within seconds. A process that is killed loses them."""

Statement = tuple[str, tuple[object, ...]]  # SQL, and the values of its question marks


class WriteFailed(OSError):
    """A write failed, and nothing of it is in the database."""

    def __init__(self, place: Path | str, why: str) -> None:
        self.place, self.why = place, why
        super().__init__(f"{place} cannot be written: {why}")


@dataclass(slots=True, eq=False)
class _Write:
    statements: Sequence[Statement]
    done: asyncio.Future[None] | None = None  # its end; None if nobody waits for it
    retried: bool = False  # after a failure, instead of giving the failure to the caller
    number: int = 0  # the place of its coming
    replaces: Iterable[Hashable] = ()  # the keys of the `put`s before it that nobody needs any more once it is written


class DatabaseWriter:
    """Writes to one database."""

    def __init__(
        self,
        path: Path,
        connection: sqlite3.Connection | None,
        *,
        meanwhile: str = "it is tried again",
        connect: Callable[[], sqlite3.Connection] | None = None,
        connected: Callable[[], None] = lambda: None,
        trouble: str = "",
        retry_s: float = RETRY_S,
    ) -> None:
        """Start the writer's thread, which alone uses the connection, and closes it.

        Without a `connection`, the file could not be written when the process started, for the reason `trouble`. Then
        `connect` makes one in the thread, and `connected` is called on the loop after its first write. `path` and
        `meanwhile`, the consequence of a failure, are for the log.
        """
        self._path, self._connection, self._meanwhile = path, connection, meanwhile
        self._connect, self._retry_s = connect, retry_s
        self._connected = connected if connection is None else None
        self._woken = threading.Condition()
        self._numbers = itertools.count()
        self._once: list[_Write] = []
        self._retried: dict[Hashable, _Write] = {}
        self._retry_at = 0.0  # when the retried writes are due, on the monotonic clock; 0: at once
        self._gives_up = self._closing = False
        self._gathers = self._is_awaited = False
        """Whether `put`s gather now, and whether a caller waits for one of the writes."""
        self.trouble = trouble
        self._thread = threading.Thread(target=self._run, name=f"write-{path.name}", daemon=True)
        self._thread.start()

    # ---- for callers -------------------------------------------------------------------------------------------------

    async def commit(self, statements: Iterable[Statement]) -> None:
        """Execute statements in one transaction; return once it is committed. WriteFailed: none was executed."""
        await self.submit(statements)

    def submit(
        self, statements: Iterable[Statement], *, replaces: Iterable[Hashable] = (), is_retried: bool = False
    ) -> asyncio.Future[None]:
        """Begin a `commit`, or a `persist` if `is_retried`, in its place among the other writes. Returns its end.

        Earlier `put`s with the keys `replaces` are not retried once it is committed.
        """
        done = asyncio.get_running_loop().create_future()
        with self._woken:
            if self._closing:
                done.set_exception(WriteFailed(self._path, "the process is stopping"))
                return done
            write = _Write(list(statements), done, is_retried, next(self._numbers), replaces)
            if is_retried:
                self._retried[write] = write
            else:
                self._once.append(write)
            self._is_awaited = True
            self._woken.notify()
        return done

    async def persist(self, statements: Iterable[Statement]) -> bool:
        """Execute statements in one transaction, and retry until it is committed. False: the writer is closed."""
        try:
            await self.submit(statements, is_retried=True)
        except WriteFailed:
            return False
        return True

    def put(self, key: Hashable, *statements: Statement) -> None:
        """Execute statements soon, in place of those that wait under the same key, and retry. For any thread."""
        with self._woken:
            self._retried.pop(key, None)  # so that the new write comes after all others
            number = next(self._numbers)
            self._retried[key] = _Write(list(statements), retried=True, number=number)
            if self._is_awaited or not self._gathers:
                self._woken.notify()

    def end_retries(self) -> None:
        """Retry nothing any more: from now on each write, waiting or new, gets one attempt."""
        with self._woken:
            self._gives_up = True
            self._woken.notify()

    async def close(self) -> None:
        """Make one more attempt at all waiting writes, and close the connection."""
        with self._woken:
            self._gives_up = self._closing = True
            self._woken.notify()
        await asyncio.to_thread(self._thread.join)
        if self._connection is not None:
            self._connection.close()

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._woken:
                while not (self._once or self._is_due() or self._closing):
                    self._woken.wait(self._wait_s())
                is_last = self._closing
                retried, self._retried = self._retried, {}
                once, self._once = self._once, []
                self._is_awaited = False
            if retried or once:
                self._write(retried, once)
            if is_last:
                return
            self._gather()

    def _gather(self) -> None:
        with self._woken:
            self._gathers = True
            self._woken.wait_for(lambda: self._is_awaited or self._gives_up or self._closing, timeout=_GATHER_S)
            self._gathers = False

    def _is_due(self) -> bool:
        return bool(self._retried) and (self._gives_up or self._retry_at <= time.monotonic())

    def _wait_s(self) -> float | None:
        return max(self._retry_at - time.monotonic(), 0.0) if self._retried else None

    def _write(self, retried: dict[Hashable, _Write], once: list[_Write]) -> None:
        writes = sorted((*retried.values(), *once), key=operator.attrgetter("number"))
        results = dict(zip(writes, self._transact(writes), strict=True))
        for write in once:
            if results[write] is None:
                for key in write.replaces:
                    if key in retried and retried[key].number < write.number:
                        del results[retried.pop(key)]
        failed = [error for error in results.values() if error is not None]
        works = len(failed) < len(writes)
        again = {key: write for key, write in retried.items() if results[write] is not None}
        with self._woken:
            self._retry_at = time.monotonic() + self._retry_s if again else 0.0
            if not self._gives_up:
                for write in again.values():
                    del results[write]
                self._retried = again | self._retried  # a newer `put` of the same key stays
        self._note_trouble(failed[0] if failed else None)
        self._tell(results, works=works)

    def _transact(self, writes: list[_Write]) -> list[Exception | None]:
        """Attempt some writes in one transaction. Returns the error of each; None: it worked."""
        try:
            if self._connection is None:
                assert self._connect is not None
                self._connection = self._connect()
            with transaction(self._connection):
                return [_attempt(self._connection, write) for write in writes]
        except Exception as error:  # noqa: BLE001  # the callers get it
            return [error] * len(writes)

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

    def _tell(self, results: dict[_Write, Exception | None], *, works: bool) -> None:
        told: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[None], Exception | None]]] = {}
        for write, result in results.items():
            if write.done is not None:
                told.setdefault(write.done.get_loop(), []).append((write.done, result))
        for loop, outcomes in told.items():
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._settle, outcomes, works)

    def _settle(self, outcomes: list[tuple[asyncio.Future[None], Exception | None]], works: bool) -> None:  # noqa: FBT001  # a callback
        if works and self._connected is not None:
            self._connected()
            self._connected = None
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
    """Make one write in an open transaction. Returns its error; then it leaves nothing in the transaction."""
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
