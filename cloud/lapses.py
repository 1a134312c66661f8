"""A lapse: the moment by which a node that is away has surely fenced a volume, as the hub counts it.

Rules:

* The agent must have told that it has staged the volume and fences it (`common.offline_policy`), and the
  PersistentVolume must ask for that now. While the agent stages it, there is no lapse: a driver may mount it at any
  moment. The hub has the agent's word on its disk, so a lapse outlives the hub.
* It is counted from the end of the node's last link, or from the start of this hub: the hub has answered no ping of the
  agent after that. To this the hub adds the agent's lease, and the time of the watchdog that resets the node's machine
  if its agent does not fence. The clock stands still while the hub's machine is suspended, so the wait only becomes
  longer.
* The hub cannot know whether the node's machine stood still as a whole. An agent fences only if its operator has said
  that it never does (`edge.fencing`).
"""

import logging
import time
from collections.abc import Callable
from typing import Final

from cloud.edge_nodes import Nodes
from cloud.mounts import Mounts
from cloud.sync.fact_kinds import name_in_use
from cloud.trust import audit
from cloud.trust.audit import Event
from common.errors import timestamp
from common.offline_policy import ANNOTATION, FENCE

log = logging.getLogger("csi_bridge.hub.fences")

DRIFT: Final = 1.01
"""The factor by which an agent's clock may be slower than the hub's. Quartz clocks are better than 0.1 %."""

WATCHDOG_DRIFT: Final = 1.1
"""The same for a watchdog, which counts with an oscillator of its own, and often in coarse steps."""

RESET_S: Final = 5.0
"""From the end of that time until the machine writes nothing more: the reset, and what its adapters still have."""

_MOST_NOTED: Final = 10_000  # Volumes whose lapse is noted in the log once. Above that, the notes begin anew.


class Lapses:
    """The lapses of all nodes' volumes."""

    def __init__(self, links: Nodes, mounts: Mounts, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._links, self._mounts, self._monotonic = links, mounts, monotonic
        self._noted: set[tuple[str, str, float]] = set()

    def is_over(self, node: str, driver: str, volume: str) -> bool:
        """Whether a node that is away has surely fenced a volume."""
        at = self._at(node, driver, volume)
        if at is None or self._monotonic() < at[0]:
            return False
        self._note(node, name_in_use(driver, volume), at)
        return True

    def describe(self, node: str, driver: str, volume: str) -> str:
        """The rest of a sentence about a volume that is held; empty if it does not ask for `fence`."""
        if not self._mounts.asks_for_fence(driver, volume):
            return ""
        told = self._mounts.told_fence(node)
        if told is not None and name_in_use(driver, volume) in told.staging:
            return "; its agent has not told how a call ended that may mount it, so it does not go by time"
        at = self._at(node, driver, volume)
        if at is not None:
            return f"; its agent fences the volume, which can be detached from {timestamp(at[1])} on"
        return f"; {ANNOTATION}: {FENCE} does not count, because its agent has not told that it fences the volume"

    def _at(self, node: str, driver: str, volume: str) -> tuple[float, float] | None:
        """When a volume is surely fenced, in the monotonic clock and since the epoch; None if it never is."""
        told, left = self._mounts.told_fence(node), self._links.left(node)
        if not self._links.knows(node):  # it is being forgotten: nobody knows when its link ended
            return None
        if told is None or left is None or name_in_use(driver, volume) not in told.staged:
            return None
        if not self._mounts.asks_for_fence(driver, volume):
            return None
        bound_s = told.lease_s * DRIFT + told.watchdog_s * WATCHDOG_DRIFT + RESET_S
        return left[0] + bound_s, left[1] + bound_s

    def _note(self, node: str, volume: str, at: tuple[float, float]) -> None:
        if (node, volume, at[0]) in self._noted:
            return
        if len(self._noted) >= _MOST_NOTED:
            self._noted.clear()
        self._noted.add((node, volume, at[0]))
        audit.add(Event.FENCE, who=node, volume=volume, why="the lease of its agent has ended")
        log.warning(
            "the lease of node %s has ended, and its agent has fenced volume %s: it may be detached", node, volume
        )
