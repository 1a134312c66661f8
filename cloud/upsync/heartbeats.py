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
import math
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from cloud.kinds.nodes import conditions_with
from cloud.kinds.rules.fields import condition_of, part
from cloud.kube.client import RESOURCES, Body, Kube, find, patch_found
from cloud.kube.work_queue import WorkQueue
from cloud.upsync.ownership import HUB, LEASES, MADE_BY, is_made
from common.errors import seconds_of, timestamp
from common.links.backoff import Backoff

_NODES: Final = RESOURCES["Node"]
_LEASES: Final = RESOURCES["Lease"]
_EVERY_S: Final = 10.0  # the time between two renewals, as in a kubelet (a quarter of the Lease's duration)
_LEASE_S: Final = 40  # the duration of a Lease: the kubelet's `nodeLeaseDurationSeconds`
_STATUS_S: Final = 300.0  # the time between two writes of the same condition: the kubelet's `nodeStatusReportFrequency`


def _spread(pause_s: float) -> float:
    # So nodes that connected together drift apart.
    return pause_s * random.uniform(0.9, 1.0)  # noqa: S311  # no secret


_BACKOFF: Final = Backoff(first_s=1.0, most_s=_EVERY_S, jitter=_spread)

_WRITES_PER_S: Final = 200.0  # the most writes of up to 1,600 nodes together

# The most writes for each node of a larger fleet. A node renews every 9.5 s on average, and its condition is written
# every 300 s. That makes 1.09 writes in ten seconds: if no more were allowed, a queue would stand, and delay what is
# urgent, the condition of a Node that Kubernetes has taken for lost.
_WRITES_PER_NODE_S: Final = 1.25 / _EVERY_S

# Enough for 200 renewals in a second if each takes 250 ms. A Lease lasts four pauses: 2,000 nodes keep theirs if a
# renewal takes less than 1 s, 10,000 if it takes less than 200 ms.
_RENEWALS_AT_ONCE: Final = 50

_LOOKS_AT_ONCE: Final = 25  # 100 lost nodes in a second if a request takes 125 ms: one reads, one writes

_STEP_S: Final = 0.001  # The least step of a Lease's time. It has microseconds, but a float of this size does not.


@dataclass(slots=True)
class _Heart:
    lease: str = ""  # the UID of the Lease; if it is empty, the hub first looks at the Node
    told_s: float = 0.0  # the time in the Lease, in seconds since the epoch
    look_at: float = 0.0  # the time of the next look at the Node, of the monotonic clock
    misses: int = 0  # how often in a row there was no Node of the hub


class Heartbeats:
    """The heartbeats of all nodes. `up`, `down` and `doubt` from the loop; `close` ends them."""

    def __init__(
        self,
        api: Kube,
        *,
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        later: Callable[[float, Callable[[], None]], object] | None = None,
    ) -> None:
        self._api = api
        self._now = now
        self._wall = wall
        self._pause = pause
        self._hearts: dict[str, _Heart] = {}
        at_once = _RENEWALS_AT_ONCE + _LOOKS_AT_ONCE
        self._queue: WorkQueue[str] = WorkQueue(self._beat, at_once=at_once, backoff=_BACKOFF, pause=pause, later=later)
        self.problems = self._queue.problems
        self.close = self._queue.close
        self._renewals, self._looks = asyncio.Semaphore(_RENEWALS_AT_ONCE), asyncio.Semaphore(_LOOKS_AT_ONCE)
        self._next_write = 0.0

    def up(self, node: str) -> None:
        """Begin a node's heartbeats, unless they run: its session lives."""
        if node not in self._hearts:
            self._hearts[node] = _Heart()
            self._queue.add(node)

    def down(self, node: str) -> None:
        """End a node's heartbeats: its session has ended. A request under way may still arrive."""
        if self._hearts.pop(node, None) is not None:
            self._queue.discard(node)

    def doubt(self, node: str) -> None:
        """Look at a node's Node after its next renewal, because the watch shows it as not Ready."""
        if (heart := self._hearts.get(node)) is not None:
            heart.look_at = 0.0

    # ---- one node ----------------------------------------------------------------------------------------------------

    async def _beat(self, node: str) -> float:
        heart = self._hearts[node]
        try:
            is_sent = await self._send(node, heart)
        except Exception:
            heart.lease = ""
            raise
        heart.misses = 0 if is_sent else heart.misses + 1
        return _spread(_EVERY_S) if is_sent else _BACKOFF.wait_s(heart.misses)

    async def _send(self, node: str, heart: _Heart) -> bool:
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
        if (found := await self._find(node, heart)) is None:
            return False
        heart.look_at = 0.0
        owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": found["metadata"]["uid"]}
        lease = await find(self._api, _LEASES, node, LEASES)
        if lease is not None:
            heart.lease = lease["metadata"]["uid"]
            heart.told_s = max(heart.told_s, seconds_of((lease.get("spec") or {}).get("renewTime")))
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
        # The API server refuses the change if another Lease has this name by now: the hub then looks at the Node.
        change = {"metadata": {"uid": heart.lease, **(metadata or {})}, "spec": self._lease_spec(node, heart)}
        await self._api.patch(_LEASES, node, change, LEASES)

    def _lease_spec(self, node: str, heart: _Heart) -> Body:
        heart.told_s = max(self._wall(), heart.told_s + _STEP_S)
        renewed = datetime.fromtimestamp(heart.told_s, UTC).isoformat(timespec="microseconds")
        return {"holderIdentity": node, "leaseDurationSeconds": _LEASE_S, "renewTime": renewed}

    # ---- the condition -----------------------------------------------------------------------------------------------

    async def _tell_ready(self, found: Body) -> float:
        old = condition_of(part(found, "status"), "Ready")
        age_s = self._wall() - seconds_of(old.get("lastHeartbeatTime"))
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
        self._next_write = turn + 1 / max(_WRITES_PER_S, len(self._hearts) * _WRITES_PER_NODE_S)
        if turn > now:
            await self._pause(turn - now)
