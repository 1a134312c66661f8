"""The manifest files of a directory, and the objects in them.

Rules:

* All files count together. While one of them cannot be used, or two have the same object, all objects stay as they last
  were. After a restart none is known until all files are good.
* A change counts when no file has changed for `settle_s`: a file may be half written, or be on its way to another name.
* An empty file is broken, because a full disk or a power cut leaves empty files. A file with only comments is good.
* If the directory has no manifest or cannot be read, no object is removed: a file system may not be mounted. An empty
  directory is a problem only if there are objects to remove. Before there was any, it may be the beginning: no objects
  are known then, and no node is told that there are none.
* Manifests are `*.yaml`, `*.yml` and `*.json` (JSON is YAML), as for `kubectl apply -f DIRECTORY`, symlinks included.
  Hidden files and sub-directories are not: a mounted ConfigMap has its content in hidden ones and links to them.
* The module reads no clock: the caller passes the time.
"""

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cloud.sources.manifests.manifest_objects import BrokenFile, Entry, read_objects

if TYPE_CHECKING:
    from common.objects.objects import Ref

MAX_FILE_BYTES: Final = 16 * 1024 * 1024
SETTLE_S: Final = 0.5  # A change counts when no file has changed for this time: writers pause for less
_SUFFIXES: Final = (".yaml", ".yml", ".json")

# Device, inode, size, time of the last write and of the last change: every write changes one of them.
_Signature = tuple[int, int, int, int, int]


@dataclass(frozen=True, slots=True)
class Now:
    """The time in seconds: of the monotonic clock, and of the clock that dates files."""

    steady: float
    wall: float


@dataclass(frozen=True, slots=True)
class _Reading:
    # One file's content, at one signature: its objects, or why it cannot be used.

    signature: _Signature | None
    entries: tuple[Entry, ...] = ()
    problem: str = ""
    was_unread: bool = False  # the next try may succeed with the same signature


class ManifestFiles:
    """The files of one directory. Used by one thread at a time."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.objects: Mapping[Ref, Entry] | None = None  # the objects that count; None if none are known yet
        # Why the files do not count, by file name; the directory's own problem has an empty name
        self.problems: dict[str, str] = {}
        self.unsettled = False  # a change does not count yet: scan again in `SETTLE_S`
        self._found: dict[str, _Signature | None] = {}  # the files of the last scan
        self._since = 0.0  # when the files changed last
        self._readings: dict[str, _Reading] = {}

    def scan(self, now: Now) -> None:
        self.unsettled = False
        try:
            names = sorted(path.name for path in self._directory.iterdir() if _is_manifest(path.name))
        except OSError as error:
            self.problems = {
                "": f"{self._directory} cannot be read ({error.strerror}): the objects from it stay as they were"
            }
            return
        if not names:
            self.problems = {}
            self._readings = {}  # the same files count again when they are back
            if self.objects:
                why = "has no manifest, and may be the wrong directory: no object is removed"
                self.problems = {"": f"{self._directory} {why}"}
            return
        found = {name: _signature(self._directory / name) for name in ("", *names)}
        if found != self._found:
            self._found = found
            self._since = now.steady
        if not self._is_settled(now):
            self.unsettled = True
            return
        readings = {name: self._reading(name, found[name]) for name in names}
        if any(reading.signature != found[name] for name, reading in readings.items()):  # it is being written
            self.unsettled = True
        elif readings != self._readings or "" in self.problems:
            self._readings = readings
            self._count(readings)

    def _is_settled(self, now: Now) -> bool:
        # The last change matters, too: an old file may have been moved here just now, as one of many.
        newest_s = max((max(signature[3:]) / 1e9 for signature in self._found.values() if signature), default=now.wall)
        return now.steady - self._since >= SETTLE_S or now.wall - newest_s >= SETTLE_S

    def _reading(self, name: str, signature: _Signature | None) -> _Reading:
        known = self._readings.get(name)
        if known is not None and known.signature == signature is not None and not known.was_unread:
            return known
        return _read(self._directory / name)

    def _count(self, readings: Mapping[str, _Reading]) -> None:
        problems = {name: reading.problem for name, reading in readings.items() if reading.problem}
        objects: dict[Ref, Entry] = {}
        for name, reading in readings.items():
            for entry in reading.entries:
                first = objects.setdefault(entry.ref, entry)
                if first is not entry:
                    problems[name] = f"{entry.place}: {entry.ref} is already at {first.place}"
        self.problems = problems
        if not problems:
            self.objects = objects


def _is_manifest(name: str) -> bool:
    return name.endswith(_SUFFIXES) and not name.startswith(".") and name.isprintable()


def _signature(path: Path) -> _Signature | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _read(path: Path) -> _Reading:
    signature = _signature(path)  # before the read: a write meanwhile changes it
    try:
        return _Reading(signature, tuple(read_objects(path.name, _bytes_of(path))))
    except BrokenFile as error:
        return _Reading(signature, problem=str(error))
    except OSError as error:
        return _Reading(signature, problem=f"{path.name}: it cannot be read ({error.strerror})", was_unread=True)


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
