"""A link puts a session on the event loop: one task for each stream that the peer opened, and who cancels it.

Two links in memory, without a network; what a session does by itself is in test_session_….
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from common.errors import TunnelClosed
from common.messages import Kind
from common.status import Code, Status
from tests.support.linked import Peer, cut, link_pair, settle

if TYPE_CHECKING:
    from common.link import Link, Stream


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


@pytest.mark.parametrize("how", ["cancel", "cut"])
async def test_a_task_whose_caller_left_is_cancelled(how: str) -> None:
    work = Work(detached=False)
    opening, serving = await linked(work)
    stream = opening.open(Kind.CALL)
    await settle()
    if how == "cancel":
        stream.cancel()
    else:
        cut(opening, serving)
    await settle()
    assert work.end == "cancelled"


@pytest.mark.parametrize("how", ["cancel", "cut"])
async def test_a_detached_task_whose_caller_left_goes_on_to_its_end(how: str) -> None:
    work = Work(detached=True)
    opening, serving = await linked(work)
    stream = opening.open(Kind.CALL)
    await settle()
    if how == "cancel":
        stream.cancel()
    else:
        cut(opening, serving)
    await settle()
    assert work.end == ""
    work.gate.set()
    await settle()
    assert work.end == "finished"
    assert work.released == [False]


async def test_a_detached_task_answers_a_caller_who_waits() -> None:
    work = Work(detached=True)
    opening, _ = await linked(work)
    stream = opening.open(Kind.CALL)
    await settle()
    work.gate.set()
    assert await stream.receive() == b"done"
    assert await stream.receive() is None
    stream.acknowledge(delivered=True)
    await settle()
    assert work.released == [True]


async def test_a_stream_is_exhausted_when_its_status_is_there_and_its_last_message_taken() -> None:
    work = Work(detached=False)
    opening, _ = await linked(work)
    stream = opening.open(Kind.CALL)
    work.gate.set()
    await settle()
    before = stream.exhausted
    await stream.receive()
    assert (before, stream.exhausted) == (False, True)
    assert await stream.receive() is None


async def test_a_stream_lost_with_its_link_is_not_exhausted() -> None:
    opening, serving = await linked(Work(detached=False))
    stream = opening.open(Kind.CALL)
    await settle()
    cut(opening, serving)
    await settle()
    assert not stream.exhausted
    with pytest.raises(TunnelClosed):
        await stream.receive()


async def test_a_handler_whose_own_link_fails_is_a_fault_with_a_traceback_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def serve(_stream: Stream) -> None:
        raise TunnelClosed(sent=True, why="another link was lost")

    _, opening = link_pair(Peer(serve), Peer(accepts=False))
    await settle()
    stream = opening.open(Kind.CALL)
    assert await stream.receive() is None
    assert stream.status is not None
    assert "its log has the details" in stream.status.message
    assert any(record.exc_info for record in caplog.records)
