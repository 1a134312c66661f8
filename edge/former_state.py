"""A former state: what an agent knew while it mounted volumes, put aside when a kubelet is to do that.

An agent that mounts again later starts as after the loss of both files (docs/recovery.md): it hears from the hub which
pods there are, and finds on the disk what is mounted. What it knew before the kubelet's time is no more true: the pod
may be gone, and its volume attached to another node.

Rules:

* `edge.db` and `volumes.db` become `….own-<time>`, each with its journals. Of what was put aside before, nothing stays.
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

_NAMES = ("edge", "volumes")
_JOURNALS = ("", "-wal", "-shm")


def put_aside(state_dir: Path, *, now: float) -> str:
    """Put what is in a state directory aside, if there is anything.

    Args:
        state_dir: where; it may be missing.
        now: the time, in seconds since the epoch.

    Returns:
        Why it could not be done, in words; empty if it was.

    Raises:
        SettingsError: another agent uses it.
    """
    try:
        _put_aside(state_dir, f".own-{timestamp(now)}")
    except BlockingIOError:
        raise SettingsError("--state-dir", str(state_dir), "another edge agent is using it") from None
    except OSError as error:
        return (
            f"edge.db and volumes.db in {state_dir} are of the time before the kubelet's and cannot be put aside "
            f"({error.strerror or error}): remove them before an agent mounts volumes here again"
        )
    return ""


def _put_aside(state_dir: Path, aside: str) -> None:
    moves = list(_moves(state_dir, aside))
    if not moves:
        return
    earlier = [file for name in _NAMES for file in state_dir.glob(f"{name}.db.own-*")]
    with contextlib.ExitStack() as held:
        for name in _NAMES:
            held.callback(os.close, lock(state_dir / f"{name}.lock"))
        for file, to in moves:
            file.rename(to)
            log.warning("%s is of the time before the kubelet's; it is moved to %s", file, to)
    for file in set(earlier) - {to for _, to in moves}:
        file.unlink()


def _moves(state_dir: Path, aside: str) -> Iterator[tuple[Path, Path]]:
    """The databases before their journals: what SQLite finds of a journal alone, it throws away."""
    for name in _NAMES:
        for journal in _JOURNALS:
            file = state_dir / f"{name}.db{journal}"
            if file.exists():
                yield file, state_dir / f"{name}.db{aside}{journal}"
