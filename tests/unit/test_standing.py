"""A standing stream is open whenever the link is. The link is a fake one."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from common.errors import Overloaded, TunnelClosed
from common.links.backoff import Backoff
from common.links.standing import Standing
from common.messages import Kind, Priority
from common.status import Code, Status
from tests.kit.waiting import settle, until


class FakeStream:
    """A stream that ends when a test says so."""

    def __init__(self) -> None:
        self.status: Status | None = None
        self.cancelled = False
        self.over: asyncio.Future[Status] = asyncio.get_running_loop().create_future()

    def cancel(self) -> None:
        self.cancelled = True


class FakeLink:
    """A link that opens fake streams, or refuses to."""

    def __init__(self) -> None:
        self.streams: list[FakeStream] = []
        self.asked: list[dict[str, Any]] = []
        self.refusal: Exception | None = None

    def open(self, kind: Kind, **given: Any) -> FakeStream:
        self.asked.append({"kind": kind, **given})
        if self.refusal is not None:
            raise self.refusal
        self.streams.append(FakeStream())
        return self.streams[-1]


async def use(stream: Any) -> None:
    stream.status = await stream.over


@pytest.fixture
def link() -> Any:
    return FakeLink()


@pytest.fixture
async def standing() -> AsyncIterator[Standing]:
    at_once = Backoff(first_s=0.0, most_s=30.0)
    standing = Standing(Kind.WATCH, use, subject="d.example", node="n1", reopen=at_once)
    yield standing
    standing.down()
    await settle()


async def test_it_is_opened_when_the_link_is_up_before_all_calls(standing: Standing, link: Any) -> None:
    standing.up(link)
    await settle()
    wanted = {"kind": Kind.WATCH, "priority": Priority.CONTROL, "subject": "d.example", "node": "n1"}
    assert link.asked == [wanted]
    assert not link.streams[0].cancelled


async def test_when_the_other_side_ends_it_that_is_logged_and_it_is_opened_again(
    standing: Standing, link: Any, caplog: pytest.LogCaptureFixture
) -> None:
    standing.up(link)
    await settle()
    link.streams[0].over.set_result(Status(Code.UNAVAILABLE, "a fault in the hub"))
    await settle()
    assert len(link.streams) == 2
    assert link.streams[0].cancelled
    (said,) = caplog.messages
    assert "WATCH" in said
    assert "a fault in the hub" in said


async def test_the_same_words_again_and_again_are_logged_once(
    standing: Standing, link: Any, caplog: pytest.LogCaptureFixture
) -> None:
    standing.up(link)
    for words in ("busy", "busy", "broken", "busy"):
        await settle()
        link.streams[-1].over.set_result(Status(Code.UNAVAILABLE, words))
    await settle()
    assert [said.rpartition(": ")[2] for said in caplog.messages] == ["busy", "broken", "busy"]


async def test_a_link_that_takes_no_more_streams_is_asked_again(standing: Standing, link: Any) -> None:
    link.refusal = Overloaded("link", 1, "--max-calls")
    standing.up(link)
    await until(lambda: len(link.asked) > 1)
    link.refusal = None
    await settle()
    assert len(link.streams) == 1


async def test_a_fault_of_its_user_is_logged_and_it_is_opened_again(
    standing: Standing, link: Any, caplog: pytest.LogCaptureFixture
) -> None:
    standing.up(link)
    await settle()
    link.streams[0].over.set_exception(KeyError("x"))
    await settle()
    assert len(link.streams) == 2
    assert "a bug in CSI Bridge ended the WATCH stream" in caplog.messages


async def test_when_the_link_goes_it_is_left_for_the_next_link(
    standing: Standing, link: Any, caplog: pytest.LogCaptureFixture
) -> None:
    standing.up(link)
    await settle()
    link.streams[0].over.set_exception(TunnelClosed(sent=True, why="cut"))
    await settle()
    assert len(link.streams) == 1
    assert not caplog.messages
    standing.up(link)
    await settle()
    assert len(link.streams) == 2


async def test_going_down_ends_the_stream_and_opens_no_other(standing: Standing, link: Any) -> None:
    standing.up(link)
    await settle()
    standing.down()
    await settle()
    assert link.streams[0].cancelled
    assert len(link.streams) == 1
