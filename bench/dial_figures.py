"""Figures of links: the hub's memory for idle edges, and its work when thousands of them dial at once."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from bench.chain import Command
from bench.figure import Figure, NotMeasured, of_samples
from bench.progress import say
from tests.kit.bridge import Bridge, Hub
from tests.kit.certificates import CLIENT_AUTH, Authority
from tests.kit.waiting import wait_for

EDGES = Path(__file__).with_name("edges.py")

_IDLE_EDGES = 2_000
_HERD = 10_000
_HERD_TLS_DIALS = 1_000
"""The most dials with TLS that the herd makes at the same time. One process simulates the herd: it needs as long as the
hub for each handshake, and gives up on dials that it has kept waiting.
"""

_HERD_TLS_CPU_S = 15.0

_QUIET = ("--log-level=warning", "--keepalive=60s", "--hello-timeout=30s")
"""For figures about many links: they measure a link without its log lines and pings."""


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
        found.append(of_samples(figure, [per_edge_kb], "KB", at_most=limit_kb, digits=1))
    return found


def herd(directory: Path, _loadgen: Command) -> list[Figure]:
    """Measure ten thousand edges that dial one hub, and ten thousand agents whose hub restarts."""
    found = []
    for name, at_once, limit_s, limit_cpu_s in (
        ("plain", _HERD, 15.0, None),
        ("mTLS", _HERD_TLS_DIALS, None, _HERD_TLS_CPU_S),
    ):
        with _hub(directory, name) as (hub, edges):
            began_s = hub.cpu_s()
            told = edges.up(_HERD, at_once=at_once)
            cpu_s = hub.cpu_s() - began_s
        what = f"{_HERD:,} edges dial, {at_once:,} at once, {name}"
        again = f"{told['retries']} dialled again"
        found.append(of_samples(what, [told["seconds"]], "s", at_most=limit_s, note=again, digits=1))
        found.append(of_samples(f"{what}: hub CPU", [cpu_s], "s", at_most=limit_cpu_s, digits=1))
    with _hub(directory, "restart") as (hub, edges):
        edges.keep(_HERD)
        hub.kill()
        began = time.monotonic()
        edges.wait_up(0)  # before all have seen that the hub is gone, they would count as back
        hub.start()
        edges.wait_up(_HERD)
        took_s = time.monotonic() - began
    # The back-off is random, so two runs are not compared.
    found.append(Figure(f"{_HERD:,} agents after kill -9 of their hub, with back-off", f"all back in {took_s:.0f} s"))
    return found


# ---- measured processes ----------------------------------------------------------------------------------------------


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
        # In a session of its own: Ctrl-C is for the bench, which then stops everything in order.
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
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
    say(f"links: {name}")
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
