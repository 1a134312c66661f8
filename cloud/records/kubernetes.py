"""The records in the objects of a cluster (`objects`), so that the hub needs no disk.

Rules:

* A standby only reads (`object_copy`). Its copy at the moment when it begins to lead is the records.
* One request at a time changes an object. Changes that wait meanwhile are one request (`object_writer`).
* Changes of one `write` are sent in their order. After the first failure the rest is not sent.
* The hub sends a node's status at most once in `_STATUS_S`, and `_STATUSES_S` statuses a second in all: the node can
  tell a lost one again. The first one goes `_TAKEOVER_S` after this hub begins to lead. None goes at the end, because
  the next hub knows better. A `write` of a status, its removal, and all other changes go at once.
* If somebody else changes or deletes an object, the leader writes its own state again (`watch`), once it is sure that
  it still leads: the other one may be the next hub.
* An object may come late, from a hub before this one. The owner of claims takes a late claim (`adopt`). The leader
  writes its own state over a late node, or deletes it if memory has no such node: the earlier hub may have forgotten
  it. Late tokens and denials stay for the next hub.
* A `write` has ended when the hub has made sure after it that it still leads: else the next hub may not have seen it.
  Claims need no such question.
"""

import asyncio
import itertools
import json
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from cloud.kube.client import Kube, KubeError, Resource
from cloud.records.object_copy import ObjectCopy, StoredObject, of_other_hub
from cloud.records.object_writer import ObjectWriter
from cloud.records.objects import NODE, PLACEMENT, RESOURCES, STATUS, Path, RecordPlace, place_of, records_in, value_of
from cloud.records.records import CLUSTER, Adopt, Body, Change, Key, Now, RecordKind, read_all
from common.store.database_writer import RETRY_S, WriteFailed

log = logging.getLogger("csi_bridge.hub.records")

_MOST_REQUESTS: Final = 32  # At once. An API server queues more by itself (API Priority and Fairness).
_STATUS_S: Final = 10.0
_STATUSES_S: Final = 50.0
_TAKEOVER_S: Final = 3.0  # A takeover needs the machine and the API server for other things so long
T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _WaitingChange:
    number: int  # its place among all changes
    change: Change
    path: Path = ()
    done: asyncio.Future[None] | None = None  # its end; None for a `put`
    after: "_WaitingChange | None" = None  # the change of the same `write` that must be written before
    due: float = 0.0  # not sent before, in the loop's time

    @property
    def value(self) -> Any:
        # Made only when it is sent: most `put`s of a status are replaced before.
        kind, key, body = self.change
        return value_of(kind, key, body) if body is not None else None

    @property
    def is_ready(self) -> bool:
        return self.after is None or self.after.done is None or self.after.done.done()


@dataclass(slots=True, eq=False)
class _Queue:
    place: RecordPlace
    stored: StoredObject  # the copy's
    waiting: list[_WaitingChange] = field(default_factory=list)  # the changes, in their order
    worker: asyncio.Task[None] | None = None  # the task that sends them
    wakes: asyncio.TimerHandle | None = None  # the end of the wait for the next one that is due
    # The last event of the watch while the worker was busy: the object, and whether it is gone
    event: tuple[Body, bool] | None = None


class KubernetesRecords:
    """The records in a cluster (`Records`). A standby calls `open`, and `lead` before all else when it leads."""

    def __init__(self, kube: Kube, namespace: str, *, retry_s: float = RETRY_S) -> None:
        self.trouble = ""  # why writing fails; empty while it works
        self._namespace = namespace
        self._retry_s = retry_s
        scoped = (replace(it, namespace=namespace) if it.namespaced else it for it in RESOURCES)
        self._copies = {it.kind: ObjectCopy(kube, it, namespace) for it in scoped}
        self._writer: ObjectWriter | None = None
        self._queues: dict[tuple[str, str], _Queue] = {}
        self._found: dict[RecordKind, list[tuple[Key, str]]] = {}
        self._owners: dict[RecordKind, Now] = {}
        self._adopters: dict[RecordKind, Adopt] = {}
        self._numbers = itertools.count()
        self._requests = asyncio.Semaphore(_MOST_REQUESTS)
        self._next_status = 0.0
        self._closing = False

    def open(self) -> None:
        for each in self._copies.values():
            each.open()

    async def lead(self, kube: Kube, still_leads: Callable[[], Awaitable[None]]) -> None:
        """Begin to lead, with the records that the API server has by now. Waits until it has answered.

        `kube` is for the time in which this hub leads. `still_leads` raises KubeError if another hub may lead. Raises
        SettingsError if an object has no readable record, or belongs to another hub.
        """
        await asyncio.gather(*(each.catch_up(kube, retry_s=self._retry_s) for each in self._copies.values()))
        self._writer = ObjectWriter(kube, self._namespace, still_leads, self._put_again)
        for each in self._copies.values():
            for kind, key, body in each.hand_over(self._seen, self._write_again):
                self._found.setdefault(kind, []).append((key, body))
        self._next_status = asyncio.get_running_loop().time() + _TAKEOVER_S

    # ---- Records -----------------------------------------------------------------------------------------------------

    def take(self, kind: RecordKind, read: Callable[[Key, Body], T]) -> list[T]:
        found = ((key, json.loads(body)) for key, body in self._found.pop(kind, ()))
        return read_all(found, read, kind=kind, place=CLUSTER)

    def watch(self, kind: RecordKind, now: Now, adopt: Adopt | None = None) -> None:
        self._owners[kind] = now
        if adopt is not None:
            self._adopters[kind] = adopt

    def write(self, changes: Iterable[Change]) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        last = None
        done = loop.create_future()
        done.set_result(None)
        for change in changes:
            done = loop.create_future()
            last = self._add(_WaitingChange(next(self._numbers), change, done=done, after=last))
        return done

    def put(self, change: Change) -> None:
        self._add(_WaitingChange(next(self._numbers), change))

    async def still_leads(self) -> None:
        assert self._writer is not None
        try:
            await self._writer.still_leads()
        except KubeError as error:
            raise WriteFailed(CLUSTER, str(error)) from error

    async def close(self) -> None:
        """Make one more attempt at the waiting writes, and end. Of a status, only the removal counts."""
        for it in self._queues.values():
            for write in [write for write in it.waiting if write.path == STATUS and write.change.body is not None]:
                it.waiting.remove(write)
                _fail(write, "the hub is stopping")
        self._closing = True
        while busy := [it for it in self._queues.values() if it.waiting or it.worker is not None]:
            for it in busy:
                self._start(it)
            await asyncio.gather(*(it.worker for it in busy if it.worker is not None))
        for each in self._copies.values():
            await each.close()

    # ---- changes that wait -------------------------------------------------------------------------------------------

    def _add(self, write: _WaitingChange) -> _WaitingChange:
        place = place_of(write.change.kind, write.change.key)
        write.path = place.path
        it = self._queues.get((place.resource.kind, place.name))
        if it is None:
            stored = self._copies[place.resource.kind].objects.setdefault(place.name, StoredObject())
            it = self._queues[place.resource.kind, place.name] = _Queue(place, stored)
        if self._closing:
            _fail(write, "the hub is stopping")
            return write
        if write.done is None:
            before = next((old for old in it.waiting if old.done is None and old.path == write.path), None)
            if before is not None:
                it.waiting.remove(before)
            write.due = 0.0 if write.change.body is None else before.due if before is not None else self._due(it, write)
        it.waiting.append(write)
        if write.after is not None and write.after.done is not None:
            write.after.done.add_done_callback(lambda _done: self._start(it))
        self._start(it)
        return write

    def _due(self, it: _Queue, write: _WaitingChange) -> float:
        if write.path != STATUS:
            return 0.0
        now = asyncio.get_running_loop().time()
        self._next_status = max(self._next_status + 1 / _STATUSES_S, now)
        sent_at = it.stored.status_at
        return max(self._next_status, sent_at + _STATUS_S if sent_at is not None else now)

    def _start(self, it: _Queue) -> None:
        if it.worker is None and it.waiting:
            it.worker = asyncio.create_task(self._work(it))

    async def _work(self, it: _Queue) -> None:
        try:
            while ready := self._ready(it):
                await self._send(it, ready)
        finally:
            it.worker = None
        if it.wakes is not None:
            it.wakes.cancel()
        due = [write.due for write in it.waiting if write.is_ready]
        if due and not self._closing:
            it.wakes = asyncio.get_running_loop().call_at(min(due), self._start, it)
        kind = it.place.resource.kind
        name = it.place.name
        if not it.waiting:
            del self._queues[kind, name]
            if it.stored.version == "":
                del self._copies[kind].objects[name]
        if it.event is not None:
            event = it.event
            it.event = None
            self._seen(it.place.resource, *event)

    def _ready(self, it: _Queue) -> list[_WaitingChange]:
        now = asyncio.get_running_loop().time()
        return [write for write in it.waiting if write.is_ready and (write.due <= now or self._closing)]

    async def _send(self, it: _Queue, ready: list[_WaitingChange]) -> None:
        for write in list(ready):
            if write.after is not None and (error := _error_of(write.after)) is not None:
                ready.remove(write)
                it.waiting.remove(write)
                _fail(write, error.why)
        newest = {write.path: write for write in sorted(ready, key=lambda write: write.number)}
        if not newest:
            return
        assert self._writer is not None, "only the hub that leads writes"
        try:
            async with self._requests:
                await self._writer.apply(it.place, it.stored, {path: write.value for path, write in newest.items()})
            if it.place.resource is not PLACEMENT and any(write.done is not None for write in ready):
                await self._writer.still_leads()
        except KubeError as error:
            self._note(str(error))
            self._failed(it, ready, str(error))
            return
        except Exception as error:  # a bug must not end the hub, and each caller must hear
            log.exception("writing %s failed because of a bug", it.place.name)
            self._failed(it, ready, f"a bug in CSI Bridge: {error!r}")
            return
        self._note("")
        if STATUS in newest:
            it.stored.status_at = asyncio.get_running_loop().time()
        it.waiting = [write for write in it.waiting if write not in ready]  # a newer `put` may have replaced some
        for write in ready:
            if write.done is not None and not write.done.done():
                write.done.set_result(None)
        for write in it.waiting:  # an older change, which waits for an earlier part of its `write`, must undo nothing
            if write.path in newest and write.number < newest[write.path].number:
                write.change = newest[write.path].change

    def _failed(self, it: _Queue, ready: list[_WaitingChange], why: str) -> None:
        again = asyncio.get_running_loop().time() + self._retry_s
        for write in ready:
            if write.done is None and not self._closing:
                write.due = again
                continue
            it.waiting = [other for other in it.waiting if other is not write]  # a newer `put` may have replaced it
            _fail(write, why)

    def _note(self, why: str) -> None:
        if why and why != self.trouble:
            log.error("%s cannot be written; it is tried again: %s", CLUSTER, why)
        elif self.trouble and not why:
            log.info("%s are written again", CLUSTER)
        self.trouble = why

    # ---- changes of others -------------------------------------------------------------------------------------------

    def _seen(self, resource: Resource, body: Body, is_gone: bool) -> None:  # noqa: FBT001  # the fields of an event
        metadata = body["metadata"]
        name = metadata["name"]
        queue = self._queues.get((resource.kind, name))
        it = self._copies[resource.kind].objects.get(name)
        if queue is not None and queue.worker is not None:
            queue.event = body, is_gone  # it may be of the worker's own write, whose answer has the version
        elif it is None or it.version == "":
            assert self._writer is not None
            if not is_gone and metadata["uid"] not in self._writer.gone:
                self._found_late(resource, body)
        elif it.version is None or int(metadata["resourceVersion"]) > int(it.version):
            self._write_again(resource, name)

    def _found_late(self, resource: Resource, body: Body) -> None:
        assert self._writer is not None
        name = body["metadata"]["name"]
        if why := of_other_hub(resource, body, self._namespace):
            if not self._writer.other_hub:
                log.error("nothing is written any more: %s", why)
            self._writer.other_hub = why
            return
        try:
            if resource is NODE:  # its status may be missing
                found: list[tuple[RecordKind, Key, Body]] = [(RecordKind.NODE, (str(body["spec"]["node"]),), {})]
            else:
                found = [it for it in records_in(resource, body) if it[0] in self._adopters]
            if not found or any(place_of(kind, key).name != name for kind, key, _ in found):
                log.warning("%s %s was made by somebody else, and counts for nothing", resource.kind, name)
            elif resource is NODE or all(self._adopters[kind](key, record) for kind, key, record in found):
                it = self._copies[resource.kind].objects.setdefault(name, StoredObject())
                it.adopt(resource, body)
                log.warning("%s %s was written late by a hub before this one", resource.kind, name)
                if resource is NODE:
                    it.version = None
                    self._put_again([*it.records.values(), *((kind, key) for kind, key, _ in found)])
            elif not self._closing:  # a call of this hub has the name, and is about to fail
                asyncio.get_running_loop().call_later(self._retry_s, self._seen, resource, body, False)  # noqa: FBT003  # as above
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            log.warning("%s %s was made by somebody else, and cannot be read: %r", resource.kind, name, error)

    def _write_again(self, resource: Resource, name: str) -> None:
        queue = self._queues.get((resource.kind, name))
        it = self._copies[resource.kind].objects[name]
        if queue is not None and queue.worker is not None:
            return
        if it.version is not None:  # else it may be an own change, whose answer was lost
            log.warning("somebody else has changed %s %s; it is written again", resource.kind, name)
        it.version = None  # so the writer first makes sure that this hub leads
        self._put_again(it.records.values())

    def _put_again(self, records: Iterable[tuple[RecordKind, Key]]) -> None:
        for kind, key in list(records):
            if kind in self._owners:
                self.put(self._owners[kind](key))


def _error_of(write: _WaitingChange) -> WriteFailed | None:
    error = write.done.exception() if write.done is not None and write.done.done() else None
    return error if isinstance(error, WriteFailed) else None


def _fail(write: _WaitingChange, why: str) -> None:
    if write.done is not None and not write.done.done():
        write.done.set_exception(WriteFailed(CLUSTER, why))
        write.done.exception()  # a caller that has left does not hear of it
