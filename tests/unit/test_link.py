"""A link puts a session on the event loop: one task for each stream that the peer opened, and who cancels it.

Two links in memory, without a network; what a session does by itself is in test_session_….
"""

import asyncio

import pytest

from common.errors import MessageTooLarge, TunnelClosed
from common.messages import Kind, Ping, encode
from common.session.link import Link, Stream
from common.session.receiver import NOBODY
from common.status import Code, Status
from tests.kit.linked import Peer, cut, link_pair, local_pair
from tests.kit.waiting import settle


@pytest.fixture(autouse=True, params=[link_pair, local_pair])
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test runs over a network and over the way inside one process."""
    monkeypatch.setattr(f"{__name__}.link_pair", request.param)


class Work:
    """Serves one stream for as long as a test wants, and notes how it ended."""

    def __init__(self, *, detached: bool) -> None:
        self.end = ""
        self.gate = asyncio.Event()
        self.released: list[bool] = []
        self._detached = detached

    async def serve(self, stream: Stream) -> None:
        if self._detached:
            stream.detach()
        stream.on_released = self.released.append
        try:
            await self.gate.wait()
            self.end = "finished"
        except asyncio.CancelledError:
            self.end = "cancelled"
            raise
        stream.end(Status(Code.OK), b"done")


async def linked(work: Work) -> tuple[Link, Link]:
    """The link of whoever opens streams, and of whoever serves them."""
    serving, opening = link_pair(Peer(work.serve), Peer(accepts=False))
    await settle()
    return opening, serving


@pytest.mark.parametrize("detached", [False, True])
@pytest.mark.parametrize("how", ["cancel", "cut"])
async def test_a_task_whose_caller_left_is_cancelled_unless_it_is_detached(how: str, detached: bool) -> None:
    work = Work(detached=detached)
    opening, serving = await linked(work)
    stream = opening.open(Kind.ORDER)
    await settle()
    if how == "cancel":
        stream.cancel()
    else:
        cut(opening, serving)
    await settle()
    assert work.end == ("" if detached else "cancelled")
    if detached:
        work.gate.set()
        await settle()
        assert work.end == "finished"
        assert work.released == [False]


async def test_a_detached_task_answers_a_caller_who_waits() -> None:
    work = Work(detached=True)
    opening, _ = await linked(work)
    stream = opening.open(Kind.ORDER)
    await settle()
    work.gate.set()
    assert await stream.receive() == b"done"
    assert await stream.receive() is None
    stream.acknowledge(delivered=True)
    opening.writer.flush_soon()  # else it may wait for the next message
    await settle()
    assert work.released == [True]


@pytest.mark.parametrize("how", ["cancel", "cut"])
async def test_a_detached_task_that_waits_for_room_goes_on_when_the_caller_leaves(how: str) -> None:
    """Else it would wait for ever, with its answer."""
    sent: list[int] = []

    async def serve(stream: Stream) -> None:
        stream.detach()
        for number in range(4):
            await stream.send(bytes(1_048_576))
            sent.append(number)

    serving, opening = link_pair(Peer(serve), Peer(accepts=False))
    await settle()
    stream = opening.open(Kind.ORDER)
    await settle()
    assert len(sent) < 4
    if how == "cancel":
        stream.cancel()
    else:
        cut(opening, serving)
    await settle()
    assert len(sent) == 4


async def test_a_stream_lost_with_its_link_has_no_status() -> None:
    opening, serving = await linked(Work(detached=False))
    stream = opening.open(Kind.ORDER)
    await settle()
    cut(opening, serving)
    await settle()
    assert stream.status is None
    with pytest.raises(TunnelClosed):
        await stream.receive()


async def test_a_handler_whose_own_link_fails_is_a_fault_with_a_traceback_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def serve(_stream: Stream) -> None:
        raise TunnelClosed(sent=True, why="another link was lost")

    _, opening = link_pair(Peer(serve), Peer(accepts=False))
    await settle()
    stream = opening.open(Kind.ORDER)
    assert await stream.receive() is None
    assert "its log has the details" in stream.status.message
    assert any(record.exc_info for record in caplog.records)


class Faulty(Peer):
    """A handler with a bug in one of its methods. Its streams have no end."""

    def __init__(self, fails_in: str) -> None:
        super().__init__(lambda _stream: asyncio.Event().wait())
        self._fails_in = fails_in

    def greeted(self, link: Link) -> None:
        self._fail("greeted")
        super().greeted(link)

    def draining(self, link: Link, message: str) -> None:
        self._fail("draining")
        super().draining(link, message)

    def closed(self, link: Link, reason: str, message: str) -> None:
        super().closed(link, reason, message)
        self._fail("closed")

    def _fail(self, where: str) -> None:
        if where == self._fails_in:
            raise RuntimeError(f"a bug in {where}")


@pytest.mark.parametrize("where", ["greeted", "draining"])
async def test_a_link_whose_handler_fails_ends_at_both_ends(where: str, caplog: pytest.LogCaptureFixture) -> None:
    handler, peer = Faulty(where), Peer(accepts=False)
    serving, opening = link_pair(handler, peer)
    await settle()
    if where == "draining":
        opening.open(Kind.ORDER)  # which keeps the link up
        opening.drain("the peer stops")
    await settle()
    assert serving.over
    assert opening.over
    assert handler.ends == peer.ends == [("failed", "this end of the link failed; its log has the details")]
    assert [record.message for record in caplog.records if record.exc_info] != []


async def test_a_stream_that_was_opened_with_the_event_whose_handler_failed_is_not_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(delivered: bool) -> None:
        raise RuntimeError("a bug in on_released")

    async def serve(stream: Stream) -> None:
        stream.on_released = fail
        if stream.id == first.id:
            stream.end(Status(Code.OK))
        else:
            await asyncio.Event().wait()

    serving, opening = link_pair(Peer(serve), Peer(accepts=False))
    await settle()
    first = opening.open(Kind.ORDER)
    assert await first.receive() is None
    opening.acknowledge(first.id, delivered=True)
    opening.start(NOBODY, Kind.ORDER)
    serving.receive(opening.to_send(), 0.0)  # one message
    await settle()
    assert serving.over
    assert [task for task in asyncio.all_tasks() if task.get_name().startswith("stream")] == []
    assert [str(record.exc_info[1]) for record in caplog.records if record.exc_info] == ["a bug in on_released"]


async def test_a_peer_that_breaks_the_rules_in_the_message_of_its_hello_is_gone_without_a_greeting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    handler = Peer()
    serving, opening = link_pair(handler, Peer(accepts=False))
    serving.receive(opening.to_send() + encode(Ping(1)), 0.0)
    ((reason, _),) = handler.ends
    assert reason == "protocol-error"
    assert not serving.greeted
    assert serving.over
    assert caplog.records == []


async def test_a_stream_whose_last_message_the_peer_does_not_take_has_not_ended() -> None:
    seen: list[object] = []

    async def serve(stream: Stream) -> None:
        with pytest.raises(MessageTooLarge):
            stream.end(Status(Code.OK), bytes(5 * 1_048_576))
        seen.append(stream.status)

    _, opening = link_pair(Peer(serve), Peer(accepts=False))
    await settle()
    stream = opening.open(Kind.ORDER)
    await settle()
    assert seen == [None]
    assert stream.status is not None
