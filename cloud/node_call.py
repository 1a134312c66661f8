"""A node call: one CSI call on its way from the hub to an edge node, and its answer's way back.

`Call` is the call, `Caller` takes the answer, and `Reply` lets the caller acknowledge or cancel it.
"""

import time
from typing import NamedTuple, Protocol

from cloud.visit import Visit
from common.csi.methods import UNARY
from common.deadlines import before_the_caller
from common.errors import CallError, CallTimeout, Draining, LinkLost, NodeOffline, Overloaded, TunnelClosed
from common.messages import Kind
from common.receiver import Receiver
from common.status import Status


class Call(NamedTuple):
    """One CSI call on its way to a node.

    Attributes:
        driver: the driver's name.
        method: the gRPC path.
        request: the request's bytes.
        call_id: the same at every hop, for logs.
        timeout_s: the caller's remaining time, or None.
        epoch: the number of the driver's election (`cloud.election`); 0: it has none.
    """

    driver: str
    method: str
    request: bytes
    call_id: str
    timeout_s: float | None
    epoch: int = 0


class Caller(Protocol):
    """Takes the answer of a call, at once: no method waits. It hears nothing before `Nodes.call` returns."""

    def sent(self) -> None:
        """The request has left for the node. Told once after `Reply.is_sent` was False."""

    def answered(self, message: bytes) -> None:
        """A message of the answer came, and it is not the last one of a unary answer."""

    def ended(self, status: Status, message: bytes | None) -> None:
        """The node ended the call, with a last message if there is one. Call `Reply.acknowledge` now or later."""

    def failed(self, error: Exception) -> None:
        """The call ended without the node's status. Call `Reply.cancel`."""


class Reply(Protocol):
    """The hub's side of a call that a node serves. `Caller` gets the answer."""

    @property
    def is_sent(self) -> bool:
        """Whether the request has left for the node. If it has not, asking makes `Caller.sent` follow."""

    def passed_on(self) -> None:
        """The messages so far have left for the caller, or nobody needs them: the node may send as many again."""

    def acknowledge(self, *, delivered: bool) -> None:
        """Release an answer that has ended: it reached the caller, or the caller did not take it."""

    def cancel(self) -> None:
        """Stop waiting for the answer, or release it undelivered. The `Caller` hears no more."""


class NodeCall(Receiver):
    """A call at a connected node. Its errors name the node.

    It has two ends: the node's stream (`common.receiver.Receiver`), and its caller in the hub (`Caller`).
    """

    __slots__ = (
        "_caller", "_driver", "_has_ended", "_id", "_limit_s", "_name", "_owed", "_visit",
    )  # fmt: skip

    def __init__(self, name: str, visit: Visit, call: Call, caller: Caller) -> None:
        self._name = name
        self._visit = visit
        self._caller = caller
        self._driver = call.driver
        self._owed: list[int] = []
        """The sizes of the messages whose credit has not gone back to the node."""
        self._has_ended = False
        self._limit_s = before_the_caller(call.timeout_s)
        try:
            self._id = visit.link.start(
                self,
                Kind.CALL,
                call.request,
                subject=call.driver,
                method=call.method,
                node=name,
                call=call.call_id,
                timeout_s=self._limit_s,
                epoch=call.epoch,
                is_unary=call.method in UNARY,
            )
        except Overloaded as error:
            raise Overloaded(f"agent of edge node {name}", error.limit, error.flag) from error
        except TunnelClosed as closed:
            if visit.link.over:
                raise self._offline() from closed
            raise Draining("hub") from closed  # the link lives and takes no new streams: this hub drains it
        visit.calls[call.driver] += 1

    @property
    def is_sent(self) -> bool:
        """See `Reply`."""
        return not self._visit.link.unsent(self._id)

    def passed_on(self) -> None:
        """See `Reply`."""
        for size in self._owed:
            self._visit.link.consumed(self._id, size)
        self._owed.clear()

    def acknowledge(self, *, delivered: bool) -> None:
        """See `Reply`."""
        self._leave()
        self._visit.link.acknowledge(self._id, delivered=delivered)

    def cancel(self) -> None:
        """See `Reply`."""
        if self._has_ended:
            self.acknowledge(delivered=False)
            return
        self._leave()
        self._visit.link.cancel(self._id)

    def _leave(self) -> None:
        self.passed_on()
        driver, self._driver = self._driver, ""
        if driver:
            calls = self._visit.calls
            calls[driver] -= 1
            if not calls[driver]:
                del calls[driver]

    # ---- the node's stream

    def writable(self) -> None:
        """See `Receiver`: the request has left."""
        self._caller.sent()

    def took(self, message: bytes) -> None:
        """See `Receiver`."""
        self._owed.append(len(message))
        self._caller.answered(message)

    def ended(self, status: Status, message: bytes | None) -> None:
        """See `Receiver`."""
        if message is not None:
            self._owed.append(len(message))
        self._has_ended = True
        self._caller.ended(status, message)

    def failed(self, error: TunnelClosed | CallTimeout) -> None:
        """See `Receiver`. The caller's error is one of these.

        NodeOffline: the node left before anything of the call was sent.
        LinkLost: the node left with the call under way.
        CallTimeout: the caller's time is up.
        """
        named: CallError
        if isinstance(error, CallTimeout):
            named = CallTimeout(f"driver {self._driver} on edge node {self._name}", self._limit_s)
        elif error.sent:
            named = LinkLost(f"edge node {self._name}")
        else:
            named = self._offline()
        named.__cause__ = error
        self._caller.failed(named)

    def _offline(self) -> NodeOffline:
        """The error for a call of which nothing was sent. It has the time of this link's end: the node may be back.

        The first such call may come before the hub hears that the link is gone. A retry gets the same time.
        """
        self._visit.ended = self._visit.ended or time.time()
        return NodeOffline(self._name, self._visit.ended)
