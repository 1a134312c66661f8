"""A socket: finds its listener, its permissions and its connections."""

import errno
import socket
import stat
from pathlib import Path

from cli.doctor.finding import Finding, ok, warning, wrong
from common.sockets import peer_credentials

UNIX_TABLE = Path("/proc/net/unix")
"""The UNIX sockets of this network namespace, which the containers of a pod share."""

_CONNECTED = "03"
"""SS_CONNECTED (linux/net.h)."""


LOOK_AT_LOG = "look at its log"


def check_socket(path: Path, *, start: str, private: bool, log: str = LOOK_AT_LOG) -> Finding:
    """Whether a process listens on a socket.

    Args:
        path: the socket.
        start: the command that should listen there, with its flag.
        private: whether only the socket's user and group should be able to connect.
        log: the advice how to read that command's log.
    """
    try:
        found = path.stat()
        if not stat.S_ISSOCK(found.st_mode):
            return wrong(f"{path} is not a socket", f"remove it, then start {start}")
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(1.0)
            probe.connect(str(path))
            pid, uid, _ = peer_credentials(probe)
    except OSError as error:
        return _refusal(path, error, start, log)
    mode = stat.S_IMODE(found.st_mode)
    text = f"pid {pid} uid {uid} listens on {path} (mode {mode:04o})"
    if private and mode & stat.S_IWOTH:
        return warning(f"{text}: every user of this host may connect", f"chmod o-rwx {path}")
    return ok(text)


def answers(path: Path) -> bool:
    """Whether a process listens on a socket. A full queue counts as an answer."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            return probe.connect_ex(str(path)) in {0, errno.EAGAIN}
        except OSError:  # longer than a socket's path can be
            return False


def connections(path: Path, table: str) -> int:
    """The number of connections to a socket: each accepted end has its path.

    Args:
        path: the path as it was bound.
        table: `UNIX_TABLE`, decoded with `os.fsdecode`: Num RefCount Protocol Flags Type St Inode Path.
    """
    rows = (line.split(maxsplit=7) for line in table.split("\n"))
    return sum(len(row) == 8 and row[5] == _CONNECTED and row[7] == str(path) for row in rows)


def _refusal(path: Path, error: OSError, start: str, log: str) -> Finding:
    do = f"start {start}; if it runs already, {log}"
    match error.errno:
        case errno.ENOENT | errno.ENOTDIR:
            return wrong(f"{path} does not exist", do)
        case errno.ECONNREFUSED:
            return wrong(f"nobody listens on {path}: the process that made it has ended", do)
        case errno.EACCES | errno.EPERM:
            return wrong(f"{path} is closed to this user", "run the doctor as root, or as the user of that process")
    return wrong(f"{path} cannot be tried: {error.strerror or error}", f"look at the log of {start}")
