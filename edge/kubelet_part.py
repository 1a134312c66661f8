"""The kubelet's part: what the agent does for storage where no kubelet does it, put together.

    metastore ─► wanted ─► volume manager ─► plugin ─► driver
        ▲                        │             ▲
    sync streams ◄── facts ◄─────┘         registrar

Rules:

* It works from the metastore alone; the link only changes what is in there.
* With `--registration=observe` another one is the kubelet: drivers are found, and nothing is stored, told or mounted.
"""

import errno
import logging
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common.errors import SettingsError, timestamp
from common.link import Link
from common.tasks import Tasks
from edge.csi_volume_plugin import VolumePlugin
from edge.manager.states import VolumeStates
from edge.metastore import Metastore
from edge.node_facts import NodeFacts
from edge.registrar import Registrar
from edge.registry.driver_registry import DriverRegistry
from edge.settings import AgentSettings
from edge.sync_streams import SyncStreams
from edge.volume_manager import VolumeManager

log = logging.getLogger("csi_bridge.edge")

_KUBELET_SOCKETS = ("device-plugins/kubelet.sock", "pod-resources/kubelet.sock")
"""What a running kubelet listens on below its root directory, whatever its configuration."""


class KubeletPart:
    """The drivers of the node and, unless a kubelet has them, its pods' volumes."""

    def __init__(self, settings: AgentSettings, *, changed: Callable[[], None]) -> None:
        """Open what is on disk.

        Args:
            settings: the agent's.
            changed: called when a driver says something new of itself, or there are others.

        Raises:
            SettingsError: a directory cannot be used, or is another one's.
        """
        own = settings.registration == "own"
        if own:
            _check_root(settings.root_dir)
        self.volumes = Volumes(settings) if own else None
        self.registry = DriverRegistry(
            settings.node,
            state_dir=settings.state_dir,
            max_message_bytes=settings.max_message_bytes,
            sockets=settings.driver,
            changed=changed,
            labels=self.volumes.node_labels if self.volumes is not None else dict,
            own=own,
        )
        self._registrar = Registrar(settings.root_dir, self.registry, own=own)

    async def start(self, tasks: Tasks) -> None:
        """Bring the volumes to where they should be, from what is known here, and take registrations."""
        tasks.start(self.registry.run(), name="driver registry")
        if self.volumes is not None:
            await self.volumes.start(self.registry)
        tasks.start(self._registrar.run(), name="registrar")

    def up(self, link: Link) -> None:
        """There is a link to the hub."""
        if self.volumes is not None:
            self.volumes.streams.up(link)

    def down(self) -> None:
        """The link is gone, or is to drain."""
        if self.volumes is not None:
            self.volumes.streams.down()

    async def drain(self, limit_s: float) -> None:
        """Finish the steps under way; begin no other."""
        if self.volumes is not None:
            await self.volumes.drain(limit_s)

    async def close(self) -> None:
        """Close what is on disk, and the connections to the drivers."""
        await self.registry.close()
        if self.volumes is not None:
            await self.volumes.close()

    def describe(self) -> dict[str, Any]:
        """The pods and their volumes, for the status socket; holds no secret."""
        if self.volumes is None:
            return {"pods": [], "volumes": [], "as_of": None, "observing": True}
        return self.volumes.describe() | {"observing": False}


class Volumes:
    """What mounts: metastore, states, plugin and manager."""

    def __init__(self, settings: AgentSettings) -> None:
        """Open what is on disk.

        Raises:
            SettingsError: it cannot be used.
        """
        self._settings = settings
        full = settings.durability == "full"
        self.metastore = Metastore(settings.state_dir, full=full)
        self._states = VolumeStates(settings.state_dir, durable=full)
        self.streams = SyncStreams(self.metastore)
        self._manager: VolumeManager | None = None

    async def start(self, registry: DriverRegistry) -> None:
        """Find out what is mounted, and begin to mount what is wanted."""
        settings = self._settings
        facts = NodeFacts(settings.node, self.metastore, registry)
        manager = VolumeManager(
            node=settings.node,
            store=self.metastore,
            states=self._states,
            plugin=VolumePlugin(settings.root_dir, settings.node, registry.find, durable=settings.durability == "full"),
            drivers=registry,
            facts=self.metastore,
            in_use_acked=facts.in_use_acked,
            in_use_changed=lambda: facts.tell(manager.volumes_in_use()),
            own_labels=registry.node_labels,
            stats_interval_s=settings.volume_stats_interval_s,
        )
        await manager.start()
        self._manager = manager
        facts.tell(manager.volumes_in_use())  # not before it is known what is mounted (contract.md C.9)
        registry.subscribe(lambda: facts.tell(manager.volumes_in_use()))

    def node_labels(self) -> dict[str, str]:
        """The labels of this node's Node object, as far as it is known here."""
        return self._manager.wanted.labels if self._manager is not None else {}

    async def drain(self, limit_s: float) -> None:
        """Finish the steps under way; begin no other."""
        if self._manager is not None:
            await self._manager.close(limit_s)

    async def close(self) -> None:
        """Close what is on disk."""
        await self._states.close()
        await self.metastore.close()

    def describe(self) -> dict[str, Any]:
        """The pods and their volumes."""
        manager, heard_at = self._manager, self.metastore.heard_at
        return {
            "as_of": timestamp(heard_at) if heard_at is not None else None,
            "in_step": self.metastore.in_step,
            "trouble": self.metastore.trouble,
            "pods": manager.describe_pods() if manager is not None else [],
            "volumes": manager.describe() if manager is not None else [],
        }


def _check_root(root: Path) -> None:
    """See that the root directory can be used, and that no kubelet is using it.

    Raises:
        SettingsError: it cannot, or one is.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError("--root-dir", str(root), f"cannot be made: {error.strerror or error}") from error
    for name in _KUBELET_SOCKETS:
        if _listens(root / name):
            why = f"a kubelet is running with this root directory ({name} answers): say --registration=observe"
            raise SettingsError("--root-dir", str(root), why)


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            return probe.connect_ex(str(path)) in {0, errno.EAGAIN}
        except OSError:  # longer than a socket's path can be
            return False
