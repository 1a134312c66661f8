"""The driver of one node: settings, state and pool together, and the start that puts right what a crash left.

Everything that a `kill -9` can leave is a record whose phase is not READY, or data in the trash:

* CREATING: its data may be half made. Nobody was told its id, so it is rolled back, and the retry makes it anew.
* DELETING: the caller will ask again, and is told OK then. Finishing it now gives the space back sooner.

Only the owner may do that, and only at its start, when none of its own operations can be running. A node that is gone
for good is told by its lock file, which the kernel frees when its process dies.
"""

import fcntl
import logging
import os
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from common.csi import csi_pb2 as pb
from examples.dirdriver import errors
from examples.dirdriver.settings import SettingsError
from examples.dirdriver.topology import topology_key
from tests.kit.testdriver.access import Layout
from tests.kit.testdriver.pool import Pool
from tests.kit.testdriver.records import Group, Node, Phase, Snapshot, Volume
from tests.kit.testdriver.settings import Settings
from tests.kit.testdriver.state import State, Tables

log = logging.getLogger("dirdriver")


class Driver:
    """What every service works on.

    Attributes:
        settings: the flags.
        state: the database.
        pool: the data.
        node: this node's id.
        topology_key: the key of this driver's segment.
    """

    def __init__(self, settings: Settings) -> None:
        """Open the state directory, and put right what a crash left.

        Raises:
            SettingsError: the directory cannot be used, or another process runs as this node on it.
        """
        self.settings = settings
        self.node = settings.node_id
        self.topology_key = topology_key(settings.driver_name)
        try:
            self._lock = self._own_lock()
            self.pool = Pool(settings.state_dir)
            self.state = State(settings.state_dir / "state.db")
            self._recover()
            self._register()
        except (OSError, sqlite3.Error) as error:
            raise SettingsError("--state-dir", f"cannot be used: {error}") from error

    def close(self) -> None:
        """Let go of the state directory. Mounts and devices belong to the pods: they stay."""
        self.state.close()
        os.close(self._lock)

    def _own_lock(self) -> int:
        file = self._lock_file(self.node)
        file.parent.mkdir(parents=True, exist_ok=True)
        lock = _lock(file)
        if lock is None:
            raise SettingsError("--node-id", f"another process runs as node {self.node!r} on this state directory")
        return lock

    def _lock_file(self, node: str) -> Path:
        return self.settings.state_dir / "nodes" / node / "lock"

    def staging_path(self, volume_id: str) -> Path:
        """Where a volume is brought up that nobody stages: an inline volume, or any with `--no-stage`."""
        return self.settings.state_dir / "nodes" / self.node / "staged" / volume_id

    def nodes(self, tables: Tables) -> list[str]:
        """Every node that ever ran on this state directory, this one first."""
        return sorted((node.node_id for node in tables.nodes.all()), key=lambda node: (node != self.node, node))

    def used_bytes(self, tables: Tables, node: str) -> int:
        """What the volumes of a node have together; without topology there is one pool for all nodes."""
        return tables.volumes.total("size_bytes", **({"node": node} if self.settings.topology else {}))

    def free_bytes(self, tables: Tables, node: str) -> int:
        """What can still be made on a node."""
        record = tables.nodes.get(node_id=node) if self.settings.topology else None
        capacity = record.capacity_bytes if record else self.settings.capacity_bytes
        return max(0, capacity - self.used_bytes(tables, node))

    def volume(self, volume_id: str, capability: pb.VolumeCapability | None = None) -> Volume:
        """A volume that callers know of.

        Args:
            volume_id: which.
            capability: how it is used. With `--raw`, an image that was made for mounting serves as a block device, too.

        Raises:
            CsiError: NOT_FOUND.
        """
        with self.state.reading() as tables:
            volume = ready_volume(tables, volume_id)
        is_raw = self.settings.raw and capability is not None and capability.HasField("block")
        if is_raw and volume.layout is Layout.FILESYSTEM:
            return replace(volume, layout=Layout.BLOCK, fs_type="")
        return volume

    def is_made(self, found: Volume | Snapshot | Group, forget: Callable[[], None]) -> bool:
        """Whether what holds a name is READY. What was given up half made is forgotten, and the name is free.

        Args:
            found: what holds the name.
            forget: removes it, data and record.

        Raises:
            CsiError: ABORTED while another node's process is making it. This process' calls take turns (`keys`).
        """
        if found.phase is Phase.READY:
            return True
        if not self._abandoned(found.owner):
            raise errors.aborted(f"node {found.owner} is working on what has this name; try again")
        forget()
        return False

    def _abandoned(self, owner: str) -> bool:
        """Whether nobody works on this owner's unfinished objects: ours are not running, another's process is dead."""
        if owner == self.node:
            return True
        file = self._lock_file(owner)
        lock = _lock(file) if file.exists() else None
        if lock is None:
            return not file.exists()
        os.close(lock)
        return True

    def forget(self, content: Volume | Snapshot) -> None:
        """Remove the data of an object and then its record. Can be repeated after a crash in the middle."""
        self.pool.remove(content)
        with self.state.writing() as tables:
            if isinstance(content, Volume):
                tables.volumes.delete(volume_id=content.volume_id)
            else:
                tables.snapshots.delete(snapshot_id=content.snapshot_id)

    def _recover(self) -> None:
        with self.state.reading() as tables:
            unfinished = list(_unfinished(tables, self.node))
            groups = [group for group in tables.groups.all(owner=self.node) if group.phase is not Phase.READY]
        for content in unfinished:
            log.info("%s was left %s: removed", _id(content), content.phase)
            self.forget(content)
        with self.state.writing() as tables:
            for group in groups:
                tables.groups.delete(group_id=group.group_id)

    def _register(self) -> None:
        node = Node(
            node_id=self.node,
            capacity_bytes=self.settings.capacity_bytes,
            max_volumes=self.settings.max_volumes_per_node,
        )
        with self.state.writing() as tables:
            tables.nodes.put(node)


def ready_volume(tables: Tables, volume_id: str) -> Volume:
    """A volume that callers know of.

    Raises:
        CsiError: NOT_FOUND.
    """
    volume = tables.volumes.get(volume_id=volume_id, phase=Phase.READY)
    if volume is None:
        raise errors.not_found(f"volume {volume_id} does not exist")
    return volume


def _unfinished(tables: Tables, node: str) -> Iterator[Volume | Snapshot]:
    for table in (tables.volumes, tables.snapshots):
        for phase in (Phase.CREATING, Phase.DELETING):
            yield from table.all(owner=node, phase=phase)


def _id(content: Volume | Snapshot) -> str:
    return content.volume_id if isinstance(content, Volume) else content.snapshot_id


def _lock(file: Path) -> int | None:
    """The open descriptor of a lock file that is ours now; None if another process holds it."""
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor
