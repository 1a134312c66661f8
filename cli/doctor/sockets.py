"""A socket: finds its listener, its permissions and its connections."""

import errno
import os
import socket
import stat
from pathlib import Path

from cli.doctor.finding import Finding, ok, warning, wrong
from common.net.sockets import peer_credentials

# The UNIX sockets of this network namespace, which the containers of a pod share: Num … St Inode Path.
_UNIX_TABLE = Path("/proc/net/unix")

_CONNECTED = "03"  # SS_CONNECTED (linux/net.h)


def check_socket(path: Path, *, start: str) -> Finding:
    try:
        mode = path.stat().st_mode
        if not stat.S_ISSOCK(mode):
            return wrong(f"{path} is not a socket", f"remove it, then start {start}")
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(1.0)
            probe.connect(str(path))
            pid, uid, _ = peer_credentials(probe)
    except OSError as error:
        return _refusal(path, error, f"start {start}; if it runs already, look at its log")
    text = f"pid {pid} uid {uid} listens on {path} (mode {stat.S_IMODE(mode):04o})"
    if mode & stat.S_IWOTH:
        return warning(f"{text}: every user of this host may connect", f"chmod o-rwx {path}")
    return ok(text)


def connections(path: Path) -> int:
    # by the path as it was bound: each accepted end has it
    rows = (line.split(maxsplit=7) for line in os.fsdecode(_UNIX_TABLE.read_bytes()).split("\n"))
    return sum(len(row) == 8 and row[5] == _CONNECTED and row[7] == str(path) for row in rows)


def _refusal(path: Path, error: OSError, do: str) -> Finding:
    match error.errno:
        case errno.ENOENT | errno.ENOTDIR:
            return wrong(f"{path} does not exist", do)
        case errno.ECONNREFUSED:
            return wrong(f"nobody listens on {path}: the process that made it has ended", do)
        case errno.EACCES | errno.EPERM:
            return wrong(f"{path} is closed to this user", "run the doctor as root, or as the user of that process")
    return wrong(f"{path} cannot be tried: {error.strerror or error}", do)
