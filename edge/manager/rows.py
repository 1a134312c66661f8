"""A volume's rows: what is known of one volume's mounts, in memory and on disk.

Rules:

* `intend` comes before a driver is asked, and fails if it cannot be written: then nobody is asked.
* `settle` comes after, and does not fail: what was done is done. What cannot be written stays in `unwritten`.
"""

import logging
from typing import NamedTuple

from edge.disk.found_volumes import Published, Staged
from edge.fault_points import reach
from edge.manager.host import States
from edge.manager.states import Device, Publication, Row, State
from edge.volume_errors import NotReady
from edge.volumes import VolumeKey

log = logging.getLogger("csi_bridge.edge.volumes")


class Target(NamedTuple):
    """A volume's place in one pod: `name` is the directory's (the PV's name, or the inline volume's)."""

    pod_uid: str
    name: str


VOLUME = Target("", "")
"""The target of what is about the volume alone."""


class VolumeRows:
    """The rows of one volume.

    Attributes:
        device: what is known of its staging; None if it is not staged.
        publications: what is known of each pod's mount.
        unwritten: what is not on disk yet, and whether the row is to be removed.
    """

    def __init__(self, key: VolumeKey, states: States) -> None:
        """A volume of which nothing is known."""
        self._key, self._states = key, states
        self.device: Device | None = None
        self.publications: dict[Target, Publication] = {}
        self.unwritten: dict[Target, tuple[Row, bool]] = {}
        self._intended: dict[Target, Row] = {}

    @property
    def is_staged(self) -> bool:
        """Whether it is surely staged."""
        return self.device is not None and self.device.state is State.DONE

    def is_published(self, target: Target) -> bool:
        """Whether it is surely published there."""
        row = self.publications.get(target)
        return row is not None and row.state is State.DONE

    def add(self, row: Row) -> None:
        """Know of a row that nobody needs to write."""
        if isinstance(row, Device):
            self.device = row
        else:
            self.publications[target_of(row)] = row

    async def intend(self, step: str, intent: Row) -> None:
        """Write down what is about to be tried.

        Raises:
            NotReady: it could not be written. Nothing is known that was not known before.
        """
        target = target_of(intent)
        before = self.device if isinstance(intent, Device) else self.publications.get(target)
        if before is not None and before.state is State.UNCERTAIN and before.arguments not in {"", intent.arguments}:
            log.info("volume %s: %s is tried again with other arguments", self._key, step)
        if self._intended.get(target) == intent:
            return  # a repetition: it is on disk
        reach(f"{step}.before-intent")
        await self._states.put(intent)
        self.unwritten.pop(target, None)
        self._intended[target] = intent
        self.add(intent)
        reach(f"{step}.after-intent")

    async def settle(self, step: str, row: Row, *, gone: bool = False) -> None:
        """Write down what came of it.

        Args:
            step: for the fault points.
            row: the row as it is now.
            gone: nothing is left of it.
        """
        reach(f"{step}.before-result")
        await self.write(row, gone=gone)
        reach(f"{step}.after-result")

    async def write(self, row: Row, *, gone: bool = False) -> None:
        """Know a row, or forget it, and write that down; later, if it cannot be written now."""
        target = target_of(row)
        self._intended.pop(target, None)
        if not gone:
            self.add(row)
        elif isinstance(row, Device):
            self.device = None
        else:
            self.publications.pop(target, None)
        self.unwritten[target] = row, gone
        try:
            await self.record(target)
        except NotReady as error:
            log.warning("volume %s: what was done is not written down yet: %s", self._key, error.why)

    async def record(self, target: Target) -> None:
        """Write down what is unwritten.

        Raises:
            NotReady: it could not be written.
        """
        row, gone = self.unwritten[target]
        await (self._states.drop(row) if gone else self._states.put(row))
        self.unwritten.pop(target, None)


def target_of(row: Row) -> Target:
    """A row's place."""
    return VOLUME if isinstance(row, Device) else Target(row.pod_uid, row.name)


def published_of(row: Publication) -> Published:
    """What the plugin takes down."""
    return Published(
        driver=row.driver,
        handle=row.handle,
        name=row.name,
        pod_uid=row.pod_uid,
        block=row.block,
        ephemeral=row.ephemeral,
    )


def staged_of(row: Device) -> Staged:
    """What the plugin unstages."""
    return Staged(driver=row.driver, handle=row.handle, name=row.name, block=row.block)
