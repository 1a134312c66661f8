"""An uplink moves to a new link and loses no call: running calls end on the former link, new ones use the new one."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, Any

from common.backoff import Backoff
from common.endpoint import hub_endpoint
from common.errors import HandshakeRefused
from common.limits import Limits
from common.listener import Listener
from common.messages import Kind, Reason
from common.status import Code, Origin, Status
from common.uplink import Uplink
from common.version import introduce
from tests.kit.linked import Peer
from tests.kit.waiting import settle, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import pytest

    from common.link import Link, Stream

LIMITS = Limits(hello_timeout_s=30.0)


class Hub(Peer):
    """A hub's listener, which drains a former link as soon as it has accepted the one beside it."""

    origin = Origin.HUB

    def __init__(self) -> None:
        super().__init__()
        self.links: list[Link] = []
        self.beside: list[bool] = []
        self.refuses = 0
        self.is_draining = True

    def greeted(self, link: Link) -> None:
        self.beside.append(link.peer.beside)
        if self.refuses:
            self.refuses -= 1
            link.refuse(HandshakeRefused(Reason.CONFLICT, "not now"))
            return
        former = self.links[-1] if self.links else None
        self.links.append(link)
        link.accept(1)
        if former is not None and link.peer.beside and self.is_draining:
            former.drain("n1 has a newer link")


class Agent(Peer):
    """The other end: serves a call when the test lets it."""

    def __init__(self) -> None:
        super().__init__(self._end, accepts=False)
        self.gate = asyncio.Event()
        self.links: list[Link] = []
        self.ended: list[Link] = []

    def greeted(self, link: Link) -> None:
        self.links.append(link)

    async def _end(self, stream: Stream) -> None:
        assert stream.opened is not None
        if stream.opened.method == "slow":
            await self.gate.wait()
        stream.end(Status(Code.OK))

    def closed(self, link: Link, reason: str, message: str) -> None:
        self.ended.append(link)


class MovedUplink:
    def __init__(self, listener: Listener, hub: Hub, **how: Any) -> None:
        self.hub, self.agent = hub, Agent()
        hello = introduce("edge", "n1", instance="i", boot=1)
        endpoint = hub_endpoint(f"ws://{listener.address}")
        self.uplink = Uplink(endpoint, lambda: hello, self.agent, limits=LIMITS, **how)

    async def links(self, number: int) -> Link:
        await until(lambda: len(self.agent.links) >= number)
        return self.agent.links[-1]

    async def ends(self, number: int) -> None:
        """Wait until so many links have ended at both sides."""
        await until(lambda: len(self.agent.ended) >= number and len(self.hub.ends) >= number)


@contextlib.asynccontextmanager
async def uplink(**how: Any) -> AsyncIterator[MovedUplink]:
    hub = Hub()
    listener = Listener(
        socket.create_server(("127.0.0.1", 0)), introduce("hub", "hub", instance="h"), hub, limits=LIMITS
    )
    await listener.start()
    found = MovedUplink(listener, hub, **how)
    running = asyncio.create_task(found.uplink.run())
    try:
        yield found
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await listener.close()
        await settle()


async def status_of(stream: Stream) -> Status:
    assert await stream.receive() is None
    assert stream.status is not None
    stream.acknowledge(delivered=True)
    return stream.status


async def test_a_call_that_runs_while_the_uplink_moves_ends_on_the_former_link() -> None:
    async with uplink() as it:
        former = await it.links(1)
        slow = it.hub.links[0].open(Kind.CALL, b"", method="slow")
        it.uplink.move()
        moved = await it.links(2)
        quick = it.hub.links[1].open(Kind.CALL, b"", method="quick")
        assert (await status_of(quick)).ok
        assert moved is not former
        assert not former.over
        it.agent.gate.set()
        assert (await status_of(slow)).ok
        await it.ends(1)
        assert it.agent.ended == [former]
        assert [reason for reason, _ in it.hub.ends] == [Reason.DRAINED]
        assert it.uplink.link is moved
        assert it.hub.beside == [False, True]


async def test_no_call_is_lost_while_the_uplink_moves_again_and_again() -> None:
    async with uplink() as it:
        await it.links(1)
        stopped = asyncio.Event()

        async def load() -> list[Code]:
            found = []
            while not stopped.is_set():
                stream = it.hub.links[-1].open(Kind.CALL, b"x", method="quick")
                found.append(Code((await status_of(stream)).code))
            return found

        loads = [asyncio.create_task(load()) for _ in range(8)]
        for number in range(2, 12):
            it.uplink.move()
            await it.links(number)
        stopped.set()
        found = [code for codes in await asyncio.gather(*loads) for code in codes]
        assert found
        assert set(found) == {Code.OK}
        await it.ends(10)
        assert it.uplink.link is not None


async def test_if_no_second_link_can_be_made_the_first_one_stays_and_the_uplink_tries_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("common.uplink.REDIAL", Backoff(first_s=0.002, most_s=0.01))
    async with uplink() as it:
        former = await it.links(1)
        it.hub.refuses = 3
        it.uplink.move()
        moved = await it.links(2)
        assert moved is not former
        await it.ends(1)
        assert it.hub.beside == [False, True, True, True, True]


async def test_a_link_that_ends_while_the_uplink_wants_to_move_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("common.uplink.FIRST_REDIAL_S", 0.001)
    monkeypatch.setattr("common.uplink.REDIAL", Backoff(first_s=60.0, most_s=60.0))
    async with uplink() as it:
        await it.links(1)
        it.hub.refuses = 1
        it.uplink.move()
        await until(lambda: not it.hub.refuses)
        it.hub.links[0].goodbye(Reason.STOPPED, "for the test")
        await it.links(2)
        assert it.hub.beside == [False, True, False]


async def test_a_side_that_opens_the_calls_drains_the_former_link_itself() -> None:
    left: list[Link] = []
    async with uplink(leave=left.append) as it:
        it.hub.is_draining = False
        former = await it.links(1)
        it.uplink.move()
        await it.links(2)
        assert left == [former]


async def test_an_uplink_that_stops_while_it_moves_finishes_the_calls_of_both_links() -> None:
    async with uplink() as it:
        await it.links(1)
        slow = it.hub.links[0].open(Kind.CALL, b"", method="slow")
        it.uplink.move()
        await it.links(2)
        also_slow = it.hub.links[1].open(Kind.CALL, b"", method="slow")
        await until(lambda: it.agent.links[1].session.open_streams > 0)
        draining = asyncio.create_task(it.uplink.drain("the test ends"))
        await asyncio.sleep(0)
        it.agent.gate.set()
        assert (await status_of(slow)).ok
        assert (await status_of(also_slow)).ok
        await draining
        await it.ends(2)


async def test_a_move_without_a_link_waits_for_nothing() -> None:
    async with uplink() as it:
        it.uplink.move()
        await it.links(1)
        await settle()
        assert it.hub.beside == [False]


async def test_what_must_be_done_before_a_dial_may_fail_like_a_dial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("common.uplink.REDIAL", Backoff(first_s=0.002, most_s=0.01))
    failures = [HandshakeRefused("busy", "try again")] * 2

    async def before() -> None:
        if failures:
            raise failures.pop()

    async with uplink(before_dial=before) as it:
        await it.links(1)
        assert failures == []
