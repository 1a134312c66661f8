"""The agent's fencing: holds volumes under the lease of its hub, and shuts their file systems down when the lease ends.

A volume asks for it by `csi-bridge.io/offline: fence` (`common.objects.offline_policy`). The hub may let a staged
volume go to another node some time after the lease of this one has ended, without a word from it. So by then nothing
here may write.

Rules:

* The lease is the agent's own (`edge.calls.controller_lease`). Its clock goes on in a suspend, and a pong counts from
  the sending of its ping. So the agent's lease ends before the hub counts it as over.
* One thread checks the lease, fences, and pets the watchdog: only while the lease holds, or when every staged volume is
  fenced. If the agent dies or hangs, or a file system cannot be shut down, the kernel resets the machine.
* Before each call of a driver that may mount, format or grow a volume the agent tells the hub `staging`, and begins the
  call only when the hub has stored that, and while the lease holds. Afterwards it tells `staged`. The hub lets a volume
  go by time only if it is staged. So a call without an answer, whose driver may still mount, needs no fence.
* A call without an answer stays open, also for the next start of the agent, until it is repeated and has one, or what
  it mounts is unmounted by the driver. After a reboot none is open, and all volumes of before are being staged.
* The policy counts when a volume is staged, until it is unstaged. A volume that cannot be fenced
  (`edge.fencing.fenced_volumes`) is held no more, and the hub never hears that it is staged.
* A fenced volume is wanted by no pod until its driver has unstaged it and the kernel has its file system no more, also
  if processes still hold it. Then it is staged anew, under a new lease.
* **No software can fence on a machine that is paused as a whole** and goes on after the lease: the first thing that
  runs may be the writer. So nothing is fenced by default. With `--fence=on` the operator says that it never is.
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
from edge.fencing.fenced_volumes import Kept, OwnPaths, file_system_of
from edge.fencing.plan import FencePlan, FileSystem, HeldVolume, read_lease, read_plan, write_lease, write_plan
from edge.fencing.shutdown import is_held, shut_down
from edge.fencing.trial import flaw_of
from edge.fencing.watchdog import Watchdog
from edge.volume_errors import NotReady, Uncertain, VolumeError, VolumeRefused
from edge.volumes import Volume, VolumeKey

log = logging.getLogger("csi_bridge.edge.fence")

_LOOK_S: Final = 0.5  # between two looks of the thread; `watchdog.LEAST_S` has many of them

Changed = Callable[[Collection[VolumeKey]], None]


class _HeldVolume:
    def __init__(self, held: HeldVolume) -> None:
        self.held = held
        self.is_told_staging = False  # the hub hears that it is being staged, whatever the plan says
        # Its file system, if the lease has ended while the volume was staged: also once it is shut down.
        self.to_shut_down = held.file_system if held.is_fenced else None
        self.why = ""  # why `to_shut_down` cannot be shut down, or how to find what holds it
        self.thread: threading.Thread | None = None  # the last one that was to shut it down: the freeze may hang


class Fencing:
    """The fencing of one agent."""

    def __init__(
        self, state_dir: Path, root: Path, *, is_wanted: bool, lease_s: float, boot: str, watchdog: Watchdog
    ) -> None:
        """Take over the volumes of the last start. `lease_s` is the agent's, `boot` the id of the present boot.

        Raises SettingsError, OSError, or ValueError if the plan is damaged or lost: nobody knows what to fence.
        """
        self._state_dir, self._root, self._is_wanted, self._boot = state_dir, root, is_wanted, boot
        self._watchdog = watchdog
        plan, ends_at = read_plan(state_dir), read_lease(state_dir, boot)
        if plan is None and ends_at is not None:
            raise ValueError("it is missing, although this boot had a lease")
        plan = plan or FencePlan()
        nothing: dict[str, Any] = {"open_calls": (), "file_system": None, "is_fenced": False}
        held = [one if one.boot == boot else replace(one, **nothing) for one in plan.volumes]
        self._volumes = {VolumeKey(one.driver, one.handle): _HeldVolume(one) for one in held}
        # The length of the lease that it needs, in seconds. While the agent has volumes from its last start, it is at
        # most that of that start, which the hub counts with.
        self.lease_s = min(lease_s, plan.lease_s) if self._has_any else lease_s
        # The time with which the hub counts; 0 before the watchdog was opened.
        self._watchdog_s = plan.watchdog_s if self._has_any else 0
        self._ends_at = ends_at or 0.0
        self._kept: dict[VolumeKey, str] = {}
        self._flaws: dict[str, str] = {}  # by file system type, the result of the trial
        self._trying, self._writing = asyncio.Lock(), threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fence", daemon=True)
        self._trouble = "it was not opened yet"
        self._lease: ControllerLease
        self._loop: asyncio.AbstractEventLoop
        self._changed: Changed = lambda _: None
        self._tell_hub: Callable[[], None] = lambda: None
        self._acked: Callable[[], Awaitable[None]]

    @property
    def _has_any(self) -> bool:
        return any(one.held.boot == self._boot for one in self._volumes.values())

    @property
    def is_on(self) -> bool:
        return self._is_wanted or self._has_any

    # ---- start and end -----------------------------------------------------------------------------------------------

    async def start(self, lease: ControllerLease) -> None:
        """Fence first if the lease has ended while no agent ran. Else open the watchdog, and go on with the lease."""
        self._lease, self._loop = lease, asyncio.get_running_loop()
        if not self.is_on:
            return
        lease.renewed = self._renewed
        now = boot_time()
        if self._has_any and now < self._ends_at:  # from now on the hub counts with this agent's length
            self._ends_at = min(self._ends_at, now + self.lease_s)
            lease.resume(self._ends_at)
        self.look(now)
        if not self._watchdog.is_open and not self._has_any:
            raise SettingsError("--watchdog", str(self._watchdog.path), f"cannot be used: {self._trouble}")
        self._follow()
        self._thread.start()

    async def close(self) -> None:
        """End the thread. The watchdog runs on while volumes are held: the next start of the agent pets it."""
        self._stopping.set()
        if self._thread.is_alive():
            await in_own_thread(self._thread.join, name="end of the fence")
        self._watchdog.close(stops=not self._has_any)

    def subscribe(self, changed: Changed, tell_hub: Callable[[], None], acked: Callable[[], Awaitable[None]]) -> None:
        """`changed` gets the volumes that are fenced or let go; none, if any may be mounted now.

        `tell_hub` is called when `told` has changed. `acked` returns when the hub has stored what it was told last.
        """
        self._changed, self._tell_hub, self._acked = changed, tell_hub, acked

    # ---- for the volumes' tasks --------------------------------------------------------------------------------------

    def refusal(self, volume: Volume) -> str:
        """Why a volume that asks for `fence` is kept on this node; empty if it may be fenced."""
        if not self._is_wanted:
            return "its agent runs with --fence=off"
        if not volume.rules.attach_required:
            return f"the CSIDriver {volume.driver} has attachRequired: false, so no volume of it is ever detached"
        return "its volumeMode is Block, and only a file system can be shut down" if volume.block else ""

    def obstacle(self, volume: Volume) -> str:
        """Why a volume that asks for `fence` cannot be mounted now; empty if it can, or if it is kept."""
        if volume.key not in self._volumes and (not volume.fence or self.refusal(volume)):
            return ""
        if self.is_fenced(volume.key):
            return "it is fenced, and is unmounted first"
        if not self._watchdog.is_open:
            return f"the machine's watchdog cannot be used: {self._trouble}"
        if not self._lease.need():
            self._lease.wait(self._lease_is_back)
            return "the agent has no answer of the hub yet, and may not mount a volume with fence without one"
        return ""

    def is_held(self, key: VolumeKey) -> bool:
        """Whether a volume is fenced when the lease ends, or was in an earlier boot and the hub may not know better."""
        return key in self._volumes

    def is_fenced(self, key: VolumeKey) -> bool:
        """Whether the lease has ended while the node had the volume, and it is not unstaged yet."""
        return key in self._volumes and self._volumes[key].to_shut_down is not None

    def fenced(self, key: VolumeKey) -> str:
        """How a volume was fenced, and what still holds it; empty while that is not done."""
        one = self._volumes.get(key)
        if one is None or one.to_shut_down is None or not one.held.is_fenced:
            return ""
        return "its file system is shut down" + (f"; {one.why}" if one.why else "")

    def why_kept(self, key: VolumeKey) -> str:
        return self._kept.get(key, "")

    async def hold(self, volume: Volume) -> None:
        """Fence a volume from now on when the lease ends. Called before its first staging."""
        one = self._volumes.get(volume.key)
        if one is None or one.held.boot != self._boot:
            held = HeldVolume(driver=volume.driver, handle=volume.handle, boot=self._boot)
            await self._change(volume.key, held, NotReady)
            self._renewed(self._ends_at)  # the lease is written down from the first volume on
            self._follow()
            self._tell_hub()

    @asynccontextmanager
    async def mounting(self, volume: Volume, call: str) -> AsyncIterator[Callable[[], bool]]:
        """Let a driver mount, format or grow a volume. Gives a function that tells whether that may go on.

        The answer to a later call of the same name (`call`) tells of this one's end. Raises NotReady; Uncertain, if
        the driver has mounted it and the plan cannot be written.
        """
        key = volume.key
        if key not in self._volumes:
            yield lambda: True
            return
        was_open, has_begun = call in self._volumes[key].held.open_calls, False
        await self._open(volume, call)

        def may_go_on() -> bool:
            nonlocal has_begun
            may = self._lease.holds() and not self.is_fenced(key)
            has_begun = has_begun or may
            return may

        try:
            yield may_go_on
        except VolumeError as error:
            # A refusal ends the call, and so does an error before it began. After any other error the driver may still
            # mount. A call that an earlier try has left open stays open.
            if isinstance(error, VolumeRefused) if has_begun else not was_open:
                with suppress(VolumeError):  # the step is tried again, and tells
                    await self._end_call(key, call)
            raise
        await self._end_call(key, call)

    async def unmounted(self, key: VolumeKey, call: str) -> None:
        """Forget a call that may have mounted the volume: the driver has unpublished it."""
        if key in self._volumes and call in self._volumes[key].held.open_calls:
            with suppress(VolumeError):  # it stays open until the volume is unstaged
                await self._end_call(key, call)

    async def stop_fencing(self, key: VolumeKey, why: str) -> None:
        """Fence a volume no more: it cannot be, or is not wanted. The hub has stored that when this returns."""
        if (one := self._volumes.get(key)) is None:
            return
        with self._telling_staging(one):
            await self._wait_until_stored()
            await self._change(key, replace(one.held, file_system=None), NotReady)
        await self._change(key, None, NotReady)
        self._kept[key] = why

    async def check_released(self, key: VolumeKey) -> None:
        """Raise Uncertain while the kernel has a fenced volume's file system: a mount before that would get EIO."""
        one = self._volumes.get(key)
        if one is not None and one.to_shut_down is not None:
            is_free = not await in_own_thread(partial(is_held, one.to_shut_down), name="holders")
            one.why = "" if is_free else _how_to_find_holders(one.to_shut_down)
            if one.why:
                raise Uncertain(f"it is fenced: {one.why}")

    async def let_go(self, key: VolumeKey) -> None:
        self._kept.pop(key, None)
        if key in self._volumes:
            await self._change(key, None, Uncertain)
            self._changed([key])

    async def keep_only(self, keys: Iterable[VolumeKey]) -> None:
        """Let all others go: an earlier start has unstaged them."""
        for key in self._volumes.keys() - set(keys):
            await self.let_go(key)

    # ---- reports -----------------------------------------------------------------------------------------------------

    def told(self) -> dict[str, Any]:
        """The part of the fact about the Node (`common.objects.offline_policy`); empty if the agent fences nothing."""
        if not self._has_any:
            return {}
        volumes = self._volumes.items()
        staged = {key for key, one in volumes if one.held.file_system is not None and not one.is_told_staging}
        names = {str(key) for key in staged}, {str(key) for key in self._volumes.keys() - staged}
        return offline_policy.write(math.ceil(self.lease_s), self._watchdog_s, *names)

    def problems(self) -> list[str]:
        found = [
            f"volume {key} is fenced, because the hub did not answer for {self.lease_s:g} s: "
            f"{self.fenced(key) or f'its file system is being shut down {one.why}'}"
            for key, one in self._volumes.items()
            if one.to_shut_down is not None
        ]
        if self.is_on and not self._watchdog.is_open:
            found.append(f"the machine's watchdog cannot be used (--watchdog): {self._trouble}")
        return found

    # ---- staging and staged ------------------------------------------------------------------------------------------

    async def _open(self, volume: Volume, call: str) -> None:
        one = self._volumes[volume.key]
        self._check(volume)
        with self._telling_staging(one):
            await self._wait_until_stored()
            self._check(volume)
            old = one.held
            names = tuple(dict.fromkeys((*old.pvs, volume.name)))  # it may have another PersistentVolume by now
            calls = tuple(dict.fromkeys((*old.open_calls, call)))
            new = replace(old, boot=self._boot, pvs=names, open_calls=calls, file_system=None)
            await self._change(volume.key, new, NotReady)

    async def _end_call(self, key: VolumeKey, call: str) -> None:
        # If it was the last call, and the volume can be fenced, the volume is staged.
        # If the lease has ended, the thread shuts the file system down, or has done so, and notes that in `held`: its
        # plan stays, open calls too, until the volume is unstaged (`let_go`).
        if (one := self._volumes.get(key)) is None or one.to_shut_down is not None:
            return
        held: HeldVolume | None = replace(
            one.held, open_calls=tuple(each for each in one.held.open_calls if each != call)
        )
        if held is not None and not held.open_calls:
            try:
                held = replace(held, file_system=await self._examined(held))
            except Kept as error:
                held, self._kept[key] = None, str(error)
        await self._change(key, held, Uncertain)
        self._tell_hub()

    async def _examined(self, held: HeldVolume) -> FileSystem | None:
        own = OwnPaths(held, self._root)
        found = await in_own_thread(lambda: file_system_of(read_table(self._root, whole=True), own), name="mount table")
        if found is not None:
            async with self._trying:
                if found.fs_type not in self._flaws:
                    trial = partial(flaw_of, found.fs_type, self._state_dir / "fence-trial")
                    self._flaws[found.fs_type] = await in_own_thread(trial, name="trial of the fence")
            if why := self._flaws[found.fs_type]:
                raise Kept(why)
        return found

    def _check(self, volume: Volume) -> None:
        if why := self.obstacle(volume):
            raise NotReady(why)

    @contextmanager
    def _telling_staging(self, one: _HeldVolume) -> Iterator[None]:
        one.is_told_staging = True
        self._tell_hub()
        try:
            yield
        finally:
            one.is_told_staging = False
            self._tell_hub()

    async def _wait_until_stored(self) -> None:
        try:
            # After this time the lease has ended, unless the hub answers.
            async with asyncio.timeout(self.lease_s):
                await self._acked()
        except TimeoutError:
            raise NotReady("the hub has not confirmed whether the volume is staged (fence)") from None

    # ---- the plan ----------------------------------------------------------------------------------------------------

    async def _change(self, key: VolumeKey, held: HeldVolume | None, blame: type[VolumeError]) -> None:
        # `held` None: hold it no more.
        try:
            await asyncio.to_thread(self._write, {key: held})
        except OSError as error:
            raise blame(f"the agent cannot write down how it has to fence the volume: {error}") from error
        if held is not None and self.is_fenced(key):
            raise blame("it is fenced, and is unmounted first")
        if not self._has_any:
            self._lease.end(self)

    def _write(self, change: Mapping[VolumeKey, HeldVolume | None]) -> None:
        # First on the disk, and then in memory: after an OSError the old plan stays. Called in any thread.
        with self._writing:
            held = {key: one.held for key, one in self._volumes.items()} | dict(change)
            left = {key: one for key, one in held.items() if one is not None}
            try:
                plan = FencePlan(lease_s=self.lease_s, watchdog_s=self._watchdog_s, volumes=tuple(left.values()))
                write_plan(self._state_dir, plan)
            except OSError:
                if len(left) == len(held):
                    raise
                log.warning("the next start of the agent drops the volumes that are fenced no more: fence.json is old")
            # A new dict: the old one may be in use in another thread.
            self._volumes = {key: self._volumes.get(key) or _HeldVolume(one) for key, one in left.items()}
            for key in change.keys() & left.keys():
                self._volumes[key].held = left[key]

    # ---- the lease ---------------------------------------------------------------------------------------------------

    def _follow(self) -> None:
        if not self._has_any:
            return
        if self._lease.need():
            self._lease.begin(self)
        else:
            self._lease.wait(self._lease_is_back)

    def lose(self) -> None:
        """The lease has ended (`controller_lease.Leased`). The thread fences."""
        self._lease.wait(self._lease_is_back)

    def _lease_is_back(self) -> None:
        self._follow()
        self._changed(())

    def _renewed(self, ends_at: float) -> None:
        self._ends_at = ends_at
        if self._has_any:
            try:
                write_lease(self._state_dir, self._boot, ends_at)
            except OSError as error:  # the next start fences too early
                log.warning("the end of the lease cannot be written down: %s", error)

    # ---- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.wait(_LOOK_S):
            try:
                self.look(boot_time())
            except Exception:
                log.exception("the agent failed to look after its lease, and tries again")

    def look(self, now: float) -> None:
        """Fence what is staged if the lease is over (boot clock); pet the watchdog if that is allowed."""
        is_over, is_all_fenced = now >= self._ends_at, True
        for key, one in self._volumes.items():
            if is_over and one.to_shut_down is None and one.held.file_system is not None:
                one.to_shut_down = one.held.file_system
                self._in_loop(partial(self._changed, [key]))
            if one.to_shut_down is not None and not one.held.is_fenced:
                is_all_fenced = False
                if one.thread is None or not one.thread.is_alive():
                    one.thread = threading.Thread(
                        target=self._shut_down, args=(key, one, one.to_shut_down), name="shutdown", daemon=True
                    )
                    one.thread.start()
        if not is_over or is_all_fenced:
            self._pet()

    def _shut_down(self, key: VolumeKey, one: _HeldVolume, lost: FileSystem) -> None:
        try:
            shut_down(lost, OwnPaths(one.held, self._root).have)
        except OSError as error:
            if one.why != str(error):
                log.error("volume %s cannot be fenced, and the watchdog is not petted: %s", key, error)  # noqa: TRY400
            one.why = str(error)
            return
        one.why = ""
        one.held = replace(one.held, file_system=lost, is_fenced=True)
        log.warning("no answer of the hub for %g s: volume %s is fenced", self.lease_s, key)
        self._in_loop(partial(self._changed, [key]))
        with suppress(OSError):  # the next start fences it once more
            self._write({})

    def _pet(self) -> None:
        was_open = self._watchdog.is_open
        try:
            self._watchdog.pet(self._watchdog_s if self._has_any else 0)
        except OSError as error:
            if self._trouble != str(error):
                log.error("the watchdog cannot be petted, so the machine may be reset: %s", error)  # noqa: TRY400
            self._trouble = str(error)
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
