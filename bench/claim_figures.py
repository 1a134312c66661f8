"""Figures of claims: from a claim to its volume and from a pod to its mount, by the driver's socket and by the bridge.

Stock sidecars on one cluster handle fifty claims at once, by each way in turn. On a link of 200 ms the bridge's added
time is counted in round trips: for each call, the time that it spent between proxy driver and agent.
"""

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from bench import edge_figures
from bench.chain import Command
from bench.claim_cluster import PEERS, Batch, ClaimCluster, Costs, Way
from bench.figure import Figure, NotMeasured, at_share, of_samples, spread_ms
from bench.peers import missing_peers
from bench.progress import say
from tests.kit.bridge import Member

_CLAIMS = 50
_ROUNDS = 5
_DELAY_S = 0.1
"""Each way."""

_MOST_RATIO = 1.05
_WARM_UP = 3

_SINGLES = 5
"""Single claims, one after another, whose round trips are judged: fifty at once mostly wait for the processors."""

_BRIDGED = ("relayed", "alone")


def claims(directory: Path, loadgen: Command) -> list[Figure]:
    """Measure fifty claims at once, and fifty pods, without limits of requests per second, and on a slow link."""
    name = f"{_CLAIMS} claims at once"
    if missing := edge_figures.missing(loadgen) or missing_peers(*PEERS):
        return [Figure(name, f"left out: {missing}")]
    with ClaimCluster(directory / "near", loadgen) as cluster:
        near = _batches(cluster, _ROUNDS)
    with ClaimCluster(directory / "far", loadgen, delay=f"{_DELAY_S * 1000:.0f}ms") as cluster:
        say("claims: on the slow link")
        ways = [cluster.ways[name] for name in _BRIDGED]
        for way in ways * _SINGLES:
            cluster.run(way, 1)
        single, seen = _trips(ways), _calls(ways)
        far = {way.name: [cluster.run(way, _CLAIMS)] for way in ways}
        many = _trips(ways, besides=seen)
    return [
        *beside(near),
        *shares(near),
        *slow_link(near, far),
        round_trips(single),
        round_trips(many, f"{_CLAIMS} at once"),
    ]


def stock_claims(directory: Path, loadgen: Command) -> list[Figure]:
    """Measure the same with Kubernetes' own limits of requests per second, which then dominate."""
    name = f"{_CLAIMS} claims at once, stock limits of requests"
    if missing := edge_figures.missing(loadgen) or missing_peers(*PEERS):
        return [Figure(name, f"left out: {missing}")]
    with ClaimCluster(directory / "stock", loadgen, limited=True) as cluster:
        return beside(_batches(cluster, 1), ", stock limits of requests")


def _batches(cluster: ClaimCluster, rounds: int) -> dict[str, list[Batch]]:
    """Return the batches by way; the ways take turns."""
    say("claims: the cluster runs")
    for way in cluster.ways.values():
        cluster.run(way, _WARM_UP)
    found: dict[str, list[Batch]] = defaultdict(list)
    for number in range(rounds):
        say(f"claims: round {number + 1} of {rounds}")
        for way in cluster.ways.values():
            found[way.name].append(cluster.run(way, _CLAIMS))
    return found


# ---- figures of the batches ------------------------------------------------------------------------------------------


def beside(batches: Mapping[str, list[Batch]], note: str = "") -> list[Figure]:
    """Compare the bridge's times with those of the driver's own socket."""
    found = []
    for what, times, way in (
        (f"{_CLAIMS} claims at once, PVC -> Bound", _bound, "relayed"),
        (f"{_CLAIMS} pods at once, created -> volume published, kubelet", _published, "relayed"),
        (f"{_CLAIMS} pods at once, created -> volume published, no kubelet", _published, "alone"),
    ):
        for which, value in (("p50", _p50), ("the last", max)):
            ours, theirs = ([value(seconds) for seconds in times(batches[each])] for each in (way, "direct"))
            ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
            ms = f"{median(theirs) * 1000:.0f} -> {median(ours) * 1000:.0f} ms"
            found.append(of_samples(f"{what}{note}, {which}", ratios, "x direct", at_most=_MOST_RATIO, note=ms))
    for figure, times in ((found[0], _bound), (found[2], _published)):
        figure.details = {way: [spread_ms(seconds) for seconds in times(each)] for way, each in batches.items()}
    return found


def shares(batches: Mapping[str, list[Batch]]) -> list[Figure]:
    """Return the bridge's share of the CPU time of all processes, beside a kubelet.

    The hub also watches the cluster while claims are bound directly: this part is not the bridge's.
    """
    found = []
    for what, unit, costs in (
        ("PVC -> Bound", "claim", _bound_cpu),
        ("created -> volume published, kubelet", "pod", _published_cpu),
    ):
        rounds = list(zip(costs(batches["relayed"]), costs(batches["direct"]), strict=True))
        samples = [
            (sum(us for name, us in ours.items() if name != "all") - direct["hub"]) / ours["all"] * 100
            for ours, direct in rounds
        ]
        a_volume = {name: median(ours[name] for ours, _ in rounds) / _CLAIMS / 1000 for name in rounds[0][0]}
        a_volume["hub"] -= median(direct["hub"] for _, direct in rounds) / _CLAIMS / 1000
        by_hop = ", ".join(f"{name} {a_volume[name]:.1f}" for name in ("proxy driver", "hub", "agent"))
        note = f"{by_hop} of {a_volume['all']:.0f} ms a {unit}"
        name = f"{_CLAIMS} {unit}s at once, {what}: the bridge's share of all CPU time"
        found.append(of_samples(name, samples, "%", note=note, digits=1))
    return found


def round_trips(trips: Mapping[str, list[float]], crowd: str = "") -> Figure:
    """Return the round trips of each call on the link. A crowd's also wait for the processors and are not judged."""
    every = [each for of_method in trips.values() for each in of_method]
    by_method = ", ".join(f"{method} {at_share(each, 0.5):.2f}" for method, each in sorted(trips.items()))
    name = f"round trips a CSI call of the sidecars, link of {2 * _DELAY_S * 1000:.0f} ms"
    measured = f"at most {max(every):.2f} (p50 of {len(every)} calls: {by_method})"
    if crowd:
        return Figure(f"{name}, {crowd}", measured)
    return Figure(f"{name}, one after another", measured, "1", round(max(every)) == 1, samples=[max(every)])


def slow_link(near: Mapping[str, list[Batch]], far: Mapping[str, list[Batch]]) -> list[Figure]:
    """Measure fifty claims and their pods on a link of 200 ms."""
    found = []
    for what, times in (("PVC -> Bound", _bound), ("pod created -> volume published", _published)):
        relayed, alone, direct = (
            median(map(_p50, times(each))) * 1000 for each in (far["relayed"], far["alone"], near["direct"])
        )
        measured = f"{relayed:.0f} ms, no kubelet {alone:.0f} (direct, without the link: {direct:.0f})"
        found.append(Figure(f"link of {2 * _DELAY_S * 1000:.0f} ms, {_CLAIMS} at once, {what}, p50", measured))
    return found


def _bound(batches: Iterable[Batch]) -> list[list[float]]:
    return [batch.bound_s for batch in batches]


def _published(batches: Iterable[Batch]) -> list[list[float]]:
    return [batch.published_s for batch in batches]


def _bound_cpu(batches: Iterable[Batch]) -> list[Costs]:
    return [batch.bound_cpu_us for batch in batches]


def _published_cpu(batches: Iterable[Batch]) -> list[Costs]:
    return [batch.published_cpu_us for batch in batches]


def _p50(seconds: Sequence[float]) -> float:
    return at_share(seconds, 0.5)


def _calls(ways: Iterable[Way]) -> set[str]:
    """Return the ids of all calls so far."""
    return {line["call_id"] for way in ways for line in _finished(way.proxy)}


def _trips(ways: Iterable[Way], besides: Container[str] = ()) -> dict[str, list[float]]:
    """Return the round trips of each call so far by method, except for the calls in `besides`."""
    found: dict[str, list[float]] = defaultdict(list)
    for way in ways:
        proxy = [line for line in _finished(way.proxy) if line["call_id"] not in besides]
        for method, each in trips_of(proxy, _finished(way.agent)).items():
            found[method] += each
    if not found:
        raise NotMeasured("no call of a sidecar went over the link")
    return found


def _finished(member: Member | None) -> list[dict[str, Any]]:
    assert member is not None, "only the direct way has none"
    return member.logged("call finished")


def trips_of(proxy: Iterable[Mapping[str, Any]], agent: Iterable[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Return the round trips of each call by method, from the durations in the logs of proxy driver and agent.

    A call without a line of the agent was answered by the proxy driver and used no link.
    """
    at_agent = {line["call_id"]: line["duration_ms"] for line in agent}
    found: dict[str, list[float]] = defaultdict(list)
    for line in proxy:
        if line["call_id"] in at_agent:
            method = line["method"].rpartition("/")[2]
            found[method].append((line["duration_ms"] - at_agent[line["call_id"]]) / (2 * _DELAY_S * 1000))
    return found
