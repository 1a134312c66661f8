"""A UNIX socket: listen on it safely, and identify its peer and its file."""

import contextlib
import errno
import fcntl
import os
import socket
import stat
import struct
import time
from collections.abc import Iterator
from pathlib import Path

from common.parsers import LONGEST_SOCKET_PATH_BYTES

LOCK_WAIT_S = 2.0  # how long to wait for another process that is about to listen in the same directory


class UnixListener(socket.socket):
    """A listening UNIX socket. Closing it removes its file, unless another socket has taken its place.

    uvloop closes sockets without calling their `close`, so servers on this socket also call `remove_file`.
    """

    path: Path
    _identity: tuple[int, int] | None = None

    def close(self) -> None:
        self.remove_file()
        super().close()

    @property
    def has_file(self) -> bool:
        return self._identity is not None and self._identity == _identity_of(self.path)

    def remove_file(self) -> None:
        """Remove the file if it is still this socket's. From then on, new connections are refused."""
        if self.has_file:
            with contextlib.suppress(OSError):
                self.path.unlink()
        self._identity = None

    def bind_private(self, path: Path, *, mode: int, gid: int | None) -> None:
        """Bind so that the file has its mode from the start, independent of the umask."""
        os.fchmod(self.fileno(), 0o600)
        self.bind(str(path))
        self.path, self._identity = path, _identity_of(path)
        if gid is not None:
            os.chown(path, -1, gid)
        path.chmod(mode)


def listen_unix(
    path: Path,
    *,
    mode: int,
    gid: int | None = None,
    make_directory: bool = False,
    lock_wait_s: float = LOCK_WAIT_S,
) -> UnixListener:
    """Listen on a UNIX socket. It replaces the file of a process that has died.

    `make_directory` makes the socket's directory, with access for this process's user only, if its parent exists. The
    file has exactly this mode. `lock_wait_s`: for another process that starts to listen in the same directory.
    ValueError: the path is too long. OSError: its text names the case and the remedy.
    """
    if (size := len(os.fsencode(path))) > LONGEST_SOCKET_PATH_BYTES:
        raise ValueError(f"{path} is {size} bytes long; a UNIX socket's may have {LONGEST_SOCKET_PATH_BYTES} at most")
    if make_directory:
        _make_directory(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(
            errno.ENOENT, f"cannot listen on {path}: the directory {path.parent} does not exist (create it first)"
        )
    listener = UnixListener(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _directory_locked(path.parent, lock_wait_s):
            _remove_stale(path)
            listener.bind_private(path, mode=mode, gid=gid)
            listener.listen(1_024)
    except BaseException:
        listener.close()
        raise
    listener.settimeout(0.0)
    return listener


def _make_directory(path: Path) -> None:
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise OSError(
            error.errno,
            f"cannot listen on {path}: the directory {path.parent} does not exist and cannot be created: "
            f"{error.strerror} (create it first)",
        ) from error


@contextlib.contextmanager
def _directory_locked(directory: Path, wait_s: float) -> Iterator[None]:
    # Two processes that start at once must not each remove the other's new socket as stale.
    give_up_s = time.monotonic() + wait_s
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        while not _locked(descriptor):
            if time.monotonic() >= give_up_s:
                why = f"another process holds a lock on {directory}: is one just starting to listen there?"
                raise BlockingIOError(errno.EAGAIN, why)
            time.sleep(0.02)
        yield
    finally:
        os.close(descriptor)  # and with it the lock


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _remove_stale(path: Path) -> None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise FileExistsError(errno.EEXIST, f"cannot listen on {path}: it exists and is not a socket (remove it first)")
    number = knock(path)
    if number in _SERVED:
        raise OSError(errno.EADDRINUSE, f"cannot listen on {path}: another process is serving there")
    if number not in UNSERVED:
        why = OSError(number, os.strerror(number))
        raise OSError(number, f"cannot listen on {path}: a socket is there that cannot be tried: {why}")
    path.unlink(missing_ok=True)


# What `knock` returns if a process listens (EAGAIN: its queue is full), and if surely none does.
_SERVED = frozenset({0, errno.EAGAIN})
UNSERVED = frozenset({errno.ECONNREFUSED, errno.ENOENT})


def is_served(path: Path) -> bool:
    return knock(path) in _SERVED


def knock(path: Path) -> int:
    """Try to connect to a UNIX socket, without waiting. Returns the number of the error, or 0.

    Raises OSError if it cannot be tried, because the process has no descriptor left.
    """
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(0.0)
        try:
            return probe.connect_ex(str(path))
        except OSError:
            return errno.ENAMETOOLONG  # Python has a limit of its own


def _identity_of(path: Path) -> tuple[int, int] | None:
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def peer_credentials(sock: socket.socket) -> tuple[int, int, int]:
    """Process, user and group of a UNIX socket's peer at the time of its connect (SO_PEERCRED).

    The process is 0 when the peer is in a pid namespace that this process cannot see.
    """
    packed = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, gid = struct.unpack("3i", packed)
    return pid, uid, gid


FileId = tuple[int, int, int] | None  # the identity of a file at a path; None if there is no file


def file_id(path: str) -> FileId:
    """The identity of the file at a socket's path. If it changes, another process listens there.

    It includes the change time, because file systems reuse the number of a removed file.
    """
    try:
        found = os.stat(path)  # noqa: PTH116  # runs for each call to a driver: a Path takes three times as long
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_ctime_ns
