"""The drivers store: the drivers of this node by name, in memory and in the driver file.

Rules:

* One name, one driver.
* The store remembers a driver that left for a grace period, and calls to it go on while its socket exists
  (docs/csi-contract.md#a-restarting-driver-keeps-its-csinode-entry). A driver of the file stays until it registers, or
  is seen to leave.
* The store never forgets where node plugins were and which drivers have a topology.
* A crash or a power cut leaves the old file or the new one, never a part. The agent renames a file that it cannot use;
  the drivers come back as they register.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from common.errors import driver_missing
from common.net.sockets import FileId, file_id
from common.status import Status
from common.store.state_file import read_state, write_state
from edge.calls.drivers import ASK_AGAIN_S, Driver
from edge.registry.driver_services import has_topology
from edge.registry.driver_sockets import DriverSockets, SharedSocket, fits
from edge.registry.registration import NodeInfo, PluginOffer, Registration, Version, check_labels

T = TypeVar("T")

log = logging.getLogger("csi_bridge.edge.registrar")

OPERATORS: Version = (1,)  # the version of a driver that an operator named: no version is lower

GRACE_S = 120.0  # a driver that left stays known for this time, which is longer than the replacement of a driver's pod

_STORE_AGAIN_S = 60.0  # after a write that failed

_WRITING = threading.Lock()


class NodeDriver:
    """One driver; the same object as long as the driver is known. Its properties are the latest answers."""

    def __init__(self, registration: Registration, shared: SharedSocket) -> None:
        self.registration = registration
        self.shared = shared
        # The identity of its registration socket's file; None if it has not registered since the agent started.
        self.file: FileId = None
        self.gone_at_s: float | None = None  # the monotonic time at which its registration socket vanished, or None

    @property
    def driver(self) -> Driver:
        return self.shared.driver

    @property
    def name(self) -> str:
        return self.registration.name

    @property
    def capabilities(self) -> frozenset[int]:
        """Numbers of NodeServiceCapability.RPC."""
        return self.registration.info.capabilities

    @property
    def registered(self) -> bool:
        """Whether it registered since the agent started and has not left, or an operator named it."""
        return self.gone_at_s is None and (self.file is not None or not self.registration.socket)

    async def call(
        self, method: str, request: bytes, *, timeout_s: float, may_begin: Callable[[], bool] | None = None
    ) -> tuple[Status, bytes | None]:
        """Call the driver, if `may_begin` allows it when the request is about to leave. Raises CallError."""
        if self.gone_at_s is not None and file_id(self.registration.endpoint) is None:
            raise driver_missing(self.name, self.driver.node)
        return await self.driver.unary(method, request, timeout_s=timeout_s, to=self.name, may_begin=may_begin)


@dataclass(frozen=True, slots=True)
class KnownDrivers:
    """The content of the file."""

    drivers: tuple[Registration, ...] = ()
    # By driver name: the last socket of its node plugin, also of drivers that are forgotten.
    node_plugins: Mapping[str, str] = field(default_factory=dict)
    # The drivers that had a topology of their own when the agent last knew all of their sockets.
    with_topology: frozenset[str] = frozenset()


def read_drivers(path: Path) -> KnownDrivers:
    """Read the stored state; empty without a usable file. Raises SettingsError if a newer agent wrote it."""
    try:
        return _from_json(read_state(path, "edge agent"))
    except FileNotFoundError:
        return KnownDrivers()
    except OSError as error:
        log.warning("%s cannot be read (%s): drivers are known once they register", path, error.strerror)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        why = str(error) if type(error) is ValueError else type(error).__name__
        aside = path.with_name(f"{path.stem}-{int(time.time())}.corrupt")
        with contextlib.suppress(OSError):
            path.replace(aside)
        log.warning("%s cannot be used (%s) and is now %s: drivers are known once they register", path, why, aside)
    return KnownDrivers()


def write_drivers(path: Path, known: KnownDrivers) -> None:
    """Replace the stored state. Blocks. Waits for a write that an earlier caller left running in its thread."""
    body = {
        "drivers": [_driver_to_json(found) for found in known.drivers],
        "nodePlugins": dict(known.node_plugins),
        "withTopology": sorted(known.with_topology),
    }
    with _WRITING:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_state(path, body, mode=0o600)


class DriversStore:
    """Holds the known drivers."""

    def __init__(
        self,
        path: Path,
        sockets: DriverSockets,
        clock: Callable[[], float],
        labels: Callable[[], Mapping[str, str]],  # the labels of the Node object
    ) -> None:
        """Load the file. `sockets` has the sockets that an operator named; such drivers elsewhere are forgotten."""
        self._sockets = sockets
        self._clock = clock
        self._labels = labels
        self._known: dict[str, NodeDriver] = {}
        self._periods: dict[str, float] = {}
        self._registering: dict[str, str] = {}  # by driver name, the socket that registers it at this moment
        self.path = path
        self._storing = asyncio.Lock()
        self._stored = read_drivers(path)
        self.node_plugins = dict(self._stored.node_plugins)
        self.with_topology = set(self._stored.with_topology)
        for found in self._stored.drivers:
            if not fits(found.endpoint):
                continue
            shared = sockets.shared(Path(found.endpoint))
            if shared.driver.named:
                self.install(replace(found, socket="", version=OPERATORS, gone=False), shared)
            elif found.socket:
                self.install(found, shared).gone_at_s = clock() if found.gone else None
        sockets.tidy()

    def __iter__(self) -> Iterator[NodeDriver]:
        return iter(list(self._known.values()))

    def find(self, name: str) -> NodeDriver | None:
        return self._known.get(name)

    def has_topology(self, name: str) -> bool:
        return has_topology(self._sockets.drivers, name, self.with_topology)

    @contextlib.contextmanager
    def registering(self, offer: PluginOffer) -> Iterator[None]:
        if (other := self._registering.get(offer.name)) is not None:
            raise ValueError(f"{other} is just registering a driver {offer.name}")
        self._registering[offer.name] = offer.socket
        try:
            yield
        finally:
            del self._registering[offer.name]

    def check_labels(self, name: str, info: NodeInfo) -> None:
        """Raise ValueError if a driver's topology contradicts the Node object or another driver."""
        check_labels(info.topology, self._labels(), whose="its Node object")
        for known in self:
            if known.name != name:
                check_labels(info.topology, known.registration.info.topology, whose=f"driver {known.name}")

    def install(self, registration: Registration, shared: SharedSocket) -> NodeDriver:
        name = registration.name
        known = self._known.setdefault(name, NodeDriver(registration, shared))
        known.shared.names.discard(name)
        shared.names.add(name)
        known.registration = registration
        known.shared = shared
        shared.driver.ask_every_s = self._period(name)
        known.file = None
        known.gone_at_s = None
        return known

    def forget(self, name: str) -> None:
        self._known.pop(name).shared.names.discard(name)

    def leave(self, socket: str) -> bool:
        left = [known for known in self if known.registration.socket == socket and known.gone_at_s is None]
        for known in left:
            known.file = None
            if known.driver.named:
                known.registration = replace(known.registration, socket="", version=OPERATORS)
            else:
                known.gone_at_s = self._clock()
                known.registration = replace(known.registration, gone=True)
            log.info("driver %s is no longer registered: its socket %s is gone", known.name, socket)
        return bool(left)

    def expire(self) -> bool:
        before = self._clock() - GRACE_S
        gone = [known for known in self if known.gone_at_s is not None and known.gone_at_s <= before]
        for known in gone:
            log.info("driver %s left more than %g s ago and is forgotten", known.name, GRACE_S)
            self.forget(known.name)
        return self._sockets.forget(before) or bool(gone)

    def ask_every(self, name: str, seconds: float | None) -> None:
        if seconds is None:
            self._periods.pop(name, None)
        else:
            self._periods[name] = seconds
        if (known := self._known.get(name)) is not None:
            known.driver.ask_every_s = self._period(name)

    def _period(self, name: str) -> float:
        return min(self._periods.get(name, ASK_AGAIN_S), ASK_AGAIN_S)

    # ---- its life ----------------------------------------------------------------------------------------------------

    def idle_s(self) -> float | None:
        since = [known.gone_at_s for known in self]
        since += self._sockets.lost_at()
        waits = [max(at_s + GRACE_S - self._clock(), 0.0) for at_s in since if at_s is not None]
        if self._to_keep() != self._stored:
            waits.append(_STORE_AGAIN_S)
        return min(waits, default=None)

    async def write(self) -> None:
        """Write the file if it differs from memory. A full disk keeps no driver from registering."""
        async with self._storing:
            wanted = self._to_keep()
            if wanted == self._stored:
                return
            try:
                await asyncio.to_thread(write_drivers, self.path, wanted)
            except OSError as error:
                log.warning("%s cannot be written: %s; a restart would not know what changed", self.path, error)
                return
            self._stored = wanted

    def _to_keep(self) -> KnownDrivers:
        drivers = tuple(self._known[name].registration for name in sorted(self._known))
        return KnownDrivers(drivers, dict(self.node_plugins), frozenset(self.with_topology))


def _driver_to_json(found: Registration) -> dict[str, Any]:
    return {
        "name": found.name,
        "endpoint": found.endpoint,
        "socket": found.socket,
        "version": list(found.version),
        "nodeID": found.info.node_id,
        "maxVolumes": found.info.max_volumes,
        "topology": dict(found.info.topology),
        "capabilities": sorted(found.info.capabilities),
        "gone": found.gone,
    }


def _from_json(body: dict[str, Any]) -> KnownDrivers:
    drivers = tuple(_driver_from_json(item) for item in body["drivers"])
    node_plugins = {_checked(name, str): _checked(socket, str) for name, socket in body["nodePlugins"].items()}
    return KnownDrivers(
        drivers, node_plugins, frozenset(_checked(name, str) for name in _checked(body["withTopology"], list))
    )


def _driver_from_json(item: dict[str, Any]) -> Registration:
    info = NodeInfo(
        node_id=_checked(item["nodeID"], str),
        max_volumes=_checked(item["maxVolumes"], int),
        topology={_checked(key, str): _checked(value, str) for key, value in item["topology"].items()},
        capabilities=frozenset(_checked(number, int) for number in item["capabilities"]),
    )
    return Registration(
        name=_checked(item["name"], str),
        endpoint=_checked(item["endpoint"], str),
        socket=_checked(item["socket"], str),
        version=tuple(_checked(part, int) for part in item["version"]),
        info=info,
        gone=_checked(item["gone"], bool),
    )


def _checked(value: object, kind: type[T]) -> T:
    if type(value) is not kind:
        raise TypeError(value)
    return value
