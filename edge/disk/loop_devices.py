"""Loop devices that hold a file open in the kernel, so that the block device behind it keeps its number (loop(4)).

Rules:

* The agent asks the kernel each time which loop devices hold a file; it remembers none.
* A loop device is recognised by the path of its file, as the kernel tells it. The kubelet's volumepathhandler does the
  same.
* That path belongs to the mount namespace in which the file was opened. When an agent's container ends, the namespace
  and the path are gone, but the device stays. So the agent writes a mark of the file where losetup(8) writes the file's
  name, and recognises a device without a path by its mark.
* Only devices without a path are opened for their mark: the kernel first looks at the device's file, and hangs if that
  lies on a dead server. A device that hangs is skipped, so that the others can be handled.
"""

import errno
import fcntl
import hashlib
import logging
import os
import struct
import threading
import time
from contextlib import suppress
from pathlib import Path

from common.store.files import opened

log = logging.getLogger("csi_bridge.edge.volumes")

# From linux/loop.h.
_SET_FD = 0x4C00
_CLR_FD = 0x4C01
_SET_STATUS64 = 0x4C04
_GET_STATUS64 = 0x4C05
_CTL_GET_FREE = 0x4C82

_INFO = struct.Struct("=56x64s112x")  # `struct loop_info64`: all 0 except `lo_file_name`, which ends with a 0

_GONE = "/"  # the path that the kernel tells when the file's mount is gone, with its namespace or by `umount --lazy`

_MOST_TRIES = 50  # another program may take a free loop device before the agent does

_DETACH_WAIT_S = 2.0  # a detached loop device stays while another program, such as udev, has it open

# Limit for the kernel's look at a device's file: a thousand times its duration with a server that answers.
_LOOK_LIMIT_S = 2.0

_SYSFS = Path("/sys/block")

# Looks that did not end in time. A device is not opened again before its last look has ended.
_hung: dict[Path, threading.Thread] = {}


def loops_on(file: Path) -> list[Path]:
    """Return the loop devices that were attached under this path. The file may be gone."""
    devices = [Path("/dev") / backing.parent.parent.name for backing in _SYSFS.glob("loop*/loop/backing_file")]
    return [device for device in devices if _is_on(device, file)]


def attach_loop(file: Path, held: Path) -> None:
    """Attach a loop device to a file, which holds it open. `held` is the path to open it by (`RootDir.held`)."""
    backing = _open_backing(held)
    try:
        with opened("/dev/loop-control", os.O_RDWR) as control:
            for _ in range(_MOST_TRIES):
                if _attach_to(fcntl.ioctl(control, _CTL_GET_FREE), backing, _mark(file)):
                    return
    finally:
        os.close(backing)
    raise OSError(errno.EBUSY, f"cannot hold {file} open: every free loop device was taken by another program")


def detach_loops(file: Path) -> None:
    """Detach all loop devices from a file, which may be gone. Raises OSError if another program still uses one."""
    for device in loops_on(file):
        with opened(device, os.O_RDONLY) as held:
            # The device may hold another file by now; while it is open here it does not change.
            if _is_on(device, file):
                _detach(held)
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
    except OSError:  # it was detached meanwhile
        return False
    # The kernel tells the path without symbolic links.
    return path in {str(file), str(file.parent.resolve() / file.name)}


def _mark(file: Path) -> bytes:
    # The path may be longer than the 63 bytes of `lo_file_name`.
    return b"csi-bridge:" + hashlib.sha256(os.fsencode(file)).hexdigest()[:40].encode()


def _mark_in_time(device: Path) -> bytes:
    # Empty if the device was detached meanwhile, or if the kernel's look at its file hangs.
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
    with opened(device, os.O_RDONLY) as held:
        fcntl.ioctl(held, _GET_STATUS64, info)
    (name,) = _INFO.unpack(info)
    return bytes(name).rstrip(b"\0")


def _attach_to(number: int, backing: int, mark: bytes) -> bool:
    with opened(f"/dev/loop{number}", os.O_RDWR) as device:
        try:
            fcntl.ioctl(device, _SET_FD, backing)
        except OSError as error:
            if error.errno == errno.EBUSY:
                return False
            raise
        try:
            # Not in one step with LOOP_CONFIGURE, which kernels before 5.8 do not have.
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
        # The device may only be read. A loop device holds it open all the same.
        return os.open(file, os.O_RDONLY | os.O_CLOEXEC)
