"""A home: the node, and the root directory, whose state a state directory holds.

Under another node's name every pod that is known would count as gone to another node, and lose its volumes while it
runs. Below another root directory no mount would be found that the state tells of, and all would be forgotten.

Rules:

* An agent that mounts starts with the node and the root directory that its state was begun with, or not at all.
* A file that cannot be read or written keeps no node from its volumes: it is said, and written anew.
"""

import json
import logging
import os
from pathlib import Path
from typing import Any

from common.errors import SettingsError

log = logging.getLogger("csi_bridge.edge.home")


class Home:
    """`home.json` in the state directory. Everything here blocks, for a small file."""

    def __init__(self, state_dir: Path, node: str, root_dir: Path) -> None:
        """See whether the state is this one's, or nobody's yet.

        Args:
            state_dir: the state directory; it may be missing.
            node: `--node`.
            root_dir: `--root-dir`; compared as it is written, because drivers know it so.

        Raises:
            SettingsError: it is another one's.
        """
        self._path = state_dir / "home.json"
        self._home = {"node": node, "rootDir": str(root_dir.absolute())}
        self._kept = _read(self._path)
        for key, flag in (("node", "--node"), ("rootDir", "--root-dir")):
            if self._kept and self._kept[key] != self._home[key]:
                raise SettingsError(flag, self._home[key], _why(state_dir, f"{flag}={self._kept[key]}"))

    def keep(self) -> None:
        """Write down whose state it is, before anything is mounted."""
        if self._kept == self._home:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            _write(self._path, json.dumps(self._home))
        except OSError as error:
            log.error("%s cannot be written: %s", self._path, error.strerror or error)  # noqa: TRY400  # not a bug
            return
        self._kept = self._home


def _why(state_dir: Path, kept: str) -> str:
    return (
        f"{state_dir} holds the state of {kept}, whose volumes may be mounted: start with that; if the change is meant,"
        " first remove the node's pods, wait until `csi-bridge edge volumes` shows none, and give the agent an empty "
        "--state-dir"
    )


def _read(path: Path) -> dict[str, str]:
    """What is kept; nothing if nothing is, or it cannot be read."""
    try:
        return _home(json.loads(path.read_bytes()))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
        log.warning("%s is unreadable (%s): whether --node and --root-dir are as before is not known", path, why)
        return {}


def _home(found: Any) -> dict[str, str]:
    home = {key: found[key] for key in ("node", "rootDir")}
    if not all(isinstance(value, str) for value in home.values()):
        raise TypeError(home)
    return home


def _write(path: Path, text: str) -> None:
    """The old file or the new one, never half of it, also after a power cut."""
    new = path.with_suffix(".new")
    with new.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
