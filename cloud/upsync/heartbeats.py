"""The heartbeats: keep the Nodes of nodes without a kubelet Ready while their sessions live.

Rules:

* A heartbeat renews the node's Lease. The condition Ready is written when it has changed, and every five minutes.
* The hub sends heartbeats only for Nodes that it made. Any other Node has a kubelet or another writer.
* The hub does not report that a node is down: Kubernetes finds out by itself, as with any other node.
* A Lease's time never goes back: the controller-manager ignores a time that is not newer than the last.
* After a failure the hub looks at the Node again, and also when the watch of Nodes shows it as not Ready. A late
  renewal is no reason for a look: all may be late, and looks would make that worse.
* Looks have slots of their own, so they delay no renewal. A look that finds no free slot comes after the next renewal.
"""

import asyncio
import logging
import math
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from cloud.kinds.nodes import condition_of, conditions_with
from cloud.kube import RESOURCES, Body, Kube, KubeError, find, patch_found
from cloud.upsync.ownership import HUB, LEASES, MADE_BY, is_made
from common.backoff import Backoff
from common.errors import timestamp

log = logging.getLogger("csi_bridge.hub.heartbeats")

_NODES: Final = RESOURCES["Node"]
_LEASES: Final = RESOURCES["Lease"]
_EVERY_S: Final = 10.0  # the time between two renewals, as in a kubelet (a quarter of the Lease's duration)
_LEASE_S: Final = 40  # the duration of a Lease: the kubelet's `nodeLeaseDurationSeconds`
_STATUS_S: Final = 300.0  # the time between two writes of the same condition: the kubelet's `nodeStatusReportFrequency`


def _spread(pause_s: float) -> float:
    """At least nine tenths of a pause, so that nodes that connected together drift apart."""
    return pause_s * random.uniform(0.9, 1.0)  # noqa: S311  # no secret


_BACKOFF: Final = Backoff(first_s=1.0, most_s=_EVERY_S, jitter=_spread)

_WRITES_PER_S: Final = 200.0  # the most writes of up to 1,600 nodes together

_WRITES_PER_NODE_S: Final = 1.25 / _EVERY_S
"""The most writes for each node of a larger fleet. A node renews every 9.5 s on average, and its condition is written
every 300 s. That makes 1.09 writes in ten seconds: if no more were allowed, a queue would stand, and delay what is
urgent, the condition of a Node that Kubernetes has taken for lost."""

_RENEWALS_AT_ONCE: Final = 50
"""Enough for 200 renewals in a second if each takes 250 ms. A Lease lasts four pauses: 2,000 nodes keep theirs if a
renewal takes less than 1 s, 10,000 if it takes less than 200 ms."""

_LOOKS_AT_ONCE: Final = 25  # 100 lost nodes in a second if a request takes 125 ms: one reads, one writes

_STEP_S: Final = 0.001  # The least step of a Lease's time. It has microseconds, but a float of this size does not.


@dataclass(slots=True)
class _Heart:
    lease: str = ""  # the UID of the Lease; if it is empty, the hub first looks at the Node
    told_s: float = 0.0  # the time in the Lease, in seconds since the epoch
    look_at: float = 0.0  # the time of the next look at the Node, of the monotonic clock


class Heartbeats:
    """The heartbeats of all nodes. `up`, `down` and `doubt` from the loop; `close` ends them."""

    def __init__(
        self,
        api: Kube,
        *,
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._api, self._now, self._wall, self._pause = api, now, wall, pause
        self._hearts: dict[str, _Heart] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._failing: dict[str, str] = {}
        self._renewals, self._looks = asyncio.Semaphore(_RENEWALS_AT_ONCE), asyncio.Semaphore(_LOOKS_AT_ONCE)
        self._next_write = 0.0
        self._closed = False

    def up(self, node: str) -> None:
        """Begin a node's heartbeats, unless they run: its session lives."""
        if node not in self._tasks and not self._closed:
            heart = self._hearts[node] = _Heart()
            self._tasks[node] = asyncio.get_running_loop().create_task(self._live(node, heart), name=f"heart of {node}")

    def down(self, node: str) -> None:
        """End a node's heartbeats: its session has ended. A request under way may still arrive."""
        if (task := self._tasks.pop(node, None)) is not None:
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
            task.cancel()
            self._failing.pop(node, None)
            del self._hearts[node]

    def doubt(self, node: str) -> None:
        """Look at a node's Node after its next renewal, because the watch shows it as not Ready."""
        if (heart := self._hearts.get(node)) is not None:
            heart.look_at = 0.0

    async def close(self) -> None:
        self._closed = True
        for node in list(self._tasks):
            self.down(node)
        await asyncio.gather(*self._ending, return_exceptions=True)

    def problems(self) -> list[str]:
        if not self._failing:
            return []
        return [f"heartbeats are not written (nodes: {len(self._failing)}): {next(iter(self._failing.values()))}"]

    # ---- one node ----------------------------------------------------------------------------------------------------

    async def _live(self, node: str, heart: _Heart) -> None:
        failures = 0
        while True:
            failures = 0 if await self._try(node, heart) else failures + 1
            await self._pause(_BACKOFF.wait_s(failures) if failures else _spread(_EVERY_S))

    async def _try(self, node: str, heart: _Heart) -> bool:
        """Send one heartbeat. Returns whether it was sent; a Node that is missing or not the hub's gets none."""
        try:
            beat = await self._beat(node, heart)
        except KubeError as error:
            why = str(error)
        except Exception:
            log.exception("the heartbeat of %s failed because of a bug; it is tried again", node)
            why = f"a bug in CSI Bridge, at {node}; see the hub's log"
        else:
            if self._failing.pop(node, None) is not None and not self._failing:
                log.info("all heartbeats are written again")
            return beat
        if not self._failing:  # one line for thousands that fail together
            log.warning("a heartbeat is not written: %s", why)
        self._failing[node] = why
        heart.lease = ""
        return False

    async def _beat(self, node: str, heart: _Heart) -> bool:
        async with self._renewals:
            if heart.lease:
                await self._renew(node, heart)
            elif not await self._take_lease(node, heart):
                return False
        # Not before the renewal: Kubernetes could still take the Node for lost just after the look.
        if self._now() < heart.look_at or self._looks.locked():
            return True
        async with self._looks:
            heart.look_at = math.inf  # a doubt that comes from now on sets another look: the answer may be older
            if (found := await self._find(node, heart)) is None:
                return False
            heart.look_at = min(heart.look_at, self._now() + await self._tell_ready(found))
            return True

    async def _find(self, node: str, heart: _Heart) -> Body | None:
        found = await find(self._api, _NODES, node)
        if found is None or not is_made(found):
            heart.lease = ""
            return None
        return found

    # ---- the Lease ---------------------------------------------------------------------------------------------------

    async def _take_lease(self, node: str, heart: _Heart) -> bool:
        """Take over the Lease, or make one. Returns whether the Node exists and is the hub's."""
        if (found := await self._find(node, heart)) is None:
            return False
        heart.look_at = 0.0
        owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": found["metadata"]["uid"]}
        lease = await find(self._api, _LEASES, node, LEASES)
        if lease is not None:
            heart.lease = lease["metadata"]["uid"]
            heart.told_s = max(heart.told_s, _seconds((lease.get("spec") or {}).get("renewTime")))
            await self._renew(node, heart, {"ownerReferences": [owner]})
            return True
        await self._turn()
        named = {"name": node, "namespace": LEASES}
        metadata = {**named, "annotations": {MADE_BY: HUB}, "ownerReferences": [owner]}
        made = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata}
        lease = await self._api.create(_LEASES, {**made, "spec": self._lease_spec(node, heart)}, LEASES)
        heart.lease = lease["metadata"]["uid"]
        return True

    async def _renew(self, node: str, heart: _Heart, metadata: Body | None = None) -> None:
        await self._turn()
        change = {"metadata": {"uid": heart.lease, **(metadata or {})}, "spec": self._lease_spec(node, heart)}
        await self._api.patch(_LEASES, node, change, LEASES)

    def _lease_spec(self, node: str, heart: _Heart) -> Body:
        heart.told_s = max(self._wall(), heart.told_s + _STEP_S)
        renewed = datetime.fromtimestamp(heart.told_s, UTC).isoformat(timespec="microseconds")
        return {"holderIdentity": node, "leaseDurationSeconds": _LEASE_S, "renewTime": renewed}

    # ---- the condition -----------------------------------------------------------------------------------------------

    async def _tell_ready(self, found: Body) -> float:
        """Write the condition, unless it is there and recent. Returns the seconds until the next write."""
        old = condition_of(found, "Ready")
        age_s = self._wall() - _seconds(old.get("lastHeartbeatTime"))
        if old.get("status") == "True" and 0 <= age_s < _STATUS_S:
            return _STATUS_S - age_s
        ready = {
            "type": "Ready",
            "status": "True",
            "reason": "AgentConnected",
            "message": "the agent of CSI Bridge is connected to its hub",
        }
        change = {"conditions": conditions_with(found, ready, at=timestamp(self._wall()))}
        await self._turn()
        await patch_found(self._api, _NODES, found, {"status": change}, subresource="status")
        return _STATUS_S

    # ---- all nodes ---------------------------------------------------------------------------------------------------

    async def _turn(self) -> None:
        now = self._now()
        turn = max(now, self._next_write)
        self._next_write = turn + 1 / max(_WRITES_PER_S, len(self._tasks) * _WRITES_PER_NODE_S)
        if turn > now:
            await self._pause(turn - now)


def _seconds(text: str | None) -> float:
    """A time from Kubernetes in seconds since the epoch; 0 if there is none."""
    return datetime.fromisoformat(text).timestamp() if text else 0.0
