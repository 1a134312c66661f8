"""The figures of calls and links: each with its measurement and its target."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil

from common.status import Code
from tests.support.bridge import Bridge, Hub
from tests.support.certificates import CLIENT_AUTH, Authority
from tests.support.processes import Supervisor, listens_on
from tests.support.sidecar import Outcome
from tests.support.waiting import wait_for

Command = tuple[str, ...]
"""The command of the load generator: a program and its first arguments."""

DRIVER = "load.csi-bridge.io"
EDGES = Path(__file__).with_name("edges.py")
FLOOR = Path(__file__).with_name("floor.py")

_IDLE_EDGES = 2_000
_HERD = 10_000
_HERD_TLS_DIALS = 1_000
"""The most dials with TLS that the herd makes at the same time. One process simulates the herd: it needs as long as the
hub for each handshake, and gives up on dials that it has kept waiting.
"""

_QUIET = ("--log-level=warning", "--keepalive=60s")
"""For figures about many links: they measure a link without its log lines and pings."""


class NotMeasured(Exception):
    """The measurement failed, so a number would mean nothing; the message is the reason."""


@dataclass
class Figure:
    """One row of the table.

    Attributes:
        name: the measured quantity, for people.
        measured: the number with its unit.
        target: the target; empty for a figure without one.
        met: whether the target is met; None without one.
        details: the numbers behind it.
    """

    name: str
    measured: str
    target: str = ""
    met: bool | None = None
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """`ok`, `missed`, or nothing without a target."""
        return "" if self.met is None else "ok" if self.met else "missed"


def at_share(values: list[float], share: float) -> float:
    """Return the smallest value that is not exceeded by this share of all."""
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


def spread_ms(seconds: list[float]) -> dict[str, int]:
    """Return the percentiles of some times in milliseconds, for a figure's details."""
    shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
    return {name: round(at_share(seconds, share) * 1000) for name, share in shares.items()}


# ---- one call ------------------------------------------------------------------------------------------------------


def calls(directory: Path, loadgen: Command) -> list[Figure]:
    """Measure the time that the bridge adds to a call, and the share of the direct rate that remains."""
    with _chain(directory, loadgen, "instant") as chain, _floor(chain):
        one = chain.load("--scenario=create-delete", "--callers=1", "--duration=15s")
        cpu = chain.cpu_us_per_call(one["targets"]["bridge"]["calls"])
    with _chain(directory, loadgen, "slower", "--delay=350us") as chain:
        real = chain.load("--scenario=create-delete", "--callers=1", "--duration=8s")
        many = chain.load("--scenario=create-delete", "--callers=16", "--duration=8s")
    with _chain(directory, loadgen, "local", "--delay=350us", placement="local") as chain:
        real_local = chain.load("--scenario=create-delete", "--callers=1", "--duration=8s")
        many_local = chain.load("--scenario=create-delete", "--callers=16", "--duration=8s")
    return [
        _added(one, "p50", limit_us=800),
        _added(one, "p99", limit_us=2000),
        _added_by_floor(one),
        _slower(real),
        _rate(many),
        _local(real_local, many_local),
        Figure("CPU a call: proxy / hub / agent", " / ".join(f"{us:.0f}" for us in cpu.values()) + " us", details=cpu),
    ]


def _added(result: dict[str, Any], percentile: str, *, limit_us: float) -> Figure:
    direct, bridge = (result["targets"][name]["latency_us"][percentile] for name in ("direct", "bridge"))
    added_us = bridge - direct
    measured = f"{added_us / 1000:.2f} ms (direct {direct / 1000:.2f}, bridge {bridge / 1000:.2f})"
    return Figure(
        f"added {percentile}, one caller", measured, f"<= {limit_us / 1000:g} ms", added_us <= limit_us, result
    )


def _added_by_floor(result: dict[str, Any]) -> Figure:
    direct, floor = (result["targets"][name]["latency_us"]["p50"] for name in ("direct", "floor"))
    return Figure("the same through three relays that only copy bytes, p50", f"{(floor - direct) / 1000:.2f} ms")


def _slower(result: dict[str, Any]) -> Figure:
    direct, bridge = (result["targets"][name]["operations"]["latency_us"]["p50"] for name in ("direct", "bridge"))
    ratio = bridge / direct
    measured = f"{ratio:.2f} x direct ({direct / 1000:.2f} -> {bridge / 1000:.2f} ms)"
    return Figure("Create + Delete, one caller, 0.35 ms driver", measured, "<= 2.5 x", ratio <= 2.5, result)


def _rate(result: dict[str, Any]) -> Figure:
    direct, bridge = (result["targets"][name]["operations"]["per_second"] for name in ("direct", "bridge"))
    ratio = bridge / direct
    measured = f"{ratio:.2f} x direct ({bridge:.0f} of {direct:.0f} pairs/s)"
    return Figure("Create + Delete, 16 callers, 0.35 ms driver", measured, ">= 0.35 x", ratio >= 0.35, result)


def _local(one: dict[str, Any], many: dict[str, Any]) -> Figure:
    """Of local placement: the hub's disk has each name and id before the caller gets an answer."""
    p50_ms = one["targets"]["bridge"]["operations"]["latency_us"]["p50"] / 1000
    rate = many["targets"]["bridge"]["operations"]["per_second"]
    measured = f"{p50_ms:.2f} ms, one caller; {rate:.0f} pairs/s, 16 callers"
    return Figure("the same with --placement=local", measured, details={"one": one, "many": many})


def identity(directory: Path, loadgen: Command) -> list[Figure]:
    """Measure Identity calls, which the proxy driver answers from its cache."""
    with _chain(directory, loadgen, "instant") as chain:
        result = chain.load("--scenario=identity", "--callers=16", "--duration=5s", direct=False)
    rate = result["targets"]["bridge"]["calls_per_second"]
    return [Figure("cached Identity calls", f"{rate:.0f}/s", ">= 5000/s", rate >= 5000, result)]


def agent_size(directory: Path, loadgen: Command) -> list[Figure]:
    """Measure the agent's resident memory after some thousand calls."""
    with _chain(directory, loadgen, "instant") as chain:
        chain.load("--scenario=create-delete", "--callers=16", "--count=3000", direct=False)
        sizes = {name: process.memory_info().rss / 1_048_576 for name, process in chain.processes.items()}
    agent = sizes["agent"]
    rest = f" (hub {sizes['hub']:.0f}, proxy driver {sizes['proxy']:.0f})"
    return [Figure("edge agent, resident", f"{agent:.0f} MB{rest}", "<= 45 MB", agent <= 45, sizes)]


def round_trips(directory: Path, loadgen: Command) -> list[Figure]:
    """Measure the round trips of a call on a link of 200 ms."""
    with _chain(directory, loadgen, "far", delay="100ms") as chain:
        result = chain.load("--scenario=validate", "--callers=1", "--count=20", direct=False)
    p50_ms = result["targets"]["bridge"]["latency_us"]["p50"] / 1000
    trips = p50_ms / 200
    measured = f"{trips:.2f} ({p50_ms:.0f} ms a call on a link of 200 ms)"
    return [Figure("round trips a call", measured, "1", round(trips) == 1, result)]


# ---- many edges ----------------------------------------------------------------------------------------------------


def idle_edges(directory: Path, _loadgen: Command) -> list[Figure]:
    """Measure the hub's memory for each idle edge."""
    found = []
    for name, limit_kb in (("plain", 20), ("mTLS", 60)):
        with _hub(directory, name) as (hub, edges):
            before = hub.rss_bytes()
            edges.up(_IDLE_EDGES, at_once=200)
            time.sleep(2)  # memory of the handshakes is freed
            per_edge_kb = (hub.rss_bytes() - before) / _IDLE_EDGES / 1024
            edges.still_up(_IDLE_EDGES)
        figure = f"hub memory an idle edge, {_IDLE_EDGES:,} edges, {name}"
        found.append(Figure(figure, f"{per_edge_kb:.1f} KB", f"<= {limit_kb} KB", per_edge_kb <= limit_kb))
    return found


def herd(directory: Path, _loadgen: Command) -> list[Figure]:
    """Measure ten thousand edges that dial one hub, and ten thousand agents whose hub restarts."""
    found = []
    for name, at_once, limit_s in (("plain", _HERD, 15.0), ("mTLS", _HERD_TLS_DIALS, None)):
        with _hub(directory, name) as (hub, edges):
            began_s = hub.cpu_s()
            told = edges.up(_HERD, at_once=at_once)
            cpu_s = hub.cpu_s() - began_s
        measured = f"{told['seconds']:.1f} s ({cpu_s:.1f} s of the hub's CPU, {told['retries']} dialled again)"
        target, met = ("", None) if limit_s is None else (f"<= {limit_s:g} s", told["seconds"] <= limit_s)
        found.append(Figure(f"{_HERD:,} edges dial, {at_once:,} at once, {name}", measured, target, met, told))
    with _hub(directory, "restart") as (hub, edges):
        edges.keep(_HERD)
        hub.kill()
        began = time.monotonic()
        edges.wait_up(0)  # before all have seen that the hub is gone, they would count as back
        hub.start()
        edges.wait_up(_HERD)
        took_s = time.monotonic() - began
    found.append(Figure(f"{_HERD:,} agents after kill -9 of their hub, with back-off", f"all back in {took_s:.0f} s"))
    return found


# ---- measured processes ----------------------------------------------------------------------------------------------


class _Chain:
    """Puts load on a driver that answers at once, directly and through a bridge."""

    def __init__(self, loadgen: Command, vendor: Path, bridge: Path, processes: dict[str, psutil.Process]) -> None:
        self.processes = processes
        self.sockets = {"direct": vendor, "bridge": bridge}
        self._loadgen = loadgen
        self._cpu_s: dict[str, float] = {}

    def load(self, *flags: str, direct: bool = True) -> dict[str, Any]:
        """Run the load generator. All sockets take turns; without `direct`, only the bridge's."""
        targets = self.sockets if direct else {"bridge": self.sockets["bridge"]}
        sockets = [f"--socket={name}=unix://{path}" for name, path in targets.items()]
        self._cpu_s = self._cpu()
        done = subprocess.run([*self._loadgen, "run", *sockets, *flags], check=False, capture_output=True, text=True)
        return _report(done)

    def cpu_us_per_call(self, calls: int) -> dict[str, float]:
        """Return the CPU time per call of each process in the last `load`. It includes the warm-up's."""
        now = self._cpu()
        return {name: (now[name] - self._cpu_s[name]) / calls * 1e6 for name in now}

    def _cpu(self) -> dict[str, float]:
        return {name: sum(process.cpu_times()[:2]) for name, process in self.processes.items()}


def _report(done: "subprocess.CompletedProcess[str]") -> dict[str, Any]:
    """Return the load generator's report, if every call succeeded."""
    if done.returncode != 0:
        raise NotMeasured(f"the load generator ended with exit status {done.returncode}: {done.stderr.strip()}")
    result: dict[str, Any] = json.loads(done.stdout)
    for name, target in result["targets"].items():
        if target["errors"]:
            raise NotMeasured(f"calls to {name} failed: {target['error_messages']}")
        operations = target["operations"]["count"]
        calls = {method: of["calls"] for method, of in target["methods"].items()}
        if not operations or {*calls.values()} != {operations}:
            raise NotMeasured(f"{name}: {operations} operations came to their end, of these calls: {calls}")
    return result


@contextmanager
def _chain(
    directory: Path, loadgen: Command, name: str, *flags: str, delay: str = "", placement: str = "auto"
) -> Iterator[_Chain]:
    here = directory / name
    vendor = here / "v.sock"
    with Supervisor(here) as supervisor, Bridge(here, here) as bridge:
        serve = [*loadgen, "serve", f"--endpoint=unix://{vendor}", f"--name={DRIVER}", *flags]
        supervisor.start("driver", serve, ready=lambda: listens_on(vendor))
        hub = bridge.start_hub()
        link = bridge.start_link(delay=delay) if delay else None
        agent = bridge.start_agent("n1", vendor, through=link.address if link is not None else None)
        proxy = bridge.start_proxy(DRIVER, f"--placement={placement}")
        with proxy.sidecar() as sidecar:
            wait_for(lambda: _vendor_answers(sidecar.call("GetCapacity")), what="answer through the bridge")
        processes = {"proxy": proxy, "hub": hub, "agent": agent}
        pids = {name: psutil.Process(each.process.pid) for name, each in processes.items()}
        yield _Chain(loadgen, vendor, proxy.socket, pids)


@contextmanager
def _floor(chain: _Chain) -> Iterator[None]:
    """Run three bare relays in front of the driver, as one more socket for the load."""
    vendor = chain.sockets["direct"]
    stops = [vendor, *(vendor.with_name(f"floor{number}.sock") for number in range(1, 4))]
    with Supervisor(vendor.parent) as supervisor:
        for target, source in pairwise(stops):
            relay = [sys.executable, FLOOR, source, target]
            supervisor.start(source.stem, relay, ready=partial(listens_on, source))
        chain.sockets["floor"] = stops[-1]
        yield


def _vendor_answers(outcome: Outcome) -> bool:
    return outcome.ok or outcome.refusal[0] == Code.UNIMPLEMENTED


class _Edges:
    """Simulated edges, in a process of their own."""

    def __init__(self, hub: str, authority: Authority | None) -> None:
        self._hub = hub
        self._authority = authority
        self._process: subprocess.Popen[str] | None = None

    def up(self, count: int, *, at_once: int) -> dict[str, Any]:
        """Dial `count` edges, `at_once` at a time, and return how long it took."""
        flags = [f"--at-once={at_once}"]
        if self._authority is not None:
            for number in range(count):
                _certify(self._authority, f"e{number}")
            flags += ["--tls", str(self._authority.path), str(self._authority.directory)]
        return _all_up(self._start(count, *flags), count)

    def still_up(self, count: int) -> None:
        """Check that none of `count` edges went away."""
        _all_up(self._ask(), count)

    def keep(self, count: int) -> None:
        """Keep `count` edges up, as agents would."""
        self._start(count, "--uplinks")
        self.wait_up(count)

    def wait_up(self, count: int) -> None:
        """Wait until `count` edges are up."""
        wait_for(lambda: self._ask()["up"] == count, what=f"{count} edges up", timeout_s=300)

    def close(self) -> None:
        """Close them all."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _start(self, count: int, *flags: str) -> dict[str, Any]:
        command = [sys.executable, str(EDGES), f"--hub={self._hub}", f"--count={count}", *flags]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self._read()

    def _ask(self) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise NotMeasured("the process of the simulated edges ended")
        told: dict[str, Any] = json.loads(line)
        return told


def _certify(authority: Authority, node: str) -> None:
    """Issue the certificate of an edge, in the files that `bench/edges.py` opens."""
    name = {"uris": [f"csi-bridge:node:{node}"], "purposes": [CLIENT_AUTH]}
    authority.issue(f"system:node:{node}", "system:nodes", file=f"edge-{node}", **name)


def _all_up(told: dict[str, Any], count: int) -> dict[str, Any]:
    if told["up"] != count:
        raise NotMeasured(f"{told['up']} of {count} edges are up")
    return told


class _BenchHub:
    """A hub and its CPU time."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub

    def cpu_s(self) -> float:
        """Return its user and system time so far."""
        return float(sum(psutil.Process(self.hub.process.pid).cpu_times()[:2]))

    def rss_bytes(self) -> int:
        """Return its resident memory."""
        return int(psutil.Process(self.hub.process.pid).memory_info().rss)

    def kill(self) -> None:
        """kill -9."""
        self.hub.kill()

    def start(self) -> None:
        """Start it again."""
        self.hub.start()


@contextmanager
def _hub(directory: Path, name: str) -> Iterator[tuple[_BenchHub, _Edges]]:
    here = directory / name
    here.mkdir()
    with Bridge(here, here) as bridge:
        authority = Authority(here) if name == "mTLS" else None
        flags = authority.hub().flags if authority is not None else []
        hub = bridge.start_hub(*flags, *_QUIET)
        edges = _Edges(f"{'wss' if authority is not None else 'ws'}://{hub.address}", authority)
        try:
            yield _BenchHub(hub), edges
        finally:
            edges.close()
