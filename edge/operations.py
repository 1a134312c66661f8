"""Operations: calls that change something at the vendor. Each runs once, however many callers ask for it.

Rules:

* An operation is not cancelled when its caller leaves: CSI has no cancel, and the sidecar's retry needs the result
  (docs/csi-contract.md#a-timeout-is-not-a-cancel).
* A call with the key and the arguments of a running operation joins it; the same key with other arguments is ABORTED
  (docs/csi-contract.md#when-two-calls-are-one-operation).
* A create's success that no caller has acknowledged is kept for the retry. It is kept until it was delivered, until
  another operation touches the created object, or until it is too old. No other result is kept: the vendor handles the
  retry, and knows better what happened meanwhile.
* Near the limit of operations, a driver with many of them leaves the last places to the other drivers of the node.
* An operation ends after `limit_s`: a hanging driver must not block a name for ever. One that needs the controller
  lease also ends with it (`edge.controller_lease`).
* An operation that needs the lease does not begin beside one on the same object that its answer would settle: the hub
  takes a final answer as the end of both, and another node may then change the object (`_settles`).
* Nothing here waits: each caller is told the outcome, at once. An ordinary call costs no task and no timer.

The table `_RULES` gives the key of each method. A method outside it is no operation, but a plain call.
"""

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError, Message

from common.csi.methods import METHODS
from common.errors import CallError, LeaseOver, OperationBusy, OperationConflict, OperationLimit, Overloaded
from common.limits import has_room
from common.redact import digest
from edge.controller_lease import ControllerLease
from edge.driver_call import Cancellable, Outcome, Result
from edge.time_limit import TimeLimit

log = logging.getLogger("csi_bridge.edge.operations")

MOST_KEPT = 1_000
"""Successes kept for a retry: four losses of the link by a provisioner at full speed (265 calls)."""

MOST_KEPT_BYTES = 16 * 1_048_576
"""The same limit in bytes: a CreateVolume answer has 200 bytes, but a driver may send 4 MiB."""

_KEPT_S = 900.0
"""A success is kept as long as the sidecars' resync of 15 minutes: later nobody asks for it."""


@dataclass(frozen=True, slots=True)
class _Rule:
    """The fields that make two calls of a method the same operation.

    Attributes:
        key: the request's idempotency key, as dotted paths of fields.
        about: the field of the key that names the object which the operation changes; empty for a create.
        makes: the response's field that names the created object; empty if there is none. Only creates are kept.
    """

    key: tuple[str, ...]
    about: str = ""
    makes: str = ""


_CONTROLLER = "/csi.v1.Controller/"
_GROUP = "/csi.v1.GroupController/"
_NODE = "/csi.v1.Node/"

_DELETES = frozenset(
    {_CONTROLLER + "DeleteVolume", _CONTROLLER + "DeleteSnapshot", _GROUP + "DeleteVolumeGroupSnapshot"}
)

_OF_A_NODE = frozenset({_CONTROLLER + "ControllerPublishVolume", _CONTROLLER + "ControllerUnpublishVolume"})

_RULES: dict[str, _Rule] = {
    _CONTROLLER + "CreateVolume": _Rule(("name",), makes="volume.volume_id"),
    _CONTROLLER + "DeleteVolume": _Rule(("volume_id",), about="volume_id"),
    _CONTROLLER + "ControllerPublishVolume": _Rule(("volume_id", "node_id"), about="volume_id"),
    _CONTROLLER + "ControllerUnpublishVolume": _Rule(("volume_id", "node_id"), about="volume_id"),
    _CONTROLLER + "ControllerExpandVolume": _Rule(("volume_id", "capacity_range.required_bytes"), about="volume_id"),
    _CONTROLLER + "ControllerModifyVolume": _Rule(("volume_id", "mutable_parameters"), about="volume_id"),
    _CONTROLLER + "CreateSnapshot": _Rule(("name",), makes="snapshot.snapshot_id"),
    _CONTROLLER + "DeleteSnapshot": _Rule(("snapshot_id",), about="snapshot_id"),
    _GROUP + "CreateVolumeGroupSnapshot": _Rule(("name",), makes="group_snapshot.group_snapshot_id"),
    _GROUP + "DeleteVolumeGroupSnapshot": _Rule(("group_snapshot_id",), about="group_snapshot_id"),
    _NODE + "NodeStageVolume": _Rule(("volume_id", "staging_target_path"), about="volume_id"),
    _NODE + "NodeUnstageVolume": _Rule(("volume_id", "staging_target_path"), about="volume_id"),
    _NODE + "NodePublishVolume": _Rule(("volume_id", "target_path"), about="volume_id"),
    _NODE + "NodeUnpublishVolume": _Rule(("volume_id", "target_path"), about="volume_id"),
    _NODE + "NodeExpandVolume": _Rule(("volume_id", "volume_path"), about="volume_id"),
}
"""The methods of docs/csi-contract.md#when-two-calls-are-one-operation, and Node calls that an operator can make by
hand. None of them may be cut off while it runs.
"""


@dataclass(slots=True)
class Operation:
    """The identity of an operation.

    Attributes:
        key: driver, method and idempotency key: two calls with one key are one operation.
        arguments: a hash of the whole request without its secrets.
        about: the id of the object that it changes, or empty.
    """

    key: tuple[str, ...]
    arguments: bytes
    about: str

    def __str__(self) -> str:
        """Return a text such as `CreateVolume pvc-1`, for messages."""
        _, method, *key = self.key
        return " ".join([method.rpartition("/")[2], *(part for part in key if part)])


Told = Callable[[Outcome], None]
"""Hears the outcome of an operation, once. It handles its own faults."""

Start = Callable[[Told], Cancellable]
"""Starts an operation's call to the driver; the call's end is told, maybe before this returns."""


class _Running:
    """A running operation. It is the `Told` of its call to the driver."""

    __slots__ = ("_operations", "began", "call", "callers", "lease", "operation")

    def __init__(self, operations: "Operations", operation: Operation, began: int, told: Told) -> None:
        self.operation = operation
        self.began = began
        self.call: Cancellable | None = None
        self.callers = [told]
        self.lease: ControllerLease | None = None
        self._operations = operations

    def __call__(self, outcome: Outcome) -> None:
        self._operations.ended(self, outcome)

    def put_under(self, lease: ControllerLease) -> None:
        """Let it end with the lease. It may be under it already."""
        self.lease = lease
        lease.begin(self)

    def expire(self) -> None:
        limit_s = self._operations.limit_s
        self._stop(OperationLimit(self.operation.key[0], self._operations.node, limit_s))

    def lose(self) -> None:
        self._stop(LeaseOver(self.operation.key[0], self._operations.node))

    def _stop(self, error: CallError) -> None:
        if self.call is not None:
            self.call.cancel()
        self._operations.ended(self, error)


@dataclass(slots=True)
class _Kept:
    operation: Operation
    result: Result
    made: str
    until: float


class Operations:
    """The running operations and kept results of one agent, in memory.

    Attributes:
        limit: the longest time of one operation, and of any other call to a driver.
        node: this node's name, for messages.
    """

    def __init__(
        self,
        limit_s: float,
        node: str,
        *,
        most: int = 1_024,
        drivers: Callable[[], int] = lambda: 1,
    ) -> None:
        """At most `most` operations run at once, each for at most `limit_s`. `drivers` counts the node's drivers."""
        self.limit = TimeLimit(limit_s)
        self.node = node
        self._most = most
        self._drivers = drivers
        self._running: OrderedDict[tuple[str, ...], _Running] = OrderedDict()  # in the order in which they began
        self._own: dict[str, int] = {}  # by driver: how many run
        self._idle: asyncio.Future[None] | None = None
        self._kept: OrderedDict[tuple[str, ...], _Kept] = OrderedDict()
        self._kept_bytes = 0
        self._steps = 0
        self._touched: OrderedDict[str, int] = OrderedDict()  # by object: step of the last begin or end on it, in order

    @property
    def limit_s(self) -> float:
        """The longest time of one operation."""
        return self.limit.limit_s

    @property
    def under_way(self) -> list[str]:
        """The running operations in words, for the status."""
        return [str(running.operation) for running in self._running.values()]

    def perform(self, operation: Operation, start: Start, told: Told, *, lease: ControllerLease | None = None) -> bool:
        """Tell a caller the result of an operation: kept, joined, or by starting it.

        Args:
            operation: the operation.
            start: starts the call to the driver, if the operation has to begin. What it raises is raised here.
            told: hears the vendor's `Result`, or the error: of the driver's call, or `OperationLimit`. It hears a kept
                result, or the end of a call that ends at once, before this returns.
            lease: the lease that the operation needs, if it needs one.

        Returns:
            Whether the caller joined an operation of another caller, and may `leave` it.

        Raises:
            OperationConflict: it runs with other arguments.
            OperationBusy: it needs a lease, and another one that it settles runs; nothing was sent.
            Overloaded: too many others are running, of all drivers or of this one; nothing was sent.
        """
        running = self._running.get(operation.key)
        if running is not None:
            if running.operation.arguments != operation.arguments:
                raise OperationConflict(operation.key[0], self.node, str(operation))
            log.debug("a retry joins %s", operation)
            running.callers.append(told)
            if lease is not None:
                running.put_under(lease)
            return True
        kept = self._find_kept(operation)
        if kept is not None:
            log.debug("a retry gets the kept result of %s", operation)
            told(kept)
            return False
        if lease is not None:
            self._check_settled(operation)
        self._check_room(operation.key[0])
        self._begin(operation, start, told, lease)
        return False

    def leave(self, operation: Operation, told: Told) -> None:
        """Tell a caller that joined nothing more. The operation goes on."""
        running = self._running.get(operation.key)
        if running is not None and told in running.callers:
            running.callers.remove(told)

    def delivered(self, operation: Operation, result: Result) -> None:
        """Drop a kept result that has reached a caller. A later result of the same key stays."""
        kept = self._kept.get(operation.key)
        if kept is not None and kept.result.body is result.body:
            self._forget(operation.key)

    def forget_results(self, driver: str) -> None:
        """Drop the kept results of a driver: another node may have changed its objects meanwhile."""
        for key in [key for key in self._kept if key[0] == driver]:
            self._forget(key)

    def ended(self, running: _Running, outcome: Outcome) -> None:
        """Take an operation out of the table, and tell its callers the outcome (for `_Running`)."""
        self._remove(running)
        for told in running.callers:
            told(outcome)
        if isinstance(outcome, Result) and outcome.status.ok:
            self._keep(running, outcome)
        else:
            self._touch(running.operation.about)  # also after an error: the object may have changed
        oldest = next(iter(self._running.values())).began if self._running else self._steps
        while self._touched and next(iter(self._touched.values())) <= oldest:
            self._touched.popitem(last=False)

    async def drain(self) -> None:
        """Return when no operation runs."""
        while self._running:
            self._idle = asyncio.get_running_loop().create_future()
            await self._idle

    def _check_settled(self, operation: Operation) -> None:
        if not operation.about:
            return
        for other in self._running.values():
            if _settles(operation, other.operation):
                raise OperationBusy(operation.key[0], self.node, str(operation), str(other.operation))

    def _check_room(self, driver: str) -> None:
        own, together = self._own.get(driver, 0), len(self._running)
        if together >= self._most:
            raise Overloaded(f"agent of edge node {self.node}", self._most, "--max-operations")
        if not has_room(own, together, self._most, sharers=self._drivers()):
            raise Overloaded(f"driver {driver} on edge node {self.node}", own, "--max-operations")

    def _begin(self, operation: Operation, start: Start, told: Told, lease: ControllerLease | None) -> None:
        running = self._running[operation.key] = _Running(self, operation, self._steps, told)
        driver = operation.key[0]
        self._own[driver] = self._own.get(driver, 0) + 1
        self.limit.begin(running)
        if lease is not None:
            running.put_under(lease)
        self._touch(operation.about)
        try:
            call = start(running)
            if self._running.get(operation.key) is running:
                running.call = call
        except Exception:  # no call was started, so nobody would ever end it
            self._remove(running)
            raise

    def _remove(self, running: _Running) -> None:
        driver = running.operation.key[0]
        running.call = None  # the two would keep each other, with request and answer
        del self._running[running.operation.key]
        self._own[driver] -= 1
        if not self._own[driver]:
            del self._own[driver]
        self.limit.end(running)
        if running.lease is not None:
            running.lease.end(running)
        if not self._running and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    def _touch(self, about: str) -> None:
        """Drop kept results about an object, because an operation on it begins or ends."""
        self._steps += 1
        if about:
            self._touched[about] = self._steps
            self._touched.move_to_end(about)
            for key in [key for key, kept in self._kept.items() if kept.made == about]:
                self._forget(key)

    def _keep(self, running: _Running, result: Result) -> None:
        """Keep a create's success, unless another operation touched the created object meanwhile."""
        operation = running.operation
        made = _made(operation.key[1], result.message)
        own = running.began + 1  # the step at which it began
        touched = self._touched.get(made, 0)  # an operation on the object that still runs has left its step here
        doubtful = touched > own or (touched > 0 and any(it.operation.about == made for it in self._running.values()))
        self._touch(operation.about or made)
        if doubtful or not made:
            return
        now = asyncio.get_running_loop().time()
        if operation.key in self._kept:  # so that it moves to the end
            self._forget(operation.key)
        self._kept[operation.key] = _Kept(operation, Result(result.status, result.body), made, now + _KEPT_S)
        self._kept_bytes += len(result.body or b"")
        while self._kept and self._is_too_much(now):
            self._forget(next(iter(self._kept)))

    def _is_too_much(self, now: float) -> bool:
        oldest = next(iter(self._kept.values()))
        return len(self._kept) > MOST_KEPT or self._kept_bytes > MOST_KEPT_BYTES or oldest.until < now

    def _forget(self, key: tuple[str, ...]) -> None:
        self._kept_bytes -= len(self._kept.pop(key).result.body or b"")

    def _find_kept(self, operation: Operation) -> Result | None:
        kept = self._kept.get(operation.key)
        if kept is None or kept.operation.arguments != operation.arguments:
            return None
        return kept.result if kept.until >= asyncio.get_running_loop().time() else None


def _settles(operation: Operation, other: Operation) -> bool:
    """Whether the hub takes a final answer to an operation as the end of another one, too.

    A deletion settles all operations on its object, and a publication to a node and its end settle each other
    (`settled_with` of `cloud.placement.requests`). Any other one settles those of its method, whatever their arguments.
    """
    (driver, method, *key), (its_driver, its_method, *its_key) = operation.key, other.key
    if operation.about != other.about or driver != its_driver:
        return False
    if method in _OF_A_NODE:
        return its_method in _OF_A_NODE and key == its_key
    return method in _DELETES or method == its_method


def identify(driver: str, method: str, request: bytes) -> Operation | None:
    """Return the operation that a call belongs to; None for a plain call.

    A request that does not parse, or whose key is empty, is a plain call: the vendor refuses it.
    """
    rule = _RULES.get(method)
    if rule is None:
        return None
    try:
        message = METHODS[method].request.FromString(request)
    except DecodeError:
        return None
    values = [_value(message, path) for path in rule.key]
    if not values[0]:
        return None
    about = _value(message, rule.about) if rule.about else ""
    return Operation((driver, method, *values), digest(message), about)


def _made(method: str, answer: Message | None) -> str:
    rule = _RULES[method]
    return _value(answer, rule.makes) if rule.makes and answer is not None else ""


def _value(message: Message, path: str) -> str:
    value: Any = message
    for name in path.split("."):
        value = getattr(value, name)
    if hasattr(value, "items"):  # parameters: a hash, because the key is logged
        return hashlib.sha256(repr(sorted(value.items())).encode()).hexdigest()[:12] if value else ""
    return str(value)
