"""The surroundings of volume tasks: the plugin, the drivers, the store, and callbacks for changes."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from edge.disk.cdi import CdiFiles
from edge.disk.found_volumes import Found, Published, Staged, Unreadable
from edge.disk.mounts import MountTable
from edge.fencing.fencing import Fencing
from edge.manager.call_inputs import CallInputs, Waiting
from edge.manager.clock import Clock
from edge.manager.facts import VolumeFacts
from edge.manager.places import Places
from edge.manager.states import Device, Publication, Row
from edge.node_requests import VolumeStats
from edge.volumes import PodVolume, Volume, VolumeKey

READINGS_AT_ONCE = 4
"""So many volumes of a driver are read at a time: a driver that hangs must keep threads for mounting."""


def _readings() -> defaultdict[str, asyncio.Semaphore]:
    return defaultdict(lambda: asyncio.Semaphore(READINGS_AT_ONCE))


class Plugin(Protocol):
    """The steps on a volume (`edge.csi_volume_plugin.VolumePlugin`)."""

    async def stage(
        self,
        volume: Volume,
        *,
        publish_context: Mapping[str, str],
        secrets: Mapping[str, str],
        fs_group: int | None = None,
        selinux_label: str = "",
        reconstructed: bool = False,
        may_go_on: Callable[[], bool],
    ) -> None:
        """Stage the volume on this node."""

    async def publish(
        self,
        wanted: PodVolume,
        *,
        publish_context: Mapping[str, str],
        secrets: Mapping[str, str],
        tokens: Mapping[str, Mapping[str, str]] | None = None,
        reconstructed: bool = False,
        tell: Callable[[str], None] | None = None,
        may_go_on: Callable[[], bool],
    ) -> None:
        """Publish it into a pod's directory."""

    async def republish(
        self,
        wanted: PodVolume,
        *,
        publish_context: Mapping[str, str],
        secrets: Mapping[str, str],
        tokens: Mapping[str, Mapping[str, str]] | None = None,
        may_go_on: Callable[[], bool],
    ) -> None:
        """Call NodePublishVolume again, so that the driver refreshes the contents."""

    async def unpublish(self, published: Published) -> None:
        """Unpublish it from a pod's directory."""

    async def unstage(self, staged: Staged, *, recorded: bool = True) -> None:
        """Undo `stage`."""

    async def expand(
        self,
        volume: Volume,
        pod_uid: str,
        *,
        required_bytes: int,
        secrets: Mapping[str, str],
        may_go_on: Callable[[], bool],
    ) -> int:
        """Expand it at a pod's mount, and return its size in bytes."""

    async def stats(self, published: Published) -> VolumeStats | None:
        """Return its usage and health; None if the driver gives none."""

    async def scan(self) -> Found:
        """Return the volumes that have directories on the disk."""

    async def mount_table(self) -> MountTable:
        """Read the mount table."""

    def is_mounted(self, what: Published | Staged, mounts: MountTable) -> bool:
        """Whether it is mounted at its target."""

    def has_mounts(self, what: Published | Staged, mounts: MountTable) -> bool:
        """Whether any part of it is mounted."""

    def path(self, published: Published) -> Path:
        """Return its path in a pod's directory."""

    async def clean_leftovers(self, published: Published | Unreadable) -> bool:
        """Remove the directories that a gone pod has left; return False if some stay."""


class Content(Protocol):
    """What a block device holds (`edge.direct.file_systems.Content`)."""

    @property
    def what(self) -> str:
        """The content, for people; empty if the device is blank."""

    @property
    def fs_type(self) -> str:
        """The type of its file system; empty if it holds none."""

    @property
    def uuid(self) -> str:
        """The file system's UUID."""

    @property
    def is_blank(self) -> bool:
        """Whether it holds nothing."""


class Direct(Protocol):
    """The deferred volumes (`edge.direct.hand_over.DirectVolumes`)."""

    async def device(self, published: Published) -> Path:
        """Return the device that the driver has published."""

    async def look(self, device: Path) -> Content:
        """Return what a device holds."""

    async def is_sound(self, device: Path, fs_type: str) -> bool:
        """Whether a file system is no rest of a mkfs that was killed."""

    async def make(self, device: Path, fs_type: str, uuid: str, *, begun: bool) -> None:
        """Make a file system, or finish one."""

    async def wait_idle(self, published: Published) -> None:
        """Return once no tool of an earlier agent works on the device."""

    async def grow(self, device: Path, fs_type: str) -> bool:
        """Grow a file system to its device; return whether it has that size."""

    async def hand_over(self, want: PodVolume, published: Published, device: Path) -> None:
        """Tell the runtime of a device."""

    async def take_back(self, published: Published) -> None:
        """Undo `hand_over`."""

    async def forget(self, published: Published) -> None:
        """Remove what a driver has told the runtime and not taken back."""

    async def is_told(self, published: Published) -> bool:
        """Whether the runtime may know the volume."""

    async def stats(self, published: Published) -> VolumeStats:
        """Return the usage as the guest sees it."""

    async def resize(self, published: Published) -> bool:
        """Let the guest grow the file system; return whether it has done so."""

    async def standing(self) -> frozenset[str]:
        """Return the paths of the volumes that are handed over completely."""

    async def sweep(self, kept: Iterable[Published]) -> None:
        """Remove everything that belongs to no volume of `kept`."""

    def volume_path(self, published: Published) -> str:
        """Return the path that the runtime knows a volume by."""


class States(Protocol):
    """Stores rows (`edge.manager.states.VolumeStates`)."""

    def rows(self) -> list[Row]:
        """Return every row that was on disk at start."""

    async def put(self, row: Row) -> None:
        """Write a row."""

    async def drop(self, row: Row) -> None:
        """Remove a row."""


class Driver(Protocol):
    """A driver of this node."""

    @property
    def capabilities(self) -> frozenset[int]:
        """The capabilities that NodeGetCapabilities returned: numbers of `NodeServiceCapability.RPC.Type`."""

    @property
    def registered(self) -> bool:
        """Whether it is registered now."""

    @property
    def file(self) -> object:
        """The identity of its registration socket's file, which changes with each registration."""


class InUseAcked(Protocol):
    """Waits for the hub (`edge.node_facts.NodeFacts.in_use_acked`)."""

    async def __call__(self, key: VolumeKey, *, sole: bool) -> None:
        """Return once the hub has stored that this node uses a volume. Raises FactRefused if another node has it."""


class Drivers(Protocol):
    """The drivers of this node."""

    def find(self, name: str) -> Driver | None:
        """Return a driver, even while it is away; None if it is not known."""

    def subscribe(self, callback: Callable[[], None]) -> object:
        """Call `callback` at every change of a driver."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeHost:
    """The objects that all volume tasks share.

    Attributes:
        mount_table: reads the mount table; concurrent callers share one reading.
        boot: the id of the machine's present boot.
        may_unpublish: whether the pod of a publication is surely gone.
        may_unstage: whether surely no pod wants a staged volume.
        is_trusted: whether an object that is missing in the store is gone, for the volume of this row
            (docs/csi-contract.md#cleaning-up-waits-for-a-complete-store).
        places: the volumes that have, or may have, each place.
        in_use_acked: returns once the hub has stored that a volume is in this node's `volumesInUse`, and, with
            `sole`, that no other node has it (docs/csi-contract.md#volumesinuse-comes-before-staging). Raises
            FactRefused if another one has it. Not called for a volume that may be staged.
        in_step: whether the hub has confirmed on the present link that the node's objects are complete.
        in_use_changed: called when the node's `volumesInUse` may have changed.
        changed: called when the volumes' report may have changed, but for their usage and health.
        stats_interval_s: seconds between two readings of a volume's usage and health; 0: never.
        republish_interval_s: seconds between two refreshes, for drivers that ask for them; up to half is added.
        fencing: fences volumes when the agent's lease ends.
        direct: returns the deferred volumes. The first call imports their package.
        may_defer: a runtime is known that mounts volumes in its guest.
        validate_block: raises VolumeError if a driver says that a volume cannot be used as a block device.
        cdi: the files that let a container engine give block volumes to containers.
        count_deferred: counts the publications of volumes that a pod's runtime mounts (`Metrics.volume_deferred`).
        readings: by driver, limits the readings of usage and health that run at the same time.
    """

    plugin: Plugin
    mount_table: Callable[[], Awaitable[MountTable]]
    states: States
    drivers: Drivers
    inputs: CallInputs
    facts: VolumeFacts
    clock: Clock
    boot: str
    may_unpublish: Callable[[Publication], bool]
    may_unstage: Callable[[Device], bool]
    is_trusted: Callable[[Row], bool]
    places: Places
    in_use_acked: InUseAcked
    in_step: Callable[[], bool]
    in_use_changed: Callable[[], None]
    changed: Callable[[], None]
    direct: Callable[[], Direct]
    may_defer: bool
    validate_block: Callable[[Volume], Awaitable[None]]
    cdi: CdiFiles
    count_deferred: Callable[[str], None]
    fencing: Fencing
    stats_interval_s: float = 60.0
    republish_interval_s: float = 60.0
    readings: defaultdict[str, asyncio.Semaphore] = field(default_factory=_readings)

    def has_driver(self, name: str) -> bool:
        """Whether a driver is registered now, so that it can be called."""
        driver = self.drivers.find(name)
        return driver is not None and driver.registered

    def driver(self, name: str) -> Driver:
        """Return a registered driver.

        Raises:
            Waiting: it is not registered.
        """
        driver = self.drivers.find(name)
        if driver is None or not driver.registered:
            raise Waiting(f"driver {name} is not registered on this node; check that its node-driver-registrar runs")
        return driver
