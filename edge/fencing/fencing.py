"""The agent's fencing: holds volumes under the lease of its hub, and shuts their file systems down when the lease ends.

A PersistentVolume or its StorageClass opts in with `csi-bridge.io/offline: fence` (`common.objects.offline_policy`).
The hub may give a staged volume to another node some time after this node's lease has ended, without an answer from
this node. By then nothing here may write.

Rules:

* The lease is the agent's own (`edge.calls.controller_lease`). Its clock goes on in a suspend, and a pong counts from
  the sending of its ping. So the agent's lease ends before the hub counts it as over.
* One thread checks the lease, fences, and pets the watchdog. It pets only while the lease holds, or once every staged
  volume is fenced. If the agent dies or hangs, or a file system cannot be shut down, the kernel resets the machine.
* Before a driver call that may mount, format or grow a volume, the agent reports `staging`. It begins the call only
  when the hub has stored that report, and while the lease holds. Afterwards it reports `staged`.
* A call without an answer stays open, across restarts of the agent, until a repeat is answered or the driver has
  unmounted the volume. After a reboot no call is open, and all earlier volumes count as `staging`.
* After the lease the hub gives only `staged` volumes to another node. So a volume with an open call, whose driver may
  still mount, needs no fence.
* The policy is read when a volume is staged, and holds until it is unstaged. A volume that cannot be fenced
  (`edge.fencing.fenced_volumes`) is exempt: the lease does not hold it, and the agent never reports it as `staged`.
* The agent unmounts a fenced volume even if processes still use it. It stages the volume again, under a new lease, only
  when the kernel has released the file system.
* **No software can fence on a machine that is paused as a whole** and goes on after the lease: the first thing that
  runs may be the writer. So nothing is fenced by default. With `--fence=on` the operator declares that this machine is
  never paused.
"""

import asyncio
import logging
import math
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from common.errors import SettingsError
from common.objects import offline_policy
from edge.calls.controller_lease import ControllerLease, boot_time
from edge.disk.mounts import read_table
from edge.disk.own_thread import in_own_thread
from edge.fencing.fenced_volumes import NotFenceable, OwnPaths, file_system_of
from edge.fencing.plan import FencePlan, FileSystem, HeldVolume, read_lease, read_plan, write_lease, write_plan
from edge.fencing.shutdown import has_holders, shut_down
from edge.fencing.trial import flaw_of
from edge.fencing.watchdog import Watchdog
from edge.volume_errors import NotReady, Uncertain, VolumeError, VolumeRefused
from edge.volumes import Volume, VolumeKey

log = logging.getLogger("csi_bridge.edge.fence")

_CHECK_S: Final = 0.5  # between two checks of the thread; `watchdog.LEAST_S` is many times longer

Changed = Callable[[Collection[VolumeKey]], None]


class _FenceState:
    def __init__(self, plan_entry: HeldVolume) -> None:
        self.plan_entry = plan_entry
        self.is_reported_staging = False  # the agent reports `staging`, even if the plan says `staged`
        # The volume's file system, if the lease has ended while the volume was staged. It stays after the shutdown.
        self.lost_file_system = plan_entry.file_system if plan_entry.is_fenced else None
        self.why = ""  # why the lost file system cannot be shut down, or how to find the processes that hold it
        self.thread: threading.Thread | None = None  # the last thread that was to shut it down; it may hang


class Fencing:
    """The fencing of one agent."""

    def __init__(
        self, state_dir: Path, root: Path, *, is_wanted: bool, lease_s: float, boot: str, watchdog: Watchdog
    ) -> None:
        """Take over the volumes of the last start. `lease_s` is the agent's, `boot` the id of the present boot.

        Raises SettingsError, OSError, or ValueError if the plan is damaged or lost: the volumes to fence are then
        unknown.
        """
        self._state_dir = state_dir
        self._root = root
        self._is_wanted = is_wanted
        self._boot = boot
        self._watchdog = watchdog
        plan = read_plan(state_dir)
        ends_at = read_lease(state_dir, boot)
        if plan is None and ends_at is not None:
            raise ValueError("it is missing, although this boot had a lease")
        plan = plan or FencePlan()
        # A reboot has ended all calls and mounts.
        unmounted: dict[str, Any] = {"open_calls": (), "file_system": None, "is_fenced": False}
        entries = [entry if entry.boot == boot else replace(entry, **unmounted) for entry in plan.volumes]
        self._volumes = {VolumeKey(entry.driver, entry.handle): _FenceState(entry) for entry in entries}
        # The length in seconds of the lease that the agent needs. While the agent has volumes from its last start, the
        # lease is not longer than the one it had then: the hub still counts with that length.
        self.lease_s = min(lease_s, plan.lease_s) if self._holds_volumes else lease_s
        # The watchdog's time with which the hub counts; 0 before the watchdog was opened.
        self._watchdog_s = plan.watchdog_s if self._holds_volumes else 0
        self._ends_at = ends_at or 0.0
        self._exempt: dict[VolumeKey, str] = {}  # why a volume is exempt
        self._flaws: dict[str, str] = {}  # by file system type, the result of the trial
        self._trying = asyncio.Lock()
        self._writing = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fence", daemon=True)
        self._watchdog_error = "it was not opened yet"
        self._lease: ControllerLease
        self._loop: asyncio.AbstractEventLoop
        self._changed: Changed = lambda _: None
        self._tell_hub: Callable[[], None] = lambda: None
        self._acked: Callable[[], Awaitable[None]]

    @property
    def _holds_volumes(self) -> bool:
        return any(state.plan_entry.boot == self._boot for state in self._volumes.values())

    @property
    def is_on(self) -> bool:
        return self._is_wanted or self._holds_volumes

    # ---- start and end -----------------------------------------------------------------------------------------------

    async def start(self, lease: ControllerLease) -> None:
        """Fence first if the lease has ended while no agent ran. Else open the watchdog, and go on with the lease."""
        self._lease = lease
        self._loop = asyncio.get_running_loop()
        if not self.is_on:
            return
        lease.renewed = self._renewed
        now = boot_time()
        if self._holds_volumes and now < self._ends_at:
            # From now on the hub counts with the length of this agent's lease.
            self._ends_at = min(self._ends_at, now + self.lease_s)
            lease.resume(self._ends_at)
        self.check(now)  # fences, or opens the watchdog with the first pet
        if not self._watchdog.is_open and not self._holds_volumes:
            raise SettingsError("--watchdog", str(self._watchdog.path), f"cannot be used: {self._watchdog_error}")
        self._join_lease()
        self._thread.start()

    async def close(self) -> None:
        """End the thread. The watchdog runs on while volumes are held: the next start of the agent pets it."""
        self._stopping.set()
        if self._thread.is_alive():
            await in_own_thread(self._thread.join, name="end of the fence")
        self._watchdog.close(stops=not self._holds_volumes)

    def subscribe(self, changed: Changed, tell_hub: Callable[[], None], acked: Callable[[], Awaitable[None]]) -> None:
        """`changed` gets the volumes that are fenced or let go, or no volume if any volume may be mounted now.

        `tell_hub` is called when `told` has changed. `acked` returns when the hub has stored the last report.
        """
        self._changed = changed
        self._tell_hub = tell_hub
        self._acked = acked

    # ---- for the volumes' tasks --------------------------------------------------------------------------------------

    def refusal(self, volume: Volume) -> str:
        """Why a volume that asks for `fence` cannot be fenced on this node; empty if it may be fenced."""
        if not self._is_wanted:
            return "its agent runs with --fence=off"
        if not volume.rules.attach_required:
            return f"the CSIDriver {volume.driver} has attachRequired: false, so no volume of it is ever detached"
        return "its volumeMode is Block, and only a file system can be shut down" if volume.block else ""

    def obstacle(self, volume: Volume) -> str:
        """Why a volume that asks for `fence` cannot be mounted now; empty if it can, or if it is exempt.

        The volume needs the lease: without one, the subscriber's `changed` is called when the lease is back.
        """
        if volume.key not in self._volumes and (not volume.fence or self.refusal(volume)):
            return ""
        if self.is_fenced(volume.key):
            return "it is fenced, and is unmounted first"
        if not self._watchdog.is_open:
            return f"the machine's watchdog cannot be used: {self._watchdog_error}"
        if not self._lease.need():
            self._lease.wait(self._lease_is_back)
            return "the agent has no answer of the hub yet, and may not mount a volume with fence without one"
        return ""

    def is_held(self, key: VolumeKey) -> bool:
        """Whether the plan has a volume: it is staged or being staged, or it was in an earlier boot.

        The hub may not know of the reboot, and may still count a volume of an earlier boot.
        """
        return key in self._volumes

    def is_fenced(self, key: VolumeKey) -> bool:
        """Whether the lease has ended while the node had the volume, and it is not unstaged yet."""
        return key in self._volumes and self._volumes[key].lost_file_system is not None

    def fence_report(self, key: VolumeKey) -> str:
        """How a volume was fenced, and how to find the processes that hold it; empty until it is fenced."""
        state = self._volumes.get(key)
        if state is None or state.lost_file_system is None or not state.plan_entry.is_fenced:
            return ""
        report = "its file system is shut down"
        return f"{report}; {state.why}" if state.why else report

    def why_exempt(self, key: VolumeKey) -> str:
        return self._exempt.get(key, "")

    async def hold(self, volume: Volume) -> None:
        """From now on, fence a volume when the lease ends. Called before its first staging."""
        state = self._volumes.get(volume.key)
        if state is None or state.plan_entry.boot != self._boot:
            entry = HeldVolume(driver=volume.driver, handle=volume.handle, boot=self._boot)
            await self._change(volume.key, entry, NotReady)
            self._renewed(self._ends_at)  # the lease is written down from the first volume on
            self._join_lease()
            self._tell_hub()

    @asynccontextmanager
    async def mounting(self, volume: Volume, call: str) -> AsyncIterator[Callable[[], bool]]:
        """Let a driver mount, format or grow a volume. Gives a function that returns whether the driver may go on.

        The answer to a later call of the same name (`call`) also ends this call. Raises NotReady; Uncertain, if the
        driver has mounted the volume and the plan cannot be written.
        """
        key = volume.key
        if key not in self._volumes:
            yield lambda: True
            return
        was_open = call in self._volumes[key].plan_entry.open_calls
        has_begun = False
        await self._begin_call(volume, call)

        def may_go_on() -> bool:
            nonlocal has_begun
            may = self._lease.holds() and not self.is_fenced(key)
            has_begun = has_begun or may
            return may

        try:
            yield may_go_on
        except VolumeError as error:
            is_over = not was_open  # an earlier call of this name may still mount
            if has_begun:
                is_over = isinstance(error, VolumeRefused)  # after another error the driver may still mount
            if is_over:
                with suppress(VolumeError):  # the next try of the step reports the end
                    await self._end_call(key, call)
            raise
        await self._end_call(key, call)

    async def unmounted(self, key: VolumeKey, call: str) -> None:
        """Forget a call that may have mounted the volume: the driver has unpublished it."""
        if key in self._volumes and call in self._volumes[key].plan_entry.open_calls:
            with suppress(VolumeError):  # the call stays open until the volume is unstaged
                await self._end_call(key, call)

    async def exempt(self, key: VolumeKey, why: str) -> None:
        """Fence a volume no more: it cannot be fenced, or must not be.

        On return the hub has stored that the volume is not `staged`. So the hub never gives it to another node only
        because the lease has ended.
        """
        state = self._volumes.get(key)
        if state is None:
            return
        # The entry first loses its file system: from then on the thread cannot fence the volume. If the thread has
        # fenced it before, `_change` raises.
        with self._reporting_staging(state):
            await self._wait_until_stored()
            await self._change(key, replace(state.plan_entry, file_system=None), NotReady)
        await self._change(key, None, NotReady)
        self._exempt[key] = why

    async def check_released(self, key: VolumeKey) -> None:
        """Raise Uncertain until the kernel has let a fenced file system go: a mount before that would get EIO."""
        state = self._volumes.get(key)
        if state is not None and state.lost_file_system is not None:
            is_free = not await in_own_thread(partial(has_holders, state.lost_file_system), name="holders")
            state.why = "" if is_free else _how_to_find_holders(state.lost_file_system)
            if state.why:
                raise Uncertain(f"it is fenced: {state.why}")

    async def let_go(self, key: VolumeKey) -> None:
        self._exempt.pop(key, None)
        if key in self._volumes:
            await self._change(key, None, Uncertain)
            self._changed([key])

    async def release_others(self, keys: Iterable[VolumeKey]) -> None:
        """Let all volumes but these go: an earlier start has unstaged the others."""
        for key in self._volumes.keys() - set(keys):
            await self.let_go(key)

    # ---- reports -----------------------------------------------------------------------------------------------------

    def told(self) -> dict[str, Any]:
        """The part of the fact about the Node (`common.objects.offline_policy`); empty if the agent fences nothing."""
        if not self._holds_volumes:
            return {}
        staged = {
            key
            for key, state in self._volumes.items()
            if state.plan_entry.file_system is not None and not state.is_reported_staging
        }
        staging = self._volumes.keys() - staged
        return offline_policy.write(
            math.ceil(self.lease_s), self._watchdog_s, {str(key) for key in staged}, {str(key) for key in staging}
        )

    def problems(self) -> list[str]:
        problems = [
            f"volume {key} is fenced, because the hub did not answer for {self.lease_s:g} s: "
            f"{self.fence_report(key) or f'its file system is being shut down {state.why}'}"
            for key, state in self._volumes.items()
            if state.lost_file_system is not None
        ]
        if self.is_on and not self._watchdog.is_open:
            problems.append(f"the machine's watchdog cannot be used (--watchdog): {self._watchdog_error}")
        return problems

    # ---- staging and staged ------------------------------------------------------------------------------------------

    async def _begin_call(self, volume: Volume, call: str) -> None:
        state = self._volumes[volume.key]
        self._raise_obstacle(volume)
        with self._reporting_staging(state):
            await self._wait_until_stored()
            self._raise_obstacle(volume)
            old = state.plan_entry
            names = tuple(dict.fromkeys((*old.pvs, volume.name)))  # the volume may have another PersistentVolume now
            calls = tuple(dict.fromkeys((*old.open_calls, call)))
            new = replace(old, boot=self._boot, pvs=names, open_calls=calls, file_system=None)
            await self._change(volume.key, new, NotReady)

    async def _end_call(self, key: VolumeKey, call: str) -> None:
        # If it was the last call, and the volume can be fenced, the volume is staged.
        state = self._volumes.get(key)
        if state is None:
            return
        # If the lease has ended, the thread shuts the file system down, or has done so, and notes that in
        # `plan_entry`. The entry stays, with its open calls, until the volume is unstaged (`let_go`).
        if state.lost_file_system is not None:
            return
        calls = tuple(each for each in state.plan_entry.open_calls if each != call)
        without_call = replace(state.plan_entry, open_calls=calls)
        entry: HeldVolume | None = without_call
        if not calls:
            try:
                entry = replace(without_call, file_system=await self._examined(without_call))
            except NotFenceable as error:
                entry = None
                self._exempt[key] = str(error)
        await self._change(key, entry, Uncertain)
        self._tell_hub()

    async def _examined(self, entry: HeldVolume) -> FileSystem | None:
        own = OwnPaths(entry, self._root)

        def examine() -> FileSystem | None:
            return file_system_of(read_table(self._root, whole=True), own)

        file_system = await in_own_thread(examine, name="mount table")
        if file_system is not None:
            fs_type = file_system.fs_type
            async with self._trying:
                if fs_type not in self._flaws:
                    trial = partial(flaw_of, fs_type, self._state_dir / "fence-trial")
                    self._flaws[fs_type] = await in_own_thread(trial, name="trial of the fence")
            if why := self._flaws[fs_type]:
                raise NotFenceable(why)
        return file_system

    def _raise_obstacle(self, volume: Volume) -> None:
        if why := self.obstacle(volume):
            raise NotReady(why)

    @contextmanager
    def _reporting_staging(self, state: _FenceState) -> Iterator[None]:
        state.is_reported_staging = True
        self._tell_hub()
        try:
            yield
        finally:
            state.is_reported_staging = False
            self._tell_hub()

    async def _wait_until_stored(self) -> None:
        try:
            # After this time the lease has ended, unless the hub answers.
            async with asyncio.timeout(self.lease_s):
                await self._acked()
        except TimeoutError:
            raise NotReady("the hub has not confirmed whether the volume is staged (fence)") from None

    # ---- the plan ----------------------------------------------------------------------------------------------------

    async def _change(self, key: VolumeKey, entry: HeldVolume | None, error_class: type[VolumeError]) -> None:
        # `entry` None: hold the volume no more.
        try:
            await asyncio.to_thread(self._write, {key: entry})
        except OSError as error:
            raise error_class(f"the agent cannot write down how it has to fence the volume: {error}") from error
        if entry is not None and self.is_fenced(key):  # the thread may have fenced it during the write
            raise error_class("it is fenced, and is unmounted first")
        if not self._holds_volumes:
            self._lease.end(self)

    def _write(self, change: Mapping[VolumeKey, HeldVolume | None]) -> None:
        # First on the disk, and then in memory: after an OSError the old plan stays. Called in any thread.
        with self._writing:
            changed = {key: state.plan_entry for key, state in self._volumes.items()} | dict(change)
            entries = {key: entry for key, entry in changed.items() if entry is not None}
            try:
                plan = FencePlan(lease_s=self.lease_s, watchdog_s=self._watchdog_s, volumes=tuple(entries.values()))
                write_plan(self._state_dir, plan)
            except OSError:
                if len(entries) == len(changed):
                    raise
                # Removals may stay unwritten: the next start drops those volumes (`release_others`).
                log.warning("the next start of the agent drops the volumes that are fenced no more: fence.json is old")
            # A new dict: the old one may be in use in another thread.
            self._volumes = {key: self._volumes.get(key) or _FenceState(entry) for key, entry in entries.items()}
            for key in change.keys() & entries.keys():
                self._volumes[key].plan_entry = entries[key]

    # ---- the lease ---------------------------------------------------------------------------------------------------

    def _join_lease(self) -> None:
        # From `begin` on, the lease calls `lose` when it ends. Without a lease, the agent waits for one.
        if not self._holds_volumes:
            return
        if self._lease.need():
            self._lease.begin(self)
        else:
            self._lease.wait(self._lease_is_back)

    def lose(self) -> None:
        """The lease has ended (`controller_lease.Leased`). The thread fences."""
        self._lease.wait(self._lease_is_back)

    def _lease_is_back(self) -> None:
        self._join_lease()
        self._changed(())

    def _renewed(self, ends_at: float) -> None:
        self._ends_at = ends_at
        if self._holds_volumes:
            try:
                write_lease(self._state_dir, self._boot, ends_at)
            except OSError as error:  # the next start fences too early
                log.warning("the end of the lease cannot be written down: %s", error)

    # ---- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.wait(_CHECK_S):
            try:
                self.check(boot_time())
            except Exception:
                log.exception("the agent failed to look after its lease, and tries again")

    def check(self, now: float) -> None:
        """Fence the staged volumes if the lease is over (boot clock), and pet the watchdog if the rules allow it."""
        is_over = now >= self._ends_at
        is_all_fenced = True
        for key, state in self._volumes.items():
            if is_over and state.lost_file_system is None and state.plan_entry.file_system is not None:
                state.lost_file_system = state.plan_entry.file_system
                self._in_loop(partial(self._changed, [key]))
            if state.lost_file_system is not None and not state.plan_entry.is_fenced:
                is_all_fenced = False
                if state.thread is None or not state.thread.is_alive():
                    state.thread = threading.Thread(
                        target=self._shut_down, args=(key, state, state.lost_file_system), name="shutdown", daemon=True
                    )
                    state.thread.start()
        if not is_over or is_all_fenced:
            self._pet()

    def _shut_down(self, key: VolumeKey, state: _FenceState, file_system: FileSystem) -> None:
        try:
            shut_down(file_system, OwnPaths(state.plan_entry, self._root).have)
        except OSError as error:
            if state.why != str(error):
                log.error("volume %s cannot be fenced, and the watchdog is not petted: %s", key, error)  # noqa: TRY400
            state.why = str(error)
            return
        state.why = ""
        state.plan_entry = replace(state.plan_entry, file_system=file_system, is_fenced=True)
        log.warning("no answer of the hub for %g s: volume %s is fenced", self.lease_s, key)
        self._in_loop(partial(self._changed, [key]))
        with suppress(OSError):  # the next start fences the volume once more
            self._write({})

    def _pet(self) -> None:
        was_open = self._watchdog.is_open
        try:
            self._watchdog.pet(self._watchdog_s if self._holds_volumes else 0)
        except OSError as error:
            if self._watchdog_error != str(error):
                log.error("the watchdog cannot be petted, so the machine may be reset: %s", error)  # noqa: TRY400
            self._watchdog_error = str(error)
            return
        if not was_open:
            self._watchdog_s = self._watchdog.time_s
            self._in_loop(partial(self._changed, ()))

    def _in_loop(self, work: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(work)


def _how_to_find_holders(file_system: FileSystem) -> str:
    device = file_system.device
    return (
        f"something still holds it: grep -l ' {device} ' /proc/[0-9]*/mountinfo shows processes that have it mounted, "
        f"and lsof +c0 | grep -w -e {device.replace(':', ',')} -e 'Input/output error' those with an open file"
    )
