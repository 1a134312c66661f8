"""A state directory: only its owner may enter it, because its files hold keys, Secrets and the identity of a node.

systemd units and images set its mode, too. A start by hand has only the umask.
"""

import logging
import stat
from pathlib import Path

log = logging.getLogger("csi_bridge.state")

_OTHERS = 0o077
_PARENT_MODE = 0o755


def make_state_directory(path: Path) -> None:
    """Make a state directory with its missing parents, and close it to other users, whatever the umask is.

    An existing directory is closed, too. If it belongs to another user (a volume of a pod), or all users share it
    (/tmp), its mode stays, and a log line says so: a warning if others may write to it.
    """
    for parent in reversed(path.parents):
        if not parent.exists():
            parent.mkdir(_PARENT_MODE, exist_ok=True)
    path.mkdir(0o700, exist_ok=True)
    mode = stat.S_IMODE(path.stat().st_mode)
    if not mode & _OTHERS:
        return
    try:
        if mode & stat.S_ISVTX:
            raise PermissionError(None, "it is shared by all users")  # handled like a refusal
        path.chmod(mode & ~_OTHERS)
    except OSError as error:
        log.log(
            logging.WARNING if mode & stat.S_IWOTH else logging.INFO,
            "%s has the mode %o: other users may read the state in it; this process cannot close it (%s)",
            path,
            mode,
            error.strerror or error,
        )
    else:
        log.info("%s had the mode %o, and is closed to other users now", path, mode)
