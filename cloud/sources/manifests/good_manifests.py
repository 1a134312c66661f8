"""The good manifests: the last good content of each manifest file, on the hub's disk, for a restarted hub.

Rules:

* The hub reads the last good content only of files that are broken or missing now.
* They hold the objects that nodes get, Secrets included. So they are sealed (`common.sealing`), each bound to its name,
  and only the hub's user may read them. Earlier hubs did not seal them; this one does when it opens the directory.
* A copy that was sealed with another key stays as it is until its manifest is good: the key may come back.
* An unreadable one counts as none: the hub then knows less, never something wrong.
* `.complete` exists while they are all that nodes have got. Then a file that is not among them was never good.
"""

import contextlib
import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from cloud.sources.manifests.manifest_objects import Entry, read_objects
from common.errors import SettingsError
from common.files import NEW, replace_file
from common.objects import encode_body
from common.sealing import Sealer
from common.state_file import Form, read_state, write_state

log = logging.getLogger("csi_bridge.hub.manifests")

_COMPLETE, _VERSION = ".complete", ".version"
"""Hidden names, which no manifest has."""

_SEALED = "sealed"

FORM = Form("hub", (lambda body: {**body, _SEALED: False},))
"""The form of the directory, in its file `.version`. In version 1 the copies are not sealed."""

_MOST_NAMED = 3
"""Names of copies in one problem."""


class GoodManifests:
    """A directory with a file for each manifest file, of the same name. Used by one thread at a time."""

    def __init__(self, directory: Path, sealer: Sealer, *, earlier: Sealer | None = None) -> None:
        """Make the directory if it is missing, and seal the copies that an earlier hub did not.

        Args:
            directory: the directory.
            sealer: seals the copies.
            earlier: unseals copies that were sealed before the operator chose another key.

        Raises:
            SettingsError: the directory cannot be used, or a newer hub wrote it.
        """
        self._directory, self._sealer, self._earlier = directory, sealer, earlier
        self._unsealable: set[str] = set()
        """The copies that no key unseals."""
        self._is_settled = False
        """Whether all other copies are sealed with the present key."""
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = {path.name for path in directory.iterdir()}
            self._are_sealed = bool(read_state(directory / _VERSION, FORM)[_SEALED]) if _VERSION in found else False
        except (OSError, ValueError) as error:
            raise SettingsError("--state-dir", str(directory), f"cannot be used: {error}") from error
        self.is_complete = _COMPLETE in found
        """Whether these are all that nodes have got."""
        self._names = {name for name in found if not name.startswith(".") and not name.endswith(NEW)}
        try:
            self._seal_all()
        except OSError as error:
            log.error("the copies in %s are not sealed yet; it is tried again: %s", directory, error)  # noqa: TRY400  # not a bug

    @property
    def names(self) -> Collection[str]:
        """The manifest files that were good once and were not removed."""
        return self._names

    def problem(self) -> str:
        """A sentence about copies that cannot be unsealed; empty if there are none."""
        if not self._unsealable:
            return ""
        names = sorted(self._unsealable)
        more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        return (
            f"the last good copies of {', '.join(names[:_MOST_NAMED])}{more} in {self._directory} were sealed with "
            "another key than the one in use (--seal-key): start the hub with that key, or repair these manifests, "
            "which makes new copies"
        )

    def recall(self, name: str) -> tuple[Entry, ...] | None:
        """The last good objects of a file; None if they are not known."""
        if name not in self._names:
            return None
        path = self._directory / name
        try:
            found = read_objects("kept.json", self._read(name))
        except (OSError, ValueError) as error:
            log.warning("%s is unreadable, so the last good version of %s is not known: %s", path, name, error)
            return None
        return tuple(replace(entry, place=f"{name}, as it was last good") for entry in found)

    def keep(self, changed: Mapping[str, Iterable[Entry]], names: Collection[str]) -> None:
        """Store the new objects of changed files, and drop all files that are not among `names`.

        Raises:
            OSError: the disk refused; call it again with the same files.
        """
        self._seal_all()
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
            self._unsealable.discard(name)
        (self._directory / _COMPLETE).touch(mode=0o600)
        self.is_complete = True

    @property
    def is_settled(self) -> bool:
        """Whether every copy that can be read is sealed with the present key."""
        return self._is_settled

    def _seal_all(self) -> None:
        """Seal the copies that are not sealed, or are sealed with the earlier key. Does so once.

        Raises:
            OSError: the disk refused; call it again.
        """
        if self._is_settled:
            return
        self._unsealable.clear()
        for name in self._names:
            try:
                body = self._read(name)
            except ValueError:
                self._unsealable.add(name)
                continue
            except OSError as error:
                log.warning("the last good version of %s cannot be read: %s", name, error)
                continue
            self._write(name, body, durable=True)
        if not self._are_sealed:
            write_state(self._directory / _VERSION, FORM, {_SEALED: True}, mode=0o600)
        self._are_sealed = self._is_settled = True

    def _read(self, name: str) -> bytes:
        """The content of a copy.

        Raises:
            OSError: it cannot be read.
            ValueError: no key unseals it.
        """
        data = (self._directory / name).read_bytes()
        for sealer in filter(None, (self._sealer, self._earlier)):
            with contextlib.suppress(ValueError):
                return sealer.unseal(data, bound=bound(name))
        if not self._are_sealed and data.startswith(b"{"):
            return data
        raise ValueError("it was sealed with another key, or is damaged")

    def _write(self, name: str, data: bytes, *, durable: bool = False) -> None:
        path = self._directory / name
        with contextlib.suppress(OSError, ValueError):
            if self._sealer.unseal(path.read_bytes(), bound=bound(name)) == data:  # as after most restarts
                return
        replace_file(path, self._sealer.seal(data, bound=bound(name)), durable=durable, mode=0o600)
        self._unsealable.discard(name)


def bound(name: str) -> bytes:
    """What the seal of a manifest's copy is bound to."""
    return b"manifest\0" + name.encode()
