"""The store: the data of volumes and snapshots, in directories of the state directory.

    volumes/<id>/volume.json     its record
    volumes/<id>/data/           the directory of a filesystem volume
    volumes/<id>/image           the sparse file of a block volume
    snapshots/<id>/…             the same for a snapshot; a snapshot is a whole copy of its volume
    unfinished/<id>/…            what is being made or removed

A volume exists when its folder is in volumes/: the store makes the folder in unfinished/, writes it to the disk, and
renames it. DeleteVolume renames it back. So a `kill -9` leaves either a whole volume or none; the next start removes
the folders in unfinished/.
"""

import errno
import fcntl
import json
import os
import shutil
import threading
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from examples.dirdriver import errors, mounts
from examples.dirdriver.access import BLOCK, DIRECTORY
from examples.dirdriver.commands import run
from examples.dirdriver.loops import devices
from examples.dirdriver.settings import SettingsError

DIRECTORY_MODE = 0o777  # The mode of a volume's root directory. Pods run as any user.


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """The record of a volume or a snapshot."""

    volume_id: str
    name: str  # the caller's name for it, the key of CreateVolume and CreateSnapshot
    layout: str  # `directory` or `block`
    size_bytes: int  # a directory's pod may write more: nothing enforces it
    parameters: dict[str, str]  # of the CreateVolume request
    snapshot_id: str = ""  # the snapshot that a volume was restored from
    source_volume_id: str = ""  # the volume that this is a copy of
    created_us: int = 0  # since the epoch. No two are equal, so it orders lists


class Store:
    """The state directory of one driver process."""

    def __init__(self, root: Path) -> None:
        """Take the directory and remove unfinished folders. SettingsError: it cannot be used, or another uses it."""
        try:
            root.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            unfinished = root / "unfinished"
            shutil.rmtree(unfinished, ignore_errors=True)
            for folder in ("unfinished", "volumes", "snapshots"):
                (root / folder).mkdir(exist_ok=True)
        except BlockingIOError as error:
            raise SettingsError("--state-dir", f"another driver uses {root}; stop it, or choose another") from error
        except OSError as error:
            raise SettingsError("--state-dir", f"cannot be used: {error}") from error
        self.volumes = Shelf(root / "volumes", unfinished)
        self.snapshots = Shelf(root / "snapshots", unfinished)


class Shelf:
    """All volumes, or all snapshots. Each method reads the directory: nothing is cached."""

    def __init__(self, folder: Path, unfinished: Path) -> None:
        self._folder = folder
        self._unfinished = unfinished
        self._clock = threading.Lock()
        self._last_us = max((volume.created_us for volume in self.all()), default=0)

    def all(self) -> list[Volume]:
        """The volumes, oldest first."""
        found = (self.find(path.name) for path in self._folder.iterdir())
        return sorted(filter(None, found), key=lambda volume: volume.created_us)

    def find(self, volume_id: str) -> Volume | None:
        if "/" in volume_id:
            return None
        try:
            return Volume(**json.loads(_record(self._folder / volume_id).read_text()))
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
                return None
            raise

    def get(self, volume_id: str) -> Volume:
        """The volume of an id. Raises NOT_FOUND."""
        volume = self.find(volume_id)
        if volume is None:
            raise errors.not_found(f"{volume_id} does not exist")
        return volume

    def named(self, name: str) -> Volume | None:
        return next((volume for volume in self.all() if volume.name == name), None)

    def data(self, volume: Volume) -> Path:
        return self._folder / volume.volume_id / data_name(volume)

    def make(self, volume: Volume, *, source: Path | None = None) -> Volume:
        """Make a volume, empty or as a copy of `source`. Returns it with its time of creation."""
        with self._clock:
            self._last_us = max(time.time_ns() // 1000, self._last_us + 1)
            volume = replace(volume, created_us=self._last_us)
        folder = self._unfinished / volume.volume_id
        folder.mkdir()
        try:
            fill(folder / data_name(volume), volume, source)
            _write(_record(folder), volume)
            flush(folder)
            folder.rename(self._folder / volume.volume_id)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        flush(self._folder)
        return volume

    def grow(self, volume: Volume, size_bytes: int) -> None:
        if volume.layout == BLOCK:
            grow_image(self.data(volume), size_bytes)
        record = _record(self._folder / volume.volume_id)
        new = record.with_suffix(".new")
        _write(new, replace(volume, size_bytes=size_bytes))
        new.replace(record)
        flush(record.parent)

    def remove(self, volume: Volume) -> None:
        unfinished = self._unfinished / volume.volume_id
        (self._folder / volume.volume_id).rename(unfinished)
        flush(self._folder)
        shutil.rmtree(unfinished)

    def mounts(self, volume: Volume) -> list[mounts.Mount]:
        if volume.layout == BLOCK:
            roots = tuple(f"/{device.name}" for device, _readonly in devices(self.data(volume)))
            return [mount for mount in mounts.table() if mount.root in roots]
        return [mount for mount in mounts.table() if mount.root.endswith(f"/{volume.volume_id}/{data_name(volume)}")]


def fill(data: Path, volume: Volume, source: Path | None) -> None:
    if source is not None:
        run("cp", "--archive", "--sparse=always", str(source), str(data))
        if not source.exists():
            raise errors.aborted("the source was deleted while it was copied")
        run("sync", "--file-system", str(data))  # one flush for all files
    elif volume.layout == DIRECTORY:
        data.mkdir()
        data.chmod(DIRECTORY_MODE)  # the umask cuts mkdir's mode
    if volume.layout != DIRECTORY:
        grow_image(data, volume.size_bytes)


def data_name(volume: Volume) -> str:
    return "data" if volume.layout == DIRECTORY else "image"


def _record(folder: Path) -> Path:
    return folder / "volume.json"


def _write(file: Path, volume: Volume) -> None:
    with file.open("w") as writing:
        json.dump(asdict(volume), writing, indent=1)
        writing.flush()
        os.fsync(writing.fileno())


def grow_image(image: Path, size_bytes: int) -> None:
    """Give a sparse file a size, unless it is larger."""
    with image.open("ab") as file:
        file.truncate(max(size_bytes, os.fstat(file.fileno()).st_size))
        os.fsync(file.fileno())


def flush(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
