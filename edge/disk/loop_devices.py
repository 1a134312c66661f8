"""A loop device: what holds a file open in the kernel, so that what the file shows is not given away (loop(4)).

Rules:

* Which loop devices are on a file is asked of the kernel, never remembered.
* One is known by its file's path as the kernel tells it, which is how the kubelet knows its own (volumepathhandler).
* A path is one of the mount namespace in which the file was opened. It is gone with that namespace, as with the
  container that an agent ran in; the device stays. So each is given a mark of its file, where losetup writes the file's
  name for people, and one whose path is gone is known by that.
* Only one whose path is gone is opened to look at: the kernel tells its mark after a look at its file, which hangs if
  that lies on a dead server. Such a one is passed over, for it would stop the work on all others.
"""

import errno
import fcntl
import hashlib
import logging
import os
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

log = logging.getLogger("csi_bridge.edge.volumes")

_SET_FD = 0x4C00
_CLR_FD = 0x4C01
_SET_STATUS64 = 0x4C04
_GET_STATUS64 = 0x4C05
_CTL_GET_FREE = 0x4C82
"""linux/loop.h."""

_INFO = struct.Struct("=56x64s112x")
"""`struct loop_info64`, of which all is 0 but `lo_file_name`, at whose end is a 0."""

_GONE = "/"
"""The path that the kernel tells of a bound file whose mount is gone, with its namespace or by `umount --lazy`."""

_MOST_TRIES = 50
"""A free loop device may be taken by somebody else before we have it."""

_DETACH_WAIT_S = 2.0
"""A detached loop device stays while others, like udev, have it open."""

_LOOK_LIMIT_S = 2.0
"""For the kernel's look at a file: a thousand times what it takes where a server answers."""

_SYSFS = Path("/sys/block")

_hung: dict[Path, threading.Thread] = {}
"""The looks that did not end in time. A device is not looked at again before its last look has ended."""


def loops_on(file: Path) -> list[Path]:
    """The loop devices on a file, which may be gone.

    Args:
        file: as it was called when they were attached.
    """
    devices = [Path("/dev") / backing.parent.parent.name for backing in _SYSFS.glob("loop*/loop/backing_file")]
    return [device for device in devices if _is_on(device, file)]


def attach_loop(file: Path) -> None:
    """Hold a file open.

    Raises:
        OSError: the kernel refused, and no loop device is on it that was not there.
    """
    backing = _open_backing(file)
    try:
        with _opened(Path("/dev/loop-control"), os.O_RDWR) as control:
            for _ in range(_MOST_TRIES):
                if _take(fcntl.ioctl(control, _CTL_GET_FREE), backing, _mark(file)):
                    return
    finally:
        os.close(backing)
    raise OSError(errno.EBUSY, f"cannot hold {file} open: every free loop device was taken by another program")


def detach_loops(file: Path) -> None:
    """Let a file go, which may be gone.

    Raises:
        OSError: the kernel refused, or another program still uses a loop device on it.
    """
    for device in loops_on(file):
        with _opened(device) as opened:
            # Its number may be another file's meanwhile; while it is open it stays what it is.
            if _is_on(device, file):
                _detach(opened)
    deadline = time.monotonic() + _DETACH_WAIT_S
    while loops_on(file):
        if time.monotonic() > deadline:
            raise OSError(errno.EBUSY, f"a loop device on {file} is still in use by another program")
        time.sleep(0.01)


def _is_on(device: Path, file: Path) -> bool:
    try:
        told = (_SYSFS / device.name / "loop/backing_file").read_bytes()
        path = os.fsdecode(told).rstrip("\n").removesuffix(" (deleted)")
        if path == _GONE:
            return _mark_in_time(device) == _mark(file)
    except OSError:  # it is detached meanwhile
        return False
    return path in {str(file), str(file.parent.resolve() / file.name)}


def _mark(file: Path) -> bytes:
    """What stands for a file in 63 bytes, which its path would not fit into."""
    return b"csi-bridge:" + hashlib.sha256(os.fsencode(file)).hexdigest()[:40].encode()


def _mark_in_time(device: Path) -> bytes:
    """What stands for a device's file; empty if it is detached meanwhile, or if the look at the file hangs."""
    hung = _hung.get(device)
    if hung is not None and hung.is_alive():
        return b""
    marks: list[bytes] = []

    def look() -> None:
        with suppress(OSError):
            marks.append(_read_mark(device))

    looking = threading.Thread(target=look, name=f"look at {device}", daemon=True)
    looking.start()
    looking.join(_LOOK_LIMIT_S)
    if looking.is_alive():
        _hung[device] = looking
        log.warning(
            "%s is skipped: the server of the file that it holds open does not answer; if the pod that used it is "
            "gone, run `losetup --detach %s`",
            device,
            device,
        )
    return marks[0] if marks else b""


def _read_mark(device: Path) -> bytes:
    info = bytearray(_INFO.size)
    with _opened(device) as opened:
        fcntl.ioctl(opened, _GET_STATUS64, info)
    (name,) = _INFO.unpack(info)
    return bytes(name).rstrip(b"\0")


def _take(number: int, backing: int, mark: bytes) -> bool:
    with _opened(Path(f"/dev/loop{number}"), os.O_RDWR) as device:
        try:
            fcntl.ioctl(device, _SET_FD, backing)
        except OSError as error:
            if error.errno == errno.EBUSY:
                return False
            raise
        try:
            # Not at once, with LOOP_CONFIGURE: kernels before 5.8 do not have it.
            fcntl.ioctl(device, _SET_STATUS64, _INFO.pack(mark))
        except OSError:
            _detach(device)
            raise
    return True


def _detach(device: int) -> None:
    try:
        fcntl.ioctl(device, _CLR_FD)
    except OSError as error:
        if error.errno != errno.ENXIO:  # it is detached already
            raise


def _open_backing(file: Path) -> int:
    try:
        return os.open(file, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in {errno.EROFS, errno.EACCES, errno.EPERM}:
            raise
        return os.open(file, os.O_RDONLY | os.O_CLOEXEC)


@contextmanager
def _opened(device: Path, mode: int = os.O_RDONLY) -> Iterator[int]:
    file = os.open(device, mode | os.O_CLOEXEC)
    try:
        yield file
    finally:
        os.close(file)
