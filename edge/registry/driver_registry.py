"""The driver registry: the drivers of this node by name, those that an operator named and those that registered.

Rules:

* A registration succeeds by what this node alone can see (RULE C1): the driver answers NodeGetInfo and
  NodeGetCapabilities, and nothing that is known here contradicts it. Both are asked at every registration and kept on
  disk (RULE C3).
* One name, one driver. A second socket that registers a name takes it over if the first one's registration socket is
  gone or another file, if nothing answers there, or if it offers a higher version (RULE C2); else it is refused.
* A socket that an operator named has the name, too, unless the driver has a node plugin elsewhere. That is the socket
  that registered last, or, beside a kubelet, that was found last and serves Node. What the controller mounted might be
  seen in its container only, so pods and a kubelet rather wait for a node plugin that is away.
* A driver that left is known for a while longer, for its restart (RULE C4), and calls to it go on while its socket is
  there. One that was known before the agent started stays known until it registers, or is seen to leave.
* A topology of its own that a driver was known to have stays one until all sockets that an operator named were heard
  again, in all that is told: to Kubernetes, to a kubelet and to the hub.
* Where node plugins are, and who has a topology, is known for good, and after a restart.
* Whatever one driver does, waiting for it stops no other one.
"""

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from common.errors import CallError
from common.parsers import LONGEST_SOCKET_PATH_BYTES
from common.reports import (
    GET_PLUGIN_INFO,
    NODE_GET_CAPABILITIES,
    NODE_GET_INFO,
    DriverReport,
)
from common.sockets import file_id
from common.status import Status, code_name
from common.tasks import Tasks, supervised
from common.topology import NODE_SEGMENT, segment_of, told_node_info, why_no_segment
from edge.drivers import ASK_AGAIN_S, Driver
from edge.registry.driver_file import DriverFile, Kept
from edge.registry.driver_services import (
    NODE,
    ambiguities,
    awaits_node_plugin,
    has_topology,
    lacks_topology,
    services,
)
from edge.registry.driver_sockets import DriverSockets, Seat, fits
from edge.registry.node_driver import NodeDriver
from edge.registry.registration import (
    NodeInfo,
    Offer,
    Registration,
    RegistrationRefused,
    Version,
    check_labels,
    check_name,
    csi_node_drivers,
    highest_version,
    is_newer,
    node_annotations,
    node_labels,
    read_node_info,
    shorten,
)

log = logging.getLogger("csi_bridge.edge.registrar")

GRACE_S = 120.0
"""How long a driver that left is still known: longer than a driver's pod takes to be replaced."""

_FILE, _OBSERVED_FILE = "drivers.json", "observed.json"
"""What is kept of drivers that register here, and of those that register with a kubelet."""

_ASK_LIMIT_S = 120.0
"""For NodeGetInfo and NodeGetCapabilities at a registration: the kubelet's csiTimeout."""

_ANSWERS_LIMIT_S = 2.0
"""Within which the driver that has a name must answer to keep it."""

_STORE_AGAIN_S = 60.0
"""After a write that the disk did not take."""

_OPERATORS: Version = (1,)
"""The version of a driver that an operator named: none is lower."""


class DriverRegistry:
    """The drivers of this node. `run()` it as a task, and `close()` it at the end."""

    def __init__(
        self,
        node: str,
        *,
        state_dir: Path,
        max_message_bytes: int,
        sockets: Sequence[Path] = (),
        changed: Callable[[], None] = lambda: None,
        labels: Callable[[], Mapping[str, str]] = dict,
        own: bool = True,
        grace_s: float = GRACE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """A registry that knows what its last life knew. Reads a small file.

        Args:
            node: this node's name.
            state_dir: where what it knows is kept.
            max_message_bytes: the largest answer taken of a driver.
            sockets: the drivers' sockets that an operator named.
            changed: called when a driver says something new of itself, and when `drivers` changed.
            labels: the Node's labels, as far as they are known here.
            own: whether drivers register here; else a kubelet takes registrations, and there are no facts to tell.
            grace_s: how long a driver that left is still known.
            clock: seconds that only grow.
        """
        self._node = node
        self._changed = changed
        self._labels = labels
        self._own = own
        self._grace_s = grace_s
        self._clock = clock
        self._file = DriverFile(state_dir / (_FILE if own else _OBSERVED_FILE))
        self._sockets = DriverSockets(node, max_message_bytes=max_message_bytes, heard=self._heard)
        self._known: dict[str, NodeDriver] = {}
        self._node_plugins: dict[str, str] = {}
        self._with_topology: set[str] = set()
        self._registering: dict[str, str] = {}
        self._periods: dict[str, float] = {}
        self._subscribers: list[Callable[[], None]] = []
        self._news = asyncio.Event()
        self._stored = Kept()
        self._storing = asyncio.Lock()
        self._tasks: Tasks | None = None
        for socket in sockets:
            self._sockets.seat(socket).driver.named = True
        self._remember()

    # ---- what there is -----------------------------------------------------------------------------------------------

    @property
    def drivers(self) -> list[Driver]:
        """All that may be called, those that an operator named first."""
        return self._sockets.drivers

    def find(self, name: str) -> NodeDriver | None:
        """The driver of a name, also while it is away; None if no driver of it has said what mounting needs."""
        return self._known.get(name)

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Have a callback called at each change of what `find` and the facts say."""
        self._subscribers.append(callback)

    def ask_every(self, name: str, seconds: float | None) -> None:
        """Ask the driver of a name so often what it says of itself; None: as often as any other."""
        if seconds is None:
            self._periods.pop(name, None)
        else:
            self._periods[name] = seconds
        if (known := self._known.get(name)) is not None:
            known.driver.ask_every_s = self._period(name)

    def _period(self, name: str) -> float:
        return min(self._periods.get(name, ASK_AGAIN_S), ASK_AGAIN_S)

    def csi_node(self) -> list[dict[str, Any]]:
        """The CSINode's `spec.drivers`, sorted by name."""
        return csi_node_drivers(self._facts())

    def node_annotations(self) -> dict[str, str]:
        """The Node's annotation that holds the drivers' ids for it; empty without drivers."""
        return node_annotations(self._facts())

    def node_labels(self) -> dict[str, str]:
        """The Node's labels that are its drivers' topology. A kubelet leaves them there when a driver goes."""
        return node_labels(self._facts())

    @property
    def topology_keys(self) -> dict[str, list[str]]:
        """Each driver's topology keys, sorted."""
        return {found.name: sorted(found.info.topology) for found in self._facts()}

    @property
    def problems(self) -> list[str]:
        """What people must mend, or at least know."""
        return ambiguities(self.drivers, self._node) + self._without_segment() + self._without_node_plugin()

    def _without_segment(self) -> list[str]:
        why = why_no_segment(self._node)
        if not why:
            return []
        names = sorted({driver.name for driver in self.drivers})
        lacking = [name for name in names if lacks_topology(self.drivers, name)]
        return [f"driver {name} has no topology of its own, and {why}" for name in lacking]

    def _without_node_plugin(self) -> list[str]:
        waiting = [name for name in sorted(self._node_plugins) if awaits_node_plugin(self.drivers, name)]
        return [
            f"the node plugin of driver {name}, which was at {self._node_plugins[name]}, is away, and nobody else "
            f"mounts its volumes; if it is gone for good, stop the agent and remove {self._file.path}"
            for name in waiting
        ]

    def _facts(self) -> list[Registration]:
        return [known.registration for known in self._known.values()]

    def is_registered(self, name: str, socket: str) -> bool:
        """Whether this registration socket holds the name."""
        known = self._known.get(name)
        return known is not None and known.registered and known.registration.socket == socket

    # ---- registrations -----------------------------------------------------------------------------------------------

    async def register(self, offer: Offer) -> None:
        """Register a driver. When this returns it is on disk, as far as the disk takes it.

        Raises:
            RegistrationRefused: why not.
        """
        try:
            check_name(offer.name)
            version = highest_version(offer.versions)
            endpoint = _endpoint(offer)
            with self._alone(offer), self._sockets.asking(endpoint) as seat:
                await self._see_that_name_is_free(offer, seat, version)
                info = await self._ask(seat.driver, offer.name)
                self._check_labels(offer.name, info)
                registration = Registration(offer.name, str(endpoint), offer.socket, version, info)
                self._install(registration, seat).file = offer.file
                self._node_plugins[offer.name] = registration.endpoint
                self._mark()
        except (ValueError, CallError) as error:
            raise RegistrationRefused(shorten(str(error))) from error
        self._tell()
        await self._store()

    def deregister(self, socket: str) -> None:
        """A registration socket is gone, or another file. What it registered is known for a while yet."""
        for known in list(self._known.values()):
            if known.registration.socket != socket or known.gone_at_s is not None:
                continue
            known.file = None
            if known.driver.named:
                known.registration = replace(known.registration, socket="", version=_OPERATORS)
            else:
                known.gone_at_s = self._clock()
                known.registration = replace(known.registration, gone=True)
            log.info("driver %s is no more registered: its socket %s is gone", known.name, socket)
            self._tell()

    @contextlib.contextmanager
    def _alone(self, offer: Offer) -> Iterator[None]:
        """Keep others from registering the same name meanwhile."""
        if (other := self._registering.get(offer.name)) is not None:
            raise ValueError(f"{other} is just registering a driver {offer.name}")
        self._registering[offer.name] = offer.socket
        try:
            yield
        finally:
            del self._registering[offer.name]

    async def _see_that_name_is_free(self, offer: Offer, seat: Seat, version: Version) -> None:
        """See that a driver of a name may register (RULE C2).

        Raises:
            ValueError: another one has the name.
        """
        name = offer.name
        known = self._known.get(name)
        if known is None or known.file is None or known.registration.socket == offer.socket:
            return
        holder = known.registration
        if is_newer(version, holder.version) or file_id(holder.socket) != known.file:
            return
        same = known.driver is seat.driver
        if await (_listens(holder.socket) if same else _answers(known.driver, name)):
            raise ValueError(
                f"a driver {name} is registered already, by {holder.socket} for {holder.endpoint}, and it answers there"
            )

    async def _ask(self, driver: Driver, name: str) -> NodeInfo:
        try:
            async with asyncio.timeout(_ASK_LIMIT_S):
                capabilities = await driver.unary(NODE_GET_CAPABILITIES, b"", timeout_s=_ASK_LIMIT_S, to=name)
                announced = functools.partial(self._has_topology, name)  # last: a controller may be heard meanwhile
                info = await driver.node_info(b"", timeout_s=_ASK_LIMIT_S, to=name, announced=announced)
        except TimeoutError:
            raise ValueError(f"it did not answer NodeGetInfo and NodeGetCapabilities in {_ASK_LIMIT_S:g} s") from None
        return read_node_info(_answer(NODE_GET_INFO, *info), _answer(NODE_GET_CAPABILITIES, *capabilities))

    def _check_labels(self, name: str, info: NodeInfo) -> None:
        check_labels(info.topology, self._labels(), whose="its Node object")
        for known in self._known.values():
            if known.name != name:
                check_labels(info.topology, known.topology, whose=f"driver {known.name}")

    def _install(self, registration: Registration, seat: Seat) -> NodeDriver:
        name = registration.name
        known = self._known.setdefault(name, NodeDriver(registration, seat.driver, self._node))
        if (before := self._sockets.seat_of(known.driver)) is not None:
            before.names.discard(name)
        seat.names.add(name)
        known.registration, known.driver = registration, seat.driver
        seat.driver.ask_every_s = self._period(name)
        known.file, known.gone_at_s = None, None
        return known

    def _forget(self, name: str) -> None:
        known = self._known.pop(name)
        if (seat := self._sockets.seat_of(known.driver)) is not None:
            seat.names.discard(name)

    # ---- what is found in passing ------------------------------------------------------------------------------------

    def found(self, finder: str, endpoint: str) -> None:
        """A driver's socket was seen that registers elsewhere: it can be called, and nothing is told of it.

        Args:
            finder: who saw it; `lost` says it again.
            endpoint: the driver's socket.
        """
        if not fits(endpoint):
            log.warning("%s tells of a driver at %r, which cannot be a socket's path", finder, shorten(endpoint))
        elif self._sockets.found(finder, Path(endpoint)):
            self._tell()

    def lost(self, finder: str) -> None:
        """What `found` told of is gone. Like a driver that registered, it can be called for a while longer."""
        if self._sockets.lost(finder, self._clock()):
            self._tell()

    def _heard(self, seat: Seat) -> None:
        """A driver answers something else of itself than before."""
        self._replace_deserted(seat)
        self._note(seat)
        self._mark()
        self._changed()
        self._learn(seat)
        for name in list(self._known):
            self._judge_topology(name)

    def _note(self, seat: Seat) -> None:
        """What is known for good."""
        driver = seat.driver
        if not self._own and not driver.named and NODE in services(driver):
            self._node_plugins[driver.name] = str(driver.socket)
        for name in {it.report.driver for it in self.drivers if it.report is not None}:
            (self._with_topology.add if self._has_topology(name) else self._with_topology.discard)(name)
        self._news.set()

    def _mark(self) -> None:
        """Have each driver know what is known for good."""
        for seat in self._sockets:
            driver = seat.driver
            node_plugin = self._node_plugins.get(driver.name)
            elsewhere = node_plugin is not None and not self._sockets.is_at(Path(node_plugin), seat)
            driver.has_node_plugin = driver.named and elsewhere
            driver.had_topology = driver.name in self._with_topology

    def _replace_deserted(self, seat: Seat) -> None:
        """A vendor's upgrade may have moved its socket, and a killed driver leaves the file of its own.

        One that an operator named stands in for no other one, which may be its node plugin.
        """
        if seat.driver.named:
            return
        served = set(services(seat.driver))
        for other in self._sockets:
            same = other is not seat and other.driver.name == seat.driver.name
            if same and other.was_only_found and not served.isdisjoint(services(other.driver)):
                other.mark_if_deserted()

    def _learn(self, seat: Seat) -> None:
        """What a driver says of this node counts if it has registered, or if an operator named it and no other has."""
        if not self._own or (report := seat.driver.report) is None:
            return
        self._forget_former_names(seat, report.driver)
        known = self._known.get(report.driver)
        ours = known is not None and known.driver is seat.driver
        may_mount = seat.driver.named and NODE in services(seat.driver)
        if not ours and (known is not None or not may_mount):
            return
        try:
            info = _info_in(report, own_topology=self._has_topology(report.driver))
            self._check_labels(report.driver, info)
        except ValueError as error:
            log.warning("%s at %s cannot mount volumes: %s", report.driver, seat.driver.socket, error)
            return
        if known is not None:
            self._update(known, info)
        else:
            self._install(Registration(report.driver, str(seat.driver.socket), "", _OPERATORS, info), seat)
            self._tell()

    def _has_topology(self, name: str) -> bool:
        return has_topology(self.drivers, name, had=name in self._with_topology)

    def _judge_topology(self, name: str) -> None:
        """Another socket of a driver may have said that it has a topology, or that it has none any more."""
        known = self._known.get(name)
        if known is None or known.driver.report is None or why_no_segment(self._node):
            return
        topology = {key: value for key, value in known.topology.items() if key != NODE_SEGMENT}
        if not self._has_topology(name):
            topology |= segment_of(self._node)
        self._update(known, replace(known.registration.info, topology=topology))

    def _update(self, known: NodeDriver, info: NodeInfo) -> None:
        before = known.registration.info
        if info == before:
            return
        if info.node_id != before.node_id:
            log.warning("driver %s called this node %s and now %s", known.name, before.node_id, info.node_id)
        known.registration = replace(known.registration, info=info)
        self._tell()

    def _forget_former_names(self, seat: Seat, name: str) -> None:
        """The driver at a socket that an operator named has another name now."""
        for former in seat.names - {name}:
            if not self._known[former].registration.socket:
                self._forget(former)
                self._tell()

    # ---- its life ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Ask the drivers now and then, forget those that left, and keep the file. Never ends."""
        async with supervised() as tasks:
            self._tasks = tasks
            self._sockets.watch(tasks)
            try:
                while True:
                    self._news.clear()
                    self._expire()
                    await self._store()
                    await self._sockets.close_left()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(self._wait_s()):
                            await self._news.wait()
            finally:
                self._tasks = None

    async def close(self) -> None:
        """Close the connections to all drivers."""
        await self._sockets.close()

    def _remember(self) -> None:
        """Take what the last life knew. A driver that an operator names no more is forgotten."""
        self._stored = self._file.read()
        self._node_plugins = dict(self._stored.node_plugins)
        self._with_topology = set(self._stored.with_topology)
        for found in self._stored.drivers:
            if not fits(found.endpoint):
                continue
            seat = self._sockets.seat(Path(found.endpoint))
            if seat.driver.named:
                self._install(replace(found, socket="", version=_OPERATORS, gone=False), seat)
            elif found.socket:
                self._install(found, seat).gone_at_s = self._clock() if found.gone else None
        self._sockets.tidy()

    def _tell(self) -> None:
        """Something changed: tell everybody."""
        self._sockets.tidy()
        if self._tasks is not None:
            self._sockets.watch(self._tasks)
        self._news.set()
        self._changed()
        for callback in self._subscribers:
            callback()

    def _expire(self) -> None:
        """Forget the drivers whose grace is over."""
        before = self._clock() - self._grace_s
        gone = [known for known in self._known.values() if known.gone_at_s is not None and known.gone_at_s <= before]
        for known in gone:
            log.info("driver %s left more than %g s ago and is forgotten", known.name, self._grace_s)
            self._forget(known.name)
        if self._sockets.forget(before) or gone:
            self._tell()

    def _wait_s(self) -> float | None:
        """How long there is nothing to do unless something happens."""
        since = [known.gone_at_s for known in self._known.values()]
        since += self._sockets.lost_at()
        waits = [max(at_s + self._grace_s - self._clock(), 0.0) for at_s in since if at_s is not None]
        if self._to_keep() != self._stored:
            waits.append(_STORE_AGAIN_S)
        return min(waits, default=None)

    def _to_keep(self) -> Kept:
        drivers = tuple(self._known[name].registration for name in sorted(self._known))
        return Kept(drivers, dict(self._node_plugins), frozenset(self._with_topology))

    async def _store(self) -> None:
        """Put what is known on disk, if it is not there. A full disk keeps no driver from registering."""
        async with self._storing:
            wanted = self._to_keep()
            if wanted == self._stored:
                return
            try:
                await asyncio.to_thread(self._file.write, wanted)
            except OSError as error:
                log.warning("%s cannot be written: %s; a restart would not know what changed", self._file.path, error)
                return
            self._stored = wanted


def _answer(method: str, status: Status, body: bytes | None) -> bytes:
    """A driver's answer.

    Raises:
        ValueError: it is not OK.
    """
    if not status.ok:
        raise ValueError(f"it answered {_short(method)} with {code_name(status.code)}: {shorten(status.message)}")
    return body or b""


def _info_in(report: DriverReport, *, own_topology: bool) -> NodeInfo:
    """What a driver's report says of its node, as Kubernetes is to hear it.

    Raises:
        ValueError: not enough.
    """
    bodies = []
    for method in (NODE_GET_INFO, NODE_GET_CAPABILITIES):
        answer = report.answers.get(method)
        if answer is None:
            raise ValueError(f"it has not answered {_short(method)}")
        if answer.code:
            raise ValueError(f"it answered {_short(method)} with {code_name(answer.code)}")
        bodies.append(answer.body)
    info, capabilities = bodies
    return read_node_info(told_node_info(info, report.node, own_topology=own_topology), capabilities)


def _short(method: str) -> str:
    return method.rpartition("/")[2]


async def _answers(driver: Driver, name: str) -> bool:
    """Whether the driver of a name answers at all."""
    try:
        async with asyncio.timeout(_ANSWERS_LIMIT_S):
            await driver.unary(GET_PLUGIN_INFO, b"", timeout_s=_ANSWERS_LIMIT_S, to=name)
    except (CallError, TimeoutError):
        return False
    return True


async def _listens(socket: str) -> bool:
    """Whether somebody takes connections at a socket."""
    try:
        async with asyncio.timeout(_ANSWERS_LIMIT_S):
            _, writer = await asyncio.open_unix_connection(socket)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


def _endpoint(offer: Offer) -> Path:
    """Where a driver that registers listens.

    Raises:
        ValueError: nobody can listen there.
    """
    endpoint = offer.endpoint.removeprefix("unix://") or offer.socket
    if not fits(endpoint):
        raise ValueError(
            f"its endpoint {shorten(endpoint)!r} is not the absolute path of a UNIX socket of at most "
            f"{LONGEST_SOCKET_PATH_BYTES} bytes"
        )
    return Path(endpoint)
