"""Stops all writers of volumes on this node, by the agent or by its watchdog process.

Each measure is for what the ones before have left:

1. Kill the holders (`edge.fencing.holders`), write the file systems' dirty pages out, and unmount them.
2. Unmount by force, which ends the requests of a network file system.
3. Delete the device (SCSI, iSCSI, Fibre Channel), if nothing else is mounted from its disk.
4. Reset the machine, by a `b` to /proc/sysrq-trigger (Linux admin-guide/sysrq). Only if the operator has said so.

Rules:

* It is done when two looks in a row find neither a mount nor a holder. One look at all processes is no snapshot.
* No step waits for a file system: what may hang runs in a thread of its own, and the time goes on.
* It can be done again, and by two processes at once.
"""

import ctypes
import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from edge.disk.layout import Layout
from edge.disk.mounts import Mount, read_table, unmount
from edge.fencing.holders import Part, holders, is_of, kill, parts_of
from edge.fencing.plan import Held
from edge.volume_errors import NotReady

log = logging.getLogger("csi_bridge.edge.fence")

FORCE_AT: Final = 0.4
"""The part of the time after which the second measure begins. The rest of it is for measures that the kernel delays."""
CUT_AT: Final = 0.6
RESET_AT: Final = 0.8

_LOOK_S: Final = 0.05
_TELL_S: Final = 0.2
_CLEAN_LOOKS: Final = 2
_MNT_FORCE: Final = 1
"""From umount2(2)."""

_SYS_DEVICES: Final = Path("/sys/dev/block")
_SWAPS: Final = Path("/proc/swaps")


@dataclass(slots=True)
class Stopped:
    """What was done.

    Attributes:
        killed: the processes, each with how it held a volume.
        unmounted: the mount points.
        cut: the devices that were deleted.
        is_late: not everything was stopped in time.
        is_reset: the machine was to be reset; on a real one, nobody reads this.
    """

    killed: dict[int, str] = field(default_factory=dict)
    unmounted: list[str] = field(default_factory=list)
    cut: list[str] = field(default_factory=list)
    is_late: bool = False
    is_reset: bool = False

    def __str__(self) -> str:
        """Return it as the part of a sentence, for people."""
        more = [f"and {len(self.killed) - 3} more"] if len(self.killed) > 3 else []
        killed = ", ".join([*list(self.killed.values())[:3], *more]) or "no process"
        cut = f", deleted {', '.join(self.cut)}" if self.cut else ""
        late = ", and could not stop everything in time" if self.is_late else ""
        reset = ", so it asked for a reset of the machine" if self.is_reset else ""
        return f"killed {killed}, unmounted {len(self.unmounted)} mounts{cut}{late}{reset}"


class _Stop:
    """One try to stop all writers of some volumes."""

    def __init__(self, volumes: Sequence[Held], root: Path, spared: Collection[int]) -> None:
        self.done = Stopped()
        self._ends = _Ends(volumes, Layout(root))
        self._root, self._spared = root, spared
        self._parts: set[Part] = set()
        self._points: dict[str, None] = {}
        self._threads: dict[str, threading.Thread] = {}

    def look(self, *, by_force: bool) -> bool:
        """Kill and unmount what is there. Returns whether nothing was."""
        mounts = self._mounts()
        self._points |= dict.fromkeys(mount.path for mount in mounts)
        found = holders(self._parts, self._points, is_unmounted=not mounts, spared=self._spared)
        for pid, how in found.items():
            self.done.killed.setdefault(pid, how)
            kill(pid)
        if by_force or not found:
            for mount in reversed(mounts):
                self._unmount(mount.path, by_force=by_force)
        return not (mounts or found)

    def cut(self) -> None:
        """Delete the devices that are these volumes' alone."""
        for device in {device for device, _, _ in self._parts}:
            switch = _switch(device, {mount.device for mount in self._others()})
            if switch is not None and str(switch) not in self.done.cut:
                log.error("a volume cannot be unmounted in time: its device is deleted by %s", switch)
                self.done.cut.append(str(switch))
                self._apart(f"delete {device}", lambda switch=switch: switch.write_text("1"))  # type: ignore[misc]  # mypy cannot infer a lambda with a default

    def _mounts(self) -> list[Mount]:
        """The volumes' mounts, wherever they are: a runtime or a person may have bound one to another path."""
        mounts = read_table(self._root).mounts
        self._parts |= parts_of([mount for mount in mounts if self._ends.are_of(mount.path)])
        return [mount for mount in mounts if self._is_of(mount)]

    def _others(self) -> list[Mount]:
        return [mount for mount in read_table(self._root).mounts if not self._is_of(mount)]

    def _is_of(self, mount: Mount) -> bool:
        return self._ends.are_of(mount.path) or any(is_of(mount, part) for part in self._parts)

    def _unmount(self, path: str, *, by_force: bool) -> None:
        def work() -> None:
            if by_force:
                _force(path)
            else:
                _write_out(path)
                unmount(Path(path))
            if path not in self.done.unmounted:
                self.done.unmounted.append(path)

        self._apart(f"{'force ' if by_force else ''}unmount {path}", work)

    def _apart(self, name: str, work: Callable[[], object]) -> None:
        """Run work in a thread, unless its last thread still runs. It has a moment to end."""
        if (old := self._threads.get(name)) is not None and old.is_alive():
            return

        def run() -> None:
            try:
                work()
            except OSError as error:
                log.debug("%s: %s", name, error)

        thread = self._threads[name] = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
        thread.join(_LOOK_S)


def stop_writers(
    volumes: Sequence[Held],
    root: Path,
    *,
    stop_s: float,
    reset: Path | None,
    spared: Collection[int] = (),
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Stopped:
    """Stop all writers of volumes. Blocks until that is done, or until the machine is reset.

    Args:
        volumes: the volumes.
        root: `--root-dir`, below which they are mounted.
        stop_s: seconds in which all must be done; the machine is reset before they are over.
        reset: the file that resets the machine when it gets a `b`; None: the machine is never reset.
        spared: processes to leave alone, beside this one.
        clock: seconds that go on.
        sleep: waits.
    """
    stop = _Stop(volumes, root, {*spared, os.getpid()})
    began, clean = clock(), 0
    while clean < _CLEAN_LOOKS:
        part = (clock() - began) / stop_s
        clean = clean + 1 if stop.look(by_force=part >= FORCE_AT) else 0
        if not clean and part >= RESET_AT and not stop.done.is_late:
            stop.done.is_late = True
            if reset is not None:
                stop.done.is_reset = True
                _reset(reset)
                break
            log.critical("not all writers of volumes can be stopped in time; %s", stop.done)
        if not clean and part >= CUT_AT:
            stop.cut()
        sleep(_LOOK_S)
    return stop.done


class _Ends:
    """Tells the mount points of volumes from all others."""

    def __init__(self, volumes: Sequence[Held], layout: Layout) -> None:
        self._stagings: set[str] = set()
        self._volumes: set[str] = set()
        real = os.path.realpath(layout.root)
        self._pods = f"{real}/pods/"
        for held in volumes:
            with suppress(NotReady):  # its names cannot be paths, so it is mounted nowhere
                staging = layout.staging_target(held.driver, held.handle).relative_to(layout.root)
                target = layout.target("uid", held.pv).relative_to(layout.pod("uid"))
                self._stagings.add(f"{real}/{staging}")
                self._volumes.add(str(target))

    def are_of(self, path: str) -> bool:
        """Whether one of the volumes is mounted at this path, if anything is."""
        if path in self._stagings:
            return True
        _, _, of_pod = path.removeprefix(self._pods).partition("/")
        return path.startswith(self._pods) and of_pod in self._volumes


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


def _switch(device: str, others: Collection[str]) -> Path | None:
    """The file that deletes the disk of a device; None if it has none, or if anything else uses the disk.

    Others may use it by a mount, by swap, or through a device on top of it (LVM, MD, dm-crypt).
    """
    real = (_SYS_DEVICES / device).resolve()
    disk = real.parent if (real / "partition").exists() else real
    switch = disk / "device/delete"
    if not switch.exists():
        return None
    blocks = [disk, *(found.parent for found in disk.glob("*/dev"))]
    if any(holder for block in blocks for holder in (block / "holders").glob("*")):
        return None
    swaps = {Path(line.split()[0]).name for line in _SWAPS.read_text().splitlines()[1:]}
    own = {(block / "dev").read_text().strip() for block in blocks if (block / "dev").exists()}
    return None if own & set(others) or swaps & {block.name for block in blocks} else switch


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
