"""The file system on a block device: recognised, made and grown by the host's tools, and never mounted here.

Rules:

* Recognising comes first. A device with a file system, a partition table, or any other content stays as it is. It is
  blank only if blkid(8) finds nothing and its first block holds zeros alone.
* blkid ends alike for a device without a signature and for one that it cannot read. So the agent itself first reads the
  parts in which signatures are, and a device that fails there, or has no size, is not blank.
* `make` writes on a device that was found blank. Its caller has recorded the intent and the new UUID before. A killed
  mkfs leaves a device that is not blank: `finish` makes the file system anew if nobody has mounted it since.
* Each change holds a lock on the device (flock(2), as udev respects it). The tool's process inherits the lock, so the
  mkfs that a killed agent has left keeps the next agent away until it ends.
* All functions block, and raise OSError with a sentence.
"""

import errno
import fcntl
import os
import struct
import subprocess
import time
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from common.store.files import opened

_FIRST_BLOCK_BYTES = 4_096  # LVM, for one, leaves zeros there on a new volume, and an earlier volume's data behind it

# At both ends of a device: blkid looks for signatures there (btrfs has it at 64 KiB, md at the end).
_PROBED_BYTES = 1 << 20

_UNKNOWN = "data that is no known file system"

# The commands, as the kubelet's without the UUID (k8s.io/mount-utils).
_MAKE = {
    "ext4": ("mkfs.ext4", "-F", "-q", "-m0", "-U"),
    "xfs": ("mkfs.xfs", "-f", "-q", "-m"),
}

_LOCK_WAIT_S = 5.0  # udev looks at a device for a moment after each change, with a lock of its own

# The exit codes of blkid for a device without a known signature, and for one with several.
_NOTHING_FOUND = 2
_SEVERAL_FOUND = 8

_ENTRY = "PART_ENTRY_"  # how the names begin of what blkid tells of a partition itself, whatever it holds

_FSCK_FINE = {0, 1}  # the exit codes of e2fsck: clean; errors corrected

_ERROR_FS = 0x2  # EXT4_ERROR_FS (linux, fs/ext4/ext4.h)

_64BIT = 0x80  # INCOMPAT_64BIT: the number of blocks has an upper half (linux, fs/ext4/ext4.h)

# A file system may leave the last blocks of its device unused: they would hold hardly more than a group's tables.
_SLACK_BLOCKS = 64


@dataclass(frozen=True, slots=True)
class Content:
    """What a device holds. `what` is for people, and empty if it is blank; without a file system `fs_type` is empty."""

    what: str = ""
    fs_type: str = ""
    uuid: str = ""

    @property
    def is_blank(self) -> bool:
        return not self.what


def look(device: Path) -> Content:
    with _locked(device, fcntl.LOCK_SH) as file:
        return _content(device, file)


def wait_idle(device: Path) -> None:
    """Return once no tool of an earlier agent works on a device. Raises OSError if one still does."""
    with _locked(device, fcntl.LOCK_SH):
        pass


def is_sound(device: Path, fs_type: str) -> bool:
    """Whether a file system is no rest of a mkfs that was killed. It reads only."""
    with _locked(device, fcntl.LOCK_SH) as file:
        if _is_whole(file, fs_type) or fs_type != "ext4":
            return _is_whole(file, fs_type)
        # Each of these codes but 0 is a flaw, or a check that failed: then it does not count as sound.
        return not _run(file, "e2fsck", "-f", "-n", str(device), fine=frozenset(range(32))).returncode


def make(device: Path, fs_type: str, uuid: str) -> None:
    """Make a file system on a device that holds nothing. After an OSError it may hold a part of a file system."""
    with _locked(device, fcntl.LOCK_EX) as file:
        found = _content(device, file)
        if not found.is_blank:
            raise OSError(errno.EEXIST, f"{device} holds {found.what} by now, and is not formatted")
        _make(file, device, fs_type, uuid)


def finish(device: Path, fs_type: str, uuid: str) -> None:
    """Finish what a `make` with these arguments has begun. Raises OSError if the device holds anything else."""
    with _locked(device, fcntl.LOCK_EX) as file:
        found = _content(device, file)
        if not (found.is_blank or (found.what == _UNKNOWN and _begins_as(file, fs_type))):
            if (found.fs_type, found.uuid) != (fs_type, uuid):
                raise OSError(errno.EEXIST, f"{device} holds {found.what}, and the agent was making {fs_type} {uuid}")
            if _is_whole(file, fs_type):
                return
        _make(file, device, fs_type, uuid)


def grow(device: Path, fs_type: str) -> bool:
    """Grow an unmounted file system to the size of its device. Returns whether it has that size now.

    xfs grows only while it is mounted. Raises OSError if the file system has errors that must be repaired first.
    """
    with _locked(device, fcntl.LOCK_EX) as file:
        has_room = _has_room(file, fs_type)
        if fs_type != "ext4":
            return not has_room
        if has_room or _has_errors(file):
            _run(file, "e2fsck", "-f", "-p", str(device), fine=_FSCK_FINE)  # resize2fs insists on it
        if has_room:
            _run(file, "resize2fs", str(device))
        os.fsync(file)
        return True


def size_bytes(device: Path) -> int:
    with opened(device, os.O_RDONLY) as file:
        return os.lseek(file, 0, os.SEEK_END)


def _make(file: int, device: Path, fs_type: str, uuid: str) -> None:
    *command, flag = _MAKE[fs_type]
    _run(file, *command, flag, uuid if flag == "-U" else f"uuid={uuid}", str(device))
    os.fsync(file)


def _content(device: Path, file: int) -> Content:
    size = os.lseek(file, 0, os.SEEK_END)
    if not size:
        raise OSError(errno.ENXIO, f"{device} has no size: it is not connected")
    for at in (0, max(size - _PROBED_BYTES, 0)):
        wanted = min(_PROBED_BYTES, size - at)
        if len(os.pread(file, wanted, at)) != wanted:
            raise OSError(errno.EIO, f"{device} cannot be read")
    found = _signature(device, file)
    if found.is_blank and any(os.pread(file, _FIRST_BLOCK_BYTES, 0)):
        return Content(_UNKNOWN)
    return found


def _begins_as(file: int, fs_type: str) -> bool:
    # A killed mkfs leaves a torn superblock with its magic number.
    at, magic = (0, b"XFSB") if fs_type == "xfs" else (1024 + 0x38, b"\x53\xef")
    return os.pread(file, len(magic), at) == magic


def _signature(device: Path, file: int) -> Content:
    # -p: blkid reads the device itself and no cache.
    done = _run(file, "blkid", "-p", "-o", "export", str(device), fine={0, _NOTHING_FOUND, _SEVERAL_FOUND})
    told = dict(line.partition("=")[::2] for line in done.stdout.splitlines())
    if done.returncode == _NOTHING_FOUND and done.stderr.strip():
        raise OSError(errno.EIO, f"blkid cannot read {device}: {done.stderr.strip()[-300:]}")
    if done.returncode == _SEVERAL_FOUND:
        return Content("data of several kinds at once")
    is_bare = bool(told) and all(name == "DEVNAME" or name.startswith(_ENTRY) for name in told)
    if done.returncode == _NOTHING_FOUND or is_bare:
        return Content()
    if "PTTYPE" in told:
        return Content(f"a partition table ({told['PTTYPE']})")
    kind = told.get("TYPE", "")
    uuid = told.get("UUID", "")
    if told.get("USAGE") == "filesystem" and kind:
        return Content(f"the file system {kind} {uuid}".rstrip(), kind, uuid)
    return Content(f"data of the type {kind or 'unknown'}")


def _is_whole(file: int, fs_type: str) -> bool:
    # Whole: mkfs has ended, or somebody has mounted it. mke2fs writes the first superblock last, but the kernel may
    # write it to the disk earlier. So only an ext4 that was mounted counts as whole. mkfs.xfs marks its superblock
    # while it is in progress.
    if fs_type == "xfs":
        return not os.pread(file, 1, 126)[0]  # sb_inprogress
    mounted_at, _, mounts = struct.unpack("<IIH", os.pread(file, 10, 1024 + 44))  # s_mtime, s_wtime, s_mnt_count
    return bool(mounted_at or mounts)


def _has_errors(file: int) -> bool:
    # The kernel marks them, and so does a resize2fs until it ends.
    (state,) = struct.unpack("<H", os.pread(file, 2, 1024 + 0x3A))  # s_state
    return bool(state & _ERROR_FS)


def _has_room(file: int, fs_type: str) -> bool:
    whole = os.lseek(file, 0, os.SEEK_END)
    if fs_type == "xfs":
        block_bytes, blocks = struct.unpack(">IQ", os.pread(file, 12, 4))  # sb_blocksize, sb_dblocks
        return bool(whole - block_bytes * blocks >= _SLACK_BLOCKS * block_bytes)
    superblock = os.pread(file, 1024, 1024)
    low, log_size, incompatible, high = (
        struct.unpack_from("<I", superblock, at)[0] for at in (0x04, 0x18, 0x60, 0x150)
    )
    blocks = low | (high << 32 if incompatible & _64BIT else 0)
    block_bytes = 1024 << log_size
    return bool(whole - block_bytes * blocks >= _SLACK_BLOCKS * block_bytes)


def _run(file: int, *command: str, fine: AbstractSet[int] = frozenset({0})) -> "subprocess.CompletedProcess[str]":
    try:
        done = subprocess.run(  # noqa: S603  # the words are our own, and there is no shell
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False,
            pass_fds=(file,),
        )  # fmt: skip
    except FileNotFoundError:
        raise OSError(errno.ENOENT, f"{command[0]} is not installed on this node") from None
    if done.returncode not in fine:
        said = " ".join((done.stderr or done.stdout).split())[-300:]
        raise OSError(errno.EIO, f"{command[0]} {command[-1]} failed with exit code {done.returncode}: {said}")
    return done


@contextmanager
def _locked(device: Path, kind: int) -> Iterator[int]:
    with opened(device, os.O_RDWR if kind == fcntl.LOCK_EX else os.O_RDONLY) as file:
        _lock(device, file, kind)
        yield file


def _lock(device: Path, file: int, kind: int) -> None:
    deadline = time.monotonic() + _LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise OSError(errno.EBUSY, f"another program has {device} locked, perhaps an earlier mkfs") from None
            time.sleep(0.05)
        else:
            return
