"""The good manifests: the last good content of each manifest file, on the hub's disk, for a restarted hub.

Rules:

* The hub reads the last good content only of files that are broken or missing now.
* They hold the objects that nodes get, Secrets included, so only the hub's user may read them.
* An unreadable one counts as none: the hub then knows less, never something wrong.
* `.complete` exists while they are all that nodes have got. Then a file that is not among them was never good.
"""

import contextlib
import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from cloud.sources.manifests.manifest_objects import BrokenFile, Entry, read_objects
from common.errors import SettingsError
from common.files import NEW, replace_file
from common.objects import encode_body
from common.state_file import Form, read_state, write_state

log = logging.getLogger("csi_bridge.hub.manifests")

_COMPLETE, _VERSION = ".complete", ".version"
"""Hidden names, which no manifest has."""

FORM = Form("hub")
"""The form of the directory, in its file `.version`."""


class GoodManifests:
    """A directory with a file for each manifest file, of the same name. Used by one thread at a time."""

    def __init__(self, directory: Path) -> None:
        """Make the directory if it is missing.

        Raises:
            SettingsError: the directory cannot be used, or a newer hub wrote it.
        """
        self._directory = directory
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                read_state(directory / _VERSION, FORM)
            found = {path.name for path in directory.iterdir()}
        except (OSError, ValueError) as error:
            raise SettingsError("--state-dir", str(directory), f"cannot be used: {error}") from error
        self.is_complete = _COMPLETE in found
        """Whether these are all that nodes have got."""
        self._names = {name for name in found if not name.startswith(".") and not name.endswith(NEW)}

    @property
    def names(self) -> Collection[str]:
        """The manifest files that were good once and were not removed."""
        return self._names

    def recall(self, name: str) -> tuple[Entry, ...] | None:
        """The last good objects of a file; None if they are not known."""
        if name not in self._names:
            return None
        path = self._directory / name
        try:
            found = read_objects("kept.json", path.read_bytes())
        except (OSError, BrokenFile) as error:
            log.warning("%s is unreadable, so the last good version of %s is not known: %s", path, name, error)
            return None
        return tuple(replace(entry, place=f"{name}, as it was last good") for entry in found)

    def keep(self, changed: Mapping[str, Iterable[Entry]], names: Collection[str]) -> None:
        """Store the new objects of changed files, and drop all files that are not among `names`.

        Raises:
            OSError: the disk refused; call it again with the same files.
        """
        gone = self._names - set(names)
        if self.is_complete and not changed and not gone:
            return
        self.is_complete = False
        (self._directory / _COMPLETE).unlink(missing_ok=True)
        for name, entries in changed.items():
            self._write(name, encode_body({"kind": "List", "items": [entry.item.body for entry in entries]}))
            self._names.add(name)
        for name in gone:
            (self._directory / name).unlink(missing_ok=True)
            self._names.discard(name)
        if not (self._directory / _VERSION).exists():
            write_state(self._directory / _VERSION, FORM, {}, mode=0o600)
        (self._directory / _COMPLETE).touch(mode=0o600)
        self.is_complete = True

    def _write(self, name: str, data: bytes) -> None:
        path = self._directory / name
        with contextlib.suppress(OSError):
            if path.read_bytes() == data:  # as after most restarts
                return
        replace_file(path, data, durable=False, mode=0o600)
