"""A former state: the files of an agent that mounted volumes, put aside when a kubelet takes the node over.

They are also put aside if they are another node's and that node has no volumes here (`edge.home`).

If an agent mounts again later, it starts as after the loss of these files (docs/recovery.md). It gets the pods from the
hub, finds mounts on the disk, and learns drivers when they register. The old files would be wrong: pods may be gone,
volumes attached to another node, and drivers removed.

Rules:

* `edge.db`, `volumes.db` and `drivers.json` become `….own-<time>`, each database with its journals. Of each file, only
  the newest copy stays.
* `home.json` stays, because it guards the mounts on the disk (`edge.home`), and these stay, too. An agent with another
  node's name would unmount them, with or without these files.
* The files of a running agent are not moved.
"""

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from common.database import lock
from common.errors import SettingsError, timestamp

log = logging.getLogger("csi_bridge.edge")

_DATABASES = ("edge", "volumes")
_JOURNALS = ("", "-wal", "-shm")
_FILES = (*(f"{name}.db" for name in _DATABASES), "drivers.json")


BEFORE_A_KUBELET = "of the time before the kubelet's"


def put_aside(state_dir: Path, *, now: float, what: str = BEFORE_A_KUBELET) -> str:
    """Put the files of a state directory aside, if there are any.

    Args:
        state_dir: the directory, which may be missing.
        now: the time, seconds since the epoch.
        what: the reason, for people.

    Returns:
        The reason of a failure, in words; empty if there was none.

    Raises:
        SettingsError: another agent uses the directory.
    """
    try:
        _put_aside(state_dir, f".own-{timestamp(now)}", what)
    except BlockingIOError:
        raise SettingsError("--state-dir", str(state_dir), "another edge agent is using it") from None
    except OSError as error:
        return (
            f"edge.db, volumes.db and drivers.json in {state_dir} are {what} and cannot be put aside "
            f"({error.strerror or error}): remove them before an agent mounts volumes here again"
        )
    return ""


def _put_aside(state_dir: Path, aside: str, what: str) -> None:
    moves = list(_moves(state_dir, aside))
    if not moves:
        return
    moved = {file.name for file, _ in moves}
    earlier = [file for name in _FILES if name in moved for file in state_dir.glob(f"{name}.own-*")]
    with contextlib.ExitStack() as held:
        for name in _DATABASES:
            held.callback(os.close, lock(state_dir / f"{name}.lock"))
        for file, to in moves:
            file.rename(to)
            log.warning("%s is %s; it is moved to %s", file, what, to)
    for file in set(earlier) - {to for _, to in moves}:
        file.unlink()


def _moves(state_dir: Path, aside: str) -> Iterator[tuple[Path, Path]]:
    """The files and their new names, databases first: SQLite drops a journal without its database."""
    for name in _FILES:
        for journal in _JOURNALS:
            file = state_dir / f"{name}{journal}"
            if file.exists():
                yield file, state_dir / f"{name}{aside}{journal}"
