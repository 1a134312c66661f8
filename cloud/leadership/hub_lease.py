"""The Lease `csi-bridge-hub`: lets one hub of a cluster work at a time. `leadership` has the rules."""

import asyncio
import contextlib
import logging
import math
import secrets
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from cloud.hub_settings import HubSettings
from cloud.kube.client import RESOURCES, Body, Kube, KubeError, find
from cloud.leadership.leadership import NAME, Leadership, LeaseRecord, Sighting, read_lease, released, taken
from common.errors import LeadershipLost
from common.observe.tasks import supervised
from common.store.fault_points import reach

log = logging.getLogger("csi_bridge.hub.lease")

_LEASES: Final = RESOURCES["Lease"]

# A waiting hub looks so often, so that it leads within a second after another one has released the Lease.
_LOOK_S: Final = 0.2
_AGAIN_S: Final = 1.0  # after a renewal that failed
_POD_NAMESPACE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


_SILENT: Final = "Kubernetes does not answer"
_STOOD: Final = "this process, or its machine, did not run for a while"


def _boot_time() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)  # suspends included


def lease_namespace(given: str | None) -> str:
    """The namespace of the Lease, as the sidecars choose it: that of the flag, else of the pod, else `default`."""
    try:
        return given or _POD_NAMESPACE.read_text().strip() or "default"
    except OSError:
        return "default"


class HubLease:
    """The Lease as one hub uses it. `held` takes, renews and releases it."""

    def __init__(
        self,
        settings: HubSettings,
        place: str,
        *,
        now: Callable[[], float] = _boot_time,
        wall: Callable[[], float] = time.time,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`place` names the state directory, whose lock this process has."""
        self.leadership: Leadership | None = None  # this hub's; None: it waits
        self.why_not = "this hub starts"  # what it waits for, in a sentence
        self.trouble = ""  # the same, if it cannot see who holds the Lease
        self.namespace = lease_namespace(settings.leader_election_namespace)
        self._duration_s = math.ceil(settings.leader_election_lease_duration_s)
        self._deadline_s = settings.leader_election_renew_deadline_s
        self._retry_s = settings.leader_election_retry_period_s
        self._now = now
        self._wall = wall
        self._pause = pause
        self._identity = f"{socket.gethostname()}_{secrets.token_hex(8)}_{place}"
        self._shown = f"{self.namespace}/{NAME}"
        self._record = LeaseRecord()
        self._newest = ""  # the newest time that this process has written, or has tried to

    @property
    def is_held(self) -> bool:
        # Any thread may ask.
        return self.leadership is not None and self.leadership.holds()

    @property
    def holder(self) -> tuple[str, str]:
        """The hub that held it at the last look, and since when; empty: none."""
        return self._record.holder, self._record.acquired

    @asynccontextmanager
    async def held(
        self, api: Kube, stopping: asyncio.Event, *, on_wait: Callable[[], Awaitable[None]]
    ) -> AsyncIterator[Leadership | None]:
        """Hold the Lease while the block runs; it gets None if `stopping` is set first.

        `on_wait` is called once, if the Lease is not free at the first look.

        Raises:
            LeadershipLost: the leadership has ended, and with it the block.
        """
        if not await self.take(api, stopping, on_wait):
            yield None
            return
        self.why_not = f"this hub holds the Lease {self._shown}, and reads the records"
        log.info("%s", self.why_not)
        try:
            async with supervised() as tasks:
                tasks.start(self.keep(api), name="renewal of the Lease")
                yield self.leadership
        finally:
            await self.release(api)

    async def take(self, api: Kube, stopping: asyncio.Event, on_wait: Callable[[], Awaitable[None]]) -> bool:
        """Returns False if `stopping` is set first."""
        sighting = Sighting(self._identity, self._duration_s)
        waits = False
        while not stopping.is_set():
            try:
                async with asyncio.timeout(self._deadline_s):
                    await self._read(api)
                    sent_at = self._now()
                    if sighting.free_at(self._record, sent_at) <= sent_at:
                        await self._write(api, self._taken())
                        reach("lead.after-lease")
                        self.leadership = Leadership(sent_at + self._deadline_s, self._now)
                        return True
                self._wait(self._record.holder or "a hub may hold it, although the Lease names none")
            except (KubeError, TimeoutError) as error:
                self._wait(str(error) or _SILENT, level=logging.WARNING)
            if not waits:
                waits = True
                await on_wait()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(_LOOK_S, self._retry_s)):
                    await stopping.wait()
        return False

    async def check(self, api: Kube) -> None:
        """Raise KubeError unless this hub holds the Lease, as the API server has it. Lose it if another one does."""
        found = await find(api, _LEASES, NAME, self.namespace)
        holder = read_lease(found).holder if found is not None else ""
        if holder != self._identity:
            if holder and self.leadership is not None:
                self.leadership.end()
            raise KubeError("change a record", 0, "", f"{holder or 'no hub'} holds the Lease {self._shown} now")

    async def keep(self, api: Kube) -> None:
        """Renew the Lease until cancelled. Raises LeadershipLost."""
        leadership = self.leadership
        pause_s = self._retry_s
        why = _STOOD
        assert leadership is not None
        while True:
            await self._pause(max(0.0, min(pause_s, leadership.left_s)))
            if not leadership.holds():
                raise self._lost(why)
            try:
                async with asyncio.timeout(min(self._deadline_s / 3, leadership.left_s)):
                    spec = {"renewTime": self._time(), "leaseDurationSeconds": self._duration_s}  # which people edit
                    sent_at = await self._change(api, {"spec": spec})
            except (KubeError, TimeoutError) as error:
                pause_s = min(_AGAIN_S, self._retry_s)
                why = str(error) or _SILENT
                log.warning("the Lease %s is not renewed: %s", self._shown, why)
            else:
                leadership.renew(sent_at + self._deadline_s)
                pause_s = self._retry_s
                why = _STOOD

    async def release(self, api: Kube) -> None:
        """Let another hub take the Lease at once, unless this one has lost it. The last write of this hub is over."""
        if self.leadership is None or not self.leadership.holds():
            return
        try:
            async with asyncio.timeout(self._deadline_s / 3):
                await self._change(api, released(self._time()))
        except (KubeError, TimeoutError, LeadershipLost) as error:
            log.warning("the Lease %s is not released: %s", self._shown, str(error) or _SILENT)
        else:
            log.info("the Lease %s is released", self._shown)

    async def _change(self, api: Kube, change: Body) -> float:
        # Returns when the change was sent. Raises KubeError, LeadershipLost.
        assert self.leadership is not None
        while True:
            sent_at = self._now()
            try:
                await self._write(api, change)
            except KubeError as error:
                if error.code not in {404, 409}:
                    raise
            else:
                return sent_at
            # The Lease is another one than this hub has written: an answer was lost, or somebody has edited it.
            await self._read(api)
            # A missing one is made anew: no other hub does so before this leadership has ended.
            if not self._record.version:
                log.warning("the Lease %s was deleted; this hub, which holds it, makes it anew", self._shown)
                await self._write(api, self._taken())
            elif self._record.holder != self._identity:
                raise self._lost(f"{self._record.holder or 'no hub'} holds it now")
            elif self._record.renewed > self._newest:
                raise self._lost("a copy of this process renews it: was its machine copied while it ran?")

    async def _read(self, api: Kube) -> None:
        found = await find(api, _LEASES, NAME, self.namespace)
        self._record = read_lease(found) if found is not None else LeaseRecord()

    async def _write(self, api: Kube, change: Body) -> None:
        if self._record.version:
            metadata = {"resourceVersion": self._record.version}
            written = await api.patch(_LEASES, NAME, {**change, "metadata": metadata}, self.namespace)
        else:
            made = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", **change}
            metadata = {"name": NAME, "namespace": self.namespace}
            written = await api.create(_LEASES, {**made, "metadata": metadata}, self.namespace)
        self._record = read_lease(written)

    def _taken(self) -> Body:
        return taken(self._record, self._identity, duration_s=self._duration_s, time=self._time())

    def _time(self) -> str:
        time = datetime.fromtimestamp(self._wall(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        self._newest = max(self._newest, time)
        return time

    def _wait(self, why: str, *, level: int = logging.INFO) -> None:
        if self.why_not != (why_not := f"this hub waits for the Lease {self._shown}: {why}"):
            self.why_not = why_not
            self.trouble = why_not if level > logging.INFO else ""
            log.log(level, "%s", why_not)

    def _lost(self, why: str) -> LeadershipLost:
        assert self.leadership is not None
        self.leadership.end()
        self.why_not = f"this hub has lost the Lease {self._shown}"
        return LeadershipLost(f"{self.why_not}, and ends so that two hubs never work at once: {why}")
