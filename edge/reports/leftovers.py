"""Directories from an earlier run that do not identify their volume, until they are gone or belong to a known volume.

Rules:

* A directory that belonged to a row at start is not handled here: the row's task mounts or unmounts it, and cleans up.
* A directory that belongs to a known volume by now is neither reported nor touched.
* A bare directory (one without vol_data.json) is removed at once if it is empty: no driver was called for it, or all is
  undone.
* Another directory of one pod's volume is removed when the pod is surely gone and nothing is mounted there.
* A staging without a usable vol_data.json stays: a driver may hold a volume for it, which only people can find out.
* A directory of several volumes that cannot be read stays. So does, meanwhile, everything that was found in it.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from edge.disk.found_volumes import Published, Staged, Unreadable, published_for, staged_for
from edge.manager.host import VolumeHost
from edge.manager.task import VolumeTask
from edge.volume_errors import VolumeError
from edge.volumes import VolumeKey
from edge.wanted.states import Publication, Row

log = logging.getLogger("csi_bridge.edge.volumes")


class Leftovers:
    """The directories that were found at start and are still there."""

    def __init__(self, host: VolumeHost, tasks: Mapping[VolumeKey, VolumeTask]) -> None:
        """`tasks` are those of the known volumes, by now."""
        self._host = host
        self._plugin = host.plugin
        self._tasks = tasks
        self._all: list[Unreadable] = []
        self._looking = self._due = False

    def __bool__(self) -> bool:
        return bool(self._all)

    @property
    def shown(self) -> list[Unreadable]:
        return [one for one in self._all if not self._is_explained(one)]

    def begin(self, found: Iterable[Unreadable], rows: Sequence[Row]) -> None:
        """Take the directories found at start, except those that belong to a row."""
        guards = [row.guard for row in rows if isinstance(row, Publication) and row.agent_defers]
        known = (*rows, *guards)
        self._all = [one for one in found if not any(one.is_of(what) for what in known)]
        for one in self._all:
            log.warning("%s is left from an earlier run, and its state is unknown: %s", one.path, one.reason)

    async def look(self) -> None:
        """Forget directories that are gone, and remove those that may go. A call meanwhile repeats it."""
        self._due = True
        if self._looking:  # nobody waits: a look at a disk that hangs may last for hours
            return
        self._looking = True
        try:
            while self._due and self._all:
                self._due = False
                await self._clean_up()
        except VolumeError as error:
            log.warning("directories left from an earlier run cannot be cleaned up now: %s", error.why)
        finally:
            self._looking = False

    async def _clean_up(self) -> None:
        there = {one.path: one for one in (await self._plugin.scan()).unreadable}
        # If a directory above one cannot be read, the one in it may still be there.
        self._all = [
            there.get(one.path, one) for one in self._all if not there.keys().isdisjoint((one.path, *one.path.parents))
        ]
        for one in list(self._all):
            if self._is_explained(one) or not self._may_go(one):
                continue
            if await self._plugin.clean_leftovers(one):
                log.info("%s is removed: no volume accounts for it, and nothing is mounted there", one.path)
                self._all = [other for other in self._all if other is not one]

    def _may_go(self, one: Unreadable) -> bool:
        is_pod_gone = self._host.was_in_step and self._host.wanted.is_gone(one.pod_uid)
        return one.bare or bool(one.name and one.pod_uid and is_pod_gone)

    def _is_explained(self, one: Unreadable) -> bool:
        return any(one.is_of(what) for task in self._tasks.values() for what in _places(task))


def _places(task: VolumeTask) -> Iterable[Published | Staged]:
    yield from task.rows.publications.values()
    yield from (row.guard for row in task.rows.publications.values() if row.agent_defers)
    if task.rows.device is not None:
        yield task.rows.device
    for want in task.wants.values():
        published = published_for(want)
        yield published
        if want.deferral is not None:
            yield replace(published, block=False)
        if not want.volume.ephemeral:
            yield staged_for(want.volume)
