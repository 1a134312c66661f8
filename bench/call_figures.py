"""Figures of calls: the bridge beside the driver's own socket, three bare relays (the floor) and other tunnels.

All sockets take turns in one load. A round loads each of them for a moment, and gives one sample of each quantity.
Rounds are repeated until the spreads of the judged ones are known.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from bench.chain import Chain, Command, Form, NotMeasured, chain, cpu_us, driver, lacks, run_load
from bench.figure import Figure, of_samples
from bench.progress import say
from bench.spread import repeat, spread_of
from bench.tunnels import relays, tunnels

_ROUND = ("--duration=700ms", "--slice=350ms", "--warm-up=1us")
_WARM_UP = ("--duration=1s", "--warm-up=1us")
_LIMIT_S = 40.0
"""Of the rounds of one load. There are four loads, and `--only call` takes four minutes."""

_TRIES = 5
"""Of a round, if other work disturbed it."""

_DELAY = "350us"
"""A quick driver's time for a call."""

_SPLIT = Form.SPLIT.value
_QUIET = "bridge without log lines"
_LOCAL = "bridge with local placement"
_TUNNELS = ("ssh -L", "chisel")
_MOST_CPU_US = {"proxy": 150.0, "hub": 130.0, "agent": 170.0}
"""By hop, of a call through three processes."""


@dataclass(frozen=True)
class _Targets:
    """The targets of a form."""

    added: float
    slower: float
    rate: float
    rate_instant: float | None


_TARGETS = {
    Form.SPLIT: _Targets(added=6.0, slower=1.9, rate=0.40, rate_instant=0.20),
    Form.ONE_PROCESS: _Targets(added=2.8, slower=1.7, rate=0.50, rate_instant=None),
}


def calls(directory: Path, loadgen: Command) -> list[Figure]:
    """Measure what the bridge adds to a call, as a multiple of the floor, and the share of the direct rate."""
    with _bed(directory / "instant", loadgen, quiet=True) as bed:
        one, many = (_rounds(bed, callers, "a driver that answers at once") for callers in (1, 16))
    with _bed(directory / "slower", loadgen, f"--delay={_DELAY}", local=True) as bed:
        one_slower, many_slower = (_rounds(bed, callers, "a driver of 0.35 ms a call") for callers in (1, 16))
    found: list[Figure] = []
    for form in Form:
        if why := lacks(form):
            found.append(Figure(f"{form.value}: all rows", f"left out: {why}"))
            continue
        of, name = _TARGETS[form], form.value
        found += [
            _added(one, name, at_most=of.added),
            _added_p99(one, name),
            _slower(one_slower, name, at_most=of.slower),
            _rate(many_slower, name, "driver of 0.35 ms a call", at_least=of.rate),
            _rate(many, name, "driver that answers at once", at_least=of.rate_instant),
            *_cpu(one, name),
        ]
    found += [_log_cost(one), *_local(one_slower, many_slower)]
    return found + [Figure(name, f"left out: {why}") for name, why in bed.left_out.items()]


# ---- rounds ----------------------------------------------------------------------------------------------------------

Rounds = dict[str, list[float]]
"""Samples by the name of a quantity: the socket, a colon, and what was measured there."""


class _Bed:
    """Everything that stands before one driver: bridges, floor and tunnels.

    Attributes:
        sockets: by name; the load uses them in turns.
        chains: the bridges among them.
        floor: the process ids of the three relays.
        left_out: why a tunnel is not among them, by name.
    """

    def __init__(self, loadgen: Command, vendor: Path) -> None:
        self.sockets = {"direct": vendor}
        self.chains: dict[str, Chain] = {}
        self.floor: list[int] = []
        self.left_out: dict[str, str] = {}
        self._loadgen = loadgen

    def add(self, name: str, of: Chain) -> None:
        """Add a bridge."""
        self.chains[name] = of
        self.sockets[name] = of.socket

    def load(self, *flags: str) -> dict[str, Any]:
        """Return the report of each socket, with the CPU time of each process a call as `cpu_us`."""
        pids = {name: of.processes for name, of in self.chains.items()}
        pids["floor"] = {str(number): pid for number, pid in enumerate(self.floor)}
        before = {name: {hop: cpu_us(pid) for hop, pid in of.items()} for name, of in pids.items()}
        report: dict[str, Any] = run_load(self._loadgen, self.sockets, flags)["targets"]
        for name, of in pids.items():
            used = {hop: cpu_us(pid) - before[name][hop] for hop, pid in of.items()}
            report[name]["cpu_us"] = {hop: us / report[name]["calls"] for hop, us in used.items()}
        return report


@contextmanager
def _bed(
    directory: Path, loadgen: Command, *driver_flags: str, quiet: bool = False, local: bool = False
) -> Iterator[_Bed]:
    directory.mkdir(parents=True, exist_ok=True)
    with ExitStack() as opened:
        vendor = opened.enter_context(driver(directory, loadgen, *driver_flags))
        bed = _Bed(loadgen, vendor)
        for form in Form:
            if not lacks(form):
                bed.add(form.value, opened.enter_context(chain(directory / form.name[0], vendor, form=form)))
        if quiet:
            bed.add(_QUIET, opened.enter_context(chain(directory / "Q", vendor, "--log-level=warning")))
        if local:
            bed.add(_LOCAL, opened.enter_context(chain(directory / "L", vendor, placement="local")))
        bed.sockets["floor"], bed.floor = opened.enter_context(relays(directory, vendor))
        for name, socket in opened.enter_context(tunnels(directory, vendor)).items():
            if isinstance(socket, Path):
                bed.sockets[name] = socket
            else:
                bed.left_out[name] = socket
        yield bed


def _rounds(bed: _Bed, callers: int, vendor: str) -> Rounds:
    say(f"call: {callers} caller{'s' if callers > 1 else ''}, {vendor}")
    load = ("--scenario=create-delete", f"--callers={callers}")
    bed.load(*load, *_WARM_UP)
    whats = ("added by floor", "slower", "cpu of all hops") if callers == 1 else ("rate",)
    judged = [f"{form.value}: {what}" for form in Form if form.value in bed.chains for what in whats]

    def one() -> dict[str, float]:
        for _ in range(_TRIES):
            found = sample(bed.load(*load, *_ROUND))
            if callers > 1 or found["floor: added ms"] > 0:
                return found
        raise NotMeasured("three relays took no longer than the driver's own socket: the machine is too busy")

    return repeat(one, limit_s=_LIMIT_S, judged=judged)


def sample(report: Mapping[str, Any]) -> dict[str, float]:
    """Return the quantities of one round, from the reports of the sockets. Multiples of a floor of 0 are infinite."""
    found: dict[str, float] = {}
    direct, floor = report["direct"], report["floor"]
    floor_us = floor["latency_us"]["p50"] - direct["latency_us"]["p50"]
    floor_cpu_us = sum(floor["cpu_us"].values()) / len(floor["cpu_us"])
    for name, of in report.items():
        added_us = of["latency_us"]["p50"] - direct["latency_us"]["p50"]
        pairs, direct_pairs = of["operations"], direct["operations"]
        found |= {
            f"{name}: ms": of["latency_us"]["p50"] / 1000,
            f"{name}: added ms": added_us / 1000,
            f"{name}: added p99 ms": (of["latency_us"]["p99"] - direct["latency_us"]["p99"]) / 1000,
            f"{name}: added by floor": added_us / floor_us if floor_us > 0 else math.inf,
            f"{name}: pair ms": pairs["latency_us"]["p50"] / 1000,
            f"{name}: pairs/s": pairs["per_second"],
            f"{name}: slower": pairs["latency_us"]["p50"] / direct_pairs["latency_us"]["p50"],
            f"{name}: rate": pairs["per_second"] / direct_pairs["per_second"],
        }
        cpu = of.get("cpu_us", {})
        for hop, us in {**cpu, "all hops": sum(cpu.values())}.items() if cpu else ():
            found |= {f"{name}: cpu of {hop}": us, f"{name}: cpu of {hop} by floor": us / floor_cpu_us}
    if _QUIET in report:
        loud, quiet = (sum(report[name]["cpu_us"].values()) for name in (_SPLIT, _QUIET))
        found |= {"log share": (loud - quiet) / loud * 100, "log us": loud - quiet}
    return found


# ---- rows ------------------------------------------------------------------------------------------------------------


def _added(rounds: Rounds, name: str, *, at_most: float) -> Figure:
    of = f"of {_middle(rounds, f'{name}: added ms'):.2f} ms by {_middle(rounds, 'floor: added ms'):.2f}"
    return of_samples(
        f"{name}: added p50 by the floor's, one caller",
        rounds[f"{name}: added by floor"],
        "x",
        at_most=at_most,
        note=of,
        peers=_beside(rounds, "added by floor", "x"),
    )


def _added_p99(rounds: Rounds, name: str) -> Figure:
    peers = _beside(rounds, "added p99 ms", "ms", floor=True)
    samples = rounds[f"{name}: added p99 ms"]
    return of_samples(f"{name}: added p99, one caller", samples, "ms", at_most=2.0, peers=peers)


def _slower(rounds: Rounds, name: str, *, at_most: float | None) -> Figure:
    return of_samples(
        f"{name}: Create + Delete, one caller, driver of 0.35 ms a call",
        rounds[f"{name}: slower"],
        "x direct",
        at_most=at_most,
        note=f"{_middle(rounds, 'direct: pair ms'):.2f} -> {_middle(rounds, f'{name}: pair ms'):.2f} ms",
        peers=_beside(rounds, "slower", "x", floor=True),
    )


def _rate(rounds: Rounds, name: str, vendor: str, *, at_least: float | None) -> Figure:
    ours, direct = (_middle(rounds, f"{which}: pairs/s") for which in (name, "direct"))
    figure = of_samples(
        f"{name}: Create + Delete, 16 callers, {vendor}",
        rounds[f"{name}: rate"],
        "x direct",
        at_least=at_least,
        note=f"{ours:,.0f} of {direct:,.0f} pairs/s",
        peers=_beside(rounds, "rate", "x", floor=True),
    )
    figure.more_is_better = True
    return figure


def _cpu(rounds: Rounds, name: str) -> Iterator[Figure]:
    floor = f"{_middle(rounds, 'floor: cpu of all hops') / 3:.0f} us a relay"
    for hop in ("proxy", "hub", "agent"):
        if samples := rounds.get(f"{name}: cpu of {hop}"):
            yield of_samples(
                f"{name}: CPU a call, {'proxy driver' if hop == 'proxy' else hop}",
                samples,
                "us",
                at_most=_MOST_CPU_US[hop] if name == _SPLIT else None,
                note=f"{_middle(rounds, f'{name}: cpu of {hop} by floor'):.1f} x a relay's",
                digits=0,
                peers={"floor": floor},
            )


def _log_cost(rounds: Rounds) -> Figure:
    """Of the finished-call line at all hops. The metrics cannot be switched off, so they are in both."""
    note = f"{_middle(rounds, 'log us'):.0f} us, all hops"
    name = f"{_SPLIT}: share of a call's CPU for its log lines"
    return of_samples(name, rounds["log share"], "%", at_most=10, note=note, digits=1)


def _local(one: Rounds, many: Rounds) -> list[Figure]:
    """Of local placement: the hub's disk has each name and id before the caller gets an answer."""
    return [_slower(one, _LOCAL, at_most=None), _rate(many, _LOCAL, "driver of 0.35 ms a call", at_least=None)]


def _beside(rounds: Rounds, what: str, unit: str, *, floor: bool = False) -> dict[str, str]:
    """Return a quantity of the floor and the tunnels."""
    found = {"floor": f"{_middle(rounds, f'floor: {what}'):.2f} {unit}"} if floor else {}
    there = [name for name in _TUNNELS if f"{name}: {what}" in rounds]
    return found | {name: f"{_middle(rounds, f'{name}: {what}'):.2f} {unit}" for name in there}


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


def agent_size(directory: Path, loadgen: Command) -> list[Figure]:
    """Measure the processes' resident memory after some thousand calls."""
    directory.mkdir(exist_ok=True)
    with driver(directory, loadgen) as vendor, chain(directory / "S", vendor) as of:
        flags = ("--scenario=create-delete", "--callers=16", "--count=3000")
        run_load(loadgen, {_SPLIT: of.socket}, flags)
        sizes = {hop: psutil.Process(pid).memory_info().rss / 1_048_576 for hop, pid in of.processes.items()}
    note = f"hub {sizes['hub']:.0f}, proxy driver {sizes['proxy']:.0f}"
    return [of_samples("edge agent, resident, idle", [sizes["agent"]], "MB", at_most=45, note=note, digits=0)]


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
