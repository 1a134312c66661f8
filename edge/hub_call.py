"""A hub call: one CSI call with one answer that the hub sends, from its request to the delivered answer.

It needs no task: whatever has to happen next happens when its event comes. Rules:

* A call that changes something is an operation: it goes on when its caller leaves (`edge.operations`). Any other call
  is cancelled at the driver then.
* A fault ends only its own call, as UNAVAILABLE, with a traceback in the log.
* An operation with an election's epoch waits until the controller lease holds, and runs under it
  (`edge.calls.controller_lease`).
* A call joins a running operation before anything else can refuse it. So UNAVAILABLE tells the hub that no operation of
  the call's key runs here. The origin `UNSENT` adds that nothing of this call was sent to the driver.
* The account of the call that began an operation lasts until the operation's end, so that its outcome is logged.
"""

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Final

from common.errors import CallError, status_of
from common.messages import Open
from common.observe.accounting import Account
from common.relay.client_call import AnswerReceiver, ClientCall
from common.relay.errors import VendorConnectionError
from common.session.link import Link
from common.session.receiver import Receiver
from common.status import Origin, Status
from edge.calls.driver_call import PARSE_OFF_LOOP_BYTES, Outcome, Result, blame, lease_over, over_limit, parsed
from edge.operations import PLAIN, Asked, identify

if TYPE_CHECKING:
    from edge.agent import Agent
    from edge.calls.controller_lease import ControllerLease

log = logging.getLogger("csi_bridge.edge")

# So much later than the agent's own limit comes the driver's deadline: the agent's error says what to do.
_LATER_S: Final = 5.0


class HubCall(Account, AnswerReceiver, Receiver):
    """One call under way. It is its own account, and has two ends: the hub's stream, and the driver's call.

    The other attributes are for `Operations`:
        key: the operation's key; empty for a plain call.
        about: the id of the object that it changes, or empty.
        arguments: its arguments.
        body: the answer that was sent; None before.
        step: when it began, if it began the operation.
        joined: the calls that joined it.
        lease: the controller lease that it runs under, or None.
    """

    __slots__ = ("_agent", "_frame", "_link", "_request", "about", "arguments", "at_driver", "body", "joined", "key",
                 "lease", "step")  # fmt: skip

    def __init__(self, agent: "Agent", link: Link, frame: Open, timeout_s: float | None, request: bytes) -> None:
        """A call whose request has come. `go_on` begins it. `timeout_s` is the caller's time, or None."""
        super().__init__(agent.accounts, frame.subject, frame.method, frame.call, agent.node, timeout_s=timeout_s)
        self._agent = agent
        self._link = link
        self._frame = frame
        self.request_bytes = len(request)
        self._request: bytes | None = request
        self.key, self.about, self.arguments = PLAIN
        self.step = 0
        self.joined: tuple[HubCall, ...] = ()
        self.lease: ControllerLease | None = None
        # What `cancel` stops: the call at the driver, or the parsing of a large message.
        self.at_driver: ClientCall | asyncio.Task[None] | None = None
        self.body: bytes | None = None

    # ---- the hub's stream (`common.session.receiver.Receiver`)

    def left(self) -> None:
        """The caller waits no more. An operation goes on; of those who wait for it, the first one stays."""
        if not self.key or self._agent.operations.leave(self):
            self.cancel()
            self._agent.operations.unwatch(self)
            self._agent.lease.leave(self.go_on)
            self.leave()

    def released(self, delivered: bool) -> None:  # noqa: FBT001  # as in `Receiver`
        """The stream is over: the request's memory is free, and a delivered result need not be kept."""
        self._link.consumed(self._frame.stream, self.request_bytes)
        if self.key and delivered:
            self._agent.operations.delivered(self)
        elif self.key:
            self.arguments.shrink()  # the credit of the request has gone back

    # ---- the call

    def go_on(self, asked: Asked | None = None) -> None:
        """Begin the call, now or when the controller lease holds: meanwhile a later epoch may have come.

        `asked` is the operation that it belongs to, if a thread has found it.
        """
        agent = self._agent
        lease = None
        request = self._request
        assert request is not None
        try:
            if asked is None and len(request) > PARSE_OFF_LOOP_BYTES:
                loop = asyncio.get_running_loop()
                self.at_driver = loop.create_task(self._identify(request), name=f"identify {self.method}")
                return
            if self._frame.epoch:
                agent.heed(self._frame)
                lease = agent.lease
            asked = asked or identify(self.driver, self.method, request)
            if asked is PLAIN:
                agent.operations.watch(self)
                self.send()
            elif lease is not None and not lease.need():
                lease.wait(self.go_on)
            else:
                self.key, self.about, self.arguments = asked
                agent.operations.begin(self, lease)
        except Exception as error:  # noqa: BLE001  # the call's own end, never the link's
            self._refuse(error)

    async def _identify(self, request: bytes) -> None:
        # If the caller leaves meanwhile, nothing is sent.
        try:
            asked = await asyncio.to_thread(identify, self.driver, self.method, request)
        except Exception as error:  # noqa: BLE001  # as in `go_on`
            self._refuse(error)
        else:
            self.at_driver = None
            self.go_on(asked)

    def send(self) -> None:
        """Send the request to its driver, or raise. `told` hears the end once, maybe before this returns."""
        agent = self._agent
        request = self._request
        self._request = None
        assert request is not None
        timeout_s = agent.operations.limit_s + _LATER_S
        if not self.key and self.timeout_s is not None:
            # The caller's time may be over by now, and gRPC's header holds no negative one.
            timeout_s = min(max(0.001, self.began + self.timeout_s - time.monotonic()), timeout_s)
        channel = agent.driver_for(self._frame).channel
        may_begin = self.lease.holds if self.lease is not None else None
        opened = channel.open
        call = ClientCall(opened, self.method, request, timeout_s=timeout_s, driver=self.driver, may_begin=may_begin)
        call.receiver = self
        opened(call)
        if not call.over:
            self.at_driver = call

    def cancel(self) -> None:
        """Stop what is under way. `told` hears no more of it."""
        call = self.at_driver
        self.at_driver = None
        if call is not None:
            call.cancel()

    # ---- the driver's answer (`common.relay.client_call.AnswerReceiver`)

    def answered(self, status: Status, message: bytes | None) -> None:
        self.at_driver = None  # the two would keep each other, with request and answer
        if message is not None and len(message) > PARSE_OFF_LOOP_BYTES:
            loop = asyncio.get_running_loop()
            self.at_driver = loop.create_task(self._parse(status, message), name=f"parse {self.method}")
            return
        try:
            result = Result(status, message, parsed(self.driver, self.node, self.method, message))
        except Exception as error:  # noqa: BLE001  # also a bug ends the call: nobody else would
            self.told(error)  # here, because a variable would keep the error, and its traceback this frame
        else:
            self.told(result)

    def failed(self, error: Exception) -> None:
        # Only the driver's call fails here: the hub opens the streams, so `Receiver.failed` never comes.
        assert isinstance(error, VendorConnectionError)
        self.at_driver = None
        self.told(blame(self.driver, self.node, error))

    async def _parse(self, status: Status, message: bytes) -> None:
        try:
            known = await asyncio.to_thread(parsed, self.driver, self.node, self.method, message)
            outcome: Outcome = Result(status, message, known)
        except Exception as error:  # noqa: BLE001  # as above
            outcome = error
        self.told(outcome)

    # ---- the end

    def told(self, outcome: Outcome) -> None:
        if self.key:
            self._agent.operations.ended(self, outcome)
        else:
            self._agent.operations.unwatch(self)
            self.tell(outcome)

    def expire(self) -> None:
        """The driver has not answered within the limit of operations."""
        self.cancel()
        self.told(over_limit(self.driver, self.node, self._agent.operations.limit_s))

    def lose(self) -> None:
        """The controller lease of the operation has ended (`edge.calls.controller_lease.Leased`)."""
        self.cancel()
        self.told(lease_over(self.driver, self.node))

    def tell(self, outcome: Outcome) -> None:
        if self.is_over:
            return
        if not isinstance(outcome, Result):
            self._refuse(outcome)
            return
        status, body, _ = outcome
        try:
            self._link.end(self._frame.stream, status, body)
        except Exception as error:  # noqa: BLE001  # the hub's limits may refuse the answer
            self._refuse(error)
            return
        if body is not None:
            self.body, self.response_bytes = body, len(body)
        self.end(status)

    def _refuse(self, error: Exception) -> None:
        if self.is_over:
            return
        self._agent.operations.unwatch(self)
        if not isinstance(error, CallError):
            log.error("a call failed inside the edge agent: %s", self._frame, exc_info=error)
        is_unsent = self._frame.epoch and isinstance(error, CallError) and error.is_unsent
        status = status_of(error, Origin.UNSENT if is_unsent else Origin.EDGE)
        self._link.end(self._frame.stream, status)
        self.end(status)
