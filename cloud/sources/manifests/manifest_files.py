"""The manifest files of a directory, with the last content and the problem of each.

Rules:

* If a file cannot be used, its last good content stays in force as a whole, also after a restart (`good_manifests`).
* A change or a removal counts when the file has not changed for `settle_s`: it may be half written, or be on its way to
  another name. This holds for new files, too: half of a volume's handle names another volume.
* An object that moves to another file is never missing: the old file's change waits until the new file counts.
* An empty file is broken, because a full disk or a power cut leaves empty files. A file with only comments is good.
* If the directory is gone or cannot be read, no object is removed. The same holds for an empty directory in its place,
  as when a file system is not mounted. If the same directory has become empty, its objects go.
* Manifests are `*.yaml`, `*.yml` and `*.json`, symlinks included. Hidden files and sub-directories are not: a mounted
  ConfigMap has its content in hidden ones and links to them.
* A bug that shows at one file is this file's problem only: the hub also carries calls.
* The module reads no clock: the caller passes the time.
"""

import fcntl
import logging
import os
import stat
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cloud.sources.manifests.good_manifests import GoodManifests
from cloud.sources.manifests.manifest_objects import BrokenFile, Entry, read_objects
from common.objects import Ref

log = logging.getLogger("csi_bridge.hub.manifests")

MAX_FILE_BYTES: Final = 16 * 1024 * 1024
SETTLE_S: Final = 0.5
"""A change counts when the file has not changed for this time: writers pause for less."""

_SUFFIXES: Final = (".yaml", ".yml", ".json")

_Signature = tuple[int, int, int, int, int]
"""Device, inode, size, time of the last write and of the last change: every write changes one of them."""

_Identity = tuple[int, int, bytes]
"""Device, inode and generation of a directory. A new directory often gets the inode of one that was just removed."""

_GET_GENERATION: Final = 0x8000_7601 | struct.calcsize("l") << 16
"""FS_IOC_GETVERSION of linux/fs.h, the same for ext4, XFS and btrfs."""


@dataclass(frozen=True, slots=True)
class Now:
    """The time in seconds: of the monotonic clock, and of the clock that dates files."""

    steady: float
    wall: float


@dataclass(frozen=True, slots=True)
class _Reading:
    """A file's content at one signature.

    Attributes:
        signature: the file's signature.
        entries: its objects; none if there is a problem.
        problem: the reason why the file cannot be used, or empty.
        was_unread: the file could not be read; the next try may succeed with the same signature.
    """

    signature: _Signature | None
    entries: tuple[Entry, ...] = ()
    problem: str = ""
    was_unread: bool = False

    def is_of(self, signature: _Signature | None) -> bool:
        """Whether a file with this signature still has this content, so that it need not be read."""
        return self.signature == signature is not None and not self.was_unread


@dataclass(slots=True)
class _File:
    """The state of one file.

    Attributes:
        good: its last good objects; None if it never was good.
        believed: the reading that counts.
        waiting: a newer reading that does not count yet.
        since: the time of that reading.
    """

    good: tuple[Entry, ...] | None = None
    believed: _Reading | None = None
    waiting: _Reading | None = None
    since: float = 0.0


@dataclass(slots=True)
class ManifestFiles:
    """The files of one directory. Used by one thread at a time.

    Attributes:
        directory: the directory.
        settle_s: how long a file must be unchanged before it counts.
        kept: the last good content of each file, on the disk.
        identity: the directory's identity at the last scan; None if it could not be read.
        unsettled: a change does not count yet: scan again in `settle_s`.
        revision: changes whenever `objects()` may have changed.
        was_complete: at one time every file was good, except new files that were broken from the start.
    """

    directory: Path
    settle_s: float = SETTLE_S
    kept: GoodManifests | None = None
    identity: _Identity | None = None
    unsettled: bool = False
    revision: int = 0
    was_complete: bool = False
    _files: dict[str, _File] = field(default_factory=dict)
    _home: _Identity | None = None
    """The identity of the directory that had files."""
    _problem: str = ""
    _unkept: set[str] = field(default_factory=set)
    """Good files whose content is not stored yet."""
    _kept_problem: str = ""

    def scan(self, now: Now) -> None:
        """Look at the directory, and read changed files."""
        self.unsettled = False
        try:
            identity = _identity(self.directory)
            names = sorted(path.name for path in self.directory.iterdir() if _is_manifest(path.name))
        except OSError as error:
            self.identity = None
            self._problem = f"{self.directory} cannot be read ({error.strerror}): the objects from it stay as they were"
            return
        self.identity = identity
        if not names and self.identity != self._home:
            self._problem = f"{self.directory} holds no manifest, and may be the wrong directory: no object is removed"
            return
        self._problem = ""
        if self._home is None:
            self._recall_missing(names)
        self._home = self.identity
        for name in names:
            self._look(name, self._files.setdefault(name, _File()), now)
        for name in self._files.keys() - set(names):
            self._miss(name, now)
        self._believe_settled(now)
        self.was_complete = self.was_complete or all(map(self._is_known, self._files))
        self._keep()

    def objects(self) -> tuple[dict[Ref, Entry], dict[str, str]]:
        """Every object once, and the problems of repeated objects: the first file by name counts."""
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
        """The problems, by file name; the directory's own has an empty name."""
        found = {"": self._problem} if self._problem else {}
        if self._kept_problem:
            found["kept"] = self._kept_problem
        if self.kept is not None and (sealed := self.kept.problem()):
            found["sealed"] = sealed
        for name, file in sorted(self._files.items()):
            if file.believed is not None and file.believed.problem:
                kept = "its last good version stays" if file.good is not None else "no good version of it is known"
                found[name] = f"{file.believed.problem}; {kept}"
        return found

    def _look(self, name: str, file: _File, now: Now) -> None:
        signature = _signature(self.directory / name)
        if file.believed is not None and file.believed.is_of(signature):
            file.waiting = None
            return
        if file.waiting is None or not file.waiting.is_of(signature):
            reading = _read(self.directory / name)
            if reading == file.believed:
                file.waiting = None
                return
            if _signature(self.directory / name) != reading.signature:  # the file is being written
                file.waiting, self.unsettled = None, True
                return
            if reading != file.waiting:
                file.waiting, file.since = reading, now.steady

    def _miss(self, name: str, now: Now) -> None:
        """Note that a file is gone."""
        file = self._files[name]
        if file.waiting != _GONE:
            file.waiting, file.since = _GONE, now.steady

    def _believe_settled(self, now: Now) -> None:
        """Let changes count that have waited long enough, but remove no object that a waiting file has."""
        waiting = {name: file.waiting for name, file in self._files.items() if file.waiting is not None}
        taken = {name: self._taken(name, reading) for name, reading in waiting.items()}
        held = {name for name in waiting if not self._is_settled(self._files[name], now)}
        more = held
        while more:
            awaited = {entry.ref for name in more for entry in waiting[name].entries}
            more = {name for name in waiting.keys() - held if taken[name] & awaited}
            held |= more
        for name in waiting.keys() - held:
            self._believe(name)
            self.revision += 1
        self.unsettled = self.unsettled or bool(held)

    def _taken(self, name: str, reading: _Reading) -> set[Ref]:
        """The objects that a file loses when a reading of it counts."""
        good = self._files[name].good
        if reading.problem or not good:
            return set()
        return {entry.ref for entry in good} - {entry.ref for entry in reading.entries}

    def _is_settled(self, file: _File, now: Now) -> bool:
        written = file.waiting.signature if file.waiting is not None else None
        # The last change matters, too: an old file may have been moved here just now, as one of many.
        age = now.wall - max(written[3:]) / 1e9 if written is not None else 0.0
        return now.steady - file.since >= self.settle_s or age >= self.settle_s

    def _believe(self, name: str) -> None:
        file = self._files[name]
        if file.waiting == _GONE:
            del self._files[name]
            self._unkept.discard(name)
            return
        file.believed, file.waiting = file.waiting, None
        if file.believed is not None and not file.believed.problem:
            file.good = file.believed.entries
            self._unkept.add(name)
        elif file.good is None and self.kept is not None:
            file.good = self.kept.recall(name)

    def _recall_missing(self, names: list[str]) -> None:
        """Restore files that the hub knew before its restart and that are missing now: gone, or being renamed."""
        for name in set(self.kept.names if self.kept is not None else ()) - set(names):
            if self.kept is not None and (good := self.kept.recall(name)) is not None:
                self._files[name] = _File(good)

    def _keep(self) -> None:
        """Store good files for the next start of the hub. After a failure, the next scan tries again."""
        if self.kept is None or not self.was_complete:
            return
        try:
            self.kept.keep({name: self._files[name].good or () for name in sorted(self._unkept)}, self._files)
        except OSError as error:
            why = error.strerror or error
            self._kept_problem = (
                f"the last good manifests cannot be stored, and a hub that restarts needs them while a manifest is "
                f"broken: {why}"
            )
        else:
            self._unkept.clear()
            self._kept_problem = ""

    def _is_known(self, name: str) -> bool:
        """Whether a file's objects are known: it was good, or it is new and was never good, so no node uses it."""
        if self._files[name].good is not None:
            return True
        is_new = self.kept is not None and self.kept.is_complete and name not in self.kept.names
        return is_new and self._files[name].believed is not None


_GONE: Final = _Reading(None)


def _is_manifest(name: str) -> bool:
    return name.endswith(_SUFFIXES) and not name.startswith(".") and name.isprintable()


def _identity(directory: Path) -> _Identity:
    """The identity of the directory.

    Raises:
        OSError: there is no readable directory.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        try:
            generation = fcntl.ioctl(descriptor, _GET_GENERATION, bytes(8))
        except OSError:  # a file system without generations, such as tmpfs, which gives no inode twice
            generation = b""
    finally:
        os.close(descriptor)
    return found.st_dev, found.st_ino, generation


def _signature(path: Path) -> _Signature | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _read(path: Path) -> _Reading:
    """A file's content, with its signature before the read. A write meanwhile changes the signature."""
    signature = _signature(path)
    try:
        return _Reading(signature, tuple(read_objects(path.name, _bytes_of(path))))
    except BrokenFile as error:
        return _Reading(signature, problem=str(error))
    except OSError as error:
        return _Reading(signature, problem=f"{path.name}: it cannot be read ({error.strerror})", was_unread=True)
    except Exception:
        log.exception("reading %s failed", path)
        return _Reading(signature, problem=f"{path.name}: reading it failed because of a bug in CSI Bridge")


def _bytes_of(path: Path) -> bytes:
    # O_NONBLOCK: opening a pipe would wait for a writer.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:  # noqa: PTH123  # a descriptor
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise BrokenFile(f"{path.name}: it is not a file")
        data = file.read(MAX_FILE_BYTES + 1)
    if not data:
        raise BrokenFile(f"{path.name}: it is empty; delete the file if its objects are to go")
    if len(data) > MAX_FILE_BYTES:
        raise BrokenFile(f"{path.name}: it is larger than {MAX_FILE_BYTES >> 20} MiB; split it")
    return data
