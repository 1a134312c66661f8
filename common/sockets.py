"""A UNIX socket: listening on it safely, and who is at the other end."""

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

_LOCK_WAIT_S = 2.0
"""How long another process may be in the middle of listening in the same directory."""


def _check_length(path: str) -> None:
    if (size := len(os.fsencode(path))) > LONGEST_SOCKET_PATH_BYTES:
        raise ValueError(f"{path} is {size} bytes long; a UNIX socket's may have {LONGEST_SOCKET_PATH_BYTES} at most")


class UnixListener(socket.socket):
    """A listening UNIX socket. Closing it removes its file, unless another socket has taken its place.

    uvloop closes sockets that were handed to it without asking them: whoever serves on it calls `remove_file` as well.
    """

    path: Path
    _identity: tuple[int, int] | None = None

    def close(self) -> None:
        """Stop listening, and remove the file."""
        self.remove_file()
        super().close()

    def remove_file(self) -> None:
        """Remove the socket's file if it is still ours; new connections are refused from then on."""
        if self._identity is not None and self._identity == _identity_of(self.path):
            with contextlib.suppress(OSError):
                self.path.unlink()
        self._identity = None

    def bind_private(self, path: Path, *, mode: int, gid: int | None) -> None:
        """Bind with the mode in force from the first instant, whatever the umask.

        Linux gives the file the mode of the socket's inode; nobody can connect before `listen` in any case.
        """
        os.fchmod(self.fileno(), 0o600)
        self.bind(str(path))
        self.path, self._identity = path, _identity_of(path)
        if gid is not None:
            os.chown(path, -1, gid)
        path.chmod(mode)


def listen_unix(
    path: Path, *, mode: int, gid: int | None = None, backlog: int = 1024, make_directory: bool = False
) -> UnixListener:
    """Listen on a UNIX socket. A file left by a process that died is replaced; one that answers is not.

    Args:
        path: where; its directory must exist, unless `make_directory` says otherwise.
        mode: the file's permissions, e.g. 0o660, independent of the umask.
        gid: the file's group; the process's own if None.
        backlog: connections that may wait to be accepted.
        make_directory: make the directory for this process's own user if its parent exists. Only for a socket that no
            other user comes to.

    Raises: ValueError: the path is too long. OSError: somebody serves there, the path is something else than a
    socket, the directory is missing, or the system refuses; the text says which and what to do.
    """
    _check_length(str(path))
    if make_directory:
        _make_directory(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(
            errno.ENOENT, f"cannot listen on {path}: the directory {path.parent} does not exist (create it first)"
        )
    listener = UnixListener(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _directory_locked(path.parent):
            _remove_stale(path)
            listener.bind_private(path, mode=mode, gid=gid)
            listener.listen(backlog)
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
def _directory_locked(directory: Path) -> Iterator[None]:
    """Keep two processes that start at once from each taking the other's new socket for a stale one."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _lock(descriptor, directory)
        yield
    finally:
        os.close(descriptor)  # and with it the lock


def _lock(descriptor: int, directory: Path) -> None:
    give_up_s = time.monotonic() + _LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= give_up_s:
                raise BlockingIOError(
                    errno.EAGAIN, f"another process holds a lock on {directory}: is one just starting to listen there?"
                ) from None
            time.sleep(0.02)
        else:
            return


def _remove_stale(path: Path) -> None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise FileExistsError(errno.EEXIST, f"cannot listen on {path}: it exists and is not a socket (remove it first)")
    if _somebody_answers(path):
        raise OSError(errno.EADDRINUSE, f"cannot listen on {path}: another process is serving there")
    path.unlink(missing_ok=True)


def _somebody_answers(path: Path) -> bool:
    """Whether anything but a refusal comes of connecting. A full queue is an answer as well."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(0.0)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except BlockingIOError:
            return True
        except OSError as error:
            raise OSError(
                error.errno, f"cannot listen on {path}: a socket is there that cannot be tried: {error}"
            ) from error
        return True


def _identity_of(path: Path) -> tuple[int, int] | None:
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def peer_credentials(sock: socket.socket) -> tuple[int, int, int]:
    """Process, user and group of whoever connected (SO_PEERCRED: as they were when it connected).

    Returns:
        pid, uid, gid. The pid is 0 when the peer is in a pid namespace that this process cannot see.

    Raises:
        OSError: not a connected UNIX socket.
    """
    packed = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, gid = struct.unpack("3i", packed)
    return pid, uid, gid


FileId = tuple[int, int, int] | None
"""Which file a path is; None if there is none."""


def file_id(path: str) -> FileId:
    """Which file a socket's path is now: another one means that another process listens there.

    The time is part of it because file systems give the number of a removed file to the next one.
    """
    try:
        found = os.stat(path)  # noqa: PTH116  # at each call to a driver: a Path costs three times as much
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_ctime_ns
