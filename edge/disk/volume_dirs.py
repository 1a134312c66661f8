"""Makes a volume's directories before a driver's call, and removes them after it.

Rules:

* vol_data.json is written before the driver is called, and removed after the driver has undone its work
  (docs/csi-contract.md#vol_datajson-comes-first-and-goes-last).
* A directory is removed only if it is empty and nothing is mounted there. Of files, only the agent's own are removed.
  Nothing here removes a tree.
* All functions block, and raise OSError where the file system refuses.
"""

import errno
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from common.store.fault_points import reach
from edge.disk import volume_data
from edge.disk.found_volumes import Published, Staged, Unreadable, read_data
from edge.disk.layout import PLUGIN, VOL_DATA, Layout
from edge.disk.loop_devices import loops_on
from edge.disk.mounts import read_table
from edge.disk.root_dir import RootDir
from edge.disk.volume_data import VolumeData, VolumeDataUnknown
from edge.volume_errors import NotReady, Uncertain, words
from edge.volumes import PodVolume, Volume

log = logging.getLogger("csi_bridge.edge.volumes")

# Left behind when the agent dies while it writes vol_data.json (`RootDir.write_file`).
_HALF_WRITTEN = f"{VOL_DATA}.new"


class VolumeDirs:
    """The directories of volumes below one root directory."""

    def __init__(self, root: RootDir, node: str) -> None:
        self.layout = Layout(root.path)
        self._root = root
        self._node = node
        # Why each unreadable directory could not be cleaned away: it is tried again each time, but logged once.
        self._kept: dict[Path, str] = {}

    def target(self, what: Published | Staged) -> Path:
        """Return the path that the driver gets for a publication or a staging."""
        if isinstance(what, Staged):
            if what.block:
                return self.layout.block_staging(what.name)
            return self.layout.staging_target(what.driver, what.handle)
        if what.block:
            return self.layout.block_target(what.name, what.pod_uid)
        return self.layout.target(what.pod_uid, what.name)

    # ---------------------------------------------------------------- before a call

    def clear_way(self, target: Path) -> None:
        """Remove a symbolic link at a target: the driver would mount or unmount where it leads."""
        if self._root.drop_link(target):
            log.warning("%s was a symbolic link, and is removed: the driver could have followed it", target)

    def prepare_stage(self, wanted: PodVolume, *, stages: bool) -> None:
        """Make the directories and vol_data.json that NodeStageVolume needs.

        Without `stages` the driver is not called, but unstaging reads vol_data.json.
        """
        volume = wanted.volume
        if volume.block:
            self._prepare_block_stage(volume, stages=stages)
            return
        target = self.layout.staging_target(volume.driver, volume.handle)
        reach("stage.before-dir")
        self.clear_way(target)
        self._root.make_dir(target)
        reach("stage.after-dir")
        self._write_data(target, volume_data.of_staging(wanted), "stage")

    def _prepare_block_stage(self, volume: Volume, *, stages: bool) -> None:
        # Entries from an earlier try stay: that try may have called the driver, and no mount would show it.
        is_known = self._root.has(self.layout.block_data(volume.name) / VOL_DATA)
        try:
            self._write_block_data(volume, "stage")
            if stages:
                self.clear_way(self.layout.block_staging(volume.name))
                self._root.make_dir(self.layout.block_staging(volume.name))
                reach("stage.after-dir")
        except OSError:
            if not is_known:
                with _quietly(self.layout.block_dir(volume.name)):
                    self._tidy_block(volume.name, "stage")
            raise

    def prepare_publish(self, wanted: PodVolume, target: Path) -> None:
        if wanted.volume.block:
            self._write_block_data(wanted.volume, "publish")
            self._root.make_dir(target.parent)
            reach("publish.after-dir")
            self.clear_way(target)
            return
        reach("publish.before-dir")
        self._root.make_dir(target.parent)
        reach("publish.after-dir")
        self.clear_way(target)
        self._write_data(target, volume_data.of_target(wanted, self._node), "publish")

    def _write_data(self, target: Path, data: VolumeData, step: str) -> None:
        # Entries from an earlier try stay here too.
        is_known = self._root.has(target.parent / VOL_DATA)
        reach(f"{step}.before-data")
        try:
            self._write(target.parent / VOL_DATA, data, step)
        except OSError:
            if not is_known:
                with _quietly(target.parent):
                    self._tidy_target(target, step)
            raise
        reach(f"{step}.after-data")

    def _write_block_data(self, volume: Volume, step: str) -> None:
        folder = self.layout.block_data(volume.name)
        reach(f"{step}.before-dir")
        self._root.make_dir(folder)
        reach(f"{step}.before-data")
        self._write(folder / VOL_DATA, volume_data.of_block(volume, self._node), step)
        reach(f"{step}.after-data")

    def _write(self, path: Path, data: VolumeData, step: str) -> None:
        # A republication each minute writes nothing.
        content = data.encode()
        try:
            if self._root.read_file(path, volume_data.LARGEST_BYTES) == content:
                return
        except OSError:
            log.debug("%s is written, because there was none or it could not be read", path)
        self._root.write_file(path, content, reached=lambda: reach(f"{step}.before-rename"))

    # ---------------------------------------------------------------- after a call

    def require_target(self, driver: str, target: Path, *, block: bool) -> None:
        """Raise Uncertain if a driver answered NodePublishVolume with OK and no directory or file is at the target.

        A driver may publish a block volume as a symbolic link to its device.
        """
        kind = self._root.names(target.parent).get(target.name)
        if kind == "link" and not block:
            raise Uncertain(f"driver {driver} answered NodePublishVolume with OK, but {target} is a symbolic link")
        if kind is None:
            raise Uncertain(
                f"driver {driver} answered NodePublishVolume with OK, but there is nothing at {target}; "
                f"check that the driver's container mounts {self.layout.root} with bidirectional mount propagation"
            )

    def tidy_published(self, published: Published) -> None:
        """Remove the directories after NodeUnpublishVolume. Raises Uncertain if it is still mounted."""
        target = self.target(published)
        self._require_unmounted(published.driver, "NodeUnpublishVolume", target)
        if published.block:
            self._root.remove(target)
        else:
            self._tidy_target(target, "unpublish")
        self._prune_pod(published.pod_uid, block=published.block)

    def tidy_staged(self, staged: Staged, *, asked: bool) -> None:
        """Remove the directories of a staging. `asked`: the driver has answered NodeUnstageVolume with OK."""
        if asked:
            self._require_unmounted(staged.driver, "NodeUnstageVolume", self.target(staged))
        try:
            self._tidy_staging(staged, "unstage")
        except OSError as error:
            if not staged.block:
                raise
            # Files that a driver leaves in its staging directory do not prevent the next use of the volume.
            log.warning("a file or directory of %s could not be removed: %s", staged.key, words(error))

    def _tidy_staging(self, staged: Staged, step: str) -> None:
        if staged.block:
            self._tidy_block(staged.name, step)
        else:
            self._tidy_target(self.target(staged), step)

    def tidy_refused_stage(self, staged: Staged) -> None:
        with _quietly(self.target(staged)):
            self._tidy_staging(staged, "stage")

    def tidy_refused_publish(self, published: Published) -> None:
        # A block volume's directories stay: its staging uses them. The pod's own directories go if they are empty,
        # because the pod may end without ever getting the volume.
        target = self.target(published)
        with _quietly(target):
            self._tidy_target(target, "publish")
            self._prune_pod(published.pod_uid, block=False)

    # ---------------------------------------------------------------- find and clean

    def require_unused(self, staged: Staged) -> None:
        mounts = read_table(self.layout.root, whole=True)
        if staged.block:
            maps = self.layout.device_maps(staged.name)
            targets = self.layout.block_targets(staged.name)
            used = mounts.within(maps) + mounts.within(targets)
        else:
            used = mounts.references(self.target(staged))
        if used:
            raise NotReady(f"{staged.key} is still in use: it is mounted at {', '.join(used[:3])}")

    def may_be_staged(self, staged: Staged) -> bool:
        target = self.target(staged)
        if staged.block:
            return self._root.has(target)
        try:
            read_data(self._root, target.parent)
        except VolumeDataUnknown as unknown:
            return not unknown.missing
        return True

    def clean_leftovers(self, what: Published | Unreadable) -> bool:
        """Remove the directories of a guard or of an unknown volume; return False if some stay."""
        places = list(self._places(what))
        try:
            self._require_idle(what, places)
            self._remove_leftovers(what, places)
        except OSError as error:
            why = words(error)
            if isinstance(what, Published) or self._kept.get(what.path) != why:
                log.warning("%s is left as it is: %s", places[0], why)
            if isinstance(what, Unreadable):
                self._kept[what.path] = why
            return False
        if what.pod_uid:
            self._prune_pod(what.pod_uid, block=what.block)
        return True

    def forget_gone(self, unreadable: Iterable[Unreadable]) -> None:
        there = {one.path for one in unreadable}
        self._kept = {path: why for path, why in self._kept.items() if path in there}

    def _require_idle(self, what: Published | Unreadable, places: list[Path]) -> None:
        mounts = read_table(self.layout.root, whole=True)
        busy = [found for place in places for found in mounts.within(place)]
        busy += [str(device) for place in places if what.block for device in loops_on(place)]
        if busy:
            raise OSError(errno.EBUSY, f"there is still {busy[0]}")

    def _remove_leftovers(self, what: Published | Unreadable, places: list[Path]) -> None:
        bare = isinstance(what, Unreadable) and what.bare
        if not what.block:
            self._remove_target(places[0] / ("mount" if what.pod_uid else "globalmount"), "leftovers", bare=bare)
        elif what.pod_uid:
            for place in places:
                self._root.remove(place)
        else:
            self._tidy_block(what.name, "leftovers", bare=bare)

    def _places(self, what: Published | Unreadable) -> Iterable[Path]:
        if not what.block:
            yield what.path if isinstance(what, Unreadable) else self.target(what).parent
        elif what.pod_uid:
            yield self.layout.device_map(what.name, what.pod_uid)
            yield self.layout.block_target(what.name, what.pod_uid)
            yield self.layout.device_link(what.pod_uid, what.name)
        else:
            yield self.layout.block_dir(what.name)
            yield self.layout.block_targets(what.name)
            yield self.layout.block_staging(what.name)

    def _prune_pod(self, uid: str, *, block: bool) -> None:
        pod = self.layout.pod(uid)
        kind = pod / ("volumeDevices" if block else "volumes")
        # The first directory that holds another volume ends it.
        try:
            for folder in (kind / PLUGIN, kind, pod):
                self._root.remove_dir(folder)
        except OSError as error:
            log.debug("the directories of pod %s stay: %s", uid, words(error))

    # ---------------------------------------------------------------- parts of several

    def _require_unmounted(self, driver: str, method: str, target: Path) -> None:
        if read_table(self.layout.root).is_mount_point(target):
            raise Uncertain(
                f"driver {driver} answered {method} with OK, but something is still mounted at {target}; "
                f"check that the driver's container mounts {self.layout.root} with bidirectional mount propagation"
            )

    def _tidy_target(self, target: Path, step: str) -> None:
        if read_table(self.layout.root).is_mount_point(target):
            log.warning("%s stays: something is mounted there", target)
            return
        self._remove_target(target, step)

    def _remove_target(self, target: Path, step: str, *, bare: bool = False) -> None:
        # A bare directory has no vol_data.json, so nothing in it is known to be the agent's: its target must be an
        # empty directory.
        reach(f"{step}.before-clean")
        (self._root.remove_dir if bare else self._root.remove)(target)
        reach(f"{step}.after-target")
        self._root.remove_file(target.parent / (_HALF_WRITTEN if bare else VOL_DATA))
        reach(f"{step}.after-data-removed")
        self._root.remove_dir(target.parent)

    def _tidy_block(self, name: str, step: str, *, bare: bool = False) -> None:
        # A directory that holds anything of a pod stops it.
        reach(f"{step}.before-clean")
        self._root.remove_dir(self.layout.block_targets(name))
        self._root.remove_dir(self.layout.block_staging(name))
        reach(f"{step}.after-target")
        self._root.remove_dir(self.layout.device_maps(name))
        self._root.remove_file(self.layout.block_data(name) / (_HALF_WRITTEN if bare else VOL_DATA))
        reach(f"{step}.after-data-removed")
        self._root.remove_dir(self.layout.block_data(name))
        self._root.remove_dir(self.layout.block_dir(name))


@contextmanager
def _quietly(place: Path) -> Iterator[None]:
    # The error that led to the clean-up matters more.
    try:
        yield
    except OSError as error:
        log.warning("%s stays: %s", place, words(error))
