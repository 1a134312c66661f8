"""A state file: a small JSON object with the version of its form, and the directory of such files.

Only the owner may enter the directory, because its files hold keys, Secrets and the identity of a node. systemd units
and images set its mode, too. A start by hand has only the umask.

A process that finds a newer form refuses to start and leaves the file as it is. The first change of a form brings the
step from version 1 with it.
"""

import json
import logging
import stat
from pathlib import Path
from typing import Any, Final

from common.errors import newer_state
from common.store.files import replace_file

VERSION: Final = 1

_KEY = "version"

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


def read_state(path: Path, owner: str) -> dict[str, Any]:
    """Read a state file's object. `owner` is the program that writes it, for messages: `edge agent`.

    Raises SettingsError: a newer program wrote it; OSError, or ValueError: it is no JSON object with a version.
    """
    try:
        content: Any = json.loads(path.read_bytes())
    except RecursionError as error:
        raise ValueError(type(error).__name__) from error
    if not isinstance(content, dict):
        raise ValueError("it is no object")  # noqa: TRY004  # what a file holds is a value
    body: dict[str, Any] = content
    version = body.get(_KEY)
    if type(version) is not int or version < 1:
        raise ValueError(f"its version is {version!r}")
    if version > VERSION:
        raise newer_state(path, owner, version, VERSION)
    return body


def write_state(path: Path, body: dict[str, Any], *, mode: int | None = None) -> None:
    """Replace a state file. Its content then survives a power cut. OSError: the old content stays."""
    content = json.dumps({**body, _KEY: VERSION}, indent=1, sort_keys=True)
    replace_file(path, content.encode(), durable=True, mode=mode)
