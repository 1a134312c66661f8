"""Puts together the parts that do a kubelet's work for storage, on nodes without a kubelet.

    metastore ─► wanted ─► volume manager ─► plugin ─► driver
        ▲                        │             ▲
    sync streams ◄── facts ◄─────┘         registrar

Rules:

* They work from the metastore alone; the link only updates the metastore.
* With `--registration=observe` the node has a kubelet. The agent finds drivers, and stores, reports and mounts nothing.
  It tells the hub of this mode, and puts aside state that it stored earlier.
* With `--relay-dir` that kubelet calls the drivers through the agent. With `--direct-runtime` too, the agent hands
  volumes over to the pods' runtime (`edge.beside`). It takes back those of an earlier start without this flag as well.
"""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Iterable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from common.errors import SettingsError
from common.net.sockets import is_served
from common.objects.left_over import LeftOver
from common.observe.metrics import Metrics, VolumeStats
from common.observe.tasks import Tasks
from common.pages.agent import NodeVolumes
from common.pages.json_form import time_of
from common.store.database import lock
from common.store.files import room_of, why_full
from edge.calls.controller_lease import ControllerLease
from edge.csi_volume_plugin import VolumePlugin
from edge.disk.cdi import CdiFiles
from edge.disk.layout import PLUGIN, Layout
from edge.disk.mounts import read_table
from edge.fencing.fenced_volumes import why_not_here
from edge.fencing.fencing import Fencing
from edge.fencing.watchdog import Watchdog
from edge.home import Home
from edge.manager.facts import VolumeFacts
from edge.manager.host import VolumeHost
from edge.registrar import Registrar
from edge.registry.driver_registry import DriverRegistry
from edge.registry.registration import node_labels
from edge.reports.machine import read_machine
from edge.reports.node_facts import LEFT_SETTLE_S, NodeFacts, ask_as_said
from edge.reports.pod_facts import SETTLE_S, PodFacts
from edge.reports.settling import Settling
from edge.settings import AgentSettings
from edge.stores.former_state import DIRECT, put_aside
from edge.stores.metastore import Metastore
from edge.stores.sync_streams import observe_streams, sync_streams
from edge.volume_errors import VolumeError
from edge.volume_manager import VolumeManager
from edge.wanted.clock import Clock
from edge.wanted.opt_in import OptIn
from edge.wanted.states import VolumeStates, read_boot
from edge.wanted.wanted import Wanted

if TYPE_CHECKING:
    from edge.beside.direct_calls import DirectCalls
    from edge.direct.hand_over import DirectVolumes
    from edge.kubelet_relay import KubeletRelay

log = logging.getLogger("csi_bridge.edge")

# A running kubelet listens here, below its root directory.
# `device-plugins/kubelet.sock` would not do: it is always below /var/lib/kubelet, wherever the root directory is.
KUBELET_SOCKET = "pod-resources/kubelet.sock"

# KubeEdge's EdgeCore serves no pod-resources by default, but this.
_EDGECORE_SOCKET = Path("/var/lib/kubelet/device-plugins/kubelet.sock")

_LOCK = "csi-bridge.lock"  # the lock of the agent that mounts below a root directory
TRY_AGAIN_S = 5.0  # the interval of retries after the disk failed: people must repair it


class KubeletPart:
    """The drivers of the node and, on a node without a kubelet, its pods' volumes."""

    def __init__(self, settings: AgentSettings, metrics: Metrics) -> None:
        own = settings.registration == "own"
        self.node = settings.node
        self._settings = settings
        self._former = "" if own else put_aside(settings.state_dir, now=time.time())
        self._unkept = self._full = ""
        self._directories = [settings.state_dir, *([settings.root_dir] if own else ())]
        self.volumes = Volumes(settings, metrics) if own else None
        self.streams = sync_streams(self.volumes.metastore) if self.volumes is not None else observe_streams()
        labels = self.volumes.node_labels if self.volumes is not None else dict
        self.registry = DriverRegistry(settings, labels=labels)
        self._relay: KubeletRelay | None = None
        self._direct: DirectCalls | None = None
        if settings.relay_dir is not None:
            from edge.kubelet_relay import KubeletRelay as Relay  # noqa: PLC0415  # few nodes need a gRPC server

            if settings.direct_runtime or (settings.state_dir / DIRECT).exists():
                from edge.beside.direct_calls import DirectCalls as Direct  # noqa: PLC0415  # even fewer have a Kata

                self._direct = Direct(settings, metrics, self.registry)
                self.streams += self._direct.streams
            answer = self._direct.answer if self._direct is not None else None
            self._relay = Relay(settings.relay_dir, settings, self.registry, answer)
        is_relay = self._relay.holds if self._relay is not None else lambda _endpoint: False
        self._registrar = Registrar(settings.root_dir, self.registry, is_relay=is_relay)

    async def start(self, tasks: Tasks, lease: ControllerLease) -> None:
        """Start to mount and unmount from the local state, and take registrations."""
        tasks.start(self.registry.run(), name="driver registry")
        if self.volumes is not None:
            await self.volumes.start(self.registry, tasks, lease)
        tasks.start(self._registrar.run(), name="registrar")
        if self._relay is not None:
            tasks.start(self._relay.run(), name="kubelet relay")

    @property
    def problems(self) -> list[str]:
        relayed = self._relay.problems(self._registrar.observed) if self._relay is not None else []
        own = self.volumes.problems if self.volumes is not None else []
        direct = self._direct.problems if self._direct is not None else []
        seen = [why for why in (self._full, self._former, self._unkept) if why]
        return [*seen, *self.registry.problems, *relayed, *direct, *own]

    async def look(self) -> None:
        self._full = await asyncio.to_thread(_full_disks, self._directories)
        if self.volumes is None:
            self._unkept = await asyncio.to_thread(_unkept_mounts, self._settings.root_dir)

    def relay_of(self, driver: str) -> str:
        return self._relay.served(driver) if self._relay is not None else ""

    async def drain(self, limit_s: float) -> None:
        if self._relay is not None:
            await self._relay.drain()
        if self._direct is not None:
            await self._direct.drain(limit_s)
        if self.volumes is not None:
            await self.volumes.drain(limit_s)

    async def close(self) -> None:
        if self._relay is not None:
            await self._relay.close()
        if self._direct is not None:
            await self._direct.close()
        if self.volumes is not None:
            await self.volumes.close()
        await self.registry.close()

    def describe(self, *, connected: bool, since: datetime) -> NodeVolumes:
        if self.volumes is None:
            return NodeVolumes(node=self._settings.node, connected=connected, since=since, observing=True)
        return self.volumes.describe(connected=connected, since=since)


class Volumes:
    """The volumes of a node without a kubelet: metastore, states, plugin and manager."""

    def __init__(self, settings: AgentSettings, metrics: Metrics) -> None:
        self._settings = settings
        self._metrics = metrics
        metrics.claims = self.usage
        _check_root(settings.root_dir)
        self._home = Home(settings.state_dir, settings.node, settings.root_dir)
        self._root_lock: int | None = None
        self.fencing = _make_fencing(settings)
        self.metastore = Metastore(settings.state_dir, full=settings.durability == "full")
        self._trouble = ""
        self._states = self._open_states()
        self._manager: VolumeManager | None = None
        self._direct: DirectVolumes | None = None
        self._has_selinux = Path("/sys/fs/selinux/enforce").exists()
        self._settling: list[Settling] = []

    def _open_states(self) -> VolumeStates | None:
        # without a row no driver is called: docs/csi-contract.md#the-state-is-on-disk-before-the-call
        try:
            states = VolumeStates(self._settings.state_dir, durable=self._settings.durability == "full")
        except OSError as error:
            self._set_trouble(str(error))
            return None
        self._set_trouble("")
        return states

    def _set_trouble(self, trouble: str) -> None:
        if trouble and trouble != self._trouble:
            log.error("no volume is mounted or unmounted until this is repaired: %s", trouble)
        self._trouble = trouble

    async def start(self, registry: DriverRegistry, tasks: Tasks, lease: ControllerLease) -> None:
        self._root_lock = _take_root(self._settings.root_dir)  # the last that can fail, because it makes a file
        self._home.write()
        await self.fencing.start(lease)  # before anything else: another node may have the volumes by now
        if self._states is None or not await self._manage(registry, self._states):
            tasks.start(self._manage_later(registry), name="wait for the disk")

    async def _manage_later(self, registry: DriverRegistry) -> None:
        while True:
            await asyncio.sleep(TRY_AGAIN_S)
            if self._states is None:
                self._states = await asyncio.to_thread(self._open_states)
            if self._states is not None and await self._manage(registry, self._states):
                return

    async def _manage(self, registry: DriverRegistry, states: VolumeStates) -> bool:
        settings = self._settings
        machine = read_machine(settings.root_dir)
        facts = NodeFacts(settings.node, self.metastore.facts, registry, machine, self.fencing.told)

        def tell(left: Iterable[LeftOver] | None = None) -> None:
            facts.tell(manager.volumes_in_use(), manager.sole_uses(), left)

        clock = Clock()
        real_layout = Layout(settings.root_dir).real
        host = VolumeHost(
            node=settings.node,
            objects=self.metastore.objects,
            facts=VolumeFacts(self.metastore.facts, node=settings.node, clock=clock),
            states=states,
            plugin=VolumePlugin(
                settings.root_dir,
                settings.node,
                registry.find,
                durable=settings.durability == "full",
                is_deferred=(lambda it: self._direct_volumes().is_told(it)) if settings.direct_runtime else None,
            ),
            drivers=registry,
            wanted=Wanted(
                self.metastore.objects,
                node=settings.node,
                own_labels=lambda: node_labels(registry.registrations),
                selinux=self._has_selinux,
                opt_in=OptIn({runtime.name: runtime for runtime in settings.direct_runtime}, real_layout),
                complain=lambda text: log.error("%s", text),
            ),
            fencing=self.fencing,
            clock=clock,
            boot=read_boot(),
            in_use_acked=facts.in_use_acked,
            in_use_changed=tell,
            direct=self._direct_volumes,
            may_defer=bool(settings.direct_runtime),
            cdi=CdiFiles(settings.cdi_dir, real_layout),
            metrics=self._metrics,
            stats_interval_s=settings.volume_stats_interval_s,
            republish_interval_s=settings.volume_republish_interval_s,
        )
        manager = VolumeManager(host)
        try:
            await manager.start()
        except VolumeError as error:
            self._set_trouble(error.why)
            return False
        self._set_trouble("")
        self._manager = manager
        tell()  # only when the present mounts are known
        registry.subscribe(tell)
        set_periods = partial(ask_as_said, self.metastore.objects, registry)
        set_periods(self.metastore.objects.refs("CSIDriver"))
        self.metastore.objects.subscribe(set_periods)
        self._settling = [
            Settling(PodFacts(self.metastore.facts, manager.pod_states).tell, SETTLE_S),
            Settling(lambda: tell(manager.left_over()), LEFT_SETTLE_S),
        ]
        for it in self._settling:
            manager.subscribe(it.changed)
            it.changed()
        return True

    def _direct_volumes(self) -> "DirectVolumes":
        # imported at the first call: most nodes never need it
        if self._direct is None:
            from edge.direct.hand_over import DirectVolumes  # noqa: PLC0415

            self._direct = DirectVolumes(self._settings.root_dir, self._settings.direct_run_dir)
        return self._direct

    def usage(self) -> dict[tuple[str, str], VolumeStats]:
        # a thread may call it
        return self._manager.usage() if self._manager is not None else {}

    def node_labels(self) -> dict[str, str]:
        return self._manager.wanted.labels if self._manager is not None else {}

    async def drain(self, limit_s: float) -> None:
        if self._manager is not None:
            await self._manager.close(limit_s)

    async def close(self) -> None:
        await self.fencing.close()
        await self.drain(0.0)  # no step may run when its rows can no longer be written
        for it in self._settling:
            it.close()
        if self._states is not None:
            await self._states.close()
        await self.metastore.close()
        if self._root_lock is not None:
            os.close(self._root_lock)

    @property
    def problems(self) -> list[str]:
        stopped = f"no volume is mounted or unmounted until this is repaired: {self._trouble}" if self._trouble else ""
        unwritten = self._unwritten and f"what is new since then is in memory only: {self._unwritten}"
        return [*(why for why in (stopped, unwritten) if why), *self.fencing.problems()]

    @property
    def _unwritten(self) -> str:
        return (self._states.trouble if self._states is not None else "") or self.metastore.trouble

    def describe(self, *, connected: bool, since: datetime) -> NodeVolumes:
        manager = self._manager
        heard_at = self.metastore.objects.heard_at
        return NodeVolumes(
            node=self._settings.node,
            connected=connected,
            since=since,
            as_of=time_of(heard_at) if heard_at is not None else None,
            in_step=self.metastore.objects.in_step,
            facts_waiting=self.metastore.facts.waiting,
            started=manager is not None,
            trouble=self._trouble or self._unwritten,
            pods=manager.describe_pods() if manager is not None else [],
            volumes=manager.describe() if manager is not None else [],
        )


def _make_fencing(settings: AgentSettings) -> Fencing:
    if settings.fence == "on" and (why := why_not_here()):
        raise SettingsError("--fence", settings.fence, why)
    try:
        return Fencing(
            settings.state_dir,
            settings.root_dir,
            is_wanted=settings.fence == "on",
            lease_s=settings.controller_lease_s,
            boot=read_boot(),
            watchdog=Watchdog(settings.watchdog),
        )
    except OSError as error:
        raise SettingsError("--state-dir", str(settings.state_dir), f"cannot be used: {error}") from error
    except ValueError as error:
        what = "reboot the machine, and remove fence.json and fence.lease"
        why = f"fence.json in it is damaged ({error}), and nobody knows what to fence; {what}"
        raise SettingsError("--state-dir", str(settings.state_dir), why) from error


def _check_root(root: Path) -> None:
    # This makes no file there: the agent may have to end.
    found = KUBELET_SOCKET if is_served(root / KUBELET_SOCKET) else ""
    # With another root directory this agent is in no kubelet's way: its pods are elsewhere.
    if _EDGECORE_SOCKET.is_relative_to(root) and is_served(_EDGECORE_SOCKET):
        found = str(_EDGECORE_SOCKET.relative_to(root))
    if found:
        why = f"a kubelet is running with this root directory ({found} answers): say --registration=observe"
        raise SettingsError("--root-dir", str(root), why)
    if (root / _LOCK).exists():
        os.close(_take_root(root))


def _take_root(root: Path) -> int:
    try:
        root.mkdir(parents=True, exist_ok=True)
        return lock(root / _LOCK)
    except BlockingIOError:
        raise SettingsError("--root-dir", str(root), "another edge agent is using it") from None
    except OSError as error:
        raise SettingsError("--root-dir", str(root), f"cannot be used: {error.strerror or error}") from error


def _full_disks(directories: Iterable[Path]) -> str:
    with contextlib.suppress(OSError):  # a directory that is gone has its own errors
        return next((why for it in directories if (why := why_full(it, *room_of(it)))), "")
    return ""


def _unkept_mounts(root: Path) -> str:
    if is_served(root / KUBELET_SOCKET) or is_served(_EDGECORE_SOCKET):
        return ""
    mounted = [path for path in read_table(root).within(Layout(root).pods) if f"/volumes/{PLUGIN}/" in path]
    if not mounted:
        return ""
    return (
        f"CSI volumes of pods are mounted below {root}, and no kubelet answers there, so nothing unmounts them: start "
        f"the kubelet, or run the agent with --registration=own"
    )
