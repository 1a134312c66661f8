"""The records in the objects of a cluster (`objects`), so that the hub needs no disk.

Rules:

* Each write replaces the version that the hub knows. If the object has another one, somebody else has written it: then
  the hub first makes sure that it still leads, and writes its own state, which is the truth while it leads.
* A request without an answer may have been carried out. The next one reads the object first, and makes sure as above.
* One request at a time changes an object. Changes that wait meanwhile are one request.
* Changes of one `write` are sent in their order. After the first failure the rest is not sent.
* What a node's status loses can be asked again: at most one `put` of it in `_STATUS_S` is sent, `_STATUSES_S` a second
  in all. Everything else is sent at once, and so is a `write` of a status, or its removal.
* The hub watches its objects. What somebody else changes or deletes it writes again, as memory has it (`watch`), once
  it is sure that it still leads: the other one may be the next hub.
* A claim that this hub has not written is of a hub before it whose request came late, and which may have sent the call:
  it is never written over. Its owner takes it (`adopt`).
* Every object says which namespace its hub's Lease is in. Hubs with Leases in two namespaces would not know of each
  other, so none works with the objects of another one.
"""

import asyncio
import contextlib
import copy
import itertools
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, TypeVar

from cloud.kube import Kube, KubeError, Resource
from cloud.records.objects import GROUP, PLACEMENT, RESOURCES, Path, Place, place_of, records_in, value_of
from cloud.records.records import Adopt, Body, Change, Key, Kind, Now, damaged, read_all
from cloud.sources.cluster.reflector import Reflector
from common.database_writer import RETRY_S, WriteFailed
from common.errors import SettingsError

log = logging.getLogger("csi_bridge.hub.records")

PLACE: Final = "the records in the cluster"
"""Their name in messages."""

_MOST_REQUESTS: Final = 32
"""At once. An API server queues more by itself (API Priority and Fairness)."""

_HUB: Final = f"{GROUP}/hub"
"""The label of objects that belong to no namespace: the namespace of their hub's Lease."""

_STATUS: Final[Path] = ("status",)
_STATUS_S: Final = 10.0
_STATUSES_S: Final = 50.0

_MOST_GONE: Final = 10_000
"""A watch that is so many deletions behind would take one of them for a claim of another hub."""

_TRIES: Final = 3
"""Of a write whose object somebody else changes meanwhile."""

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _Write:
    """A change that waits.

    Attributes:
        number: its place among all changes.
        path: the field.
        value: the field's value; None: no record.
        done: its end; None for a `put`.
        after: the change of the same `write` that must be written before.
        due: not sent before, in the loop's time.
    """

    number: int
    path: Path
    value: Any
    done: asyncio.Future[None] | None = None
    after: "_Write | None" = None
    due: float = 0.0

    @property
    def is_ready(self) -> bool:
        return self.after is None or self.after.done is None or self.after.done.done()


class _Event(NamedTuple):
    """An event of the watch: the object, and whether it is gone."""

    body: Body
    is_gone: bool


@dataclass(slots=True, eq=False)
class _Object:
    """An object, as the hub knows it.

    Attributes:
        place: its resource and name.
        version: its resource version; empty: there is no such object; None: not known.
        uid: its UID.
        records: the kind and key of the record in each field.
        waiting: the changes that wait, in their order.
        status_at: when a status was sent last, in the loop's time.
        worker: the task that sends the changes.
        wakes: the end of the wait for the next change that is due.
        event: the last event of the watch while the worker was busy.
    """

    place: Place
    version: str | None = ""
    uid: str = ""
    records: dict[Path, tuple[Kind, Key]] = field(default_factory=dict)
    waiting: list[_Write] = field(default_factory=list)
    status_at: float = -_STATUS_S
    worker: asyncio.Task[None] | None = None
    wakes: asyncio.TimerHandle | None = None
    event: "_Event | None" = None


class KubernetesRecords:
    """The records in a cluster (`Records`). Use `open`.

    Attributes:
        trouble: why writing fails; empty while it works.
    """

    def __init__(
        self, kube: Kube, namespace: str, *, still_leads: Callable[[], Awaitable[None]], retry_s: float = RETRY_S
    ) -> None:
        """Know nothing yet.

        Args:
            kube: the API server.
            namespace: of the Leases and the ConfigMap.
            still_leads: returns if no other hub leads; raises KubeError otherwise.
            retry_s: between a `put` that failed and its retry.
        """
        self.trouble = ""
        self._kube, self._namespace, self._still_leads, self._retry_s = kube, namespace, still_leads, retry_s
        self._objects: dict[tuple[str, str], _Object] = {}
        self._found: dict[Kind, list[tuple[Key, Body]]] = {}
        self._owners: dict[Kind, Now] = {}
        self._adopters: dict[Kind, Adopt] = {}
        self._gone: dict[str, None] = {}
        """The UIDs of the objects that went last, whose last events may not have come."""
        self._other_hub = ""
        """Why nothing may be written, because another hub uses the cluster; empty: none does."""
        self._numbers = itertools.count()
        self._requests = asyncio.Semaphore(_MOST_REQUESTS)
        self._next_status = 0.0
        self._closing = False
        self._following: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        """Read all records, and follow them from now on. Waits until the API server has answered."""
        listed = [_Copy(self, self._scoped(resource)) for resource in RESOURCES]
        for each in listed:
            reflector = Reflector(self._kube, each.resource, each)
            self._following.append(asyncio.create_task(reflector.run(), name=f"records {each.resource.plural}"))
        for each in listed:
            await each.complete

    # ---- Records -----------------------------------------------------------------------------------------------------

    def take(self, kind: Kind, read: Callable[[Key, Body], T]) -> list[T]:
        """All records of a kind (`Records.take`)."""
        return read_all(self._found.pop(kind, ()), read, kind=kind, place=PLACE)

    def watch(self, kind: Kind, now: Now, adopt: Adopt | None = None) -> None:
        """Put what memory has if somebody else changes a record of a kind (`Records.watch`)."""
        self._owners[kind] = now
        if adopt is not None:
            self._adopters[kind] = adopt

    def write(self, changes: Iterable[Change], *, grows: bool = False) -> asyncio.Future[None]:  # noqa: ARG002  # etcd's room is nobody's in particular
        """Write changes in their order (`Records.write`)."""
        last = None
        done = asyncio.get_running_loop().create_future()
        for change in changes:
            done = asyncio.get_running_loop().create_future()
            last = self._add(change, _Write(next(self._numbers), (), None, done, after=last))
        if last is None:
            done.set_result(None)
        return done

    def put(self, change: Change) -> None:
        """Write a change soon (`Records.put`)."""
        self._add(change, _Write(next(self._numbers), (), None))

    async def close(self) -> None:
        """Make one more attempt at the waiting writes, and end. A status that is not due yet is left out."""
        now = asyncio.get_running_loop().time()
        for it in self._objects.values():
            it.waiting = [write for write in it.waiting if write.path != _STATUS or write.due <= now]
        self._closing = True
        while waiting := [it for it in self._objects.values() if it.waiting]:
            for it in waiting:
                self._start(it)
            await asyncio.gather(*(it.worker for it in waiting if it.worker is not None))
        for task in self._following:
            task.cancel()
        await asyncio.gather(*self._following, return_exceptions=True)

    # ---- changes that wait -------------------------------------------------------------------------------------------

    def _add(self, change: Change, write: _Write) -> _Write:
        place = place_of(change.kind, change.key)
        write.path = place.path
        write.value = value_of(change.kind, change.key, change.body) if change.body is not None else None
        it = self._objects.setdefault((place.resource.kind, place.name), _Object(place))
        if self._closing:
            _fail(write, "the hub is stopping")
            return write
        if write.done is None:
            before = next((old for old in it.waiting if old.done is None and old.path == write.path), None)
            if before is not None:
                it.waiting.remove(before)
            write.due = 0.0 if write.value is None else before.due if before is not None else self._due(it, place)
        it.waiting.append(write)
        if write.after is not None and write.after.done is not None:
            write.after.done.add_done_callback(lambda _done: self._start(it))
        self._start(it)
        return write

    def _due(self, it: _Object, place: Place) -> float:
        """When a `put` may be sent."""
        if place.path != _STATUS:
            return 0.0
        now = asyncio.get_running_loop().time()
        self._next_status = max(self._next_status + 1 / _STATUSES_S, now)
        return max(self._next_status, it.status_at + _STATUS_S)

    def _start(self, it: _Object) -> None:
        if it.worker is None:
            it.worker = asyncio.create_task(self._work(it))

    async def _work(self, it: _Object) -> None:
        """Send the changes of one object until none is left that is due."""
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
        if it.event is not None:
            event, it.event = it.event, None
            self.seen(it.place.resource, *event)
        if not it.waiting and it.version == "":
            self._objects.pop((it.place.resource.kind, it.place.name), None)

    def _ready(self, it: _Object) -> list[_Write]:
        now = asyncio.get_running_loop().time()
        return [write for write in it.waiting if write.is_ready and (write.due <= now or self._closing)]

    async def _send(self, it: _Object, ready: list[_Write]) -> None:
        """Make one attempt at some changes, and end their waiting."""
        for write in list(ready):
            if write.after is not None and (error := _error_of(write.after)) is not None:
                ready.remove(write)
                it.waiting.remove(write)
                _fail(write, error.why)
        newest = {write.path: write for write in sorted(ready, key=lambda write: write.number)}
        if not newest:
            return
        try:
            async with self._requests:
                await self._apply(it, {path: write.value for path, write in newest.items()})
        except KubeError as error:
            self._note(str(error))
            self._failed(it, ready, str(error))
            return
        except Exception as error:  # a bug must not end the hub, and each caller must hear
            log.exception("writing %s failed because of a bug", it.place.name)
            self._failed(it, ready, f"a bug in CSI Bridge: {error!r}")
            return
        self._note("")
        it.waiting = [write for write in it.waiting if write not in ready]  # a newer `put` may have replaced some
        for write in ready:
            if write.done is not None and not write.done.done():
                write.done.set_result(None)
        for write in it.waiting:  # an older change, which waits for an earlier part of its `write`, must undo nothing
            if write.path in newest and write.number < newest[write.path].number:
                write.value = newest[write.path].value

    def _failed(self, it: _Object, ready: list[_Write], why: str) -> None:
        again = asyncio.get_running_loop().time() + self._retry_s
        for write in ready:
            if write.done is None and not self._closing:
                write.due = again
                continue
            it.waiting = [other for other in it.waiting if other is not write]  # a newer `put` may have replaced it
            _fail(write, why)

    def _note(self, why: str) -> None:
        if why and why != self.trouble:
            log.error("%s cannot be written; it is tried again: %s", PLACE, why)
        elif self.trouble and not why:
            log.info("%s are written again", PLACE)
        self.trouble = why

    # ---- requests ----------------------------------------------------------------------------------------------------

    async def _apply(self, it: _Object, values: Mapping[Path, Any]) -> None:
        """Bring an object to some values of its fields. Raises KubeError."""
        for left in reversed(range(_TRIES)):
            try:
                if it.version is None:
                    before = dict(it.records)
                    await self._refresh(it)
                    await self._still_leads()  # what was read may be the next hub's
                    others = {**before, **it.records}
                    self._put_again({path: others[path] for path in others.keys() - values.keys()})
                await self._apply_once(it, values)
            except KubeError as error:
                known, it.version = it.version, None
                if it.place.resource is PLACEMENT and known == "" and error.code == 409:
                    it.version = ""  # not this hub's: `seen` takes it
                    why = "another hub has written it, and this one has not read that yet; try again"
                    raise KubeError(f"create VolumePlacement {it.place.name}", 409, error.reason, why) from error
                if error.code not in (404, 409) or not left:
                    raise
                log.warning(
                    "%s %s is not as this hub has left it (version %s): %s",
                    it.place.resource.kind,
                    it.place.name,
                    known,
                    error,
                )
            else:
                return

    async def _apply_once(self, it: _Object, values: Mapping[Path, Any]) -> None:
        resource, name, namespace = it.place.resource, it.place.name, self._namespace_of(it.place.resource)
        if self._other_hub:
            raise KubeError(f"change {resource.kind} {name}", 0, "", self._other_hub)
        status = {path: value for path, value in values.items() if path == _STATUS}
        others = {path: value for path, value in values.items() if path != _STATUS}
        left = (it.records.keys() | values.keys()) - {path for path, value in values.items() if value is None}
        if not left:
            if it.version:
                await self._kube.delete(resource, name, namespace, uid=it.uid, version=it.version)
            self._forget(it)
            return
        if it.version == "":
            body = copy.deepcopy(it.place.frame)
            if namespace:
                body["metadata"]["namespace"] = namespace
            else:
                body["metadata"]["labels"] = {_HUB: self._namespace}
            for path, value in others.items():
                if value is not None:
                    _set(body, path, value)
            self._adopt(it, await self._kube.create(resource, body, namespace))
        elif others:
            self._adopt(it, await self._edit(it, others))
        if status:
            self._adopt(it, await self._edit(it, status, subresource="status"))
            it.status_at = asyncio.get_running_loop().time()

    async def _edit(self, it: _Object, values: Mapping[Path, Any], *, subresource: str = "") -> Body:
        """Set or remove fields of an object (RFC 6902). The version makes the server refuse a changed object (409)."""
        steps = [{"op": "replace", "path": "/metadata/resourceVersion", "value": it.version}]
        for path, value in values.items():
            pointer = "".join(f"/{part.replace('~', '~0').replace('/', '~1')}" for part in path)
            if value is not None:
                steps.append({"op": "add", "path": pointer, "value": value})
            elif path in it.records:
                steps.append({"op": "remove", "path": pointer})
        resource = it.place.resource
        return await self._kube.edit(
            resource, it.place.name, steps, self._namespace_of(resource), subresource=subresource
        )

    async def _refresh(self, it: _Object) -> None:
        try:
            body = await self._kube.get(it.place.resource, it.place.name, self._namespace_of(it.place.resource))
        except KubeError as error:
            if not error.is_missing:
                raise
            self._forget(it)
        else:
            self._adopt(it, body)

    def _adopt(self, it: _Object, body: Body) -> None:
        metadata = body["metadata"]
        it.version, it.uid = metadata["resourceVersion"], metadata["uid"]
        # If somebody has edited it beyond reading, what it had before is written again.
        with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):
            it.records = {place_of(kind, key).path: (kind, key) for kind, key, _ in records_in(it.place.resource, body)}

    def _forget(self, it: _Object) -> None:
        """Note that an object is gone. Events of it may still come."""
        self._gone[it.uid] = None
        if len(self._gone) > _MOST_GONE:
            del self._gone[next(iter(self._gone))]
        it.version, it.uid, it.records = "", "", {}

    def _namespace_of(self, resource: Resource) -> str:
        return self._namespace if resource.namespaced else ""

    def _scoped(self, resource: Resource) -> Resource:
        return replace(resource, namespace=self._namespace) if resource.namespaced else resource

    # ---- the copy ----------------------------------------------------------------------------------------------------

    def load(self, resource: Resource, bodies: Iterable[Body]) -> None:
        """Take the first list of a resource.

        Raises:
            SettingsError: an object has no readable record.
        """
        for body in bodies:
            name = (body.get("metadata") or {}).get("name")
            if why := self._of_other_hub(resource, body):
                raise SettingsError("--leader-election-namespace", self._namespace, why)
            try:
                for kind, key, found in records_in(resource, body):
                    place = place_of(kind, key)
                    if place.name != name:
                        raise damaged(PLACE, f"{resource.kind} {name} has the record of {place.name}")
                    self._found.setdefault(kind, []).append((key, found))
                    self._adopt(self._objects.setdefault((resource.kind, place.name), _Object(place)), body)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise damaged(PLACE, f"{resource.kind} {name} cannot be read: {error!r}") from error

    def compare(self, resource: Resource, bodies: Iterable[Body]) -> None:
        """Take a later list of a resource: the watch has missed something."""
        missing = {name for kind, name in self._objects if kind == resource.kind}
        for body in bodies:
            name, version = body["metadata"]["name"], body["metadata"]["resourceVersion"]
            missing.discard(name)
            self.seen(resource, body, is_gone=False)
            it = self._objects.get((resource.kind, name))
            if it is not None and it.version and int(version) < int(it.version):  # an older copy was restored
                missing.add(name)
        for name in missing:
            it = self._objects[resource.kind, name]
            if it.version and it.worker is None:
                self._write_again(it)

    def seen(self, resource: Resource, body: Body, is_gone: bool) -> None:  # noqa: FBT001  # the fields of an event
        """Take an event of the watch. An event of an own write tells nothing new."""
        metadata = body["metadata"]
        it = self._objects.get((resource.kind, metadata["name"]))
        if it is not None and it.worker is not None:
            it.event = _Event(body, is_gone)
        elif it is None or it.version == "":
            if not is_gone and metadata["uid"] not in self._gone:
                self._found_late(resource, body)
        elif it.version is None or int(metadata["resourceVersion"]) > int(it.version):
            self._write_again(it)

    def _found_late(self, resource: Resource, body: Body) -> None:
        """Let the owners take the records of an object that this hub has not made."""
        name = body["metadata"]["name"]
        if why := self._of_other_hub(resource, body):
            if not self._other_hub:
                log.error("nothing is written any more: %s", why)
            self._other_hub = why
            return
        try:
            found = [it for it in records_in(resource, body) if it[0] in self._adopters]
            if not found or any(place_of(kind, key).name != name for kind, key, _ in found):
                log.warning("%s %s was made by somebody else, and counts for nothing", resource.kind, name)
            elif all(self._adopters[kind](key, record) for kind, key, record in found):
                self._adopt(self._objects.setdefault((resource.kind, name), _Object(place_of(*found[0][:2]))), body)
                log.warning("%s %s was written late by a hub before this one, and counts", resource.kind, name)
            elif not self._closing:  # a call of this hub has the name, and is about to fail
                asyncio.get_running_loop().call_later(self._retry_s, self.seen, resource, body, False)  # noqa: FBT003  # as above
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            log.warning("%s %s was made by somebody else, and cannot be read: %r", resource.kind, name, error)

    def _of_other_hub(self, resource: Resource, body: Body) -> str:
        """Whether an object is of a hub whose Lease is in another namespace, in a sentence; else empty."""
        hub = ((body.get("metadata") or {}).get("labels") or {}).get(_HUB, self._namespace)
        if resource.namespaced or hub == self._namespace:
            return ""
        name = (body.get("metadata") or {}).get("name")
        return (
            f"{resource.kind} {name} belongs to a hub whose Lease is in the namespace {hub} (label {_HUB}): all hubs "
            f"of a cluster must share one Lease; give --leader-election-namespace={hub}, or see "
            f"docs/on-kubernetes.md#one-hub-at-a-time"
        )

    def _write_again(self, it: _Object) -> None:
        """Put what memory has of an object that somebody else has changed, after a look who leads (`_apply`)."""
        log.warning("somebody else has changed %s %s; it is written again", it.place.resource.kind, it.place.name)
        it.version = None
        self._put_again(it.records)

    def _put_again(self, records: Mapping[Path, tuple[Kind, Key]]) -> None:
        for kind, key in list(records.values()):
            if kind in self._owners:
                self.put(self._owners[kind](key))


class _Copy:
    """The objects of one resource, for its reflector.

    Attributes:
        complete: ends when the first list is there, or raises SettingsError.
    """

    def __init__(self, records: KubernetesRecords, resource: Resource) -> None:
        self.resource, self._records = resource, records
        self.complete: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._listed: list[Body] = []

    def begin(self) -> None:
        self._listed = []

    def add(self, body: Mapping[str, Any]) -> None:
        self._listed.append(dict(body))

    def end(self) -> None:
        listed, self._listed = self._listed, []
        if self.complete.done():
            self._records.compare(self.resource, listed)
            return
        try:
            self._records.load(self.resource, listed)
        except SettingsError as error:
            self.complete.set_exception(error)
        else:
            self.complete.set_result(None)

    def put(self, body: Mapping[str, Any]) -> None:
        self._records.seen(self.resource, dict(body), is_gone=False)

    def remove(self, body: Mapping[str, Any]) -> None:
        self._records.seen(self.resource, dict(body), is_gone=True)


def _error_of(write: _Write) -> WriteFailed | None:
    error = write.done.exception() if write.done is not None and write.done.done() else None
    return error if isinstance(error, WriteFailed) else None


def _fail(write: _Write, why: str) -> None:
    if write.done is not None and not write.done.done():
        write.done.set_exception(WriteFailed(PLACE, why))
        write.done.exception()  # a caller that has left does not hear of it


def _set(body: Body, path: Path, value: Any) -> None:
    for part in path[:-1]:
        body = body.setdefault(part, {})
    body[path[-1]] = value
