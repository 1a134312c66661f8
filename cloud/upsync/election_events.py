"""Election events: an Event for each election of a serving node, on the driver's CSIDriver and on the node's Node.

Rules:

* `kubectl describe` shows an Event only at an object that exists. So each of the two gets one if it exists.
* A name per election: an Event that is written again, because the answer was lost, is the same one.
* A failed write is tried again, without end. Of many that wait, as in an outage, the newest ones are kept.
"""

import logging
from collections.abc import Iterator
from datetime import UTC, datetime
from hashlib import sha256
from typing import Final

from cloud.election import FIRST, Elected
from cloud.kube import RESOURCES, Body, KubeError
from cloud.sources.source import Source
from cloud.upsync.event_writer import is_void
from cloud.upsync.write_api import WriteApi
from cloud.upsync.write_queue import WriteQueue
from common.objects import Ref

log = logging.getLogger("csi_bridge.hub.upsync")

_EVENTS: Final = RESOURCES["Event"]

_NAMESPACE: Final = "default"
"""Of the Events of objects that belong to no namespace (kubernetes pkg/apis/core/validation/events.go)."""

_MOST: Final = 100
"""Events that wait. An election takes a second at least, so a hub with several drivers may hold some in an outage."""

_MOST_CHARS: Final = 1024
"""Of an Event's message (the same file)."""

ELECTED: Final = "NodeElected"
TOOK_OVER: Final = "NodeTookOver"
"""The reasons of the first election of a driver, and of any other one."""


class ElectionEvents:
    """Writes the Events of elections. `add` from the loop; `close` ends it."""

    def __init__(self, api: WriteApi, source: Source) -> None:
        """Without Events.

        Args:
            api: the API server.
            source: the hub's copy of CSIDrivers and Nodes.
        """
        self._api, self._source = api, source
        self._waiting: dict[str, Body] = {}
        self._queue: WriteQueue[str] = WriteQueue(self._write)

    def add(self, driver: str, elected: Elected) -> None:
        """Write the Events of an election."""
        for event in self._events(driver, elected):
            name = event["metadata"]["name"]
            self._waiting[name] = event
            self._queue.add(name)
        while len(self._waiting) > _MOST:
            oldest = next(iter(self._waiting))
            del self._waiting[oldest]
            self._queue.discard(oldest)

    def problems(self) -> list[str]:
        """The failing writes, in sentences."""
        return self._queue.problems()

    async def close(self) -> None:
        """End all tries."""
        await self._queue.close()

    async def _write(self, name: str) -> None:
        try:
            await self._api.create(_EVENTS, self._waiting[name], _NAMESPACE)
        except KubeError as error:
            if error.reason != "AlreadyExists":
                if not is_void(error):
                    raise
                log.info("an event of an election is dropped: %s", error)
        del self._waiting[name]

    def _events(self, driver: str, elected: Elected) -> Iterator[Body]:
        node = self._reference("Node", "v1", elected.node)
        csi_driver = self._reference("CSIDriver", "storage.k8s.io/v1", driver)
        if csi_driver is not None:
            yield _event(csi_driver, driver, elected) | ({"related": node} if node is not None else {})
        if node is not None:
            yield _event(node, driver, elected)

    def _reference(self, kind: str, api_version: str, name: str) -> Body | None:
        body = self._source.body(Ref(kind, "", name))
        if body is None:
            return None
        return {"kind": kind, "apiVersion": api_version, "name": name, "uid": body["metadata"].get("uid", "")}


def _event(about: Body, driver: str, elected: Elected) -> Body:
    at = datetime.fromtimestamp(elected.since, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    is_first = elected.why == FIRST
    digest = sha256(f"{about['kind']} {about['uid']} {driver} {elected.epoch}".encode()).hexdigest()[:16]
    text = f"edge node {elected.node} serves driver {driver} (epoch {elected.epoch}): {elected.why}"
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"csi-bridge-election.{digest}", "namespace": _NAMESPACE},
        "involvedObject": about,
        "type": "Normal" if is_first else "Warning",
        "reason": ELECTED if is_first else TOOK_OVER,
        "message": text[:_MOST_CHARS],
        "source": {"component": "csi-bridge-hub"},
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }
