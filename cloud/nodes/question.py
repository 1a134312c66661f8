"""A question: one CSI call of the hub's own to a node, and its answer of one message."""

import asyncio
from typing import NamedTuple

from cloud.nodes.visit import Visit
from common.csi.methods import UNARY
from common.errors import CallTimeout, Overloaded, TunnelClosed, VendorBroken
from common.messages import Kind
from common.session.deadlines import before_the_caller
from common.session.receiver import Receiver
from common.status import Status

Answer = tuple[Status, bytes | None]  # the status and the message of a call that the hub answers itself


class Question(NamedTuple):
    """One CSI call."""

    driver: str
    method: str  # the gRPC path
    request: bytes
    call_id: str  # the same at every hop, for logs
    timeout_s: float | None  # of the caller for whom the hub asks
    epoch: int = 0  # of the driver's election (`cloud.claims.election`); 0: it has none


async def ask(visit: Visit, question: Question) -> tuple[Status, bytes]:
    """Ask a node over its link. If the asker is cancelled, the call is, too. Raises CallError."""
    asked = _Asked(visit, question)
    try:
        number = visit.link.start(
            asked,
            Kind.CALL,
            question.request,
            subject=question.driver,
            method=question.method,
            node=visit.node,
            call=question.call_id,
            timeout_s=before_the_caller(question.timeout_s),
            epoch=question.epoch,
            is_unary=question.method in UNARY,
        )
    except (Overloaded, TunnelClosed) as error:
        raise visit.not_sent(error) from error
    visit.calls[question.driver] += 1
    try:
        status, message = await asked.whole
    except BaseException:
        visit.link.cancel(number)
        raise
    else:
        visit.link.acknowledge(number, delivered=True)
    finally:
        visit.calls[question.driver] -= 1
        for size in asked.sizes:
            visit.link.consumed(number, size)
    return status, message


class _Asked(Receiver):
    """Takes an answer of one message. `sizes`: the messages whose credit has not gone back."""

    def __init__(self, visit: Visit, question: Question) -> None:
        self._visit = visit
        self._question = question
        self.sizes: list[int] = []
        self.whole: asyncio.Future[tuple[Status, bytes]] = asyncio.get_running_loop().create_future()

    def took(self, message: bytes) -> None:
        """Refuse a message that is not the last one."""
        self.sizes.append(len(message))
        self._fail(VendorBroken(self._question.driver, self._visit.node, "it answered with several messages"))

    def ended(self, status: Status, message: bytes | None) -> None:
        if message is not None:
            self.sizes.append(len(message))
        if not self.whole.done():
            self.whole.set_result((status, message or b""))

    def failed(self, error: TunnelClosed | CallTimeout) -> None:
        self._fail(self._visit.fault(error, self._question.driver, before_the_caller(self._question.timeout_s)))

    def _fail(self, error: Exception) -> None:
        if not self.whole.done():
            self.whole.set_exception(error)
