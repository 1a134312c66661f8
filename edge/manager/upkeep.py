"""The regular work for a mounted volume: reading usage and health, and refreshing its contents.

A refresh is a republish for drivers that ask for it. No result of this work changes the records of the mounts. Reading
is cancelled for any other step; a refresh that the driver has begun is not. A driver that hangs while it is
read gets few calls at a time (`READINGS_AT_ONCE`), and its volumes have no usage until it answers again.
"""

import asyncio
import logging
import math
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from edge.manager.host import VolumeHost
from edge.manager.rows import VolumeRows
from edge.manager.steps import Candidate, Step, tell_pods
from edge.volume_errors import NotReady, VolumeError
from edge.volumes import PodVolume
from edge.wanted.places import Target
from edge.wanted.states import Publication

if TYPE_CHECKING:
    from common.observe.metrics import VolumeStats

log = logging.getLogger("csi_bridge.edge.volumes")

# The volumes of a node are read in this many groups per interval. All 300 at once would be too much for a driver. A
# separate moment for each would wake agent and driver five times a second, which costs more than the calls.
_LOOKS_AN_INTERVAL = 20

# After this time a reading has failed, also one that waited for others (the kubelet's csiTimeout).
READING_LIMIT_S = 120.0


class VolumeUpkeep:
    """The regular work for one volume."""

    def __init__(self, host: VolumeHost, rows: VolumeRows, woken: asyncio.Event) -> None:
        # The usage and health of the last reading, by target; nothing if it failed. A thread may read them.
        self.stats: dict[Target, VolumeStats] = {}
        self._key = rows.key
        self._host = host
        self._rows = rows
        self._woken = woken
        self._due: dict[tuple[Step, Target], float] = {}
        self._abnormal: set[Target] = set()  # the targets whose last known health is bad

    def find(self, wants: Mapping[Target, PodVolume], now: float) -> Iterator[Candidate]:
        for target, want in wants.items():
            if not self._rows.is_published(target):
                continue
            is_as_wanted = self._rows.publications[target].block == want.volume.block
            if want.volume.rules.requires_republish and is_as_wanted:  # else a guest may have the device
                due = self._due.setdefault((Step.REPUBLISH, target), now + self._republish_s(target))
                yield Step.REPUBLISH, target, due
            if self._host.stats_interval_s:
                first_s = now + self._host.stats_interval_s * _fraction(target)
                due = self._due.setdefault((Step.STATS, target), self._round(math.ceil, first_s))
                yield Step.STATS, target, due

    def forget(self, target: Target) -> None:
        self.stats.pop(target, None)
        self._abnormal.discard(target)
        self._due = {one: due for one, due in self._due.items() if one[1] != target}

    async def republish(self, target: Target, want: PodVolume) -> None:
        """Let the driver refresh the contents (docs/csi-contract.md#tokens-and-republishing)."""
        host = self._host
        self._due[Step.REPUBLISH, target] = host.clock.monotonic() + self._republish_s(target)
        pod = f"{want.pod.namespace}/{want.pod.name}"
        try:
            host.driver(self._key.driver)
            inputs = host.inputs.to_publish(want)
            async with host.fencing.mounting(want.volume, want.pod.uid) as may_go_on:
                await host.plugin.publish(want, inputs, reconstructed=True, may_go_on=may_go_on)
        except NotReady as error:
            log.debug("volume %s is not refreshed for pod %s: %s", self._key, pod, error.why)
        except VolumeError as error:
            log.warning("volume %s could not be refreshed for pod %s: %s", self._key, pod, error.why)
            tell_pods(host.facts, [want], Step.REPUBLISH, error.why)

    async def read_stats(self, target: Target, want: PodVolume) -> None:
        """Read usage and health from the driver; cancelled as soon as another step may be due.

        The interval begins anew at the end, as the kubelet's does, so that a slow driver has a pause. After a failure
        no earlier counts are left: a disk that fills up meanwhile would look as it was.
        """
        asking = asyncio.ensure_future(self._ask(self._rows.publications[target]))
        waking = asyncio.ensure_future(self._woken.wait())
        limit = self._host.clock.call_later(READING_LIMIT_S, asking.cancel)
        try:
            await asyncio.wait({asking, waking}, return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                self._note_stats(target, want, None if asking.cancelled() else asking.result())
        finally:
            limit.cancel()
            asking.cancel()
            waking.cancel()
            await asyncio.gather(asking, waking, return_exceptions=True)
            next_s = self._host.clock.monotonic() + self._host.stats_interval_s
            self._due[Step.STATS, target] = self._round(math.floor, next_s)

    async def _ask(self, row: Publication) -> "VolumeStats | None":
        host = self._host
        driver = self._key.driver
        found = None
        try:
            if not row.agent_defers:
                host.driver(driver)
                async with host.readings[driver]:
                    found = await host.plugin.stats(row)
        except VolumeError as error:
            log.debug("the usage of volume %s is not known: %s", self._key, error.why)
        if found is not None or not row.runtime:
            return found
        try:
            return await host.direct().stats(row)
        except VolumeError as error:
            log.debug("the usage of volume %s in its guest is not known: %s", self._key, error.why)
            return None

    def _note_stats(self, target: Target, want: PodVolume, stats: "VolumeStats | None") -> None:
        if stats is None:
            self.stats.pop(target, None)
            return
        self.stats[target] = stats
        if stats.abnormal:
            self._abnormal.add(target)
            self._tell_health(want, "VolumeConditionAbnormal", stats.message, warning=True)
        elif stats.abnormal is False and target in self._abnormal:
            self._abnormal.discard(target)
            self._tell_health(want, "VolumeConditionNormal", "the driver finds it healthy again", warning=False)

    def _tell_health(self, want: PodVolume, reason: str, text: str, *, warning: bool) -> None:
        # Report to the pod's users, as the kubelet does, and to the claim's, as external-health-monitor does.
        facts = self._host.facts
        volume = want.volume
        facts.tell_pod(want.pod, reason, f"Volume {want.volume_name}: {text}", warning=warning)
        if volume.claim is not None:
            facts.tell_claim(volume.claim, reason, f"Volume {volume.name} of {volume.driver}: {text}", warning=warning)

    def _round(self, up_or_down: Callable[[float], int], at: float) -> float:
        # So that several volumes are read at the same moment (`_LOOKS_AN_INTERVAL`).
        every_s = self._host.stats_interval_s / _LOOKS_AN_INTERVAL
        return up_or_down(at / every_s) * every_s

    def _republish_s(self, target: Target) -> float:
        return self._host.republish_interval_s * (1 + _fraction(target) / 2)


def _fraction(target: Target) -> float:
    return zlib.crc32(repr(tuple(target)).encode()) / 2**32
