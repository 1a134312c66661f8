"""Figures of two hubs: what callers and nodes notice when the hub that leads dies, stops, or stands still.

Rules:

* API server, etcd, hubs and the proxy driver are real. The edges are simulated, in processes of their own
  (`serving_edges.py`); their sessions, uplinks and operations are an agent's.
* One caller makes 50 calls a second, half of them CreateVolume and half DeleteVolume. It tries again as a stock sidecar
  does. A call is lost if it ends with a code that a sidecar takes for final, or has no success within a minute. It is
  also lost if its vendor has made two volumes of its name, or another one than the caller has got, or has deleted none.
* All nodes answer again when the last edge follows the new leader, and a call through the proxy driver has reached each
  of 200 random nodes by it. To call all would take longer than the takeover.
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
from tests.kit.operator import hub_state
from tests.kit.peers.cluster_node import DEPLOY, HUB
from tests.kit.peers.control_plane import ControlPlane
from tests.kit.placed_nodes import DRIVER, create
from tests.kit.processes import listens_on
from tests.kit.waiting import wait_for

_T = TypeVar("_T")

SERVING_EDGES = Path(__file__).with_name("serving_edges.py")

EDGES = 2_000
_MANY = 5
"""So many times more edges are connected when memory is measured."""

_A_PROCESS = 5_000
"""Edges of one process: each has two links, and a process may have 20,000 files open."""

_CALLS_PER_S = 50
_BEFORE_S = 5.0
_AFTER_S = 3.0
"""The caller is busy so long before a fault, and after the last node answers."""

_CLAIMS = 100_000
_STOPPED_S = 20.0
_SETTLE_S = 3.0
_QUIET_S = 0.2
"""CPU time in a second."""

_SLOW_S = 300.0

_NOT_FINAL = frozenset({
    grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.ABORTED,
})  # fmt: skip
"""The codes after which external-provisioner does not take a create for failed."""

_CALL_S, _FIRST_RETRY_S, _LAST_RETRY_S = 60.0, 1.0, 60.0
"""--timeout and the limit of retries as in deploy/, and external-provisioner's first wait."""

_LOST_S = 60.0
_SAMPLE = 200
_NEVER_S = 90.0
_PROBE_S = 0.05
_AGAIN_S = 0.25
"""The hub takes over meanwhile, and calls that fail are work for it, too."""

_AT_ONCE = 32

_QUIET = ("--keepalive=10s", "--hello-timeout=30s", "--log-level=warning")
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
    what = f"2 hubs, {edges:,} edges, {_CALLS_PER_S} calls a second"
    found = []
    with _Pair(directory / "a", edges, _SHORT) as pair:
        for name, limit_s in (("kill -9", 6.0), ("SIGTERM", 1.5), (f"SIGSTOP for {_STOPPED_S:g} s", 6.0)):
            say(f"hubs: {name}")
            fault = {"kill -9": pair.kill, "SIGTERM": pair.terminate}.get(name, pair.suspend)
            found.append(_takeover(f"{what}, the leader gets {name}", fault(), limit_s))
        found.append(_late(pair))
        say(f"hubs: {_CLAIMS:,} claims, and the default lease")
        pair.restart(_DEFAULT, claims=_CLAIMS)
        found.append(_takeover(f"the same, kill -9, lease of 15 s, {_CLAIMS:,} claims", pair.kill(), 20.0))
    many = edges * _MANY
    with _Pair(directory / "b", many, _SHORT, keepalive_s=60.0) as pair:
        found += _many(pair, many)
    return found


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
    late = f"{len(pair.late_writes)} writes, {pair.edges.ask()['stale']} calls that an agent took"
    is_met = late.startswith("0 writes, 0 calls")
    return Figure(
        "a leader that goes on after SIGSTOP", late, "0 writes, 0 calls", is_met, {"writes": pair.late_writes}
    )


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
    what = f"{many:,} edges, plain ws, both hubs"
    return [
        of_samples(f"{what}: memory a node at the standby", [per_node_kb], "KB", at_most=20, digits=1),
        Figure(f"{what}: dials to the new leader after kill -9 of the old one",
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
    """What caller and nodes have seen of one fault.

    Attributes:
        calls: the calls.
        retried: those that were tried again.
        lost: each that is lost, and why.
        times_s: the time of each.
        codes: how often a try ended with which code.
        first_s: from the fault until a node answered by the new leader.
        all_s: the same of the last node.
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
        self._socket, self._nodes = socket, nodes
        self._names = itertools.count()
        self._volumes: list[str] = []
        self._calls: list[_Call] = []
        self._lost: list[str] = []
        self._silent: dict[int, str] = {}
        self._codes: Counter[str] = Counter()
        self._load: asyncio.Task[None] | None = None
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
        """Return the calls since the last time."""
        calls, self._calls = self._calls, []
        lost, self._lost = self._lost, []
        codes, self._codes = self._codes, Counter()
        retried = sum(call.tries > 1 for call in calls)
        return _Seen(len(calls) + len(lost), retried, lost, [call.took_s for call in calls], dict(codes))

    def sweep(self, epoch: int) -> tuple[float, float]:
        """Ask some nodes until each answers by a leader after this epoch. Returns when the first and the last did."""
        return self._await(self._sweep(epoch))

    def wait_first(self) -> float:
        """Ask any node until one answers. Returns when it did."""
        return self._await(self._first(0))

    def close(self) -> None:
        """End it."""
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
        self._tasks: set[asyncio.Task[None]] = set()
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
        terms = [{NODE_SEGMENT: f"e{each % self._nodes}"} for each in (node, node + 1)]
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
        began, wait_s = loop.time(), _FIRST_RETRY_S
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
        """Whether a node answers by a leader after this epoch."""
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
        left = random.sample(range(self._nodes), min(_SAMPLE, self._nodes))
        self._silent.clear()

        async def work() -> None:
            while left:
                node = left.pop()
                if await self._answers(node, epoch):
                    self._silent.pop(node, None)
                else:
                    left.insert(0, node)
                    await asyncio.sleep(_AGAIN_S)

        try:
            async with asyncio.timeout(_NEVER_S):
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
                    *(f"--count={min(_A_PROCESS, count - first)}", f"--keepalive={keepalive_s:g}"),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            for first in range(0, count, _A_PROCESS)
        ]

    def ask(self) -> dict[str, Any]:
        """Return the state of all edges."""
        told = self._ask("state")
        epoch = max(each["epoch"] for each in told)
        return {
            "up": sum(each["up"] for each in told if each["epoch"] == epoch),
            "dials": [sum(each) for each in zip(*(it["dials"] for it in told), strict=True)],
            "epoch": epoch,
            "since": max(each["since"] for each in told),
            "stale": sum(each["stale"] for each in told),
        }

    def vendor(self, what: str) -> dict[str, Any]:
        """Return what vendors have `made`, by name; or `deleted`: how often, by volume."""
        return {name: value for each in self._ask("vendor") for name, value in each[what].items()}

    def churn(self, per_s: int) -> None:
        """Let so many of the second half of all edges lose their links in a second, from now on."""
        self._ask(f"churn {per_s}")

    def wait_up(self, count: int, *, after: int = 0) -> None:
        """Wait until so many edges follow a leader of a later epoch."""

        def are_up() -> bool:
            told = self.ask()
            return bool(told["up"] == count and told["epoch"] > after)

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
        told: dict[str, Any] = json.loads(line)
        return told


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
        """Return the number of its peers while it is a standby."""
        return int(hub_state(self.uds).get("links", 0))

    def is_quiet(self) -> bool:
        """Whether it does little but to keep its links alive."""
        before = cpu_s(psutil.Process(self.process.pid))
        time.sleep(1.0)
        return cpu_s(psutil.Process(self.process.pid)) - before < _QUIET_S

    def rss_bytes(self) -> int:
        """Return its resident memory."""
        return int(psutil.Process(self.process.pid).memory_info().rss)


class _Pair:
    """Two hubs of a cluster, edges with a link to each, a proxy driver and its caller; a context manager.

    Attributes:
        active, standby: the hubs.
        warm_bytes: the growth of the standby's memory by all links.
        late_writes: what a hub wrote that went on after its end.
    """

    def __init__(self, directory: Path, edges: int, times: Sequence[str], *, keepalive_s: float = 10.0) -> None:
        directory.mkdir()
        self._directory, self._count, self._times, self._keepalive_s = directory, edges, times, keepalive_s
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
        if failure is None and (said := [line for member in members for line in member.complaints()]):
            raise NotMeasured(f"a process complains: {said[0]}")

    def _start(self, stack: ExitStack) -> None:
        self._plane = ControlPlane(self._directory / "plane", peer=find_peer)
        stack.callback(self._plane.stop)
        self._plane.start()
        self._plane.controller_manager.stop()
        self._plane.apply(DEPLOY / "base/hub-rbac.yaml")
        flags = (*_QUIET, f"--keepalive={self._keepalive_s:g}s", *self._times)
        self._hubs = [_Hub(self._directory, number, self._plane, flags) for number in range(2)]
        self.active, self.standby = self._hubs
        for hub in self._hubs:
            stack.callback(hub.kill)
            hub.start()
        before = self.standby.rss_bytes()
        self.edges = Edges([hub.address for hub in self._hubs], self._count, self._keepalive_s)
        stack.callback(self.edges.close)
        flags = (*(f"--hub-endpoint=unix://{hub.uds}" for hub in self._hubs), "--placement=local", *_QUIET)
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
        resource, began = place_of(RecordKind.CLAIM, ("", "")).resource, time.monotonic()
        with suppress(KubeError):
            with_kube(str(self._plane.admin_kubeconfig()), lambda kube: kube.list(resource, limit=1))
            return time.monotonic() - began < 1.0
        return False

    # ---- faults

    def kill(self) -> _Seen:
        """kill -9; then the hub starts again, as the standby."""
        seen = self._fault(signal.SIGKILL)
        self._come_back()
        return seen

    def terminate(self) -> _Seen:
        """The same with SIGTERM."""
        seen = self._fault(signal.SIGTERM)
        if (status := self.standby.process.wait_exit()) != 0:
            raise NotMeasured(f"a hub ended with exit status {status} after SIGTERM")
        self._come_back()
        return seen

    def suspend(self) -> _Seen:
        """The active hub stands still, and goes on when another one leads and nobody calls."""
        began = time.monotonic()
        seen = self._fault(signal.SIGSTOP)
        time.sleep(max(_SETTLE_S, began + _BEFORE_S + _STOPPED_S - time.monotonic()))
        audit = self._plane.directory / "audit.log"
        before = len(audit.read_text())
        self.standby.process.signal(signal.SIGCONT)
        if (status := self.standby.process.wait_exit()) != 1:
            raise NotMeasured(f"a hub that had lost its Lease ended with exit status {status}")
        time.sleep(_SETTLE_S)
        lines = audit.read_text()[before:].rpartition("\n")[0].splitlines()
        found = [json.loads(line) for line in lines if self.standby.credential in line]
        if not found:
            raise NotMeasured("the audit log has no request of the hub that went on")
        self.late_writes = [
            f"{each['verb']} {each['requestURI']}"
            for each in found
            if each["verb"] not in {"get", "list", "watch"} and each["responseStatus"]["code"] < 300
        ]
        self._come_back()
        return seen

    def _fault(self, number: signal.Signals) -> _Seen:
        """Send the active hub a signal under load; the standby leads then."""
        self.caller.start()
        time.sleep(_BEFORE_S)
        epoch = self.edges.ask()["epoch"]
        at = time.monotonic()
        self.active.process.signal(number)
        self.change_sides()
        first, last = self.caller.sweep(epoch)
        self.edges.wait_up(self._count, after=epoch)
        last = max(last, self.edges.ask()["since"])
        time.sleep(_AFTER_S)
        self.caller.stop()
        seen = self.caller.take()
        seen.first_s, seen.all_s = first - at, last - at
        seen.lost += self._wrong()
        return seen

    def _wrong(self) -> list[str]:
        """Compare what the caller was told with what vendors have done."""
        made, deleted = self.edges.vendor("made"), self.edges.vendor("deleted")
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
    """Write claims into etcd, at once, each as a copy of one that the API server has written."""
    resource, since = place_of(RecordKind.CLAIM, ("", "")).resource, time.time()
    prefix = f"/registry/csi-bridge.io/{resource.plural}/"
    found = _ask_etcd(etcd, "range", {"key": _coded(prefix), "range_end": _coded(prefix[:-1] + "0"), "limit": "1"})
    pattern = json.loads(base64.b64decode(found["kvs"][0]["value"]))

    def put(number: int) -> dict[str, Any]:
        key, node, volume = (DRIVER, f"CreateVolume old-{number}"), f"e{number % nodes}", f"old-{number}"
        ids = [{"kind": "volume", "id": volume, "node": node, "since": since}]
        name = place_of(RecordKind.CLAIM, key).name
        metadata = {**pattern["metadata"], "name": name, "uid": str(uuid.uuid4())}
        body = {**pattern, "metadata": metadata, "spec": value_of(RecordKind.CLAIM, key, {"state": "made", "ids": ids})}
        return {"requestPut": {"key": _coded(prefix + name), "value": _coded(json.dumps(body))}}

    for some in _batches(count, 100):
        _ask_etcd(etcd, "txn", {"success": [put(number) for number in some]})


def _ask_etcd(etcd: str, what: str, asked: dict[str, Any]) -> Any:
    with urllib.request.urlopen(f"{etcd}/v3/kv/{what}", json.dumps(asked).encode(), timeout=30.0) as answer:
        return json.loads(answer.read())


def _batches(count: int, size: int) -> Iterator[range]:
    return (range(first, min(first + size, count)) for first in range(0, count, size))


def _coded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
