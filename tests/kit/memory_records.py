"""Records in memory: the next hub of a test takes them again, and a test says what the disk takes.

They give each body back as a cluster would.
"""

import asyncio
import copy
import json
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, TypeVar

from cloud.records.objects import place_of, records_in, value_of
from cloud.records.records import Adopt, Body, Change, Key, Now, RecordKind, read_all
from common.store.database_writer import WriteFailed
from tests.kit.deployed import CRDS, objects

T = TypeVar("T")


@cache
def _schemas() -> dict[str, Any]:
    """By kind of custom resource."""
    found = [it["spec"] for it in objects(CRDS)]
    return {it["names"]["kind"]: it["versions"][0]["schema"]["openAPIV3Schema"] for it in found}


def _check(value: Any, schema: dict[str, Any], where: str) -> None:
    """Check that a schema has all fields of a value: the API server drops others."""
    if isinstance(value, dict):
        for name, inner in value.items():
            known = schema.get("properties", {}).get(name, schema.get("additionalProperties"))
            assert known is not None, f"{CRDS} has no field {where}.{name}"
            _check(inner, known, f"{where}.{name}")
    elif isinstance(value, list):
        for inner in value:
            _check(inner, schema["items"], f"{where}[]")


def as_read_back(change: Change) -> tuple[RecordKind, Key, Body]:
    """A record as it is read back from its object. An API server drops a custom resource's fields that are null."""
    place = place_of(change.kind, change.key)
    made = copy.deepcopy(place.frame)
    field = made
    for part in place.path[:-1]:
        field = field.setdefault(part, {})
    assert change.body is not None
    body = {name: it for name, it in change.body.items() if it is not None or place.resource.namespaced}
    field[place.path[-1]] = value_of(change.kind, change.key, body)
    made = json.loads(json.dumps(made))
    if not place.resource.namespaced:
        schema = _schemas()[place.resource.kind]
        for part in ("spec", "status"):
            _check(made.get(part), schema["properties"].get(part, {}), part)
    (found,) = records_in(place.resource, made)
    return found


class MemoryRecords:
    """The records of one hub after another (`cloud.records.records.Records`)."""

    def __init__(self) -> None:
        self.kept: dict[tuple[RecordKind, Key], str] = {}  # all that the disk has, as JSON
        self.room: int | None = None  # the number of changes that the disk takes before it is full; None: it is not
        # The writes that wait for `end_writes`, with their ends; None: no write waits.
        self.held: list[tuple[asyncio.Future[None], list[Change]]] | None = None
        self._waiting: dict[tuple[RecordKind, Key], Change] = {}

    @property
    def trouble(self) -> str:
        return "full" if self._waiting else ""

    def take(self, kind: RecordKind, read: Callable[[Key, Body], T]) -> list[T]:
        """All records that the disk has: what waits is lost."""
        self._waiting.clear()
        found = ((key, json.loads(body)) for (of, key), body in self.kept.items() if of is kind)
        return read_all(found, read, kind=kind, place="memory")

    def write(self, changes: Iterable[Change]) -> asyncio.Future[None]:
        done = asyncio.get_running_loop().create_future()
        if self.held is not None:
            self.held.append((done, list(changes)))
        else:
            self._end(done, changes)
        return done

    def end_writes(self) -> None:
        """End the writes that are held."""
        assert self.held is not None
        held, self.held = self.held, []
        for done, changes in held:
            self._end(done, changes)

    def watch(self, kind: RecordKind, now: Now, adopt: Adopt | None = None) -> None:
        """Nobody else changes them."""

    def put(self, change: Change) -> None:
        if not self._keep(change):
            self._waiting[change.kind, change.key] = change

    def retry(self) -> None:
        """Make room, and write what waits."""
        self.room = None
        for change in [*self._waiting.values()]:
            self._keep(change)

    async def still_leads(self) -> None:
        """No other hub has them."""

    async def close(self) -> None:
        self.retry()

    def _end(self, done: asyncio.Future[None], changes: Iterable[Change]) -> None:
        if all(self._keep(it) for it in changes):
            done.get_loop().call_soon(done.set_result, None)
        else:
            done.get_loop().call_soon(done.set_exception, WriteFailed("memory", "no space left on device"))

    def _keep(self, change: Change) -> bool:
        if self.room == 0:
            return False
        if self.room is not None:
            self.room -= 1
        self._waiting.pop((change.kind, change.key), None)
        if change.body is None:
            self.kept.pop((change.kind, change.key), None)
        else:
            kind, key, body = as_read_back(change)
            self.kept[kind, key] = json.dumps(body)
        return True
