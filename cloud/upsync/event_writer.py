"""An event writer: writes the nodes' Events, one for each cause; and the Events that the hub itself makes.

Rules:

* The node names an event, with the same name for the same cause. A repeated event raises its count and its last time.
  It never lowers them, because a restarted node counts anew.
* If another writer made an Event of that name, or the Event is about another object, it stays as it is.
* The hub sets the reporting component and node itself.
* An event is written even if its object is gone or was made anew. If its namespace is gone or terminating, or the API
  server refuses the event as invalid, it is dropped.
"""

import logging
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any, Final

from cloud.kube.client import RESOURCES, Body, Kube, KubeError, patch_found
from cloud.upsync.writer import FactWriter
from common.errors import seconds_of, timestamp
from common.objects.objects import Ref

log = logging.getLogger("csi_bridge.hub.upsync")

_EVENTS: Final = RESOURCES["Event"]
_TELLER: Final = "csi-bridge-edge"  # the reporting component of all events of nodes

# The fields, besides the involved object, that are equal in two events of one cause.
_SAME: Final = ("reason", "message", "type", "reportingComponent", "reportingInstance")
_ENDING: Final = "being terminated"  # the API server's words for a namespace that takes no new object

# Of the message of an Event, or of a condition (kubernetes pkg/apis/core/validation/events.go).
MOST_CHARS: Final = 1_024
_NAMESPACE: Final = "default"  # of the Events of objects that belong to no namespace (the same file)


class EventWriter(FactWriter):
    """Writes the nodes' events."""

    async def write(self, node: str, ref: Ref, fact: Body | None) -> None:
        if fact is None:
            return
        try:
            await self._put(ref, _event(node, ref, fact))
        except KubeError as error:
            if not _is_void(error):
                raise
            log.info("an event of node %s is dropped: %s", node, error)

    async def _put(self, ref: Ref, told: Body) -> None:
        try:
            await self._api.create(_EVENTS, told, ref.namespace)
        except KubeError as error:
            if error.reason != "AlreadyExists":
                raise
            await self._raise(ref, told)

    async def _raise(self, ref: Ref, told: Body) -> None:
        found = await self._api.get(_EVENTS, ref.name, ref.namespace)
        if not _is_same(found, told):
            log.warning("%s is not written: there is another one of this name", ref)
            return
        change: dict[str, Any] = {}
        if told.get("count", 0) > (found.get("count") or 0):
            change["count"] = told["count"]
        if seconds_of(told.get("lastTimestamp")) > seconds_of(found.get("lastTimestamp")):
            change["lastTimestamp"] = told["lastTimestamp"]
        if change:
            await patch_found(self._api, _EVENTS, found, change)


def _event(node: str, ref: Ref, fact: Body) -> Body:
    return {
        **fact,
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"namespace": ref.namespace, "name": ref.name},
        "source": {"component": _TELLER, "host": node},
        "reportingComponent": _TELLER,
        "reportingInstance": node,
    }


def _is_same(found: Body, told: Body) -> bool:
    abouts = [event.get("involvedObject") or {} for event in (found, told)]
    if any(abouts[0].get(name, "") != abouts[1].get(name, "") for name in ("kind", "name", "uid")):
        return False
    return all((found.get(name) or "") == (told.get(name) or "") for name in _SAME)


def _is_void(error: KubeError) -> bool:
    return error.code in {400, 404, 422} or (error.code == 403 and _ENDING in str(error))


def reference(kind: str, body: Mapping[str, Any]) -> Body:
    version = RESOURCES[kind].group.removeprefix("apis/").removeprefix("api/")
    named = {name: body["metadata"].get(name, "") for name in ("name", "namespace", "uid")}
    return {"kind": kind, "apiVersion": version, **{name: text for name, text in named.items() if text}}


def event(about: Body, name: str, *, cause: Iterable[object], reason: str, text: str, at: float, kind: str) -> Body:
    """An Event about an object (`reference`).

    An Event of the same cause about the same object has the same name, which begins with `name`. `at` is in seconds
    since the epoch, `kind` is Normal or Warning.
    """
    time = timestamp(at)
    digest = sha256(" ".join(map(str, (about["kind"], about.get("uid", ""), *cause))).encode()).hexdigest()[:16]
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{name}.{digest}", "namespace": about.get("namespace") or _NAMESPACE},
        "involvedObject": about,
        "type": kind,
        "reason": reason,
        "message": text[:MOST_CHARS],
        "source": {"component": "csi-bridge-hub"},
        "firstTimestamp": time,
        "lastTimestamp": time,
        "count": 1,
    }


async def write_event(api: Kube, body: Body) -> None:
    """Write an Event, unless it is there or can never be written. Raises KubeError; try again."""
    try:
        await api.create(_EVENTS, body, body["metadata"]["namespace"])
    except KubeError as error:
        if error.reason != "AlreadyExists":
            if not _is_void(error):
                raise
            log.info("an event of the hub is dropped: %s", error)
