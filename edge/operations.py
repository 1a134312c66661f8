"""An operation: a call that changes something at the vendor, run once however often it is asked for.

Rules (contract RULE A10, A11):

* An operation is not cancelled because its caller went away: CSI has no cancel, and the sidecar's retry wants its
  result.
* A call with the key and the arguments of a running operation joins it. The same key with other arguments is ABORTED.
* A success that no caller has acknowledged is kept for the retry, until it was delivered, until something else happens
  to the same object, or until it is old. Errors are never kept.
* An operation ends by itself after `limit_s`: a wedged driver must not wedge a name for ever.

The table `_RULES` says what the key of each method is; a method that is not in it is no operation, but a plain call.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import DecodeError, Message

from common.csi.methods import METHODS
from common.errors import CallError, OperationConflict, OperationLimit
from common.redact import digest
from common.status import Status

log = logging.getLogger("csi_bridge.edge.operations")

_MOST_KEPT = 1_000
"""Successes kept for a retry: a provisioner at full speed (contract A.10: 265 calls) loses its link four times over."""

_KEPT_S = 900.0
"""A success is kept no longer than the sidecars' resync of 15 minutes: nobody asks later (contract A.3)."""


@dataclass(frozen=True, slots=True)
class _Rule:
    """What makes two calls of a method the same operation.

    Attributes:
        key: the request's fields that are its idempotency key, as dotted paths.
        about: the one of them that names the object which the operation changes; empty for a create.
        makes: the response's field that names the object made; empty if it makes none.
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
"""RULE A11's list, and the Node calls that an operator can make by hand: none of them may be cut in the middle."""


@dataclass(frozen=True, slots=True)
class Operation:
    """What a call asks for.

    Attributes:
        key: driver, method and idempotency key: two calls with one key are one operation.
        arguments: a hash of the whole request without its secrets.
        about: the id of the object that it changes, or empty.
    """

    key: tuple[str, ...]
    arguments: bytes
    about: str

    def __str__(self) -> str:
        """`CreateVolume pvc-1`, for messages."""
        _, method, *key = self.key
        return " ".join([method.rpartition("/")[2], *(part for part in key if part)])


@dataclass(frozen=True, slots=True)
class Result:
    """How an operation ended: the vendor's status, and its response's bytes on success."""

    status: Status
    body: bytes | None = None


@dataclass(slots=True)
class _Running:
    operation: Operation
    task: asyncio.Task[Result]
    began: int


@dataclass(slots=True)
class _Kept:
    operation: Operation
    result: Result
    objects: frozenset[str]
    until: float


@dataclass(slots=True)
class Operations:
    """The operations of one agent, under way and finished. In memory: the durable journal takes this class's place.

    Attributes:
        limit_s: how long one may take.
        node: this node's name, for messages.
    """

    limit_s: float
    node: str
    _running: dict[tuple[str, ...], _Running] = field(default_factory=dict)
    _kept: OrderedDict[tuple[str, ...], _Kept] = field(default_factory=OrderedDict)
    _steps: int = 0
    _touched: dict[str, int] = field(default_factory=dict)  # by object: when an operation on it began or ended last

    @property
    def under_way(self) -> list[str]:
        """The operations that run now, for the status."""
        return [str(running.operation) for running in self._running.values()]

    async def perform(self, operation: Operation, run: Callable[[], Awaitable[Result]]) -> Result:
        """The result of an operation: kept, joined or run. Cancelling stops the waiting, never the operation.

        Raises:
            OperationConflict: it runs with other arguments.
            OperationLimit: it did not end in time and was cancelled.
            Exception: what `run` raised, for every caller that waits.
        """
        running = self._running.get(operation.key)
        if running is not None:
            if running.operation.arguments != operation.arguments:
                raise OperationConflict(operation.key[0], self.node, str(operation))
            log.debug("a retry joins %s", operation)
            return await asyncio.shield(running.task)
        kept = self._find_kept(operation)
        if kept is not None:
            log.debug("a retry gets the kept result of %s", operation)
            return kept
        task = asyncio.get_running_loop().create_task(self._run(operation, run), name=f"operation {operation}")
        self._running[operation.key] = _Running(operation, task, self._steps)
        self._touch(operation.about)
        task.add_done_callback(lambda task: self._finished(operation, task))
        return await asyncio.shield(task)

    def delivered(self, operation: Operation, result: Result) -> None:
        """This result reached a caller: it need not be kept. A later one of the same key stays."""
        kept = self._kept.get(operation.key)
        if kept is not None and kept.result is result:
            del self._kept[operation.key]

    async def drain(self) -> None:
        """Wait until no operation runs."""
        while self._running:
            await asyncio.wait([running.task for running in self._running.values()])

    async def _run(self, operation: Operation, run: Callable[[], Awaitable[Result]]) -> Result:
        try:
            async with asyncio.timeout(self.limit_s):
                return await run()
        except TimeoutError:
            raise OperationLimit(operation.key[0], self.node, self.limit_s) from None

    def _finished(self, operation: Operation, task: asyncio.Task[Result]) -> None:
        running = self._running.pop(operation.key)
        error = None if task.cancelled() else task.exception()  # retrieved here: perhaps nobody waits any more
        if error is not None and not isinstance(error, CallError):
            log.error("%s failed inside the agent", operation, exc_info=error)
        if not task.cancelled() and error is None and task.result().status.ok:
            self._keep(running, task.result())
        else:
            self._touch(operation.about)  # also after an error: something may have happened
        oldest = min((other.began for other in self._running.values()), default=self._steps)
        self._touched = {about: step for about, step in self._touched.items() if step > oldest}

    def _touch(self, about: str) -> None:
        """Something begins or ends to happen to an object: an older result no longer tells the truth about it."""
        self._steps += 1
        if about:
            self._touched[about] = self._steps
            self._forget_kept_about({about})

    def _keep(self, running: _Running, result: Result) -> None:
        """Keep a success, unless something else happened to its object while it was under way."""
        operation = running.operation
        objects = {operation.about, _made(operation.key[1], result.body)} - {""}
        own = running.began + 1  # the step of its own beginning
        doubtful = any(self._touched.get(about, 0) > own for about in objects)
        doubtful = doubtful or any(other.operation.about in objects for other in self._running.values())
        for about in objects:
            self._touch(about)
        if doubtful:
            return
        now = asyncio.get_running_loop().time()
        self._kept.pop(operation.key, None)  # so that the newest one stands last
        self._kept[operation.key] = _Kept(operation, result, frozenset(objects), now + _KEPT_S)
        while len(self._kept) > _MOST_KEPT or next(iter(self._kept.values())).until < now:
            self._kept.popitem(last=False)

    def _find_kept(self, operation: Operation) -> Result | None:
        kept = self._kept.get(operation.key)
        if kept is None or kept.operation.arguments != operation.arguments:
            return None
        return kept.result if kept.until >= asyncio.get_running_loop().time() else None

    def _forget_kept_about(self, objects: Iterable[str]) -> None:
        """Something else happens to these objects: an older result no longer tells the truth about them."""
        objects = set(objects)
        if objects:
            for key in [key for key, kept in self._kept.items() if kept.objects & objects]:
                del self._kept[key]


def identify(driver: str, method: str, request: bytes) -> Operation | None:
    """Which operation a call is; None for a plain call.

    A request that does not parse, or whose key is empty, is left to the vendor to refuse.
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
    return str(sorted(value.items())) if hasattr(value, "items") else str(value)
