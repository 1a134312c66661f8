"""Figures of the records: what a claim costs in a cluster, beside a bare POST of the same object, and in `state.db`.

The API server and etcd are real. Both ways take turns in one process, over the same client.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from bench.chain import Command
from bench.cluster_objects import with_kube
from bench.figure import Figure, NotMeasured, of_samples
from bench.peers import find_peer, missing_peers
from bench.progress import say
from cloud.kube.client import Kube, KubeError
from cloud.records.kubernetes import KubernetesRecords
from cloud.records.objects import place_of, value_of
from cloud.records.records import Change, RecordKind, Records
from cloud.records.sqlite import SqliteRecords
from tests.kit.peers.control_plane import ControlPlane

_TURNS = 5
_ALONE = 60
"""Writes of one turn, one after another."""

_AT_ONCE, _BURST = 50, 1_000
_MANY = 20_000
_LIST_S = 8.0
"""A standby has listed `_MANY` claims by then."""

_SERVED_S = 30.0

_BODY = {
    "state": "open",
    "node": "edge-1",
    "since": 1_800_000_000.5,
    "ids": [
        {"kind": "volume", "id": "0c4c9f0e-3f0e-4a0f-9a9e-8d1f6f2f4b11", "node": "edge-1", "since": 1_800_000_000.5}
    ],
}

Write = Callable[[str], Awaitable[Any]]


def records(directory: Path, _loadgen: Command) -> list[Figure]:
    """Measure claims in a cluster and in a file."""
    if missing := missing_peers("etcd", "kube-apiserver", "kube-controller-manager"):
        raise NotMeasured(missing)
    plane = ControlPlane(directory / "plane", peer=find_peer)
    try:
        plane.start()
        plane.controller_manager.stop()
        in_cluster = with_kube(str(plane.admin_kubeconfig()), _in_cluster)
    finally:
        plane.stop()
    return [*in_cluster, asyncio.run(_in_file(directory / "state"))]


async def _in_cluster(kube: Kube) -> list[Figure]:
    logging.getLogger("csi_bridge.hub.records").setLevel(logging.ERROR)  # the bare objects are nobody's records
    await _served(kube)
    records = KubernetesRecords(kube, "default")
    records.open()
    await records.lead(kube, _leads)

    async def bare(name: str) -> None:
        place = place_of(RecordKind.CLAIM, ("d.example", name))
        spec = value_of(RecordKind.CLAIM, ("d.example", name), _BODY)
        await kube.create(place.resource, {**place.frame, "spec": spec})

    ours = _claim(records)
    alone, together = [], []
    for turn in range(_TURNS):
        say(f"claims in a cluster: turn {turn + 1} of {_TURNS}")
        took = {way: await _one_by_one(way, f"{turn} {way.__name__}") for way in (bare, ours)}
        alone.append(took[ours] / took[bare])
        rates = {way: await _at_once(way, f"{turn} {way.__name__}") for way in (bare, ours)}
        together.append(rates[ours] / rates[bare])
    say("hubs that begin to lead")
    await _at_once(ours, "many", _MANY)
    cold = [await _begin(kube, KubernetesRecords(kube, "default"), opened=False)]
    warm = []
    for turn in range(_TURNS):
        standby = KubernetesRecords(kube, "default")
        standby.open()
        await asyncio.sleep(_LIST_S)
        await _at_once(ours, f"last {turn}")
        warm.append(await _begin(kube, standby, opened=True))
    await records.close()
    return [
        of_samples("a claim in the cluster, one after another", alone, "x a bare POST of the object", at_most=1.5),
        of_samples(f"claims in the cluster, {_AT_ONCE} at once", together, "of the rate of bare POSTs", at_least=0.7),
        of_samples("the records at a hub's start", cold, "s for 100,000 claims", digits=1),
        of_samples("the records at a takeover by a standby", warm, "s for 100,000 claims", at_most=2.0, digits=2),
    ]


async def _begin(kube: Kube, records: KubernetesRecords, *, opened: bool) -> float:
    """Let a hub begin to lead. Returns how long it waits for 100,000 claims, in seconds."""
    began = time.perf_counter()
    if not opened:
        records.open()
    await records.lead(kube, _leads)
    found = len(records.take(RecordKind.CLAIM, lambda key, _body: key))
    took_s = time.perf_counter() - began
    await records.close()
    return took_s / found * 1e5


async def _in_file(directory: Path) -> Figure:
    records = SqliteRecords(directory)
    rates = [await _at_once(_claim(records), str(turn)) for turn in range(_TURNS)]
    await records.close()
    return of_samples(f"claims in `state.db`, {_AT_ONCE} at once", rates, "a second", at_least=600, digits=0)


def _claim(records: Records) -> Write:
    async def claim(name: str) -> None:
        await records.write([Change(RecordKind.CLAIM, ("d.example", name), _BODY)])

    return claim


async def _one_by_one(write: Write, names: str) -> float:
    """The median time of one write, in seconds."""
    times = []
    for number in range(_ALONE):
        began = time.perf_counter()
        await write(f"CreateVolume {names} {number}")
        times.append(time.perf_counter() - began)
    return sorted(times)[len(times) // 2]


async def _at_once(write: Write, names: str, count: int = _BURST) -> float:
    """Writes a second."""
    left = iter(range(count))

    async def work() -> None:
        for number in left:
            await write(f"CreateVolume {names} at once {number}")

    began = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(_AT_ONCE)))
    return count / (time.perf_counter() - began)


async def _served(kube: Kube) -> None:
    """Wait until the API server serves the kinds, which it has just got."""
    async with asyncio.timeout(_SERVED_S):
        while True:
            try:
                await kube.list(place_of(RecordKind.CLAIM, ("", "")).resource, limit=1)
            except KubeError:
                await asyncio.sleep(0.1)
            else:
                return


async def _leads() -> None:
    """No other hub is there."""
