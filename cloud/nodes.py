"""The nodes: every edge node the hub knows, connected or not, what runs there, and how to call it.

Rules:

* `call(node, call)` is the only way to a node, so that a node held by another replica can be reached the same way.
* One name, one machine: the same instance with the same or a later boot replaces its old, half-dead link; another
  instance is refused while the first one lives, and the conflict is shown.
* A node that is away stays known, with the time it left: its calls are refused with that time, not with a guess.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from cloud.store import Store, StoredNode
from common.errors import (
    CallTimeout,
    Draining,
    DriverMissing,
    HandshakeRefused,
    LinkLost,
    NodeOffline,
    NodeUnknown,
    TunnelClosed,
)
from common.link import Link
from common.messages import Hello, Kind, Reason
from common.reports import DriverReport
from common.status import Status

log = logging.getLogger("csi_bridge.hub.nodes")


@dataclass(frozen=True, slots=True)
class Call:
    """One CSI call on its way to a node.

    Attributes:
        driver: the driver's name.
        method: the gRPC path.
        request: the request's bytes.
        call_id: the same at every hop, for logs.
        timeout_s: the caller's remaining time, or None.
    """

    driver: str
    method: str
    request: bytes
    call_id: str
    timeout_s: float | None


class Reply(Protocol):
    """What comes back: messages to receive, then a status to acknowledge. `common.link.Stream` is one."""

    status: Status | None

    async def receive(self) -> bytes | None:
        """The answer's next message, or None after the last one."""

    def acknowledge(self, *, delivered: bool) -> None:
        """The answer reached the caller, or nobody took it."""

    def cancel(self) -> None:
        """Nobody waits any more."""


@dataclass(slots=True)
class _Node:
    stored: StoredNode
    link: Link | None = None
    conflict: str = ""


class Nodes:
    """Every node the hub knows."""

    def __init__(self, store: Store, *, changed: Callable[[str], None]) -> None:
        """The nodes of the store, none of them connected.

        Args:
            store: where they are kept.
            changed: called with a driver's name when a report of it changed.
        """
        self._store = store
        self._changed = changed
        self._nodes: dict[str, _Node] = {}
        self._by_driver: dict[str, set[str]] = {}
        self._connected = 0
        started = time.time()
        for stored in store.nodes():
            node = self._nodes[stored.name] = _Node(stored)
            if stored.connected:  # the hub died first; written down, so that the time stays if it dies again
                node.stored = replace(stored, connected=False, since=started)
                store.save(node.stored)
            for report in stored.reports:
                self._by_driver.setdefault(report.driver, set()).add(stored.name)

    # ---- links come and go -------------------------------------------------------------------------------------------

    def connect(self, hello: Hello, link: Link) -> None:
        """A node's agent said hello.

        Raises:
            HandshakeRefused: another machine of that name is connected, or this one's past comes back.
        """
        node = self._nodes.get(hello.name)
        if node is None:
            node = self._nodes[hello.name] = _Node(StoredNode(hello.name, "", 0, 0.0, connected=False, reports=()))
        if node.link is not None:
            self._replace(node, hello)
        node.stored = replace(node.stored, instance=hello.instance, boot=hello.boot, since=time.time(), connected=True)
        node.link = link
        node.conflict = ""
        self._connected += 1
        self._store.save(node.stored)

    def disconnect(self, name: str, link: Link) -> bool:
        """The link of a node is gone. False if a newer link has taken its place."""
        node = self._nodes.get(name)
        if node is None or node.link is not link:
            return False
        node.link = None
        self._connected -= 1
        node.stored = replace(node.stored, since=time.time(), connected=False)
        self._store.save(node.stored)
        return True

    def report(self, name: str, reports: Iterable[DriverReport]) -> None:
        """A node's agent told of its drivers. What it says of other nodes is dropped.

        A driver that it does not mention stays known: a restarted agent has not asked its drivers yet, and a call must
        not go to another node because this one's driver is away.
        """
        node = self._nodes[name]
        old = node.stored.reports
        told = {report.driver: report for report in reports if report.node == name}
        new = tuple({**{report.driver: report for report in old}, **told}.values())
        if new == old:
            return
        node.stored = replace(node.stored, reports=new)
        self._store.save(node.stored)
        for report in new:
            if report not in old:
                self._by_driver.setdefault(report.driver, set()).add(name)
                self._changed(report.driver)

    # ---- questions ---------------------------------------------------------------------------------------------------

    def with_driver(self, driver: str) -> Collection[str]:
        """The nodes that have reported a driver, connected or not."""
        return self._by_driver.get(driver, frozenset())

    def find_report(self, driver: str, name: str) -> DriverReport | None:
        """What a node has reported of a driver."""
        node = self._nodes.get(name)
        if node is None:
            return None
        return next((report for report in node.stored.reports if report.driver == driver), None)

    @property
    def connected(self) -> int:
        """How many nodes are connected."""
        return self._connected

    def describe(self) -> list[dict[str, object]]:
        """Every node, for the operator."""
        return [
            {
                "node": name,
                "connected": node.link is not None,
                "since": node.stored.since,
                "instance": node.stored.instance,
                "boot": node.stored.boot,
                "drivers": [report.driver for report in node.stored.reports],
                "streams": node.link.session.open_streams if node.link is not None else 0,
                "conflict": node.conflict,
            }
            for name, node in sorted(self._nodes.items())
        ]

    # ---- calls -------------------------------------------------------------------------------------------------------

    def call(self, name: str, call: Call) -> "NodeReply":
        """Send a call to a node.

        Raises:
            NodeUnknown: no such node has ever been here.
            NodeOffline: it is away; nothing was sent.
            Draining: its agent is shutting down; nothing was sent.
            DriverMissing: its agent has no such driver; nothing was sent.
            Overloaded: too many calls are under way there; nothing was sent.
        """
        node = self._nodes.get(name)
        if node is None:
            raise NodeUnknown(name)
        if node.link is None:
            raise NodeOffline(name, node.stored.since)
        if node.link.draining:
            raise Draining(f"agent of edge node {name}")
        if not any(report.driver == call.driver for report in node.stored.reports):
            raise DriverMissing(call.driver, name)
        return NodeReply(name, node.link, call, since=lambda: node.stored.since)

    def _replace(self, node: _Node, hello: Hello) -> None:
        old = node.link
        assert old is not None
        stored = node.stored
        if hello.instance != stored.instance:
            node.conflict = f"another machine (instance {hello.instance}) also calls itself {hello.name}"
            log.error(
                "two machines call themselves %s: %s stays, %s is refused", hello.name, stored.instance, hello.instance
            )
            raise HandshakeRefused(
                Reason.CONFLICT,
                f"another machine is connected as {hello.name} (instance {stored.instance}, this one {hello.instance})"
                f"; give each --node a name of its own",
            )
        if hello.boot < stored.boot:
            raise HandshakeRefused(Reason.STALE, f"a later start of {hello.name} is connected (boot {stored.boot})")
        node.link = None  # before its end is heard: it is no longer the node's
        self._connected -= 1
        old.goodbye(Reason.REPLACED, f"{hello.name} has connected again")


class NodeReply:
    """The answer of a connected node: a stream whose link errors name the node."""

    def __init__(self, name: str, link: Link, call: Call, *, since: Callable[[], float]) -> None:
        self._name = name
        self._since = since
        try:
            self._stream = link.open(
                Kind.CALL,
                call.request,
                subject=call.driver,
                method=call.method,
                node=name,
                call=call.call_id,
                timeout_s=call.timeout_s,
            )
        except TunnelClosed as error:
            raise NodeOffline(name, since()) from error

    @property
    def status(self) -> Status | None:
        """The node's status, after the last message."""
        return self._stream.status

    async def receive(self) -> bytes | None:
        """The answer's next message, or None after the last one.

        Raises:
            NodeOffline: the node left before anything of the call was sent.
            LinkLost: the node left with the call under way.
            CallTimeout: the caller's time is up.
        """
        try:
            return await self._stream.receive()
        except CallTimeout as error:
            raise CallTimeout(f"edge node {self._name}") from error
        except TunnelClosed as error:
            if error.sent:
                raise LinkLost(f"edge node {self._name}", error.why) from error
            raise NodeOffline(self._name, self._since()) from error

    def acknowledge(self, *, delivered: bool) -> None:
        """The answer reached the caller, or nobody took it."""
        self._stream.acknowledge(delivered=delivered)

    def cancel(self) -> None:
        """Nobody waits any more."""
        self._stream.cancel()
