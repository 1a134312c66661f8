"""The state directory: records in one JSON file, and the data of volumes and snapshots in a folder each.

    state.json              every record; replaced as a whole
    volumes/<id>/data       a directory volume
    volumes/<id>/image      a sparse file: filesystem and block volumes
    snapshots/<id>/…        the same for snapshots
    unfinished/<node>/<id>  data that is being made or removed
    nodes/<node>/lock       held by the node's process

Rules:

* Several processes share the directory. Whoever writes a record holds the lock from reading the file to replacing it.
* What a caller was told is on disk before it is told.
* Data is made in `unfinished`, and moves to its place under the lock, together with its record. So a `kill -9` leaves
  only folders without a record, which the next start removes.
"""

import fcntl
import json
import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from examples.dirdriver import access, errors
from examples.dirdriver.settings import SettingsError
from examples.dirdriver.store import Volume as BaseVolume
from examples.dirdriver.store import data_name, fill, flush, grow_image

ATTACHED, STAGED, PUBLISHED = "attached", "staged", "published"  # kinds of `Use`


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume(BaseVolume):
    """The record of a volume or a snapshot. An ephemeral one lives as long as its publication (inline volume).

    `fs_bytes` is the size that its filesystem was made or grown to; 0 as long as there is none.
    """

    fs_type: str = ""
    fs_bytes: int = 0
    mutable_parameters: dict[str, str] = field(default_factory=dict)
    ephemeral: bool = False
    is_snapshot: bool = False
    group_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A group snapshot; its members name it. `sources` are the volumes' ids, sorted."""

    group_id: str
    name: str
    sources: list[str]
    created_us: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """One way in which a node has a volume: attached, staged at a path, or published at one.

    A staging or publication is written before the first mount and removed after the last one is gone, so that any call
    can be repeated or undone after a crash between the two (CSI spec, RPC Interactions). `arguments` is the fingerprint
    of what a repeated call must have in common.
    """

    kind: str
    volume_id: str
    node: str
    path: str = ""
    mode: int
    readonly: bool = False
    arguments: str


@dataclass(slots=True)
class Book:
    """Every record. `nodes` has the largest number of volumes of each node that was ever started here; 0: no limit."""

    volumes: dict[str, Volume] = field(default_factory=dict)
    snapshots: dict[str, Volume] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)
    nodes: dict[str, int] = field(default_factory=dict)
    uses: list[Use] = field(default_factory=list)

    def volume(self, volume_id: str) -> Volume:
        """A volume. Raises CsiError with NOT_FOUND."""
        if volume_id not in self.volumes:
            raise errors.not_found(f"volume {volume_id} does not exist")
        return self.volumes[volume_id]

    def snapshot(self, snapshot_id: str) -> Volume:
        """A snapshot. Raises CsiError with NOT_FOUND."""
        if snapshot_id not in self.snapshots:
            raise errors.not_found(f"snapshot {snapshot_id} does not exist")
        return self.snapshots[snapshot_id]

    def listed(self) -> list[Volume]:
        """The volumes that lists show: inline ones are their pod's affair. Oldest first."""
        found = (volume for volume in self.volumes.values() if not volume.ephemeral)
        return sorted(found, key=lambda volume: volume.created_us)

    def found(self, kind: str = "", **fields: str) -> list[Use]:
        wanted = {**fields, **({"kind": kind} if kind else {})}
        return [use for use in self.uses if all(getattr(use, name) == value for name, value in wanted.items())]

    def drop(self, *uses: Use) -> None:
        """Remove uses; OK if they are not there."""
        self.uses = [use for use in self.uses if use not in uses]

    def new_time_us(self) -> int:
        """A time of creation that no record has yet: it orders lists."""
        made = [volume.created_us for volume in (*self.volumes.values(), *self.snapshots.values())]
        made += [group.created_us for group in self.groups.values()]
        return max(time.time_ns() // 1000, max(made, default=0) + 1)


class State:
    """The state directory of one process. Any thread may use it."""

    def __init__(self, root: Path, node: str, *, max_volumes: int) -> None:
        """Take the node's place in the directory, and remove what a crash left there.

        Raises:
            SettingsError: the directory cannot be used, or another process runs as this node on it.
        """
        self.root = root
        self._unfinished = root / "unfinished" / node
        self._turn = threading.Lock()
        try:
            for folder in (self._unfinished, root / "volumes", root / "snapshots", root / "nodes" / node):
                folder.mkdir(parents=True, exist_ok=True)
            self._node_lock = _opened(root / "nodes" / node / "lock")
            fcntl.flock(self._node_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for left in self._unfinished.iterdir():
                shutil.rmtree(left, ignore_errors=True)
            self._lock = _opened(root / "lock")
            with self.writing() as book:
                book.nodes[node] = max_volumes
                for path in [*(root / "volumes").iterdir(), *(root / "snapshots").iterdir()]:
                    if path.name not in book.volumes and path.name not in book.snapshots:
                        self._remove(path)
        except BlockingIOError as error:
            raise SettingsError("--node-id", f"another process runs as node {node!r} here") from error
        except OSError as error:
            raise SettingsError("--state-dir", f"cannot be used: {error}") from error

    def read(self) -> Book:
        try:
            stored: dict[str, Any] = json.loads((self.root / "state.json").read_text())
        except FileNotFoundError:
            return Book()
        return Book(
            volumes={key: Volume(**each) for key, each in stored["volumes"].items()},
            snapshots={key: Volume(**each) for key, each in stored["snapshots"].items()},
            groups={key: Group(**each) for key, each in stored["groups"].items()},
            nodes=stored["nodes"],
            uses=[Use(**each) for each in stored["uses"]],
        )

    @contextmanager
    def writing(self) -> Iterator[Book]:
        """The records, to change: all changes are on disk at the end, or none if the body raises."""
        with self._turn:
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            try:
                book = self.read()
                yield book
                self._write(book)
            finally:
                fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _write(self, book: Book) -> None:
        new = self.root / "state.new"
        with new.open("w") as file:
            json.dump(asdict(book), file)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self.root / "state.json")
        flush(self.root)

    # ---- data ----

    def data(self, volume: Volume) -> Path:
        return self._folder(volume) / data_name(volume)

    def _folder(self, volume: Volume) -> Path:
        return self.root / ("snapshots" if volume.is_snapshot else "volumes") / volume.volume_id

    @contextmanager
    def made(self, volume: Volume, source: Volume | None = None) -> Iterator[Path]:
        """Make data in `unfinished`: empty, or a copy. The body may `settle` it; else it is removed at the end."""
        folder = self._unfinished / volume.volume_id
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        try:
            fill(folder / data_name(volume), volume, self.data(source) if source else None)
            flush(folder)
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def settle(self, book: Book, volume: Volume, folder: Path) -> Volume:
        """Move made data to its place, and write its record. Returns the record with its time of creation."""
        volume = replace(volume, created_us=book.new_time_us())
        folder.rename(self._folder(volume))
        flush(self._folder(volume).parent)
        (book.snapshots if volume.is_snapshot else book.volumes)[volume.volume_id] = volume
        return volume

    def grow(self, volume: Volume) -> None:
        """Give an image its volume's size. A directory has no size of its own."""
        if volume.layout != access.DIRECTORY:
            grow_image(self.data(volume), volume.size_bytes)

    def remove(self, *volumes: Volume) -> None:
        """Remove volumes or snapshots, and their data. The records go first: what a crash leaves is data alone."""
        with self.writing() as book:
            for volume in volumes:
                (book.snapshots if volume.is_snapshot else book.volumes).pop(volume.volume_id, None)
        for volume in volumes:
            self._remove(self._folder(volume))

    def _remove(self, folder: Path) -> None:
        unfinished = self._unfinished / folder.name
        with suppress(FileNotFoundError):  # another process' start removed it
            folder.rename(unfinished)
        shutil.rmtree(unfinished, ignore_errors=True)


def _opened(file: Path) -> int:
    return os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
