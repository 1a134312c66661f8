"""A call on its way through the hub, without sockets: each side hears the truth, in whatever order things happen."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import pytest

from cloud.claims import requests
from cloud.claims.rules import RULES
from cloud.proxy.driver_settings import Mode
from common.csi import csi_pb2 as csi
from common.csi.reports import NODE_GET_INFO, Answer, DriverReport, encode_reports
from common.csi.volume_context import DIRECT_VOLUME
from common.messages import Kind
from common.observe.version import introduce
from common.session.link import Link, Stream
from common.status import Code, Origin, Status
from tests.kit.hub_in_memory import CREATE, DRIVER, Hub, report, running, with_driver
from tests.kit.linked import cut
from tests.kit.waiting import settle, until

DELETE = "/csi.v1.Controller/DeleteVolume"
PUBLISH = "/csi.v1.Controller/ControllerPublishVolume"
METADATA = "/csi.v1.SnapshotMetadata/GetMetadataAllocated"

REQUESTS = {
    CREATE: csi.CreateVolumeRequest(name="pvc-1").SerializeToString(),
    DELETE: csi.DeleteVolumeRequest(volume_id="vol-1").SerializeToString(),
    PUBLISH: csi.ControllerPublishVolumeRequest(volume_id="vol-1", node_id="n").SerializeToString(),
    METADATA: csi.GetMetadataAllocatedRequest(snapshot_id="snap-1").SerializeToString(),
}
UNPUBLISH = "/csi.v1.Controller/ControllerUnpublishVolume"
MADE = csi.CreateVolumeResponse(volume=csi.Volume(volume_id="vol-1")).SerializeToString()
BUG = Status(Code.UNAVAILABLE, "an internal error in the hub; its log has the details", Origin.HUB)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[Hub]:
    async with running(Hub(tmp_path)) as world:
        yield world


async def proxy(world: Hub, mode: str = Mode.PINNED, **limits: int) -> Link:
    """A proxy driver."""
    hello = introduce("driver", DRIVER, instance="p", placement=mode)
    return await world.come(hello, **limits)


def ask(link: Link, method: str = CREATE, request: bytes | None = None, *, timeout_s: float | None = None) -> Stream:
    """A proxy driver opens a call."""
    body = REQUESTS[method] if request is None else request
    return link.open(Kind.CALL, body, subject=DRIVER, method=method, call="c-1", timeout_s=timeout_s)


async def answer(stream: Stream) -> tuple[list[bytes], Status | None]:
    """All that the caller gets."""
    return [message async for message in stream], stream.status


async def forever(_stream: Stream) -> None:
    """A node that never answers."""
    await asyncio.Event().wait()


async def creates(stream: Stream) -> None:
    """A node that answers a create with a volume."""
    stream.end(Status(Code.OK), MADE)


def holder(world: Hub) -> list[str]:
    """The nodes that hold the name of the create."""
    name = "CreateVolume pvc-1"
    return world.placement.claims.book(DRIVER).holders(name)


def in_flight(world: Hub) -> tuple[int, int]:
    """The calls that the hub counts: on all links, and at n1."""
    return world.metrics.calls_in_flight, sum(world.hub._calls.counts.under_way(node) for node in ("n1", "n2"))


# -------------------- the ordinary call --------------------


@pytest.mark.parametrize("mode", [Mode.PINNED, Mode.LOCAL])
@pytest.mark.parametrize("method", [CREATE, DELETE, PUBLISH])
async def test_a_call_needs_no_task_in_the_hub(world: Hub, method: str, mode: str) -> None:
    await with_driver(world)
    link = await proxy(world, mode)
    loop, tasks = asyncio.get_running_loop(), list[asyncio.Task[object]]()

    def noted(_: object, work: Coroutine[Any, Any, Any], **more: Any) -> asyncio.Task[object]:
        tasks.append(asyncio.Task(work, loop=loop, **more))
        return tasks[-1]

    loop.set_task_factory(noted)  # type: ignore[arg-type]  # typeshed knows no task's type
    assert await answer(ask(link, method)) == ([], Status(Code.OK))
    loop.set_task_factory(None)
    assert [task.get_name() for task in tasks] == [f"stream 2 {method}"]  # the agent's: the hub's streams are even


async def test_a_detach_that_is_held_is_sent_to_nobody_and_is_no_failure_of_the_node_that_would_serve_it(
    world: Hub,
) -> None:
    await with_driver(world, asyncio.Event().wait)  # type: ignore[arg-type]  # it gets no call
    info = csi.NodeGetInfoResponse(node_id="i-n2").SerializeToString()
    away = DriverReport(DRIVER, "n2", {**report(node="n2").answers, NODE_GET_INFO: Answer(0, body=info)})
    (await world.edge("n2")).open(Kind.REPORT, encode_reports([away]))
    await settle()
    cut(world.links[-1])
    await settle()
    stream = (await proxy(world)).open(
        Kind.CALL,
        csi.ControllerUnpublishVolumeRequest(volume_id="vol-1", node_id="i-n2").SerializeToString(),
        subject=DRIVER,
        method=UNPUBLISH,
        node="n1",
        call="c-1",
    )
    _, status = await answer(stream)
    assert (status.code, status.message.partition(": ")[0]) == (
        Code.UNAVAILABLE,
        f"volume vol-1 of driver {DRIVER} is not detached from node n2",
    )
    assert world.hub._calls.counts.last_error("n1") is None
    assert in_flight(world) == (0, 0)


@pytest.mark.parametrize("method", [CREATE, METADATA])
async def test_the_caller_is_not_told_that_an_agent_sent_nothing_to_the_driver(world: Hub, method: str) -> None:
    async def refuses(stream: Stream) -> None:
        stream.end(Status(Code.UNAVAILABLE, "no driver", Origin.UNSENT))

    await with_driver(world, serve=refuses)
    assert await answer(ask(await proxy(world), method)) == ([], Status(Code.UNAVAILABLE, "no driver", Origin.EDGE))


async def test_a_node_that_sends_the_status_later_than_the_message_is_waited_for(world: Hub) -> None:
    gate = asyncio.Event()

    async def serve(stream: Stream) -> None:
        await stream.send(MADE)
        await gate.wait()
        stream.end(Status(Code.OK))

    await with_driver(world, serve)
    stream = ask(await proxy(world))
    await settle()
    assert stream.status is None
    gate.set()
    assert await answer(stream) == ([MADE], Status(Code.OK))


# -------------------- who leaves when --------------------


@pytest.mark.parametrize("how", ["cancels", "is cut off"])
async def test_a_caller_that_leaves_cancels_the_call_at_the_node(world: Hub, how: str) -> None:
    ended = asyncio.Event()

    async def serve(stream: Stream) -> None:
        try:
            await forever(stream)
        finally:
            ended.set()

    await with_driver(world, serve)
    stream = ask(await proxy(world))
    await settle()
    if how == "cancels":
        stream.cancel()
    else:
        cut(world.links[-1])
    await ended.wait()
    await settle()
    assert in_flight(world) == (0, 0)
    assert holder(world) == ["n1"]  # the volume may exist


async def kept(world: Hub) -> list[tuple[str, str]]:
    """The volumes that the hub knows, with their nodes."""
    return [(thing.id, node) for _, thing, node in world.placement.claims.existing()]


async def test_two_answers_are_released_in_the_order_of_their_acknowledgements(world: Hub) -> None:
    heard: list[str] = []

    async def serve(stream: Stream) -> None:
        request = await stream.receive() or b""
        stream.on_released = lambda _: heard.append(request.decode())
        stream.end(Status(Code.OK))

    await with_driver(world, serve)
    link = await proxy(world)
    first, second = (ask(link, "/csi.v1.Controller/Imagined", body) for body in (b"first", b"second"))
    for stream in (first, second):
        await answer(stream)
    second.acknowledge(delivered=True)
    await settle()
    assert heard == ["second"]
    first.acknowledge(delivered=True)
    await settle()
    assert heard == ["second", "first"]


async def test_a_node_that_is_lost_with_calls_under_way_fails_each_by_its_name(world: Hub) -> None:
    await with_driver(world, forever)
    link = await proxy(world)
    streams = [ask(link, method) for method in (CREATE, DELETE, METADATA)]
    await settle()
    cut(world.links[0])
    for stream in streams:
        messages, status = await answer(stream)
        assert (messages, status and status.code) == ([], Code.UNAVAILABLE)
        assert status.message.startswith("the link to edge node n1 was lost with the call under way")
    assert in_flight(world) == (0, 0)
    assert holder(world) == ["n1"]


async def test_a_deadline_that_passes_at_the_node_names_the_node(world: Hub) -> None:
    await with_driver(world, forever)
    link = await proxy(world)
    stream = ask(link, timeout_s=60.0)
    await settle()
    at_node = world.links[0]
    at_node.tick(at_node.loop.time() + 61.0)
    _, status = await answer(stream)
    assert status.code == Code.DEADLINE_EXCEEDED
    assert status.message.startswith(
        "driver d.example on edge node n1 did not answer before the caller's deadline (59 s)"
    )
    assert holder(world) == ["n1"]


# -------------------- the name is written first --------------------


def placed(name: str = "pvc-1") -> bytes:
    """A create that the hub places."""
    request = csi.CreateVolumeRequest(name=name)
    request.accessibility_requirements.requisite.add().segments["csi-bridge.io/node"] = "n1"
    return request.SerializeToString()


async def claiming(world: Hub) -> Stream:
    """A create that waits for its claim."""
    await with_driver(world, forever)
    link = await proxy(world, Mode.LOCAL)
    world.records.held = []
    stream = ask(link, CREATE, placed())
    await until(lambda: world.records.held)
    return stream


async def test_an_answer_that_comes_at_once_after_the_claim_is_passed_on_after_its_record(world: Hub) -> None:
    await with_driver(world, creates)
    stream = ask(await proxy(world, Mode.LOCAL), CREATE, placed())
    assert await answer(stream) == ([MADE], Status(Code.OK))
    assert await kept(world) == [("vol-1", "n1")]


async def test_a_caller_that_leaves_during_the_claim_reaches_no_node(world: Hub) -> None:
    stream = await claiming(world)
    stream.cancel()
    await settle()
    world.records.end_writes()
    await settle()
    assert world.links[0].open_streams == 1  # the agent's reports
    assert in_flight(world) == (0, 0)
    assert holder(world) == []


async def test_a_node_that_is_lost_during_the_claim_is_a_node_away_and_the_name_is_free(world: Hub) -> None:
    stream = await claiming(world)
    cut(world.links[0])
    world.records.end_writes()
    _, status = await answer(stream)
    assert status.message.startswith("edge node n1 is offline since ")
    await until(lambda: holder(world) == [])
    assert in_flight(world) == (0, 0)


async def test_a_caller_that_leaves_during_the_record_of_a_success_does_not_stop_it(world: Hub) -> None:
    await with_driver(world, creates)
    link = await proxy(world, Mode.LOCAL)
    world.records.held = []
    stream = ask(link, CREATE, placed())
    await until(lambda: world.records.held)
    world.records.end_writes()
    await until(lambda: world.records.held)
    stream.cancel()
    await settle()
    world.records.end_writes()
    await settle()
    assert await kept(world) == [("vol-1", "n1")]
    assert in_flight(world) == (0, 0)


# -------------------- pace --------------------


async def test_a_stream_of_answers_keeps_the_callers_pace_and_loses_nothing(world: Hub) -> None:
    sent: list[int] = []
    count = 2_000

    async def serve(stream: Stream) -> None:
        for number in range(count):
            await stream.send(number.to_bytes(1_000, "big"))
            sent.append(number)
        stream.end(Status(Code.OK))

    await with_driver(world, serve)
    link = await proxy(world, stream_window_bytes=4_096)
    stream = ask(link, METADATA)
    await settle()
    assert len(sent) < 300  # the hub's window for one stream, and a little of the caller's
    messages, status = await answer(stream)
    assert [int.from_bytes(message, "big") for message in messages] == list(range(count))
    assert status == Status(Code.OK)


# -------------------- bugs --------------------


def fail(*_what: object, **_more: object) -> None:
    raise ZeroDivisionError("a bug")


async def test_a_bug_on_the_way_back_ends_the_call_alone_and_its_success_is_kept(
    world: Hub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await with_driver(world, creates)
    link = await proxy(world)
    with monkeypatch.context() as patched:
        patched.setattr("cloud.calls.call.Call._record", fail)
        assert await answer(ask(link)) == ([], BUG)
    assert "a bug" in caplog.text
    assert not any(each.over for each in world.links)
    assert holder(world) == ["n1"]
    assert in_flight(world) == (0, 0)


async def test_a_bug_after_the_claim_ends_the_call_alone(world: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    await with_driver(world)
    link = await proxy(world, Mode.LOCAL)
    monkeypatch.setattr(world.placement.claims, "confirm", fail)
    assert await answer(ask(link, CREATE, placed())) == ([], BUG)
    assert not any(each.over for each in world.links)
    assert in_flight(world) == (0, 0)


async def test_methods_that_csi_lacks_leave_nothing_in_the_hub(world: Hub) -> None:
    await with_driver(world)
    link = await proxy(world, Mode.LOCAL)
    for number in range(100):
        stream = link.open(Kind.CALL, b"", subject=DRIVER, method=f"/csi.v1.Controller/Imagined{number}")
        assert await answer(stream) == ([], Status(Code.OK))
    assert requests._fields.cache_info().currsize <= len(RULES)


async def test_a_volume_of_a_class_that_asks_gets_the_attribute_and_its_driver_no_parameter(world: Hub) -> None:
    asked: list[bytes] = []

    async def create(stream: Stream) -> None:
        async for message in stream:
            asked.append(message)
            break
        stream.end(Status(Code.OK), MADE)

    await with_driver(world, serve=create)
    request = csi.CreateVolumeRequest(name="pvc-1", parameters={DIRECT_VOLUME: "true", "type": "ssd"})
    (message,), status = await answer(ask(await proxy(world), request=request.SerializeToString()))
    assert status == Status(Code.OK)
    assert dict(csi.CreateVolumeResponse.FromString(message).volume.volume_context) == {DIRECT_VOLUME: "true"}
    assert dict(csi.CreateVolumeRequest.FromString(asked[0]).parameters) == {"type": "ssd"}
