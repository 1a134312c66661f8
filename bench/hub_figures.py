"""Figures of two hubs: what callers and nodes notice when the hub that leads dies, stops, or stands still.

Rules:

* API server, etcd, hubs and the proxy driver are real. The edges are simulated, in processes of their own
  (`serving_edges.py`); their sessions, uplinks and operations are an agent's.
* One caller makes 50 calls a second, half of them CreateVolume and half DeleteVolume. It tries again as a stock sidecar
  does. A call is lost if it ends with a code that a sidecar takes for final, or has no success within a minute. It is
  also lost if its vendor has made two volumes of its name, or another volume than the caller has got, or has deleted no
  volume.
* All nodes answer again when the last edge follows the new leader, and a call through the proxy driver and that leader
  has reached each of 200 random nodes. Calls to all nodes would take longer than the takeover.
"""

import asyncio
import base64
import itertools
import json
import random
import signal
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from collections import Counter
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

import grpc
import psutil

from bench.chain import Command
from bench.cluster_objects import with_kube
from bench.figure import Figure, NotMeasured, of_samples, spread_ms
from bench.load_node import cpu_s
from bench.peers import find_peer, missing_peers
from bench.progress import say
from cloud.kube.client import KubeError
from cloud.records.objects import place_of, value_of
from cloud.records.records import RecordKind
from common.csi import csi_pb2 as csi
from common.objects.topology import NODE_SEGMENT
from tests.kit.bridge import Hub, Proxy
from tests.kit.deployed import hub_roles
from tests.kit.operator import hub_state
from tests.kit.peers.cluster_node import HUB
from tests.kit.peers.control_plane import ControlPlane
from tests.kit.placed_nodes import DRIVER, create
from tests.kit.processes import listens_on
from tests.kit.waiting import wait_for

_T = TypeVar("_T")

SERVING_EDGES = Path(__file__).with_name("serving_edges.py")

EDGES = 2_000
_MANY = 5  # so many times more edges are connected when memory is measured

# Each edge has two links, and a process may have 20,000 files open.
_EDGES_PER_PROCESS = 5_000

_CALLS_PER_S = 50
_BEFORE_S = 5.0  # the caller is busy so long before a fault
_AFTER_S = 3.0  # the caller stays busy so long after the last node answers

_CLAIMS = 100_000  # the claims that a new leader reads in the row with the default lease
_STOPPED_S = 20.0  # the leader stands still so long, which is longer than its lease
_SETTLE_S = 3.0  # then memory of the handshakes is freed, and a hub that goes on has written what it will write
_QUIET_S = 0.2  # a hub with less CPU time than this in a second only keeps its links alive
_SLOW_S = 300.0  # after this wait for a preparation, the bench gives up

# The codes after which external-provisioner does not take a create for failed.
_NOT_FINAL = frozenset({
    grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.ABORTED,
})  # fmt: skip

_CALL_S = 60.0  # a sidecar's --timeout, as in deploy/
_FIRST_RETRY_S = 1.0  # external-provisioner's first wait
_LAST_RETRY_S = 60.0  # its longest wait, as in deploy/

_LOST_S = 60.0  # a call without success for so long is lost
_SAMPLE = 200  # the nodes that a sweep asks
_GIVE_UP_S = 90.0  # a sweep ends without a figure after this time
_PROBE_S = 0.05
_AGAIN_S = 0.25  # the hub takes over meanwhile, and calls that fail are work for the hub, too

_AT_ONCE = 32  # the calls of a sweep under way

# Of the hubs and the proxy driver.
_COMMON_FLAGS = ("--keepalive=10s", "--hello-timeout=30s", "--log-level=warning")
_SHORT = (
    "--leader-election-lease-duration=4s",
    "--leader-election-renew-deadline=3s",
    "--leader-election-retry-period=1s",
)
_DEFAULT = (
    "--leader-election-lease-duration=15s",
    "--leader-election-renew-deadline=10s",
    "--leader-election-retry-period=5s",
)


def hubs(directory: Path, _loadgen: Command, *, edges: int = EDGES) -> list[Figure]:
    """Measure two hubs with `edges` edges, and with five times as many."""
    if missing := missing_peers("etcd", "kube-apiserver", "kube-controller-manager"):
        raise NotMeasured(missing)
    setup = f"2 hubs, {edges:,} edges, {_CALLS_PER_S} calls a second"
    figures = []
    with _Pair(directory / "a", edges, _SHORT) as pair:
        faults = (
            ("kill -9", pair.kill, 6.0),
            ("SIGTERM", pair.terminate, 1.5),
            (f"SIGSTOP for {_STOPPED_S:g} s", pair.suspend, 6.0),
        )
        for name, fault, limit_s in faults:
            say(f"hubs: {name}")
            figures.append(_takeover(f"{setup}, the leader gets {name}", fault(), limit_s))
        figures.append(_late(pair))
        say(f"hubs: {_CLAIMS:,} claims, and the default lease")
        pair.restart(_DEFAULT, claims=_CLAIMS)
        figures.append(_takeover(f"the same, kill -9, lease of 15 s, {_CLAIMS:,} claims", pair.kill(), 20.0))
    many = edges * _MANY
    with _Pair(directory / "b", many, _SHORT, keepalive_s=60.0) as pair:
        figures += _many(pair, many)
    return figures


def _takeover(name: str, seen: "_Seen", limit_s: float) -> Figure:
    measured = (
        f"{len(seen.lost)} lost, {seen.all_s:.1f} s until the last node answers (first {seen.first_s:.1f} s; "
        f"{seen.calls} calls, {seen.retried} tried again, the slowest {max(seen.times_s):.1f} s)"
    )
    is_met = not seen.lost and seen.all_s <= limit_s
    details = {"lost": seen.lost[:20], "codes": seen.codes, "call_ms": spread_ms(seen.times_s)}
    return Figure(name, measured, f"0 lost, <= {limit_s:g} s", is_met, details, [seen.all_s])


def _late(pair: "_Pair") -> Figure:
    """The row of a leader that goes on after its end."""
    writes = len(pair.late_writes)
    stale = pair.edges.ask()["stale"]
    measured = f"{writes} writes, {stale} calls that an agent took"
    is_met = writes == 0 and stale == 0
    details = {"writes": pair.late_writes}
    return Figure("a leader that goes on after SIGSTOP", measured, "0 writes, 0 calls", is_met, details)


def _many(pair: "_Pair", many: int) -> list[Figure]:
    say(f"hubs: memory and dials of {many:,} edges")
    per_node_kb = pair.warm_bytes / many / 1024
    before = pair.edges.ask()
    began = time.monotonic()
    pair.active.kill()
    pair.change_sides()
    pair.edges.wait_up(many, after=before["epoch"])
    took_s = time.monotonic() - began
    dials = pair.edges.ask()["dials"][pair.active.number] - before["dials"][pair.active.number]
    say(f"hubs: start with {many:,} known nodes")
    pair.active.kill()
    pair.edges.wait_up(0)
    pair.proxy.stop()
    began = time.monotonic()
    pair.active.start(wait=False)
    pair.proxy.start(wait=False)
    first_s = pair.caller.wait_first() - began
    setup = f"{many:,} edges, plain ws, both hubs"
    return [
        of_samples(f"{setup}: memory a node at the standby", [per_node_kb], "KB", at_most=20, digits=1),
        Figure(f"{setup}: dials to the new leader after kill -9 of the old one",
               f"{dials} (all follow it after {took_s:.1f} s)", "0", dials == 0, samples=[dials]),
        of_samples(f"{many:,} known nodes, which all dial: hub's start to first call served", [first_s], "s",
                   at_most=20, digits=1),
    ]  # fmt: skip


# ---- the caller ------------------------------------------------------------------------------------------------------


class _Call(NamedTuple):
    method: str
    name: str
    took_s: float
    tries: int
    answer: Any


@dataclass
class _Seen:
    """The observations of caller and nodes during one fault.

    Attributes:
        calls: the number of calls.
        retried: the number of calls that were tried again.
        lost: a text for each lost call, with the reason.
        times_s: the time of each call.
        codes: by code, the number of tries that ended with it.
        first_s: the time from the fault until the first node answered through the new leader.
        all_s: the time from the fault until the last node answered through it.
    """

    calls: int
    retried: int
    lost: list[str]
    times_s: list[float]
    codes: dict[str, int]
    first_s: float = 0.0
    all_s: float = 0.0


class _Caller:
    """A sidecar that makes calls at a rate, in a thread of its own.

    Attributes:
        got: by name: the volumes that its creates were answered with.
        deleted: the volumes that it has deleted.
    """

    def __init__(self, socket: Path, nodes: int) -> None:
        self.got: dict[str, str] = {}
        self.deleted: set[str] = set()
        self._socket = socket
        self._nodes = nodes
        self._names = itertools.count()
        self._volumes: list[str] = []
        self._calls: list[_Call] = []
        self._lost: list[str] = []
        self._silent: dict[int, str] = {}
        self._codes: Counter[str] = Counter()
        self._load: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="caller", daemon=True)
        self._thread.start()
        self._channel = self._await(self._connect())

    def start(self) -> None:
        """Begin to make calls."""
        self._load = self._await(self._begin())

    def stop(self) -> None:
        """Make no more calls, and wait for the end of those under way."""
        assert self._load is not None
        self._load.cancel()
        self._await(self._drained())

    def take(self) -> _Seen:
        """Return the calls since the last `take`, and forget them."""
        calls = self._calls
        lost = self._lost
        codes = self._codes
        self._calls = []
        self._lost = []
        self._codes = Counter()
        retried = sum(call.tries > 1 for call in calls)
        return _Seen(len(calls) + len(lost), retried, lost, [call.took_s for call in calls], dict(codes))

    def sweep(self, epoch: int) -> tuple[float, float]:
        """Ask some nodes until each answers through a leader of a later epoch. Returns the first and last time."""
        return self._await(self._sweep(epoch))

    def wait_first(self) -> float:
        """Ask any node until a node answers. Returns the time of the answer."""
        return self._await(self._first(0))

    def close(self) -> None:
        """End the caller."""
        if self._load is not None:
            self._loop.call_soon_threadsafe(self._load.cancel)
        self._await(self._channel.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _await(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_SLOW_S)

    async def _connect(self) -> grpc.aio.Channel:
        options = [("grpc.default_authority", "localhost"), ("grpc.max_reconnect_backoff_ms", 200)]
        return grpc.aio.insecure_channel(f"unix://{self._socket}", options=options)

    async def _begin(self) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(self._run())

    async def _drained(self) -> None:
        await asyncio.gather(*self._tasks)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        for number in itertools.count():
            await asyncio.sleep(began + number / _CALLS_PER_S - loop.time())
            creates = number % 2 == 0 or not self._volumes
            task = loop.create_task(self._create(random.randrange(self._nodes)) if creates else self._delete())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _create(self, node: int) -> None:
        """Make a volume on a node; the scheduler would allow another one, too."""
        name = f"pvc-{next(self._names)}"
        terms = [{NODE_SEGMENT: f"e{number % self._nodes}"} for number in (node, node + 1)]
        request = create(name, *terms)
        request.volume_capabilities.add().mount.SetInParent()
        answer = await self._call("CreateVolume", request, csi.CreateVolumeResponse, name)
        if answer is not None:
            self.got[name] = answer.volume.volume_id
            self._volumes.append(self.got[name])

    async def _delete(self) -> None:
        volume = self._volumes.pop(random.randrange(len(self._volumes)))
        request = csi.DeleteVolumeRequest(volume_id=volume)
        if await self._call("DeleteVolume", request, csi.DeleteVolumeResponse, volume) is not None:
            self.deleted.add(volume)

    async def _call(self, method: str, request: Any, response: Any, name: str) -> Any:
        loop = asyncio.get_running_loop()
        began = loop.time()
        wait_s = _FIRST_RETRY_S
        for tries in itertools.count(1):
            try:
                answer = await self._stub(method, response)(request, timeout=_CALL_S)
            except grpc.aio.AioRpcError as error:
                self._codes[error.code().name] += 1
                if error.code() not in _NOT_FINAL or loop.time() - began > _LOST_S:
                    self._lost.append(f"{method} {name}: {error.code().name} {error.details()}")
                    return None
            else:
                self._calls.append(_Call(method, name, loop.time() - began, tries, answer))
                return answer
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _LAST_RETRY_S)
        return None

    def _stub(self, method: str, response: Any) -> Any:
        return self._channel.unary_unary(
            f"/csi.v1.Controller/{method}",
            request_serializer=lambda request: request.SerializeToString(),
            response_deserializer=response.FromString,
        )

    async def _answers(self, node: int, epoch: int) -> bool:
        """Whether a node answers through a leader of a later epoch."""
        request = csi.GetCapacityRequest()
        request.accessible_topology.segments[NODE_SEGMENT] = f"e{node}"
        try:
            answer = await self._stub("GetCapacity", csi.GetCapacityResponse)(request, timeout=_CALL_S)
        except grpc.aio.AioRpcError as error:
            self._silent[node] = error.details() or error.code().name
            return False
        self._silent[node] = "it still follows an earlier leader"
        return bool(answer.available_capacity > epoch)

    async def _first(self, epoch: int) -> float:
        while True:
            if await self._answers(random.randrange(self._nodes), epoch):
                return time.monotonic()
            await asyncio.sleep(_PROBE_S)

    async def _sweep(self, epoch: int) -> tuple[float, float]:
        first = await self._first(epoch)
        waiting = random.sample(range(self._nodes), min(_SAMPLE, self._nodes))
        self._silent.clear()

        async def work() -> None:
            while waiting:
                node = waiting.pop()
                if await self._answers(node, epoch):
                    self._silent.pop(node, None)
                else:
                    waiting.insert(0, node)
                    await asyncio.sleep(_AGAIN_S)

        try:
            async with asyncio.timeout(_GIVE_UP_S):
                await asyncio.gather(*(work() for _ in range(_AT_ONCE)))
        except TimeoutError:
            why = Counter(self._silent.values()).most_common(1)
            raise NotMeasured(f"{len(self._silent)} nodes do not answer, most of them because: {why}") from None
        return first, time.monotonic()


# ---- measured processes ----------------------------------------------------------------------------------------------


class Edges:
    """Simulated edges, in processes of their own."""

    def __init__(self, addresses: Sequence[str], count: int, keepalive_s: float) -> None:
        self._count = count
        hubs = [f"--hub=ws://{address}" for address in addresses]
        self._processes = [
            # In a session of its own: Ctrl-C is for the bench, which then stops everything in order.
            subprocess.Popen(
                [
                    *(sys.executable, str(SERVING_EDGES), *hubs, f"--first={first}"),
                    *(f"--count={min(_EDGES_PER_PROCESS, count - first)}", f"--keepalive={keepalive_s:g}"),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            for first in range(0, count, _EDGES_PER_PROCESS)
        ]

    def ask(self) -> dict[str, Any]:
        """Return the state of all edges."""
        states = self._ask("state")
        epoch = max(state["epoch"] for state in states)
        return {
            "up": sum(state["up"] for state in states if state["epoch"] == epoch),
            "dials": [sum(dials) for dials in zip(*(state["dials"] for state in states), strict=True)],
            "epoch": epoch,
            "since": max(state["since"] for state in states),
            "stale": sum(state["stale"] for state in states),
        }

    def vendor(self, table: str) -> dict[str, Any]:
        """Return a table of the vendors: `made`, the volumes by name; `deleted`, the number of deletions by volume."""
        return {name: value for tables in self._ask("vendor") for name, value in tables[table].items()}

    def churn(self, per_s: int) -> None:
        """Let so many of the second half of all edges lose their links in a second, from now on."""
        self._ask(f"churn {per_s}")

    def wait_up(self, count: int, *, after: int = 0) -> None:
        """Wait until so many edges follow a leader of a later epoch."""

        def are_up() -> bool:
            state = self.ask()
            return bool(state["up"] == count and state["epoch"] > after)

        wait_for(are_up, what=f"{count} edges up", timeout_s=_SLOW_S, instead=self.ask)

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()
            process.wait()

    def _ask(self, command: str) -> list[dict[str, Any]]:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(f"{command}\n")
            process.stdin.flush()
        return [self._answer(process) for process in self._processes]

    def _answer(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise NotMeasured("the process of the simulated edges ended")
        answer: dict[str, Any] = json.loads(line)
        return answer


class _Hub(Hub):
    """One of the two hubs; `number` is its place. It has a token of its own, which the API server's audit log names."""

    def __init__(self, directory: Path, number: int, plane: ControlPlane, flags: Sequence[str]) -> None:
        here = directory / f"hub{number}"
        here.mkdir()
        kubeconfig = plane.service_account_kubeconfig("csi-bridge", HUB).rename(here / "kubeconfig")
        super().__init__(here, here, (f"--kubeconfig={kubeconfig}", *flags))
        self.number = number
        (user,) = json.loads(kubeconfig.read_text())["users"]
        claims = user["user"]["token"].split(".")[1]
        self.credential = f"JTI={json.loads(base64.urlsafe_b64decode(claims + '=='))['jti']}"

    def links(self) -> int:
        """Return the number of peers that have a link to this hub while it is a standby."""
        return int(hub_state(self.uds).get("links", 0))

    def is_quiet(self) -> bool:
        """Whether the hub only keeps its links alive."""
        before = cpu_s(psutil.Process(self.process.pid))
        time.sleep(1.0)
        return cpu_s(psutil.Process(self.process.pid)) - before < _QUIET_S

    def rss_bytes(self) -> int:
        """Return the resident memory of the hub."""
        return int(psutil.Process(self.process.pid).memory_info().rss)


class _Pair:
    """Two hubs of a cluster, edges with a link to each, a proxy driver and its caller; a context manager.

    Attributes:
        active, standby: the hubs.
        warm_bytes: the growth of the standby's memory by all links.
        late_writes: the writes of a hub after its term.
    """

    def __init__(self, directory: Path, edges: int, times: Sequence[str], *, keepalive_s: float = 10.0) -> None:
        directory.mkdir()
        self._directory = directory
        self._count = edges
        self._times = times
        self._keepalive_s = keepalive_s
        self.late_writes: list[str] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._start(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, failure: object, *_: object) -> None:
        self._stack.close()
        members = (*self._hubs, self.proxy)
        if failure is not None:
            return
        complaints = [line for member in members for line in member.complaints()]
        if complaints:
            raise NotMeasured(f"a process complains: {complaints[0]}")

    def _start(self, stack: ExitStack) -> None:
        self._plane = ControlPlane(self._directory / "plane", peer=find_peer)
        stack.callback(self._plane.stop)
        self._plane.start()
        self._plane.controller_manager.stop()
        self._plane.apply(hub_roles())
        # `--keepalive` stands there twice: the last value counts.
        flags = (*_COMMON_FLAGS, f"--keepalive={self._keepalive_s:g}s", *self._times)
        self._hubs = [_Hub(self._directory, number, self._plane, flags) for number in range(2)]
        self.active, self.standby = self._hubs
        for hub in self._hubs:
            stack.callback(hub.kill)
            hub.start()
        before = self.standby.rss_bytes()
        self.edges = Edges([hub.address for hub in self._hubs], self._count, self._keepalive_s)
        stack.callback(self.edges.close)
        flags = (*(f"--hub-endpoint=unix://{hub.uds}" for hub in self._hubs), "--placement=local", *_COMMON_FLAGS)
        self.proxy = Proxy(DRIVER, "", None, self._directory / "proxy", self._directory, flags)
        stack.callback(self.proxy.kill)
        self.proxy.start()
        self._ready()
        time.sleep(_SETTLE_S)  # memory of the handshakes is freed
        self.warm_bytes = self.standby.rss_bytes() - before
        self.caller = _Caller(self.proxy.socket, self._count)
        stack.callback(self.caller.close)

    def _ready(self) -> None:
        """Wait until all edges follow the active hub, and they and the proxy driver have a link to the standby."""
        self.edges.wait_up(self._count)
        wanted = self._count + 1
        wait_for(lambda: self.standby.links() == wanted, what=f"{wanted} links to the standby", timeout_s=_SLOW_S)

    def change_sides(self) -> None:
        """From now on the standby counts as the active hub."""
        self.active, self.standby = self.standby, self.active

    def restart(self, times: Sequence[str], *, claims: int) -> None:
        """Start both hubs anew, with other times of the Lease, and with more claims."""
        self.active.kill()
        self.standby.kill()
        _write_claims(self._plane.etcd_url, claims, self._count)
        wait_for(self._has_read, what="API server that has read the claims", timeout_s=_SLOW_S)
        for hub in (self.active, self.standby):
            hub.process.command += times
            hub.start(wait=False)
            wait_for(lambda hub=hub: listens_on(hub.uds), what="hub that listens", timeout_s=_SLOW_S)
        self._ready()
        wait_for(self.standby.is_quiet, what="end of the standby's reading", timeout_s=_SLOW_S)

    def _has_read(self) -> bool:
        """Whether the API server's own cache follows etcd: its answers are prompt then."""
        resource = place_of(RecordKind.CLAIM, ("", "")).resource
        began = time.monotonic()
        with suppress(KubeError):
            with_kube(str(self._plane.admin_kubeconfig()), lambda kube: kube.list(resource, limit=1))
            return time.monotonic() - began < 1.0
        return False

    # ---- faults

    def kill(self) -> _Seen:
        """Kill the active hub with SIGKILL; then it starts again, as the standby."""
        seen = self._fault(signal.SIGKILL)
        self._come_back()
        return seen

    def terminate(self) -> _Seen:
        """End the active hub with SIGTERM; then it starts again, as the standby."""
        seen = self._fault(signal.SIGTERM)
        status = self.standby.process.wait_exit()
        if status != 0:
            raise NotMeasured(f"a hub ended with exit status {status} after SIGTERM")
        self._come_back()
        return seen

    def suspend(self) -> _Seen:
        """Stop the active hub with SIGSTOP; it goes on when the other hub leads and the caller has stopped."""
        began = time.monotonic()
        seen = self._fault(signal.SIGSTOP)
        time.sleep(max(_SETTLE_S, began + _BEFORE_S + _STOPPED_S - time.monotonic()))
        audit = self._plane.directory / "audit.log"
        before = len(audit.read_text())
        self.standby.process.signal(signal.SIGCONT)
        status = self.standby.process.wait_exit()
        if status != 1:
            raise NotMeasured(f"a hub that had lost its Lease ended with exit status {status}")
        time.sleep(_SETTLE_S)
        lines = audit.read_text()[before:].rpartition("\n")[0].splitlines()
        requests = [json.loads(line) for line in lines if self.standby.credential in line]
        if not requests:
            raise NotMeasured("the audit log has no request of the hub that went on")
        self.late_writes = [
            f"{request['verb']} {request['requestURI']}"
            for request in requests
            if request["verb"] not in {"get", "list", "watch"} and request["responseStatus"]["code"] < 300
        ]
        self._come_back()
        return seen

    def _fault(self, number: signal.Signals) -> _Seen:
        """Send the active hub a signal under load; then the standby leads."""
        self.caller.start()
        time.sleep(_BEFORE_S)
        epoch = self.edges.ask()["epoch"]
        fault_at = time.monotonic()
        self.active.process.signal(number)
        self.change_sides()
        first_at, last_at = self.caller.sweep(epoch)
        self.edges.wait_up(self._count, after=epoch)
        last_at = max(last_at, self.edges.ask()["since"])
        time.sleep(_AFTER_S)
        self.caller.stop()
        seen = self.caller.take()
        seen.first_s = first_at - fault_at
        seen.all_s = last_at - fault_at
        seen.lost += self._wrong_outcomes()
        return seen

    def _wrong_outcomes(self) -> list[str]:
        """Compare the caller's answers with the vendors' volumes."""
        made = self.edges.vendor("made")
        deleted = self.edges.vendor("deleted")
        created = [
            f"{name}: the vendor has made {made.get(name)}, and the caller has got {self.caller.got.get(name)}"
            for name in made.keys() | self.caller.got.keys()
            if made.get(name) != [self.caller.got.get(name)]
        ]
        return created + [f"{volume} was not deleted" for volume in self.caller.deleted - deleted.keys()]

    def _come_back(self) -> None:
        if not self.standby.process.running:
            self.standby.start()
        self._ready()


def _write_claims(etcd: str, count: int, nodes: int) -> None:
    """Write claims into etcd, in large transactions, each as a copy of a claim that the API server has written."""
    resource = place_of(RecordKind.CLAIM, ("", "")).resource
    since = time.time()
    prefix = f"/registry/csi-bridge.io/{resource.plural}/"
    answer = _ask_etcd(etcd, "range", {"key": _coded(prefix), "range_end": _coded(prefix[:-1] + "0"), "limit": "1"})
    pattern = json.loads(base64.b64decode(answer["kvs"][0]["value"]))

    def put(number: int) -> dict[str, Any]:
        key = (DRIVER, f"CreateVolume old-{number}")
        node = f"e{number % nodes}"
        volume = f"old-{number}"
        ids = [{"kind": "volume", "id": volume, "node": node, "since": since}]
        name = place_of(RecordKind.CLAIM, key).name
        metadata = {**pattern["metadata"], "name": name, "uid": str(uuid.uuid4())}
        body = {**pattern, "metadata": metadata, "spec": value_of(RecordKind.CLAIM, key, {"state": "made", "ids": ids})}
        return {"requestPut": {"key": _coded(prefix + name), "value": _coded(json.dumps(body))}}

    for numbers in _batches(count, 100):
        _ask_etcd(etcd, "txn", {"success": [put(number) for number in numbers]})


def _ask_etcd(etcd: str, operation: str, request: dict[str, Any]) -> Any:
    with urllib.request.urlopen(f"{etcd}/v3/kv/{operation}", json.dumps(request).encode(), timeout=30.0) as answer:
        return json.loads(answer.read())


def _batches(count: int, size: int) -> Iterator[range]:
    return (range(first, min(first + size, count)) for first in range(0, count, size))


def _coded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
