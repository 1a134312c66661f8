"""Figures of the hub in a cluster: the time from a change in the API to the edge, and the hub's cost of each node.

The API server and etcd are real, and the hub has the permissions of its manifests. There is no controller-manager: it
would write to thousands of Nodes, and delete pods of Nodes that the hub has not made yet.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import psutil

from bench.chain import Command
from bench.cluster_objects import (
    DRIVER,
    PODS,
    Object,
    change_claims,
    count,
    create_all,
    csi_driver,
    mark_object,
    node_name,
    nodes,
    objects_of_nodes,
    with_kube,
)
from bench.figure import Figure, NotMeasured, at_share, of_samples, spread_ms
from bench.load_node import cpu_s
from bench.peers import find_peer, missing_peers
from bench.progress import say
from tests.kit.bridge import Bridge
from tests.kit.deployed import hub_roles
from tests.kit.peers.cluster_node import HUB
from tests.kit.peers.control_plane import ControlPlane
from tests.kit.waiting import wait_for

TOLD_EDGES = Path(__file__).with_name("told_edges.py")

_PEERS = ("etcd", "kube-apiserver", "kube-controller-manager")
_LEVELS = (500, 1_000, 2_000)
_MANY = 10_000
_IDLE_S = 40.0
"""Each node's Lease is renewed four times within this time."""

_MOST_IDLE_US = 50.0
"""A second: 10,000 nodes on one core, with room for other work."""

_CHANGES = 600
_CHANGES_PER_S = 20.0
_SLOW_S = 900.0
_SETTLE_S = 12.0
"""Within this time every node has had its second heartbeat."""

_HUB_STARTS_S = 3.0
_STRIDE = 7919
"""A prime: successive changes are of nodes that are far apart in every list."""

_USUAL = ("--keepalive=10s", "--hello-timeout=20s")
"""The default keepalive instead of the tests', and a longer hello timeout: thousands of edges say hello at once."""


@dataclass(frozen=True)
class Level:
    """The measurements with one number of nodes.

    Attributes:
        nodes: the number of nodes.
        told_s: for each change, the seconds from its request until it was stored at its edge.
        fanned_s: the same for one change that concerns every node.
        idle_share: the hub's share of a core while only heartbeats happened.
        api_share: the same of the API server.
        change_ms: the hub's CPU time per change, without the idle share.
        rss_bytes: the hub's resident memory, without its memory at zero nodes.
    """

    nodes: int
    told_s: list[float]
    fanned_s: list[float]
    idle_share: float
    api_share: float
    change_ms: float
    rss_bytes: int


def changes(directory: Path, _loadgen: Command) -> list[Figure]:
    """Measure changes from the API to the edge, and the hub's cost for 500, 1,000 and 2,000 nodes."""
    if missing := missing_peers(*_PEERS):
        return [Figure("object changed in the API -> stored at the edge", f"left out: {missing}")]
    with _world(directory) as world:
        return figures_of([world.level(nodes) for nodes in _LEVELS])


def figures_of(levels: list[Level]) -> list[Figure]:
    """Return the rows; the highest level is judged."""
    most = levels[-1]
    found = []
    for what, times in (("of one node", _told), ("of all nodes", _fanned)):
        p50, p99 = (at_share(times(most), share) for share in (0.5, 0.99))
        name = f"object {what} changed in the API -> stored at the edge, {most.nodes:,} edges, p99"
        figure = of_samples(name, [p99 * 1000], "ms", at_most=1000, note=f"p50 {p50 * 1000:.0f}", digits=0)
        figure.details = {f"{level.nodes} nodes": spread_ms(times(level)) for level in levels}
        found.append(figure)
    for level in levels:
        nodes_of = f"a node, {level.nodes:,} nodes of {PODS} pods"
        idle_us = level.idle_share / level.nodes * 1e6
        limit_us = _MOST_IDLE_US if level is most else None
        note = f"{level.idle_share:.0%} of a core, API server {level.api_share:.0%}"
        found.append(of_samples(f"hub CPU {nodes_of}, idle", [idle_us], "us/s", at_most=limit_us, note=note, digits=0))
        found.append(of_samples(f"hub memory {nodes_of}", [level.rss_bytes / level.nodes / 1024], "KB", digits=0))
    told = " / ".join(f"{at_share(level.told_s, 0.99) * 1000:.0f}" for level in levels)
    cost = " / ".join(f"{level.change_ms:.1f}" for level in levels)
    which = " / ".join(f"{level.nodes:,}" for level in levels)
    found.append(Figure(f"a change, {which} edges", f"p99 {told} ms; {cost} ms of the hub's CPU"))
    return found


def _told(level: Level) -> list[float]:
    return level.told_s


def _fanned(level: Level) -> list[float]:
    return level.fanned_s


def many_objects(directory: Path, _loadgen: Command) -> list[Figure]:
    """Measure the hub's memory for 10,000 nodes with five pods each, before and after all are in step."""
    name = f"hub memory, {_MANY:,} nodes of {PODS} pods"
    if missing := missing_peers(*_PEERS):
        return [Figure(name, f"left out: {missing}")]
    with _world(directory, "--silent") as world:
        world.bridge.hub.stop()
        say(f"objects: creating the objects of {_MANY:,} nodes, about 3 minutes")
        began = time.monotonic()
        world.create(chain(nodes(range(_MANY)), objects_of_nodes(range(_MANY))))
        created_s = time.monotonic() - began
        say("objects: the hub lists them")
        began = time.monotonic()
        world.bridge.hub.start()
        world.edges.up(1)  # the hub sends nothing before it has listed everything
        listed_s = time.monotonic() - began
        time.sleep(2.0)  # memory of the lists is freed
        listed, peak = world.rss_bytes(), _peak_bytes(world.hub)
        say("objects: all edges dial")
        world.edges.up(_MANY)
        time.sleep(2.0)
        told = world.rss_bytes()
    objects = _MANY * (PODS + 3) + 1
    return [
        of_samples(
            f"{name}, listed",
            [listed / 1e6],
            "MB",
            note=f"in {listed_s:.0f} s, at most {peak / 1e6:.0f} MB resident",
            digits=0,
        ),
        of_samples(
            f"{name}, all connected and told",
            [told / 1e6],
            "MB",
            note=f"{told / _MANY / 1000:.1f} KB a node",
            digits=0,
        ),
        Figure(f"the API server took {objects:,} objects", f"{objects / created_s:.0f}/s"),
    ]


def _peak_bytes(process: psutil.Process) -> int:
    """Return the highest resident memory of a process so far."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    (peak,) = (line for line in lines if line.startswith("VmHWM:"))
    return int(peak.split()[1]) * 1024


# ---- measured processes ----------------------------------------------------------------------------------------------


class _ToldEdges:
    """Simulated edges, in a process of their own (`told_edges.py`)."""

    def __init__(self, hub: str, *flags: str) -> None:
        command = [sys.executable, str(TOLD_EDGES), f"--hub=ws://{hub}", *flags]
        # In a session of its own: Ctrl-C is for the bench, which then stops everything in order.
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )

    def up(self, count: int) -> None:
        """Start up to `count` edges, and wait until each has all objects for it."""
        self.ask(f"up {count}")
        wait_for(
            lambda: self.ask("state") == {"up": count, "in_step": count},
            what=f"{count} edges in step",
            timeout_s=_SLOW_S,
            instead=lambda: self.ask("state"),
        )

    def ask(self, command: str) -> Any:
        """Give a command, and return its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise NotMeasured("the process of the simulated edges ended")
        return json.loads(line)

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


class _World:
    """A control plane, a hub and simulated edges.

    Attributes:
        bridge: the hub.
        edges: the edges.
    """

    def __init__(self, plane: ControlPlane, bridge: Bridge, *edge_flags: str) -> None:
        """Begin without nodes."""
        self.bridge = bridge
        self._admin = str(plane.admin_kubeconfig())
        self._api_server = psutil.Process(plane.api_server.pid)
        self._nodes = self._marks = 0
        plane.apply(hub_roles())
        self.create([csi_driver()])
        kubeconfig = plane.service_account_kubeconfig("csi-bridge", HUB)
        bridge.start_hub(f"--kubeconfig={kubeconfig}", *_USUAL)
        time.sleep(_HUB_STARTS_S)
        self._empty_bytes = self.hub.memory_info().rss
        self.edges = _ToldEdges(bridge.hub.address, *edge_flags)

    @property
    def hub(self) -> psutil.Process:
        """The hub's process."""
        return psutil.Process(self.bridge.hub.process.pid)

    def rss_bytes(self) -> int:
        """Return the hub's resident memory, without its memory at zero nodes."""
        return int(self.hub.memory_info().rss) - self._empty_bytes

    def create(self, objects: Iterable[Object]) -> None:
        """Create objects, as fast as the API server takes them."""
        with_kube(self._admin, lambda kube: create_all(kube, objects))

    def level(self, nodes: int) -> Level:
        """Bring the number of nodes to `nodes`, and measure."""
        say(f"changes: {nodes:,} nodes")
        self.create(objects_of_nodes(range(self._nodes, nodes)))
        self._nodes = nodes
        self.edges.up(nodes)
        for kind in ("CSINode", "Lease"):
            wait_for(partial(self._has, kind, nodes), what=f"{nodes} of {kind}", timeout_s=_SLOW_S)
        time.sleep(_SETTLE_S)
        idle_share, api_share = self._shares(_IDLE_S)
        rss_bytes = self.rss_bytes()
        began, before = time.monotonic(), cpu_s(self.hub)
        told_s = self._change_claims()
        spent_s = cpu_s(self.hub) - before - idle_share * (time.monotonic() - began)
        return Level(
            nodes=nodes,
            told_s=told_s,
            fanned_s=self._change_driver(),
            idle_share=idle_share,
            api_share=api_share,
            change_ms=spent_s / len(told_s) * 1000,
            rss_bytes=rss_bytes,
        )

    def _has(self, kind: str, wanted: int) -> bool:
        return with_kube(self._admin, lambda kube: count(kube, kind)) >= wanted

    def _shares(self, for_s: float) -> tuple[float, float]:
        """Return the shares of a core that hub and API server use over `for_s` seconds."""
        processes = (self.hub, self._api_server)
        began, before = time.monotonic(), [cpu_s(process) for process in processes]
        time.sleep(for_s)
        past_s = time.monotonic() - began
        hub, api = ((cpu_s(process) - cpu) / past_s for process, cpu in zip(processes, before, strict=True))
        return hub, api

    def _change_claims(self) -> list[float]:
        """Change claims of different nodes once each; return after how many seconds each is stored."""
        claims = [node_name(number * _STRIDE % self._nodes) for number in range(min(_CHANGES, self._nodes))]
        first, self._marks = self._marks, self._marks + len(claims)
        asked = with_kube(self._admin, lambda kube: change_claims(kube, claims, per_s=_CHANGES_PER_S, first=first))
        return self._stored(asked, len(claims))

    def _change_driver(self) -> list[float]:
        """Change an object of every node; return after how many seconds each has stored it."""
        mark, self._marks = self._marks, self._marks + 1
        asked = {mark: time.time()}
        with_kube(self._admin, lambda kube: mark_object(kube, "CSIDriver", DRIVER, mark))
        return self._stored(asked, self._nodes)

    def _stored(self, asked: Mapping[int, float], wanted: int) -> list[float]:
        """Wait until `wanted` marked objects are stored; return the delay of each."""
        found: list[float] = []

        def all_there() -> bool:
            found.extend(at_s - asked[mark] for mark, at_s in self.edges.ask("stored") if mark in asked)
            return len(found) >= wanted

        wait_for(all_there, what=f"{wanted} changes at the edges", timeout_s=60.0, instead=lambda: f"{len(found)} came")
        return found


@contextmanager
def _world(directory: Path, *edge_flags: str) -> Iterator[_World]:
    plane = ControlPlane(directory / "plane", peer=find_peer)
    world: _World | None = None
    try:
        plane.start()
        plane.controller_manager.stop()
        with Bridge(directory, directory) as bridge:
            world = _World(plane, bridge, *edge_flags)
            yield world
    finally:
        if world is not None:
            world.edges.close()
        plane.stop()
