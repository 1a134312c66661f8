"""The agent's fencing: holds volumes under the lease of its hub, and stops their writers when the lease ends.

A volume asks for it by `csi-bridge.io/offline: fence` (`common.offline_policy`). The hub may let the volume go to
another node some time after the lease of this one has ended, without a word from it. So by then nothing here may write.

What holds, and what does not:

* The lease is the agent's own (`edge.controller_lease`). Its clock goes on in a suspend, and a pong counts from the
  sending of its ping. So the agent's lease ends before the hub counts it as over.
* An agent that works stops the writers itself. If it has died or hangs, its watchdog process does it
  (`edge.fencing.watchdog`). If the watchdog has died, too, the next start of the agent does it before anything else.
* What cannot be stopped in time, such as a process that the kernel does not end, is stopped by a reset of the machine
  (`--fence=reset`). With `--fence=software` the agent goes on trying, and such a process may still write late.
* **No software can fence on a machine that stands still as a whole** (suspended, a paused virtual machine, agent,
  watchdog and writer all stopped) and goes on after the lease: the first thing that runs may be the writer. The hub
  cannot tell such a machine from one that is cut off. So nothing is fenced by default. With any other `--fence`, the
  node's operator says that the machine never stands still as a whole. Otherwise such a volume is kept, as any other.
* Precedent: SBD and sanlock, which rely on a watchdog, and let others wait for a longer time than the node's own.

Rules:

* The policy counts when a volume is staged, until it is unstaged. A changed annotation counts for the next staging.
* Before a volume is staged, the plan on the disk names it, the watchdog runs, the lease holds, and the hub has stored
  that this agent fences it. The hub lets no other volume go by time.
* A fenced volume is wanted by no pod until it is unstaged by its driver. Then it is staged anew, under a new lease.
* What mounts a volume asks for the lease when the request leaves for the driver, and again for each file whose group
  the agent changes. A driver's call that is open when the lease ends may still mount: only its answer ends the stop.
  A call without an answer stays open, also for the next start of the agent, until it is repeated and has one, or what
  it mounts is unmounted by the driver.
* A volume that cannot be stopped keeps no other one waiting, and not the agent's start.
* A volume whose writers the agent cannot surely stop is fenced all the same, but the hub does not hear of it.
* A volume that an earlier boot fenced is not staged as any other one before the hub has heard that (`was_held`).
"""

import asyncio
import contextlib
import logging
import math
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

from common import offline_policy
from common.tasks import Tasks
from edge.controller_lease import ControllerLease, boot_time
from edge.disk.layout import Layout
from edge.disk.mounts import Mount, MountTable, read_table
from edge.disk.own_thread import in_own_thread
from edge.fencing.disks import block_of, is_in_use
from edge.fencing.holders import is_of, parts_of
from edge.fencing.plan import Held, LeaseFile, Part, Plan, read_plan, write_plan
from edge.fencing.stop import Ends, Stopped, mounts_of, stop_writers
from edge.fencing.watchdog import AGAIN_S, LATE_S, left
from edge.volume_errors import NON_FINAL, NotReady, Uncertain, Unended, VolumeError
from edge.volumes import Volume, VolumeKey

log = logging.getLogger("csi_bridge.edge.fence")

OFF: Final = "off"
RESET: Final = "reset"

_FIRST_PIDS: Final = "pid:[4026531836]"
"""The machine's first process id namespace (PROC_PID_INIT_INO of linux/proc_ns.h)."""


class Watchdog(Protocol):
    """Keeps the watchdog process running (`edge.fencing.keeper`)."""

    @property
    def pid(self) -> int | None:
        """The id of a process that watches; None while none does."""

    async def run(self, name: str, stop_s: float, ready: Callable[[], Awaitable[None]]) -> None:
        """Start it, and again whenever it ends. Calls `ready` each time it watches."""


Changed = Callable[[Collection[VolumeKey]], None]


class Fencing:
    """The fencing of one agent.

    Attributes:
        lease_s: the length of the lease that it needs, in seconds.
        stop_s: seconds after the lease's end in which all writers must have stopped. While the agent has volumes from
            its last start, both are at most those of that start, which the hub counts with.
    """

    def __init__(
        self,
        state_dir: Path,
        root: Path,
        *,
        mode: str,
        lease_s: float,
        stop_s: float,
        reset: Path | None,
        boot: str,
        clock: Callable[[], float] = boot_time,
        watchdog: Watchdog,
        stop: Callable[..., Stopped] = stop_writers,
        table: Callable[[Path], MountTable] = read_table,
        in_use: Callable[[str], bool] = is_in_use,
    ) -> None:
        """Take over the volumes of the last start.

        Args:
            state_dir: the agent's; exists.
            root: `--root-dir`.
            mode: `off`, `software` or `reset`.
            lease_s: the length of the agent's lease, in seconds.
            stop_s: seconds after the lease's end in which all writers must have stopped.
            reset: the file that resets the machine; None: it is never reset.
            boot: the id of the machine's present boot.
            clock: the boot clock.
            watchdog: keeps the watchdog process running.
            stop: stops the writers.
            table: reads the mount table.
            in_use: tells whether a block device is in use.

        Raises:
            NewerState: a newer agent wrote the plan.
            OSError: the files cannot be opened.
            ValueError: the plan is damaged or lost. Then nobody knows what to fence, and the hub counts on it.
        """
        self._state_dir, self._root, self._mode = state_dir, root, mode
        self._reset, self._boot, self._clock, self._stop = reset, boot, clock, stop
        self._table, self._in_use = table, in_use
        self._keeper = f"{os.getpid()}-{clock():.3f}"
        plan = read_plan(state_dir)
        is_lost = plan is None
        self._earlier = {VolumeKey(*each) for each in plan.earlier} if plan is not None else set()
        if plan is not None and plan.boot != boot:
            self._earlier |= {VolumeKey(held.driver, held.handle) for held in plan.volumes}
            plan = None
        self._held = {VolumeKey(held.driver, held.handle): held for held in plan.volumes} if plan is not None else {}
        self.lease_s, self.stop_s = lease_s, stop_s
        if plan is not None and plan.volumes:
            self.lease_s, self.stop_s = min(lease_s, plan.lease_s), min(stop_s, plan.stop_s)
        self._shared_file: LeaseFile | None = None
        if self.is_on or LeaseFile.exists(state_dir):
            self._shared_file = LeaseFile(state_dir, boot)
            if is_lost and self._shared.ends_at:
                self._shared_file.close()
                raise ValueError("it is missing, although this boot had a lease")
            if not self._held:
                self._shared.ends_at = self._shared.marked_at = 0.0
        self._lease: ControllerLease
        self._subscribers: list[Changed] = []
        self._stopped: dict[VolumeKey, str] = {}
        """The fenced volumes whose writers have stopped, each with what was done."""
        self._stopping: set[VolumeKey] = set()
        """The volumes whose writers are being stopped at this moment."""
        self._is_stuck = False
        """Whether not all writers could be stopped at the last try. The next ones are short: others may be waiting."""
        self._is_lost = False
        self._work: asyncio.Task[None] | None = None
        self._more = asyncio.Event()
        """More volumes are to be fenced."""
        self._watchdog = watchdog
        self._writing = asyncio.Lock()
        self._is_written = True
        """Whether the disk has what was last to be written."""

    @property
    def _shared(self) -> LeaseFile:
        assert self._shared_file is not None, "nothing is fenced"
        return self._shared_file

    @property
    def is_on(self) -> bool:
        """Whether volumes may be fenced: the operator has said so, or some are held since the last start."""
        return self._mode != OFF or bool(self._held)

    # ---- start and end -----------------------------------------------------------------------------------------------

    async def start(self, lease: ControllerLease, tasks: Tasks) -> None:
        """Fence first if the lease has ended while no agent ran. Then start the watchdog, and go on with the lease."""
        self._lease = lease
        if not self.is_on:
            return
        if read_plan(self._state_dir) is None:  # a lease without a plan is taken for a loss (`__init__`)
            await self._watched()
        lease.renewed = self._renewed
        if any(not held.is_fenced for held in self._held.values()):
            if self._clock() >= self._shared.ends_at or self._shared.marked_at:
                self._mark_all()
                if self._shared.done_at >= self._shared.ends_at:
                    self._drop_parts(self._fenced())
                await self._stop_all()
            else:  # from now on the hub counts with this agent's length, which may be shorter than the one before
                self._shared.ends_at = min(self._shared.ends_at, self._clock() + self.lease_s)
                lease.resume(self._shared.ends_at)
                lease.begin(self, is_operation=False)
        if self._fenced():
            self._is_lost = True
            lease.need()
            lease.wait(self._back)
            self._keep_on()
        tasks.start(self._watchdog.run(self._keeper, self.stop_s, self._watched), name="watchdog")

    async def close(self) -> None:
        """Stop looking after fenced volumes. The watchdog goes on while there are volumes to fence."""
        if self._work is not None:
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)
        if self._shared_file is not None:
            self._shared_file.close()

    # ---- for the volumes' tasks --------------------------------------------------------------------------------------

    def refusal(self, volume: Volume) -> str:
        """Why a volume that asks for `fence` is kept on this node; empty if it is fenced."""
        if self._mode == OFF:
            return "its agent runs with --fence=off"
        if not volume.rules.attach_required:
            return f"the CSIDriver {volume.driver} has attachRequired: false, so no volume of it is ever detached"
        if volume.block:
            return "its volumeMode is Block, and the agent cannot take an open device from a process"
        return ""

    def obstacle(self, volume: Volume) -> str:
        """Why a volume that asks for `fence` cannot be mounted now; empty if it can, or if it is kept."""
        if volume.key not in self._held and (not volume.fence or self.refusal(volume)):
            return ""
        if volume.key in self._stopping or self.is_fenced(volume.key):
            return "it is fenced, and is unmounted first"
        if self._shared.is_locked():
            return "the watchdog process is stopping the writers of volumes"
        if self._watchdog.pid is None:
            return "the agent's watchdog process does not run yet"
        if not self._lease.need():
            self._lease.wait(self._back)
            return "the agent has no answer of the hub yet, and may not mount a volume with fence without one"
        return ""

    def is_held(self, key: VolumeKey) -> bool:
        """Whether a volume is fenced when the lease ends."""
        return key in self._held

    def is_fenced(self, key: VolumeKey) -> bool:
        """Whether the lease has ended while the node had the volume, and it is not unstaged yet."""
        held = self._held.get(key)
        return held is not None and held.is_fenced

    def was_held(self, key: VolumeKey) -> bool:
        """Whether an earlier boot fenced a volume, so that the hub may believe that this one does."""
        return key in self._earlier

    async def heard(self, key: VolumeKey) -> None:
        """Note that the hub has heard, in this boot, which volumes are fenced: `was_held` is over for this one."""
        if key in self._earlier:
            self._earlier.discard(key)
            await self._write_if_possible()  # else it is heard once more

    def stopped(self, key: VolumeKey) -> str:
        """What was done to stop the writers of a fenced volume; empty while that is not done."""
        return self._stopped.get(key, "")

    def doubt(self, key: VolumeKey) -> str:
        """Why the agent cannot be sure to stop all writers of a volume that it fences; empty if it can."""
        held = self._held.get(key)
        return held.doubt if held is not None else ""

    async def hold(self, volume: Volume, call: str = "") -> None:
        """Fence a volume from now on when the lease ends. Called before its first staging.

        Args:
            volume: the volume.
            call: the driver's call that may mount it and is about to begin; empty: none.

        Raises:
            NotReady: the plan cannot be written.
        """
        old = self._held.get(volume.key)
        new = Held(volume.driver, volume.handle, ()) if old is None else old
        pvs = tuple(dict.fromkeys((*new.pvs, volume.name)))
        new = replace(new, pvs=pvs, open_calls=_with(new.open_calls, call))
        if new == old and self._is_written:
            return
        self._held[volume.key] = new
        try:
            await self._write()
        except OSError as error:
            if old is None:
                self._held.pop(volume.key, None)
            elif (now := self._held.get(volume.key)) is not None:
                self._held[volume.key] = replace(now, open_calls=old.open_calls)
            raise NotReady(f"the agent cannot write down that it has to fence the volume: {error}") from error
        if old is None:
            self._lease.begin(self, is_operation=False)
            self._tell([volume.key])

    @contextlib.asynccontextmanager
    async def mounting(self, volume: Volume, call: str) -> AsyncIterator[Callable[[], bool]]:
        """Let a driver mount a volume. Gives a function that tells whether that may begin, or go on, at a moment.

        Args:
            volume: the volume.
            call: names the call among those of the volume. The answer to a later one of the same name tells of its end.

        Raises:
            NotReady: the volume is fenced, and cannot be mounted now (`obstacle`), or the plan cannot be written.
            Uncertain: the driver has mounted it, and the plan cannot be written.
        """
        key = volume.key
        if key not in self._held:
            yield lambda: True
            return
        if why := self.obstacle(volume):
            raise NotReady(why)
        was_open = call in self._held[key].open_calls
        await self.hold(volume, call)  # it may have another name by now
        has_begun = False

        def may_go_on() -> bool:
            nonlocal has_begun
            may = self._lease.holds() and not self.is_fenced(key)
            has_begun = has_begun or may
            return may

        is_open = True
        try:
            yield may_go_on
            is_open = False
        except Unended:
            raise
        except VolumeError as error:
            says_nothing = isinstance(error, NotReady) or error.code in NON_FINAL
            is_open = was_open and says_nothing
            raise
        finally:
            is_open = is_open if has_begun else was_open
            if (new := await self._looked_at(key)) is not None:
                await self._change(key, new if is_open else _without(new, call))

    async def unmounted(self, key: VolumeKey, call: str) -> None:
        """Forget a call, and the devices that the volume no longer has. Called after the driver has unpublished it."""
        if (new := await self._looked_at(key)) is not None:
            with contextlib.suppress(Uncertain):  # the next write of the plan has it
                await self._change(key, _without(new, call))

    async def _looked_at(self, key: VolumeKey) -> Held | None:
        """A held volume with what is mounted for it now; None if it is not held."""
        seen = self._held.get(key)
        if seen is None or key in self._stopped:
            return seen
        mounts, parts = await in_own_thread(partial(self._parts, seen), name="mount table")
        held = self._held.get(key)
        if held is None or key in self._stopped:
            return held
        if served := next((mount.fs_type for mount in mounts if mount.fs_type.startswith("fuse")), ""):
            doubt = f"a process serves its file system ({served}), and may write after the unmount"
            held = replace(held, doubt=doubt)
        return replace(held, parts=parts)

    def _parts(self, held: Held) -> tuple[list[Mount], tuple[Part, ...]]:
        """A volume's mounts, and its parts.

        A device that is still in use stays a part: somebody may have unmounted it lazily, and it has a writer. Any
        other may be another volume's soon.
        """
        table, ends = self._table(self._root), Ends([held], Layout(self._root))
        mounts = mounts_of(held, table, self._root)
        parts = parts_of(mounts)
        others = [mount for mount in table.mounts if ends.are_anothers(mount.path)]
        for part in set(held.parts) - parts:
            if self._in_use(block_of(part[0], part[2])) and not any(is_of(mount, part) for mount in others):
                parts.add(part)
        return mounts, tuple(sorted(parts))

    async def have_doubt(self, key: VolumeKey, why: str) -> None:
        """Note that the agent cannot be sure to stop all writers of a volume, so that the hub waits for the node.

        Raises:
            Uncertain: the plan cannot be written.
        """
        if (held := self._held.get(key)) is not None:
            await self._change(key, replace(held, doubt=why))

    async def _change(self, key: VolumeKey, new: Held) -> None:
        old = self._held[key]
        if new == old and self._is_written:
            return
        self._held[key] = new
        if new.doubt != old.doubt:
            self._tell([key])
        try:
            await self._write()
        except OSError as error:
            raise Uncertain(f"the agent cannot write down how it fences the volume: {error}") from error

    async def let_go(self, key: VolumeKey) -> None:
        """Fence a volume no more: it is unstaged."""
        if self._held.pop(key, None) is None:
            await self.heard(key)
            return
        self._earlier.discard(key)
        self._stopped.pop(key, None)
        await self._write_if_possible()  # else the next start drops it
        if not self._held:
            self._lease.end(self)
        self._tell([key])

    async def keep_only(self, keys: Iterable[VolumeKey]) -> None:
        """Let all others go: an earlier start has unstaged them."""
        for key in (self._held.keys() | self._earlier) - set(keys):
            await self.let_go(key)

    # ---- reports -----------------------------------------------------------------------------------------------------

    def subscribe(self, changed: Changed) -> None:
        """Call `changed` with the volumes whose fencing has changed."""
        self._subscribers.append(changed)

    def told(self) -> dict[str, Any]:
        """The part of the fact about the Node (`common.offline_policy`); empty if the agent fences nothing."""
        if not self._held:
            return {}
        sure = [str(key) for key, held in self._held.items() if not held.doubt]
        return offline_policy.write(math.ceil(self.lease_s), math.ceil(self.stop_s), sure)

    def problems(self) -> list[str]:
        """A sentence for each fenced volume, and one if no watchdog runs."""
        found = [
            f"volume {key} is fenced, because the hub did not answer for {self.lease_s:g} s: "
            f"{self.stopped(key) or 'its writers are being stopped'}"
            for key in self._fenced()
        ]
        if self._held and self._watchdog.pid is None:
            found.append("the watchdog process does not run: if the agent hangs now, nobody fences its volumes")
        return found

    def _tell(self, keys: Collection[VolumeKey]) -> None:
        for changed in list(self._subscribers):
            changed(keys)

    # ---- the lease ---------------------------------------------------------------------------------------------------

    def lose(self) -> None:
        """The lease has ended (`controller_lease.Leased`): stop all writers."""
        self._is_lost = True
        keys = self._mark_all()
        self._lease.wait(self._back)
        self._keep_on()
        self._tell(keys)

    def _renewed(self, ends_at: float) -> None:
        """The lease ends later now. First the memory says so, then the watchdog's mark counts (see there)."""
        self._shared.ends_at = ends_at
        if self._shared.marked_at and not self._is_lost:
            self._lease.end(self)
            self.lose()

    def _back(self) -> None:
        """The hub answers again."""
        self._is_lost = False
        self._shared.marked_at = 0.0
        if any(not held.is_fenced for held in self._held.values()):
            self._lease.begin(self, is_operation=False)
        self._tell(())

    # ---- fencing -----------------------------------------------------------------------------------------------------

    def _fenced(self) -> list[VolumeKey]:
        return [key for key, held in self._held.items() if held.is_fenced]

    def _mark_all(self) -> list[VolumeKey]:
        keys = [key for key, held in self._held.items() if not held.is_fenced]
        for key in keys:
            self._held[key] = replace(self._held[key], is_fenced=True)
        return keys

    def _keep_on(self) -> None:
        """Stop the writers of fenced volumes, again and again until the drivers have unstaged them."""
        self._more.set()
        if self._work is None or self._work.done():
            self._work = asyncio.create_task(self._keep_stopped(), name="fence")

    async def _keep_stopped(self) -> None:
        while self._fenced():
            self._more.clear()
            try:
                await self._stop_all()
                if not self._is_written:
                    await self._write_if_possible()
            except Exception:
                log.exception("the agent failed to stop the writers of volumes, and tries again")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(AGAIN_S):
                    await self._more.wait()

    async def _stop_all(self) -> None:
        keys = self._fenced()
        stop_s = min(LATE_S, self.stop_s) if self._is_stuck else left(self._shared.ends_at, self.stop_s)
        self._is_stuck = not await self._stop_some(keys, stop_s)
        if not self._is_stuck:
            if self._held.keys() == set(keys):
                self._shared.done_at = self._clock()
        elif self._reset is None:  # one whose writers cannot be stopped keeps no other waiting
            for key in keys:
                if not self._more.is_set():
                    await self._stop_some([key], LATE_S)

    async def _stop_some(self, keys: list[VolumeKey], stop_s: float) -> bool:
        """Try to stop the writers of some fenced volumes. Returns whether they have all stopped."""
        volumes = [self._held[key] for key in keys if key in self._held]
        spared = [self._watchdog.pid] if self._watchdog.pid is not None else []
        self._stopping.update(keys)
        try:
            done = await in_own_thread(
                lambda: self._stop(
                    volumes,
                    self._root,
                    stop_s=stop_s,
                    reset=self._reset,
                    spared=spared,
                    is_mounting=lambda: any(held.open_calls for key in keys if (held := self._held.get(key))),
                ),
                name="fence",
            )
        finally:
            self._stopping.difference_update(keys)
        if done.is_done:
            await self._note_stopped(keys, done)
        return done.is_done

    async def _note_stopped(self, keys: list[VolumeKey], done: Stopped) -> None:
        self._drop_parts(keys)
        new = [key for key in keys if key in self._held and key not in self._stopped]
        if new:
            log.warning("no answer of the hub for %g s: fenced %d volumes: %s", self.lease_s, len(new), done)
            self._stopped |= dict.fromkeys(new, str(done))
            await self._write_if_possible()  # else the next start stops them once more
            self._tell(new)

    def _drop_parts(self, keys: Collection[VolumeKey]) -> None:
        """Forget the devices of volumes whose writers have stopped: the hub may let them go, and others get them."""
        for key in self._held.keys() & set(keys):
            self._held[key] = replace(self._held[key], parts=())

    async def _watched(self) -> None:
        """The watchdog of this start watches: that of an earlier start is not needed any more."""
        try:
            await self._write()
        except OSError as error:
            log.warning("the plan of volumes to fence cannot be written: %s", error)
        self._tell(())

    async def _write(self) -> None:
        """Write the plan.

        Raises:
            OSError: it cannot be written.
        """
        async with self._writing:
            volumes, times = tuple(self._held.values()), {"lease_s": self.lease_s, "stop_s": self.stop_s}
            earlier = tuple((key.driver, key.handle) for key in sorted(self._earlier))
            plan = Plan(boot=self._boot, keeper=self._keeper, volumes=volumes, earlier=earlier, **times)
            self._is_written = False
            await asyncio.to_thread(write_plan, self._state_dir, plan)
            self._is_written = True

    async def _write_if_possible(self) -> None:
        """Write the plan. After a failure `_is_written` is false, and the next write of the agent has it all."""
        with contextlib.suppress(OSError):
            await self._write()


def _with(calls: tuple[str, ...], call: str) -> tuple[str, ...]:
    return calls if not call or call in calls else (*calls, call)


def _without(held: Held, call: str) -> Held:
    return replace(held, open_calls=tuple(each for each in held.open_calls if each != call))


def why_not_here(reset: Path | None) -> str:
    """Why this process cannot stop every writer of its machine; empty if it can."""
    if os.geteuid() != 0:
        return "the agent does not run as root, so it cannot stop the processes of its node"
    if str(Path("/proc/self/ns/pid").readlink()) != _FIRST_PIDS:
        return "the agent runs in a container with process ids of its own, so it cannot see the processes of its node"
    if reset is not None and not os.access(reset, os.W_OK):
        return f"{reset} cannot be written (--fence-reset), so the agent cannot reset the machine"
    return ""
