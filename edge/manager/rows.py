"""A volume's rows: the state of one volume's mounts, in memory and on disk.

Rules:

* `intend` writes a row before the agent calls the driver. If the write fails, the agent does not call.
* `settle` writes the result after the call, and does not fail. A row that cannot be written stays in `unwritten`.
"""

import logging

from common.store.fault_points import reach
from edge.volume_errors import NotReady
from edge.volumes import VolumeKey
from edge.wanted.places import VOLUME, Place, Places, Target, staging_place
from edge.wanted.states import Device, Publication, Row, State, VolumeStates

log = logging.getLogger("csi_bridge.edge.volumes")


class VolumeRows:
    """The rows of one volume: of its staging, and of each pod's mount."""

    def __init__(self, key: VolumeKey, states: VolumeStates, places: Places) -> None:
        self.key = key
        self._states = states
        self._places = places
        self.device: Device | None = None
        self.publications: dict[Target, Publication] = {}
        # The rows that are not on disk yet, and whether each is to be removed there.
        self.unwritten: dict[Target, tuple[Row, bool]] = {}
        self._intended: dict[Target, Row] = {}

    @property
    def is_staged(self) -> bool:
        return self.device is not None and self.device.state is State.DONE

    def is_published(self, target: Target) -> bool:
        row = self.publications.get(target)
        return row is not None and row.state is State.DONE

    def add(self, row: Row) -> None:
        self._leave(self._known(row))
        self._places.take(_place_of(row), self.key)
        if isinstance(row, Device):
            self.device = row
        else:
            self.publications[target_of(row)] = row

    def _remove(self, row: Row) -> None:
        self._leave(self._known(row))
        if isinstance(row, Device):
            self.device = None
        else:
            self.publications.pop(target_of(row), None)

    def _known(self, row: Row) -> Row | None:
        return self.device if isinstance(row, Device) else self.publications.get(target_of(row))

    def _leave(self, row: Row | None) -> None:
        if row is not None:
            self._places.leave(_place_of(row), self.key)

    async def intend(self, step: str, intent: Row) -> None:
        """Write the row of a step that the agent is about to try. Raises NotReady if it cannot; memory is unchanged."""
        target = target_of(intent)
        before = self._known(intent)
        if before is not None and before.state is State.UNCERTAIN and before.arguments not in {"", intent.arguments}:
            log.info("volume %s: %s is tried again with other arguments", self.key, step)
        if self._intended.get(target) == intent:
            return  # a repetition: the row is on disk
        reach(f"{step}.before-intent")
        await self._states.put(intent)
        self.unwritten.pop(target, None)
        self._intended[target] = intent
        self.add(intent)
        reach(f"{step}.after-intent")

    async def settle(self, step: str, row: Row, *, gone: bool = False) -> None:
        """Write the row of a step (named for the fault points) that has ended. If all is `gone`, the row goes."""
        reach(f"{step}.before-result")
        await self.write(row, gone=gone)
        reach(f"{step}.after-result")

    async def write(self, row: Row, *, gone: bool = False) -> None:
        """Set or remove a row, in memory and on disk; on disk later, if it cannot be written now."""
        target = target_of(row)
        self._intended.pop(target, None)
        if gone:
            self._remove(row)
        else:
            self.add(row)
        self.unwritten[target] = row, gone
        try:
            await self.record(target)
        except NotReady as error:
            log.warning("volume %s: the result is not on the disk yet: %s", self.key, error.why)

    async def record(self, target: Target) -> None:
        """Write an unwritten row. Raises NotReady if the row could not be written."""
        row, gone = self.unwritten[target]
        await (self._states.drop(row) if gone else self._states.put(row))
        self.unwritten.pop(target, None)


def target_of(row: Row) -> Target:
    return VOLUME if isinstance(row, Device) else Target(row.pod_uid, row.name)


def _place_of(row: Row) -> Place:
    return staging_place(row) if isinstance(row, Device) else target_of(row)
