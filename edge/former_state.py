"""A former state: what an agent knew while it mounted volumes, put aside when a kubelet is to do that.

It is also put aside when it is another node's and holds nothing (`edge.home`).

An agent that mounts again later starts as after the loss of these files (docs/recovery.md): it hears from the hub which
pods there are, finds on the disk what is mounted, and hears the drivers that register. What it knew before the
kubelet's time is no more true: the pod may be gone, its volume attached to another node, and a driver removed.

Rules:

* `edge.db`, `volumes.db` and `drivers.json` become `….own-<time>`, a database with its journals. Of each the newest
  stays.
* `home.json` stays: it guards what is mounted on the disk (`edge.home`), and that stays, too. Under another node's name
  an agent that mounts again would take it down, with or without these files.
* Nothing is taken from under an agent that uses it.
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
    """Put what is in a state directory aside, if there is anything.

    Args:
        state_dir: where; it may be missing.
        now: the time, in seconds since the epoch.
        what: why it is a former state, for people: "it is …".

    Returns:
        Why it could not be done, in words; empty if it was.

    Raises:
        SettingsError: another agent uses it.
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
    """The databases before their journals: what SQLite finds of a journal alone, it throws away. Else there is none."""
    for name in _FILES:
        for journal in _JOURNALS:
            file = state_dir / f"{name}{journal}"
            if file.exists():
                yield file, state_dir / f"{name}{aside}{journal}"
