"""The controller lease: pongs renew it from the ping's sending, and what runs under it is lost with it. No time passes:
the tests move the machine's clock and the loop's.
"""

import asyncio
from collections.abc import Callable

import pytest

from edge.calls.controller_lease import ControllerLease, boot_time
from tests.kit.waiting import settle


class Link:
    """A link to a hub that answers when a test says."""

    def __init__(self) -> None:
        self.pings: list[Callable[[], None]] = []
        self.sent = 0

    def ping(self, answered: Callable[[], None]) -> None:
        self.pings = [answered]  # as in a session: a later one takes the place of an earlier one
        self.sent += 1

    def pong(self) -> None:
        """Answer the last ping."""
        self.pings.pop()()


class Held:
    """Something that runs under the lease."""

    def __init__(self) -> None:
        self.lost = 0

    def lose(self) -> None:
        self.lost += 1


class LeasedAgent:
    """A lease of 60 s."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loop = asyncio.get_running_loop()
        self._real, self._ahead_s = loop.time, 0.0
        monkeypatch.setattr(loop, "time", lambda: self._real() + self._ahead_s)
        self.now = 1_000.0
        self.lease = ControllerLease(60.0, clock=lambda: self.now)
        self.link = Link()
        self.went_on = 0  # how many of those who waited for the lease have gone on

    async def let_pass(self, seconds: float) -> None:
        """Let time pass, a second at once."""
        for _ in range(round(seconds)):
            self.now += 1.0
            self._ahead_s += 1.0
            await settle()

    async def suspend(self, seconds: float) -> None:
        """Let time pass while neither the process nor the loop's clock goes on."""
        self.now += seconds
        await settle()

    def go_on(self) -> None:
        self.went_on += 1

    def take(self) -> None:
        """Get the lease on a new link."""
        self.lease.up(self.link)
        assert not self.lease.need()
        self.link.pong()
        assert self.lease.holds()


@pytest.fixture
async def agent(monkeypatch: pytest.MonkeyPatch) -> LeasedAgent:
    return LeasedAgent(monkeypatch)


async def test_a_link_without_epochs_has_no_pings_of_the_lease_and_no_timer(agent: LeasedAgent) -> None:
    agent.lease.up(agent.link)
    await agent.let_pass(300)
    assert agent.link.sent == 0
    assert agent.lease._timer is None
    assert agent.lease.problems() == []


async def test_there_is_no_lease_before_the_first_pong(agent: LeasedAgent) -> None:
    agent.lease.up(agent.link)
    assert not agent.lease.need()
    agent.lease.wait(agent.go_on)
    assert (agent.link.sent, agent.went_on) == (1, 0)
    agent.link.pong()
    assert agent.lease.holds()
    assert agent.lease.need()
    assert agent.went_on == 1


async def test_a_pong_renews_the_lease_from_the_sending_of_its_ping(agent: LeasedAgent) -> None:
    agent.lease.up(agent.link)
    agent.lease.need()
    await agent.let_pass(50)
    agent.link.pong()
    await agent.let_pass(9)
    assert agent.lease.holds()
    await agent.let_pass(1)
    assert not agent.lease.holds()


async def test_a_ping_that_becomes_due_while_the_agent_looks_at_the_clock_is_sent(agent: LeasedAgent) -> None:
    agent.take()
    await agent.let_pass(14)
    reads = iter([agent.now + 0.9])  # of a ping that is due a second from now: not yet at the first look
    agent.lease._clock = lambda: next(reads, agent.now + 1.0)
    agent.lease._check_times()
    assert agent.link.sent == 1
    await agent.let_pass(1)
    assert agent.link.sent == 2


async def test_a_pong_that_is_older_than_the_lease_is_none(agent: LeasedAgent) -> None:
    agent.lease.up(agent.link)
    agent.lease.need()
    agent.lease.wait(agent.go_on)
    await agent.suspend(60)
    agent.link.pong()
    assert not agent.lease.holds()
    assert agent.went_on == 0
    assert agent.link.sent == 2  # because somebody waits
    agent.link.pong()
    assert agent.went_on == 1


async def test_the_end_of_a_former_link_takes_nothing_from_the_present_one(agent: LeasedAgent) -> None:
    agent.take()
    former, new = agent.link, Link()
    agent.lease.up(new)
    agent.lease.need()
    agent.lease.down(former)
    new.pong()
    await agent.let_pass(15)
    assert new.sent == 2


async def test_a_pong_of_a_former_link_renews_nothing(agent: LeasedAgent) -> None:
    """Its hub may have lost the leadership."""
    agent.take()
    agent.lease.begin(Held())
    await agent.let_pass(15)
    former = agent.link
    agent.lease.up(Link())
    await agent.let_pass(44)
    former.pong()
    assert agent.lease.holds()
    await agent.let_pass(1)
    assert not agent.lease.holds()


async def test_what_runs_is_lost_when_the_lease_ends_and_not_before(
    agent: LeasedAgent, caplog: pytest.LogCaptureFixture
) -> None:
    agent.take()
    held, ended = Held(), Held()
    agent.lease.begin(held)
    agent.lease.begin(ended)
    agent.lease.end(ended)
    agent.lease.down(agent.link)
    await agent.let_pass(59)
    assert held.lost == 0
    assert agent.lease.problems() == []
    await agent.let_pass(1)
    assert (held.lost, ended.lost) == (1, 0)
    said = "no answer of the hub for 60 s (--controller-lease)"
    assert [said in text for text in agent.lease.problems()] == [True]
    assert f"{said}: the agent has cancelled its operations of shared drivers" in caplog.text
    await agent.let_pass(300)
    assert held.lost == 1
    assert caplog.text.count(said) == 1
    assert agent.lease._timer is None


async def test_time_in_a_suspend_counts(agent: LeasedAgent) -> None:
    agent.take()
    held = Held()
    agent.lease.begin(held)
    await agent.suspend(3_600)
    assert not agent.lease.holds()  # at once
    assert held.lost == 0
    agent.now -= 1.0
    await agent.let_pass(1)  # the loop's clock stood still: the next look is a second away at most
    assert held.lost == 1


async def test_a_pong_does_not_bring_back_what_ran_before_the_end(agent: LeasedAgent) -> None:
    """As after a stop of the process: the loop reads the answers of a hub first, and looks at its timers later."""
    agent.take()
    held = Held()
    agent.lease.begin(held)
    await agent.let_pass(15)
    agent.now += 100  # stopped with a ping on its way
    agent.link.pong()
    assert held.lost == 1
    assert not agent.lease.holds()


async def test_a_coroutine_that_is_cancelled_in_the_turn_of_the_pong_does_no_harm(agent: LeasedAgent) -> None:
    agent.lease.up(agent.link)
    task = asyncio.create_task(agent.lease.wait_held())
    await settle()
    task.cancel()
    agent.link.pong()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()
    assert not agent.lease._waiting


async def test_the_clock_is_the_machines_which_goes_on_in_a_suspend() -> None:
    with open("/proc/uptime") as file:  # noqa: ASYNC230, PTH123  # no disk
        uptime = float(file.read().split()[0])
    assert abs(boot_time() - uptime) < 60
