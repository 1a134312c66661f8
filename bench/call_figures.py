"""Figures of calls: the bridge beside the driver's own socket, three bare relays (the floor), and the shortest bridge.

All sockets take turns in one load. A round loads each of them for a moment, and gives one sample of each quantity.
Rounds are repeated until the spreads of the judged ones are known.

Rules:

* What has mTLS on the agent's link is compared with relays and a shortest bridge that have it, too.
* CPU time is a process' own, less what it takes when nobody calls.
* With pauses, the caches are cold: each caller waits after each call.
"""

import math
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import psutil

from bench.call_path import lines
from bench.chain import (
    Chain,
    Command,
    Form,
    NotMeasured,
    Pids,
    chain,
    cpu_us,
    driver,
    lacks,
    relays,
    run_load,
    shortest,
)
from bench.figure import Figure, of_samples
from bench.progress import say
from bench.spread import repeat, spread_of
from tests.kit.certificates import Authority

_ROUND = ("--duration=700ms", "--slice=350ms", "--warm-up=1us")
_WARM_UP = ("--duration=300ms", "--warm-up=1us")
_LIMIT_S = 35.0
"""Of the rounds of one load. There are ten loads, and `--only call` takes nine minutes."""

_TRIES = 5
"""Of a round, if other work disturbed it."""

_DELAY = "350us"
"""A quick driver's time for a call."""

_IDLE_S = 3.0
_PAUSE = "10ms"
_SYNCS = 30
_PAUSE_S = 0.002  # before each of them, as about a create has before its own: an idle disk takes up to thrice as long
_PAGE_BYTES = 4_096

_SPLIT = Form.SPLIT.value
_TLS = ", mTLS"
_LOCAL = "bridge with local placement"
_FLOOR, _SHORTEST = "floor", "shortest"
_CREATE = "/csi.v1.Controller/CreateVolume"
_HOPS = {"proxy": "proxy driver", "hub": "hub", "agent": "agent"}


class Load(NamedTuple):
    """A load on all sockets."""

    method: str
    callers: int
    cold: bool = False
    vendor: str = ""

    def __str__(self) -> str:
        words = [self.method, "one caller" if self.callers == 1 else f"{self.callers} callers"]
        return ", ".join([*words, *[f"pauses of {_PAUSE}"] * self.cold, *[self.vendor] * bool(self.vendor)])

    @property
    def flags(self) -> tuple[str, ...]:
        scenario = {"Validate": "validate", "Create + Delete": "create-delete"}[self.method]
        pause = f"--pause={_PAUSE}" if self.cold else "--pause=0s"
        return f"--scenario={scenario}", f"--callers={self.callers}", pause


_SLOW = "driver of 0.35 ms a call"
_VALIDATE, _PAIR = Load("Validate", 1), Load("Create + Delete", 1)
_MANY = _PAIR._replace(callers=16)
_INSTANT = (
    *(_VALIDATE, _PAIR, _VALIDATE._replace(cold=True), _PAIR._replace(cold=True)),
    *(method._replace(callers=callers) for callers in (16, 64) for method in (_VALIDATE, _PAIR)),
)
_SLOW_LOADS = _PAIR._replace(vendor=_SLOW), _MANY._replace(vendor=_SLOW)


@dataclass(frozen=True)
class _Targets:
    """The targets of a form, with and without mTLS. None: it has none.

    Attributes:
        added: of the floor's.
        added_tls: the same with mTLS.
        of_direct: of the rate with 16 callers.
        of_floor: the same.
        of_shortest: the same.
        cpu: of the shortest bridge's at the same hop.
        slower: a pair's time with a driver of 0.35 ms a call, of the direct one.
    """

    added: float
    added_tls: float
    slower: float
    of_direct: float | None = None
    of_floor: float | None = None
    of_shortest: float | None = None
    cpu: float | None = None


_TARGETS = {
    Form.SPLIT: _Targets(
        added=2.5, added_tls=3.5, slower=1.9, of_direct=0.28, of_floor=0.38, of_shortest=0.8, cpu=1.35
    ),
    Form.ONE_PROCESS: _Targets(added=1.8, added_tls=1.8, slower=1.7),
}
_SLOW_RATE = 0.5
_LOCAL_ADDED = 4.0


def calls(directory: Path, loadgen: Command) -> list[Figure]:
    """Measure what the bridge adds to a call, its share of the direct rate, and its CPU time."""
    found: dict[Load, Rounds] = {}
    path = lines()
    with _bed(directory / "instant", loadgen) as bed:
        found |= {load: _rounds(bed, load) for load in _INSTANT}
    with _bed(directory / "slower", loadgen, f"--delay={_DELAY}") as bed:
        found |= {load: _rounds(bed, load) for load in _SLOW_LOADS}
    figures: list[Figure] = []
    for form in Form:
        if why := lacks(form):
            figures.append(Figure(f"{form.value}: all rows", f"left out: {why}"))
            continue
        for name in (form.value, form.value + _TLS):
            figures += _rows(found, name, _TARGETS[form])
    return [*figures, _local(found[_PAIR]), path]


# ---- rounds ----------------------------------------------------------------------------------------------------------

Rounds = dict[str, list[float]]
"""Samples by the name of a quantity: the socket, a colon, and what was measured there."""


class _Bed:
    """Everything that stands before one driver: bridges, floors, and shortest bridges.

    Attributes:
        sockets: by name; the load uses them in turns.
        pids: by name.
        disk: a directory on the disk of the hub with local placement.
    """

    def __init__(self, loadgen: Command, vendor: Path) -> None:
        self.sockets = {"direct": vendor}
        self.pids: dict[str, Pids] = {}
        self.disk = vendor.parent
        self._loadgen = loadgen
        self._idle: dict[int, float] = {}

    def add(self, name: str, socket: Path, pids: Pids) -> None:
        """Add a chain."""
        self.sockets[name], self.pids[name] = socket, pids

    def settle(self) -> None:
        """Measure the CPU time of each process when nobody calls."""
        pids = [pid for of in self.pids.values() for pid in of.values()]
        time.sleep(_IDLE_S)
        before = {pid: cpu_us(pid) for pid in pids}
        time.sleep(_IDLE_S)
        self._idle = {pid: (cpu_us(pid) - before[pid]) / _IDLE_S for pid in pids}

    def load(self, load: Load, *flags: str) -> dict[str, Any]:
        """Return the report of each socket, with the CPU time of each process a call as `cpu_us`."""
        sockets = {name: socket for name, socket in self.sockets.items() if name != _LOCAL or load == _PAIR}
        began, before = time.monotonic(), {pid: cpu_us(pid) for pid in self._idle}
        report: dict[str, Any] = run_load(self._loadgen, sockets, (*load.flags, *flags))["targets"]
        seconds = time.monotonic() - began
        used = {pid: cpu_us(pid) - before[pid] - idle * seconds for pid, idle in self._idle.items()}
        for name in sockets.keys() & self.pids.keys():
            report[name]["cpu_us"] = {hop: used[pid] / report[name]["calls"] for hop, pid in self.pids[name].items()}
        return report


@contextmanager
def _bed(directory: Path, loadgen: Command, *driver_flags: str) -> Iterator[_Bed]:
    directory.mkdir(parents=True, exist_ok=True)
    with ExitStack() as opened:
        vendor = opened.enter_context(driver(directory, loadgen, *driver_flags))
        bed = _Bed(loadgen, vendor)

        def add(name: str, of: Chain) -> None:
            bed.add(name, of.socket, of.processes)

        for short, tls, authority in (("", "", None), ("T", _TLS, Authority(directory))):
            bed.add(_FLOOR + tls, *opened.enter_context(relays(directory / f"F{short}", vendor, authority)))
            bed.add(_SHORTEST + tls, *opened.enter_context(shortest(directory / f"P{short}", vendor, authority)))
            for form in Form:
                if not lacks(form):
                    here = directory / (form.name[0] + short)
                    add(form.value + tls, opened.enter_context(chain(here, vendor, form=form, authority=authority)))
        if not driver_flags:
            add(_LOCAL, opened.enter_context(chain(directory / "L", vendor, placement="local")))
        bed.settle()
        yield bed


def _rounds(bed: _Bed, load: Load) -> Rounds:
    say(f"call: {load}")
    bed.load(load, *_WARM_UP)
    whats = ("rate",) if load.callers > 1 else ("slower",) if load.vendor else ("added by floor",)
    judged = [
        f"{form.value}{tls}: {what}" for form in Form if form.value in bed.pids for tls in ("", _TLS) for what in whats
    ]

    def one() -> dict[str, float]:
        sync_ms = _sync_ms(bed.disk) if load == _PAIR else 0.0
        for _ in range(_TRIES):
            found = sample(bed.load(load, *_ROUND), sync_ms)
            if load.callers > 1 or min(found[f"{_FLOOR}{tls}: added ms"] for tls in ("", _TLS)) > 0:
                return found
        raise NotMeasured("three relays took no longer than the driver's own socket: the machine is too busy")

    return repeat(one, limit_s=_LIMIT_S, judged=judged)


def _sync_ms(directory: Path) -> float:
    """Return the time of a write of one page that waits for the disk."""
    took_ms = []
    with (directory / "synced").open("wb", buffering=0) as file:
        for _ in range(_SYNCS):
            time.sleep(_PAUSE_S)
            began = time.perf_counter()
            file.write(bytes(_PAGE_BYTES))
            os.fdatasync(file.fileno())
            took_ms.append((time.perf_counter() - began) * 1000)
    return median(took_ms)


def sample(report: Mapping[str, Any], sync_ms: float) -> dict[str, float]:
    """Return the quantities of one round, from the reports of the sockets. Multiples of a floor of 0 are infinite."""
    found: dict[str, float] = {"sync ms": sync_ms}
    direct = report["direct"]
    for name, of in report.items():
        tls = _TLS if name.endswith(_TLS) else ""
        floor, least = report[_FLOOR + tls], report[_SHORTEST + tls]
        added_us, floor_us = (each["latency_us"]["p50"] - direct["latency_us"]["p50"] for each in (of, floor))
        pairs, rate = of["operations"], of["operations"]["per_second"]
        found |= {
            f"{name}: added ms": added_us / 1000,
            f"{name}: added p99 ms": (of["latency_us"]["p99"] - direct["latency_us"]["p99"]) / 1000,
            f"{name}: added by floor": added_us / floor_us if floor_us > 0 else math.inf,
            f"{name}: pair ms": pairs["latency_us"]["p50"] / 1000,
            f"{name}: slower": pairs["latency_us"]["p50"] / direct["operations"]["latency_us"]["p50"],
            f"{name}: pairs/s": rate,
            f"{name}: rate": rate / direct["operations"]["per_second"],
            f"{name}: rate by floor": rate / floor["operations"]["per_second"],
            f"{name}: rate by shortest": rate / least["operations"]["per_second"],
        }
        cpu = of.get("cpu_us", {})
        for hop, us in cpu.items():
            there = ("proxy", "hub") if hop == "hub" and "proxy" not in cpu else (hop,)
            by = sum(least["cpu_us"][each] for each in there)
            found |= {f"{name}: cpu of {hop}": us, f"{name}: cpu of {hop} by shortest": us / by}
    if _LOCAL in report:
        local_ms, own_ms = (report[name]["methods"][_CREATE]["latency_us"]["p50"] / 1000 for name in (_LOCAL, "direct"))
        floor_ms = found[f"{_FLOOR}: added ms"]
        found["local: added by floor"] = (local_ms - own_ms - 2 * sync_ms) / floor_ms if floor_ms > 0 else math.inf
    return found


# ---- rows ------------------------------------------------------------------------------------------------------------


def _rows(found: Mapping[Load, Rounds], name: str, of: _Targets) -> Iterator[Figure]:
    """Yield the rows of one form, with or without mTLS."""
    for load in (_VALIDATE, _PAIR):
        yield _added(found, name, load, at_most=of.added_tls if name.endswith(_TLS) else of.added)
    for load in (_VALIDATE, _PAIR):
        yield _added(found, name, load._replace(cold=True))
    yield _rate(found, name, _MANY, at_least=of.of_direct)
    for by, at_least in (("floor", of.of_floor), ("shortest", of.of_shortest)):
        if at_least is not None:
            yield _rate(found, name, _MANY, by=by, at_least=at_least)
    for load in (_VALIDATE._replace(callers=16), _VALIDATE._replace(callers=64), _PAIR._replace(callers=64)):
        yield _rate(found, name, load)
    one, many = _SLOW_LOADS
    yield _slower(found, name, one, at_most=of.slower)
    yield _rate(found, name, many, at_least=_SLOW_RATE)
    for hop in _HOPS:
        if f"{name}: cpu of {hop}" in found[_PAIR]:
            yield _cpu(found[_PAIR], name, hop, at_most=of.cpu)


def _added(found: Mapping[Load, Rounds], name: str, load: Load, *, at_most: float | None = None) -> Figure:
    rounds, floor = found[load], _beside(name, _FLOOR)
    ms = f"of {_middle(rounds, f'{name}: added ms'):.2f} ms by {_middle(rounds, f'{floor}: added ms'):.2f}"
    note = f"{ms}; p99 {_middle(rounds, f'{name}: added p99 ms'):.2f} ms"
    peers = _peers(rounds, name, "added by floor", "x", _SHORTEST)
    title = f"{name}: added p50 by the floor's, {load}"
    return of_samples(title, rounds[f"{name}: added by floor"], "x", at_most=at_most, note=note, peers=peers)


def _slower(found: Mapping[Load, Rounds], name: str, load: Load, *, at_most: float) -> Figure:
    rounds = found[load]
    note = f"{_middle(rounds, 'direct: pair ms'):.2f} -> {_middle(rounds, f'{name}: pair ms'):.2f} ms"
    peers = _peers(rounds, name, "slower", "x", _FLOOR, _SHORTEST)
    return of_samples(f"{name}: {load}", rounds[f"{name}: slower"], "x direct", at_most=at_most, note=note, peers=peers)


def _rate(
    found: Mapping[Load, Rounds], name: str, load: Load, *, by: str = "", at_least: float | None = None
) -> Figure:
    rounds, what = found[load], f"rate by {by}" if by else "rate"
    ours, direct = (_middle(rounds, f"{which}: pairs/s") for which in (name, "direct"))
    unit = f"x {_beside(name, by)}" if by else "x direct"
    note = "" if by else f"{ours:,.0f} of {direct:,.0f} a second"
    peers = {} if by else _peers(rounds, name, "rate", "x", _FLOOR, _SHORTEST)
    title = f"{name}: {load}" + (f", by the {by}'s" if by else "")
    figure = of_samples(title, rounds[f"{name}: {what}"], unit, at_least=at_least, note=note, peers=peers)
    figure.more_is_better = True
    return figure


def _cpu(rounds: Rounds, name: str, hop: str, *, at_most: float | None) -> Figure:
    note = f"{_middle(rounds, f'{name}: cpu of {hop}'):.0f} us"
    peers = _peers(rounds, name, f"cpu of {hop}", "us", _FLOOR, _SHORTEST, digits=0)
    title = f"{name}: CPU a call by the shortest bridge's, {_HOPS[hop]}"
    return of_samples(title, rounds[f"{name}: cpu of {hop} by shortest"], "x", at_most=at_most, note=note, peers=peers)


def _local(rounds: Rounds) -> Figure:
    """Of local placement: the hub's disk has the name before the call leaves, and the id before its success is told."""
    note = f"a write that waits for the disk: {_middle(rounds, 'sync ms'):.2f} ms"
    title = f"{_LOCAL}: added p50 of CreateVolume without two writes to the disk, by the floor's"
    return of_samples(title, rounds["local: added by floor"], "x", at_most=_LOCAL_ADDED, note=note)


def _beside(name: str, other: str) -> str:
    """Return the name of a floor or a shortest bridge with the same link."""
    return other + (_TLS if name.endswith(_TLS) else "")


def _peers(rounds: Rounds, name: str, what: str, unit: str, *others: str, digits: int = 2) -> dict[str, str]:
    """Return a quantity of the floor and the shortest bridge."""
    return {other: f"{_middle(rounds, f'{_beside(name, other)}: {what}'):.{digits}f} {unit}" for other in others}


def _middle(rounds: Rounds, quantity: str) -> float:
    return spread_of(rounds[quantity]).median


# ---- one hop ---------------------------------------------------------------------------------------------------------


def identity(directory: Path, loadgen: Command) -> list[Figure]:
    """Measure Identity calls, which the proxy driver answers from its cache."""
    directory.mkdir(exist_ok=True)
    with driver(directory, loadgen) as vendor, chain(directory / "S", vendor) as of:
        flags = ("--scenario=identity", "--callers=16", "--duration=1s")

        def one() -> dict[str, float]:
            return {"rate": run_load(loadgen, {_SPLIT: of.socket}, flags)["targets"][_SPLIT]["calls_per_second"]}

        rates = repeat(one, limit_s=_LIMIT_S)["rate"]
    return [of_samples("cached Identity calls", rates, "/s", at_least=5000, digits=0)]


def sizes(directory: Path, loadgen: Command) -> dict[str, float]:
    """Return the resident memory of each process in MB, after some thousand calls."""
    with driver(directory, loadgen) as vendor, chain(directory / "S", vendor) as of:
        flags = ("--scenario=create-delete", "--callers=16", "--count=3000")
        run_load(loadgen, {_SPLIT: of.socket}, flags)
        return {hop: psutil.Process(pid).memory_info().rss / 1_048_576 for hop, pid in of.processes.items()}


def round_trips(directory: Path, loadgen: Command) -> list[Figure]:
    """Measure the round trips of a call on a link of 200 ms."""
    directory.mkdir(exist_ok=True)
    with driver(directory, loadgen) as vendor, chain(directory / "S", vendor, delay="100ms") as of:
        flags = ("--scenario=validate", "--callers=1", "--count=20")
        result = run_load(loadgen, {_SPLIT: of.socket}, flags)
    p50_ms = result["targets"][_SPLIT]["latency_us"]["p50"] / 1000
    trips = p50_ms / 200
    measured = f"{trips:.2f} ({p50_ms:.0f} ms a call on a link of 200 ms)"
    return [Figure("round trips a call", measured, "1", round(trips) == 1, result, [trips])]
