"""Finds the volumes that have directories on this node's disk, after a restart or a crash.

Rules:

* A vol_data.json counts only in its own place: the names in it must lead to the directory that holds it.
* Every volume directory is found, mounted or not, complete or not: as a known volume, or as unreadable with a reason.
* Only the kubelet's directories are listed; no target is opened or stat'ed.
* One unreadable directory hides no other. But if a directory that holds all pods, all stagings or all block volumes
  cannot be read, nothing is known and the scan fails.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edge.disk.layout import NO_DRIVERS, PLUGIN, VOL_DATA, Layout, escaped, handle_hash
from edge.disk.root_dir import Kind, RootDir
from edge.disk.volume_data import EPHEMERAL, LARGEST_BYTES, VolumeData, VolumeDataUnknown, parse
from edge.volumes import PodVolume, Volume, VolumeKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A volume published to one pod, with the fields that unpublishing needs."""

    driver: str
    handle: str
    name: str
    pod_uid: str
    block: bool = False
    ephemeral: bool = False

    @property
    def key(self) -> VolumeKey:
        return VolumeKey(self.driver, self.handle)


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """A volume staged on this node."""

    driver: str
    handle: str
    name: str = ""  # the PV's name; empty if only a file system's vol_data.json was found, which does not contain it
    block: bool = False

    @property
    def key(self) -> VolumeKey:
        return VolumeKey(self.driver, self.handle)


def published_for(want: PodVolume) -> Published:
    volume = want.volume
    return Published(
        driver=volume.driver,
        handle=volume.handle,
        name=volume.name,
        pod_uid=want.pod.uid,
        block=volume.block,
        ephemeral=volume.ephemeral,
    )


def staged_for(volume: Volume | Published) -> Staged:
    """Return the staging that a volume is to get, or that its publication may have."""
    return Staged(driver=volume.driver, handle=volume.handle, name=volume.name, block=volume.block)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """A volume's directory with an unusable vol_data.json, or an unreadable directory of several volumes."""

    path: Path  # the volume's directory; for a block volume's publication, the pod's link or map
    reason: str
    pod_uid: str = ""  # the pod's uid; empty for stagings, and for the publications of a block volume
    name: str = ""  # the volume's name as a directory; empty for stagings of file systems, and for several volumes
    driver: str = ""  # the driver of a file system's staging, else empty
    block: bool = False
    # There is no vol_data.json. It is written before the first call of the driver and removed when all is undone, so
    # the driver holds nothing there. Never true for a block volume's publication, which has no vol_data.json of its
    # own.
    bare: bool = False

    def is_of(self, volume: Published | Staged) -> bool:
        if volume.block != self.block:
            return False
        if isinstance(volume, Published):
            return (volume.pod_uid, escaped(volume.name)) == (self.pod_uid, self.name)
        if self.block:
            return not self.pod_uid and escaped(volume.name) == self.name
        return (volume.driver, handle_hash(volume.handle)) == (self.driver, self.path.name)


@dataclass(frozen=True, slots=True)
class Found:
    """The volumes that a scan found."""

    published: tuple[Published, ...] = ()
    staged: tuple[Staged, ...] = ()
    unreadable: tuple[Unreadable, ...] = ()


def scan(root: RootDir) -> Found:
    """Return all CSI volumes that have a directory below a root directory. Blocks."""
    found = _Scan(root, Layout(root.path))
    found.file_systems()
    found.stagings()
    found.block_volumes()
    return Found(tuple(found.published), tuple(found.staged), tuple(found.unreadable))


@dataclass(slots=True)
class _Scan:
    root: RootDir
    layout: Layout
    published: list[Published] = field(default_factory=list)
    staged: list[Staged] = field(default_factory=list)
    unreadable: list[Unreadable] = field(default_factory=list)

    def file_systems(self) -> None:
        for uid in self._dirs(self.layout.pods):
            for folder in _dirs(self._below(self.layout.pods / uid / "volumes" / PLUGIN, pod_uid=uid)):
                path = self.layout.volume_dir(uid, folder)
                try:
                    data = read_data(self.root, path)
                    _require(escaped(data.name) == folder)
                except VolumeDataUnknown as error:
                    self.unreadable.append(
                        Unreadable(path=path, reason=str(error), pod_uid=uid, name=folder, bare=error.missing)
                    )
                    continue
                ephemeral = data.lifecycle == EPHEMERAL
                self.published.append(
                    Published(driver=data.driver, handle=data.handle, name=data.name, pod_uid=uid, ephemeral=ephemeral)
                )

    def stagings(self) -> None:
        for driver in self._dirs(self.layout.staging_root) - NO_DRIVERS:
            for folder in _dirs(self._below(self.layout.staging_root / driver, driver=driver)):
                path = self.layout.staging_root / driver / folder
                try:
                    data = read_data(self.root, path)
                    _require(data.driver == driver and handle_hash(data.handle) == folder)
                except VolumeDataUnknown as error:
                    self.unreadable.append(Unreadable(path=path, reason=str(error), driver=driver, bare=error.missing))
                    continue
                self.staged.append(Staged(driver=data.driver, handle=data.handle))

    def block_volumes(self) -> None:
        root = self.layout.block_root
        places = self._block_publications()
        names = self._dirs(root) | self._dirs(root / "staging") | self._dirs(root / "publish") | set(places)
        for name in sorted(names - {"staging", "publish"}):
            try:
                data = read_data(self.root, self.layout.block_data(name))
                _require(escaped(data.name) == name)
            except VolumeDataUnknown as error:
                why = str(error)
                path = self.layout.block_dir(name)
                self.unreadable.append(Unreadable(path=path, reason=why, name=name, block=True, bare=error.missing))
                self.unreadable += [
                    Unreadable(path=path, reason=why, pod_uid=uid, name=name, block=True)
                    for uid, path in sorted(places.get(name, {}).items())
                ]
                continue
            volume: dict[str, Any] = {"driver": data.driver, "handle": data.handle, "name": data.name, "block": True}
            self.staged.append(Staged(**volume))
            self.published += [Published(**volume, pod_uid=uid) for uid in sorted(places.get(name, {}))]

    def _block_publications(self) -> dict[str, dict[str, Path]]:
        found: dict[str, dict[str, Path]] = {}
        root = self.layout.block_root
        for name in self._dirs(root / "publish"):
            for uid in self._below(root / "publish" / name, name=name, block=True):
                found.setdefault(name, {})[uid] = root / "publish" / name / uid
        for name in self._dirs(root) - {"staging", "publish"}:
            for uid in self._below(self.layout.device_maps(name), name=name, block=True):
                found.setdefault(name, {})[uid] = self.layout.device_maps(name) / uid
        for uid in self._dirs(self.layout.pods):
            folder = self.layout.pods / uid / "volumeDevices" / PLUGIN
            for name in self._below(folder, pod_uid=uid, block=True):
                found.setdefault(name, {})[uid] = folder / name
        return found

    def _dirs(self, path: Path) -> set[str]:
        return _dirs(self.root.names(path))

    def _below(
        self, path: Path, *, pod_uid: str = "", name: str = "", driver: str = "", block: bool = False
    ) -> dict[str, Kind]:
        try:
            return self.root.names(path)
        except OSError as error:
            self.unreadable.append(
                Unreadable(path=path, reason=str(error), pod_uid=pod_uid, name=name, driver=driver, block=block)
            )
            return {}


def read_data(root: RootDir, folder: Path) -> VolumeData:
    """Read the vol_data.json of a directory. Raises VolumeDataUnknown if it does not identify a volume."""
    try:
        return parse(root.read_file(folder / VOL_DATA, LARGEST_BYTES))
    except FileNotFoundError:
        raise VolumeDataUnknown(f"there is no {VOL_DATA}", missing=True) from None
    except OSError as error:
        raise VolumeDataUnknown(str(error)) from error


def _dirs(found: Mapping[str, Kind]) -> set[str]:
    return {name for name, kind in found.items() if kind == "dir"}


def _require(belongs: bool) -> None:  # noqa: FBT001  # it reads as a sentence
    if not belongs:
        raise VolumeDataUnknown(f"its {VOL_DATA} is another volume's")
