"""A volume host: what a volume task has around it: the plugin, the drivers, the store, and who is told of changes."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from edge.disk.found_volumes import Found, Published, Staged, Unreadable
from edge.disk.mounts import MountTable
from edge.manager.call_inputs import CallInputs, Waiting
from edge.manager.clock import Clock
from edge.manager.facts import VolumeFacts
from edge.manager.places import Places
from edge.manager.states import Device, Publication, Row
from edge.node_requests import VolumeStats
from edge.volumes import PodVolume, Volume, VolumeKey


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
    ) -> None:
        """Make it ready on this node."""

    async def publish(
        self,
        wanted: PodVolume,
        *,
        publish_context: Mapping[str, str],
        secrets: Mapping[str, str],
        tokens: Mapping[str, Mapping[str, str]] | None = None,
        reconstructed: bool = False,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        """Put it into a pod's directory."""

    async def republish(
        self,
        wanted: PodVolume,
        *,
        publish_context: Mapping[str, str],
        secrets: Mapping[str, str],
        tokens: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        """Let the driver refresh it."""

    async def unpublish(self, published: Published) -> None:
        """Take it out of a pod's directory."""

    async def unstage(self, staged: Staged, *, recorded: bool = True) -> None:
        """Undo `stage`."""

    async def expand(self, volume: Volume, pod_uid: str, *, required_bytes: int, secrets: Mapping[str, str]) -> int:
        """Make it larger at a pod's mount."""

    async def stats(self, published: Published) -> VolumeStats | None:
        """Its use and health."""

    async def scan(self) -> Found:
        """What lies on disk."""

    async def mount_table(self) -> MountTable:
        """The mounts as they are now."""

    def is_mounted(self, what: Published | Staged, mounts: MountTable) -> bool:
        """Whether it stands where it is used."""

    def has_mounts(self, what: Published | Staged, mounts: MountTable) -> bool:
        """Whether anything of it is mounted."""

    def path(self, published: Published) -> Path:
        """Where a pod finds it."""

    async def clean_leftovers(self, published: Published | Unreadable) -> bool:
        """Remove what a pod that is gone left behind."""


class States(Protocol):
    """Where rows are written (`edge.manager.states.VolumeStates`)."""

    def rows(self) -> list[Row]:
        """Every row that was on disk."""

    async def put(self, row: Row) -> None:
        """Write one."""

    async def drop(self, row: Row) -> None:
        """Remove one."""


class Driver(Protocol):
    """A driver of this node."""

    @property
    def capabilities(self) -> frozenset[int]:
        """What its NodeGetCapabilities answered: the numbers of `NodeServiceCapability.RPC.Type`."""

    @property
    def registered(self) -> bool:
        """Whether it is here now."""

    @property
    def file(self) -> object:
        """Which file its registration socket was: another one each time that it registers."""


class Drivers(Protocol):
    """The drivers of this node."""

    def find(self, name: str) -> Driver | None:
        """One of them, also while it is away."""

    def subscribe(self, callback: Callable[[], None]) -> object:
        """Call back at every change of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeHost:
    """What volume tasks share.

    Attributes:
        mount_table: the mounts as they are now, in a look that others may share.
        boot: the id of the machine's present boot.
        may_unpublish: whether there is a reason, fresh and of the right uid, to take a volume from a pod.
        may_unstage: whether what the store does not know may be taken for unwanted.
        is_trusted: whether what is not in the store may be taken for gone, by what a row tells of (RULE C16).
        places: which volumes are mounted, or may be, where another one is to be.
        in_use_acked: returns once the hub has stored that a volume stands in this node's `volumesInUse` (RULE C12).
            Not asked for a volume that may be staged already.
        in_use_changed: the node's `volumesInUse` may be another one now.
        changed: what there is to show has changed.
        stats_interval_s: between two looks at a volume's use and health; 0: never.
        republish_interval_s: between two refreshes for drivers that ask for it, to which up to half is added.
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
    in_use_acked: Callable[[VolumeKey], Awaitable[None]]
    in_use_changed: Callable[[], None]
    changed: Callable[[], None]
    stats_interval_s: float = 60.0
    republish_interval_s: float = 60.0

    def has_driver(self, name: str) -> bool:
        """Whether a driver can be asked for anything."""
        driver = self.drivers.find(name)
        return driver is not None and driver.registered

    def driver(self, name: str) -> Driver:
        """A registered driver.

        Raises:
            Waiting: it is not registered.
        """
        driver = self.drivers.find(name)
        if driver is None or not driver.registered:
            raise Waiting(f"driver {name} is not registered on this node; check that its node-driver-registrar runs")
        return driver
