"""What the hub tells is at the node, and what the node tells is at the hub, over links in memory that come and go."""

import asyncio
import json
import sqlite3
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, Self

import pytest

from cloud.kube.client import KubeError
from cloud.sources.cluster.cluster import Cluster
from cloud.sync import streams
from cloud.sync.closures import Closures
from cloud.sync.streams import SyncServer
from common.messages import Kind, Priority
from common.objects.objects import Object, Ref, Stamp
from common.objects.sync_messages import Put, Stored, encode
from common.session.link import Link, Stream
from common.status import Code, Status
from edge.stores.metastore import Metastore
from edge.stores.sync_streams import observe_streams, sync_streams
from tests.kit.fake_api import FakeApi
from tests.kit.linked import Peer, cut, link_pair
from tests.kit.trusting import TRUSTING
from tests.kit.waiting import settle, until

NODE = Ref("Node", "", "n1")


def item(name: str, version: int = 1, *, kind: str = "Pod", uid: str = "u", size: int = 700) -> Object:
    return Object(Ref(kind, "ns", name), Stamp(uid, str(version)), json.dumps({"x": "x" * size}).encode())


class Source:
    """Closures of one node, as a test sets them."""

    def __init__(self) -> None:
        self.is_ready = True
        self.unknown: set[Ref] = set()
        self.objects: dict[Ref, Object] = {}
        self.reads: Counter[str] = Counter()
        self._watchers: list[Callable[[], None]] = []

    def is_known(self, node: str) -> bool:
        return self.is_ready and not self.unknown

    def is_unknown(self, node: str, ref: Ref) -> bool:
        return ref in self.unknown

    def stamps(self, node: str) -> Mapping[Ref, Stamp]:
        return {ref: found.stamp for ref, found in self.objects.items()}

    def read(self, ref: Ref) -> Object | None:
        self.reads[ref.name] += 1
        return self.objects.get(ref)

    def watch(self, node: str, changed: Callable[[], None], *, with_credentials: bool = True) -> Callable[[], None]:
        self._watchers.append(changed)
        return lambda: self._watchers.remove(changed)

    def put(self, *objects: Object) -> None:
        self.objects |= {found.ref: found for found in objects}
        self.tell()

    def drop(self, ref: Ref) -> None:
        del self.objects[ref]
        self.tell()

    def tell(self) -> None:
        for changed in self._watchers:
            changed()


class Sink:
    """Facts of one node, with troubles that a test makes."""

    def __init__(self) -> None:
        self.facts: dict[Ref, Object] = {}
        self.told: list[str] = []
        self.machines: list[str] = []
        self.refuses: set[str] = set()
        self.trouble = ""
        self.failed = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.streams = 0

    @property
    def table(self) -> Self:
        return self

    async def note_machine(self, node: str, instance: str) -> None:
        self.machines.append(f"{node} {instance}")

    def up(self, node: str) -> None:
        self.streams += 1

    def down(self, node: str) -> None:
        self.streams -= 1

    def observed(self, node: str) -> None:
        self.told.append(f"{node} is observed")

    async def remove_all(self, node: str) -> None:
        self._check(Ref("Node", "", node))
        self.told.append(f"{node} is void")
        self.facts.clear()

    def stamps(self, node: str) -> Mapping[Ref, Stamp]:
        return {ref: fact.stamp for ref, fact in self.facts.items() if ref.kind != "Event"}

    async def store(self, node: str, obj: Object) -> bool:
        await self.gate.wait()
        self._check(obj.ref)
        self.told.append(f"{obj.ref.name} {obj.read()}")
        self.facts[obj.ref] = obj
        return True

    async def drop(self, node: str, ref: Ref, uid: str) -> None:
        self._check(ref)
        self.told.append(f"{ref.name} dropped")
        self.facts.pop(ref, None)

    async def forget(self, node: str) -> None:
        await self.remove_all(node)

    def _check(self, ref: Ref) -> None:
        if ref.name in self.refuses:
            raise ValueError("no object of this node")
        if self.trouble:
            self.failed += 1
            raise OSError(self.trouble)


class StreamedPair:
    """A hub and an agent, and the link between them."""

    def __init__(self, directory: Path) -> None:
        self.source, self.sink = Source(), Sink()
        self.server = SyncServer(self.source, self.sink)
        self.metastore = Metastore(directory, retry_s=0.01)
        self.streams = sync_streams(self.metastore)
        self.links: tuple[Link, ...] = ()
        self.priorities: set[int] = set()

    async def link(self) -> tuple[Link, Link]:
        """The hub's end and the agent's of a new link without streams."""
        ends = link_pair(Peer(self.serve), Peer(accepts=False))
        await settle()
        return ends

    async def connect(self) -> None:
        """A new link; the streams are about to compare."""
        self.links = await self.link()
        for stream in self.streams:
            stream.up(self.links[1])

    def cut(self) -> None:
        for stream in self.streams:
            stream.down()
        cut(*self.links)

    async def serve(self, stream: Stream) -> None:
        assert stream.opened is not None
        self.priorities.add(stream.opened.priority)
        if stream.opened.kind == Kind.SYNC:
            await self.server.serve_sync(stream, "n1")
        elif stream.opened.kind == Kind.FACTS:
            await self.server.serve_facts(stream, "n1")
        elif stream.opened.kind == Kind.OBSERVE:
            await self.server.serve_observe(stream, "n1")
        else:
            stream.end(Status(Code.OK), await stream.receive())

    async def in_step(self) -> None:
        """Wait until the agent holds what the hub knows, and the hub what the agent tells."""
        await until(lambda: self.metastore.objects.in_step and self.equal and not self.metastore.facts.waiting)

    @property
    def equal(self) -> bool:
        return self.metastore.objects.stamps() == self.source.stamps("n1")


@pytest.fixture
async def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[StreamedPair]:
    monkeypatch.setattr(streams, "RETRY_S", 0.0)
    pair = StreamedPair(tmp_path / "edge")
    yield pair
    pair.cut()
    await settle()
    await pair.metastore.close()


@pytest.fixture
def carried(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The bytes that both links received, all frames and credit included."""
    found: Counter[str] = Counter()
    receive = Link.receive

    def count(link: Link, data: bytes, now: float) -> None:
        found["bytes"] += len(data)
        receive(link, data, now)

    monkeypatch.setattr(Link, "receive", count)
    return found


# -------------------- down --------------------


async def test_what_the_hub_knows_is_at_the_node_and_every_change_follows_also_those_that_came_meanwhile(
    pair: StreamedPair,
) -> None:
    await pair.connect()
    await pair.in_step()
    assert pair.metastore.objects.ever_in_step
    pair.source.put(item("a"), item("b"))
    await until(lambda: pair.equal)
    assert pair.priorities == {Priority.SYNC}
    assert pair.metastore.objects.get(item("a").ref) == item("a")
    pair.source.put(item("a", 2), item("c"))
    await until(lambda: pair.equal)
    pair.source.drop(item("b").ref)
    await until(lambda: pair.equal)
    assert pair.metastore.objects.get(item("a").ref) == item("a", 2)
    assert set(pair.metastore.objects.refs("Pod")) == {item("a").ref, item("c").ref}
    pair.cut()
    await settle()
    assert not pair.metastore.objects.in_step
    pair.source.drop(item("a").ref)
    assert pair.metastore.objects.get(item("a").ref) == item("a", 2)
    await pair.connect()
    await pair.in_step()
    assert pair.metastore.objects.get(item("a").ref) is None


async def test_a_hub_that_has_not_heard_everything_says_nothing(pair: StreamedPair) -> None:
    pair.source.put(item("a"))
    await pair.connect()
    await pair.in_step()
    pair.cut()
    pair.source.is_ready = False
    pair.source.objects.clear()
    await pair.connect()
    pair.source.tell()
    await settle()
    assert (pair.metastore.objects.in_step, pair.equal) == (False, False)
    pair.source.put(item("a"), item("b"))
    await settle()
    assert pair.metastore.objects.get(item("b").ref) is None
    pair.source.is_ready = True
    pair.source.tell()
    await pair.in_step()


async def test_what_the_hub_cannot_send_is_a_problem_until_it_changes_or_is_gone_or_the_stream_ends(
    pair: StreamedPair,
) -> None:
    strange = item("a", uid="u" * 2_000)
    pair.source.put(item("a"))
    await pair.connect()
    await pair.in_step()
    pair.source.put(strange)
    await until(lambda: not pair.metastore.objects.stamps())  # the node has dropped the one before
    await until(pair.server.problems)
    (said,) = pair.server.problems()
    assert said.startswith("node n1 does not get Pod ns/a: its name, uid or version is not one that Kubernetes allows")
    pair.source.put(item("a", 2))
    assert pair.server.problems() == []
    await pair.in_step()
    pair.source.put(strange)
    await until(pair.server.problems)
    pair.source.drop(strange.ref)
    assert pair.server.problems() == []
    pair.source.put(strange)
    await until(pair.server.problems)
    pair.cut()
    await until(lambda: not pair.server.problems())


async def test_a_full_disk_at_the_node_holds_the_hub_up_and_loses_nothing(pair: StreamedPair, tmp_path: Path) -> None:
    change(tmp_path, "CREATE TRIGGER full BEFORE INSERT ON objects BEGIN SELECT RAISE(ABORT, 'full'); END")
    pair.source.put(*(item(f"p{number}", size=10_000) for number in range(100)))
    await pair.connect()
    await until(lambda: pair.metastore.trouble)
    await settle()
    assert sum(pair.source.reads.values()) < 60  # 256 KiB, and what was read in vain
    pair.cut()
    await pair.connect()
    await settle()
    assert not pair.metastore.objects.in_step
    change(tmp_path, "DROP TRIGGER full")
    await pair.in_step()


def change(directory: Path, statement: str) -> None:
    """Change the agent's database, as another process does."""
    with closing(sqlite3.connect(directory / "edge" / "edge.db")) as database:
        database.execute(statement)


# -------------------- what an API server does not say --------------------

SECRET = Ref("Secret", "default", "s")
TOKENS = Ref("ServiceAccountToken", "default", "uid-old")
DRIVER = {
    "kind": "CSIDriver",
    "metadata": {"name": "d.csi"},
    "spec": {"tokenRequests": [{"audience": "vault", "expirationSeconds": 600}]},
}


def pod(name: str) -> dict[str, Any]:
    """One whose volume needs a Secret and tokens."""
    volume = {"name": "v", "csi": {"driver": "d.csi", "nodePublishSecretRef": {"name": "s"}}}
    spec = {"nodeName": "n1", "containers": [{"name": "c"}], "volumes": [volume]}
    return {"kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": spec}


class Server(FakeApi):
    """An API server with two pods, a Secret and a service account, that may be broken."""

    def __init__(self) -> None:
        super().__init__()
        self.broken: KubeError | None = None
        for body in (DRIVER, pod("old"), pod("deleted")):
            self.put(body)
        self.put({"kind": "Secret", "metadata": {"name": "s", "namespace": "default"}, "data": {}})
        self.put({"kind": "ServiceAccount", "metadata": {"name": "default", "namespace": "default"}})

    async def _fail(self, verb: str) -> None:
        await super()._fail(verb)
        if verb in ("get", "create") and self.broken is not None:
            raise self.broken


@asynccontextmanager
async def following(api: Server, pair: StreamedPair) -> AsyncIterator[Callable[[float], None]]:
    """A hub that has just started beside this API server; lets time pass for what it asks for."""
    now = 0.0
    waiting: list[tuple[float, Callable[[], None]]] = []

    def later(seconds: float, call: Callable[[], None]) -> None:
        waiting.append((now + seconds, call))

    cluster = Cluster(api, later=later)
    pair.server = SyncServer(Closures(cluster, TRUSTING), pair.sink)
    task = asyncio.create_task(cluster.run())

    def turn(seconds: float) -> None:
        nonlocal now
        now += seconds
        for it in [it for it in waiting if it[0] <= now]:
            waiting.remove(it)
            it[1]()

    try:
        yield turn
    finally:
        pair.cut()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def names(pair: StreamedPair, kind: str) -> set[str]:
    return {ref.name for ref in pair.metastore.objects.refs(kind)}


def told(pair: StreamedPair, pod_uid: str) -> dict[str, Any]:
    found = pair.metastore.objects.get(Ref(TOKENS.kind, "default", pod_uid))
    return found.read() if found is not None else {}


@pytest.mark.parametrize("code", [403, 500, 0], ids=["forbidden", "a broken server", "no answer"])
async def test_what_an_api_server_does_not_give_holds_no_other_up_and_is_not_taken_for_gone(
    pair: StreamedPair, code: int
) -> None:
    api = Server()
    async with following(api, pair):
        await pair.connect()
        await until(lambda: pair.metastore.objects.in_step and names(pair, "Secret") == {"s"})
        assert names(pair, "Pod") == {"deleted", "old"}
        secret, tokens = pair.metastore.objects.get(SECRET), pair.metastore.objects.get(TOKENS)
        assert secret is not None
        assert tokens is not None
    api.broken = KubeError("get", code, "", "not today")
    api.drop("Pod", "deleted", "default")
    api.put(pod("new"))
    async with following(api, pair) as turn:
        await pair.connect()
        await until(lambda: pair.metastore.objects.in_step and names(pair, "Pod") == {"new", "old"})
        assert pair.metastore.objects.get(SECRET) == secret
        assert pair.metastore.objects.get(TOKENS) == tokens
        await until(lambda: "not today" in told(pair, "uid-new").get("problem", ""))

        api.broken = None
        api.drop("Secret", "s", "default")
        turn(60.0)
        await until(lambda: not names(pair, "Secret"))
        await until(lambda: told(pair, "uid-new").get("tokens"))
        await until(lambda: pair.metastore.objects.get(TOKENS) not in (tokens, None))


# -------------------- up --------------------


async def test_what_the_node_tells_is_at_the_hub_before_and_after_it_was_offline(pair: StreamedPair) -> None:
    pair.metastore.facts.put(NODE, {"volumesInUse": []})
    assert pair.sink.streams == 0
    await pair.connect()
    await pair.metastore.facts.wait_acked(NODE)
    assert pair.sink.streams == 1
    assert pair.sink.told == ["n1 {'volumesInUse': []}"]
    pair.cut()
    await until(lambda: pair.sink.streams == 0)
    pair.metastore.facts.put(NODE, {"volumesInUse": ["a"]})
    pair.metastore.facts.put(NODE, {"volumesInUse": ["a", "b"]})
    assert NODE not in pair.metastore.facts._acked
    await pair.connect()
    await pair.metastore.facts.wait_acked(NODE)
    assert pair.sink.told[1:] == ["n1 {'volumesInUse': ['a', 'b']}"]
    pair.metastore.facts.drop(NODE)
    await until(lambda: pair.sink.told[2:] == ["n1 dropped"])


async def test_beside_a_kubelet_a_node_tells_nothing_and_what_it_told_is_void(pair: StreamedPair) -> None:
    pair.metastore.facts.put(NODE, {})
    await pair.connect()
    await pair.metastore.facts.wait_acked(NODE)
    pair.cut()
    await until(lambda: pair.sink.streams == 0)
    pair.sink.told.clear()
    (observing,) = observe_streams()
    hub, agent = await pair.link()
    pair.sink.trouble = "disk is full"
    observing.up(agent)
    await until(lambda: pair.sink.told)
    assert pair.sink.told == ["n1 is observed"]
    pair.sink.trouble = ""
    await until(lambda: pair.sink.told == ["n1 is observed", "n1 is void"])
    assert pair.sink.facts == {}
    assert pair.sink.streams == 0
    observing.down()
    cut(hub, agent)


@pytest.mark.parametrize("kind", [Kind.FACTS, Kind.OBSERVE])
async def test_the_hub_notes_the_machine_before_a_stream_of_it_changes_what_the_node_told(
    pair: StreamedPair, kind: Kind
) -> None:
    """Else another machine under the same name could clear what the earlier one had in use."""
    pair.sink.facts[NODE] = Object(NODE, Stamp("", "1"), b"{}")
    known_at: list[Ref] = []

    async def note_machine(node: str, instance: str) -> None:
        known_at.extend(pair.sink.facts)

    pair.sink.note_machine = note_machine  # type: ignore[method-assign]  # it only looks
    hub, agent = await pair.link()
    agent.open(kind)
    await until(lambda: known_at)
    assert known_at == [NODE]
    cut(hub, agent)


async def test_a_hub_that_lost_its_facts_is_told_them_again_and_of_events_none(pair: StreamedPair) -> None:
    pair.metastore.facts.put(NODE, {"a": 1})
    pair.metastore.facts.put(Ref("Event", "ns", "e"), {"count": 1})
    await pair.connect()
    await until(lambda: len(pair.sink.told) == 2 and not pair.metastore.facts.waiting)
    pair.cut()
    pair.sink.facts.clear()
    await pair.connect()
    await until(lambda: len(pair.sink.told) == 3)
    assert pair.sink.told == ["n1 {'a': 1}", "e {'count': 1}", "n1 {'a': 1}"]


async def test_a_hub_whose_disk_is_full_acknowledges_nothing_and_tries_again(
    pair: StreamedPair, caplog: pytest.LogCaptureFixture
) -> None:
    pair.sink.trouble = "disk is full"
    pair.metastore.facts.put(NODE, {"a": 1})
    await pair.connect()
    said = "a fact of node n1 cannot be stored; it is tried again: disk is full"
    await until(lambda: pair.sink.failed > 3)
    assert caplog.messages.count(said) == 1
    assert NODE not in pair.metastore.facts._acked
    pair.sink.trouble = ""
    await pair.metastore.facts.wait_acked(NODE)


async def test_an_old_stream_stores_nothing_after_a_new_one(pair: StreamedPair) -> None:
    pair.sink.gate.clear()
    pair.metastore.facts.put(NODE, {"a": 1})
    await pair.connect()
    await until(lambda: pair.server._tasks)
    pair.cut()
    pair.metastore.facts.put(NODE, {"a": 2})
    await pair.connect()
    await settle()
    assert pair.sink.told == []
    pair.sink.gate.set()
    await pair.metastore.facts.wait_acked(NODE)
    assert pair.sink.told == ["n1 {'a': 1}", "n1 {'a': 2}"]


async def test_of_many_facts_that_are_refused_the_log_names_the_first(
    pair: StreamedPair, caplog: pytest.LogCaptureFixture
) -> None:
    pair.sink.refuses = {f"c{number}" for number in range(30)}
    for name in sorted(pair.sink.refuses):
        pair.metastore.facts.put(Ref("PersistentVolumeClaim", "ns", name), {"a": 1})
    pair.metastore.facts.put(Ref("PersistentVolumeClaim", "ns", "z"), {"a": 1})
    await pair.connect()
    await pair.metastore.facts.wait_acked(Ref("PersistentVolumeClaim", "ns", "z"))
    said = [message for message in caplog.messages if message.startswith("node n1 sent a fact that is not accepted")]
    assert len(said) == 10
    assert said[-1].endswith("; more of them are not logged")


# -------------------- peers that break the rules --------------------


async def test_a_node_has_so_many_streams_and_no_more(pair: StreamedPair) -> None:
    for _ in range(2):
        at_hub, at_edge = await pair.link()
        streams = [at_edge.open(kind) for kind in (Kind.SYNC, Kind.FACTS, Kind.SYNC, Kind.FACTS, Kind.SYNC)]
        await settle()
        assert [stream.status is None for stream in streams] == [True, True, True, True, False]
        assert streams[-1].status is not None
        assert streams[-1].status.message == "a sync stream is not served here: the node has 4 already"
        cut(at_hub, at_edge)
        await settle()
        assert not pair.server._open


async def test_an_agent_that_breaks_the_rules_is_told_so_and_its_stream_ends(
    pair: StreamedPair, caplog: pytest.LogCaptureFixture
) -> None:
    _, at_edge = await pair.link()
    for kind, message in ((Kind.SYNC, encode(Stored(7))), (Kind.FACTS, b"nonsense"), (Kind.SYNC, b"\x92\x09\x01")):
        stream = at_edge.open(kind, message)
        while await stream.receive() is not None:
            pass
        assert stream.status is not None
        assert stream.status.code == Code.INVALID_ARGUMENT
        assert stream.status.message.startswith("the rules of a sync were broken: ")
        stream.acknowledge(delivered=True)
    assert not [record for record in caplog.records if record.exc_info]


async def test_a_hub_that_breaks_the_rules_is_left_until_the_next_try(
    pair: StreamedPair, caplog: pytest.LogCaptureFixture
) -> None:
    async def lie(stream: Stream) -> None:
        await stream.send(encode(Put(1, "Pod", "ns", "a", "u", "1", b"{}")))
        await stream.receive()
        await asyncio.get_running_loop().create_future()

    pair.links = link_pair(Peer(lie), Peer(accepts=False))
    await settle()
    for stream in pair.streams:
        stream.up(pair.links[1])
    await until(lambda: any("SYNC stream has ended" in message for message in caplog.messages))
    assert pair.metastore.objects.refs("Pod") == []
    assert not [record for record in caplog.records if record.exc_info]


# -------------------- many --------------------


async def test_10_000_objects_come_once_and_a_reconnect_sends_what_changed(
    pair: StreamedPair, carried: Counter[str], record_property: Callable[[str, object], None]
) -> None:
    pair.source.put(*(item(f"p{number:05}") for number in range(10_000)))
    began = time.perf_counter()
    await pair.connect()
    await pair.in_step()
    record_property("first_s", time.perf_counter() - began)
    first = carried["bytes"]
    assert 7_000_000 < first < 8_500_000
    pair.cut()
    await settle()

    carried.clear()
    await pair.connect()
    await pair.in_step()
    assert carried["bytes"] < 10_000  # two digests of 2 KiB each, two hellos
    pair.cut()
    await settle()

    pair.source.put(item("p00077", 2))
    carried.clear()
    began = time.perf_counter()
    await pair.connect()
    await pair.in_step()
    record_property("again_s", time.perf_counter() - began)
    assert carried["bytes"] < 15_000


async def test_a_call_is_not_held_up_by_a_large_sync(pair: StreamedPair) -> None:
    pair.source.put(*(item(f"p{number:04}", size=20_000) for number in range(1_000)))
    await pair.connect()
    await until(lambda: len(pair.metastore.objects.stamps()) > 10)
    for _ in range(20):
        before = len(pair.metastore.objects.stamps())
        call = pair.links[1].open(Kind.CALL, b"ping")
        assert await call.receive() == b"ping"
        call.cancel()
        assert len(pair.metastore.objects.stamps()) - before < 30  # a handful of chunks went before it
    assert not pair.equal
    await pair.in_step()
