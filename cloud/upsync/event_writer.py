"""An event writer: the Events that nodes tell, one for each cause.

Rules:

* The node gives an event its name, the same for the same cause. Told again, its count and its last time are raised,
  never lowered: a node that was restarted counts anew.
* An Event of that name that another one made, or about something else, stays as it is.
* Who says it is the agent of the node that told it, whatever it writes there.
* What an event is about may be gone, or another object of its name: the event is written all the same. Where its
  namespace is gone or going, and if the API server does not take it as it is, nobody is left to read it.
"""

import logging
from datetime import UTC, datetime
from typing import Any, Final

from cloud.kube import RESOURCES, Body, KubeError
from cloud.upsync.write_api import WriteApi
from common.objects import Ref

log = logging.getLogger("csi_bridge.hub.upsync")

_EVENTS: Final = RESOURCES["Event"]

_TELLER: Final = "csi-bridge-edge"
"""The component that every event of a node is of."""

_SAME: Final = ("reason", "message", "type", "reportingComponent", "reportingInstance")
"""Fields in which two events of one cause do not differ; what it is about is one more."""

_ENDING: Final = "being terminated"
"""What the API server says of a namespace in which nothing can be created any more (NamespaceLifecycle)."""


class EventWriter:
    """Writes the events that nodes tell."""

    def __init__(self, api: WriteApi) -> None:
        """Nothing is written yet."""
        self._api = api

    async def write(self, node: str, ref: Ref, fact: Body | None) -> None:
        """Write an event. None: the node tells it no more; it has happened all the same.

        Raises:
            KubeError: to be tried again.
        """
        if fact is None:
            return
        try:
            await self._put(ref, _event(node, ref, fact))
        except KubeError as error:
            if not _is_void(error):
                raise
            log.info("an event of node %s is dropped: %s", node, error)

    def forget(self, _node: str, _ref: Ref) -> None:
        """Nothing here is remembered."""

    def problems(self) -> list[str]:
        """Nothing here waits for people."""
        return []

    async def _put(self, ref: Ref, told: Body) -> None:
        try:
            await self._api.create(_EVENTS, told, ref.namespace)
        except KubeError as error:
            if error.reason != "AlreadyExists":
                raise
            await self._raise(ref, told)

    async def _raise(self, ref: Ref, told: Body) -> None:
        """Raise the count and the last time of an event that is there."""
        found = await self._api.get(_EVENTS, ref.name, ref.namespace)
        if not _is_same(found, told):
            log.warning("%s is not written: there is another one of this name", ref)
            return
        change: dict[str, Any] = {}
        if told.get("count", 0) > (found.get("count") or 0):
            change["count"] = told["count"]
        if _time(told) > _time(found):
            change["lastTimestamp"] = told["lastTimestamp"]
        if change:
            version = {"resourceVersion": found["metadata"]["resourceVersion"]}
            await self._api.patch(_EVENTS, ref.name, {"metadata": version, **change}, ref.namespace)


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
    """Whether two events are of one cause."""
    abouts = [event.get("involvedObject") or {} for event in (found, told)]
    if any(abouts[0].get(name, "") != abouts[1].get(name, "") for name in ("kind", "name", "uid")):
        return False
    return all((found.get(name) or "") == (told.get(name) or "") for name in _SAME)


def _is_void(error: KubeError) -> bool:
    """Whether the same event can never be written."""
    return error.code in {400, 404, 422} or (error.code == 403 and _ENDING in str(error))


def _time(event: Body) -> datetime:
    """When it was last; long ago if it does not say so in words that the API server takes."""
    try:
        last = datetime.fromisoformat(event.get("lastTimestamp") or "")
    except ValueError:
        return datetime.min.replace(tzinfo=UTC)
    return last if last.tzinfo is not None else last.replace(tzinfo=UTC)
