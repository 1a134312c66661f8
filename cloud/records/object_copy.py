"""A copy of one resource's objects in the cluster: that of a standby, which becomes the leader's.

Rules:

* A standby reads, and writes nothing. It keeps each record as JSON, because parsed ones take several times the memory.
* An object that cannot be read stops a hub that begins to lead. A standby waits: the leader writes its records again.
* A hub that begins to lead has seen each write that the API server accepted before (`catch_up`). It changes an
  annotation of one object, and waits until the copy has that change: a watch shows the changes of a resource in their
  order. If there is no object, the version of an empty list tells which events come too late to count.
* The leader makes its own changes in the copy, and judges those of others itself.
"""

import asyncio
import contextlib
import json
import logging
import random
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from cloud.kube.client import Kube, KubeError, Resource
from cloud.records.objects import GROUP, Path, place_of, records_in
from cloud.records.records import CLUSTER, Body, Key, RecordKind, damaged
from cloud.sources.cluster.reflector import Reflector
from common.errors import SettingsError

log = logging.getLogger("csi_bridge.hub.records")

HUB: Final = f"{GROUP}/hub"  # the label of objects that belong to no namespace: the namespace of their hub's Lease
_READ: Final = f"{GROUP}/read"  # the annotation that a hub changes when it begins to lead


@dataclass(slots=True, eq=False)
class StoredObject:
    """An object, as the hub knows it."""

    version: str | None = ""  # its resource version; empty: there is no such object; None: not known
    uid: str = ""
    records: dict[Path, tuple[RecordKind, Key]] = field(
        default_factory=dict
    )  # the kind and key of the record in each field
    bodies: tuple[str, ...] = ()  # of these records, as JSON, until the hub leads
    damage: SettingsError | None = None  # why they cannot be read
    status_at: float | None = None  # when this hub has sent its status, in the loop's time

    def adopt(self, resource: Resource, body: Body) -> None:
        """Take the state of the object that the API server has answered."""
        metadata = body["metadata"]
        self.version = metadata["resourceVersion"]
        self.uid = metadata["uid"]
        # If somebody has edited it beyond reading, what it had before is written again.
        with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):
            self.records = {place_of(kind, key).path: (kind, key) for kind, key, _ in records_in(resource, body)}


class ObjectCopy:
    """The objects of one resource. `open` begins to follow them."""

    def __init__(self, kube: Kube, resource: Resource, namespace: str) -> None:
        self.resource = resource  # in the namespace of the hub's Lease, if it is namespaced
        self.objects: dict[str, StoredObject] = {}  # by name; the leader's also while it makes or deletes one
        self._kube = kube
        self._namespace = namespace
        self._following: asyncio.Task[None] | None = None
        self._complete, self._changed, self._leads_soon = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._listed: dict[str, StoredObject] | None = None  # the list that is being read
        self._seen: Callable[[Resource, Body, bool], None] | None = None
        self._stale: Callable[[Resource, str], None] = lambda _resource, _name: None
        # The leader's objects that a list has not shown yet, with their versions at its begin
        self._unlisted: dict[str, str | None] = {}
        self._empty_at = 0  # There was no object in this version. Events of earlier ones say nothing.

    def open(self) -> None:
        if self._following is not None:
            self._following.cancel()
        self._complete.clear()
        self._listed = None
        reflector = Reflector(self._kube, self.resource, self, pause=self._pause)
        self._following = asyncio.create_task(reflector.run(), name=f"records {self.resource.plural}")

    async def close(self) -> None:
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)

    async def catch_up(self, kube: Kube, *, retry_s: float) -> None:
        """Wait until the copy has all that the API server has accepted before. `kube` writes."""
        self._leads_soon.set()
        self._leads_soon = asyncio.Event()  # only the present wait ends early: later ones spare the API server
        await self._complete.wait()
        why = ""
        while True:
            try:
                if await self._has_caught_up(kube, retry_s):
                    return
            except KubeError as error:
                if str(error) != why:
                    log.warning("the hub waits until its copy of %s is up to date: %s", self.resource.plural, error)
                why = str(error)
            await asyncio.sleep(retry_s)

    async def _has_caught_up(self, kube: Kube, retry_s: float) -> bool:
        # False: the copy is behind, and lacks the object that would tell.
        if not self.objects:
            page = await self._kube.list(self.resource, limit=1)
            self._empty_at = int(page.version)
            return not page.items and not self.objects
        readable = [(name, it) for name, it in self.objects.items() if it.damage is None]
        if not readable:
            return True  # `hand_over` says why
        name, it = random.choice(readable)  # noqa: S311  # no secret
        change = {"metadata": {"uid": it.uid, "annotations": {_READ: secrets.token_hex(8)}}}
        changed = await kube.patch(self.resource, name, change, self.resource.namespace)
        version = int(changed["metadata"]["resourceVersion"])
        while (now := self.objects.get(name)) is not None and now.uid == it.uid and int(now.version or 0) < version:
            self._changed.clear()
            try:
                async with asyncio.timeout(retry_s):
                    await self._changed.wait()
            except TimeoutError:  # the watch's server may be lost, which TCP tells later
                log.warning("the watch of %s is silent, so they are listed again", self.resource.plural)
                self.open()
                await self._complete.wait()
        return True

    def hand_over(
        self, seen: Callable[[Resource, Body, bool], None], stale: Callable[[Resource, str], None]
    ) -> list[tuple[RecordKind, Key, str]]:
        """Return all records, their bodies as JSON: from now on the hub leads.

        `seen` gets each object that may have changed, and whether it is gone. `stale` gets the name of an object that a
        list lacks, or has in an older version than the hub knows. Raises SettingsError if an object cannot be read.
        """
        found = []
        for it in self.objects.values():
            if it.damage is not None:
                raise it.damage
            found += [(kind, key, body) for (kind, key), body in zip(it.records.values(), it.bodies, strict=True)]
            it.bodies = ()
        self._seen = seen
        self._stale = stale
        if self._listed is not None:  # its first part was not compared
            self.open()
        return found

    # ---- cloud.sources.cluster.reflector.KindCache -------------------------------------------------------------------

    def begin(self) -> None:
        self._listed = {}
        self._empty_at = 0
        there = self.objects.items() if self._seen is not None else ()
        self._unlisted = {name: it.version for name, it in there if it.version != ""}

    def add(self, body: Mapping[str, Any]) -> None:
        """Take an object of the list. One that is older than the leader's counts as missing: it was restored."""
        metadata = body["metadata"]
        if self._seen is None:
            assert self._listed is not None
            self._listed[metadata["name"]] = self._read(dict(body))
        elif int(metadata["resourceVersion"]) >= int(self._unlisted.get(metadata["name"]) or 0):
            self._unlisted.pop(metadata["name"], None)
            self._seen(self.resource, dict(body), False)  # noqa: FBT003  # it is not gone

    def end(self) -> None:
        if self._seen is None:
            self.objects = self._listed or {}
        self._listed = None
        for name, version in self._unlisted.items():
            if (it := self.objects.get(name)) is not None and it.version == version:  # the hub has not written it since
                self._stale(self.resource, name)
        self._complete.set()
        self._changed.set()

    def take(self, body: Mapping[str, Any], *, is_gone: bool) -> None:
        if self._seen is None:
            if is_gone:
                self.objects.pop(body["metadata"]["name"], None)
            else:
                self.objects[body["metadata"]["name"]] = self._read(dict(body))
            self._changed.set()
        elif int(body["metadata"]["resourceVersion"]) > self._empty_at:
            self._seen(self.resource, dict(body), is_gone)

    def _read(self, body: Body) -> StoredObject:
        name = body["metadata"]["name"]
        it = StoredObject(body["metadata"]["resourceVersion"], body["metadata"]["uid"])
        if why := of_other_hub(self.resource, body, self._namespace):
            it.damage = SettingsError("--leader-election-namespace", self._namespace, why)
            return it
        try:
            for kind, key, found in records_in(self.resource, body):
                place = place_of(kind, key)
                if place.name != name:
                    it.damage = damaged(CLUSTER, f"{self.resource.kind} {name} has the record of {place.name}")
                it.records[place.path] = kind, key
                it.bodies += (json.dumps(found, ensure_ascii=False),)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            it.damage = damaged(CLUSTER, f"{self.resource.kind} {name} cannot be read: {error!r}")
        return it

    async def _pause(self, wait_s: float) -> None:
        # A hub that begins to lead does not wait until the reflector's backoff is over (`catch_up`).
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._leads_soon.wait()


def of_other_hub(resource: Resource, body: Body, namespace: str) -> str:
    """Whether an object is of a hub whose Lease is in another namespace, in a sentence; else empty."""
    hub = (body["metadata"].get("labels") or {}).get(HUB, namespace)
    if resource.namespaced or hub == namespace:
        return ""
    return (
        f"{resource.kind} {body['metadata']['name']} belongs to a hub whose Lease is in the namespace {hub} (label "
        f"{HUB}): all hubs of a cluster must share one Lease; give --leader-election-namespace={hub}, or see "
        f"docs/on-kubernetes.md#one-hub-at-a-time"
    )
