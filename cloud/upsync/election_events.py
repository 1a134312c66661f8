"""Election events: an Event for each election of a serving node, on the driver's CSIDriver and on the node's Node.

`kubectl describe` shows an Event only at an object that exists. So each of the two gets one if it exists.
"""

from collections.abc import Callable, Iterator
from typing import Final

from cloud.election import FIRST, Elected
from cloud.kube import Body
from cloud.sources.source import Source
from cloud.upsync.event_queue import event
from common.objects import Ref

ELECTED: Final = "NodeElected"
TOOK_OVER: Final = "NodeTookOver"
"""The reasons of the first election of a driver, and of any other one."""


class ElectionEvents:
    """Makes the Events of elections."""

    def __init__(self, source: Source, write: Callable[[Body], None]) -> None:
        self._source, self._write = source, write

    def add(self, driver: str, elected: Elected) -> None:
        for body in self._events(driver, elected):
            self._write(body)

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
