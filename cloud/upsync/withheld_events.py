"""Withheld events: an Event for each pod that waits for a volume which another node has (`cloud.sole_use`)."""

import time
from collections.abc import Callable, Iterable
from typing import Final

from cloud.kube import Body
from cloud.sources.source import Source
from cloud.upsync.event_queue import event
from common.objects import Ref

WITHHELD: Final = "VolumeWithheld"


class WithheldEvents:
    """Makes the Events of pods whose volumes are withheld."""

    def __init__(self, source: Source, write: Callable[[Body], None], *, now: Callable[[], float] = time.time) -> None:
        """Without Events.

        Args:
            source: the hub's copy of pods.
            write: writes an Event (`cloud.upsync.event_queue`).
            now: the time, in seconds since the epoch.
        """
        self._source, self._write, self._now = source, write, now

    def add(self, pods: Iterable[Ref], text: str) -> None:
        """Write the Events of pods that wait for one volume."""
        for pod in pods:
            if (body := self._source.body(pod)) is not None:
                named = {"namespace": pod.namespace, "name": pod.name, "uid": body["metadata"].get("uid", "")}
                about = {"kind": "Pod", "apiVersion": "v1", **named}
                self._write(
                    event(
                        about,
                        "csi-bridge-withheld",
                        cause=(text,),
                        reason=WITHHELD,
                        text=text,
                        at=self._now(),
                        kind="Warning",
                    )
                )
