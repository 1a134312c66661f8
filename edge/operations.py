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
* An operation ends after `limit_s`: a hanging driver must not block a name for ever.
* The first caller's task runs the operation, and later callers wait for it. An ordinary call costs no extra task.

The table `_RULES` gives the key of each method. A method outside it is no operation, but a plain call.
"""

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import DecodeError, Message

from common.csi.methods import METHODS
from common.errors import OperationConflict, OperationLimit, Overloaded
from common.limits import has_room
from common.redact import digest
from common.status import Status

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


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class Result:
    """The end of an operation: the vendor's status, and on success the response's bytes."""

    status: Status
    body: bytes | None = None


@dataclass(slots=True)
class _Running:
    """A running operation. `ended` exists once a second caller waits for the result."""

    operation: Operation
    began: int
    ended: asyncio.Future[Result] | None = None

    def wait(self) -> asyncio.Future[Result]:
        """Return a future of the result for one more waiter; cancelling it stops only that waiter."""
        if self.ended is None:
            self.ended = asyncio.get_running_loop().create_future()
        return asyncio.shield(self.ended)

    def tell(self, outcome: Result | BaseException) -> None:
        """Give the outcome to the waiters."""
        if self.ended is None:
            return
        if isinstance(outcome, Result):
            self.ended.set_result(outcome)
        elif isinstance(outcome, asyncio.CancelledError):
            self.ended.cancel()
        else:
            self.ended.set_exception(outcome)
            self.ended.exception()  # without a waiter asyncio would log it as never retrieved


@dataclass(slots=True)
class _Kept:
    operation: Operation
    result: Result
    made: str
    until: float


@dataclass(slots=True)
class Operations:
    """The running operations and kept results of one agent, in memory.

    Attributes:
        limit_s: the longest time of one operation.
        node: this node's name, for messages.
        most: the most operations that may run at once.
        drivers: tells how many drivers the node has.
        most_kept: the most successes that are kept for a retry.
        most_kept_bytes: the same limit in bytes.
    """

    limit_s: float
    node: str
    most: int = 1_024
    drivers: Callable[[], int] = lambda: 1
    most_kept: int = MOST_KEPT
    most_kept_bytes: int = MOST_KEPT_BYTES
    _running: dict[tuple[str, ...], _Running] = field(default_factory=dict)
    _kept: OrderedDict[tuple[str, ...], _Kept] = field(default_factory=OrderedDict)
    _kept_bytes: int = 0
    _steps: int = 0
    _touched: dict[str, int] = field(default_factory=dict)  # by object: step of the last begin or end on it

    @property
    def under_way(self) -> list[str]:
        """The running operations in words, for the status."""
        return [str(running.operation) for running in self._running.values()]

    async def perform(self, operation: Operation, run: Callable[[], Awaitable[Result]]) -> Result:
        """Return the result of an operation: kept, joined, or by running it.

        A caller that joined may be cancelled; the operation goes on. The first caller's task is the operation: once
        `run` is called, nothing that happens to that caller may cancel the task (`common.link.Stream.detach`).

        Raises:
            OperationConflict: it runs with other arguments.
            OperationLimit: it did not end in time and was cancelled.
            Overloaded: too many others are running, of all drivers or of this one; nothing was sent.
            Exception: raised by `run`, for every waiting caller.
        """
        running = self._running.get(operation.key)
        if running is not None:
            if running.operation.arguments != operation.arguments:
                raise OperationConflict(operation.key[0], self.node, str(operation))
            log.debug("a retry joins %s", operation)
            return await running.wait()
        kept = self._find_kept(operation)
        if kept is not None:
            log.debug("a retry gets the kept result of %s", operation)
            return kept
        self._check_room(operation.key[0])
        running = self._running[operation.key] = _Running(operation, self._steps)
        self._touch(operation.about)
        try:
            result = await self._limited(operation, run)
        except BaseException as error:
            self._finished(running, error)
            raise
        self._finished(running, result)
        return result

    def delivered(self, operation: Operation, result: Result) -> None:
        """Drop a kept result that has reached a caller. A later result of the same key stays."""
        kept = self._kept.get(operation.key)
        if kept is not None and kept.result is result:
            self._forget(operation.key)

    async def drain(self) -> None:
        """Return when no operation runs."""
        while self._running:
            await asyncio.gather(*(running.wait() for running in self._running.values()), return_exceptions=True)

    def _check_room(self, driver: str) -> None:
        own, together = sum(key[0] == driver for key in self._running), len(self._running)
        if together >= self.most:
            raise Overloaded(f"agent of edge node {self.node}", self.most, "--max-operations")
        if not has_room(own, together, self.most, sharers=self.drivers()):
            raise Overloaded(f"driver {driver} on edge node {self.node}", own, "--max-operations")

    async def _limited(self, operation: Operation, run: Callable[[], Awaitable[Result]]) -> Result:
        try:
            async with asyncio.timeout(self.limit_s):
                return await run()
        except TimeoutError:
            raise OperationLimit(operation.key[0], self.node, self.limit_s) from None

    def _finished(self, running: _Running, outcome: Result | BaseException) -> None:
        operation = running.operation
        del self._running[operation.key]
        running.tell(outcome)
        if isinstance(outcome, Result) and outcome.status.ok:
            self._keep(running, outcome)
        else:
            self._touch(operation.about)  # also after an error: the object may have changed
        oldest = min((other.began for other in self._running.values()), default=self._steps)
        self._touched = {about: step for about, step in self._touched.items() if step > oldest}

    def _touch(self, about: str) -> None:
        """Drop kept results about an object, because an operation on it begins or ends."""
        self._steps += 1
        if about:
            self._touched[about] = self._steps
            for key in [key for key, kept in self._kept.items() if kept.made == about]:
                self._forget(key)

    def _keep(self, running: _Running, result: Result) -> None:
        """Keep a create's success, unless another operation touched the created object meanwhile."""
        operation = running.operation
        made = _made(operation.key[1], result.body)
        own = running.began + 1  # the step at which it began
        doubtful = self._touched.get(made, 0) > own
        doubtful = doubtful or any(other.operation.about == made for other in self._running.values())
        self._touch(operation.about or made)
        if doubtful or not made:
            return
        now = asyncio.get_running_loop().time()
        if operation.key in self._kept:  # so that it moves to the end
            self._forget(operation.key)
        self._kept[operation.key] = _Kept(operation, result, made, now + _KEPT_S)
        self._kept_bytes += len(result.body or b"")
        while self._kept and self._is_too_much(now):
            self._forget(next(iter(self._kept)))

    def _is_too_much(self, now: float) -> bool:
        oldest = next(iter(self._kept.values()))
        return len(self._kept) > self.most_kept or self._kept_bytes > self.most_kept_bytes or oldest.until < now

    def _forget(self, key: tuple[str, ...]) -> None:
        self._kept_bytes -= len(self._kept.pop(key).result.body or b"")

    def _find_kept(self, operation: Operation) -> Result | None:
        kept = self._kept.get(operation.key)
        if kept is None or kept.operation.arguments != operation.arguments:
            return None
        return kept.result if kept.until >= asyncio.get_running_loop().time() else None


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


def _made(method: str, body: bytes | None) -> str:
    rule = _RULES[method]
    if not rule.makes or not body:
        return ""
    return _value(METHODS[method].response.FromString(body), rule.makes)


def _value(message: Message, path: str) -> str:
    value: Any = message
    for name in path.split("."):
        value = getattr(value, name)
    if hasattr(value, "items"):  # parameters: a hash, because the key is logged
        return hashlib.sha256(repr(sorted(value.items())).encode()).hexdigest()[:12] if value else ""
    return str(value)
