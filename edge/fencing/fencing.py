"""The agent's fencing: holds volumes under the lease of its hub, and shuts their file systems down when the lease ends.

A volume asks for it by `csi-bridge.io/offline: fence` (`common.offline_policy`). The hub may let a staged volume go to
another node some time after the lease of this one has ended, without a word from it. So by then nothing here may write.

Rules:

* The lease is the agent's own (`edge.controller_lease`). Its clock goes on in a suspend, and a pong counts from the
  sending of its ping. So the agent's lease ends before the hub counts it as over.
* One thread checks the lease, fences, and pets the watchdog: only while the lease holds, or when every staged volume is
  fenced. If the agent dies or hangs, or a file system cannot be shut down, the kernel resets the machine.
* Before each call of a driver that may mount, format or grow a volume the agent tells the hub `staging`, and afterwards
  `staged`. It goes on when the hub has stored that, and begins the call only while the lease holds. The hub lets a
  volume go by time only if it is staged. So a call without an answer, whose driver may still mount, needs no fence.
* A call without an answer stays open, also for the next start of the agent, until it is repeated and has one, or what
  it mounts is unmounted by the driver.
* The policy counts when a volume is staged, until it is unstaged. A volume that turns out to be one that cannot be
  fenced (`edge.fencing.fenced_volumes`) is kept until then, and the hub never hears that it is staged.
* A fenced volume is wanted by no pod until its driver has unstaged it and the kernel has its file system no more, also
  if processes still hold it. Then it is staged anew, under a new lease.
* **No software can fence on a machine that is paused as a whole** and goes on after the lease: the first thing that
  runs may be the writer. So nothing is fenced by default. With `--fence=on` the operator says that it never is.
"""

import asyncio
import logging
import math
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from common import offline_policy
from common.errors import SettingsError
from edge.controller_lease import ControllerLease, boot_time
from edge.disk.mounts import read_table
from edge.disk.own_thread import in_own_thread
from edge.fencing.fenced_volumes import Kept, OwnPaths, file_system_of
from edge.fencing.plan import FileSystem, Held, Plan, read_lease, read_plan, write_lease, write_plan
from edge.fencing.shutdown import FS_TYPES, NotShutDown, holders, is_held, prove, shut_down
from edge.fencing.watchdog import Watchdog
from edge.volume_errors import NON_FINAL, NotReady, Uncertain, Unended, VolumeError
from edge.volumes import Volume, VolumeKey

log = logging.getLogger("csi_bridge.edge.fence")

_LOOK_S: Final = 0.5
"""Between two looks of the thread; `watchdog.LEAST_S` has many of them."""

_FENCING_LOOK_S: Final = 0.05
"""The same while file systems are being shut down."""

_HOLDERS_S: Final = 5.0
"""Between two searches for the processes that hold fenced volumes."""

_PROOF_LIMIT_S: Final = 60.0

Changed = Callable[[Collection[VolumeKey]], None]


class Fencing:
    """The fencing of one agent.

    Attributes:
        lease_s: the length of the lease that it needs, in seconds. While the agent has volumes from its last start, it
            is at most that of that start, which the hub counts with.
    """

    def __init__(
        self, state_dir: Path, root: Path, *, is_wanted: bool, lease_s: float, boot: str, watchdog: Watchdog
    ) -> None:
        """Take over the volumes of the last start.

        Args:
            state_dir: the agent's; exists.
            root: `--root-dir`.
            is_wanted: whether volumes may be fenced.
            lease_s: the length of the agent's lease, in seconds.
            boot: the id of the machine's present boot.
            watchdog: the machine's.

        Raises:
            NewerState: a newer agent wrote the plan.
            OSError: it cannot be read.
            ValueError: it is damaged or lost. Then nobody knows what to fence, and the hub counts on it.
        """
        self._state_dir, self._root, self._is_wanted, self._boot = state_dir, root, is_wanted, boot
        self._watchdog = watchdog
        plan, ends_at = read_plan(state_dir), read_lease(state_dir, boot)
        if plan is None and ends_at is not None:
            raise ValueError("it is missing, although this boot had a lease")
        plan = plan or Plan()
        volumes = {(held.boot == boot, VolumeKey(held.driver, held.handle)): held for held in plan.volumes}
        self._held = {key: held for (is_present, key), held in volumes.items() if is_present}
        self._earlier = {key: held for (is_present, key), held in volumes.items() if not is_present}
        """The volumes of which the hub may believe that they are staged, since an earlier boot."""
        self.lease_s = min(lease_s, plan.lease_s) if self._held else lease_s
        self._watchdog_s = plan.watchdog_s if self._held else 0
        """The time with which the hub counts; 0 before the watchdog was opened."""
        self._ends_at = ends_at or 0.0
        self._ended = {key: held.fenced for key, held in self._held.items() if held.fenced}
        """The volumes that the lease's end has met, each with how it was fenced; empty while that is not done."""
        self._notes: dict[VolumeKey, str] = {}
        """What holds a fenced volume, or why it cannot be fenced."""
        self._kept: dict[VolumeKey, str] = {}
        self._opening: set[VolumeKey] = set()
        """The volumes that are told as being staged although they are not yet, or no longer."""
        self._lock = threading.Lock()
        """Of `_held` and `_ended`, which both the loop and the thread change."""
        self._attempts: dict[VolumeKey, _Attempt] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fence", daemon=True)
        self._trouble = "it was not opened yet"
        self._lease: ControllerLease
        self._loop: asyncio.AbstractEventLoop
        self._proofs: asyncio.Future[dict[str, str]]
        self._subscribers: list[tuple[Changed, Callable[[], None]]] = []
        self._acked: Callable[[VolumeKey], Awaitable[None]]
        self._tasks: set[asyncio.Task[None]] = set()
        self._writing, self._is_written = asyncio.Lock(), True

    @property
    def is_on(self) -> bool:
        """Whether volumes may be fenced: the operator has said so, or some are held since the last start."""
        return self._is_wanted or bool(self._held)

    # ---- start and end -----------------------------------------------------------------------------------------------

    async def start(self, lease: ControllerLease) -> None:
        """Fence first if the lease has ended while no agent ran. Else open the watchdog, and go on with the lease.

        Raises:
            SettingsError: the watchdog cannot be used, and no volume is held.
        """
        self._lease, self._loop = lease, asyncio.get_running_loop()
        if not self.is_on:
            return
        lease.renewed = self._renewed
        now = boot_time()
        if self._due() and now < self._ends_at:  # from now on the hub counts with this agent's length
            self._ends_at = min(self._ends_at, now + self.lease_s)
            lease.resume(self._ends_at)
        self.look(now)
        if not self._watchdog.is_open and not self._held:
            raise SettingsError("--watchdog", str(self._watchdog.path), f"cannot be used: {self._trouble}")
        if self._held:
            self._follow()
        self._proofs = in_own_thread(self._prove, name="proof of the fence")
        self._thread.start()
        self._look_after()

    async def close(self) -> None:
        """End the thread. The watchdog runs on while volumes are held: the next start of the agent pets it."""
        for task in self._tasks:
            task.cancel()
        self._stopping.set()
        if self._thread.is_alive():
            await in_own_thread(self._thread.join, name="end of the fence")
        self._watchdog.close(stops=not self._held)

    def _prove(self) -> dict[str, str]:
        return {fs_type: prove(fs_type, self._state_dir / "fence-proof") for fs_type in FS_TYPES}

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
        if volume.key not in self._held and (not volume.fence or self.refusal(volume)):
            return ""
        if self.is_fenced(volume.key):
            return "it is fenced, and is unmounted first"
        if not self._watchdog.is_open:
            return f"the machine's watchdog cannot be used: {self._trouble}"
        if not self._lease.need():
            self._lease.wait(self._back)
            return "the agent has no answer of the hub yet, and may not mount a volume with fence without one"
        return ""

    def is_held(self, key: VolumeKey) -> bool:
        """Whether a volume is fenced when the lease ends."""
        return key in self._held

    def is_fenced(self, key: VolumeKey) -> bool:
        """Whether the lease has ended while the node had the volume, and it is not unstaged yet."""
        return key in self._ended

    def fenced(self, key: VolumeKey) -> str:
        """How a volume was fenced, and what still holds it; empty while that is not done."""
        done, holding = self._ended.get(key, ""), self._notes.get(key, "")
        return f"{done}; {holding}" if done and holding else done

    def why_kept(self, key: VolumeKey) -> str:
        """Why a volume that asks for `fence` turned out to be one that cannot be fenced; empty if it did not."""
        return self._kept.get(key, "")

    def was_held(self, key: VolumeKey) -> bool:
        """Whether an earlier boot fenced a volume, so that the hub may believe that this one does."""
        return key in self._earlier

    async def heard(self, key: VolumeKey) -> None:
        """Note that the hub has heard, in this boot, which volumes are staged: `was_held` is over for this one."""
        if self._earlier.pop(key, None) is not None:
            await self._write_if_possible()  # else it is heard once more

    async def hold(self, volume: Volume) -> None:
        """Fence a volume from now on when the lease ends. Called before its first staging.

        Raises:
            NotReady: the plan cannot be written.
        """
        key = volume.key
        if key in self._held:
            return
        await self._change(key, Held(driver=volume.driver, handle=volume.handle, boot=self._boot), NotReady)
        self._follow()
        self._tell_hub()

    @asynccontextmanager
    async def mounting(self, volume: Volume, call: str) -> AsyncIterator[Callable[[], bool]]:
        """Let a driver mount, format or grow a volume. Gives a function that tells whether that may begin, or go on.

        Args:
            volume: the volume.
            call: names the call among those of the volume. The answer to a later one of the same name tells of its end.

        Raises:
            NotReady: the volume is fenced, and cannot be mounted now (`obstacle`), the hub has not stored that it is
                being staged, or the plan cannot be written.
            Uncertain: the driver has mounted it, and the hub has not stored that, or the plan cannot be written.
        """
        key = volume.key
        if key not in self._held:
            yield lambda: True
            return
        was_open, has_begun = call in self._held[key].open_calls, False
        await self._open(volume, call)

        def may_go_on() -> bool:
            nonlocal has_begun
            may = self._lease.holds() and not self.is_fenced(key)
            has_begun = has_begun or may
            return may

        try:
            yield may_go_on
        except Unended:
            if not (has_begun or was_open):
                await self._end_after_error(key, call)
            raise
        except VolumeError as error:
            says_nothing = not has_begun or isinstance(error, NotReady) or error.code in NON_FINAL
            if not (was_open and says_nothing):
                await self._end_after_error(key, call)
            raise
        await self._end(key, call)

    async def unmounted(self, key: VolumeKey, call: str) -> None:
        """Forget a call that may have mounted the volume: the driver has unpublished it."""
        await self._end_after_error(key, call)

    async def keep(self, volume: Volume, why: str) -> None:
        """Fence a volume no more, because it cannot be. The hub has stored that when this returns.

        Raises:
            NotReady: it has not stored that yet.
        """
        if (held := self._held.get(volume.key)) is not None:
            if held.file_system is not None:
                await self._open(volume, "keep")
            await self._keep(volume.key, why)

    async def check_released(self, key: VolumeKey) -> None:
        """Check that the kernel has a fenced volume's file system no more: a mount before that would get EIO.

        Raises:
            Uncertain: something still holds it.
        """
        held = self._held.get(key)
        if held is None or held.file_system is None or key not in self._ended:
            return
        if await in_own_thread(partial(is_held, held.file_system), name="holders"):
            raise Uncertain(f"it is fenced, and {self._notes.get(key) or 'its file system is still held'}")

    async def let_go(self, key: VolumeKey) -> None:
        """Fence a volume no more: it is unstaged."""
        self._kept.pop(key, None)
        await self.heard(key)
        await self._drop(key)

    async def keep_only(self, keys: Iterable[VolumeKey]) -> None:
        """Let all others go: an earlier start has unstaged them."""
        for key in (self._held.keys() | self._earlier.keys()) - set(keys):
            await self.let_go(key)

    # ---- reports -----------------------------------------------------------------------------------------------------

    def subscribe(
        self, changed: Changed, tell_hub: Callable[[], None], acked: Callable[[VolumeKey], Awaitable[None]]
    ) -> None:
        """Follow the fencing.

        Args:
            changed: called with the volumes that are fenced or let go; with none, if any may be mounted now.
            tell_hub: called when the result of `told` has changed.
            acked: returns when the hub has stored what it was told last.
        """
        self._subscribers.append((changed, tell_hub))
        self._acked = acked

    def told(self) -> dict[str, Any]:
        """The part of the fact about the Node (`common.offline_policy`); empty if the agent fences nothing."""
        if not self._held:
            return {}
        staged = {key for key, held in self._held.items() if held.file_system is not None} - self._opening
        names = {str(key) for key in staged}, {str(key) for key in self._held.keys() - staged}
        return offline_policy.write(math.ceil(self.lease_s), self._watchdog_s, *names)

    def problems(self) -> list[str]:
        """A sentence for each fenced volume, and one if the watchdog does not run."""
        found = [
            f"volume {key} is fenced, because the hub did not answer for {self.lease_s:g} s: "
            f"{self.fenced(key) or 'its file system is being shut down ' + self._notes.get(key, '')}"
            for key in list(self._ended)
        ]
        if self.is_on and not self._watchdog.is_open:
            found.append(f"the machine's watchdog cannot be used (--watchdog): {self._trouble}")
        return found

    def _tell(self, keys: Collection[VolumeKey]) -> None:
        for changed, _ in self._subscribers:
            changed(keys)

    def _tell_hub(self) -> None:
        for _, tell_hub in self._subscribers:
            tell_hub()

    # ---- staging and staged ------------------------------------------------------------------------------------------

    async def _open(self, volume: Volume, call: str) -> None:
        """Tell the hub that a volume is being staged, and note the call.

        Raises:
            NotReady: the hub has not stored it, the plan cannot be written, or the volume cannot be mounted now.
        """
        key = volume.key
        if why := self.obstacle(volume):
            raise NotReady(why)
        self._opening.add(key)
        self._tell_hub()
        try:
            await self._stored(key, NotReady)
            old = self._held[key]
            names = tuple(dict.fromkeys((*old.pvs, volume.name)))  # it may have another PersistentVolume by now
            calls = tuple(dict.fromkeys((*old.open_calls, call)))
            await self._change(key, replace(old, pvs=names, open_calls=calls, file_system=None), NotReady)
        finally:
            self._opening.discard(key)
            self._tell_hub()
        await self.heard(key)

    async def _end(self, key: VolumeKey, call: str) -> None:
        """Note that a call has ended. If it was the last one, and its volume can be fenced, the volume is staged.

        Raises:
            Uncertain: the hub has not stored it, or the plan cannot be written.
        """
        if (held := self._held.get(key)) is None or key in self._ended:
            return
        held = replace(held, open_calls=tuple(each for each in held.open_calls if each != call))
        if not held.open_calls:
            try:
                held = replace(held, file_system=await self._examined(held))
            except Kept as error:
                await self._keep(key, str(error))
                return
        self._opening.add(key)  # the plan has it first
        try:
            await self._change(key, held, Uncertain)
        finally:
            self._opening.discard(key)
        self._tell_hub()
        if held.file_system is not None:
            await self._stored(key, Uncertain)

    async def _end_after_error(self, key: VolumeKey, call: str) -> None:
        with suppress(VolumeError):  # the step is tried again, and tells
            await self._end(key, call)

    async def _examined(self, held: Held) -> FileSystem | None:
        try:
            async with asyncio.timeout(_PROOF_LIMIT_S):
                proofs = await asyncio.shield(self._proofs)
        except TimeoutError:
            raise Kept("the proof on a scratch image does not end") from None
        own = OwnPaths(held, self._root)
        found = await in_own_thread(lambda: file_system_of(read_table(self._root, whole=True), own), name="mount table")
        if found is not None and (why := proofs[found.fs_type]):
            raise Kept(why)
        return found

    async def _keep(self, key: VolumeKey, why: str) -> None:
        self._kept[key] = why
        await self._drop(key)

    async def _stored(self, key: VolumeKey, blame: type[VolumeError]) -> None:
        """Return when the hub has stored what it was told last.

        Raises:
            VolumeError: the lease has ended before that.
        """
        asking = asyncio.ensure_future(self._acked(key))
        try:
            await asyncio.sleep(0)  # the hub may have stored it already
            while not asking.done() and self._lease.holds():
                await asyncio.wait({asking}, timeout=1.0)
            if not self._lease.holds():
                raise blame("the hub has not confirmed whether the volume is staged (fence)")
            asking.result()
        finally:
            asking.cancel()

    # ---- the plan ----------------------------------------------------------------------------------------------------

    async def _change(self, key: VolumeKey, new: Held, blame: type[VolumeError]) -> None:
        """Hold a volume as `new` says.

        Raises:
            VolumeError: it is fenced meanwhile, or that cannot be written.
        """
        with self._lock:
            if key in self._ended:
                raise blame("it is fenced, and is unmounted first")
            old = self._held.get(key)
            self._held[key] = new
        if new == old and self._is_written:
            return
        try:
            await self._write()
        except OSError as error:
            with self._lock:
                if key not in self._ended:
                    self._held.pop(key)
                    self._held |= {key: old} if old is not None else {}
            raise blame(f"the agent cannot write down how it has to fence the volume: {error}") from error

    async def _drop(self, key: VolumeKey) -> None:
        with self._lock:
            if self._held.pop(key, None) is None:
                return
            self._ended.pop(key, None)
            self._notes.pop(key, None)
        await self._write_if_possible()  # else the next start drops it
        if not self._held:
            self._lease.end(self)
        self._tell([key])

    async def _write(self) -> None:
        """Write the plan.

        Raises:
            OSError: it cannot be written.
        """
        async with self._writing:
            volumes = (*self._held.values(), *self._earlier.values())
            plan = Plan(lease_s=self.lease_s, watchdog_s=self._watchdog_s, volumes=volumes)
            self._is_written = False
            await asyncio.to_thread(write_plan, self._state_dir, plan)
            self._is_written = True
        self._note_lease()

    async def _write_if_possible(self) -> None:
        """Write the plan. After a failure `_is_written` is false, and the next write of the agent has it all."""
        with suppress(OSError):
            await self._write()

    # ---- the lease ---------------------------------------------------------------------------------------------------

    def _follow(self) -> None:
        """Be told of the lease's end, or of its return."""
        if self._lease.need():
            self._lease.begin(self, is_operation=False)
        else:
            self._lease.wait(self._back)

    def lose(self) -> None:
        """The lease has ended (`controller_lease.Leased`). The thread fences."""
        self._lease.wait(self._back)

    def _back(self) -> None:
        """The hub answers again."""
        if self._held:
            self._lease.begin(self, is_operation=False)
        self._tell(())

    def _renewed(self, ends_at: float) -> None:
        self._ends_at = ends_at
        self._note_lease()

    def _note_lease(self) -> None:
        if self._held and self._ends_at:
            try:
                write_lease(self._state_dir, self._boot, self._ends_at)
            except OSError as error:  # the next start fences too early
                log.warning("the end of the lease cannot be written down: %s", error)

    # ---- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.wait(_FENCING_LOOK_S if self._attempts else _LOOK_S):
            try:
                self.look(boot_time())
            except Exception:
                log.exception("the agent failed to look after its lease, and tries again")

    def look(self, now: float) -> None:
        """Fence what is staged if the lease is over, and pet the watchdog if that is allowed. Never waits.

        Args:
            now: by the boot clock.
        """
        is_over = now >= self._ends_at
        for key, held in self._due():
            if is_over:
                self._mark(key, held)
            if key in self._ended:
                self._fence(key, held)
        if not is_over or not self._due():
            self._pet()

    def _due(self) -> list[tuple[VolumeKey, Held]]:
        """The volumes that the hub may believe to be staged, and that are not fenced."""
        with self._lock:
            return [it for it in self._held.items() if it[1].file_system is not None and not self._ended.get(it[0])]

    def _mark(self, key: VolumeKey, held: Held) -> None:
        with self._lock:
            if self._held.get(key) is not held or key in self._ended:
                return
            self._ended[key] = ""
        self._in_loop(partial(self._tell, [key]))

    def _fence(self, key: VolumeKey, held: Held) -> None:
        assert held.file_system is not None
        attempt = self._attempts.get(key)
        if attempt is None:
            attempt = self._attempts[key] = _Attempt(held.file_system, OwnPaths(held, self._root))
            attempt.start()
        elif not attempt.is_alive():
            del self._attempts[key]
            if not attempt.done:
                if self._notes.get(key) != attempt.error:
                    log.error("volume %s cannot be fenced, and the watchdog is not petted: %s", key, attempt.error)
                self._notes[key] = attempt.error
                return
            with self._lock:
                if key not in self._held:
                    return
                self._ended[key] = attempt.done
                self._notes.pop(key, None)
            self._in_loop(partial(self._note_fenced, key, attempt.done))

    def _pet(self) -> None:
        was_open = self._watchdog.is_open
        try:
            self._watchdog.pet(self._watchdog_s if self._held else 0)
        except OSError as error:
            if self._trouble != str(error):
                log.error("the watchdog cannot be petted, so the machine may be reset: %s", error)  # noqa: TRY400
            self._trouble = str(error)
            return
        if not was_open:
            self._watchdog_s = self._watchdog.time_s
            self._in_loop(partial(self._tell, ()))

    def _in_loop(self, work: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(work)

    # ---- fenced volumes ----------------------------------------------------------------------------------------------

    def _note_fenced(self, key: VolumeKey, done: str) -> None:
        with self._lock:
            if key not in self._held:
                return
            self._held[key] = replace(self._held[key], fenced=done)
        log.warning("no answer of the hub for %g s: fenced volume %s: %s", self.lease_s, key, done)
        self._start(self._write_if_possible(), "write the plan")  # else the next start fences it once more
        self._tell([key])
        self._look_after()

    def _look_after(self) -> None:
        if self._ended and not any(task.get_name() == "holders" for task in self._tasks):
            self._start(self._find_holders(), "holders")

    async def _find_holders(self) -> None:
        """Find the processes that hold fenced volumes, until all are unstaged."""
        while self._ended:
            for key in [key for key, done in self._ended.items() if done]:
                held = self._held.get(key)
                if held is None or held.file_system is None:
                    continue
                now = await in_own_thread(partial(_told_holders, held.file_system), name="holders")
                if now != self._notes.get(key) and key in self._ended:
                    self._notes[key] = now
                    self._tell([key])  # its driver is asked again when nothing holds it
            await asyncio.sleep(_HOLDERS_S)

    def _start(self, work: Any, name: str) -> None:
        task = self._loop.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _Attempt(threading.Thread):
    """One shutdown of a file system, in a thread of its own because the freeze may hang.

    Attributes:
        done: what was done; empty if it is not done.
        error: why it is not done.
    """

    def __init__(self, file_system: FileSystem, own: OwnPaths) -> None:
        super().__init__(name="shutdown", daemon=True)
        self._file_system, self._own = file_system, own
        self.done = self.error = ""

    def run(self) -> None:
        """Shut it down."""
        try:
            self.done = shut_down(self._file_system, self._own.have)
        except (NotShutDown, OSError) as error:
            self.error = str(error)


def _told_holders(file_system: FileSystem) -> str:
    """What holds a fenced volume, for people; empty if nothing does."""
    if not is_held(file_system):
        return ""
    found = holders(file_system)
    more = [f"{len(found) - 3} more"] if len(found) > 3 else []
    return f"still held by {', '.join([*found[:3], *more])}" if found else "something still holds its file system"
