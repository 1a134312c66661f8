"""The driver registry: this node's drivers, with the sockets at which they answer.

The agent learns of a driver in three ways: an operator names its socket, the driver registers here, or the agent finds
it beside a kubelet.

Rules:

* `find` returns a driver by its name from its registration on (`edge.registry.registration_handler`), for as long as
  the store keeps it (`edge.registry.drivers_store`).
* The agent also mounts volumes through a socket that an operator named, unless the driver has a node plugin at another
  socket.
* The node plugin of a driver is at the socket that registered last, here or with a kubelet. A driver may register with
  the kubelet under the relay's socket. Then its node plugin is at the one found socket that serves Node.
* Pods and a kubelet wait for a node plugin that is away. The controller's socket does not stand in for it: its mounts
  might be visible only in its own container.
* Kubernetes, a kubelet and the hub hear the same of a driver's topology (`edge.registry.driver_services`).
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from common.csi.reports import NODE_GET_CAPABILITIES, NODE_GET_INFO, DriverReport
from common.errors import CallError
from common.objects.topology import NODE_SEGMENT, segment_of, told_node_info, why_no_segment
from common.observe.tasks import Tasks, supervised
from common.status import code_name
from edge.calls.drivers import Driver
from edge.registry import driver_services
from edge.registry.driver_sockets import DriverSockets, SharedSocket, fits
from edge.registry.drivers_store import OPERATORS, DriversStore, NodeDriver
from edge.registry.registration import (
    NodeInfo,
    PluginOffer,
    Registration,
    check_name,
    read_node_info,
    shorten,
)
from edge.registry.registration_handler import register
from edge.settings import AgentSettings

log = logging.getLogger("csi_bridge.edge.registrar")

# The files for drivers that register here, and for those that register with a kubelet.
_FILE = "drivers.json"
_OBSERVED_FILE = "observed.json"


class DriverRegistry:
    """The drivers of this node. `run()` it as a task, and `close()` it at the end."""

    def __init__(
        self,
        settings: AgentSettings,
        *,
        labels: Callable[[], Mapping[str, str]] = dict,  # the labels of the Node object
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._node = settings.node
        self.own = settings.registration == "own"  # else drivers register with a kubelet
        self._clock = clock
        self._sockets = DriverSockets(settings, heard=self._heard)
        for socket in settings.driver:
            self._sockets.shared(socket).driver.named = True
        path = settings.state_dir / (_FILE if self.own else _OBSERVED_FILE)
        self._store = DriversStore(path, self._sockets, clock, labels)
        # The names of drivers that registered with a kubelet under their own socket, not the relay's.
        self._registered: set[str] = set()
        self._subscribers: list[Callable[[], None]] = []
        self._news = asyncio.Event()
        self._tasks: Tasks | None = None

    # ---- state -------------------------------------------------------------------------------------------------------

    @property
    def drivers(self) -> list[Driver]:
        return self._sockets.drivers

    @property
    def names(self) -> set[str]:
        return {driver.report.driver for driver in self.drivers if driver.report is not None}

    def find(self, name: str) -> NodeDriver | None:
        """Return the driver of a name, even while away; None if none answered NodeGetInfo and NodeGetCapabilities."""
        return self._store.find(name)

    def find_beside_kubelet(self, name: str) -> NodeDriver | None:
        """Return, as `find`, the driver of a name whose node plugin the kubelet of this node calls."""
        try:
            driver = driver_services.find_driver(self.drivers, name, self._node, NODE_GET_INFO)
            shared = self._sockets.find(driver.socket)
            if shared is None or driver.report is None:
                return None
            info = _info_in(driver.report, own_topology=True)
        except (CallError, ValueError):
            return None
        return NodeDriver(Registration(name, driver.path, "", OPERATORS, info), shared)

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Call `callback` at each change of `drivers`, of a driver's answers about itself, or of the registrations."""
        self._subscribers.append(callback)

    def ask_every(self, name: str, seconds: float | None) -> None:
        self._store.ask_every(name, seconds)

    def told_reports(self) -> list[DriverReport]:
        return driver_services.told_reports(self.drivers, self._store.with_topology)

    def has_topology(self, name: str) -> bool:
        return self._store.has_topology(name)

    def lacks_topology(self, name: str) -> bool:
        """Whether a driver has answered, and has no topology of its own."""
        return name in self.names and not self.has_topology(name)

    @property
    def registrations(self) -> list[Registration]:
        return [known.registration for known in self._store]

    @property
    def problems(self) -> list[str]:
        return [
            *(
                f"{it} cannot be asked: {it.trouble}; look at the driver's log"
                for it in self.drivers
                if it.asked and it.trouble
            ),
            *driver_services.ambiguities(self.drivers, self._node),
            *self._without_segment(),
            *self._without_node_plugin(),
        ]

    def _without_segment(self) -> list[str]:
        why = why_no_segment(self._node)
        if not why:
            return []
        lacking = sorted(filter(self.lacks_topology, self.names))
        return [f"driver {name} has no topology of its own, and {why}" for name in lacking]

    def _without_node_plugin(self) -> list[str]:
        node_plugins = self._store.node_plugins
        return [
            f"the node plugin of driver {name}, which was at {node_plugins[name]}, is away, and nothing else mounts "
            f"its volumes; if it runs, make its socket visible to the agent at that path; if it will not come back, "
            f"stop the agent and remove {self._store.path}"
            for name in sorted(node_plugins)
            if driver_services.awaits_node_plugin(self.drivers, name)
            and ((shared := self._sockets.find(Path(node_plugins[name]))) is None or shared.driver.asked)
        ]

    def is_registered(self, name: str, socket: str) -> bool:
        known = self._store.find(name)
        return known is not None and known.registered and known.registration.socket == socket

    # ---- registration ------------------------------------------------------------------------------------------------

    async def register(self, offer: PluginOffer) -> None:
        """Register a driver, or raise NotRegistered. Then the registration is on disk, unless the disk fails."""
        await register(offer, self._store, self._sockets)
        self._mark_node_plugins()
        self._tell_subscribers()
        await self._store.write()

    def deregister(self, socket: str) -> None:
        """Note that a registration socket is gone, or replaced by another file. Its driver stays known for a while."""
        if self._store.leave(socket):
            self._tell_subscribers()

    def found(self, finder: str, endpoint: str, *, name: str = "") -> None:
        """Note a driver's socket that was found beside a kubelet: the hub can call it. `lost` takes the same `finder`.

        `name`: the name under which it registers with a kubelet, if known.
        """
        if not fits(endpoint):
            log.warning("%s names a driver at %r, which cannot be a socket's path", finder, shorten(endpoint))
            return
        is_news = self._sockets.found(finder, Path(endpoint))
        if name:
            self._registered.add(name)
            self._store.node_plugins[name] = endpoint
            is_news = self._mark_node_plugins() or is_news
        if is_news:
            self._tell_subscribers()

    def lost(self, finder: str) -> None:
        """Note that a finder of sockets is gone. The sockets can be called for a while, as after a deregistration."""
        if self._sockets.lost(finder, self._clock()):
            self._tell_subscribers()

    # ---- drivers' answers --------------------------------------------------------------------------------------------

    def _heard(self, shared: SharedSocket) -> None:
        self._replace_deserted(shared)
        self._mark_node_plugins()
        self._note_parts(shared)
        self._learn_named(shared)
        for known in self._store:
            self._judge_topology(known)
        self._tell_subscribers()

    def _replace_deserted(self, shared: SharedSocket) -> None:
        # A vendor's upgrade may move the socket, and a killed driver leaves its file. A socket that an operator named
        # replaces no other: the other may be the node plugin.
        if shared.driver.named:
            return
        served = set(driver_services.services(shared.driver))
        for other in self._sockets:
            same = other is not shared and other.driver.name == shared.driver.name
            if same and other.was_only_found and not served.isdisjoint(driver_services.services(other.driver)):
                other.mark_if_deserted()

    def _note_parts(self, shared: SharedSocket) -> None:
        # They outlast the driver.
        name = shared.driver.name
        found = None if self.own or name in self._registered else driver_services.sole_node_plugin(self.drivers, name)
        if found is not None:
            self._store.node_plugins[name] = str(found.socket)
        for name in self.names:
            with_topology = self._store.with_topology
            (with_topology.add if self._store.has_topology(name) else with_topology.discard)(name)
        self._mark_node_plugins()

    def _mark_node_plugins(self) -> bool:
        is_news = False
        for shared in self._sockets:
            driver = shared.driver
            node_plugin = self._store.node_plugins.get(driver.name)
            elsewhere = node_plugin is not None and self._sockets.find(Path(node_plugin)) is not shared
            is_news = is_news or driver.node_plugin_is_elsewhere != (driver.named and elsewhere)
            driver.node_plugin_is_elsewhere = driver.named and elsewhere
        return is_news

    def _learn_named(self, shared: SharedSocket) -> None:
        # If `find` returns no driver of the name, one at a socket that an operator named is installed, if it serves
        # Node.
        if not self.own or (report := shared.driver.report) is None:
            return
        self._forget_former_names(shared, report.driver)
        known = self._store.find(report.driver)
        ours = known is not None and known.driver is shared.driver
        may_mount = shared.driver.named and driver_services.NODE in driver_services.services(shared.driver)
        if not ours and (known is not None or not may_mount):
            return
        try:
            check_name(report.driver)
            info = _info_in(report, own_topology=self._store.has_topology(report.driver))
            self._store.check_labels(report.driver, info)
        except ValueError as error:
            log.warning("%s at %s cannot mount volumes: %s", report.driver, shared.driver.socket, error)
            return
        if known is not None:
            self._update(known, info)
        else:
            self._store.install(Registration(report.driver, str(shared.driver.socket), "", OPERATORS, info), shared)

    def _forget_former_names(self, shared: SharedSocket, name: str) -> None:
        for known in self._store:
            if known.driver is shared.driver and known.name != name and not known.registration.socket:
                self._store.forget(known.name)

    def _judge_topology(self, known: NodeDriver) -> None:
        if known.driver.report is None or why_no_segment(self._node):
            return
        topology = {key: value for key, value in known.registration.info.topology.items() if key != NODE_SEGMENT}
        if not self._store.has_topology(known.name):
            topology |= segment_of(self._node)
        self._update(known, replace(known.registration.info, topology=topology))

    def _update(self, known: NodeDriver, info: NodeInfo) -> None:
        before = known.registration.info
        if info == before:
            return
        if info.node_id != before.node_id:
            log.warning("driver %s called this node %s and now %s", known.name, before.node_id, info.node_id)
        known.registration = replace(known.registration, info=info)

    # ---- run and close -----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Watch the drivers, forget those that left, and write the file. Never ends."""
        async with supervised() as tasks:
            self._tasks = tasks
            self._sockets.watch(tasks)
            try:
                while True:
                    self._news.clear()
                    self._expire()
                    await self._store.write()
                    await self._sockets.close_left()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(self._store.idle_s()):
                            await self._news.wait()
            finally:
                self._tasks = None

    async def close(self) -> None:
        await self._sockets.close()

    def _expire(self) -> None:
        if self._store.expire():
            self._tell_subscribers()

    def _tell_subscribers(self) -> None:
        self._sockets.tidy()
        if self._tasks is not None:
            self._sockets.watch(self._tasks)
        self._news.set()
        for callback in self._subscribers:
            callback()


def _info_in(report: DriverReport, *, own_topology: bool) -> NodeInfo:
    bodies = []
    for method in (NODE_GET_INFO, NODE_GET_CAPABILITIES):
        answer = report.answers.get(method)
        what = method.rpartition("/")[2]
        if answer is None:
            raise ValueError(f"it has not answered {what}")
        if answer.code:
            raise ValueError(f"it answered {what} with {code_name(answer.code)}")
        bodies.append(answer.body)
    info, capabilities = bodies
    return read_node_info(told_node_info(info, report.node, own_topology=own_topology), capabilities)
