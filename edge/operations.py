"""Operations: calls that change something at the vendor. Each runs once, however many callers ask for it.

Rules:

* An operation is not cancelled when its caller leaves: CSI has no cancel, and the sidecar's retry needs the result
  (docs/csi-contract.md#a-timeout-is-not-a-cancel).
* A call with the key and the arguments of a running operation joins it; the same key with other arguments is ABORTED
  (docs/csi-contract.md#when-two-calls-are-one-operation).
* Arguments are compared only when a second call with the key comes. For that a call keeps its request; a large one,
  and one whose caller is gone, keeps a digest of it. So the hub's credit for requests bounds their memory.
* A create's success that no caller has acknowledged is kept for the retry. It is kept until it was delivered, until
  another operation touches the created object, or until it is too old. No other result is kept: the vendor handles the
  retry, and knows better what happened meanwhile.
* Near the limit of operations, a driver with many of them leaves the last places to the other drivers of the node.
* An operation ends after `limit_s`: a hanging driver must not block a name for ever. One that needs the controller
  lease also ends with it (`edge.calls.controller_lease`).
* An operation that needs the lease is refused while another one runs that its final answer would settle (`_settles`):
  the hub takes the answer as the end of both, and another node could change the object too early.
* Nothing here waits: each caller is told the outcome, at once. An ordinary call costs no task and no timer.

The table `_RULES` gives the key of each method. A method outside it is no operation, but a plain call.
"""

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from google.protobuf.message import DecodeError, Message

from common.csi.methods import METHODS
from common.csi.redact import digest
from common.errors import CallError, Overloaded
from common.session.limits import has_room
from common.status import Code
from edge.calls.controller_lease import ControllerLease
from edge.calls.driver_call import Outcome, Result

if TYPE_CHECKING:
    from edge.hub_call import HubCall

log = logging.getLogger("csi_bridge.edge.operations")

MOST_KEPT = 1_000  # successes kept for a retry: four losses of the link by a provisioner at full speed (265 calls)

# The same limit in bytes: a CreateVolume answer has 200 bytes, but a driver may send 4 MiB.
MOST_KEPT_BYTES = 16 * 1_048_576

_KEPT_S = 900.0  # a success is kept as long as the sidecars' resync of 15 minutes: later nobody asks for it
_LARGE_BYTES = 16_384  # Of a larger request only the digest is compared. A sidecar's request has 1 KiB.

Key = tuple[Any, ...]  # Driver, method and idempotency key: two calls with one key are one operation


class _Rule:
    """The fields that make two calls of a method the same operation."""

    def __init__(self, *key: str, makes: str = "") -> None:
        # `key`: the request's idempotency key, as dotted paths of fields. The first one names the object that is
        # changed. `makes`: of a create, which changes none yet, the response's field that names the created object.
        self.key = key
        self.makes = makes
        self.values: Callable[[Any], Any] = attrgetter(*key)  # returns the key's values: one alone, or a tuple
        self.made: Callable[[Any], str] = attrgetter(makes or "DESCRIPTOR.name")  # returns the value of `makes`


_CONTROLLER = "/csi.v1.Controller/"
_GROUP = "/csi.v1.GroupController/"
_NODE = "/csi.v1.Node/"

_DELETES = frozenset(
    {_CONTROLLER + "DeleteVolume", _CONTROLLER + "DeleteSnapshot", _GROUP + "DeleteVolumeGroupSnapshot"}
)

_OF_A_NODE = frozenset({_CONTROLLER + "ControllerPublishVolume", _CONTROLLER + "ControllerUnpublishVolume"})

# The methods of docs/csi-contract.md#when-two-calls-are-one-operation, and Node calls that an operator can make by
# hand. None of them may be cut off while it runs.
_RULES: dict[str, _Rule] = {
    _CONTROLLER + "CreateVolume": _Rule("name", makes="volume.volume_id"),
    _CONTROLLER + "DeleteVolume": _Rule("volume_id"),
    _CONTROLLER + "ControllerPublishVolume": _Rule("volume_id", "node_id"),
    _CONTROLLER + "ControllerUnpublishVolume": _Rule("volume_id", "node_id"),
    _CONTROLLER + "ControllerExpandVolume": _Rule("volume_id", "capacity_range.required_bytes"),
    _CONTROLLER + "ControllerModifyVolume": _Rule("volume_id", "mutable_parameters"),
    _CONTROLLER + "CreateSnapshot": _Rule("name", makes="snapshot.snapshot_id"),
    _CONTROLLER + "DeleteSnapshot": _Rule("snapshot_id"),
    _GROUP + "CreateVolumeGroupSnapshot": _Rule("name", makes="group_snapshot.group_snapshot_id"),
    _GROUP + "DeleteVolumeGroupSnapshot": _Rule("group_snapshot_id"),
    _NODE + "NodeStageVolume": _Rule("volume_id", "staging_target_path"),
    _NODE + "NodeUnstageVolume": _Rule("volume_id", "staging_target_path"),
    _NODE + "NodePublishVolume": _Rule("volume_id", "target_path"),
    _NODE + "NodeUnpublishVolume": _Rule("volume_id", "target_path"),
    _NODE + "NodeExpandVolume": _Rule("volume_id", "volume_path"),
}


class Arguments:
    """The arguments of an operation: the request, or its digest without secrets, which a retry may have rotated."""

    __slots__ = ("_digest", "_method", "request")

    def __init__(self, method: str, request: bytes, message: Message | None = None) -> None:
        self._method = method
        self.request: bytes | None = request
        self._digest = b""
        if message is not None and len(request) > _LARGE_BYTES:
            self.request, self._digest = None, digest(message)

    def equals(self, other: "Arguments") -> bool:
        return (self.request is not None and self.request == other.request) or self.digest() == other.digest()

    def digest(self) -> bytes:
        if not self._digest and self.request is not None:
            self._digest = digest(METHODS[self._method].request.FromString(self.request))
        return self._digest

    def shrink(self) -> None:
        self.digest()
        self.request = None


# What a call asks for: the operation's key, the id of the object that it changes, or empty, and its arguments.
Asked = tuple[Key, str, Arguments]

PLAIN: Asked = ((), "", Arguments("", b""))  # a plain call is no operation


def identify(driver: str, method: str, request: bytes) -> Asked:
    """Return what a call asks for.

    A request that does not parse, or whose key is empty, is a plain call: the vendor refuses it.
    """
    rule = _RULES.get(method)
    if rule is None:
        return PLAIN
    try:
        message = METHODS[method].request.FromString(request)
    except DecodeError:
        return PLAIN
    values = rule.values(message)
    first, *others = values if len(rule.key) > 1 else (values,)
    if not first:
        return PLAIN
    if others and hasattr(others[0], "items"):  # parameters: a hash, because the key is logged
        others = [hashlib.sha256(repr(sorted(others[0].items())).encode()).hexdigest()[:12] if others[0] else ""]
    return (driver, method, first, *others), "" if rule.makes else first, Arguments(method, request, message)


def in_words(key: Key) -> str:
    """Return a text such as `CreateVolume pvc-1`, for messages."""
    return " ".join([key[1].rpartition("/")[2], *(str(part) for part in key[2:] if part)])


class _KeptSuccess(NamedTuple):
    arguments: Arguments
    result: Result
    made: str  # the id of the created object
    until: float  # by the loop's clock


class Operations:
    """The running operations and kept results of one agent, in memory."""

    def __init__(self, limit_s: float, node: str, *, most: int = 1_024, drivers: Callable[[], int] = lambda: 1) -> None:
        """At most `most` operations run at once, each for at most `limit_s`. `drivers` counts the node's drivers."""
        self.limit_s = limit_s  # the longest time of one operation, and of any other call to a driver
        self.node = node  # this node's name, for messages
        self._most = most
        self._drivers = drivers
        self._running: dict[Key, HubCall] = {}  # the call that began each, in the order in which they began
        self._until: dict[HubCall, float] = {}  # when each call to a driver ends, in the order in which they began
        self._timer: asyncio.TimerHandle | None = None
        self._idle: asyncio.Future[None] | None = None
        self._kept: dict[Key, _KeptSuccess] = {}
        self._kept_bytes = 0
        self._steps = 0
        self._touched: OrderedDict[str, int] = OrderedDict()  # by object: step of the last begin or end on it, in order

    @property
    def under_way(self) -> list[str]:
        return [in_words(key) for key in self._running]

    def begin(self, call: "HubCall", lease: ControllerLease | None = None) -> None:
        """Give a call its result: a kept one, that of a running operation, or the driver's answer to this call.

        `call.tell` gets the `Result` or an error (the driver's call failed, the time limit passed, or the lease ended),
        perhaps before this returns.

        Args:
            call: the call.
            lease: the lease that the operation needs, if it needs one.

        Raises:
            CallError: the operation runs with other arguments, or it needs the lease and an operation that it would
                settle runs. Nothing was sent.
            Overloaded: too many others are running, of all drivers or of this one; nothing was sent.
        """
        key = call.key
        if (running := self._running.get(key)) is not None:
            self._join(running, call, lease)
            return
        if self._kept and (kept := self._find_kept(call)) is not None:
            log.debug("a retry gets the kept result of %s", in_words(key))
            call.tell(kept)
            return
        if lease is not None:
            self._check_settled(call)
        # With more than a quarter free, `has_room` refuses nobody.
        if self._most - len(self._running) <= self._most // 4:
            self._check_room(key[0])
        self._running[key] = call
        self._steps += 1
        call.step = self._steps
        if call.about:
            self._touch(call.about)
        self.watch(call)
        if lease is not None:
            call.lease = lease
            lease.begin(call)
        try:
            call.send()
        except Exception:  # no call was started, so nobody would ever end it
            self._remove(call)
            raise

    def leave(self, call: "HubCall") -> bool:
        """Let a call leave its operation, which goes on. Returns whether it may: the one that began it stays."""
        running = self._running.get(call.key)
        if running is call:
            return False
        if running is not None:
            running.joined = tuple(it for it in running.joined if it is not call)
        return True

    def delivered(self, call: "HubCall") -> None:
        """Drop a kept result that has reached a caller. A later result of the same key stays."""
        kept = self._kept.get(call.key)
        if kept is not None and kept.result.body is call.body:
            self._forget_success(call.key)

    def forget_results(self, driver: str) -> None:
        """Drop the kept results of a driver: another node may have changed its objects meanwhile."""
        for key in [key for key in self._kept if key[0] == driver]:
            self._forget_success(key)

    def ended(self, call: "HubCall", outcome: Outcome) -> None:
        """Take an operation out of the table, and tell its calls the outcome."""
        self._remove(call)
        joined = call.joined
        call.joined = ()
        call.tell(outcome)
        for it in joined:
            it.tell(outcome)
        self._steps += 1
        if isinstance(outcome, Result) and not outcome.status.code:
            self._keep_success(call, outcome)
        elif call.about:
            self._touch(call.about)  # also after an error: the object may have changed
        if self._touched:
            oldest = next(iter(self._running.values())).step if self._running else self._steps + 1
            while self._touched and next(iter(self._touched.values())) < oldest:
                self._touched.popitem(last=False)

    async def drain(self) -> None:
        while self._running:
            self._idle = asyncio.get_running_loop().create_future()
            await self._idle

    # ---- the time limit

    def watch(self, call: "HubCall") -> None:
        """Call `call.expire()` after `limit_s`, unless `unwatch` comes first. One timer serves all calls."""
        loop = asyncio.get_running_loop()
        until = self._until[call] = loop.time() + self.limit_s
        if self._timer is None:
            self._timer = loop.call_at(until, self._expire_due)

    def unwatch(self, call: "HubCall") -> None:
        self._until.pop(call, None)

    def _expire_due(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        while self._until:
            call, until = next(iter(self._until.items()))
            if until > loop.time():
                self._timer = loop.call_at(until, self._expire_due)
                return
            del self._until[call]
            call.expire()

    # ---- inside

    def _join(self, running: "HubCall", call: "HubCall", lease: ControllerLease | None) -> None:
        if not running.arguments.equals(call.arguments):
            raise self._aborted(f"{in_words(call.key)} is already under way with other arguments", call.key[0])
        log.debug("a retry joins %s", in_words(call.key))
        running.joined += (call,)
        if lease is not None:  # the running operation may have the lease already
            running.lease = lease
            lease.begin(running)

    def _check_settled(self, call: "HubCall") -> None:
        for other in self._running.values():
            if call.about and _settles(call, other):
                why = f"{in_words(call.key)} has to wait, because {in_words(other.key)} is under way"
                raise self._aborted(why, call.key[0])

    def _aborted(self, why: str, driver: str) -> CallError:
        text = f"{why} at driver {driver} on edge node {self.node}; retry when it has ended"
        return CallError(text, code=Code.ABORTED, is_unsent=True)

    def _check_room(self, driver: str) -> None:
        own = sum(key[0] == driver for key in self._running)
        together = len(self._running)
        if together >= self._most:
            raise Overloaded(f"agent of edge node {self.node}", self._most, "--max-operations")
        if not has_room(own, together, self._most, sharers=self._drivers()):
            raise Overloaded(f"driver {driver} on edge node {self.node}", own, "--max-operations")

    def _remove(self, call: "HubCall") -> None:
        del self._running[call.key]
        self._until.pop(call, None)
        if call.lease is not None:
            call.lease.end(call)
        if not self._running and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    def _touch(self, about: str) -> None:
        # An operation on the object begins or ends, so what is kept about it may be wrong.
        self._touched[about] = self._steps
        self._touched.move_to_end(about)
        for key in [key for key, kept in self._kept.items() if kept.made == about] if self._kept else ():
            self._forget_success(key)

    def _keep_success(self, call: "HubCall", result: Result) -> None:
        rule = _RULES[call.method]
        made = rule.made(result.message) if rule.makes and result.message is not None else ""
        touched = self._touched.get(made, 0)  # an operation on the object that still runs has left its step here
        doubtful = touched > call.step or (touched and any(it.about == made for it in self._running.values()))
        about = call.about or made
        if about and (self._running or self._kept):  # else nobody reads `_touched`
            self._touch(about)
        if doubtful or not made:
            return
        now = asyncio.get_running_loop().time()
        if call.key in self._kept:  # so that it moves to the end
            self._forget_success(call.key)
        body = result.body
        self._kept[call.key] = _KeptSuccess(call.arguments, Result(result.status, body), made, now + _KEPT_S)
        self._kept_bytes += len(body or b"")
        while self._kept:
            oldest, kept = next(iter(self._kept.items()))
            if len(self._kept) <= MOST_KEPT and self._kept_bytes <= MOST_KEPT_BYTES and kept.until >= now:
                break
            self._forget_success(oldest)

    def _forget_success(self, key: Key) -> None:
        self._kept_bytes -= len(self._kept.pop(key).result.body or b"")

    def _find_kept(self, call: "HubCall") -> Result | None:
        kept = self._kept.get(call.key)
        if kept is None or kept.until < asyncio.get_running_loop().time() or not kept.arguments.equals(call.arguments):
            return None
        return kept.result


def _settles(call: "HubCall", other: "HubCall") -> bool:
    # Whether the hub takes a final answer to `call` as the end of `other`, too (`settled_with` of
    # `cloud.claims.requests`).
    (driver, method, *key), (its_driver, its_method, *its_key) = call.key, other.key
    if call.about != other.about or driver != its_driver:
        return False
    if method in _OF_A_NODE:
        # A publication to a node and its end settle each other.
        return its_method in _OF_A_NODE and key == its_key
    # A deletion settles all operations on its object; any other one those of its method, whatever their arguments.
    return method in _DELETES or method == its_method
