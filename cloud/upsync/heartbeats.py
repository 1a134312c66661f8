"""The heartbeats: what tells Kubernetes that a node without a kubelet is there, for as long as its session lives.

Rules:

* A heartbeat renews the node's Lease; the condition Ready is written when it is another one, and every five minutes.
* Only Nodes that the hub made have heartbeats of it: any other one has a kubelet, or somebody who stands in for it.
* A node that is down is not said to be down: Kubernetes finds out by itself, as with any other node.
* A Lease's time never goes backwards: the controller-manager passes over one that is not newer than the last.
* After a failure nothing is taken for granted: the Node is looked at again. So it is when the watch of Nodes has it as
  not Ready, whoever said so. That a renewal came late is no reason: all of them may, and looks would make it worse.
* A look keeps no other node's renewal waiting: looks have slots of their own, and one that finds none free is made up
  for after the next renewal.
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

from cloud.kube import RESOURCES, Body, KubeError
from cloud.upsync.ownership import find, is_made
from cloud.upsync.write_api import WriteApi
from common.backoff import Backoff
from common.errors import timestamp

log = logging.getLogger("csi_bridge.hub.heartbeats")

_NODES: Final = RESOURCES["Node"]
_LEASES: Final = RESOURCES["Lease"]
_NAMESPACE: Final = "kube-node-lease"

_EVERY_S: Final = 10.0
"""Between two renewals, as a kubelet does it (a quarter of the Lease's duration)."""

_LEASE_S: Final = 40
"""A Lease holds so long: the kubelet's `nodeLeaseDurationSeconds`."""

_STATUS_S: Final = 300.0
"""Between two writings of the same condition: the kubelet's `nodeStatusReportFrequency`."""


def _spread(pause_s: float) -> float:
    """At least nine tenths of a pause, so that nodes that came together drift apart."""
    return pause_s * random.uniform(0.9, 1.0)  # noqa: S311  # no secret


_BACKOFF: Final = Backoff(first_s=1.0, most_s=_EVERY_S, jitter=_spread)
"""After a failure. A success is followed by `_EVERY_S`, spread in the same way."""

_WRITES_PER_S: Final = 200.0
"""At most, of all nodes together; beyond 2,000 nodes as many as they are in ten seconds."""

_RENEWALS_AT_ONCE: Final = 50
"""Enough for 200 in a second if each takes 250 ms. A Lease holds four times as long as a pause: 2,000 nodes keep theirs
while a renewal takes less than 1 s, 10,000 while it takes less than 200 ms."""

_LOOKS_AT_ONCE: Final = 25
"""Enough for 100 lost nodes in a second if a request takes 125 ms: one looks, one writes. With the renewals they leave
a quarter of the client's connections to others."""

_STEP_S: Final = 0.001
"""A Lease's time grows by so much at least. It has microseconds, but a float of this size does not."""


@dataclass(slots=True)
class _Heart:
    """What is known of one node's Lease.

    Attributes:
        lease: the UID of the Lease; empty: the Node is to be looked at first.
        told_s: the time that stands in it, in seconds since the epoch.
        look_at: from when on the Node is to be looked at again, of the monotonic clock.
    """

    lease: str = ""
    told_s: float = 0.0
    look_at: float = 0.0


class Heartbeats:
    """The heartbeats of all nodes. `up`, `down` and `doubt` from the loop; `close` ends them."""

    def __init__(
        self,
        api: WriteApi,
        *,
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """No node is up yet.

        Args:
            api: the API server.
            now: seconds of a clock that never goes back.
            wall: seconds since the epoch.
            pause: waits for so many seconds.
        """
        self._api, self._now, self._wall, self._pause = api, now, wall, pause
        self._hearts: dict[str, _Heart] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._failing: dict[str, str] = {}
        self._renewals, self._looks = asyncio.Semaphore(_RENEWALS_AT_ONCE), asyncio.Semaphore(_LOOKS_AT_ONCE)
        self._next_write = 0.0

    def up(self, node: str) -> None:
        """The node's session lives. Nothing if that was known."""
        if node not in self._tasks:
            heart = self._hearts[node] = _Heart()
            self._tasks[node] = asyncio.get_running_loop().create_task(self._live(node, heart), name=f"heart of {node}")

    def down(self, node: str) -> None:
        """The node's session has ended. What is on its way to the API server may still arrive."""
        if (task := self._tasks.pop(node, None)) is not None:
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
            task.cancel()
            self._failing.pop(node, None)
            del self._hearts[node]

    def doubt(self, node: str) -> None:
        """The watch has this Node as not Ready: it is looked at after its next renewal. Nothing if it is not up."""
        if (heart := self._hearts.get(node)) is not None:
            heart.look_at = 0.0

    async def close(self) -> None:
        """End all heartbeats."""
        for node in list(self._tasks):
            self.down(node)
        await asyncio.gather(*self._ending, return_exceptions=True)

    def problems(self) -> list[str]:
        """Nodes that Kubernetes takes for lost, or will, although they are there."""
        if not self._failing:
            return []
        return [f"heartbeats are not written (nodes: {len(self._failing)}): {next(iter(self._failing.values()))}"]

    # ---- one node ----------------------------------------------------------------------------------------------------

    async def _live(self, node: str, heart: _Heart) -> None:
        """Heartbeats of a node until cancelled."""
        failures = 0
        while True:
            failures = 0 if await self._try(node, heart) else failures + 1
            await self._pause(_BACKOFF.wait_s(failures) if failures else _spread(_EVERY_S))

    async def _try(self, node: str, heart: _Heart) -> bool:
        """One heartbeat. Whether there was one; a Node that is missing, or is not the hub's, has none."""
        try:
            beat = await self._beat(node, heart)
        except KubeError as error:
            self._note(node, str(error))
            heart.lease = ""
            return False
        except Exception:
            log.exception("the heartbeat of %s failed because of a bug; it is tried again", node)
            self._note(node, f"a bug in CSI Bridge, at {node}; see the hub's log")
            heart.lease = ""
            return False
        if self._failing.pop(node, None) is not None and not self._failing:
            log.info("all heartbeats are written again")
        return beat

    def _note(self, node: str, why: str) -> None:
        if not self._failing:  # of thousands that fail together one line is enough
            log.warning("a heartbeat is not written: %s", why)
        self._failing[node] = why

    async def _beat(self, node: str, heart: _Heart) -> bool:
        async with self._renewals:
            if heart.lease:
                await self._renew(node, heart)
            elif not await self._take_lease(node, heart):
                return False
        # Before the Lease was renewed the Node could still be found lost just after a look.
        if self._now() < heart.look_at or self._looks.locked():
            return True
        async with self._looks:
            return await self._look(node, heart)

    async def _look(self, node: str, heart: _Heart) -> bool:
        """Look at the Node, and tell that it is ready. Whether it is there, and the hub's."""
        heart.look_at = math.inf  # a doubt from now on, which the answer may be too old for, makes another look
        if (found := await self._find(node, heart)) is None:
            return False
        heart.look_at = min(heart.look_at, self._now() + await self._tell_ready(node, found))
        return True

    async def _find(self, node: str, heart: _Heart) -> Body | None:
        """The Node, if there is one and the hub made it."""
        found = await find(self._api, _NODES, node)
        if found is None or not is_made(found):
            heart.lease = ""
            return None
        return found

    # ---- the Lease ---------------------------------------------------------------------------------------------------

    async def _take_lease(self, node: str, heart: _Heart) -> bool:
        """Renew the Lease whatever it was; make one if there is none. Whether the Node is there, and the hub's."""
        if (found := await self._find(node, heart)) is None:
            return False
        heart.look_at = 0.0
        owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": found["metadata"]["uid"]}
        lease = await find(self._api, _LEASES, node, _NAMESPACE)
        if lease is not None:
            heart.lease = lease["metadata"]["uid"]
            heart.told_s = max(heart.told_s, _seconds((lease.get("spec") or {}).get("renewTime")))
            await self._renew(node, heart, {"ownerReferences": [owner]})
            return True
        await self._turn()
        made = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": node, "namespace": _NAMESPACE, "ownerReferences": [owner]},
            "spec": self._lease_spec(node, heart),
        }
        lease = await self._api.create(_LEASES, made, _NAMESPACE)
        heart.lease = lease["metadata"]["uid"]
        return True

    async def _renew(self, node: str, heart: _Heart, metadata: Body | None = None) -> None:
        await self._turn()
        change = {"metadata": {"uid": heart.lease, **(metadata or {})}, "spec": self._lease_spec(node, heart)}
        await self._api.patch(_LEASES, node, change, _NAMESPACE)

    def _lease_spec(self, node: str, heart: _Heart) -> Body:
        heart.told_s = max(self._wall(), heart.told_s + _STEP_S)
        renewed = datetime.fromtimestamp(heart.told_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return {"holderIdentity": node, "leaseDurationSeconds": _LEASE_S, "renewTime": renewed}

    # ---- the condition -----------------------------------------------------------------------------------------------

    async def _tell_ready(self, node: str, found: Body) -> float:
        """Write the condition, unless it stands there and is young. In how many seconds it is to be written again."""
        conditions = (found.get("status") or {}).get("conditions") or []
        old: Body = next((it for it in conditions if it["type"] == "Ready"), {})
        was_ready = old.get("status") == "True"
        age_s = self._wall() - _seconds(old.get("lastHeartbeatTime"))
        if was_ready and 0 <= age_s < _STATUS_S:
            return _STATUS_S - age_s
        now = timestamp(self._wall())
        ready = {
            "type": "Ready",
            "status": "True",
            "reason": "AgentConnected",
            "message": "the agent of CSI Bridge is connected to its hub",
            "lastHeartbeatTime": now,
            "lastTransitionTime": old.get("lastTransitionTime", now) if was_ready else now,
        }
        others = [it for it in conditions if it["type"] != "Ready"]
        # A merge patch replaces the whole list: for the state that was read alone, so that no other condition is lost.
        version = {"resourceVersion": found["metadata"]["resourceVersion"]}
        await self._turn()
        await self._api.patch(
            _NODES, node, {"metadata": version, "status": {"conditions": [*others, ready]}}, subresource="status"
        )
        return _STATUS_S

    # ---- all nodes ---------------------------------------------------------------------------------------------------

    async def _turn(self) -> None:
        """Wait until there may be one more write."""
        now = self._now()
        turn = max(now, self._next_write)
        self._next_write = turn + 1 / max(_WRITES_PER_S, len(self._tasks) / _EVERY_S)
        if turn > now:
            await self._pause(turn - now)


def _seconds(text: str | None) -> float:
    """A time of Kubernetes', in seconds since the epoch; 0 without one."""
    return datetime.fromisoformat(text).timestamp() if text else 0.0
