"""The watchdog process on real mounts and writers: what it kills and unmounts when a lease ends, and what it leaves."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from edge.disk.layout import Layout
from edge.fencing.keeper import WatchdogKeeper
from edge.fencing.plan import Held, LeaseFile, Plan, write_plan
from edge.fencing.watchdog import AGAIN_S, GRACE_S, boot_time
from tests.kit.machine import Machine
from tests.kit.needs import needs_mounts
from tests.kit.processes import Process
from tests.kit.waiting import let_pass, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

pytestmark = needs_mounts

HELD = Held("d.csi", "h-1", ("pv-1",))
STOP_S = 3.0

WRITER = """
import os, sys, time
path, kind = sys.argv[1:]
file = -1
while True:
    try:
        if file < 0:
            file = os.open(path, os.O_WRONLY | os.O_APPEND)
        os.write(file, b"old\\n")
        if kind == "reopen":
            os.close(file)
            file = -1
    except OSError:
        file = -1
    time.sleep(0.0005)
"""

MAPPED = """
import mmap, os, sys, time
file = os.open(sys.argv[1], os.O_RDWR)
memory = mmap.mmap(file, 4)
os.close(file)
while True:
    memory[:4] = b"old\\n"
    time.sleep(0.0005)
"""


class World:
    """A machine with a mounted volume, and a watchdog.

    Attributes:
        data: the volume's directory, on the storage.
        mount: where a pod has it.
        other: where a pod has another volume.
    """

    def __init__(self, directory: Path) -> None:
        self.directory, self.root, self.state = directory, directory / "kubelet", directory / "state"
        self.storage = Path(tempfile.mkdtemp(prefix="fence-", dir="/dev/shm"))
        self.state.mkdir()
        self.machine = Machine(directory, directory)
        self.machine.boot()
        layout = Layout(self.root)
        self.data, self.mount = self.storage / "one", layout.target("uid-1", "pv-1")
        self.other = layout.target("uid-1", "pv-2")
        staging = layout.staging_target(HELD.driver, HELD.handle)
        for name, mount in (("one", staging), ("one", self.mount), ("two", self.other)):
            (self.storage / name).mkdir(exist_ok=True)
            (self.storage / name / "stamps").write_text("old\n")
            mount.mkdir(parents=True)
            subprocess.run(self.machine.inside(["mount", "--bind", self.storage / name, mount]), check=True)
        self.lease = LeaseFile(self.state)
        self.reset = directory / "reset"
        self.reset.touch()
        self.processes: list[Process] = []

    def start(self, name: str, words: Sequence[object]) -> Process:
        process = Process(name, self.machine.inside(words), log=self.directory / f"{name}.log")
        process.start()
        self.processes.append(process)
        return process

    def writer(self, kind: str, mount: Path | None = None) -> Process:
        """Start a writer on a mount."""
        path = (mount or self.mount) / "stamps"
        if kind == "mapped":
            process = self.start(kind, [sys.executable, "-c", MAPPED, path])
        elif kind == "container":
            own = self.directory / "data"
            own.mkdir()
            script = 'mount --bind "$0" "$1" && shift && exec "$@"'
            words = [sys.executable, "-c", WRITER, own / "stamps", "reopen"]
            words = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, path.parent, own, *words]
            process = self.start(kind, words)
        elif kind == "copy":  # a private copy of all mounts, in which the volume stays mounted
            words = [sys.executable, "-c", WRITER, path, "reopen"]
            process = self.start(kind, ["unshare", "--mount", "--propagation", "private", *words])
        else:
            process = self.start(kind, [sys.executable, "-c", WRITER, path, kind])
        let_pass(0.5)
        assert process.running
        return process

    def watch(self, *, lease_s: float, stop_s: float = STOP_S, held: Held = HELD) -> Process:
        """Start a watchdog for a lease that ends so many seconds from now."""
        self.lease.ends_at = boot_time() + lease_s
        write_plan(self.state, Plan(boot="b", keeper="k", lease_s=lease_s, stop_s=stop_s, volumes=(held,)))
        words = [sys.executable, "-m", "edge.fencing.watchdog", self.state, self.root, self.reset, f"{stop_s:g}", "k"]
        return self.start("watchdog", words)

    def mounts(self) -> list[str]:
        return self.machine.mounts(self.root)

    def end(self) -> None:
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                process.signal(signal.SIGCONT)
            process.kill()
        self.machine.power_off()
        self.lease.close()
        shutil.rmtree(self.storage)


@pytest.fixture
def world(short_dir: Path) -> Iterator[World]:
    world = World(short_dir)
    yield world
    world.end()


@pytest.mark.parametrize("kind", ["open", "reopen", "mapped", "container", "copy"])
def test_when_the_lease_ends_the_writer_is_killed_and_the_volume_unmounted(world: World, kind: str) -> None:
    writer = world.writer(kind)
    bystander = world.writer("open", world.other)
    watchdog = world.watch(lease_s=1.0)
    let_pass(0.5)
    assert writer.running
    wait_for(lambda: world.mounts() == [str(world.other)], what="unmounted volume", instead=watchdog.log_tail)
    wait_for(lambda: "fenced 1 volumes" in watchdog.output(), what="word of it", instead=watchdog.log_tail)
    assert boot_time() >= world.lease.ends_at + GRACE_S
    (world.data / "stamps").write_text("new\n")
    let_pass(0.3)
    assert (world.data / "stamps").read_text() == "new\n"
    assert (bystander.running, world.reset.read_text()) == (True, "")
    assert kind == "reopen" or writer.exit_status == -signal.SIGKILL


def test_what_a_driver_mounts_after_the_stop_is_unmounted_as_well(world: World) -> None:
    """Its call was under way when the lease ended, and the agent that made it is dead."""
    watchdog = world.watch(lease_s=0.0)
    wait_for(lambda: "fenced 1 volumes" in watchdog.output(), what="word of it", instead=watchdog.log_tail)
    subprocess.run(world.machine.inside(["mount", "--bind", world.data, world.mount]), check=True)
    writer = world.writer("open")
    assert writer.wait_exit(timeout_s=AGAIN_S + STOP_S) == -signal.SIGKILL
    wait_for(lambda: world.mounts() == [str(world.other)], what="unmounted volume", instead=watchdog.log_tail)


def test_while_the_lease_is_renewed_nothing_happens(world: World) -> None:
    writer = world.writer("open")
    world.watch(lease_s=1.0)
    for _ in range(10):
        let_pass(0.3)
        world.lease.ends_at = boot_time() + 1.0
    assert (writer.running, len(world.mounts()), world.lease.marked_at) == (True, 3, 0.0)


def test_a_stopped_writer_is_killed_as_well(world: World) -> None:
    writer = world.writer("open")
    writer.signal(signal.SIGSTOP)
    world.watch(lease_s=0.0)
    assert writer.wait_exit(timeout_s=STOP_S) == -signal.SIGKILL


def test_what_cannot_be_unmounted_in_time_ends_in_a_reset(world: World) -> None:
    """A mount below the volume keeps it busy, and no process holds it."""
    (world.data / "below").mkdir()
    subprocess.run(world.machine.inside(["mount", "-t", "tmpfs", "none", str(world.mount / "below")]), check=True)
    watchdog = world.watch(lease_s=0.0)
    wait_for(lambda: world.reset.read_text() == "b", what="reset", instead=watchdog.log_tail)


@pytest.mark.parametrize("is_alive", [False, True])
def test_a_drivers_open_call_ends_in_a_reset_unless_the_agent_writes_down_its_end(world: World, is_alive: bool) -> None:
    open_call = replace(HELD, open_calls=("stage",))
    watchdog = world.watch(lease_s=0.0, held=open_call)
    wait_for(lambda: world.mounts() == [str(world.other)], what="unmounted volume", instead=watchdog.log_tail)
    if is_alive:
        write_plan(world.state, Plan(boot="b", keeper="k", lease_s=0.0, stop_s=STOP_S, volumes=(HELD,)))
        wait_for(lambda: world.lease.done_at, what="end of the stop", instead=watchdog.log_tail)
        assert world.reset.read_text() == ""
    else:
        wait_for(lambda: world.reset.read_text() == "b", what="reset", instead=watchdog.log_tail)
        assert world.lease.done_at == 0.0


def test_a_volume_that_is_fenced_already_is_left_alone(world: World) -> None:
    writer = world.writer("open")
    world.watch(lease_s=0.0, held=replace(HELD, is_fenced=True))
    let_pass(1.5)
    assert writer.running


def test_a_watchdog_ends_when_a_later_agent_has_taken_the_plan_over(world: World) -> None:
    watchdog = world.watch(lease_s=60.0)
    let_pass(0.5)
    write_plan(world.state, Plan(boot="b", keeper="next", lease_s=60.0, stop_s=STOP_S, volumes=(HELD,)))
    assert watchdog.wait_exit(timeout_s=5.0) == 0


def test_agent_watchdog_and_writer_stopped_together_may_write_after_the_lease(world: World) -> None:
    """Why no machine may be suspended that fences: the watchdog fences soon after the resume, and not before it."""
    writer = world.writer("open")
    watchdog = world.watch(lease_s=0.7)
    let_pass(0.4)
    for process in (watchdog, writer):
        process.signal(signal.SIGSTOP)
    let_pass(1.5)
    assert (writer.running, len(world.mounts())) == (True, 3)
    resumed = time.monotonic()
    for process in (writer, watchdog):
        process.signal(signal.SIGCONT)
    assert writer.wait_exit(timeout_s=STOP_S) == -signal.SIGKILL
    assert time.monotonic() - resumed < STOP_S


def test_it_takes_few_megabytes(world: World) -> None:
    watchdog = world.watch(lease_s=60.0)
    let_pass(1.0)
    status = Path(f"/proc/{watchdog.pid}/status").read_text()
    resident = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
    assert resident < 32 * 1024, os.fspath(watchdog.log)


async def test_its_keeper_starts_it_again_and_leaves_it_alone_at_the_end(tmp_path: Path) -> None:
    keeper, watched = WatchdogKeeper(tmp_path, tmp_path, None), asyncio.Event()

    async def ready() -> None:
        watched.set()

    work = asyncio.create_task(keeper.run("k", STOP_S, ready))
    async with asyncio.timeout(30):
        await watched.wait()
        first = keeper.pid
        assert first is not None
        watched.clear()
        os.kill(first, signal.SIGKILL)
        await watched.wait()
    second = keeper.pid
    assert second is not None
    assert second != first
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    assert keeper.pid is None
    os.kill(second, signal.SIGKILL)  # it was there
    os.waitpid(second, 0)  # noqa: ASYNC222  # it is killed
