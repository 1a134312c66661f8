"""Figures of many nodes: what calls to random ones cost the hub, beside calls to one, and calls while others reconnect.

The edges are simulated (`serving_edges.py`), and answer at once. One caller asks for the capacity of a node, which the
hub finds by the topology of the request. The hub's CPU time is less what it takes when nobody calls. Only nodes that
nobody calls reconnect.
"""

import random
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from bench.chain import Command, cpu_us
from bench.figure import Figure, of_samples
from bench.hub_figures import Edges
from bench.progress import say
from bench.spread import repeat
from common.csi import csi_pb2 as csi
from common.objects.topology import NODE_SEGMENT
from tests.kit.bridge import Bridge
from tests.kit.placed_nodes import DRIVER
from tests.kit.sidecar import Sidecar
from tests.kit.waiting import wait_for

_EDGES = 2_000
_CALLS = 500
_IDLE_S = 2.0
_LIMIT_S = 30.0
_SLOW_S = 60.0
_RECONNECTS_PER_S = 50
_CHURN_S = 15.0
_QUIET = ("--keepalive=60s", "--hello-timeout=30s", "--log-level=warning")


def nodes(directory: Path, _loadgen: Command) -> list[Figure]:
    """Measure calls to two thousand nodes."""
    say(f"nodes: {_EDGES:,} links")
    with Bridge(directory, directory) as bridge:
        hub = bridge.start_hub(*_QUIET)
        edges = Edges([hub.address], _EDGES, 60.0)
        try:
            edges.wait_up(_EDGES)
            proxy = bridge.start_proxy(DRIVER, "--placement=local", *_QUIET)
            with Sidecar(proxy.socket) as sidecar:
                wait_for(lambda: not _ask(sidecar, 0), what="answer of a node", timeout_s=_SLOW_S)
                return [_cost(sidecar, hub.process.pid), _churn(sidecar, edges)]
        finally:
            edges.close()


def _cost(sidecar: Sidecar, hub: int) -> Figure:
    def measured(choose: Callable[[], int]) -> float:
        """Return the hub's CPU time a call."""
        began, before = time.monotonic(), cpu_us(hub)
        for _ in range(_CALLS):
            outcome = _ask(sidecar, choose())
            assert outcome == "", outcome
        return (cpu_us(hub) - before - idle * (time.monotonic() - began)) / _CALLS

    def one() -> dict[str, float]:
        nonlocal idle
        before = cpu_us(hub)
        time.sleep(_IDLE_S)
        idle = (cpu_us(hub) - before) / _IDLE_S
        alone, spread = measured(lambda: 0), measured(lambda: random.randrange(_EDGES))
        return {"ratio": spread / alone, "alone": alone}

    idle = 0.0
    say("nodes: the hub's CPU time")
    found = repeat(one, limit_s=_LIMIT_S, judged=["ratio"])
    title = f"hub CPU a call, random nodes of {_EDGES:,} by one node's"
    return of_samples(title, found["ratio"], "x", at_most=1.3, note=f"of {median(found['alone']):.0f} us")


def _churn(sidecar: Sidecar, edges: Edges) -> Figure:
    say(f"nodes: {_RECONNECTS_PER_S} a second reconnect")
    before, failures, took_s = edges.ask()["dials"][0], [], []
    edges.churn(_RECONNECTS_PER_S)
    began = time.monotonic()
    while time.monotonic() - began < _CHURN_S:
        start = time.monotonic()
        if failure := _ask(sidecar, random.randrange(_EDGES // 2)):
            failures.append(failure)
        took_s.append(time.monotonic() - start)
    dials = (edges.ask()["dials"][0] - before) / _CHURN_S
    edges.churn(0)
    measured = f"{len(failures)} of {len(took_s):,} ({dials:.0f} dials a second; p50 {median(took_s) * 1000:.1f} ms)"
    name = f"failed calls while {_RECONNECTS_PER_S} of {_EDGES:,} nodes a second reconnect"
    return Figure(name, measured, "0", not failures, {"failures": failures[:20]}, [len(failures)])


def _ask(sidecar: Sidecar, node: int) -> str:
    """Call a node, and return why it failed."""
    request = csi.GetCapacityRequest()
    request.accessible_topology.segments[NODE_SEGMENT] = f"e{node}"
    outcome = sidecar.call("GetCapacity", request)
    return "" if outcome.ok else f"e{node}: {outcome.code.name} {outcome.message}"
