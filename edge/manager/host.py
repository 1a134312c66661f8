"""The surroundings of volume tasks: the plugin, the drivers, the store, and the judgement whether a mount may go."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from common.observe.metrics import Metrics
from edge.csi_volume_plugin import VolumePlugin
from edge.disk.cdi import CdiFiles
from edge.fencing.fencing import Fencing
from edge.manager.facts import VolumeFacts
from edge.manager.shared_look import SharedLook
from edge.registry.driver_registry import DriverRegistry
from edge.registry.drivers_store import NodeDriver
from edge.stores.object_store import ObjectStore
from edge.volumes import VolumeKey
from edge.wanted.call_inputs import CallInputs, Waiting
from edge.wanted.clock import Clock
from edge.wanted.places import Places
from edge.wanted.states import Device, Publication, Row, VolumeStates
from edge.wanted.wanted import Wanted

if TYPE_CHECKING:
    from edge.direct.hand_over import DirectVolumes

# So many volumes of a driver are read at a time: a driver that hangs must keep threads for mounting.
READINGS_AT_ONCE = 4


@dataclass(kw_only=True, eq=False)
class DeferralHost:
    """The objects that deferrals need, also beside a kubelet."""

    plugin: VolumePlugin
    direct: "Callable[[], DirectVolumes]"  # not called on a node that never had a deferred volume
    may_defer: bool  # a runtime is known that mounts volumes in its guest
    clock: Clock
    boot: str
    metrics: Metrics


@dataclass(kw_only=True, eq=False)
class VolumeHost(DeferralHost):
    """The objects that all volume tasks of a node share."""

    node: str
    objects: ObjectStore
    facts: VolumeFacts
    states: VolumeStates
    drivers: DriverRegistry
    wanted: Wanted
    fencing: Fencing
    # Returns once the hub has stored this node's `volumesInUse`, and, of the volume of a key, that no other node has it
    # (docs/csi-contract.md#volumesinuse-comes-before-staging). Raises FactRefused if another one has it. Not called for
    # a volume that may be staged.
    in_use_acked: Callable[[VolumeKey | None], Awaitable[None]]
    in_use_changed: Callable[[], None]  # called when the volumes in use may have changed, and before `in_use_acked`
    cdi: CdiFiles
    stats_interval_s: float  # seconds between two readings of a volume's usage and health; 0: never
    republish_interval_s: float  # seconds between two refreshes, for drivers that ask for them; up to half is added

    # The manager sets these. `changed`: the volumes' report may have changed, but for their usage and health.
    changed: Callable[[], None] = field(init=False)
    use_changed: Callable[[], None] = field(init=False)  # a volume may have left, or come into, the volumes in use
    users: defaultdict[VolumeKey, set[str]] = field(init=False)  # the uids of the pods that want each volume now
    was_in_step: bool = False  # the store had all objects of the hub, since the present start

    def __post_init__(self) -> None:
        self.inputs = CallInputs(self.objects, node=self.node, clock=self.clock)
        self.mount_table = SharedLook(self.plugin.mount_table)
        self.places = Places()
        self.users = defaultdict(set)
        self.readings: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(READINGS_AT_ONCE))

    def driver(self, name: str) -> NodeDriver:
        driver = self.drivers.find(name)
        if driver is None or not driver.registered:
            raise Waiting(f"driver {name} is not registered on this node; check that its node-driver-registrar runs")
        return driver

    def may_unpublish(self, row: Publication) -> bool:
        """Whether the pod of a publication is surely gone."""
        if self.fencing.is_fenced(row.key):
            return bool(self.fencing.fence_report(row.key))
        return self.is_trusted(row) and self.wanted.is_gone(row.pod_uid)

    def may_unstage(self, row: Device) -> bool:
        """Whether surely no pod wants a staged volume."""
        if self.fencing.is_fenced(row.key):
            return bool(self.fencing.fence_report(row.key))
        return self.is_trusted(row) and not self.users.get(row.key)

    def is_trusted(self, row: Row) -> bool:
        """Whether an object that is missing in the store is gone, as far as this row's volume is concerned."""
        # docs/csi-contract.md#cleaning-up-waits-for-a-complete-store
        if self.was_in_step or self.objects.in_step:
            return True
        return self.objects.ever_in_step and not row.reconstructed
