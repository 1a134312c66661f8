"""An uplink moves to a new link and loses no call, and with several hubs it follows the one that leads."""

import asyncio
import contextlib
import re
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from common.errors import HandshakeRefused, TunnelClosed
from common.links.backoff import Backoff
from common.links.listener import Listener
from common.links.uplink import Dialling, Uplink
from common.messages import Kind, Reason
from common.net.endpoint import hub_endpoint
from common.net.sockets import listen_unix
from common.observe.version import introduce
from common.session.limits import Limits
from common.session.link import Link, Side, Stream
from common.status import Code, Origin, Status
from tests.kit.linked import Peer
from tests.kit.waiting import settle, until

LIMITS = Limits(hello_timeout_s=30.0)


class Hub(Peer):
    """A hub's listener, which drains a former link as soon as it has accepted the one beside it."""

    origin = Origin.HUB

    def __init__(self, epoch: int = 1) -> None:
        super().__init__()
        self.epoch = epoch
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
        link.accept(self.epoch)
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
    def __init__(self, hubs: dict[Listener, Hub], *, before: Any = None, **how: Any) -> None:
        self.hubs, self.agent = list(hubs.values()), Agent()
        self.hub = self.hubs[0]
        hello = introduce("edge", "n1", instance="i", boot=1)
        addresses = [listener.address for listener in hubs]
        endpoints = [hub_endpoint(it if it.startswith("/") else f"ws://{it}") for it in addresses]
        dialling = Dialling(hello=lambda: hello, limits=LIMITS, before=before)
        self.uplink = Uplink(endpoints, self.agent, dialling, **how)

    async def links(self, number: int) -> Link:
        await until(lambda: len(self.agent.links) >= number)
        return self.agent.links[-1]

    async def ends(self, number: int) -> None:
        """Wait until so many links have ended at both sides."""
        await until(lambda: len(self.agent.ended) >= number and len(self.hub.ends) >= number)


@contextlib.asynccontextmanager
async def uplink(
    *, epochs: tuple[int, ...] = (1,), instances: str = "hi", here: Path | None = None, **how: Any
) -> AsyncIterator[MovedUplink]:
    """The uplink to hubs. The first one listens on the UNIX socket `here`, if it is given."""
    hubs = {}
    for epoch, instance in zip(epochs, instances, strict=False):
        hub, greeting = Hub(epoch), introduce("hub", "hub", instance=instance)
        sock = listen_unix(here, mode=0o600) if here and not hubs else socket.create_server(("127.0.0.1", 0))
        listener = Listener(sock, Side(greeting, hub, LIMITS))
        await listener.start()
        hubs[listener] = hub
    found = MovedUplink(hubs, **how)
    running = asyncio.create_task(found.uplink.run())
    try:
        yield found
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        for listener in hubs:
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
    monkeypatch.setattr("common.links.uplink.REDIAL", Backoff(first_s=0.002, most_s=0.01))
    async with uplink() as it:
        former = await it.links(1)
        it.hub.refuses = 3
        it.uplink.move()
        moved = await it.links(2)
        assert moved is not former
        await it.ends(1)
        assert it.hub.beside == [False, True, True, True, True]


async def test_a_link_that_ends_while_the_uplink_wants_to_move_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("common.links.uplink.FIRST_REDIAL_S", 0.001)
    monkeypatch.setattr("common.links.uplink.REDIAL", Backoff(first_s=60.0, most_s=60.0))
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
        await until(lambda: it.agent.links[1].open_streams > 0)
        draining = asyncio.create_task(it.uplink.drain("the test ends"))
        await asyncio.sleep(0)
        it.hub.links[1].accept(2)  # an operator may have told the hub to trust its records
        await until(lambda: len(it.agent.links) > 2)
        it.agent.gate.set()
        assert (await status_of(slow)).ok
        assert (await status_of(also_slow)).ok
        await draining
        await it.ends(2)


async def test_a_link_that_ends_while_its_successors_dial_is_prepared_is_no_link_beside_it() -> None:
    preparing = asyncio.Event()
    prepared = asyncio.Event()

    async def before(_failures: int) -> None:
        if it.hub.links:
            preparing.set()
            await prepared.wait()

    async with uplink(before=before) as it:
        await it.links(1)
        it.uplink.move()
        await preparing.wait()
        it.hub.links[0].goodbye(Reason.STOPPED, "for the test")
        await it.ends(1)
        prepared.set()
        await it.links(2)
        assert it.hub.beside == [False, False]


async def test_a_move_without_a_link_waits_for_nothing() -> None:
    async with uplink() as it:
        it.uplink.move()
        await it.links(1)
        await settle()
        assert it.hub.beside == [False]


async def test_what_must_be_done_before_a_dial_may_fail_like_a_dial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("common.links.uplink.REDIAL", Backoff(first_s=0.002, most_s=0.01))
    failures = [HandshakeRefused("busy", "try again")] * 2

    async def before(_failures: int) -> None:
        if failures:
            raise failures.pop()

    async with uplink(before=before) as it:
        await it.links(1)
        assert failures == []


# -------------------- several hubs --------------------


async def test_a_warm_link_becomes_the_active_one_without_a_dial_and_the_link_to_the_former_leader_ends() -> None:
    async with uplink(epochs=(5, 0)) as it:
        active = await it.links(1)
        leader, standby = it.hubs
        await until(lambda: [address.why for address in it.uplink.addresses] == ["", "a standby"])
        call = active.open(Kind.CALL, b"", method="slow")
        theirs = leader.links[0].open(Kind.CALL, b"", method="slow")
        standby.links[0].accept(6)
        assert await it.links(2) is it.uplink.link
        with pytest.raises(TunnelClosed, match="another hub leads by now, with epoch 6"):
            await call.receive()
        with pytest.raises(TunnelClosed):
            await theirs.receive()
        assert it.agent.ended == [active]
        assert leader.ends == [(Reason.NOT_LEADING, "another hub leads by now, with epoch 6")]
        assert (await status_of(standby.links[0].open(Kind.CALL, b"", method="quick"))).ok
        assert len(standby.links) == 1
        standby.links[0].accept(8)
        await until(lambda: len(it.agent.links) == 3)  # the same link: it has a new epoch
        assert it.agent.links[1:] == [it.uplink.link] * 2
        assert it.uplink.epoch == 8


@pytest.mark.parametrize("successor", [0, 6], ids=["that is about to lead", "that leads"])
async def test_a_former_leader_with_a_successor_is_dialled_at_leisure_and_soon_if_the_other_link_is_lost(
    successor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("common.links.uplink.FIRST_REDIAL_S", 0.001)
    monkeypatch.setattr("common.links.uplink.SPARE_REDIAL_S", 1e9)
    async with uplink(epochs=(5, 0)) as it:
        former, other = it.hubs
        await until(lambda: [address.why for address in it.uplink.addresses] == ["", "a standby"])
        if successor:
            other.links[0].accept(successor)
        else:
            former.links[0].goodbye(Reason.STOPPED, "another hub may lead")
        await until(lambda: len(former.ends) == 1)
        for _ in range(50):
            await asyncio.sleep(0.001)
        assert len(former.links) == 1
        former.epoch = 7
        other.links[0].goodbye(Reason.STOPPED, "for the test")
        await until(lambda: len(former.links) == len(other.links) == 2)


async def test_a_new_epoch_of_a_hub_ends_no_link_while_the_uplink_moves() -> None:
    async with uplink() as it:
        former = await it.links(1)
        slow = it.hub.links[0].open(Kind.CALL, b"", method="slow")
        it.uplink.move()
        moved = await it.links(2)
        for link in it.hub.links:
            link.accept(2)
        await until(lambda: it.uplink.epoch == 2)
        it.agent.gate.set()
        assert (await status_of(slow)).ok
        await it.ends(1)
        assert (it.agent.ended, it.uplink.link) == ([former], moved)


async def test_the_link_to_a_standby_moves_too() -> None:
    async with uplink(epochs=(1, 0)) as it:
        standby = it.hubs[1]
        standby.is_draining = False
        await until(lambda: [address.why for address in it.uplink.addresses] == ["", "a standby"])
        it.uplink.move()
        await until(lambda: len(standby.links) == 2 and standby.links[0].over)
        assert standby.beside == [False, True]
        assert it.uplink.addresses[1].link is not None


@pytest.mark.parametrize("epoch", [0, 7], ids=["heard from the other hub", "heard before a restart"])
async def test_a_hub_that_says_a_lower_epoch_is_refused_and_dialled_again(
    epoch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("common.links.uplink.REDIAL", Backoff(first_s=0.002, most_s=0.01))
    monkeypatch.setattr("common.links.uplink.SPARE_REDIAL_S", 0.001)
    async with uplink(epochs=(5,) if epoch else (5, 7), epoch=epoch) as it:
        old = it.hubs[0]
        await until(lambda: old.ends[-1:] == [(Reason.NOT_LEADING, it.uplink.addresses[0].why)] and len(old.ends) > 3)
        assert re.search("has epoch 5, and 7 was heard before$", it.uplink.addresses[0].why)
        assert all(link.peer.epoch == 7 for link in it.agent.links[-1:])
        old.epoch = 8
        await until(lambda: it.uplink.epoch == 8)
        assert it.uplink.link is it.agent.links[-1]
        assert it.uplink.addresses[0].why == ""


async def test_one_address_that_leads_to_a_standby_is_dialled_again_until_its_hub_leads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("common.links.uplink.REDIAL", Backoff(first_s=0.002, most_s=0.01))
    async with uplink(epochs=(0,)) as it:
        (hub,) = it.hubs
        await until(lambda: len(hub.ends) > 2)
        assert (it.agent.links, it.uplink.link) == ([], None)
        assert it.uplink.why == f"the hub at {it.uplink.addresses[0].endpoint} is a standby"
        hub.epoch = 3
        await it.links(1)


@pytest.mark.parametrize("epoch", [5, 0])
async def test_of_two_addresses_of_one_hub_one_has_the_link_and_the_other_one_follows_when_it_is_lost(
    epoch: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("common.links.uplink.FIRST_REDIAL_S", 0.001)
    async with uplink(epochs=(epoch, epoch), instances="hh") as it:
        first, second = it.hubs

        def live() -> list[Link]:
            return [link for link in first.links + second.links if not link.over]

        await until(lambda: len(first.links + second.links) == 2 and len(live()) == 1)
        for _ in range(50):  # nobody dials
            await asyncio.sleep(0.001)
        assert len(first.links + second.links) == 2
        (problem,) = it.uplink.problems()
        assert re.fullmatch("ws://.*: it leads to the same hub as ws://.*; give --hub one address of each hub", problem)
        assert caplog.text.count(" lead to one hub") == 1
        (link,) = live()
        link.goodbye(Reason.STOPPED, "for the test")
        await until(lambda: len(first.links + second.links) > 2 and len(live()) == 1)


@pytest.mark.parametrize("epoch", [5, 0])
async def test_of_two_addresses_of_one_hub_that_of_its_unix_socket_keeps_the_link(
    epoch: int, short_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with uplink(epochs=(epoch, epoch), instances="hh", here=short_dir / "hub.sock") as it:
        here, there = it.hubs
        await until(lambda: len(here.links) == 1 and bool(it.uplink.addresses[0].link))
        await until(lambda: len(there.ends) == 1)
        assert here.ends == []
        assert there.ends[0][1].startswith("it leads to the same hub as ")
        assert " lead to one hub" not in caplog.text
        here.links[0].accept(7)
        await until(lambda: it.uplink.epoch == 7)
        assert it.uplink.link is it.uplink.addresses[0].link


async def test_the_link_to_a_standby_by_its_unix_socket_stays_also_as_the_only_one(short_dir: Path) -> None:
    async with uplink(epochs=(0,), here=short_dir / "hub.sock") as it:
        (hub,) = it.hubs
        await until(lambda: it.uplink.addresses[0].why == "a standby")
        hub.links[0].accept(3)
        assert await it.links(1) is it.uplink.link
        assert (len(hub.links), hub.ends) == (1, [])
