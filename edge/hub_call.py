"""A hub call: one CSI call with one answer that the hub sends, from its request to the delivered answer.

It needs no task: whatever has to happen next happens when its event comes. Rules:

* A call that changes something is an operation: it goes on when its caller leaves (`edge.operations`). Any other call
  is cancelled at the driver then.
* A fault ends only its own call, as UNAVAILABLE, with a traceback in the log.
* An operation with an election's epoch waits until the controller lease holds, and runs under it
  (`edge.controller_lease`).
* A call joins a running operation before anything else can refuse it. So UNAVAILABLE tells the hub that no operation of
  the call's key runs here. The origin `UNSENT` adds that nothing of this call was sent to the driver.
* The account of the caller that started an operation lasts until the operation's end, so that its outcome is logged.
"""

import asyncio
import logging
from typing import Final, Protocol

from common.accounting import Account
from common.errors import CallError, OperationLimit, status_of
from common.link import Link
from common.messages import Open
from common.receiver import Receiver
from common.status import Origin, Status
from edge.controller_lease import ControllerLease
from edge.driver_call import PARSE_OFF_LOOP_BYTES, Cancellable, Outcome, Result
from edge.drivers import Driver
from edge.operations import Operation, Operations, Told, identify

log = logging.getLogger("csi_bridge.edge")

_LATER_S: Final = 5.0
"""So much later than the agent's own limit comes the driver's deadline: the agent's error says what to do."""


class Callee(Protocol):
    """The agent, as its calls see it."""

    node: str
    operations: Operations
    lease: ControllerLease

    def heed(self, frame: Open) -> None:
        """Note the epoch of a call that has one. Raises `EpochOver` if a later one has come."""

    def driver_for(self, frame: Open) -> Driver:
        """Return the driver that a call goes to. Raises a `CallError` if the agent does not make the call."""


class HubCall(Receiver):
    """One call under way.

    It has two ends: the hub's stream (`common.receiver.Receiver`), and the driver's call, whose outcome `told` hears.
    """

    __slots__ = ("_account", "_agent", "_call", "_deadline", "_frame", "_is_over", "_joined", "_link",
                 "_operation", "_request", "_result")  # fmt: skip

    def __init__(self, agent: Callee, link: Link, frame: Open, deadline: float | None, account: Account) -> None:
        """`deadline` is the end of the caller's time, in the loop's clock, or None. This call closes `account`."""
        self._agent = agent
        self._link = link
        self._frame = frame
        self._deadline = deadline
        self._account = account
        self._request: bytes | None = None
        self._operation: Operation | None = None
        self._joined = False
        self._call: Cancellable | None = None
        self._result: Result | None = None
        self._is_over = False

    # ---- the link's side (`common.receiver.Receiver`)

    def took(self, message: bytes) -> None:
        """Take the request."""
        self._request = message
        self._account.request_bytes = len(message)
        try:
            self._begin(message)
        except Exception as error:  # noqa: BLE001  # the call's own end, never the link's
            self._fail(error)

    def left(self) -> None:
        """The caller waits no more. An operation goes on; of those who wait for it, the first one stays."""
        if self._operation is None:
            self._stop()
        elif self._joined:
            self._agent.operations.leave(self._operation, self.told)
        else:
            return
        self._is_over = True
        self._account.leave()

    def released(self, delivered: bool) -> None:  # noqa: FBT001  # as in `Receiver`
        """The stream is over: the request's memory is free, and a delivered result need not be kept."""
        if self._request is not None:
            self._link.consumed(self._frame.stream, len(self._request))
        if delivered and self._operation is not None and self._result is not None:
            self._agent.operations.delivered(self._operation, self._result)

    # ---- the call

    def _begin(self, request: bytes) -> None:
        if len(request) > PARSE_OFF_LOOP_BYTES:
            self._call = asyncio.get_running_loop().create_task(
                self._identify(request), name=f"identify {self._frame.method}"
            )
        else:
            self._perform(request, identify(self._frame.subject, self._frame.method, request))

    async def _identify(self, request: bytes) -> None:
        """Parse a large request in a thread. If the caller leaves meanwhile, nothing is sent."""
        try:
            operation = await asyncio.to_thread(identify, self._frame.subject, self._frame.method, request)
            self._call = None
            self._perform(request, operation)
        except Exception as error:  # noqa: BLE001  # as in `took`
            self._fail(error)

    def _perform(self, request: bytes, operation: Operation | None) -> None:
        frame, agent = self._frame, self._agent
        limit_s = agent.operations.limit_s + _LATER_S
        if frame.epoch:
            agent.heed(frame)
        if operation is None:
            driver = agent.driver_for(frame)
            agent.operations.limit.begin(self)
            call = driver.start(
                frame.method, request, self.told, timeout_s=self._remaining_s(limit_s), to=frame.subject
            )
            if not self._is_over:
                self._call = call
            return

        lease = agent.lease if frame.epoch else None
        if lease is not None and not lease.need():
            lease.wait(self._go_on)
            return

        def start(told: Told) -> Cancellable:
            may_begin = None if lease is None else lease.holds
            return agent.driver_for(frame).start(
                frame.method, request, told, timeout_s=limit_s, to=frame.subject, may_begin=may_begin
            )

        self._joined = agent.operations.perform(operation, start, self.told, lease=lease)
        self._operation = operation

    def _go_on(self) -> None:
        """The controller lease holds. Meanwhile a later epoch may have come, so begin anew."""
        assert self._request is not None
        try:
            self._begin(self._request)
        except Exception as error:  # noqa: BLE001  # as in `took`
            self._fail(error)

    def _remaining_s(self, limit_s: float) -> float:
        if self._deadline is None:
            return limit_s
        return min(max(0.001, self._deadline - self._link.loop.time()), limit_s)

    def expire(self) -> None:
        """The driver has not answered a plain call within the limit of operations (`time_limit.Limited`)."""
        self._stop()
        self._fail(OperationLimit(self._frame.subject, self._agent.node, self._agent.operations.limit_s))

    def told(self, outcome: Outcome) -> None:
        """End the call with the driver's answer, or with an error."""
        try:
            if not isinstance(outcome, Result):
                self._fail(outcome)
                return
            self._account.response_bytes = len(outcome.body or b"")
            self._end(outcome.status, outcome.body)
            self._result = outcome
        except Exception as error:  # noqa: BLE001  # as in `took`
            self._fail(error)

    def _stop(self) -> None:
        """Cancel a plain call, the parsing of a large request, or the wait for the controller lease."""
        self._agent.operations.limit.end(self)
        self._agent.lease.leave(self._go_on)
        call, self._call = self._call, None
        if call is not None:
            call.cancel()

    def _fail(self, error: Exception) -> None:
        if not isinstance(error, CallError):
            log.error("a call failed inside the edge agent: %s", self._frame, exc_info=error)
        is_unsent = self._frame.epoch and isinstance(error, CallError) and error.is_unsent
        self._end(status_of(error, Origin.UNSENT if is_unsent else Origin.EDGE))

    def _end(self, status: Status, body: bytes | None = None) -> None:
        if self._is_over:
            return
        self._link.end(self._frame.stream, status, body)
        self._is_over, self._call = True, None  # the two would keep each other, with request and answer
        self._account.end(status)
        if self._operation is None:
            self._agent.operations.limit.end(self)
