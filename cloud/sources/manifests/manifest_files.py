"""The manifest files of a directory: which are there, what each said last, and what is wrong with it.

Rules:

* A file that cannot be used stays, as a whole, what it was when it was last good, also when that was in an earlier
  life of the hub (`good_manifests`).
* What a file says, or that it is gone, is not believed before it has been left alone for `settle_s`: it may be half
  written, or be on its way from one name to another. That holds for what is added as well: the first half of a
  volume's handle names another volume.
* An object that moves is never away: a file that says it no more waits until the file is believed that says it now.
* An empty file is broken: a full disk or a power cut leaves such a one. One that holds comments alone is not.
* A directory that is gone or cannot be read takes nothing away, nor does an empty one in its place (a file system
  that is not mounted). An empty one does that is the very directory which had files before.
* Files are looked up by their own names: `*.yaml`, `*.yml` and `*.json`, symlinks included, hidden ones and
  sub-directories not (a mounted ConfigMap has its contents in hidden ones and links to them).
* What nobody foresaw in a file is that file's problem: the hub carries calls as well.
* No clock of its own: whoever scans says what time it is.
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
"""What is written counts when nothing has moved for so long: who writes a file pauses less."""

_SUFFIXES: Final = (".yaml", ".yml", ".json")

_Signature = tuple[int, int, int, int, int]
"""Device, inode, size, time of the last write and of the last change: together another one after every write."""

_Identity = tuple[int, int, bytes]
"""Device, inode and generation: which directory it is. A new directory mostly gets the inode of one just removed."""

_GET_GENERATION: Final = 0x8000_7601 | struct.calcsize("l") << 16
"""FS_IOC_GETVERSION of linux/fs.h, the same for ext4, XFS and btrfs."""


@dataclass(frozen=True, slots=True)
class Now:
    """What time it is, in seconds: by a clock that only runs forward, and by the one that files are dated by."""

    steady: float
    wall: float


@dataclass(frozen=True, slots=True)
class _Reading:
    """What a file said when its signature was this one; with a problem, nothing.

    Attributes:
        was_unread: the problem is none of its contents, and may be over at the next look with the signature unchanged.
    """

    signature: _Signature | None
    entries: tuple[Entry, ...] = ()
    problem: str = ""
    was_unread: bool = False

    def is_of(self, signature: _Signature | None) -> bool:
        """Whether a file of this signature still says the same, without reading it."""
        return self.signature == signature is not None and not self.was_unread


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
        identity: which directory it was when it could last be read; None if it cannot.
        revision: another one when `objects()` may be.
        unsettled: something waits to be believed: scan again in `settle_s`.
        was_complete: at one time every file was good, or one that was added broken to those that were.
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
    """The directory that had files."""
    _problem: str = ""
    _unkept: set[str] = field(default_factory=set)
    """Files that are good and not on the disk as they are now."""
    _kept_problem: str = ""

    def scan(self, now: Now) -> None:
        """Look at the directory once more, and read what has changed."""
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
            if _signature(self.directory / name) != reading.signature:  # it is being written just now
                file.waiting, self.unsettled = None, True
                return
            if reading != file.waiting:
                file.waiting, file.since = reading, now.steady

    def _miss(self, name: str, now: Now) -> None:
        """A file is not there any more."""
        file = self._files[name]
        if file.waiting != _GONE:
            file.waiting, file.since = _GONE, now.steady

    def _believe_settled(self, now: Now) -> None:
        """Let count what waited long enough, but take no object away that another file is about to say."""
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
        """What a file says no more once a reading of it counts."""
        good = self._files[name].good
        if reading.problem or not good:
            return set()
        return {entry.ref for entry in good} - {entry.ref for entry in reading.entries}

    def _is_settled(self, file: _File, now: Now) -> bool:
        written = file.waiting.signature if file.waiting is not None else None
        # Its last change counts as well: what was written long ago may have been moved here just now, one file of many.
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
                f"the last good manifests cannot be stored, and a hub that restarts needs them while a manifest is "
                f"broken: {why}"
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


def _identity(directory: Path) -> _Identity:
    """Which directory there is now.

    Raises:
        OSError: none that can be read.
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
    """A file's contents, with the signature that it had before: if it is written meanwhile, it is read again."""
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
    # O_NONBLOCK: opening a pipe would wait for somebody who writes.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:  # noqa: PTH123  # a descriptor
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise BrokenFile(f"{path.name}: it is not a file")
        data = file.read(MAX_FILE_BYTES + 1)
    if not data:
        raise BrokenFile(f"{path.name}: it is empty; delete the file if its objects are to go")
    if len(data) > MAX_FILE_BYTES:
        raise BrokenFile(f"{path.name}: it is larger than {MAX_FILE_BYTES >> 20} MiB; split it")
    return data
