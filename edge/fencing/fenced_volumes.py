"""Which volumes can be fenced: those whose file system is theirs alone, and keeps its word when it is shut down.

All this is read from the kernel's tables. No file system is touched, so nothing hangs.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from edge.disk.layout import Layout
from edge.disk.mounts import Mount, MountTable
from edge.fencing.plan import FileSystem, HeldVolume
from edge.fencing.shutdown import FS_TYPES, sequence_of
from edge.volume_errors import NotReady

_DEVICES: Final = Path("/sys/dev/block")
_SWAPS: Final = Path("/proc/swaps")
_JOURNALS: Final = Path("/proc/fs/jbd2")

# A loop device's writes reach its file's disk later than the loop device itself says.
_UNSAFE_MAJORS: Final = {"7": "a loop device"}

_UNSAFE_OPTIONS: Final = ("nobarrier", "barrier=0", "dax", "logdev=", "rtdev=", "journal_path=", "journal_dev=")

# The machine's first process id namespace (PROC_PID_INIT_INO of linux/proc_ns.h).
_FIRST_PIDS: Final = "pid:[4026531836]"


class NotFenceable(Exception):
    """A volume cannot be fenced; the text says why."""


class OwnPaths:
    """Tells a volume's staging and target paths below `--root-dir` from all others."""

    def __init__(self, held: HeldVolume, root: Path) -> None:
        layout = Layout(root).real
        self._pods, self._staging, self._in_pod = f"{layout.pods}/", "", set[str]()
        with suppress(NotReady):  # a name that cannot be a path is mounted nowhere
            self._staging = str(layout.staging_target(held.driver, held.handle))
        # The uid does not matter: only the part below the pod's directory is compared.
        for pv in held.pvs:
            with suppress(NotReady):
                self._in_pod.add(str(layout.target("uid", pv).relative_to(layout.pod("uid"))))

    def have(self, path: str) -> bool:
        if self._staging and (path == self._staging or path.startswith(f"{self._staging}/")):
            return True
        _, _, of_pod = path.removeprefix(self._pods).partition("/")
        return path.startswith(self._pods) and any(f"{of_pod}/".startswith(f"{each}/") for each in self._in_pod)


def file_system_of(table: MountTable, own: OwnPaths) -> FileSystem | None:
    """The file system of a volume; None if nothing of it is mounted here. Raises NotFenceable if it cannot be."""
    mounts = [mount for mount in table.mounts if own.have(mount.path)]
    if not mounts:
        return None
    first = mounts[0]
    if first.fs_type not in FS_TYPES:
        raise NotFenceable(f"its file system is {first.fs_type}, and only {' and '.join(FS_TYPES)} can be fenced")
    if any(mount.device != first.device for mount in mounts):
        raise NotFenceable("several file systems are mounted for it")
    if others := [mount.path for mount in table.mounts if mount.device == first.device and not own.have(mount.path)]:
        raise NotFenceable(f"its file system is mounted at {others[0]} as well, so it is not the volume's alone")
    if all("ro" in mount.options for mount in mounts):
        raise NotFenceable("its file system is mounted only to be read")
    if unsafe := sorted(option for mount in mounts for option in mount.options if option.startswith(_UNSAFE_OPTIONS)):
        raise NotFenceable(f"its file system is mounted with {unsafe[0]}")
    if why := _why_not_device(first, table.mounts):
        raise NotFenceable(why)
    return FileSystem(device=first.device, sequence=sequence_of(first.device), fs_type=first.fs_type)


def why_not_here() -> str:
    if os.geteuid() != 0:
        return "the agent does not run as root, so it cannot shut down a file system"
    if str(Path("/proc/self/ns/pid").readlink()) != _FIRST_PIDS:
        return "the agent runs in a container with process ids of its own, so it cannot see all mounts of its node"
    return ""


def _why_not_device(mount: Mount, mounts: Sequence[Mount]) -> str:
    if what := _UNSAFE_MAJORS.get(mount.device.partition(":")[0]):
        return f"its device is {what}"
    folder = (_DEVICES / mount.device).resolve()
    disk = folder.parent if (folder / "partition").exists() else folder
    with suppress(OSError):
        if (disk / "queue/dax").read_text().strip() == "1":
            return "its device can be mapped past the page cache (DAX)"
    if mount.fs_type == "ext4" and not (_JOURNALS / f"{folder.name}-8").exists():  # 8: EXT4_JOURNAL_INO
        return "its ext4 has no journal of its own in it"
    # The kernel writes a swap file's blocks past the file system, so a shutdown does not stop it.
    for line in _SWAPS.read_text().splitlines()[1:]:
        path, kind, *_ = line.split()
        # "": the swap file's mount is not in this mount table.
        if kind == "file" and _covering(path, mounts) in {mount.device, ""}:
            return f"a swap file is in use that may be in it ({path})"
    return ""


def _covering(path: str, mounts: Sequence[Mount]) -> str:
    above = [mount for mount in mounts if mount.path == "/" or f"{path}/".startswith(f"{mount.path}/")]
    return max(above, key=lambda mount: len(mount.path)).device if above else ""
