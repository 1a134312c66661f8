"""The fact store: this node's facts for the hub, on disk.

A fact is an object that the node decides: its drivers, the volumes in use, the size of a claim, an Event.

Rules:

* The newest state of each fact counts. An unchanged state is no new state.
* The agent sends a fact once it is on the disk. The fact stays there after the hub has stored it, in case the hub
  loses it. Facts are small, so memory has them, too: the store reads the disk only when it is loaded.
* The agent sends an Event once and then forgets it (`common.objects.sync.PASSING_KINDS`). At most `MOST_EVENTS` wait;
  the store drops the oldest ones.
"""

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any, cast

from common.objects.objects import Object, Ref, Stamp, encode_body
from common.objects.sync import PASSING_KINDS, Compared, Confirmed, Event, Untold
from common.store.database_writer import DatabaseWriter, Statement

log = logging.getLogger("csi_bridge.edge.facts")

TABLES = (
    """
CREATE TABLE facts (
    kind TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL, version TEXT NOT NULL, body BLOB NOT NULL,
    acked INTEGER NOT NULL, PRIMARY KEY (kind, namespace, name)
) STRICT
""",
)

MOST_EVENTS = 500  # how many Events a node keeps while it is offline

_PUT = "INSERT OR REPLACE INTO facts VALUES (?, ?, ?, ?, ?, 0)"
_DROP = "DELETE FROM facts WHERE kind = ? AND namespace = ? AND name = ?"
_ACK = "UPDATE facts SET acked = ? WHERE kind = ? AND namespace = ? AND name = ? AND version = ?"


class FactRefused(Exception):
    """The hub does not accept a fact. The text is its reason."""


class FactStore:
    """The table of facts (`common.objects.sync.Truth`)."""

    def __init__(self) -> None:
        # The version put last, on the disk or on its way there, in the order of their putting.
        self._newest: dict[Ref, str] = {}
        self._acked: set[Ref] = set()  # those whose newest version the hub has stored
        self._stored: dict[Ref, Object] = {}  # those on the disk
        self._unwritten: dict[Ref, Statement] = {}
        self._batch: dict[Ref, Statement] = {}  # the statements of the running write
        self._task: asyncio.Task[None] | None = None
        self._waiters: dict[Ref, set[asyncio.Future[None]]] = {}
        self._listeners: list[Callable[[frozenset[Ref]], None]] = []
        self._is_full = False
        self._writer: DatabaseWriter

    def load(self, database: sqlite3.Connection) -> None:
        for found in (self._newest, self._acked, self._stored):
            found.clear()
        for kind, namespace, name, version, acked, body in database.execute(
            "SELECT kind, namespace, name, version, acked, body FROM facts ORDER BY rowid"
        ):
            ref = Ref(kind, namespace, name)
            # A fact has no uid: the node alone makes it, and its version is a hash of its content.
            self._newest[ref], self._stored[ref] = version, Object(ref, Stamp("", version), body)
            if acked:
                self._acked.add(ref)

    def start(self, writer: DatabaseWriter) -> None:
        self._writer = writer

    # ---- for the agent

    def put(self, ref: Ref, body: Mapping[str, Any]) -> None:
        data = encode_body(body)
        version = blake2b(data, digest_size=16).hexdigest()
        if self._newest.get(ref) == version:
            return
        self._newest.pop(ref, None)
        self._newest[ref] = version
        self._acked.discard(ref)
        if ref.kind in PASSING_KINDS:
            self._limit_events()
        self._write(ref, (_PUT, (ref.kind, ref.namespace, ref.name, version, data)))

    def drop(self, ref: Ref) -> None:
        if self._newest.pop(ref, None) is None:
            return
        self._acked.discard(ref)
        if ref in self._stored or ref in self._batch:
            self._write(ref, (_DROP, (ref.kind, ref.namespace, ref.name)))
        else:  # facts that come and go on a full disk must not pile up
            self._unwritten.pop(ref, None)
        self._release(ref, KeyError(ref))

    def refs(self, kind: str) -> list[Ref]:
        return [ref for ref in self._stored if ref.kind == kind]

    async def wait_acked(self, ref: Ref) -> None:
        """Wait until the hub has stored a fact's newest state, even if the fact changes meanwhile.

        Raises FactRefused if the hub does not accept it, KeyError if there is no such fact, or it was dropped.
        """
        if ref in self._acked:
            return
        if ref not in self._newest:
            raise KeyError(ref)
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiters = self._waiters.setdefault(ref, set())
        waiters.add(waiter)
        try:
            await waiter
        finally:
            waiters.discard(waiter)
            if not waiters and self._waiters.get(ref) is waiters:
                del self._waiters[ref]

    @property
    def waiting(self) -> int:
        return len(self._newest) - len(self._acked)

    # ---- for the stream that sends them

    def stamps(self) -> Mapping[Ref, Stamp]:
        """The facts to send: first those that a caller may wait for, then Events, each the oldest first."""
        facts = {}
        events = {}
        for ref, item in self._stored.items():
            if ref.kind not in PASSING_KINDS:
                facts[ref] = item.stamp
            elif item.stamp.version == self._newest.get(ref):  # not a forgotten one that the disk still has
                events[ref] = item.stamp
        return facts | events

    def read(self, ref: Ref) -> Object | None:
        return self._stored.get(ref)

    def listen(self, listener: Callable[[frozenset[Ref]], None]) -> Callable[[], None]:
        """Call `listener` when facts on the disk have changed. Returns the function that ends this."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def on_event(self, event: Event) -> None:
        """Note which facts the hub has, or refuses."""
        match event:
            case Compared(held):
                for ref in [ref for ref in self._acked if held.get(ref) != Stamp("", self._newest[ref])]:
                    self._acked.discard(ref)  # the hub has lost it: the agent sends it again, and new waiters wait
                    self._write(ref, (_ACK, (0, ref.kind, ref.namespace, ref.name, self._newest[ref])))
                for ref, stamp in held.items():
                    self._on_stored(ref, stamp)
            case Confirmed(ref, stamp):
                if stamp is not None:
                    self._on_stored(ref, stamp)
            case Untold(ref, stamp, why):
                is_newest = self._newest.get(ref) == stamp.version
                if not (is_newest and self._release(ref, FactRefused(why))):
                    log.warning("the hub does not accept the fact %s of this node: %s", ref, why)
                if ref.kind in PASSING_KINDS and is_newest:
                    self.drop(ref)

    async def flush(self) -> None:
        while self._task is not None:
            await asyncio.shield(self._task)

    # ---- inside

    def _on_stored(self, ref: Ref, stamp: Stamp) -> None:
        if self._newest.get(ref) != stamp.version or ref in self._acked:
            return
        if any(ref in waiting and waiting[ref][0] is not _ACK for waiting in (self._batch, self._unwritten)):
            return  # another state is about to be on the disk and is sent after this one: `_show` reports it
        self._acked.add(ref)
        self._release(ref)
        if ref.kind in PASSING_KINDS:
            self.drop(ref)
        else:
            self._write(ref, (_ACK, (1, ref.kind, ref.namespace, ref.name, stamp.version)))

    def _release(self, ref: Ref, error: Exception | None = None) -> bool:
        waiters = self._waiters.pop(ref, set())
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(error) if error is not None else waiter.set_result(None)
        return bool(waiters)

    def _limit_events(self) -> None:
        events = [ref for ref in self._newest if ref.kind in PASSING_KINDS]
        if len(events) <= MOST_EVENTS:
            self._is_full = self._is_full and len(events) > MOST_EVENTS // 2
            return
        if not self._is_full:
            self._is_full = True
            log.warning("more than %d events wait for the hub: the oldest are dropped", MOST_EVENTS)
        self.drop(events[0])

    def _write(self, ref: Ref, statement: Statement) -> None:
        self._unwritten[ref] = statement
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._write_all(), name="store facts")

    async def _write_all(self) -> None:
        try:
            while self._unwritten:
                self._batch = self._unwritten
                self._unwritten = {}
                if not await self._writer.persist(list(self._batch.values())):
                    return
                batch = self._batch
                self._batch = {}
                self._show(batch)
        finally:
            self._task = None

    def _show(self, batch: Mapping[Ref, Statement]) -> None:
        changed = set()
        for ref, (sql, values) in batch.items():
            if sql is _PUT:
                version, body = cast("tuple[str, bytes]", values[-2:])
                self._stored[ref] = Object(ref, Stamp("", version), body)
                changed.add(ref)
            elif sql is _DROP and self._stored.pop(ref, None) is not None:
                changed.add(ref)
        for listener in list(self._listeners) if changed else ():
            listener(frozenset(changed))
