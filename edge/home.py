"""A home: the node and the root directory to which a state directory belongs.

Under another node's name, the agent would take every known pod for one of another node, and unmount its volumes under
it. Below another root directory, it would find none of the known mounts, and forget them all.

Rules:

* An agent that mounts starts only with the node and the root directory of its state.
* A state without a pod or a volume, and without a volume below its root directory, is put aside for another node. So
  the right name corrects a typo in `--node`. The agent does not use such a state: its facts name the other node.
* If the file cannot be read or written, the agent logs that, mounts volumes all the same, and writes the file anew.
"""

import contextlib
import logging
import sqlite3
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

from common.errors import SettingsError
from common.store.database import Schema, refuse_newer
from common.store.state_file import read_state, write_state
from edge.disk.found_volumes import Found, scan
from edge.disk.root_dir import RootDir
from edge.stores import metastore
from edge.stores.former_state import put_aside
from edge.wanted import states

log = logging.getLogger("csi_bridge.edge.home")


class Home:
    """`home.json` in the state directory. Everything here blocks, for a small file."""

    def __init__(self, state_dir: Path, node: str, root_dir: Path) -> None:
        """Check that the state belongs to this node and root directory, or to none yet. Raises SettingsError."""
        self._path = state_dir / "home.json"
        self._home = {"node": node, "rootDir": str(root_dir.absolute())}
        self._kept = _read(self._path)
        if self._kept and self._kept != self._home:
            if not _is_unused(state_dir, Path(self._kept["rootDir"])):
                flag, key = ("--node", "node") if self._kept["node"] != node else ("--root-dir", "rootDir")
                raise SettingsError(flag, self._home[key], _why(state_dir, f"{flag}={self._kept[key]}"))
            self._disown()

    def _disown(self) -> None:
        whose = "of another --node or --root-dir"
        if why := put_aside(self._path.parent, now=time.time(), what=whose):
            raise SettingsError("--state-dir", str(self._path.parent), why)
        try:  # `write` may fail to write a new one, and later starts would take the new mounts for the other node's
            self._path.unlink(missing_ok=True)
        except OSError as error:
            why = f"{self._path} is {whose} and cannot be removed: {error.strerror or error}"
            raise SettingsError("--state-dir", str(self._path.parent), why) from error
        self._kept = {}

    def write(self) -> None:
        if self._kept == self._home:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_state(self._path, self._home)
        except OSError as error:
            log.error("%s cannot be written: %s", self._path, error.strerror or error)  # noqa: TRY400  # not a bug
            return
        self._kept = self._home


def _is_unused(state_dir: Path, root_dir: Path) -> bool:
    try:
        known = any(
            _has_row(state_dir / file, schema, table, where)
            for file, schema, table, where in (
                ("edge.db", metastore.SCHEMA, "objects", "kind = 'Pod'"),
                ("volumes.db", states.SCHEMA, "devices", "TRUE"),
                ("volumes.db", states.SCHEMA, "publications", "TRUE"),
            )
        )
        return not known and scan(RootDir(root_dir)) == Found()
    except (OSError, sqlite3.Error):
        return False


def _has_row(file: Path, schema: Schema, table: str, where: str) -> bool:
    if not file.exists():
        return False
    refuse_newer(file, schema)
    with contextlib.closing(sqlite3.connect(f"file:{quote(str(file))}?mode=rw", uri=True)) as database:
        if database.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone() is None:
            return False
        return database.execute(f"SELECT 1 FROM {table} WHERE {where} LIMIT 1").fetchone() is not None  # noqa: S608  # our own names


def _why(state_dir: Path, kept: str) -> str:
    return (
        f"{state_dir} holds the state of {kept}, whose volumes may be mounted: start with that; to change it, first "
        "remove the node's pods, and wait until `csi-bridge edge volumes` shows none; the agent then accepts another"
    )


def _read(path: Path) -> dict[str, str]:
    try:
        return _home(read_state(path, "edge agent"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError, TypeError, KeyError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
        log.warning("%s is unreadable (%s): whether --node and --root-dir are as before is not known", path, why)
        return {}


def _home(found: dict[str, Any]) -> dict[str, str]:
    home = {key: found[key] for key in ("node", "rootDir")}
    if not all(isinstance(value, str) for value in home.values()):
        raise TypeError(home)
    return home
