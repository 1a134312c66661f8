"""A former state: the files of an agent that mounted volumes, renamed when a kubelet takes over that work.

They are also renamed when they belong to another node and hold nothing (`edge.home`).

An agent that mounts again later starts as after the loss of these files (docs/recovery.md): it gets the pods from the
hub, finds the mounts on the disk, and waits for the drivers to register. Its earlier knowledge is outdated: the pod may
be gone, its volume attached to another node, and a driver removed.

Rules:

* `edge.db`, `volumes.db` and `drivers.json` become `….own-<time>`, a database with its journals. The newest one of each
  stays.
* `home.json` stays: it guards the mounts on the disk (`edge.home`), which stay too. Under another node's name, an agent
  that mounts again would take them down.
* The files of a running agent are not renamed.
* The directory `DIRECT` is none of a former state: an agent beside a kubelet keeps its direct volumes there.
"""

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from common.errors import SettingsError, timestamp
from common.store.database import lock

log = logging.getLogger("csi_bridge.edge")

_DATABASES = ("edge", "volumes")
_JOURNALS = ("", "-wal", "-shm")
_FILES = (*(f"{name}.db" for name in _DATABASES), "drivers.json")


DIRECT = "direct"

BEFORE_A_KUBELET = "of the time before the kubelet's"


def put_aside(state_dir: Path, *, now: float, what: str = BEFORE_A_KUBELET) -> str:
    """Rename the files of a former state, if there are any. Returns the reason why they could not be renamed."""
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
    # each database before its journals, because SQLite deletes a journal that it finds alone
    for name in _FILES:
        for journal in _JOURNALS:
            file = state_dir / f"{name}{journal}"
            if file.exists():
                yield file, state_dir / f"{name}{aside}{journal}"
