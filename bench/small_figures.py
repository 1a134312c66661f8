"""Figures of a small device: an agent without a kubelet in a control group, beside one without limits.

Driver, hub, sidecars and control plane are outside of the group. The driver answers at once, so the times are the
bridge's and the sidecars'.
"""

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import psutil

from bench import edge_figures
from bench.chain import Command
from bench.claim_cluster import PEERS, ClaimCluster, Way, done
from bench.figure import Figure, at_share, of_samples
from bench.peers import missing_peers
from bench.progress import say
from tests.kit import leftovers
from tests.kit.control_group import ControlGroup

_MEMORY_MB, _CORES = 128, 0.25
_CLAIMS, _ROUNDS, _VOLUMES = 10, 3, 100
_SLOW_S = 300.0
_NAME = f"{_MEMORY_MB} MB, {_CORES:g} of a core"


@dataclass
class _Found:
    """The figures of one agent.

    Attributes:
        start_s: from each start of the agent without volumes until it served.
        mounted_s: from each claim, and then its pod, until the volume was published.
        all_mounted_s: in each round from the creation of many pods at once until all volumes were published.
        resident_mb: the agent's memory then.
        reboot_s: from the agent's start, without mounts and hub, until all volumes were published again.
        peak_mb: the group's memory, at most.
    """

    start_s: list[float] = field(default_factory=list)
    mounted_s: list[float] = field(default_factory=list)
    all_mounted_s: list[float] = field(default_factory=list)
    resident_mb: list[float] = field(default_factory=list)
    reboot_s: list[float] = field(default_factory=list)
    peak_mb: float = 0.0


def small_device(directory: Path, loadgen: Command) -> list[Figure]:
    """Measure an agent that has little memory and processor time."""
    if missing := edge_figures.missing(loadgen) or missing_peers(*PEERS):
        return [Figure(_NAME, f"left out: {missing}")]
    limited = ControlGroup("csi-bridge-small", memory_mb=_MEMORY_MB, cores=_CORES)
    groups = {"small": limited, "free": ControlGroup("csi-bridge-free")}
    with ExitStack() as stack:
        try:
            for group in groups.values():
                stack.enter_context(group)
        except OSError as error:
            return [Figure(_NAME, f"left out: no control group can be made: {error}")]
        cluster = stack.enter_context(_Devices(directory / "c", loadgen, groups))
        found = cluster.measure()
    return _table(found["small"], found["free"])


def _table(ours: _Found, free: _Found) -> list[Figure]:
    figures = []
    for what, unit, digits, value in (
        ("agent's start until it serves", "s", 2, lambda it: it.start_s),
        (f"claim created -> volume mounted, p50 of {_CLAIMS}", "s", 2, lambda it: [at_share(it.mounted_s, 0.5)]),
        (f"claim created -> volume mounted, the slowest of {_CLAIMS}", "s", 2, lambda it: [max(it.mounted_s)]),
        (f"{_VOLUMES} pods at once, created -> all volumes mounted", "s", 1, lambda it: it.all_mounted_s),
        (f"reboot without the cloud, agent's start -> {_VOLUMES} volumes mounted", "s", 1, lambda it: it.reboot_s),
        (f"{_VOLUMES} volumes: agent, resident", "MB", 0, lambda it: [max(it.resident_mb)]),
        ("peak of the control group", "MB", 0, lambda it: [it.peak_mb]),
    ):
        most = _MEMORY_MB if unit == "MB" else None
        beside = {"no limit": f"{median(value(free)):.{digits}f} {unit}"}
        figures.append(of_samples(f"{_NAME}: {what}", value(ours), unit, at_most=most, digits=digits, peers=beside))
    figures[0].details = {"small": vars(ours), "free": vars(free)}
    return figures


class _Devices(ClaimCluster):
    """A cluster with a node without a kubelet for each group, whose agent runs in it."""

    def __init__(self, directory: Path, loadgen: Command, groups: Mapping[str, ControlGroup]) -> None:
        super().__init__(directory, loadgen)
        self._groups = groups

    def measure(self) -> dict[str, _Found]:
        """Return the figures by group; the nodes take turns."""
        found = {name: _Found() for name in self._groups}
        say("small: the cluster runs; single claims")
        for way in self.ways.values():
            self.run(way, 1)
        for _ in range(_CLAIMS):
            for way in self.ways.values():
                batch = self.run(way, 1)
                found[way.name].mounted_s.append(batch.bound_s[0] + batch.published_s[0])
        for number in range(_ROUNDS):
            say(f"small: {_VOLUMES} volumes and a reboot, round {number + 1} of {_ROUNDS}")
            for name, way in self.ways.items():
                found[name].start_s.append(self._start_again(way))
                self._many(way, found[name])
        for name, group in self._groups.items():
            found[name].peak_mb = group.peak_mb
        return found

    def _start_ways(self, _stack: ExitStack) -> None:
        for name, group in self._groups.items():
            self._start_alone(name, name, group.words)

    def _start_again(self, way: Way) -> float:
        assert way.agent is not None
        way.agent.stop()
        began = time.time()
        way.agent.start()
        return time.time() - began

    def _many(self, way: Way, found: _Found) -> None:
        """Mount many volumes at once, and again after a reboot."""

        def meanwhile() -> None:
            assert way.agent is not None
            found.resident_mb.append(psutil.Process(way.agent.process.pid).memory_info().rss / 1_048_576)
            found.reboot_s.append(self._reboot(way))

        found.all_mounted_s.append(max(self.run(way, _VOLUMES, meanwhile=meanwhile).published_s))

    def _reboot(self, way: Way) -> float:
        """Return the time in which the agent alone mounts everything again; the hub is back afterwards."""
        assert way.agent is not None
        self._bridge.hub.kill()
        way.agent.kill()
        leftovers.clear(self._own_root(way))
        began = time.time()
        way.agent.start()

        def ends() -> list[float]:
            return [call.end for call in done(way, "NodePublishVolume") if call.end and call.end >= began]

        way.agent.process.wait_until(lambda: len(ends()) >= _VOLUMES, what="mounts after a reboot", timeout_s=_SLOW_S)
        self._bridge.hub.start()
        return max(ends()) - began
