"""A leftover: a directory of an earlier time that does not tell its volume, until one accounts for it or it is gone.

Rules:

* What a row accounted for at start is that row's: its task mounts it again or takes it down, and cleans up behind.
* What a volume accounts for meanwhile is neither shown nor touched.
* A bare one goes at once if it is empty: no driver was asked for anything there, or all is undone. Any other one of a
  pod goes when the pod is surely gone and nothing is mounted there. A staging whose vol_data.json does not tell stays:
  a driver may hold something for it, and only people can find out what. So does a directory of several volumes that
  cannot be read, and meanwhile all that lay in it.
"""

import logging
from collections.abc import Callable, Iterable
from pathlib import Path

from edge.disk.found_volumes import Published, Staged, Unreadable
from edge.manager.host import Plugin
from edge.manager.rows import published_of, staged_of
from edge.manager.states import Device, Row
from edge.manager.task import VolumeTask
from edge.volume_errors import VolumeError

log = logging.getLogger("csi_bridge.edge.volumes")


class Leftovers:
    """What was found at start, and is still there."""

    def __init__(
        self, plugin: Plugin, *, is_explained: Callable[[Unreadable], bool], is_pod_gone: Callable[[str], bool]
    ) -> None:
        """Nothing is found yet: see `begin`.

        Args:
            plugin: looks at what is there, and cleans.
            is_explained: whether a volume accounts for it now.
            is_pod_gone: whether a pod of this uid is surely gone.
        """
        self._plugin, self._is_explained, self._is_pod_gone = plugin, is_explained, is_pod_gone
        self._all: list[Unreadable] = []
        self._looking = self._due = False

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self._all)

    @property
    def shown(self) -> list[Unreadable]:
        """Those that no volume accounts for."""
        return [one for one in self._all if not self._is_explained(one)]

    def begin(self, found: Iterable[Unreadable], rows: Iterable[Row]) -> None:
        """Take what was found at start, beside what the rows account for."""
        known = [staged_of(row) if isinstance(row, Device) else published_of(row) for row in rows]
        self._all = [one for one in found if not any(one.is_of(what) for what in known)]
        for one in self._all:
            log.warning("%s is left from an earlier run, and its state is unknown: %s", one.path, one.reason)

    async def look(self) -> None:
        """Forget what is gone, and remove what may go. If a look is under way it is repeated, by who began it."""
        self._due = True
        if self._looking:
            return
        self._looking = True
        try:
            while self._due and self._all:
                self._due = False
                await self._look()
        except VolumeError as error:
            log.warning("directories left from an earlier run cannot be cleaned up now: %s", error.why)
        finally:
            self._looking = False

    async def _look(self) -> None:
        there = {one.path: one for one in (await self._plugin.scan()).unreadable}
        self._all = [there.get(one.path, one) for one in self._all if not there.keys().isdisjoint(_way_to(one.path))]
        for one in list(self._all):
            if self._is_explained(one) or not self._may_go(one):
                continue
            if await self._plugin.clean_leftovers(one):
                log.info("%s is removed: no volume accounts for it, and nothing is mounted there", one.path)
                self._all = [other for other in self._all if other is not one]

    def _may_go(self, one: Unreadable) -> bool:
        return one.bare or bool(one.name and one.pod_uid and self._is_pod_gone(one.pod_uid))


def accounts_for(task: VolumeTask, one: Unreadable) -> bool:
    """Whether a volume has a directory there, or is to have one."""
    return any(one.is_of(what) for what in _places(task))


def _way_to(path: Path) -> Iterable[Path]:
    """It, and the directories that it lies in."""
    return path, *path.parents


def _places(task: VolumeTask) -> Iterable[Published | Staged]:
    yield from map(published_of, task.rows.publications.values())
    if task.rows.device is not None:
        yield staged_of(task.rows.device)
    for want in task.wants.values():
        volume = want.volume
        yield Published(
            driver=volume.driver,
            handle=volume.handle,
            name=volume.name,
            pod_uid=want.pod.uid,
            block=volume.block,
            ephemeral=volume.ephemeral,
        )
        if not volume.ephemeral:
            yield Staged(driver=volume.driver, handle=volume.handle, name=volume.name, block=volume.block)
