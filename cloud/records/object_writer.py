"""Writes objects of the cluster: brings fields of one object to their values, also if somebody else has changed it.

Rules:

* Each write replaces the version that the hub knows. If the object has another one, somebody else has written it: then
  the hub first makes sure that it still leads, and writes its own state, which is the truth while it leads.
* A request without an answer may have been carried out. The next one reads the object first, and makes sure as above.
* A claim that this hub has not written is of a hub before it whose request came late, and which may have sent the call:
  it is never written over.
* Every object says which namespace its hub's Lease is in. Hubs with Leases in two namespaces would not know of each
  other, so none works with the objects of another one.
"""

import copy
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final

from cloud.kube.client import Kube, KubeError, Resource, find
from cloud.records.object_copy import HUB, StoredObject
from cloud.records.objects import PLACEMENT, STATUS, Path, RecordPlace
from cloud.records.records import Body, Key, RecordKind

log = logging.getLogger("csi_bridge.hub.records")

_TRIES: Final = 3  # of a write whose object somebody else changes meanwhile
_MOST_GONE: Final = 10_000  # A watch that is so many deletions behind would take one of them for a claim of another hub


class ObjectWriter:
    """The requests of the hub that leads. One at a time may change an object."""

    def __init__(
        self,
        kube: Kube,
        namespace: str,
        still_leads: Callable[[], Awaitable[None]],
        put_again: Callable[[Iterable[tuple[RecordKind, Key]]], None],
    ) -> None:
        """`kube` is for the time in which the hub leads, `namespace` that of its Lease.

        `put_again` gets records that somebody else may have changed.
        """
        self.other_hub = ""  # why nothing may be written, because another hub uses the cluster; empty: none does
        self.gone: dict[str, None] = {}  # the UIDs of the objects that went last, whose last events may not have come
        self.still_leads = still_leads  # returns if no other hub leads; raises KubeError otherwise
        self._kube = kube
        self._namespace = namespace
        self._put_again = put_again

    async def apply(self, place: RecordPlace, it: StoredObject, values: Mapping[Path, Any]) -> None:
        """Bring an object to some values of its fields; None removes one. Raises KubeError."""
        resource = place.resource
        name = place.name
        for left in reversed(range(_TRIES)):
            try:
                if it.version is None:
                    before = dict(it.records)
                    await self._refresh(place, it)
                    await self.still_leads()  # what was read may be the next hub's
                    others = {**before, **it.records}
                    self._put_again([others[path] for path in others.keys() - values.keys()])
                await self._apply_once(place, it, values)
            except KubeError as error:
                known = it.version
                it.version = None
                if resource is PLACEMENT and known == "" and error.code == 409:
                    it.version = ""  # not this hub's: its owner takes it (`Records.watch`)
                    why = "another hub has written it, and this one has not read that yet; try again"
                    raise KubeError(f"create VolumePlacement {name}", 409, error.reason, why) from error
                if error.code not in (404, 409) or not left:
                    raise
                log.warning("%s %s is not as this hub has left it (version %s): %s", resource.kind, name, known, error)
            else:
                return

    async def _apply_once(self, place: RecordPlace, it: StoredObject, values: Mapping[Path, Any]) -> None:
        resource = place.resource
        name = place.name
        namespace = self._namespace_of(place.resource)
        if self.other_hub:
            raise KubeError(f"change {resource.kind} {name}", 0, "", self.other_hub)
        status = {path: value for path, value in values.items() if path == STATUS}
        others = {path: value for path, value in values.items() if path != STATUS}
        left = (it.records.keys() | values.keys()) - {path for path, value in values.items() if value is None}
        if not left:
            if it.version:
                await self._kube.delete(resource, name, namespace, uid=it.uid, version=it.version)
            self._forget(it)
            return
        if it.version == "":
            body = copy.deepcopy(place.frame)
            if namespace:
                body["metadata"]["namespace"] = namespace
            else:
                body["metadata"]["labels"] = {HUB: self._namespace}
            for path, value in others.items():
                if value is not None:
                    _set(body, path, value)
            it.adopt(resource, await self._kube.create(resource, body, namespace))
        elif others:
            it.adopt(resource, await self._edit(place, it, others))
        if status:
            it.adopt(resource, await self._edit(place, it, status, subresource="status"))

    async def _edit(
        self, place: RecordPlace, it: StoredObject, values: Mapping[Path, Any], *, subresource: str = ""
    ) -> Body:
        # The version makes the server refuse an object that somebody else has changed (409).
        steps = [{"op": "replace", "path": "/metadata/resourceVersion", "value": it.version}]
        for path, value in values.items():
            pointer = "".join(f"/{part.replace('~', '~0').replace('/', '~1')}" for part in path)
            if value is not None:
                steps.append({"op": "add", "path": pointer, "value": value})
            elif path in it.records:
                steps.append({"op": "remove", "path": pointer})
        namespace = self._namespace_of(place.resource)
        return await self._kube.edit(place.resource, place.name, steps, namespace, subresource=subresource)

    async def _refresh(self, place: RecordPlace, it: StoredObject) -> None:
        body = await find(self._kube, place.resource, place.name, self._namespace_of(place.resource))
        if body is None:
            self._forget(it)
        else:
            it.adopt(place.resource, body)

    def _forget(self, it: StoredObject) -> None:
        self.gone[it.uid] = None  # events of it may still come
        if len(self.gone) > _MOST_GONE:
            del self.gone[next(iter(self.gone))]
        it.version = ""
        it.uid = ""
        it.records = {}

    def _namespace_of(self, resource: Resource) -> str:
        return self._namespace if resource.namespaced else ""


def _set(body: Body, path: Path, value: Any) -> None:
    for part in path[:-1]:
        body = body.setdefault(part, {})
    body[path[-1]] = value
