"""The surroundings of volume tasks: the plugin, the drivers, the store, and callbacks for changes."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from edge.csi_volume_plugin import VolumePlugin
from edge.disk.cdi import CdiFiles
from edge.disk.mounts import MountTable
from edge.fencing.fencing import Fencing
from edge.manager.call_inputs import CallInputs, Waiting
from edge.manager.clock import Clock
from edge.manager.facts import VolumeFacts
from edge.manager.places import Places
from edge.manager.states import Device, Publication, Row, VolumeStates
from edge.registry.driver_registry import DriverRegistry
from edge.registry.drivers_store import NodeDriver
from edge.volumes import VolumeKey

if TYPE_CHECKING:
    from edge.direct.hand_over import DirectVolumes

READINGS_AT_ONCE = 4
"""So many volumes of a driver are read at a time: a driver that hangs must keep threads for mounting."""


class InUseAcked(Protocol):
    """Waits for the hub (`edge.node_facts.NodeFacts.in_use_acked`)."""

    async def __call__(self, key: VolumeKey, *, sole: bool) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeHost:
    """The objects that all volume tasks share."""

    plugin: VolumePlugin
    mount_table: Callable[[], Awaitable[MountTable]]
    states: VolumeStates
    drivers: DriverRegistry
    inputs: CallInputs
    facts: VolumeFacts
    clock: Clock
    boot: str
    may_unpublish: Callable[[Publication], bool]  # whether the pod of a publication is surely gone
    may_unstage: Callable[[Device], bool]  # whether surely no pod wants a staged volume
    # Whether an object that is missing in the store is gone, for the volume of this row
    # (docs/csi-contract.md#cleaning-up-waits-for-a-complete-store).
    is_trusted: Callable[[Row], bool]
    places: Places
    # Returns once the hub has stored that a volume is in this node's `volumesInUse`, and, with `sole`, that no other
    # node has it (docs/csi-contract.md#volumesinuse-comes-before-staging). Raises FactRefused if another one has it.
    # Not called for a volume that may be staged.
    in_use_acked: InUseAcked
    in_step: Callable[[], bool]
    in_use_changed: Callable[[], None]
    changed: Callable[[], None]  # called when the volumes' report may have changed, but for their usage and health
    direct: "Callable[[], DirectVolumes]"
    may_defer: bool  # a runtime is known that mounts volumes in its guest
    cdi: CdiFiles
    count_deferred: Callable[[str], None]
    fencing: Fencing
    stats_interval_s: float  # seconds between two readings of a volume's usage and health; 0: never
    republish_interval_s: float  # seconds between two refreshes, for drivers that ask for them; up to half is added
    readings: defaultdict[str, asyncio.Semaphore] = field(
        default_factory=lambda: defaultdict(lambda: asyncio.Semaphore(READINGS_AT_ONCE))
    )

    def driver(self, name: str) -> NodeDriver:
        driver = self.drivers.find(name)
        if driver is None or not driver.registered:
            raise Waiting(f"driver {name} is not registered on this node; check that its node-driver-registrar runs")
        return driver
