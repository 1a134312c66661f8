"""An event queue: writes the Events that the hub itself makes.

Rules:

* A name per cause: an Event that is written again, because the answer was lost, is the same one.
* A failed write is tried again, without end. Of many that wait, as in an outage, the newest ones are kept.
* An Event that the API server refuses for good is dropped.
"""

import logging
from collections.abc import Iterable
from datetime import UTC, datetime
from hashlib import sha256
from typing import Final

from cloud.kube import RESOURCES, Body, Kube, KubeError
from cloud.upsync.event_writer import is_void
from cloud.upsync.write_queue import WriteQueue

log = logging.getLogger("csi_bridge.hub.upsync")

_EVENTS: Final = RESOURCES["Event"]

_MOST: Final = 100
"""Events that wait. They are rare: an election takes a second at least, so a hub with several drivers may hold some."""

_MOST_CHARS: Final = 1024
"""Of an Event's message (kubernetes pkg/apis/core/validation/events.go)."""

_NAMESPACE: Final = "default"
"""Of the Events of objects that belong to no namespace (the same file)."""


def event(about: Body, name: str, *, cause: Iterable[object], reason: str, text: str, at: float, kind: str) -> Body:
    """An Event about an object: `about` has its kind, apiVersion, name, uid, and namespace if it has one.

    An Event of the same cause about the same object has the same name, which begins with `name`. `at` is in seconds
    since the epoch, `kind` is Normal or Warning.
    """
    time = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    digest = sha256(" ".join(map(str, (about["kind"], about["uid"], *cause))).encode()).hexdigest()[:16]
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{name}.{digest}", "namespace": about.get("namespace", _NAMESPACE)},
        "involvedObject": about,
        "type": kind,
        "reason": reason,
        "message": text[:_MOST_CHARS],
        "source": {"component": "csi-bridge-hub"},
        "firstTimestamp": time,
        "lastTimestamp": time,
        "count": 1,
    }


async def write(api: Kube, body: Body) -> None:
    """Write an Event, unless it is there or can never be written. Raises KubeError; try again."""
    try:
        await api.create(_EVENTS, body, body["metadata"]["namespace"])
    except KubeError as error:
        if error.reason != "AlreadyExists":
            if not is_void(error):
                raise
            log.info("an event of the hub is dropped: %s", error)


class EventQueue:
    """Events on their way to the API server. `add` from the loop; `close` ends it."""

    def __init__(self, api: Kube) -> None:
        self._api = api
        self._waiting: dict[str, Body] = {}
        self._queue: WriteQueue[str] = WriteQueue(self._write)

    def add(self, body: Body) -> None:
        name = body["metadata"]["name"]
        self._waiting[name] = body
        self._queue.add(name)
        while len(self._waiting) > _MOST:
            oldest = next(iter(self._waiting))
            del self._waiting[oldest]
            self._queue.discard(oldest)

    def problems(self) -> list[str]:
        return self._queue.problems()

    async def close(self) -> None:
        await self._queue.close()

    async def _write(self, name: str) -> None:
        await write(self._api, self._waiting[name])
        del self._waiting[name]
