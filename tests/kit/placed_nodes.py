"""Nodes in memory, each with a vendor that is told what to answer, and placement over them."""

import asyncio
import contextlib
import sqlite3
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from cloud.calls.call import Call, Calls
from cloud.calls.node_calls import NodeCalls
from cloud.claims.book import Book
from cloud.claims.claim import Attempt, Claim
from cloud.claims.claims import Claims
from cloud.claims.election import ElectionRules, ServingCandidate
from cloud.claims.rules import VOLUME, Thing
from cloud.nodes.fleet import Fleet, Fleets
from cloud.nodes.known_node import KnownNode, Moment
from cloud.nodes.node_records import StoredNode
from cloud.nodes.offers import Offers
from cloud.nodes.question import Question, ask
from cloud.nodes.visit import Visit
from cloud.placement.affinity import Affinity
from cloud.placement.decisions import MOST_OPEN
from cloud.placement.placement import Placement
from cloud.proxy.driver_settings import Mode
from cloud.records.records import RecordKind
from cloud.records.sqlite import SqliteRecords
from cloud.sources.source import Item, Source
from cloud.trust.admission import Admitted, Role
from common.csi import csi_pb2 as csi
from common.csi.reports import (
    CONTROLLER_GET_CAPABILITIES,
    GET_PLUGIN_CAPABILITIES,
    GET_PLUGIN_INFO,
    NODE_GET_INFO,
    Answer,
    DriverReport,
)
from common.errors import (
    CallError,
    CallTimeout,
    LinkLost,
    TunnelClosed,
    driver_missing,
    node_offline,
)
from common.messages import Kind as StreamKind
from common.messages import Open, Priority
from common.objects.objects import Ref, Stamp
from common.objects.topology import NODE_SEGMENT
from common.observe.metrics import Metrics
from common.observe.version import introduce
from common.session.receiver import Receiver
from common.status import Code, Origin, Status
from tests.kit.memory_records import MemoryRecords
from tests.kit.state_db import records_in

DRIVER = "d.example"
LEASE_S = 60
CONTROLLER = "/csi.v1.Controller/"
OK = Status(Code.OK)
RPC = csi.ControllerServiceCapability.RPC

Vendor = Callable[[Question], "Awaitable[tuple[bytes | None, Status]] | tuple[bytes | None, Status]"]


def plugin(*kinds: int) -> bytes:
    """A GetPluginCapabilitiesResponse."""
    said = csi.GetPluginCapabilitiesResponse()
    for kind in kinds:
        said.capabilities.add().service.type = kind  # type: ignore[assignment]  # an enum is an int on the wire
    return said.SerializeToString()


def controller(*kinds: int) -> bytes:
    """A ControllerGetCapabilitiesResponse."""
    said = csi.ControllerGetCapabilitiesResponse()
    for kind in kinds:
        said.capabilities.add().rpc.type = kind  # type: ignore[assignment]  # an enum is an int on the wire
    return said.SerializeToString()


OWN = csi.PluginCapability.Service.VOLUME_ACCESSIBILITY_CONSTRAINTS
SERVICE = csi.PluginCapability.Service.CONTROLLER_SERVICE


def report(
    node: str,
    *,
    segments: dict[str, str] | None = None,
    capabilities: tuple[int, ...] = (RPC.CREATE_DELETE_VOLUME, RPC.CREATE_DELETE_SNAPSHOT),
    node_id: str | None = None,
    serves: bool = False,
) -> DriverReport:
    """What a node tells; with segments its vendor has a topology of its own. `serves`: it has a controller service."""
    info = csi.NodeGetInfoResponse(node_id=node_id or f"id-of-{node}")
    if segments is not None:
        info.accessible_topology.segments.update(segments)
    bodies = {
        GET_PLUGIN_INFO: csi.GetPluginInfoResponse(name=DRIVER).SerializeToString(),
        GET_PLUGIN_CAPABILITIES: plugin(*[SERVICE] * serves, *[OWN] * (segments is not None)),
        CONTROLLER_GET_CAPABILITIES: controller(*capabilities),
        NODE_GET_INFO: info.SerializeToString(),
    }
    return DriverReport(DRIVER, node, {method: Answer(0, body=body) for method, body in bodies.items()})


class _NodeLink:
    """The link of a node: its vendor is asked in the loop's next turn (`common.session.link.Link`)."""

    over = False

    def __init__(self, world: "Placed", node: str) -> None:
        self._world, self._node = world, node
        self._answering: list[asyncio.Task[None]] = []

    def start(self, receiver: Receiver, _kind: StreamKind, request: bytes, **how: Any) -> int:
        question = Question(how["subject"], how["method"], request, how["call"], how["timeout_s"], how["epoch"])
        self._world.calls.append((self._node, question.method, request))
        self._world.epochs.append(question.epoch)
        vendor = self._world.vendors.get(self._node, lambda _: (b"", OK))
        self._answering.append(asyncio.ensure_future(self._answer(receiver, vendor, question)))
        return len(self._answering)

    async def _answer(self, receiver: Receiver, vendor: Vendor, question: Question) -> None:
        try:
            said = vendor(question)
            body, status = await said if isinstance(said, Awaitable) else said
        except CallTimeout:
            receiver.failed(CallTimeout())
        except CallError as error:
            receiver.failed(TunnelClosed(sent=isinstance(error, LinkLost), why=str(error)))
        else:
            receiver.ended(status, body)

    def watch_unsent(self, _number: int) -> int:
        return 0

    def consumed(self, number: int, size: int) -> None:
        pass

    def acknowledge(self, number: int, *, delivered: bool) -> None:
        pass

    def cancel(self, number: int) -> None:
        if asyncio.current_task() is not self._answering[number - 1]:
            self._answering[number - 1].cancel()


class _CallerLink:
    """The link of a caller (`common.session.link.Link`)."""

    def __init__(self, driver: str, mode: str) -> None:
        self.loop = asyncio.get_running_loop()
        self.context = Admitted(Role.DRIVER if mode else Role.OPERATOR, 0.0, mode)
        self.peer = introduce("driver", driver, instance="p")
        self.sent: list[bytes] = []
        self.ended: asyncio.Future[tuple[Status, bytes]] = self.loop.create_future()

    def consumed(self, number: int, size: int) -> None:
        pass

    def watch_unsent(self, _number: int) -> int:
        return 0

    def send(self, _number: int, message: bytes) -> None:
        self.sent.append(message)

    def end(self, _number: int, status: Status, message: bytes | None = None) -> None:
        self.ended.set_result((status, message or b""))


class Told(Call):
    """A call whose caller learns the error itself.

    Attributes:
        told: the status and the message, once the call has ended.
        messages: the answer's messages before its last one.
    """

    def __init__(self, calls: Calls, frame: Open, mode: str, deadline: float | None) -> None:
        link = _CallerLink(frame.subject, mode)
        super().__init__(calls, link, frame, deadline)  # type: ignore[arg-type]  # the part of a link that a call uses
        self.told, self.messages = link.ended, link.sent
        self.error: Exception | None = None  # why it failed, if it did

    def _fail(self, error: Exception) -> None:
        self.error = self.error or error
        super()._fail(error)

    async def result(self) -> tuple[Status, bytes]:
        """Wait for the end. Raises the error."""
        said = await asyncio.shield(self.told)
        if self.error is not None:
            raise self.error
        return said

    def cancel(self) -> None:
        """The caller leaves."""
        self.left()
        self.released(False)


def told_by(
    calls: Calls,
    driver: str,
    method: str,
    request: bytes,
    *,
    mode: str = Mode.LOCAL,
    wanted: str = "",
    call_id: str = "c",
    timeout_s: float | None = None,
) -> Told:
    """Begin a call. It has this mode; empty: an operator's."""
    frame = Open(1, StreamKind.CALL, Priority.CALL, driver, method, wanted, call_id, 0)
    deadline = None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s
    told = Told(calls, frame, mode, deadline)
    told.begin(request)
    return told


async def claimed(claims: Claims, driver: str, attempt: Attempt) -> None:
    """Let the records show that a call is open. Raises CallError."""
    end = claims.record_open(driver, attempt)
    if end is not None:
        await asyncio.wait([end])
        claims.confirm(driver, attempt, end)


async def kept(claims: Claims, end: asyncio.Future[None] | None, claim: Claim | None = None) -> None:
    """Wait for a write of claims. Raises CallError."""
    if end is not None:
        await asyncio.wait([end])
        claims.check(end, DRIVER, claim)


class Disk:
    """The disk of `state.db`, which a test fills up or slows down from outside."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._path = directory, directory / "state.db"
        self.is_full = False

    def fill(self) -> None:
        """From now on nothing can be written."""
        if not self.is_full:
            self._change("CREATE TRIGGER {0} BEFORE {1} BEGIN SELECT RAISE(ABORT, 'database or disk is full'); END")
        self.is_full = True

    def empty(self) -> None:
        """From now on everything can be written."""
        if self.is_full:
            self._change("DROP TRIGGER {0}")
        self.is_full = False

    @contextlib.contextmanager
    def slow(self) -> Iterator[None]:
        """Inside the block every write waits."""
        with contextlib.closing(sqlite3.connect(self._path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            yield
            other.execute("ROLLBACK")

    def has(self, thing: str) -> bool:
        """Whether a thing of this id is on the disk."""
        claims = records_in(self._directory, RecordKind.CLAIM).values()
        return any(each["id"] == thing for body in claims for each in body.get("ids", ()))

    def _change(self, sql: str) -> None:
        with contextlib.closing(sqlite3.connect(self._path, isolation_level=None)) as other:
            other.execute("PRAGMA synchronous=OFF")
            other.execute("BEGIN IMMEDIATE")
            for event in ("INSERT", "UPDATE", "DELETE"):
                other.execute(sql.format(f"full_{event}", f"{event} ON records"))
            other.execute("COMMIT")


class Placed:
    """Nodes, and placement over them.

    Attributes:
        store: names and ids.
        source: the objects that the hub follows; None: it follows none.
        lost: the loss of records; empty: none.
    """

    def __init__(
        self,
        directory: Path,
        *reports: DriverReport,
        lost: str = "",
        retry_s: float = 60.0,
        most_open: int = MOST_OPEN,
        source: Source | None = None,
    ) -> None:
        self.reports = {each.node: each for each in reports}
        self.vendors: dict[str, Vendor] = {}  # by node: what the vendor there answers
        self.calls: list[tuple[str, str, bytes]] = []  # node, method and request of each call that was sent
        self.away: set[str] = set()  # the nodes that are not connected
        self.since: dict[str, float] = {}  # by node: when it left, if that is not long ago
        self.lost, self.max_open_creates = lost, most_open
        self.now = 1_000_000.0  # seconds since the epoch
        self.monotonic = 0.0  # seconds of the monotonic clock
        self.directory = directory
        self.offers = MemoryRecords()
        self.refused: dict[str, str] = {}  # by node: why it gets no call
        self.unfit: dict[str, str] = {}  # by node: why it cannot be elected, although it is connected
        self.left_at: dict[str, float] = {}  # by node: when it left, in seconds of the monotonic clock; 0 if not here
        self.machines: dict[str, str] = {}  # by node: the instance of its agent, if it is not the first one
        self.epochs: list[int] = []  # of each call that was sent
        self.rules = ElectionRules()
        self.disk = Disk(directory)  # the store's disk
        self._retry_s, self.source = retry_s, source
        self.placement = self._start()

    def _start(self) -> Placement:
        self.records = SqliteRecords(self.directory, retry_s=self._retry_s)
        self.store = Claims(self.records, now=lambda: self.now, monotonic=lambda: self.monotonic)
        metrics = Metrics()
        placement = Placement(
            Fleets(self, Offers(self.offers, metrics)),
            self.store,
            self.source,
            self,
            metrics,
            loss=lambda: self.lost,
        )
        counts = NodeCalls(self)
        self.hub_calls = Calls(self, placement, counts, metrics, self)  # type: ignore[arg-type]  # as in `Placement`
        return placement

    async def restart(self) -> None:
        """The hub ends and starts again."""
        await self.close()
        self.placement = self._start()

    async def close(self) -> None:
        """The hub ends."""
        await self.placement.close()
        await self.records.close()

    # what is asked of the hub's settings

    def election_rules(self, _driver: str) -> ElectionRules:
        return self.rules

    # what is asked of the mount guard

    def check(self, driver: str, request: bytes, serving: str) -> None:
        """Nothing is mounted."""

    # what is asked of `cloud.nodes.edge_nodes.Nodes`

    def knows(self, name: str) -> bool:
        return name in self.reports

    @property
    def segments(self) -> "Placed":
        """The unique segments: the bridge's alone."""
        return self

    def owners(self, term: Mapping[str, str]) -> set[str]:
        return {term[NODE_SEGMENT]} if NODE_SEGMENT in term else set()

    def drivers(self) -> list[str]:
        return [DRIVER]

    def with_driver(self, driver: str) -> list[str]:
        return list(self.reports) if driver == DRIVER else []

    def find_report(self, driver: str, name: str) -> DriverReport | None:
        return self.reports.get(name)

    @property
    def connected(self) -> set[str]:
        return self.reports.keys() - self.away

    def is_connected(self, name: str) -> bool:
        return name in self.connected

    def of(self, name: str) -> "_PlacedNode":
        return _PlacedNode(self, name)

    def reach(self, name: str, driver: str) -> Visit:
        if name not in self.reports:
            raise CallError(f"edge node {name} has never connected to this hub")
        if name in self.refused:
            raise CallError(f"edge node {name} gets no call of driver {driver}: {self.refused[name]}")
        if name in self.away:
            raise node_offline(name, self.since.get(name, 0.0))
        if driver != DRIVER:
            raise driver_missing(driver, name)
        return Visit(name, _NodeLink(self, name), 0.0)  # type: ignore[arg-type]  # the part of a link that a call uses

    async def ask_node(self, name: str, question: Question) -> tuple[Status, bytes]:
        return await ask(self.reach(name, question.driver), question)

    # what a test does

    async def ask(
        self,
        method: str,
        request: Any = b"",
        *,
        mode: str = Mode.LOCAL,
        wanted: str = "",
        delivered: bool = True,
        timeout_s: float = 10.0,
    ) -> "Asked":
        """One call from beginning to end; the caller takes the answer, or is gone by then.

        The call's id is the name of the task that asks.
        """
        asking = asyncio.current_task()
        assert asking is not None
        told = self.send(method, request, mode=mode, wanted=wanted, call_id=asking.get_name(), timeout_s=timeout_s)
        try:
            status, message = await told.result()
        except BaseException:
            told.cancel()
            raise
        told.released(delivered)
        return Asked(told.node, status, message)

    def send(
        self,
        method: str,
        request: Any = b"",
        *,
        mode: str = Mode.LOCAL,
        wanted: str = "",
        call_id: str = "c",
        timeout_s: float | None = None,
    ) -> Told:
        """Send a call."""
        body = request if isinstance(request, bytes) else request.SerializeToString()
        path = method if "/" in method else CONTROLLER + method
        return told_by(
            self.hub_calls, DRIVER, path, body, mode=mode, wanted=wanted, call_id=call_id, timeout_s=timeout_s
        )

    @property
    def book(self) -> Book:
        """What the hub knows of names and ids."""
        return self.store.book(DRIVER)

    def holder(self, name: str = "CreateVolume pvc-1") -> str:
        """The node that has a name; empty: none."""
        name = name if " " in name else f"CreateVolume {name}"
        nodes = self.book.holders(name)
        assert len(nodes) <= 1
        return nodes[0] if nodes else ""

    def places(self, volume: str = "vol-1") -> list[str]:
        """The nodes that have a volume, as far as the hub knows."""
        return [node for _, thing, node in self.store.existing() if thing == Thing(VOLUME, volume)]

    @contextlib.contextmanager
    def full_disk(self) -> Iterator[None]:
        """Nothing can be written inside the block."""
        self.disk.fill()
        try:
            yield
        finally:
            self.disk.empty()

    def make(self, node: str, volume: str = "vol-1") -> None:
        """The vendor of a node makes volumes of this id."""
        answer = csi.CreateVolumeResponse(volume=csi.Volume(volume_id=volume, capacity_bytes=7))
        self.vendors[node] = lambda _: (answer.SerializeToString(), OK)

    async def has_made(self, node: str, term: dict[str, str] | None = None, *, volume: str = "vol-1") -> None:
        """A node has made a volume under the name pvc-1."""
        self.make(node, volume)
        await self.ask("CreateVolume", create("pvc-1", term or on(node)))

    def know(self, node: str, volume: str, name: str) -> None:
        """The store has it that a node made a volume under a name."""
        record(self.store, DRIVER, node, Thing(VOLUME, volume), name)

    def tell(self, *reports: DriverReport) -> None:
        """Nodes report the driver, for the first time or anew."""
        self.reports |= {each.node: each for each in reports}
        self.placement.changed(DRIVER)

    def refuse(self, node: str, code: Code, origin: Origin = Origin.VENDOR) -> None:
        """The vendor of a node, or a hop on the way, answers with a code."""
        self.vendors[node] = lambda _: (None, Status(code, "no", origin))


Placing = Callable[..., Placed]  # makes a world in the test's directory, as `Placed` does


class _PlacedNode:
    """One node of a world (`cloud.nodes.known_node.KnownNode`)."""

    lease_s = LEASE_S

    def __init__(self, world: Placed, name: str) -> None:
        self._world, self._name = world, name
        self.stored = StoredNode(name, world.machines.get(name, f"of {name}"))

    def why_refused(self, _driver: str) -> str:
        return self._world.refused.get(self._name, "")

    def serving_candidate(self, _driver: str) -> ServingCandidate:
        if self._name in self._world.away:
            return ServingCandidate("is away", self.gone_at().monotonic)  # type: ignore[union-attr]  # it is away
        return ServingCandidate(self._world.unfit.get(self._name, ""))

    def gone_at(self, machine: str = "") -> Moment | None:
        world, left = self._world, self._world.left_at.get(self._name, 0.0)
        is_gone = self._name in world.away or machine not in ("", self.stored.instance)
        return Moment(left, world.now - world.monotonic + left) if is_gone else None


class Reported:
    """Nodes that have reported a driver, all connected (`cloud.nodes.edge_nodes.Nodes`)."""

    def __init__(self, reports: dict[str, DriverReport]) -> None:
        self._reports = reports

    def with_driver(self, driver: str) -> list[str]:
        return list(self._reports)

    def find_report(self, driver: str, name: str) -> DriverReport | None:
        return self._reports.get(name)

    def is_connected(self, name: str) -> bool:
        return name in self._reports

    def of(self, name: str) -> KnownNode:
        return KnownNode(StoredNode(name), Moment(0.0, 0.0))


def fleet(*reports: DriverReport) -> Fleet:
    """The nodes that have reported a driver, all connected; there were no offers before."""
    nodes = Reported({each.node: each for each in reports})
    return Fleets(nodes, Offers(MemoryRecords(), Metrics())).of(DRIVER)


def record(claims: Claims, driver: str, node: str, thing: Thing, name: str) -> None:
    """A node has made a thing under a name, and nobody has taken the answer of this pinned create."""
    attempt = claims.begin(driver, name, node)
    attempt.send()
    claims.record_unacknowledged(driver, attempt, node, [thing])


class Asked:
    """How a call ended."""

    def __init__(self, node: str, status: Status, body: bytes) -> None:
        self.node, self.status, self.body = node, status, body


def on(node: str) -> dict[str, str]:
    """The bridge's segment of a node, as a term."""
    return {NODE_SEGMENT: node}


def delete(volume: str = "vol-1") -> csi.DeleteVolumeRequest:
    return csi.DeleteVolumeRequest(volume_id=volume)


def affinity(*nodes: str, handle: str, key: str = NODE_SEGMENT, ready: bool = True) -> Affinity:
    """A PersistentVolume that may be used where the label has one of these values: on the nodes of these names."""
    return Affinity(volumes(*nodes, handle=handle, key=key, ready=ready))


def volumes(*nodes: str, handle: str, key: str = NODE_SEGMENT, ready: bool = True) -> Source:
    """The objects among which that is."""
    term = {"matchExpressions": [{"key": key, "operator": "In", "values": list(nodes)}]}
    spec = {
        "csi": {"driver": DRIVER, "volumeHandle": handle},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
    }
    objects = Source()
    objects.update({Ref("PersistentVolume", "", "pv"): Item(Stamp("u", "1"), {"spec": spec})}, ready=ready)
    return objects


def create(
    name: str = "pvc-1", *terms: dict[str, str], source: str = "", snapshot: str = ""
) -> csi.CreateVolumeRequest:
    """A CreateVolume; each term is a preferred topology."""
    request = csi.CreateVolumeRequest(name=name)
    for term in terms:
        request.accessibility_requirements.requisite.add().segments.update(term)
        request.accessibility_requirements.preferred.add().segments.update(term)
    if source:
        request.volume_content_source.volume.volume_id = source
    if snapshot:
        request.volume_content_source.snapshot.snapshot_id = snapshot
    return request
