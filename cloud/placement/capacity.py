"""The capacity: GetCapacity of a driver whose nodes each have storage of their own.

Rules:

* A segment has the capacity of its node. Several nodes have that of the one on which the largest volume fits, never a
  sum: no volume lies on two nodes.
* A slow node's last answer counts, after a second and for `_LAST_S`. external-provisioner asks for all segments with
  one thread, so a slow node would delay all others (docs/csi-contract.md#one-thread-asks-for-every-capacity).
* A node that is away keeps its last answer for `--capacity-grace`. Then it has nothing: the scheduler must send no pod
  there. An error would leave the last answer in force.
* A node's error is the answer for its segment. Among several nodes the others' answers count.
"""

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from google.protobuf.message import DecodeError

from cloud.node_call import Call
from cloud.placement.decisions import Segment, Send
from cloud.placement.fan_out import Answer
from cloud.placement.question import CallNode, ask
from cloud.placement.segment import without_topology
from common.csi.csi_pb2 import GetCapacityResponse
from common.errors import CallError, CallTimeout, NodeOffline, ReportRefused, VendorBroken
from common.status import Code, Status

GRACE_S: Final = 60.0
"""The default of `--capacity-grace`: agents dial again within 30 s. external-provisioner asks each minute."""

_PATIENCE_S: Final = 1.0
"""A node with a last answer has this time for the next one. A quick driver answers within one round trip."""

_LAST_S: Final = 600.0
"""How long a connected node's last answer counts: ten rounds of external-provisioner (`--capacity-poll-interval`)."""

_LIMIT_S: Final = 60.0
"""The time limit of a question to a node. It outlasts its caller's, so that a slow node's answer becomes its last."""

_MOST_KEPT: Final = 16
"""The last answers of a driver on a node. external-provisioner asks for each StorageClass."""

_LARGEST_BYTES: Final = 256
"""A larger answer is not kept: three numbers take 40 bytes."""

_OK: Final = Status(Code.OK)

_Key = tuple[str, str, bytes]
"""Driver, node and digest of the request."""


@dataclass(frozen=True, slots=True)
class _Last:
    """The last answer of a node.

    Attributes:
        body: the message.
        at: when it came, in seconds of the monotonic clock.
    """

    body: bytes
    at: float


class Capacity:
    """Asks nodes for their capacity, and keeps their last answers, in memory alone."""

    def __init__(
        self, call: CallNode, *, grace_s: float, now: Callable[[], float], monotonic: Callable[[], float]
    ) -> None:
        """Begin without answers.

        Args:
            call: sends a call to a node.
            grace_s: how long the last answer of a node that is away counts.
            now: seconds since the epoch.
            monotonic: seconds of the monotonic clock.
        """
        self._call, self._grace_s, self._now, self._monotonic = call, grace_s, now, monotonic
        self._began = now()
        """No node is away since before that: after its start, a hub waits for its nodes."""
        self._last: dict[tuple[str, str], dict[bytes, _Last]] = {}
        """By driver and node, and by the digest of the request; the oldest first."""
        self._running: dict[_Key, asyncio.Task[Answer]] = {}

    async def of(self, call: Call, sends: Sequence[Send]) -> Answer:
        """The capacity of these nodes; none without nodes.

        Raises:
            CallError: no node has answered, and one of them cannot be asked.
        """
        without = without_topology(call.method, call.request)
        errors: list[CallError] = []

        async def of(send: Send) -> Answer | None:
            request = without if send.segment is Segment.ADDED else call.request
            try:
                return await self._of_node(call, send.node, request)
            except CallError as error:
                errors.append(error)
                return None

        told = [answer for answer in await asyncio.gather(*map(of, sends)) if answer is not None]
        if bodies := [body for status, body in told if status.ok and body is not None]:
            return _OK, max(bodies, key=_size)
        if refused := next((status for status, _ in told if not status.ok), None):
            return refused, None
        if errors:
            raise errors[0]
        return _OK, GetCapacityResponse().SerializeToString()

    def forget(self, node: str, driver: str = "") -> None:
        """Drop the answers of a node, or of one driver there."""
        for key in [key for key in self._last if key[1] == node and driver in ("", key[0])]:
            del self._last[key]

    async def close(self) -> None:
        """Ask no more."""
        running = list(self._running.values())
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def _of_node(self, call: Call, node: str, request: bytes) -> Answer:
        """The answer of a node. Its message is None if the node has been away for longer than the grace.

        Raises:
            CallError: it cannot be asked, and no last answer counts.
        """
        key = (call.driver, node, hashlib.sha256(request).digest())
        last = self._last.get(key[:2], {}).get(key[2])
        if last is not None and self._monotonic() - last.at > max(_LAST_S, self._grace_s):
            last = None
        try:
            return await self._ask(key, call._replace(request=request), has_last=last is not None)
        except NodeOffline as error:
            if self._now() - max(error.since, self._began) >= self._grace_s:
                return _OK, None
            if last is None:
                raise
        except ReportRefused:  # no create goes there either
            raise
        except CallError:
            if last is None:
                raise
        return _OK, last.body

    async def _ask(self, key: _Key, call: Call, *, has_last: bool) -> Answer:
        """Ask a node, or wait for the same question that is under way there."""
        running = self._running.get(key)
        if running is None:
            question = call._replace(timeout_s=_LIMIT_S)
            running = asyncio.get_running_loop().create_task(self._question(key, question), name=f"capacity-{key[1]}")
            self._running[key] = running
            running.add_done_callback(partial(self._ended, key))
        waits_s = _LIMIT_S if call.timeout_s is None else call.timeout_s
        try:
            async with asyncio.timeout(min(waits_s, _PATIENCE_S) if has_last else waits_s):
                return await asyncio.shield(running)
        except TimeoutError:
            raise CallTimeout(f"edge node {key[1]}") from None

    async def _question(self, key: _Key, question: Call) -> Answer:
        driver, node, digest = key
        status, body = await ask(self._call, node, question)
        if not status.ok:
            return status, None
        try:
            GetCapacityResponse.FromString(body)
        except DecodeError:
            raise VendorBroken(driver, node, "its answer to GetCapacity does not parse") from None
        if len(body) <= _LARGEST_BYTES:
            kept = self._last.setdefault((driver, node), {})
            kept.pop(digest, None)
            kept[digest] = _Last(body, self._monotonic())
            if len(kept) > _MOST_KEPT:
                del kept[next(iter(kept))]
        return status, body

    def _ended(self, key: _Key, task: asyncio.Task[Answer]) -> None:
        del self._running[key]
        if not task.cancelled():
            task.exception()  # its waiters have it, if any are left


def _size(body: bytes) -> tuple[int, int]:
    """The largest volume that fits, and the capacity."""
    told = GetCapacityResponse.FromString(body)
    free = told.available_capacity
    largest = told.maximum_volume_size.value if told.HasField("maximum_volume_size") else free
    return min(free, largest), free
