"""Election events: an Event for each election of a serving node, on the driver's CSIDriver and on the node's Node.

Rules:

* `kubectl describe` shows an Event only at an object that exists. So each of the two gets one if it exists.
* A failed write is tried again, without end. Of many that wait, as in an outage, the newest ones are kept.
* An Event that the API server refuses for good is dropped.
"""

from collections.abc import Iterator
from typing import Final

from cloud.claims.election import FIRST, Elected
from cloud.kube.client import Body, Kube
from cloud.kube.work_queue import WorkQueue
from cloud.sources.source import Source
from cloud.upsync.event_writer import event, reference, write_event
from common.objects.objects import Ref

ELECTED: Final = "NodeElected"  # the reason of the first election of a driver
TOOK_OVER: Final = "NodeTookOver"  # of any other one

_MOST: Final = 100  # Events that wait. Elections are rare: each takes a second at least.


class ElectionEvents:
    """The Events of elections on their way to the API server. `add` from the loop; `close` ends it."""

    def __init__(self, api: Kube, source: Source) -> None:
        self._api = api
        self._source = source
        self._waiting: dict[str, Body] = {}
        self._queue: WorkQueue[str] = WorkQueue(self._write)
        self.problems = self._queue.problems
        self.close = self._queue.close

    def add(self, driver: str, elected: Elected) -> None:
        for body in self._events(driver, elected):
            name = body["metadata"]["name"]
            self._waiting[name] = body
            self._queue.add(name)
        while len(self._waiting) > _MOST:
            oldest = next(iter(self._waiting))
            del self._waiting[oldest]
            self._queue.discard(oldest)

    async def _write(self, name: str) -> None:
        await write_event(self._api, self._waiting[name])
        del self._waiting[name]

    def _events(self, driver: str, elected: Elected) -> Iterator[Body]:
        node = self._reference("Node", elected.node)
        csi_driver = self._reference("CSIDriver", driver)
        if csi_driver is not None:
            yield _event(csi_driver, driver, elected) | ({"related": node} if node is not None else {})
        if node is not None:
            yield _event(node, driver, elected)

    def _reference(self, kind: str, name: str) -> Body | None:
        body = self._source.body(Ref(kind, "", name))
        return reference(kind, body) if body is not None else None


def _event(about: Body, driver: str, elected: Elected) -> Body:
    is_first = elected.why == FIRST
    return event(
        about,
        "csi-bridge-election",
        cause=(driver, elected.epoch),
        reason=ELECTED if is_first else TOOK_OVER,
        text=f"edge node {elected.node} serves driver {driver} (epoch {elected.epoch}): {elected.why}",
        at=elected.since,
        kind="Normal" if is_first else "Warning",
    )
