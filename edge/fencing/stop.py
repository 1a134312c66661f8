"""Stops all writers of volumes on this node, by the agent or by its watchdog process.

Each measure is for what the ones before have left:

1. Kill the holders (`edge.fencing.holders`), write the file systems' dirty pages out, and unmount them.
2. Unmount by force, which ends the requests of a network file system.
3. Delete the device (SCSI, iSCSI, Fibre Channel), if nothing else is mounted from its disk.
4. Reset the machine, by a `b` to /proc/sysrq-trigger (Linux admin-guide/sysrq). Only if the operator has said so.

Rules:

* A stop ends at the latest when its time is over. Who called it tries again then.
* It is done when two looks in a row find neither a mount nor a holder, the volumes' devices are free, and no driver has
  an open call that may mount one. One look at all processes is no snapshot. A device that is in use has a writer that
  was not found, such as a file in a mount that was unmounted lazily, or a loop device on a file.
* An open call ends in the reset, too. Without one it counts no longer then: only the driver could tell of its end, and
  it is asked to unstage the volume when the stop is done.
* Nothing waits for a file system or a process: the looks themselves and all that they do run in threads of their own,
  and the time goes on. A look that hangs ends in the reset. The next try does not begin again what still hangs, and
  what hung does nothing more when it goes on later.
* It can be done again, and by two processes at once.
"""

import ctypes
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from edge.disk.layout import Layout
from edge.disk.mounts import Mount, MountTable, read_table, unmount
from edge.fencing.disks import block_of, is_in_use, switch_of
from edge.fencing.holders import holders, is_of, kill, mappers, parts_of
from edge.fencing.plan import Held, Part
from edge.volume_errors import NotReady

log = logging.getLogger("csi_bridge.edge.fence")

_THREADS: Final[dict[str, threading.Thread]] = {}
"""By what they do, the threads of this process that look, unmount or delete."""

FORCE_AT: Final = 0.4
"""The part of the time after which the second measure begins. The rest of it is for measures that the kernel delays."""
CUT_AT: Final = 0.6
RESET_AT: Final = 0.8

_LOOK_S: Final = 0.05
_TELL_S: Final = 0.2
_CLEAN_LOOKS: Final = 2
_MNT_FORCE: Final = 1
"""From umount2(2)."""

_TARGET: Final = re.compile(r".*/pods/[^/]+/(volumes/kubernetes\.io~csi/[^/]+/mount)")
_STAGING: Final = re.compile(r".*/(plugins/kubernetes\.io/csi/[^/]+/[^/]+/globalmount)")
"""Mount points of a volume (`edge.disk.layout`), below any root."""


@dataclass(slots=True)
class Stopped:
    """What was done.

    Attributes:
        killed: the processes, each with how it held a volume.
        unmounted: the mount points.
        cut: the devices that were deleted.
        is_done: nothing of the volumes is left.
        remains: what the last look found; empty if that was nothing.
        is_late: not everything was stopped in time.
        is_reset: the machine was to be reset; on a real one, nobody reads this.
    """

    killed: dict[int, str] = field(default_factory=dict)
    unmounted: list[str] = field(default_factory=list)
    cut: list[str] = field(default_factory=list)
    is_done: bool = False
    remains: str = ""
    is_late: bool = False
    is_reset: bool = False

    def __str__(self) -> str:
        """Return it as the part of a sentence, for people."""
        more = [f"and {len(self.killed) - 3} more"] if len(self.killed) > 3 else []
        killed = ", ".join([*list(self.killed.values())[:3], *more]) or "no process"
        cut = f", deleted {', '.join(self.cut)}" if self.cut else ""
        remains = f" ({self.remains})" if self.remains else ""
        late = f", and could not stop everything in time{remains}" if self.is_late else ""
        reset = ", so it asked for a reset of the machine" if self.is_reset else ""
        return f"killed {killed}, unmounted {len(self.unmounted)} mounts{cut}{late}{reset}"


def mounts_of(held: Held, table: MountTable, root: Path) -> list[Mount]:
    """The mounts at a volume's own paths."""
    ends = Ends([held], Layout(root))
    return [mount for mount in table.mounts if ends.are_of(mount.path)]


class _Stop:
    """One try to stop all writers of some volumes.

    Attributes:
        done: what was done so far.
        clean: the looks since one found anything.
        waits: whether a driver's open call counts.
        is_over: the try has ended. A thread that hung in it does nothing more: the volume may be mounted anew by then.
    """

    def __init__(
        self, volumes: Sequence[Held], root: Path, spared: Collection[int], is_mounting: Callable[[], bool]
    ) -> None:
        self.done = Stopped()
        self.clean, self.waits, self.is_over = 0, True, False
        self._ends = Ends(volumes, Layout(root))
        self._root, self._spared, self._is_mounting = root, spared, is_mounting
        self._parts: set[Part] = {part for held in volumes for part in held.parts}
        self._names = ", ".join(f"{held.driver}^{held.handle}" for held in volumes)
        for name in [name for name, thread in _THREADS.items() if not thread.is_alive()]:
            del _THREADS[name]

    def look(self, *, by_force: bool) -> None:
        """Kill and unmount what is there, unless the last look has not ended."""
        self._wait([self._apart(f"look for {self._names}", lambda: self._look(by_force=by_force))])

    def cut(self) -> None:
        """Delete the devices that are these volumes' alone."""
        self._wait([self._apart(f"cut off {self._names}", self._cut)])

    def _look(self, *, by_force: bool) -> None:
        try:
            self.done.remains = self._found(by_force=by_force)
            self.clean = 0 if self.done.remains else self.clean + 1
        except BaseException:
            self.clean = 0
            raise

    def _found(self, *, by_force: bool) -> str:
        mounts = self._mounts()
        points = dict.fromkeys(mount.path for mount in mounts)
        is_anothers = self._ends.are_anothers
        is_held = self._kill(holders(self._parts, points, spared=self._spared, is_anothers=is_anothers))
        # It unmounts nothing that is held: a holder would keep the file system, and nobody would find it any more.
        unmounting = [
            self._apart(f"{'force ' * by_force}unmount {path}", partial(self._unmount, path, by_force=by_force))
            for path in reversed(points)
            if by_force or not is_held
        ]
        if points:
            mapping = partial(mappers, points, spared=self._spared)
            unmounting.append(self._apart(f"maps of {self._names}", lambda: self._kill(mapping())))
        self._wait(unmounting)
        if mounts:
            return f"mounted at {points.popitem()[0]}"
        if is_held:
            return "a process that had it"
        if self.waits and self._is_mounting():
            return "a driver's open call"
        return "a device in use" if self._is_in_use() else ""

    def _kill(self, found: Iterable[tuple[int, str]]) -> bool:
        """Kill each process as soon as it is found. Returns whether any was."""
        is_held = False
        for pid, how in found:
            if self.is_over:
                break
            is_held = True
            self.done.killed.setdefault(pid, how)
            kill(pid)
        return is_held

    def _is_in_use(self) -> bool:
        """Whether anything uses a device that is a volume as a whole."""
        whole = {block_of(device, source) for device, part, source in self._parts if part == "/"}
        return any(is_in_use(device) for device in whole)

    def _cut(self) -> None:
        mounted = {block_of(mount.device, mount.source) for mount in self._mounts()}
        for device in {block_of(device, source) for device, _, source in self._parts}:
            if device not in mounted and not is_in_use(device):
                continue
            switch = switch_of(device, {block_of(mount.device, mount.source) for mount in self._others()})
            if switch is not None and str(switch) not in self.done.cut and not self.is_over:
                self.done.cut.append(str(switch))
                log.error("a volume cannot be unmounted in time: its device is deleted by %s", switch)
                self._apart(f"delete {device}", partial(switch.write_text, "1"))

    def _mounts(self) -> list[Mount]:
        """The volumes' mounts, wherever they are: a runtime or a person may have bound one to another path."""
        mounts = read_table(self._root).mounts
        self._parts |= parts_of([mount for mount in mounts if self._ends.are_of(mount.path)])
        return [mount for mount in mounts if self._is_of(mount)]

    def _others(self) -> list[Mount]:
        return [mount for mount in read_table(self._root).mounts if not self._is_of(mount)]

    def _is_of(self, mount: Mount) -> bool:
        if self._ends.are_of(mount.path):
            return True
        return not self._ends.are_anothers(mount.path) and any(is_of(mount, part) for part in self._parts)

    def _unmount(self, path: str, *, by_force: bool) -> None:
        if not by_force:
            _write_out(path)
        if self.is_over:
            return
        if by_force:
            _force(path)
        else:
            unmount(Path(path))
        if path not in self.done.unmounted:
            self.done.unmounted.append(path)

    def _apart(self, name: str, work: Callable[[], object]) -> threading.Thread | None:
        """Run work in a thread of its own, unless its last thread still runs."""
        if (old := _THREADS.get(name)) is not None and old.is_alive():
            return old

        def run() -> None:
            try:
                work()
            except OSError as error:
                log.debug("%s: %s", name, error)
            except Exception:
                log.exception("%s failed", name)

        thread = threading.Thread(target=run, name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the machine has no memory or no process left for one: the time goes on
            return None
        _THREADS[name] = thread
        return thread

    @staticmethod
    def _wait(threads: Iterable[threading.Thread | None]) -> None:
        """Give threads a moment together to end."""
        until = time.monotonic() + _LOOK_S
        for thread in threads:
            if thread is not None:
                thread.join(max(0.0, until - time.monotonic()))


def stop_writers(
    volumes: Sequence[Held],
    root: Path,
    *,
    stop_s: float,
    reset: Path | None,
    spared: Collection[int] = (),
    is_mounting: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Stopped:
    """Stop all writers of volumes. Blocks until that is done or the time is over.

    Args:
        volumes: the volumes.
        root: `--root-dir`, below which they are mounted.
        stop_s: seconds in which all must be done; the machine is reset before they are over. At least 0.1.
        reset: the file that resets the machine when it gets a `b`; None: the machine is never reset.
        spared: processes to leave alone, beside this one.
        is_mounting: tells whether a driver may still be mounting one of them.
        clock: seconds that go on.
        sleep: waits.
    """
    stop = _Stop(volumes, root, {*spared, os.getpid()}, is_mounting)
    began = clock()
    try:
        while stop.clean < _CLEAN_LOOKS:
            part = (clock() - began) / stop_s
            if part >= 1.0:
                return stop.done
            stop.look(by_force=part >= FORCE_AT)
            if not stop.clean and part >= RESET_AT and not stop.done.is_late:
                stop.done.is_late = True
                if reset is not None:
                    stop.done.is_reset = True
                    _reset(reset)
                    return stop.done
                stop.waits = False
                log.critical("not all writers of volumes can be stopped in time; %s", stop.done)
            if not stop.clean and part >= CUT_AT:
                stop.cut()
            sleep(_LOOK_S)
        stop.done.is_done = True
        return stop.done
    finally:
        stop.is_over = True


class Ends:
    """Tells the mount points of some volumes from all others."""

    def __init__(self, volumes: Sequence[Held], layout: Layout) -> None:
        self._stagings: set[str] = set()
        self._volumes: set[str] = set()
        self._real = os.path.realpath(layout.root)
        for held in volumes:
            with suppress(NotReady):  # its names cannot be paths, so it is mounted nowhere
                self._stagings.add(str(layout.staging_target(held.driver, held.handle).relative_to(layout.root)))
            for pv in held.pvs:
                with suppress(NotReady):
                    self._volumes.add(str(layout.target("uid", pv).relative_to(layout.pod("uid"))))

    def are_of(self, path: str) -> bool:
        """Whether one of the volumes is mounted at this path of the node, if anything is."""
        below = path.removeprefix(f"{self._real}/")
        if below in self._stagings:
            return below != path
        _, _, of_pod = below.removeprefix("pods/").partition("/")
        return path.startswith(f"{self._real}/pods/") and of_pod in self._volumes

    def are_anothers(self, path: str) -> bool:
        """Whether a path, on the node or as a container sees it, is a mount point of another volume."""
        if found := _TARGET.fullmatch(path):
            return found[1] not in self._volumes
        found = _STAGING.fullmatch(path)
        return found is not None and found[1] not in self._stagings


def _write_out(path: str) -> None:
    """Write a file system's dirty pages out, so that none is written later: another mount may keep them."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        ctypes.CDLL(None, use_errno=True).syncfs(descriptor)
    finally:
        os.close(descriptor)


def _force(path: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.umount2(os.fsencode(path), _MNT_FORCE) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)


def _reset(file: Path) -> None:
    def tell() -> None:
        log.critical("not all writers can be stopped in time: the machine is reset by %s", file)

    telling = threading.Thread(target=tell, name="tell of the reset", daemon=True)  # the log may be on the dead disk
    telling.start()
    telling.join(_TELL_S)
    try:
        file.write_text("b")
    except OSError as error:
        log.critical("the machine cannot be reset: %s", error)
