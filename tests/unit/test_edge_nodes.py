"""The nodes that a hub knows: coming, going, two of one name, and the calls to them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from cloud.calls.call import Calls
from cloud.calls.node_calls import NodeCalls
from cloud.detach.absences import Absences
from cloud.detach.fences import Fences
from cloud.detach.mounts import no_mounts
from cloud.nodes.edge_nodes import Nodes
from cloud.nodes.node_records import read_node
from cloud.nodes.unique_segments import UniqueKeys, UniqueSegments
from cloud.placement.decisions import CallInfo, Route
from cloud.records.records import RecordKind, Records
from cloud.records.sqlite import SqliteRecords
from common.csi.csi_pb2 import GetPluginInfoResponse
from common.csi.reports import GET_PLUGIN_INFO, MAX_REPORT_BYTES, NODE_GET_INFO, Answer, DriverReport
from common.errors import (
    CallError,
    HandshakeRefused,
    Overloaded,
    timestamp,
)
from common.messages import Hello, Reason
from common.observe.metrics import Metrics
from common.observe.version import introduce
from common.operator_orders import Fence
from common.pages.hub import NodeStatus
from common.session.limits import Limits
from common.session.link import Link, Stream
from common.status import Code, Status
from tests.kit import spoken_node
from tests.kit.linked import Peer, cut, link_pair
from tests.kit.memory_records import MemoryRecords
from tests.kit.placed_nodes import Told, told_by
from tests.kit.shown_peer import ShownPeer
from tests.kit.waiting import settle, until

DRIVER = "d.example"
HOST = "topology.d.example/host"
CREATE = "/csi.v1.Controller/CreateVolume"


MOST_REPLACEMENTS = 4
"""One machine replaces its young link so often in a row; at the next one the hub sees two machines."""


def hello(name: str = "n1", *, instance: str = "i-1", boot: int = 1) -> Hello:
    return introduce("edge", name, instance=instance, boot=boot)


def report(driver: str = DRIVER, node: str = "n1", *, version: bytes = b"1") -> DriverReport:
    info = GetPluginInfoResponse(name=driver, vendor_version=version.decode())
    return DriverReport(driver, node, {GET_PLUGIN_INFO: Answer(0, body=info.SerializeToString())})


RENEWED = "k-2"  # the key of a certificate of n1 that begins later than the others


class AsWanted:
    """A placement that sends each call to the node that its caller names."""

    def decide(
        self, driver: str, method: str, _request: bytes, *, named_node: str, mode: str
    ) -> tuple[CallInfo, Route]:
        return CallInfo(driver, method, named_node=named_node, mode=mode), Route(named_node, None)


class Known:
    """A hub's nodes, its records, and what was told of changes."""

    def __init__(self, directory: Path, *, max_nodes: int = 100, records: Records | None = None) -> None:
        self.directory = directory
        self.records = records or SqliteRecords(directory)
        self.changes: list[str] = []
        segments = UniqueSegments(self.records, UniqueKeys((HOST,)))
        self.nodes = Nodes(self.records, segments, Metrics(), max_nodes=max_nodes)
        self.nodes.subscribe(lambda driver, _node: self.changes.append(driver))
        counts = NodeCalls(self.nodes)
        self.calls = Calls(self.nodes, AsWanted(), counts, Metrics(), None)  # type: ignore[arg-type]  # all of it that these calls need
        self._ends: list[Link] = []
        self._closed = False

    async def links(
        self,
        serve: Callable[[Stream], Awaitable[None]] | None = None,
        *,
        key: str = "k-1",
        serial: int = 1,
        uris: tuple[str, ...] = (),
        **limits: int,
    ) -> tuple[Link, Link]:
        """A hub's link and the agent's, up; the first agent's address is 10.0.0.1:7, the next one's 10.0.0.2:7.

        The agent shows a certificate with a key and a serial number.
        """
        address, begins = f"10.0.0.{len(self._ends) // 2 + 1}:7", 2.0 if key == RENEWED else 1.0
        identity = ShownPeer(address, local=False, key=key, serial=serial, uris=uris, not_before=begins)
        at_hub, at_agent = link_pair(Peer(), Peer(serve, accepts=False), limits=Limits(**limits), identity=identity)
        await settle()
        self._ends += [at_hub, at_agent]
        return at_hub, at_agent

    async def connected(
        self, serve: Callable[[Stream], Awaitable[None]] | None = None, **limits: int
    ) -> tuple[Link, Link]:
        """Node n1, connected, with the driver."""
        links = await self.links(serve, **limits)
        self.nodes.connect(hello(), links[0])
        await self.nodes.report("n1", [report()])
        return links

    async def come(self, said: Hello, *, key: str = "k-1", serial: int = 1) -> Link:
        """An agent comes over a new link."""
        link, _ = await self.links(key=key, serial=serial)
        self.nodes.connect(said, link)
        return link

    async def refused(self, said: Hello, *, key: str = "k-1") -> HandshakeRefused:
        """How an agent is refused that comes over a new link."""
        with pytest.raises(HandshakeRefused) as refusal:
            await self.come(said, key=key)
        return refusal.value

    async def beside(
        self, serve: Callable[[Stream], Awaitable[None]] | None = None, *, serial: int = 2
    ) -> tuple[Link, Link]:
        """The agent of n1 shows its next certificate, which was issued to it, on a second link."""
        links = await self.links(serve, key=RENEWED, serial=serial)
        self.nodes.connect(replace(hello(), beside=True), links[0])
        return links

    async def restart(self) -> "Known":
        """The hub that starts after this one."""
        for name, node in self.nodes._nodes.items():
            if node.visit is not None:
                self.nodes.disconnect(name, node.visit.link)
        await self.close()
        return Known(self.directory)

    async def close(self) -> None:
        """End the links, and the records. Idempotent."""
        if self._closed:
            return
        self._closed = True
        cut(*(link for link in self._ends if not link.over))
        await settle()
        await self.records.close()

    @property
    def since(self) -> float:
        """Since when n1 is as it is, to the fraction of a second."""
        return self.nodes._nodes["n1"].stored.since

    def ask(self, node: str = "n1", *, timeout_s: float | None = None, driver: str = DRIVER) -> Told:
        """Send a call to a node. Raises the error if it is not sent."""
        told = told_by(self.calls, driver, CREATE, b"request", wanted=node, call_id="c-1", timeout_s=timeout_s)
        if told.error is not None:
            raise told.error
        return told

    def described(self, name: str = "n1") -> NodeStatus:
        return next(node for node in self.nodes.describe() if node.node == name)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[Known]:
    world = Known(tmp_path)
    yield world
    await world.close()


# -------------------- coming and going --------------------


async def test_the_end_of_a_link_that_was_never_a_nodes_changes_nothing(world: Known) -> None:
    await world.connected()
    other, _ = await world.links()
    world.nodes.disconnect("n1", other)
    world.nodes.disconnect("nobody", other)
    assert world.nodes.connected == {"n1"}


async def test_a_node_that_was_away_before_the_hubs_restart_keeps_the_time_it_left(world: Known) -> None:
    at_hub, _ = await world.connected()
    world.nodes.disconnect("n1", at_hub)
    since = world.since
    again = await world.restart()
    assert again.since == since
    await again.close()


async def test_a_node_that_does_not_come_back_after_its_hub_was_killed_is_written_as_away(
    world: Known, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloud.nodes.edge_nodes.LONGEST_REDIAL_S", 0.0)
    await world.connected()
    await world.close()  # as a kill: nobody has noted the end of the link
    restarted = Known(world.directory)
    await settle()
    await restarted.close()
    (stored,) = SqliteRecords(world.directory).take(RecordKind.NODE, read_node)
    assert (stored.connected, stored.since) == (False, restarted.since)


async def test_a_call_to_a_driver_that_the_node_lacks_names_both(world: Known) -> None:
    await world.connected()
    with pytest.raises(CallError, match=r"edge node n1 is connected but has no driver e\.example"):
        world.ask(driver="e.example")


# -------------------- one name, one machine --------------------


async def test_an_earlier_start_of_the_same_machine_is_refused(world: Known) -> None:
    first = await world.come(hello(boot=5))
    refusal = await world.refused(hello(boot=4))
    assert (refusal.reason, str(refusal)) == (Reason.STALE, "a later start of this machine is connected as n1")
    assert not first.over
    assert world.described().boot == 5


async def test_a_conflict_is_over_when_the_other_machine_comes_no_more_though_the_first_one_stays(
    world: Known, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.connected()
    await world.refused(hello(instance="i-2"))
    assert world.described().conflict
    monkeypatch.setattr("cloud.nodes.known_node._CONFLICT_S", 0.0)
    assert world.described().conflict == ""


async def test_a_machine_set_back_to_an_earlier_start_is_taken_once_it_is_gone(world: Known) -> None:
    world.nodes.disconnect("n1", await world.come(hello(boot=5)))
    await world.come(hello(boot=1))
    assert world.described().boot == 1


# -------------------- one identity, two machines --------------------


async def fight(world: Known) -> tuple[Link, HandshakeRefused]:
    """Two machines with a copied state directory replace each other until one of them is refused; who stays, and how
    the other one is told."""
    last = await world.come(hello())
    for _ in range(MOST_REPLACEMENTS):
        last = await world.come(hello())
    return last, await world.refused(hello())


async def test_the_copy_stays_refused_for_as_long_as_the_other_one_lives_however_late_it_comes(
    world: Known, monkeypatch: pytest.MonkeyPatch
) -> None:
    stays, _ = await fight(world)
    monkeypatch.setattr("cloud.nodes.edge_nodes.SOON_S", 0.0)
    assert (await world.refused(hello())).reason == Reason.CONFLICT
    world.nodes.disconnect("n1", stays)
    await world.come(hello())
    assert (world.described().connected, world.described().conflict) == (True, "")


async def test_a_later_start_ends_the_suspicion(world: Known) -> None:
    await fight(world)
    await world.come(hello(boot=2))
    await world.come(hello(boot=2))
    assert (world.described().boot, world.described().conflict) == (2, "")


@pytest.mark.parametrize("in_sight", [True, False], ids=["in the hub's sight", "after some time"])
async def test_a_machine_whose_links_end_comes_back_as_often_as_it_must(
    world: Known, monkeypatch: pytest.MonkeyPatch, *, in_sight: bool
) -> None:
    if not in_sight:
        monkeypatch.setattr("cloud.nodes.edge_nodes.SOON_S", 0.0)
    for _ in range(3 * MOST_REPLACEMENTS):
        link = await world.come(hello())
        if in_sight:
            world.nodes.disconnect("n1", link)
    await world.come(hello())
    assert world.described().conflict == ""


# -------------------- another key --------------------


@pytest.mark.parametrize("boot", [0, 1, 2, 2**60])
async def test_the_same_instance_with_another_key_and_no_later_certificate_hears_what_any_other_machine_hears(
    world: Known, boot: int
) -> None:
    first, _ = await world.connected()
    refusal = await world.refused(hello(boot=boot), key="stolen")
    other = await world.refused(hello(instance="i-2", boot=boot), key="stolen")
    assert (refusal.reason, refusal.why) == (other.reason, other.why)
    assert (refusal.reason, "i-1" in refusal.why) == (Reason.CONFLICT, False)
    assert refusal.shown.endswith(
        "instance i-1 at 10.0.0.2:7 is refused: its key is another one, and its certificate is no later one"
    )
    assert not first.over


async def test_the_same_instance_with_its_renewed_key_replaces_its_old_link(world: Known) -> None:
    first, _ = await world.connected()
    await world.come(hello(), key=RENEWED)
    assert (first.over, world.nodes.connected) == (True, {"n1"})


async def test_of_a_node_that_joined_a_later_generation_is_a_later_certificate(world: Known) -> None:
    live, _ = await world.links(key="k", uris=("csi-bridge:generation:2",))
    world.nodes.connect(hello(), live)
    earlier, _ = await world.links(key=RENEWED, uris=("csi-bridge:generation:1",))
    with pytest.raises(HandshakeRefused):
        world.nodes.connect(hello(), earlier)
    later, _ = await world.links(key="k-3", uris=("csi-bridge:generation:3",))
    world.nodes.connect(hello(), later)
    assert live.over


async def test_an_agent_that_is_away_may_come_with_any_key(world: Known) -> None:
    first, _ = await world.connected()
    world.nodes.disconnect("n1", first)
    await world.come(hello(boot=2), key="new files")
    assert world.described().connected


# -------------------- two links of one agent --------------------


async def answer(words: str, gate: asyncio.Event | None, stream: Stream) -> None:
    """Serve a call at the agent, once the gate is open."""
    if gate is not None:
        await gate.wait()
    stream.end(Status(Code.OK, words))


async def test_a_second_link_beside_the_first_takes_the_new_calls_and_those_under_way_finish(
    world: Known,
) -> None:
    gate = asyncio.Event()
    first, _ = await world.connected(partial(answer, "over the first", gate))
    since = world.since
    under_way = world.ask()
    await settle()
    second, _ = await world.beside(partial(answer, "over the second", None))
    later = world.ask()
    assert (await later.told)[0] == Status(Code.OK, "over the second")

    assert not first.over
    gate.set()
    assert (await under_way.told)[0] == Status(Code.OK, "over the first")
    under_way.released(True)
    await settle()
    assert first.over
    world.nodes.disconnect("n1", first)
    assert (world.described().connected, world.nodes.connected, world.since) == (True, {"n1"}, since)
    assert world.described().unreported == []
    world.nodes.disconnect("n1", second)
    assert (world.described().connected, world.nodes.connected) == (False, set())


async def test_if_the_second_link_ends_while_the_first_one_drains_the_node_is_away_and_its_calls_finish(
    world: Known,
) -> None:
    gate = asyncio.Event()
    first, _ = await world.connected(partial(answer, "", gate))
    under_way = world.ask()
    await settle()
    second, _ = await world.beside()
    world.nodes.disconnect("n1", second)
    with pytest.raises(CallError, match="is offline since"):
        world.ask()
    with pytest.raises(CallError, match="it is connected"):
        world.nodes.forget("n1")
    assert (await world.refused(hello(instance="i-2"))).reason == Reason.CONFLICT

    third = await world.come(hello(), key=RENEWED)
    assert not first.over
    gate.set()
    assert (await under_way.told)[0] == Status(Code.OK)
    world.nodes.disconnect("n1", first)
    world.nodes.disconnect("n1", third)


async def test_an_agent_has_two_links_at_most(world: Known, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    first, _ = await world.connected(never_ends)
    world.ask()
    await settle()
    second, _ = await world.beside(never_ends)
    world.ask()
    await settle()
    await world.beside(serial=3)
    assert (first.over, second.over) == (True, False)
    world.nodes.disconnect("n1", first)
    assert world.nodes.connected == {"n1"}
    assert {it.__dict__.get("peer") for it in caplog.records if "second link" in it.msg} == {"edge n1"}


@pytest.mark.parametrize(("serial", "boot"), [(1, 1), (2, 2)], ids=["the same certificate", "a later start"])
async def test_a_link_that_only_says_that_it_comes_beside_replaces_the_first(
    world: Known, serial: int, boot: int
) -> None:
    first, _ = await world.connected()
    await world.come(replace(hello(boot=boot), beside=True), serial=serial)
    assert (first.over, world.nodes.connected) == (True, {"n1"})


# -------------------- too many --------------------


async def test_beyond_the_limit_a_new_node_is_refused_and_those_that_are_known_are_not(tmp_path: Path) -> None:
    world = Known(tmp_path, max_nodes=2)
    await world.come(hello("n1"))
    world.nodes.disconnect("n2", await world.come(hello("n2")))
    refusal = await world.refused(hello("n3"))
    assert (refusal.reason, str(refusal)) == (
        Reason.FULL,
        (
            "the hub knows 2 nodes, which is its limit (--max-nodes), and n3 is a new one; raise it, or run csi-bridge "
            "forget NODE for nodes that will not come back"
        ),
    )
    await world.come(hello("n2"))
    assert {node.node for node in world.nodes.describe()} == {"n1", "n2"}
    await world.close()


async def test_a_node_that_is_forgotten_while_all_are_being_told_is_left_out(world: Known) -> None:
    await world.come(hello("n1"))
    world.nodes.disconnect("n2", await world.come(hello("n2")))
    told = world.nodes.describe()
    assert next(told).node == "n1"
    world.nodes.forget("n2")
    assert list(told) == []


# -------------------- reports --------------------


async def test_what_a_driver_has_answered_before_stays_known_while_it_does_not_answer(world: Known) -> None:
    await world.connected()
    whole = replace(report(), answers={**report().answers, NODE_GET_INFO: Answer(0, body=b"where it is")})
    await world.nodes.report("n1", [whole])
    world.changes.clear()
    await world.nodes.report("n1", [report()])
    assert (world.nodes.find_report(DRIVER, "n1"), world.changes) == (whole, [])
    await world.nodes.report("n1", [report(version=b"2")])
    assert world.nodes.find_report(DRIVER, "n1") == replace(
        whole, answers={**whole.answers, **report(version=b"2").answers}
    )


async def test_what_a_node_says_of_other_nodes_is_dropped(world: Known) -> None:
    await world.connected()
    await world.nodes.report("n1", [report(), report("e.example", node="n2")])
    assert world.described().drivers == [DRIVER]
    assert not world.nodes.with_driver("e.example")


async def test_what_a_node_says_more_and_more_of_is_bounded_and_what_was_known_stays(world: Known) -> None:
    """A driver stays known that is not mentioned any more, so new names could pile up for ever."""
    await world.connected()
    large = b"x" * (MAX_REPORT_BYTES // 2)
    await world.nodes.report("n1", [report("e.example", version=large)])
    with pytest.raises(ValueError, match=r"3 drivers .* and 262144 is the limit; .*csi-bridge forget n1 DRIVER"):
        await world.nodes.report("n1", [report("f.example", version=large)])
    assert world.described().drivers == [DRIVER, "e.example"]
    assert world.changes == [DRIVER, "e.example"]


async def test_a_driver_that_describes_itself_at_too_great_length_is_a_problem_of_its_node_until_it_is_brief(
    world: Known,
) -> None:
    await world.connected()
    await world.nodes.report("n1", [DriverReport(DRIVER, "n1", {}), report("e.example")])
    (problem,) = world.described().problems
    assert problem.startswith(f"driver {DRIVER} on edge node n1 describes itself in more than 65536 bytes, ")
    await world.nodes.report("n1", [DriverReport(f"{number}.example", "n1", {}) for number in range(50)])
    assert len(world.described().problems) == 20
    await world.nodes.report("n1", [report()])
    assert world.described().problems == []


async def test_a_driver_that_a_connected_agent_does_not_report_is_named_once_the_agent_has_asked_its_drivers(
    world: Known, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = await world.come(hello())
    await world.nodes.report("n1", [report(), report("e.example")])
    await world.nodes.report("n1", [report()])
    assert world.described().unreported == []
    monkeypatch.setattr("cloud.nodes.known_node._ASKED_S", 0.0)
    assert world.described().unreported == ["e.example"]
    world.nodes.disconnect("n1", link)
    assert world.described().unreported == []


# -------------------- the first report of a driver --------------------


class Kept(Known):
    """The same with records in memory, whose writes wait, with node n1, which is connected."""

    def __init__(self, directory: Path, records: MemoryRecords) -> None:
        super().__init__(directory, records=records)
        self.memory = records

    def tell(self, *reports: DriverReport) -> asyncio.Task[None]:
        """The agent of n1 reports."""
        return asyncio.create_task(self.nodes.report("n1", reports))  # type: ignore[arg-type]  # a coroutine

    def counted(self) -> list[str]:
        """The drivers of n1 that count, by each of the questions that placement asks."""
        return [
            it for it in self.nodes.drivers() if self.nodes.knows("n1", it) and it in self.nodes.of("n1").reported()
        ]

    def written(self) -> list[str]:
        """The drivers of n1 that another hub would find."""
        return [it.driver for node in self.memory.take(RecordKind.NODE, read_node) for it in node.reports]

    async def end_writes(self, *, full: bool = False) -> None:
        """End the writes of drivers' first reports, on a disk that is full or has room."""
        self.memory.room = 0 if full else None
        self.memory.end_writes()
        await settle()
        if full:
            await until(lambda: self.memory.held, "further attempt")


@pytest.fixture
async def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Kept]:
    monkeypatch.setattr("cloud.nodes.edge_nodes.RETRY_S", 0.0)
    kept = Kept(tmp_path, MemoryRecords())
    await kept.come(hello())
    kept.memory.held = []
    yield kept
    await kept.close()


async def test_a_driver_counts_once_its_first_report_is_written_and_its_later_reports_at_once(kept: Kept) -> None:
    first = kept.tell(spoken_node.report(DRIVER, "n1", segments={HOST: "h1"}))
    await settle()
    assert (kept.counted(), kept.described().drivers, kept.changes, first.done()) == ([], [], [], False)
    with pytest.raises(CallError, match="has no driver"):
        kept.ask()
    ((_, changes),) = kept.memory.held or ()
    assert [change.kind for change in changes] == [RecordKind.SEGMENTS, RecordKind.NODE]
    await kept.end_writes()
    assert (kept.counted(), kept.written(), kept.changes, first.done()) == ([DRIVER], [DRIVER], [DRIVER], True)
    await kept.nodes.report("n1", [report(version=b"2")])
    assert (kept.described().versions, kept.changes) == ({DRIVER: "2"}, [DRIVER] * 2)


async def test_a_full_disk_refuses_new_drivers_says_so_and_takes_them_as_they_were_told_last_once_it_has_room(
    kept: Kept,
) -> None:
    told = kept.tell(report())
    await settle()
    await kept.end_writes()
    for version in (b"1", b"2"):
        told = kept.tell(report(version=version), report("e.example", version=version))
        await settle()
        await kept.end_writes(full=True)
        await told
    assert (kept.counted(), kept.written()) == ([DRIVER], [DRIVER])
    assert kept.nodes.find_report(DRIVER, "n1") == report(version=b"2")
    (problem,) = kept.described().problems
    assert problem == (
        "the hub cannot store that edge node n1 has e.example, so the node gets no calls of it until the hub can: "
        "memory cannot be written: no space left on device"
    )
    await kept.end_writes()
    assert (kept.counted(), kept.written()) == ([DRIVER, "e.example"], [DRIVER, "e.example"])
    assert kept.nodes.find_report("e.example", "n1") == report("e.example", version=b"2")
    assert kept.described().problems == []


async def test_the_first_report_of_a_node_that_has_left_meanwhile_counts_and_that_of_a_forgotten_one_does_not(
    kept: Kept,
) -> None:
    for forgets in (False, True):
        told = kept.tell(report("e.example" if forgets else DRIVER))
        await settle()
        told.cancel()  # with its link
        node = kept.nodes._nodes["n1"]
        assert node.visit is not None
        kept.nodes.disconnect("n1", node.visit.link)
        if forgets:
            kept.nodes.forget("n1")
        await kept.end_writes(full=not forgets)
        await kept.end_writes()
        assert (kept.counted(), kept.nodes.is_connected("n1")) == ([] if forgets else [DRIVER], False)
        if not forgets:
            await kept.come(hello())
    assert kept.nodes.known_count == 0


async def test_a_node_that_is_forgotten_before_its_report_is_written_again_leaves_no_record(
    kept: Kept,
) -> None:
    told = kept.tell(report())
    await settle()
    node = kept.nodes._nodes["n1"]
    assert node.visit is not None
    assert node.write is not None
    kept.nodes.disconnect("n1", node.visit.link)
    node.write.add_done_callback(lambda _failed: kept.nodes.forget("n1"))
    kept.memory.room = 0
    kept.memory.end_writes()
    await told
    kept.memory.retry()
    await settle()
    kept.memory.end_writes()
    assert RecordKind.NODE not in {kind for kind, _ in kept.memory.kept}


# -------------------- forgetting --------------------


async def test_a_forgotten_node_is_no_candidate_any_more_also_after_a_restart(world: Known) -> None:
    at_hub, _ = await world.connected()
    world.nodes.disconnect("n1", at_hub)
    world.changes.clear()
    world.nodes.forget("n1")
    assert world.changes == [DRIVER]  # a watch that had two candidates may have one now
    for again in (world, restarted := await world.restart()):
        assert (again.nodes.known_count, list(again.nodes.with_driver(DRIVER))) == (0, [])
        with pytest.raises(CallError, match="edge node n1 has never connected to this hub; compare --nodeid"):
            again.ask()
    await restarted.close()


async def test_a_driver_that_the_agent_no_longer_reports_can_be_forgotten_also_after_a_restart(
    world: Known,
) -> None:
    await world.connected()
    await world.nodes.report("n1", [report("e.example")])
    world.nodes.forget("n1", DRIVER)
    for again in (world, restarted := await world.restart()):
        assert again.described().drivers == ["e.example"]
        assert not again.nodes.with_driver(DRIVER)
    await restarted.close()


@pytest.mark.parametrize(
    ("name", "driver", "why"),
    [
        ("n9", "", "edge node n9 is not forgotten: the hub knows no such node"),
        ("n9", DRIVER, "driver d.example of edge node n9 is not forgotten: the hub knows no such node"),
        ("n1", "x", "driver x of edge node n1 is not forgotten: it has never reported such a driver"),
    ],
)
async def test_what_was_never_known_is_not_forgotten(world: Known, name: str, driver: str, why: str) -> None:
    await world.connected()
    world.changes.clear()
    with pytest.raises(CallError, match="is not forgotten") as refusal:
        world.nodes.forget(name, driver)
    assert str(refusal.value) == why
    assert world.described().drivers == [DRIVER]
    assert world.changes == []


# -------------------- a restart of the hub --------------------


# -------------------- calls --------------------


async def test_a_call_reaches_the_agent_with_all_that_it_needs(world: Known) -> None:
    seen = []

    async def serve(stream: Stream) -> None:
        seen.append((stream.opened, await stream.receive()))
        await stream.send(b"one")
        stream.end(Status(Code.NOT_FOUND, "no"), b"two")

    await world.connected(serve)
    asked = world.ask(timeout_s=9.0)
    assert await asked.told == (Status(Code.NOT_FOUND, "no"), b"two")
    assert asked.messages == [b"one"]
    ((opened, request),) = seen
    assert (opened.subject, opened.method, opened.node, opened.call) == (DRIVER, CREATE, "n1", "c-1")
    assert 8_000 < opened.timeout_ms <= 8_550  # the hub gives up before its caller
    assert request == b"request"


async def never_ends(_stream: Stream) -> None:
    """An agent whose calls stay under way."""
    await asyncio.Event().wait()


@pytest.mark.parametrize("why", ["it drains", "it is not the leader any more"])
async def test_a_call_that_comes_while_the_hub_itself_ends_is_told_so(world: Known, why: str) -> None:
    at_hub, _ = await world.connected(never_ends)
    world.ask()
    await settle()
    if why == "it drains":
        at_hub.drain("the hub is shutting down")
    else:
        world.nodes.leads = lambda: False
    with pytest.raises(CallError, match="the hub is shutting down"):
        world.ask()


async def test_a_call_to_a_link_that_just_ended_is_a_call_to_a_node_away(world: Known) -> None:
    at_hub, _ = await world.connected()
    cut(at_hub)
    with pytest.raises(CallError, match="edge node n1 is offline since"):
        world.ask()


async def test_a_driver_with_many_calls_leaves_places_to_the_other_drivers_of_the_node(world: Known) -> None:
    await world.connected(never_ends, max_streams=8)
    await world.nodes.report("n1", [report(), report("other.example")])
    asked = [world.ask() for _ in range(6)]
    with pytest.raises(Overloaded, match=r"the driver \S+ on edge node n1 has 6 calls under way"):
        world.ask()
    world.ask(driver="other.example").cancel()
    asked[0].cancel()
    world.ask()


async def test_a_call_not_sent_names_the_end_of_its_own_link_also_when_the_node_is_back(
    world: Known, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1_000.0]
    monkeypatch.setattr("cloud.nodes.edge_nodes.time.time", lambda: now[0])
    at_hub, _ = await world.connected()
    asked = world.ask()
    now[0] = 2_000.0
    cut(at_hub)  # before the loop's next turn, in which the call would have left
    now[0] = 2_001.0
    world.nodes.disconnect("n1", at_hub)
    assert world.since == 2_000.0
    now[0] = 3_000.0
    await world.come(hello())
    with pytest.raises(CallError, match=f"edge node n1 is offline since {timestamp(2_000.0)}"):
        await asked.result()


async def test_a_call_not_sent_because_its_link_was_replaced_names_the_time_of_that(
    world: Known, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1_000.0]
    monkeypatch.setattr("cloud.nodes.edge_nodes.time.time", lambda: now[0])
    await world.connected()
    newer, _ = await world.links()
    asked = world.ask()
    now[0] = 2_000.0
    world.nodes.connect(hello(), newer)
    now[0] = 3_000.0
    world.nodes.disconnect("n1", newer)
    with pytest.raises(CallError, match=f"edge node n1 is offline since {timestamp(2_000.0)}"):
        await asked.result()


# -------------------- fences --------------------


async def test_a_fence_counts_in_the_next_hub_although_its_hub_had_just_begun(tmp_path: Path) -> None:
    def fences_of(known: Known) -> Fences:
        mounts = no_mounts()
        return Fences(known.records, Absences(known.nodes, mounts), mounts, joined=lambda _: "")

    records = MemoryRecords()
    first = Known(tmp_path, records=records)
    at_hub, _ = await first.links()
    first.nodes.connect(hello(), at_hub)  # the hub is killed: the records have the node as connected
    fences = fences_of(Known(tmp_path, records=records))
    await fences.fence(Fence(node="n1", why=""), "operator")
    assert fences.is_fenced("n1")
    assert fences_of(Known(tmp_path, records=records)).is_fenced("n1")
