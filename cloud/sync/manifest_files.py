"""The manifest files of a directory: which are there, what each said last, and what is wrong with it.

Rules:

* A file that cannot be used stays, as a whole, what it was when it was last good, also when that was in an earlier
  life of the hub (`good_manifests`).
* What takes something away is not believed at once: a file that is gone, is broken or says less than before
  may be half written, or be on its way from one name to another. It must have been left alone for `settle_s`. The
  same goes for one that says something else of an object than before; only what is added counts at once.
* A directory that is gone or cannot be read takes nothing away, nor does an empty one in its place (a file system
  that is not mounted). An empty one does that is the very directory which had files before.
* Files are looked up by their own names: `*.yaml`, `*.yml` and `*.json`, symlinks included, hidden ones and
  sub-directories not (a mounted ConfigMap has its contents in hidden ones and links to them).
* What nobody foresaw in a file is that file's problem: the hub carries calls as well.
* No clock of its own: whoever scans says what time it is.
"""

import logging
import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cloud.sync.good_manifests import GoodManifests
from cloud.sync.manifest_objects import BrokenFile, Entry, read_objects
from common.objects import Ref, Stamp

log = logging.getLogger("csi_bridge.hub.manifests")

MAX_FILE_BYTES: Final = 16 * 1024 * 1024
_SUFFIXES: Final = (".yaml", ".yml", ".json")

_Signature = tuple[int, int, int, int, int]
"""Device, inode, size, time of the last write and of the last change: together another one after every write."""


@dataclass(frozen=True, slots=True)
class Now:
    """What time it is, in seconds: by a clock that only runs forward, and by the one that files are dated by."""

    steady: float
    wall: float


@dataclass(frozen=True, slots=True)
class _Reading:
    """What a file said when its signature was this one; with a problem, nothing."""

    signature: _Signature | None
    entries: tuple[Entry, ...] = ()
    problem: str = ""


@dataclass(slots=True)
class _File:
    """What is known of one file.

    Attributes:
        good: what it said when it was last good; None if it never was.
        believed: the reading that counts.
        waiting: a newer one that is not believed yet, since `since`.
    """

    good: tuple[Entry, ...] | None = None
    believed: _Reading | None = None
    waiting: _Reading | None = None
    since: float = 0.0


@dataclass(slots=True)
class ManifestFiles:
    """The files of one directory. Used by one thread at a time.

    Attributes:
        kept: what the files said when they were last good, on the disk.
        identity: device and inode of the directory, when it could last be read; None if it cannot.
        revision: another one when `objects()` may be.
        unsettled: something waits to be believed: scan again in `settle_s`.
        was_complete: at one time every file was good, or one that was added broken to those that were.
    """

    directory: Path
    settle_s: float = 1.0
    kept: GoodManifests | None = None
    identity: tuple[int, int] | None = None
    unsettled: bool = False
    revision: int = 0
    was_complete: bool = False
    _files: dict[str, _File] = field(default_factory=dict)
    _home: tuple[int, int] | None = None
    """The directory that had files."""
    _problem: str = ""
    _unkept: set[str] = field(default_factory=set)
    """Files that are good and not on the disk as they are now."""
    _kept_problem: str = ""

    def scan(self, now: Now) -> None:
        """Look at the directory once more, and read what has changed."""
        self.unsettled = False
        try:
            found = self.directory.stat()
            names = sorted(path.name for path in self.directory.iterdir() if _is_manifest(path.name))
        except OSError as error:
            self.identity = None
            self._problem = f"{self.directory} cannot be read ({error.strerror}): what it held is kept as it was"
            return
        self.identity = found.st_dev, found.st_ino
        if not names and self.identity != self._home:
            self._problem = f"{self.directory} holds no manifest, and may be the wrong directory: nothing is taken away"
            return
        self._problem = ""
        if self._home is None:
            self._recall_missing(names)
        self._home = self.identity
        for name in names:
            self._look(name, self._files.setdefault(name, _File()), now)
        for name in self._files.keys() - set(names):
            self._miss(name, now)
        self.was_complete = self.was_complete or all(map(self._is_known, self._files))
        self._keep()

    def objects(self) -> tuple[dict[Ref, Entry], dict[str, str]]:
        """Every object once, and the problems of those that are there twice. Of two the first counts, by file name."""
        found: dict[Ref, Entry] = {}
        problems: dict[str, str] = {}
        for _, file in sorted(self._files.items()):
            for entry in file.good or ():
                first = found.setdefault(entry.ref, entry)
                if first is not entry and file.waiting is None:
                    text = f"{entry.place}: {entry.ref} is already at {first.place}, and that one counts"
                    problems[f"twice {entry.place}"] = text
        return found, problems

    def problems(self) -> Mapping[str, str]:
        """What is wrong with which file, or with the directory."""
        found = {"": self._problem} if self._problem else {}
        if self._kept_problem:
            found["kept"] = self._kept_problem
        for name, file in sorted(self._files.items()):
            if file.believed is not None and file.believed.problem:
                kept = "its last good version stays" if file.good is not None else "nothing of it is known"
                found[name] = f"{file.believed.problem}; {kept}"
        return found

    def _look(self, name: str, file: _File, now: Now) -> None:
        signature = _signature(self.directory / name)
        if file.believed is not None and file.believed.signature == signature is not None:
            file.waiting = None
            return
        if file.waiting is None or file.waiting.signature != signature or signature is None:
            reading = _read(self.directory / name)
            if reading == file.believed:
                file.waiting = None
                return
            if _signature(self.directory / name) != reading.signature:  # it is being written just now
                self.unsettled = True
                return
            if reading != file.waiting:
                file.waiting, file.since = reading, now.steady
        if self._is_harmless(file) or self._is_settled(file, now):
            self._believe(name, file)
            self.revision += 1
        else:
            self.unsettled = True

    def _miss(self, name: str, now: Now) -> None:
        """A file is not there any more."""
        file = self._files[name]
        if file.waiting != _GONE:
            file.waiting, file.since = _GONE, now.steady
        if self._is_settled(file, now):
            del self._files[name]
            self._unkept.discard(name)
            self.revision += 1
        else:
            self.unsettled = True

    def _is_harmless(self, file: _File) -> bool:
        """Whether the reading that waits takes nothing away."""
        reading = file.waiting
        if reading is None or reading.problem or (file.good is None and not self.was_complete):
            return False
        return _states(file.good or ()) <= _states(reading.entries)

    def _is_settled(self, file: _File, now: Now) -> bool:
        written = file.waiting.signature if file.waiting is not None else None
        age = now.wall - written[3] / 1e9 if written is not None else 0.0
        return now.steady - file.since >= self.settle_s or age >= self.settle_s

    def _believe(self, name: str, file: _File) -> None:
        file.believed, file.waiting = file.waiting, None
        if file.believed is not None and not file.believed.problem:
            file.good = file.believed.entries
            self._unkept.add(name)
        elif file.good is None and self.kept is not None:
            file.good = self.kept.recall(name)

    def _recall_missing(self, names: list[str]) -> None:
        """What an earlier life knew and is not there: gone, or just on its way from one name to another."""
        for name in set(self.kept.names if self.kept is not None else ()) - set(names):
            if self.kept is not None and (good := self.kept.recall(name)) is not None:
                self._files[name] = _File(good)

    def _keep(self) -> None:
        """Keep what is good for the next life; what fails is tried again at the next look."""
        if self.kept is None or not self.was_complete:
            return
        try:
            self.kept.keep({name: self._files[name].good or () for name in sorted(self._unkept)}, self._files)
        except OSError as error:
            why = error.strerror or error
            self._kept_problem = (
                f"what the manifests say cannot be kept for a hub that restarts while one is broken: {why}"
            )
        else:
            self._unkept.clear()
            self._kept_problem = ""

    def _is_known(self, name: str) -> bool:
        """Whether nodes can be told what a file says: it was good, or never was, so that none of them uses it."""
        if self._files[name].good is not None:
            return True
        is_new = self.kept is not None and self.kept.is_complete and name not in self.kept.names
        return is_new and self._files[name].believed is not None


_GONE: Final = _Reading(None)


def _is_manifest(name: str) -> bool:
    return name.endswith(_SUFFIXES) and not name.startswith(".") and name.isprintable()


def _states(entries: Iterable[Entry]) -> set[tuple[Ref, Stamp]]:
    """What may be taken away. A changed object counts too: a file cut short may end within it."""
    return {(entry.ref, entry.item.stamp) for entry in entries}


def _signature(path: Path) -> _Signature | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _read(path: Path) -> _Reading:
    """A file's contents, with the signature that it had before: if it is written meanwhile, it is read again."""
    signature = _signature(path)
    try:
        return _Reading(signature, tuple(read_objects(path.name, _bytes_of(path))))
    except BrokenFile as error:
        return _Reading(signature, problem=str(error))
    except OSError as error:
        return _Reading(signature, problem=f"{path.name}: it cannot be read ({error.strerror})")
    except Exception:
        log.exception("reading %s failed", path)
        return _Reading(signature, problem=f"{path.name}: reading it failed, through a mistake in CSI Bridge")


def _bytes_of(path: Path) -> bytes:
    # O_NONBLOCK: opening a pipe would wait for somebody who writes.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:  # noqa: PTH123  # a descriptor
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise BrokenFile(f"{path.name}: it is no file")
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise BrokenFile(f"{path.name}: it is larger than {MAX_FILE_BYTES >> 20} MiB; divide it")
    return data
