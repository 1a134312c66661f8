"""Fencing: volumes are held under the hub's lease, and their writers are stopped when it ends. No process is stopped
here, and no time passes: the tests move the machine's clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from common.status import Code
from edge.controller_lease import ControllerLease
from edge.disk.layout import Layout
from edge.disk.mounts import Mount, MountTable
from edge.fencing.fencing import Fencing, why_not_here
from edge.fencing.plan import Held, LeaseFile, Plan, read_plan, write_plan
from edge.fencing.stop import Stopped
from edge.fencing.watchdog import LATE_S
from edge.volume_errors import NotReady, Refused, Uncertain, Unended, VolumeError
from edge.volumes import DriverRules, Volume, VolumeKey
from tests.kit.waiting import until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Coroutine
    from pathlib import Path

DATA = Volume(driver="d.csi", handle="h-1", name="pv-1", fence=True)
KEY = DATA.key
OTHER = Volume(driver="d.csi", handle="h-2", name="pv-2", fence=True)
CALL = "uid-1"
NAME = "kubernetes.io/csi/d.csi^h-1"


class Link:
    """A link to a hub that answers when a test says."""

    def __init__(self) -> None:
        self.pings: list[Callable[[], None]] = []

    def ping(self, answered: Callable[[], None]) -> None:
        self.pings = [answered]


class Tasks:
    """Long-lived tasks, which end with the test."""

    def __init__(self) -> None:
        self.running: list[asyncio.Task[object]] = []

    def start(self, work: Coroutine[object, object, object], *, name: str) -> None:
        self.running.append(asyncio.create_task(work, name=name))


class Watchdog:
    """A watchdog that watches at once, or cannot be started."""

    def __init__(self, *, starts: bool) -> None:
        self.pid: int | None = None
        self._starts = starts

    async def run(self, _name: str, _stop_s: float, ready: Callable[[], Awaitable[None]]) -> None:
        if self._starts:
            self.pid = 4711
            await ready()


class Machine:
    """A node's machine, on which agents start one after another.

    Attributes:
        now: its boot clock.
        stopped: the volumes of each stop of writers.
        mounts: its mount table.
        watches: whether a watchdog can be started.
        in_use: the block devices that are in use.
        stuck: the volumes whose writers cannot be stopped.
    """

    def __init__(self, directory: Path) -> None:
        self.directory, self.now, self.boot = directory, 1_000.0, "boot-1"
        self.stopped: list[list[str]] = []
        self.watches = True
        self.in_use: set[str] = set()
        self.stuck: set[str] = set()
        self.link = Link()
        self.told: list[list[VolumeKey]] = []
        self.tasks = Tasks()
        self.mounts: list[Mount] = []
        self.running: list[Fencing] = []

    async def start(self, mode: str = "software", lease_s: float = 60.0, stop_s: float = 20.0) -> Fencing:
        """Start an agent; the hub answers its first ping."""
        self.fencing = Fencing(
            self.directory,
            self.directory / "root",
            mode=mode,
            lease_s=lease_s,
            stop_s=stop_s,
            reset=self.directory / "reset" if mode == "reset" else None,
            boot=self.boot,
            clock=lambda: self.now,
            watchdog=Watchdog(starts=self.watches),
            stop=self._stop,
            table=lambda _root: MountTable(self.mounts),
            in_use=lambda device: device in self.in_use,
        )
        self.running.append(self.fencing)
        self.lease = ControllerLease(self.fencing.lease_s, clock=lambda: self.now)
        self.fencing.subscribe(self._changed)
        await self.fencing.start(self.lease, self.tasks)  # type: ignore[arg-type]  # the part of it that is used
        await until(lambda: all(task.done() for task in self.tasks.running), "a watchdog")
        return self.fencing

    def up(self) -> None:
        """The agent has a link, and the hub answers a ping."""
        self.link = Link()
        self.lease.up(self.link)
        self.pong()

    def pong(self) -> None:
        for answered in self.link.pings:
            answered()

    def pass_s(self, seconds: float) -> None:
        """Let the clock go on, and the agent look at it."""
        self.now += seconds
        self.lease._look()

    async def close(self) -> None:
        for fencing in self.running:
            with contextlib.suppress(BufferError, ValueError):
                await fencing.close()

    def mount(self, fs_type: str = "ext4", device: str = "8:16") -> None:
        """Mount the volume where a pod has it, instead of what was there."""
        path = Layout(self.directory / "root").target("uid-1", "pv-1")
        self.mounts[:] = [Mount(device, "/", str(path), source="/dev/sdb", fs_type=fs_type)]

    def plan(self) -> Plan:
        plan = read_plan(self.directory)
        assert plan is not None
        return plan

    def _changed(self, keys: Collection[VolumeKey]) -> None:
        self.told.append(list(keys))

    def _stop(
        self, volumes: list[Held], _root: Path, *, stop_s: float, is_mounting: Callable[[], bool], **_more: Any
    ) -> Stopped:
        self.is_mounting = is_mounting
        self.stopped.append([held.handle for held in volumes])
        self.stop_s = stop_s
        self.looked_for = [held.parts for held in volumes]
        killed = {7: "process 7 'web' (has a file of it open)"}
        return Stopped(killed=killed, unmounted=["/a", "/b"], is_done=not self.stuck & {it.handle for it in volumes})


@pytest.fixture
async def machine(tmp_path: Path) -> Any:
    machine = Machine(tmp_path)
    yield machine
    await machine.close()


async def hold(machine: Machine, volume: Volume = DATA) -> Fencing:
    """An agent that has a volume under the lease."""
    fencing = await machine.start()
    machine.up()
    assert "no answer of the hub yet" in fencing.obstacle(volume)
    machine.pong()
    assert fencing.obstacle(volume) == ""
    await fencing.hold(volume)
    return fencing


# -------------------- which volumes --------------------


@pytest.mark.parametrize(
    ("mode", "volume", "why"),
    [
        ("off", DATA, "its agent runs with --fence=off"),
        (
            "software",
            Volume(driver="d.csi", handle="h", name="pv", fence=True, rules=DriverRules(attach_required=False)),
            "the CSIDriver d.csi has attachRequired: false, so no volume of it is ever detached",
        ),
        (
            "software",
            Volume(driver="d.csi", handle="h", name="pv", fence=True, block=True),
            "its volumeMode is Block, and the agent cannot take an open device from a process",
        ),
        ("software", DATA, ""),
    ],
)
async def test_a_volume_that_cannot_be_fenced_is_kept_with_a_reason(
    machine: Machine, mode: str, volume: Volume, why: str
) -> None:
    fencing = await machine.start(mode)
    assert fencing.refusal(volume) == why
    assert (fencing.obstacle(volume) == "") == (why != "")
    assert fencing.told() == {}


def test_an_agent_that_cannot_reset_its_machine_does_not_fence(tmp_path: Path) -> None:
    assert "cannot be written (--fence-reset)" in why_not_here(tmp_path / "missing") or "root" in why_not_here(tmp_path)


# -------------------- the lease --------------------


async def test_a_held_volume_is_in_the_plan_and_told_to_the_hub(machine: Machine) -> None:
    fencing = await hold(machine)
    assert [held.handle for held in machine.plan().volumes] == ["h-1"]
    assert fencing.told() == {"leaseSeconds": 60, "stopSeconds": 20, "volumes": [NAME]}
    assert LeaseFile(machine.directory).ends_at == machine.now + 60


async def test_a_volume_that_is_unstaged_is_neither_in_the_plan_nor_told(machine: Machine) -> None:
    fencing = await hold(machine)
    await fencing.let_go(KEY)
    assert (machine.plan().volumes, fencing.told()) == ((), {})
    machine.pass_s(100.0)
    assert machine.stopped == []


async def test_the_writers_are_stopped_when_the_lease_ends_and_not_before(machine: Machine) -> None:
    fencing = await hold(machine)
    machine.pass_s(59.9)
    assert not fencing.is_fenced(KEY)
    machine.pass_s(0.1)
    assert fencing.is_fenced(KEY)
    await until(lambda: fencing.stopped(KEY), "a stop of the writers")
    assert machine.stopped[0] == ["h-1"]
    assert "killed process 7 'web' (has a file of it open), unmounted 2 mounts" in fencing.stopped(KEY)
    assert [NAME in problem for problem in fencing.problems()] == [True]
    await until(lambda: machine.plan().volumes[0].is_fenced, "a plan that says so")


async def test_an_answer_of_the_hub_renews_the_lease_from_the_sending_of_its_ping(machine: Machine) -> None:
    fencing = await hold(machine)
    machine.pass_s(30.0)
    machine.now += 20.0
    machine.pong()
    assert LeaseFile(machine.directory).ends_at == 1_000.0 + 30.0 + 60.0
    machine.pass_s(39.0)
    assert not fencing.is_fenced(KEY)
    machine.pass_s(1.0)
    assert fencing.is_fenced(KEY)


async def test_a_fenced_volume_is_not_mounted_again_before_it_is_unstaged(machine: Machine) -> None:
    fencing = await hold(machine)
    machine.pass_s(60.0)
    await until(lambda: fencing.stopped(KEY), "a stop of the writers")
    machine.up()
    assert fencing.obstacle(DATA) == "it is fenced, and is unmounted first"
    await fencing.let_go(KEY)
    machine.pong()
    assert fencing.obstacle(DATA) == ""


async def test_a_plan_that_cannot_be_written_holds_nothing(machine: Machine) -> None:
    fencing = await machine.start()
    (machine.directory / "fence.json").unlink()
    (machine.directory / "fence.json").mkdir()
    with pytest.raises(NotReady, match="cannot write down that it has to fence"):
        await fencing.hold(DATA)
    assert not fencing.is_held(KEY)


# -------------------- mounting --------------------


async def test_what_is_mounted_for_a_volume_is_in_the_plan_until_its_writers_have_stopped(machine: Machine) -> None:
    """Somebody may unmount it where the agent looks, and keep it elsewhere."""
    fencing = await hold(machine)
    async with fencing.mounting(DATA, CALL):
        machine.mount()
    assert machine.plan().volumes[0].parts == (("8:16", "/", "/dev/sdb"),)
    machine.pass_s(60.0)
    await until(lambda: fencing.stopped(KEY), "a stop of the writers")
    await until(lambda: machine.plan().volumes[0].parts == (), "a plan without the device, which may be another's now")


async def test_a_request_may_leave_for_the_driver_only_while_the_lease_holds(machine: Machine) -> None:
    fencing = await hold(machine)
    async with fencing.mounting(DATA, CALL) as may_go_on:
        assert may_go_on()
        machine.now += 60.0  # the machine was suspended, and no timer has come yet
        assert not may_go_on()


async def test_a_volume_is_not_mounted_while_it_is_fenced(machine: Machine) -> None:
    fencing = await hold(machine)
    machine.pass_s(60.0)
    with pytest.raises(NotReady, match="it is fenced, and is unmounted first"):
        async with fencing.mounting(DATA, CALL):
            raise AssertionError("the driver was called")


async def test_the_stop_does_not_end_before_a_drivers_open_call_that_may_mount(machine: Machine) -> None:
    fencing = await hold(machine)
    async with fencing.mounting(DATA, CALL):
        machine.pass_s(60.0)
        await until(lambda: machine.stopped, "a stop of the writers")
        assert machine.is_mounting()
    assert not machine.is_mounting()


@pytest.mark.parametrize(
    ("ends", "is_open"),
    [
        ([Unended("the call's time is over")], True),
        ([Uncertain("no such connection", code=Code.UNAVAILABLE)], False),
        ([Refused("no such device")], False),
        ([Uncertain("the driver has mounted it, and its files cannot be given to the pod")], False),
        ([Unended("the call's time is over"), Uncertain("no such connection", code=Code.UNAVAILABLE)], True),
        ([Unended("the call's time is over"), NotReady("no such driver")], True),
        ([Unended("the call's time is over"), Refused("no such device")], False),
        ([Unended("the call's time is over"), None], False),
        ([asyncio.CancelledError()], True),
    ],
)
async def test_a_call_is_open_until_it_is_repeated_and_has_an_answer_that_tells_of_its_end(
    machine: Machine, ends: list[BaseException | None], is_open: bool
) -> None:
    fencing = await hold(machine)
    for end in ends:
        with contextlib.suppress(VolumeError, asyncio.CancelledError):
            async with fencing.mounting(DATA, CALL) as may_go_on:
                assert may_go_on()
                assert machine.plan().volumes[0].open_calls == (CALL,)
                if end is not None:
                    raise end
    assert bool(machine.plan().volumes[0].open_calls) == is_open
    fencing = await machine.start()
    machine.pass_s(60.0)
    await until(lambda: machine.stopped, "a stop of the writers")
    assert machine.is_mounting() == is_open


async def test_a_call_that_never_left_is_not_open(machine: Machine) -> None:
    fencing = await hold(machine)
    with contextlib.suppress(asyncio.CancelledError):
        async with fencing.mounting(DATA, CALL):
            raise asyncio.CancelledError
    assert machine.plan().volumes[0].open_calls == ()


async def test_the_answer_to_a_call_for_another_pod_does_not_end_an_open_one_and_the_unmount_does(
    machine: Machine,
) -> None:
    fencing = await hold(machine)
    with contextlib.suppress(VolumeError):
        async with fencing.mounting(DATA, CALL) as may_go_on:
            assert may_go_on()
            raise Unended("the call's time is over")
    async with fencing.mounting(DATA, "uid-2") as may_go_on:
        assert may_go_on()
    assert machine.plan().volumes[0].open_calls == (CALL,)
    await fencing.unmounted(KEY, CALL)
    assert machine.plan().volumes[0].open_calls == ()


async def test_a_device_is_the_volumes_while_it_is_mounted_or_in_use(machine: Machine) -> None:
    fencing = await hold(machine)
    machine.in_use.add("8:16")
    for device in ("8:16", "8:32", "8:48"):
        async with fencing.mounting(DATA, CALL):
            machine.mount(device=device)
    assert [device for device, _, _ in machine.plan().volumes[0].parts] == ["8:16", "8:48"]
    machine.in_use.clear()
    machine.mounts.clear()
    await fencing.unmounted(KEY, CALL)
    assert machine.plan().volumes[0].parts == ()


async def test_a_device_in_use_that_another_volume_has_mounted_is_not_the_volumes(machine: Machine) -> None:
    fencing = await hold(machine)
    machine.in_use.add("8:16")
    async with fencing.mounting(DATA, CALL):
        machine.mount()
    path = Layout(machine.directory / "root").target("uid-2", "pv-2")
    machine.mounts[:] = [Mount("8:16", "/", str(path), source="/dev/sdb")]
    await fencing.unmounted(KEY, CALL)
    assert machine.plan().volumes[0].parts == ()


async def test_what_is_mounted_after_the_lease_is_in_the_plan_until_it_is_stopped(machine: Machine) -> None:
    """The agent may die then, and only the plan tells its watchdog."""
    fencing = await hold(machine)
    machine.stuck.add("h-1")
    async with fencing.mounting(DATA, CALL) as may_go_on:
        assert may_go_on()
        machine.pass_s(60.0)
        machine.mount()
    assert [held.handle for held in machine.plan().due()] == ["h-1"]


async def test_a_second_name_of_a_volume_is_part_of_the_plan_before_it_is_mounted(machine: Machine) -> None:
    """Two PersistentVolumes may have one volumeHandle. Each of them has paths of its own."""
    fencing = await hold(machine)
    async with fencing.mounting(replace(DATA, name="pv-2"), CALL):
        assert machine.plan().volumes[0].pvs == ("pv-1", "pv-2")


async def test_a_volume_that_a_process_serves_is_not_told_to_the_hub(machine: Machine) -> None:
    fencing = await hold(machine)
    async with fencing.mounting(DATA, CALL):
        machine.mount("fuse.s3fs")
    assert "a process serves its file system (fuse.s3fs)" in fencing.doubt(KEY)
    assert fencing.told()["volumes"] == []
    machine.pass_s(60.0)
    assert fencing.is_fenced(KEY)


async def test_a_volume_that_its_driver_hands_to_a_runtime_is_not_told_to_the_hub(machine: Machine) -> None:
    fencing = await hold(machine)
    await fencing.have_doubt(KEY, "the runtime has it")
    assert (fencing.told()["volumes"], machine.plan().volumes[0].doubt) == ([], "the runtime has it")
    fencing = await machine.start()
    assert fencing.told()["volumes"] == []


async def test_a_mount_that_cannot_be_written_down_is_no_success(machine: Machine) -> None:
    fencing = await hold(machine)
    mounting = fencing.mounting(DATA, CALL)
    await mounting.__aenter__()
    (machine.directory / "fence.json").unlink()
    (machine.directory / "fence.json").mkdir()
    machine.mount()
    with pytest.raises(Uncertain, match="cannot write down how it fences"):
        await mounting.__aexit__(None, None, None)
    (machine.directory / "fence.json").rmdir()
    async with fencing.mounting(DATA, CALL):
        pass
    assert machine.plan().volumes[0].parts == (("8:16", "/", "/dev/sdb"),)


# -------------------- writers that cannot be stopped --------------------


async def test_a_volume_whose_writers_cannot_be_stopped_keeps_no_other_one_waiting(machine: Machine) -> None:
    fencing = await hold(machine)
    await fencing.hold(OTHER)
    machine.stuck.add("h-2")
    machine.pass_s(60.0)
    await until(lambda: fencing.stopped(KEY), "a stop of the other one's writers")
    assert LeaseFile(machine.directory).done_at == 0.0
    assert (fencing.is_fenced(OTHER.key), fencing.stopped(OTHER.key)) == (True, "")
    machine.up()
    await fencing.let_go(KEY)
    machine.pong()
    await until(lambda: not fencing.obstacle(DATA), "a volume that may be mounted again")
    assert machine.stop_s <= LATE_S
    assert fencing.obstacle(OTHER) == "it is fenced, and is unmounted first"


async def test_an_agent_starts_although_the_writers_of_a_volume_cannot_be_stopped(machine: Machine) -> None:
    await hold(machine)
    machine.now += 61.0
    machine.stuck.add("h-1")
    fencing = await machine.start()
    assert (machine.stopped[0], fencing.stopped(KEY)) == (["h-1"], "")
    machine.stuck.clear()
    fencing._keep_on()  # at once
    await until(lambda: fencing.stopped(KEY), "a stop of the writers")


async def test_what_could_not_be_written_after_a_stop_is_written_later(machine: Machine) -> None:
    fencing = await hold(machine)
    (machine.directory / "fence.json").unlink()
    (machine.directory / "fence.json").mkdir()
    machine.pass_s(60.0)
    await until(lambda: fencing.stopped(KEY), "a stop of the writers")
    (machine.directory / "fence.json").rmdir()
    fencing._keep_on()  # at once
    await until((machine.directory / "fence.json").is_file, "a plan")
    assert machine.plan().volumes[0].is_fenced


# -------------------- the watchdog --------------------


async def test_nothing_is_mounted_while_the_watchdog_stops_writers(machine: Machine) -> None:
    """It may have begun with the plan of an earlier staging, and would stop the writers of the next one."""
    fencing = await hold(machine)
    with contextlib.closing(LeaseFile(machine.directory)) as watchdogs:
        with watchdogs.lock():
            assert fencing.obstacle(DATA) == "the watchdog process is stopping the writers of volumes"
        assert fencing.obstacle(DATA) == ""


async def test_an_agent_that_finds_the_watchdogs_mark_gives_the_volume_up_although_its_lease_holds(
    machine: Machine,
) -> None:
    """The agent was stopped between its look at the clock and the renewal: the watchdog has fenced meanwhile."""
    fencing = await hold(machine)
    machine.pass_s(30.0)
    LeaseFile(machine.directory).marked_at = machine.now
    machine.pong()
    assert fencing.is_fenced(KEY)
    await until(lambda: fencing.stopped(KEY), "a stop of the writers")
    assert LeaseFile(machine.directory).marked_at == 0.0


# -------------------- the next start --------------------


async def test_an_agent_that_starts_within_the_lease_goes_on_with_it(machine: Machine) -> None:
    await hold(machine)
    machine.now += 10.0
    fencing = await machine.start()
    assert (fencing.is_held(KEY), fencing.is_fenced(KEY)) == (True, False)
    machine.pass_s(50.0)
    assert fencing.is_fenced(KEY)


async def test_an_agent_that_starts_after_the_lease_fences_before_anything_else(machine: Machine) -> None:
    await hold(machine)
    machine.now += 61.0
    fencing = await machine.start()
    assert machine.stopped[0] == ["h-1"]
    assert fencing.stopped(KEY)


async def test_an_agent_that_no_longer_fences_still_does_so_for_the_volumes_that_it_has(machine: Machine) -> None:
    await hold(machine)
    machine.now += 61.0
    fencing = await machine.start("off")
    assert fencing.stopped(KEY)


async def test_an_agent_that_starts_after_a_stop_looks_for_no_device_that_may_be_anothers_now(machine: Machine) -> None:
    fencing = await hold(machine)
    async with fencing.mounting(DATA, CALL):
        machine.mount()
    machine.now += 61.0
    LeaseFile(machine.directory).done_at = machine.now  # by the watchdog
    await machine.start()
    assert machine.looked_for == [()]


@pytest.mark.parametrize("what", ["heard", "let_go"])
async def test_after_a_reboot_nothing_is_fenced_and_the_agent_knows_what_was(machine: Machine, what: str) -> None:
    await hold(machine)
    machine.now, machine.boot = 10.0, "boot-2"
    fencing = await machine.start()
    assert (machine.stopped, fencing.is_held(KEY)) == ([], False)
    fencing = await machine.start()
    assert fencing.was_held(KEY)
    await getattr(fencing, what)(KEY)
    fencing = await machine.start()
    assert not fencing.was_held(KEY)


@pytest.mark.parametrize(("given", "counts"), [((120.0, 40.0), (60.0, 20.0)), ((30.0, 10.0), (30.0, 10.0))])
async def test_longer_times_do_not_count_for_volumes_that_the_hub_knows_with_shorter_ones(
    machine: Machine, given: tuple[float, float], counts: tuple[float, float]
) -> None:
    await hold(machine)
    fencing = await machine.start(lease_s=given[0], stop_s=given[1])
    assert (fencing.lease_s, fencing.stop_s) == counts


async def test_a_shorter_lease_ends_the_one_of_the_last_start_earlier(machine: Machine) -> None:
    await hold(machine)
    fencing = await machine.start(lease_s=30.0)
    assert LeaseFile(machine.directory).ends_at == machine.now + 30.0
    machine.pass_s(30.0)
    assert fencing.is_fenced(KEY)


async def test_volumes_that_an_earlier_start_has_unstaged_are_let_go(machine: Machine) -> None:
    await hold(machine)
    fencing = await machine.start()
    await fencing.keep_only([])
    assert (fencing.is_held(KEY), machine.plan().volumes) == (False, ())


# -------------------- the files --------------------


def test_the_plan_is_read_as_it_was_written(tmp_path: Path) -> None:
    plan = Plan(
        boot="b",
        keeper="k",
        lease_s=60.0,
        stop_s=20.0,
        volumes=(Held("d.csi", "h-1", ("pv-1",), True, (("8:0", "/", "/dev/sda"),), "FUSE", ("stage",)),),
        earlier=(("d.csi", "h-0"),),
    )
    write_plan(tmp_path, plan)
    assert read_plan(tmp_path) == plan


@pytest.mark.parametrize("content", ["", "{", '{"boot": "b"}', '{"boot": "b", "keeper": "k", "volumes": [1]}'])
def test_a_damaged_plan_is_told_as_such(tmp_path: Path, content: str) -> None:
    (tmp_path / "fence.json").write_text(content)
    with pytest.raises(ValueError, match=r"\w"):
        read_plan(tmp_path)


async def test_an_agent_does_not_start_without_the_plan_of_a_lease_of_this_boot(machine: Machine) -> None:
    await hold(machine)
    (machine.directory / "fence.json").unlink()
    with pytest.raises(ValueError, match="it is missing, although this boot had a lease"):
        await machine.start("off")
    machine.boot = "boot-2"
    assert (await machine.start()).told() == {}


async def test_an_agent_that_had_a_lease_and_never_a_volume_starts_again(machine: Machine) -> None:
    machine.watches = False
    await machine.start()
    machine.lease.need()
    machine.up()
    machine.lease.need()
    machine.pong()
    assert LeaseFile(machine.directory).ends_at
    assert (await machine.start()).told() == {}


async def test_a_watchdog_goes_on_until_the_agent_has_stopped_the_writers(machine: Machine) -> None:
    """The plan may be written while the agent is still at it: another volume was unstaged at that moment."""
    fencing = await hold(machine)
    async with fencing.mounting(DATA, CALL):
        machine.mount()
    fencing._mark_all()
    await fencing._write()
    assert [held.handle for held in machine.plan().due()] == ["h-1"]


async def test_a_watchdog_fences_beside_an_agent_that_hangs_with_the_lock(tmp_path: Path) -> None:
    with contextlib.closing(LeaseFile(tmp_path)) as agents, contextlib.closing(LeaseFile(tmp_path)) as watchdogs:
        fcntl.flock(agents._descriptor, fcntl.LOCK_EX)
        with watchdogs.lock():
            pass


async def test_an_agent_does_not_start_on_a_damaged_plan(machine: Machine) -> None:
    (machine.directory / "fence.json").write_text("{")
    with pytest.raises(ValueError, match="Expecting property name"):
        await machine.start()


def test_two_processes_share_the_end_of_the_lease(tmp_path: Path) -> None:
    one, other = LeaseFile(tmp_path), LeaseFile(tmp_path)
    assert (other.ends_at, other.marked_at, other.done_at) == (0.0, 0.0, 0.0)
    one.ends_at, other.marked_at, other.done_at = 17.5, 18.5, 19.5
    assert (other.ends_at, one.marked_at, one.done_at) == (17.5, 18.5, 19.5)
