"""The hub between its links, without sockets: who may call what, what is told to whom, and what is too much."""

import asyncio
import json
import re
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from cloud.detach.mounts import no_mounts
from cloud.detach.sole_use import SoleUse
from cloud.parts.sync_part import SyncPart
from cloud.proxy.driver_settings import Mode
from cloud.records.sqlite import SqliteRecords
from cloud.sources.source import Source
from cloud.sync.closures import Closures
from cloud.sync.fact_table import FactTable
from cloud.sync.facts import FactSink
from cloud.sync.streams import SyncServer
from cloud.trust.audit import Event
from common.csi.csi_pb2 import CreateVolumeRequest
from common.csi.reports import MAX_REPORT_BYTES, DriverReport, decode_reports, encode_problems, encode_reports
from common.errors import TunnelClosed, order_refused, shutting_down, status_of
from common.messages import Hello, Kind, Ping, Reason, encode
from common.net.peer import Peer as Address
from common.net.settings import as_texts
from common.objects.objects import Object, Ref, Stamp, encode_body
from common.observe.version import SOFTWARE, introduce
from common.operator_orders import Deny, Done
from common.pages.hub import FailedCall, NodeStatus, OpenCall, Refusal
from common.session.limits import Limits
from common.session.link import Stream
from common.status import Code, Origin, Status
from common.store.database_writer import WriteFailed
from tests.kit.audit import Line
from tests.kit.hub_in_memory import (
    CREATE,
    DRIVER,
    NETWORK,
    SOCKET,
    Hub,
    called,
    report,
    running,
    with_driver,
)
from tests.kit.linked import Peer, cut, link_pair
from tests.kit.trusting import TRUSTING
from tests.kit.waiting import settle, until

GET_CAPACITY = "/csi.v1.Controller/GetCapacity"
STAGE = "/csi.v1.Node/NodeStageVolume"


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[Hub]:
    async with running(Hub(tmp_path)) as world:
        yield world


# -------------------- links --------------------


async def test_a_node_that_sends_more_than_its_hello_at_once_is_not_connected(world: Hub) -> None:
    hello = introduce("edge", "n1", instance="i-1", boot=1)
    at_hub, at_peer = link_pair(world.hub, Peer(accepts=False), hello, identity=NETWORK)
    at_hub.receive(at_peer.to_send() + encode(Ping(1)), 0.0)
    assert at_hub.over
    assert not world.nodes.is_connected("n1")
    reinstalled = await world.come(introduce("edge", "n1", instance="i-2", boot=1))
    assert not reinstalled.over
    assert world.nodes.is_connected("n1")


async def test_agents_get_the_mark_of_the_hubs_records_and_are_witnesses_of_their_loss(world: Hub) -> None:
    hello = introduce("edge", "n1", instance="i-1", boot=1)
    mark = (await world.come(hello)).peer.mark
    assert mark
    assert (await world.driver()).peer.mark == ""
    foreign = f"{'0' * 16} {2**33} "
    assert (await world.come(replace(hello, name="n2", mark=foreign))).peer.mark == ""
    assert "edge node n2 knows other records of this hub" in world.incarnation.loss


async def test_a_hub_that_has_lost_its_lease_answers_no_ping_and_sends_no_call_that_has_waited(world: Hub) -> None:
    leads = True
    world.nodes.leads = lambda: leads
    served: list[str] = []

    async def serve(stream: Stream) -> None:
        served.append(stream.opened.method if stream.opened else "")

    agent, pongs = await world.edge(serve=serve), list[int]()
    agent.ping(lambda: pongs.append(1))
    await settle()
    assert pongs == [1]
    agent.ping(lambda: pongs.append(2))
    world.links[-1].open(Kind.CALL, b"", subject=DRIVER, method=CREATE)  # before the term ends
    leads = False
    await settle()
    assert (pongs, served) == ([1], [])


async def test_a_hub_that_stood_still_renews_no_lease_of_an_agent_before_it_is_sure_that_it_leads(
    world: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its clocks stood still, too. The next hub counts from its own start until the agent has stopped."""
    asked: asyncio.Queue[asyncio.Future[None]] = asyncio.Queue()

    async def still_leads() -> None:
        answer = asyncio.get_running_loop().create_future()
        asked.put_nowait(answer)
        await answer

    monkeypatch.setattr(world.records, "still_leads", still_leads)
    monkeypatch.setattr("cloud.uds_hub._LEASE_CHECK_INTERVAL_S", 0.0)
    one, other, pongs = await world.edge("n1"), await world.edge("n2"), list[str]()
    one.ping(lambda: pongs.append("n1"))
    first = await asked.get()
    other.ping(lambda: pongs.append("n2"))  # after the question
    await settle()
    first.set_exception(WriteFailed("the records", "another hub holds the Lease"))
    second = await asked.get()
    assert pongs == []
    second.set_result(None)
    await settle()
    assert (sorted(pongs), asked.empty()) == (["n1", "n2"], True)
    one.goodbye(Reason.NOT_LEADING, "another hub leads by now")
    other.goodbye(Reason.STOPPED, "bye")
    unanswered = await asked.get()
    await world.hub.stop_lease_check()  # before the connection to the API server is closed
    assert unanswered.cancelled()


# -------------------- who may call what --------------------


@pytest.mark.parametrize("method", [STAGE, "/csi.v1.Node/NodePublishVolume", "/csi.v1.Node/Imagined"])
@pytest.mark.parametrize("role", ["driver", "operator"])
async def test_nobody_may_mount_on_a_node_through_the_hub(world: Hub, role: str, method: str) -> None:
    await with_driver(world)
    link = await (world.driver() if role == "driver" else world.operator())
    assert await called(link, method) == Status(
        Code.UNIMPLEMENTED,
        f"{method} is not served here: the hub forwards only methods of CSI, and of the Node service, which mounts "
        f"volumes, NodeGetCapabilities",
        Origin.HUB,
    )


async def test_a_proxy_driver_that_wants_a_placement_unknown_here_is_refused_by_its_name(world: Hub) -> None:
    await world.come(introduce("driver", DRIVER, instance="p", placement="mirrored"))
    (told,) = refused(world)
    assert (told.role, told.name, told.reason) == ("driver", DRIVER, "protocol-error")
    assert told.why == f"this hub knows the placements {', '.join(Mode)}, not 'mirrored'; a newer hub may know it"


@pytest.mark.parametrize(("first", "second"), [("shared", "local"), ("local", "shared")])
async def test_a_local_and_a_shared_proxy_driver_of_one_driver_exclude_each_other(
    world: Hub, first: str, second: str
) -> None:
    def proxy(placement: str, name: str = DRIVER) -> Hello:
        return introduce("driver", name, instance="p", placement=placement)

    for hello in (proxy(first), proxy(first), proxy("auto"), proxy("pinned"), proxy(second, "other.example")):
        await world.come(hello)
    assert refused(world) == []
    await world.come(proxy(second))
    (told,) = refused(world)
    assert (told.role, told.name, told.reason) == ("driver", DRIVER, "conflict")
    assert told.why == (
        f"a proxy driver of {DRIVER} with --placement={first} is connected, and this one has "
        f"--placement={second}: give both the same"
    )
    cut(world.links[0], world.links[1])
    await settle()
    await world.come(proxy(second))
    assert refused(world) == []


async def test_a_proxy_driver_that_says_nothing_of_placement_is_no_operator(world: Hub) -> None:
    """What an operator makes by hand is written down, and not what is pinned to a node."""
    await with_driver(world)
    request = CreateVolumeRequest(name="pvc-1").SerializeToString()
    for link, holder in ((await world.driver(), []), (await world.operator(), ["n1"])):
        stream = link.open(Kind.CALL, request, subject=DRIVER, method=CREATE, node="n1", call="c-1")
        assert await stream.receive() is None
        stream.acknowledge(delivered=True)
        await settle()
        assert world.placement.claims.book(DRIVER).holders("CreateVolume pvc-1") == holder


# -------------------- watches --------------------


async def test_watches_of_one_driver_have_a_limit_and_one_that_ends_makes_room(world: Hub) -> None:
    link = await world.driver()
    watches = [link.open(Kind.WATCH, subject=DRIVER) for _ in range(65)]
    assert await watches[64].receive() is None
    assert "64 others watch driver d.example already" in watches[64].status.message
    watches[0].cancel()
    await settle()
    await with_driver(world)
    assert await link.open(Kind.WATCH, subject=DRIVER).receive() is not None


async def test_a_report_too_large_for_a_proxy_driver_is_logged_and_the_next_one_is_told(
    world: Hub, caplog: pytest.LogCaptureFixture
) -> None:
    watch = (await world.driver(max_message_bytes=1_000)).open(Kind.WATCH, subject=DRIVER)
    reports = (await world.edge()).open(Kind.REPORT, encode_reports([report(version=b"x" * 2_000)]))
    await settle()
    assert "proxy driver d.example cannot get the report of its driver on node n1: a CSI message of" in caplog.text
    await reports.send(encode_reports([report(version=b"2")]))
    assert decode_reports(await watch.receive() or b"") == [report(version=b"2")]


# -------------------- reports --------------------


async def test_a_report_beyond_the_limit_is_ignored_and_what_was_known_stays(
    world: Hub, caplog: pytest.LogCaptureFixture
) -> None:
    reports = await with_driver(world)
    await reports.send(encode_reports([report(version=b"x" * MAX_REPORT_BYTES)]))
    await settle()
    assert world.nodes.find_report(DRIVER, "n1") == report()
    said = "node n1 sent an unreadable report: 349663 bytes, and 262144 is the limit; the node's earlier report stays"
    assert said in caplog.text
    await reports.send(encode_reports([report(version=b"2")]))
    await until(lambda: world.nodes.find_report(DRIVER, "n1") == report(version=b"2"))


async def test_a_large_report_is_read_off_the_loop_and_before_the_next_one(
    world: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[tuple[int, bool]] = []

    def decode(data: bytes) -> list[DriverReport]:
        read.append((len(data), threading.current_thread() is threading.main_thread()))
        return decode_reports(data)

    monkeypatch.setattr("cloud.calls.report_streams.decode_reports", decode)
    reports = (await world.edge()).open(Kind.REPORT)
    large, small = (encode_reports([report(version=version)]) for version in (b"1" * 100_000, b"2"))
    reports.queue(large)
    reports.queue(small)
    await until(lambda: len(read) == 2)
    await settle()
    assert read == [(len(large), False), (len(small), True)]
    assert world.nodes.find_report(DRIVER, "n1") == report(version=b"2")


async def test_a_report_that_cannot_be_taken_is_a_problem_of_its_node_alone_until_it_sends_a_better_one(
    world: Hub, caplog: pytest.LogCaptureFixture
) -> None:
    await with_driver(world)
    driver = await world.driver()
    reports = (await world.edge("n2")).open(Kind.REPORT, b"no JSON")
    reports.queue(b"no JSON")
    await until(lambda: told_of(world, "n2").problems)
    assert told_of(world, "n2").problems == [
        "the newest report of edge node n2 does not count: not a list of driver reports (JSONDecodeError)"
    ]
    assert caplog.text.count("node n2 sent an unreadable report") == 1
    assert world.incarnation.loss == ""
    assert await called(driver, CREATE) == Status(Code.OK)
    reports.queue(encode_reports([]))
    await until(lambda: not told_of(world, "n2").problems)


async def test_a_nodes_own_problems_stand_until_it_tells_others_or_leaves(world: Hub) -> None:
    reports = await with_driver(world)
    reports.queue(encode_problems(["the disk is full"]))
    await until(lambda: told_of(world, "n1").problems == ["edge node n1 says: the disk is full"])
    assert world.nodes.find_report(DRIVER, "n1") == report()
    reports.queue(encode_problems([]))
    await until(lambda: not told_of(world, "n1").problems)
    reports.queue(encode_problems(["the disk is full"]))
    await until(lambda: told_of(world, "n1").problems)
    cut(world.links[-1])
    await until(lambda: not told_of(world, "n1").problems)


def told_of(world: Hub, name: str) -> NodeStatus:
    return next(node for node in world.nodes.describe() if node.node == name)


# -------------------- the operator's orders --------------------


async def carry_out_deny(deny: Deny, by: str) -> Done:
    if deny.subject == "none":
        raise order_refused("none is not denied", "there is no such node")
    return Done(said=[f"{by} denies {deny.subject}"])


@pytest.mark.parametrize(
    ("name", "arguments", "code", "said"),
    [
        ("no-such", b"{}", Code.UNIMPLEMENTED, "the order 'no-such' is not served here: this hub does not know it"),
        ("deny", b"{}", Code.UNAVAILABLE, "the order deny is not carried out: the page has no subject"),
        ("deny", b"\xff", Code.UNAVAILABLE, "the order deny is not carried out: 'utf-8' codec"),
        ("deny", b'{"subject": "none"}', Code.UNAVAILABLE, "none is not denied: there is no such node"),
    ],
)
async def test_a_named_order_that_cannot_be_carried_out_is_refused_with_the_reason(
    world: Hub, name: str, arguments: bytes, code: Code, said: str
) -> None:
    world.orders.add(Deny, carry_out_deny)
    told, status = await world.order(name, arguments)
    assert (told, status.code, status.message[: len(said)]) == ([], code, said)


async def test_a_node_that_an_operator_gives_up_leaves_the_other_one_with_the_driver_and_a_watch_hears_of_it(
    world: Hub,
) -> None:
    await with_driver(world)
    (await world.edge("n2")).open(Kind.REPORT, encode_reports([report(node="n2")]))
    await settle()
    cut(world.links[-1])
    await settle()
    driver = await world.driver()
    watch = driver.open(Kind.WATCH, subject=DRIVER)
    assert "(n1; n2, which is offline)" in (await called(driver, CREATE)).message
    assert (await world.forget("n2")).ok
    assert await called(driver, CREATE) == Status(Code.OK)
    assert decode_reports(await watch.receive() or b"") == [report()]


@pytest.fixture
async def told(tmp_path: Path) -> AsyncIterator[tuple[Hub, FactSink]]:
    """A hub with facts: n1 has told of itself."""
    closures = Closures(objects := Source(), TRUSTING)
    records = SqliteRecords(tmp_path / "facts")
    table = FactTable(records, TRUSTING)
    facts = FactSink(closures, table, SoleUse(table, no_mounts()).claim)
    await facts.store("n1", Object(Ref("Node", "", "n1"), Stamp("", "1"), encode_body({"metadata": {}})))
    part = SyncPart(source=objects, sync=SyncServer(closures, facts), facts=table)
    async with running(Hub(tmp_path, part)) as world:
        yield world, facts
    await records.close()


async def test_a_node_of_which_no_more_is_known_than_what_it_told_can_be_given_up(
    told: tuple[Hub, FactSink],
) -> None:
    world, facts = told
    assert (await world.forget("n1")).ok
    assert facts.stamps("n1") == {}
    assert "n1" in (await world.forget("n1")).message


async def test_a_node_that_is_back_before_it_is_forgotten_keeps_what_it_tells(
    told: tuple[Hub, FactSink], monkeypatch: pytest.MonkeyPatch
) -> None:
    world, facts = told

    async def slow_disk(node: str, _: str) -> None:
        await world.edge(node)

    monkeypatch.setattr(world.placement, "forget", slow_disk)
    assert (await world.forget("n1")).ok
    assert facts.stamps("n1")


async def test_once_an_operator_trusts_the_hub_again_calls_are_routed_and_a_watch_hears_of_its_driver(
    world: Hub,
) -> None:
    world.incarnation._lose("records were lost")
    await with_driver(world)
    driver = await world.driver()
    watch = driver.open(Kind.WATCH, subject=DRIVER)
    assert (await called(driver, CREATE)).code == Code.UNAVAILABLE
    (told,), status = await world.order("trust")
    assert status == Status(Code.OK, origin=Origin.HUB)
    (settled,) = json.loads(told)["said"]
    assert re.fullmatch(r"settled: \S+Z records were lost", settled)
    assert await called(driver, CREATE) == Status(Code.OK)
    assert decode_reports(await watch.receive() or b"") == [report()]


async def test_a_trust_that_cannot_be_written_down_is_refused(world: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail() -> None:
        raise OSError("disk on fire")

    monkeypatch.setattr(world.incarnation, "trust", fail)
    told = await world.order("trust")
    why = "csi-bridge trust has no effect: the decision cannot be written to the disk: disk on fire"
    assert told == ([], Status(Code.UNAVAILABLE, why, Origin.HUB))


# -------------------- the pages --------------------


async def test_the_status_tells_the_hub_its_proxy_drivers_and_what_is_wrong(world: Hub) -> None:
    await with_driver(world)
    await world.edge("n2")
    await world.driver()
    world.incarnation._lose("records were lost")
    hub = world.pages.status()
    assert (hub.software, hub.known, hub.connected, hub.max_nodes) == (SOFTWARE, 2, 2, 3)
    assert (hub.has_source, hub.problems) == (False, [])
    assert [loss.endswith("Z records were lost") for loss in hub.lost] == [True]
    (driver,) = hub.drivers
    assert (driver.driver, driver.address, driver.placement) == (DRIVER, "10.0.0.1:7", "auto")
    assert driver.software == SOFTWARE
    assert hub.settings == as_texts(world.settings)


async def node_of(world: Hub) -> NodeStatus:
    return next(node for node in await world.pages.nodes() if node.node == "n1")


async def test_the_last_call_of_a_node_that_failed_is_remembered_with_its_words(world: Hub) -> None:
    async def serve(stream: Stream) -> None:
        stream.end(Status(Code.NOT_FOUND, "no such volume" + "x" * 5_000))

    await with_driver(world, serve)
    await called(await world.driver(), CREATE)
    failure = (await node_of(world)).last_error
    assert failure.at.timestamp() > 1_700_000_000
    assert failure == FailedCall(
        at=failure.at,
        driver=DRIVER,
        method=CREATE,
        code="NOT_FOUND",
        by="vendor",
        message=("no such volume" + "x" * 5_000)[:1_000],
    )


async def test_the_call_that_a_hung_driver_owes_an_answer_is_shown_also_when_its_caller_has_gone(world: Hub) -> None:
    gate = asyncio.Event()

    async def serve(stream: Stream) -> None:
        await gate.wait()
        stream.end(Status(Code.OK))

    await with_driver(world, serve)
    stream = (await world.driver()).open(Kind.CALL, b"", subject=DRIVER, method=CREATE, call="c-1")
    await settle()
    shown = await node_of(world)
    assert (shown.calls, shown.oldest_call) == (1, OpenCall(driver=DRIVER, method=CREATE, age_s=0))
    stream.cancel()
    await settle()
    shown = await node_of(world)
    assert (shown.calls, shown.oldest_call) == (0, OpenCall(driver=DRIVER, method=CREATE, age_s=0))


async def test_a_call_that_the_hub_could_not_send_is_a_nodes_failure_until_the_node_is_forgotten(
    world: Hub,
) -> None:
    await with_driver(world)
    cut(world.links[0])
    await settle()
    await called(await world.driver(), CREATE)
    failure = (await node_of(world)).last_error
    assert (failure.code, failure.by) == ("UNAVAILABLE", "hub")
    assert failure.message.startswith("edge node n1 is offline since ")
    await world.forget("n1")
    await world.edge()
    assert (await node_of(world)).last_error is None


async def test_of_calls_for_nodes_that_nobody_knows_nothing_is_remembered(world: Hub) -> None:
    operator = await world.operator()
    stream = operator.open(Kind.CALL, b"", subject=DRIVER, method=CREATE, node="made-up", call="c-1")
    assert await stream.receive() is None
    assert "edge node made-up has never connected" in stream.status.message
    assert world.calls.last_error("made-up") is None


def refused(world: Hub) -> list[Refusal]:
    return world.pages.status().refused


async def test_a_machine_that_was_refused_and_is_let_in_under_another_name_is_told_no_more(world: Hub) -> None:
    await world.edge("n1")
    await world.come(introduce("edge", "n1", instance="another", boot=1))
    await world.come(introduce("edge", "n1", instance="third", boot=1))
    await world.come(introduce("edge", "n3", instance="third", boot=2))
    assert [one.name for one in refused(world)] == []
    await world.come(introduce("edge", "n1", instance="another", boot=2))
    await world.come(introduce("edge", "n4", instance="fourth", boot=1))
    assert [one.name for one in refused(world)] == ["n1"]


async def test_of_those_who_were_refused_only_the_newest_are_remembered(world: Hub) -> None:
    for number in range(101):
        await world.come(introduce(f"r{number}{'x' * 200}", "who", instance="i"))
    told = refused(world)
    assert (len(told), told[0].role) == (100, ("r1" + "x" * 200)[:100])


async def test_the_audit_log_tells_admissions_refusals_and_what_operators_do(
    audit_lines: list[Line], world: Hub
) -> None:
    await with_driver(world)
    await world.come(introduce("edge", "", instance="i", boot=1))
    await called(await world.operator(), STAGE)
    await called(await world.driver(), CREATE)
    await world.order("trust")
    await world.forget("n9")
    assert [(event, who) for event, who, _, _ in audit_lines] == [
        (Event.ADMISSION, "n1"),
        (Event.REFUSAL, ""),
        (Event.ORDER, "operator"),
        (Event.ADMISSION, DRIVER),
        (Event.ORDER, "operator"),
        (Event.ORDER, "operator"),
    ]
    orders = [details for event, _, _, details in audit_lines if event is Event.ORDER]
    assert orders[0]["method"] == STAGE
    assert orders[1:] == [{"order": "trust"}, {"order": "forget", "node": "n9"}]
    assert {address for _, _, address, _ in audit_lines} == {NETWORK.address, SOCKET.address}


async def test_what_a_peer_says_of_itself_is_cut_in_the_log(world: Hub, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    said = introduce("edge", "n1", instance="i")
    object.__setattr__(said, "software", "s" * 60_000)
    await world.come(said)
    await world.come(introduce("r" * 60_000, "n" * 60_000, instance="i"))
    assert "edge n1 is connected from 10.0.0.1:7 (sss" in caplog.text
    assert "refused rrr" in caplog.text
    assert max(map(len, caplog.messages)) < 1_000


# -------------------- draining --------------------


async def test_a_call_whose_request_comes_while_the_hub_drains_is_told_so_and_not_that_its_node_is_away(
    world: Hub,
) -> None:
    await with_driver(world)
    stream = (await world.driver()).open(Kind.CALL, subject=DRIVER, method=CREATE, call="c-1")
    await settle()
    draining = asyncio.create_task(world.hub.drain())
    await settle()
    stream.queue(b"request")
    assert await stream.receive() is None
    assert stream.status == status_of(shutting_down("hub"), Origin.HUB)
    stream.acknowledge(delivered=True)
    draining.cancel()


async def test_a_hub_that_hands_over_waits_for_no_call_and_keeps_the_create_in_doubt(world: Hub) -> None:
    async def serve(_stream: Stream) -> None:
        await asyncio.Event().wait()

    await with_driver(world, serve)
    proxy = await world.come(introduce("driver", DRIVER, instance="p", placement="local"))
    stream = proxy.open(Kind.CALL, CreateVolumeRequest(name="pvc-1").SerializeToString(), subject=DRIVER, method=CREATE)
    await settle()
    await world.hub.hand_over()
    with pytest.raises(TunnelClosed, match="another one may lead") as lost:
        await stream.receive()
    assert lost.value.sent  # so the sidecar hears UNAVAILABLE
    node, caller = world.links
    assert (node.over, caller.over) == (False, True)  # the Lease is released first
    world.hub.say_goodbye()
    assert node.over
    book = world.placement.claims.book(DRIVER)
    assert book.holders("CreateVolume pvc-1") == ["n1"]


# -------------------- certificates --------------------

N1 = Address("10.0.0.1:7", local=False, serial=1, not_after=2_000_000_000.0)


async def test_the_link_of_a_certificate_that_has_ended_ends_and_others_stay(
    audit_lines: list[Line], world: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = Address("10.0.0.2:7", local=False, serial=2, not_after=N1.not_after + 1)
    first = await world.come(introduce("edge", "n1", instance="i-1", boot=1), N1)
    second = await world.come(introduce("edge", "n2", instance="i-2", boot=1), later)
    world.hub.end_expired()
    monkeypatch.setattr(world.trust, "is_past", lambda moment: moment <= N1.not_after)
    world.hub.end_expired()
    told = "the certificate of edge n1 has ended; connect with a renewed one"
    assert await first.wait_closed() == ("expired", told)
    assert (second.over, world.nodes.is_connected("n1"), world.nodes.is_connected("n2")) == (False, False, True)
    assert (Event.EXPIRY, "n1", N1.address, {"role": "edge", "serial": "1", "why": told}) in audit_lines


async def test_a_certificate_that_ends_between_handshake_and_hello_is_refused(
    world: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world.trust, "is_past", lambda moment: moment <= N1.not_after)
    link = await world.come(introduce("edge", "n1", instance="i"), N1)
    assert (await link.wait_closed())[0] == "expired"
    assert world.nodes.known_count == 0


async def test_why_a_node_is_denied_is_told_to_operators_alone(world: Hub) -> None:
    assert (await world.order("deny", subject="n1", why="stolen"))[1].ok
    link = await world.come(introduce("edge", "n1", instance="i", boot=1), N1)
    assert await link.wait_closed() == ("denied", "the hub denies edge n1: ask its operator")
    (told,) = refused(world)
    assert told.why.endswith(": stolen")


async def test_a_denial_of_a_node_says_if_the_hub_does_not_know_it(world: Hub) -> None:
    (said,), status = await world.order("deny", subject="n7", why="")
    assert status.ok
    assert json.loads(said)["said"] == [
        "edge node n7 is denied; csi-bridge allow undoes it",
        "the hub knows no edge node n7 yet",
    ]
    (shown,) = await world.pages.denials()
    assert (shown.kind, shown.subject, shown.why) == ("node", "n7", "")


async def test_allow_for_a_node_that_is_not_denied_is_refused(world: Hub) -> None:
    said, status = await world.order("allow", subject="n7")
    assert (said, status.message) == ([], "n7 is not allowed: it is not denied")


async def test_a_peer_that_comes_while_the_hub_hands_over_hears_why_it_is_refused(world: Hub) -> None:
    await world.hub.hand_over()
    peer = Peer(accepts=False)
    link_pair(world.hub, peer, introduce("edge", "n1", instance="i", boot=1), limits=Limits(), identity=NETWORK)
    await settle()
    assert peer.ends == [(Reason.DRAINING, "the hub is shutting down")]
