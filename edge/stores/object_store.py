"""The object store: the objects that the hub sent to this node, on disk (`common.objects.sync_stream.Copy`).

Rules:

* Memory has the keys and stamps of the stored objects. The store reads a body from the disk when a caller asks for it:
  the ten thousand objects of a large node would fill the agent's memory.
* Memory follows the disk: an object shows when its transaction is committed, and subscribers are called then.
* The store refuses objects beyond `MOST_OBJECTS`, and all that would make the file larger than `MOST_BYTES`. So no hub
  fills the node's memory or disk. Drops always pass.
* Bodies of `SEALED_KINDS` are sealed on the disk. The store drops a body that it cannot unseal, and logs an error. The
  digest then lacks the object, so the hub sends it again.
"""

import asyncio
import logging
import sqlite3
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from common.objects.objects import Object, Ref, Stamp
from common.objects.sync_messages import Change, Drop, InStep, Put
from common.store.database import transaction
from common.store.database_writer import DatabaseWriter, Statement
from edge.stores.sealing import SEALED_KINDS, Sealer

log = logging.getLogger("csi_bridge.edge.store")

# `knowledge` has its row once the store has been in step with the hub; `heard_at` is the last such time.
TABLES = (
    """
CREATE TABLE objects (
    kind TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL, uid TEXT NOT NULL, version TEXT NOT NULL,
    body BLOB NOT NULL, PRIMARY KEY (kind, namespace, name)
) STRICT, WITHOUT ROWID
""",
    """
CREATE TABLE knowledge (one INTEGER PRIMARY KEY CHECK (one = 1), heard_at REAL NOT NULL) STRICT
""",
)

MOST_OBJECTS = 100_000  # ten times those of a large node; they take 50 MB of memory

# Ten times the file of a large node. The node's own system may be on the same disk.
MOST_BYTES = 512 * 1_048_576

_PUT = "INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?, ?, ?)"
_DROP = "DELETE FROM objects WHERE kind = ? AND namespace = ? AND name = ? AND uid = ?"
_HEARD = "INSERT OR REPLACE INTO knowledge VALUES (1, ?)"

_MOST_NAMED = 10  # how many lost objects a log line names


class ObjectStore:
    """The table of objects."""

    def __init__(self, sealer: Sealer, *, clock: Callable[[], float] = time.time) -> None:
        self._sealer = sealer
        self._clock = clock
        self._stamps: dict[Ref, Stamp] = {}
        self._subscribers: list[Callable[[frozenset[Ref]], None]] = []
        self._order = asyncio.Lock()
        self._tasks: set[asyncio.Task[Mapping[int, str] | None]] = set()
        self._ends = 0  # the number of ended streams
        self._writer: DatabaseWriter
        self._reader: sqlite3.Connection
        self._path: Path
        self.in_step = False  # the hub has confirmed on the present link that the objects are complete
        # The last time, in seconds since the epoch, that it was in step; at most a minute ago while it is. None: never.
        self.heard_at: float | None = None

    def load(self, database: sqlite3.Connection) -> None:
        """Read all rows once, so that damage shows now."""
        self._stamps = {}
        lost: list[tuple[str, ...]] = []
        for kind, namespace, name, uid, version, body in database.execute(
            "SELECT kind, namespace, name, uid, version, body FROM objects"
        ):
            ref = Ref(kind, namespace, name)
            stamp = Stamp(uid, version)
            if kind not in SEALED_KINDS or self._can_unseal(ref, stamp, body):
                self._set_stamp(ref, stamp)
            else:
                lost.append((kind, namespace, name, uid))
        if lost:
            with transaction(database):
                database.executemany(_DROP, lost)
            log.error(
                "%d objects with credentials cannot be unsealed: their key was lost, or they are damaged. They are "
                "dropped, and the hub sends them again: %s",
                len(lost),
                ", ".join(str(Ref(*key[:3])) for key in lost[:_MOST_NAMED]),
            )
        row = database.execute("SELECT heard_at FROM knowledge").fetchone()
        self.heard_at = row[0] if row is not None else None

    def start(self, path: Path, writer: DatabaseWriter, reader: sqlite3.Connection) -> None:
        """Begin to serve the loaded objects. `reader` is another connection, for this thread."""
        self._path = path
        self._writer = writer
        self._reader = reader

    # ---- for the agent

    def get(self, ref: Ref) -> Object | None:
        """An object in its stored state; None if there is none. Raises OSError if the disk cannot read it."""
        known = self._stamps.get(ref)
        if known is None:
            return None
        try:
            row = self._reader.execute(
                "SELECT uid, version, body FROM objects WHERE kind = ? AND namespace = ? AND name = ?",
                (ref.kind, ref.namespace, ref.name),
            ).fetchone()
            if row is None:
                return None
            stamp = Stamp(row[0], row[1])
            if stamp == known:
                stamp = known  # its text is kept once
            body = self._sealer.unseal(ref, stamp, row[2]) if ref.kind in SEALED_KINDS else row[2]
        except (sqlite3.Error, ValueError) as error:
            raise OSError(
                f"{self._path}: {ref} cannot be read: {error}; restart the agent, which checks the file"
            ) from error
        return Object(ref, stamp, body)

    def uid(self, ref: Ref) -> str:
        stamp = self._stamps.get(ref)
        return stamp.uid if stamp is not None else ""

    def refs(self, kind: str) -> list[Ref]:
        return [ref for ref in self._stamps if ref.kind == kind]

    def subscribe(self, subscriber: Callable[[frozenset[Ref]], None]) -> None:
        """Call `subscriber` with the keys that were put or dropped, on the loop, and when `in_step` changes."""
        self._subscribers.append(subscriber)

    @property
    def ever_in_step(self) -> bool:
        return self.heard_at is not None

    # ---- for the stream that fills it

    def stamps(self) -> Mapping[Ref, Stamp]:
        return self._stamps

    async def store(self, changes: Sequence[Change]) -> Mapping[int, str]:
        """Store changes in one transaction (`sync_stream.Copy`). Refuses objects for which there is no room."""
        task = asyncio.get_running_loop().create_task(self._store(changes, self._ends), name="store objects")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        refused = await asyncio.shield(task)
        if refused is None:
            raise OSError(f"{self._path} could not be written before the agent ended")
        return refused

    async def settle(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)

    def out_of_step(self) -> None:
        """The stream has ended: its last changes may still be stored, but the store is no longer in step."""
        self._ends += 1
        if self.in_step:
            self.in_step = False
            self._tell_subscribers(frozenset())

    async def still_in_step(self) -> None:
        if self.in_step:
            now = self._clock()
            async with self._order:
                if await self._writer.persist([(_HEARD, (now,))]):
                    self.heard_at = now

    async def _store(self, changes: Sequence[Change], ends: int) -> Mapping[int, str] | None:
        # None: the agent ends before the disk has them.
        async with self._order:
            now = self._clock()
            refused = self._beyond_limit(changes)
            taken = [change for change in changes if change.seq not in refused]
            if not await self._writer.persist([self._statement(change, now) for change in taken]):
                return None
            self._show(taken, now, is_current=ends == self._ends)
        return refused

    def _beyond_limit(self, changes: Sequence[Change]) -> Mapping[int, str]:
        size_bytes = self._used_bytes() + sum(len(change.body) for change in changes if isinstance(change, Put))
        if size_bytes > MOST_BYTES:
            why = f"the objects of this node would take {size_bytes} bytes, and {MOST_BYTES} is the limit"
            return {change.seq: why for change in changes if isinstance(change, Put)}
        if len(self._stamps) + len(changes) <= MOST_OBJECTS:
            return {}
        there = set(self._stamps)
        refused = {}
        for change in changes:
            if isinstance(change, Drop):
                there.discard(change.ref)
            elif isinstance(change, Put) and change.ref not in there:
                if len(there) >= MOST_OBJECTS:
                    refused[change.seq] = f"this node has {MOST_OBJECTS} objects, which is the limit"
                    continue
                there.add(change.ref)
        return refused

    def _used_bytes(self) -> int:
        pages, free, page_bytes = (
            int(self._reader.execute(f"PRAGMA {what}").fetchone()[0])
            for what in ("page_count", "freelist_count", "page_size")
        )
        return (pages - free) * page_bytes

    def _statement(self, change: Change, now: float) -> Statement:
        match change:
            case Put():
                item = change.object
                body = item.body
                if change.kind in SEALED_KINDS:
                    body = self._sealer.seal(item.ref, item.stamp, body)
                return _PUT, (change.kind, change.namespace, change.name, change.uid, change.version, body)
            case Drop():
                return _DROP, (change.kind, change.namespace, change.name, change.uid)
            case InStep():
                return _HEARD, (now,)

    def _show(self, changes: Sequence[Change], now: float, *, is_current: bool) -> None:
        touched: set[Ref] = set()
        came_in_step = False
        for change in changes:
            if isinstance(change, InStep):
                self.heard_at = now
                if is_current and not self.in_step:
                    came_in_step = self.in_step = True
                continue
            ref = change.ref
            if isinstance(change, Put) or self.uid(ref) == change.uid:
                self._stamps.pop(ref, None)
            if isinstance(change, Put):
                ref = self._set_stamp(ref, change.object.stamp)  # subscribers keep it, too
            touched.add(ref)
        if touched or came_in_step:
            self._tell_subscribers(frozenset(touched))

    def _set_stamp(self, ref: Ref, stamp: Stamp) -> Ref:
        # Share one text for each kind and namespace.
        ref = Ref(sys.intern(ref.kind), sys.intern(ref.namespace), ref.name)
        self._stamps[ref] = stamp
        return ref

    def _tell_subscribers(self, refs: frozenset[Ref]) -> None:
        for subscriber in list(self._subscribers):
            try:
                subscriber(refs)
            except Exception:
                log.exception("telling of %d changed objects failed", len(refs))

    def _can_unseal(self, ref: Ref, stamp: Stamp, sealed: bytes) -> bool:
        try:
            self._sealer.unseal(ref, stamp, sealed)
        except ValueError:
            return False
        return True
