"""The fencing's rules: what the hub is told when, when the watchdog is petted, what the next start takes over."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.errors import SettingsError
from edge.calls.controller_lease import ControllerLease
from edge.fencing import fencing as module
from edge.fencing.fenced_volumes import NotFenceable
from edge.fencing.fencing import Fencing
from edge.fencing.plan import FileSystem, read_plan
from edge.fencing.watchdog import Watchdog
from edge.volume_errors import NotReady, Uncertain, VolumeRefused
from edge.volumes import DriverRules, Volume
from tests.kit.waiting import settle

VOLUME = Volume(driver="d.csi", handle="h", name="pv-1", fence=True, rules=DriverRules(attach_required=True))
KEY, NAME = VOLUME.key, "kubernetes.io/csi/d.csi^h"
LEASE_S = 60.0
DISK = FileSystem(device="8:1", sequence="7", fs_type="ext4")


class FakeWatchdog(Watchdog):
    """A device in memory."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.pets, self.ends, self.trouble = 0, list[bool](), ""

    @property
    def is_open(self) -> bool:
        return self.pets > 0

    def pet(self, longest_s: int = 0) -> None:
        if self.trouble:
            raise OSError(self.trouble)
        self.pets, self.time_s = self.pets + 1, longest_s or 30

    def close(self, *, stops: bool) -> None:
        self.ends.append(stops)


class Agent:
    """One start of an agent, whose clock a test turns."""

    def __init__(self, directory: Path, patch: pytest.MonkeyPatch, *, boot: str = "b1", fence: bool = True) -> None:
        self.now, self.watchdog, self.acks = 1000.0, FakeWatchdog(directory), asyncio.Event()
        self.acks.set()
        self.heard: list[dict[str, Any]] = []
        self.found: FileSystem | Exception | None = DISK
        self.end: Exception | None = None
        self.shut = 0
        patch.setattr(module, "boot_time", lambda: self.now)
        patch.setattr(module, "flaw_of", lambda *_: "")
        patch.setattr(module, "file_system_of", lambda *_: self._give(self.found))
        patch.setattr(module, "shut_down", lambda *_: self._shut())
        patch.setattr(module, "has_holders", lambda _: False)
        patch.setattr(Fencing, "_run", lambda _: None)  # the test looks
        self.fencing = Fencing(
            directory, directory, is_wanted=fence, lease_s=LEASE_S, boot=boot, watchdog=self.watchdog
        )
        self.lease = ControllerLease(LEASE_S, clock=lambda: self.now)
        self.pongs: list[Callable[[], None]] = []

    async def start(self) -> None:
        await self.fencing.start(self.lease)
        self.fencing.subscribe(lambda _: None, lambda: self.heard.append(self.fencing.told()), self._acked)
        self.lease.up(self)

    def ping(self, answered: Callable[[], None]) -> None:
        self.pongs.append(answered)

    def answer(self) -> None:
        """The hub answers all pings."""
        self.fencing._lease.need()
        self.lease.wait(lambda: None)
        for answered in self.pongs:
            answered()
        self.pongs.clear()

    async def look(self) -> None:
        """The thread looks, until its shutdowns have ended."""
        for _ in range(2):
            self.fencing.check(self.now)
            for one in self.fencing._volumes.values():
                if one.thread is not None:
                    await asyncio.to_thread(one.thread.join)
            await settle()

    async def call(self, name: str = "stage", error: Exception | None = None) -> dict[str, Any]:
        """Let a driver mount the volume, and return what the hub knows meanwhile."""
        async with self.fencing.mounting(VOLUME, name) as may_go_on:
            assert may_go_on()
            told = self.fencing.told()
            if error is not None:
                raise error
        return told

    async def stage(self) -> None:
        await self.start()
        self.answer()
        await self.fencing.hold(VOLUME)
        await self.call()

    async def close(self) -> None:
        await self.fencing.close()
        self.lease._set_timer(self.now)

    async def _acked(self) -> None:
        await self.acks.wait()

    def _shut(self) -> None:
        self.shut += 1
        self._give(self.end)

    @staticmethod
    def _give(what: Any) -> Any:
        if isinstance(what, Exception):
            raise what
        return what


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Agent:
    return Agent(tmp_path, monkeypatch)


def told(agent: Agent) -> tuple[list[str], list[str]]:
    found = agent.fencing.told()
    return found["staged"], found["staging"]


async def test_the_hub_hears_staging_before_a_call_and_staged_after_it_with_the_watchdogs_time(agent: Agent) -> None:
    await agent.start()
    agent.answer()
    await agent.fencing.hold(VOLUME)
    assert (await agent.call())["staging"] == [NAME]
    assert agent.fencing.told() == {"leaseSeconds": 60, "watchdogSeconds": 30, "staged": [NAME], "staging": []}
    assert (await agent.call("pod"))["staged"] == []


async def test_no_call_begins_before_the_hub_has_stored_staging_nor_without_the_lease(agent: Agent) -> None:
    await agent.stage()
    agent.acks.clear()
    calling = asyncio.create_task(agent.call("pod"))
    await settle()
    assert told(agent) == ([], [NAME])
    agent.now += LEASE_S
    agent.acks.set()
    with pytest.raises(NotReady, match="no answer of the hub yet"):
        await calling
    with pytest.raises(NotReady, match="no answer of the hub yet"):
        await agent.call("pod")
    assert told(agent) == ([NAME], [])


async def test_the_watchdog_is_petted_while_the_lease_holds_and_after_it_when_all_is_fenced(agent: Agent) -> None:
    await agent.stage()
    before = agent.watchdog.pets
    await agent.look()
    assert (agent.watchdog.pets, agent.shut) == (before + 2, 0)
    agent.now += LEASE_S
    agent.fencing.check(agent.now)
    assert agent.watchdog.pets == before + 2
    await agent.look()
    assert (agent.shut, agent.fencing.fence_report(KEY), agent.watchdog.pets > before + 2) == (
        1,
        "its file system is shut down",
        True,
    )
    assert told(agent) == ([NAME], [])


async def test_a_file_system_that_cannot_be_shut_down_leaves_the_watchdog_alone(agent: Agent) -> None:
    await agent.stage()
    agent.now += LEASE_S
    agent.end, before = OSError("held"), agent.watchdog.pets
    for _ in range(3):
        await agent.look()
    assert (agent.watchdog.pets, agent.fencing.fence_report(KEY)) == (before, "")
    assert "held" in agent.fencing.problems()[0]


async def test_a_call_without_an_answer_needs_no_fence_and_stays_open_for_the_next_start(
    agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await agent.stage()
    with pytest.raises(Uncertain, match="no answer"):
        await agent.call("pod", Uncertain("no answer"))
    before = agent.watchdog.pets
    agent.now += LEASE_S
    await agent.look()
    assert (agent.shut, agent.watchdog.pets, told(agent)) == (0, before + 2, ([], [NAME]))
    await agent.close()
    later = Agent(tmp_path, monkeypatch)
    await later.start()
    assert told(later) == ([], [NAME])
    later.answer()
    with pytest.raises(VolumeRefused):
        await later.call("other", VolumeRefused("no", code=3))
    assert told(later) == ([], [NAME])
    await later.call("pod")
    assert told(later) == ([NAME], [])


async def test_a_start_with_an_ended_lease_fences_before_it_touches_the_watchdog(
    agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await agent.stage()
    await agent.close()
    assert agent.watchdog.ends == [False]
    later = Agent(tmp_path, monkeypatch)
    later.now += 2 * LEASE_S
    await later.start()
    assert later.watchdog.pets == 0
    await later.look()
    assert (later.shut, later.watchdog.pets > 0) == (1, True)


async def test_a_start_within_the_lease_goes_on_with_it(
    agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await agent.stage()
    await agent.close()
    later = Agent(tmp_path, monkeypatch)
    later.now += LEASE_S / 2
    await later.start()
    await later.look()
    assert (later.shut, later.watchdog.pets > 0, later.lease.holds()) == (0, True, True)


async def test_a_fenced_volume_is_fenced_for_the_next_start_too_although_the_hub_answers_again(
    agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await agent.stage()
    agent.now += LEASE_S
    await agent.look()
    agent.answer()
    await agent.close()
    later = Agent(tmp_path, monkeypatch)
    await later.start()
    assert (later.fencing.fence_report(KEY), later.watchdog.pets > 0) == ("its file system is shut down", True)


async def test_after_a_reboot_nothing_is_fenced_and_a_volume_is_kept_only_when_the_hub_has_heard_that(
    agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await agent.stage()
    await agent.close()
    later = Agent(tmp_path, monkeypatch, boot="b2", fence=False)
    await later.start()
    assert (later.fencing.is_held(KEY), later.fencing.told(), later.watchdog.pets) == (True, {}, 0)
    later.acks.clear()
    keeping = asyncio.create_task(later.fencing.exempt(KEY, ""))
    await asyncio.wait({keeping}, timeout=0.1)
    assert (keeping.done(), later.fencing.is_held(KEY), later.shut) == (False, True, 0)
    later.acks.set()
    await keeping
    plan = read_plan(tmp_path)
    assert plan is not None
    assert plan.volumes == ()


async def test_a_volume_that_cannot_be_fenced_is_held_no_more(agent: Agent) -> None:
    agent.found = NotFenceable("its file system is nfs4")
    await agent.stage()
    assert (agent.fencing.told(), agent.fencing.why_exempt(KEY)) == ({}, "its file system is nfs4")
    await agent.close()
    assert agent.watchdog.ends == [True]


async def test_a_volume_of_a_kind_that_fails_the_trial_is_held_no_more(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "flaw_of", lambda *_: "this kernel writes to it")
    await agent.stage()
    assert (agent.fencing.told(), agent.fencing.why_exempt(KEY)) == ({}, "this kernel writes to it")


async def test_after_a_reboot_a_volume_of_before_is_being_staged_and_is_not_shut_down(
    agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await agent.stage()
    await agent.close()
    later = Agent(tmp_path, monkeypatch, boot="b2")
    await later.start()
    await later.look()
    later.answer()
    await later.fencing.hold(VOLUME)
    assert (later.shut, told(later)) == (0, ([], [NAME]))


async def test_a_call_may_not_leave_after_the_end_of_the_lease(agent: Agent) -> None:
    await agent.stage()
    async with agent.fencing.mounting(VOLUME, "pod") as may_go_on:
        assert may_go_on()
        agent.now += LEASE_S
        assert not may_go_on()


async def test_a_fenced_volume_is_not_released_while_the_kernel_has_its_file_system(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    await agent.stage()
    agent.now += LEASE_S
    await agent.look()
    monkeypatch.setattr(module, "has_holders", lambda _: True)
    with pytest.raises(Uncertain, match="still holds it: grep -l ' 8:1 '"):
        await agent.fencing.check_released(KEY)
    assert "still holds it" in agent.fencing.fence_report(KEY)


async def test_a_volume_of_which_nothing_is_mounted_stays_staging(agent: Agent) -> None:
    agent.found = None
    await agent.stage()
    assert told(agent) == ([], [NAME])


async def test_a_volume_that_is_unstaged_is_held_no_more(agent: Agent) -> None:
    await agent.stage()
    agent.now += LEASE_S
    await agent.look()
    await agent.fencing.check_released(KEY)
    await agent.fencing.let_go(KEY)
    assert (agent.fencing.told(), agent.fencing.is_fenced(KEY)) == ({}, False)


async def test_without_a_watchdog_the_agent_does_not_start(agent: Agent) -> None:
    agent.watchdog.trouble = "busy"
    with pytest.raises(SettingsError, match="busy"):
        await agent.start()


async def test_a_lost_plan_stops_the_agent(agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await agent.stage()
    (tmp_path / "fence.json").unlink()
    with pytest.raises(ValueError, match="it is missing, although this boot had a lease"):
        Agent(tmp_path, monkeypatch)


def test_what_may_not_be_fenced_by_its_kind(agent: Agent) -> None:
    assert not agent.fencing.refusal(VOLUME)
    assert "volumeMode is Block" in agent.fencing.refusal(replace(VOLUME, block=True))
    assert "attachRequired: false" in agent.fencing.refusal(replace(VOLUME, rules=DriverRules(attach_required=False)))
