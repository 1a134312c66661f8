"""A forwarded call: one CSI call of a sidecar, on its way to the hub and back. It needs no task.

Rules:

* The credit of a message goes back when the caller's socket has taken it: a slow caller slows the vendor.
* The hub learns whether the caller's socket has taken the whole answer. Until then the agent keeps a create's
  answer for the retry.
"""

import time

from common.csi.methods import UNARY
from common.errors import CallError, CallTimeout, LinkLost, MessageTooLarge, TunnelClosed, shutting_down, timestamp
from common.messages import Kind
from common.observe.accounting import Account
from common.relay.server_call import CancelReason, ServerCall
from common.session.link import Link
from common.session.receiver import Receiver
from common.status import Status

# The largest answer that a stock sidecar takes: grpc-go's default, which no sidecar raises.
SIDECAR_MESSAGE_BYTES = 4 * 1_048_576


class ForwardedCall(Account, Receiver):
    """One call under way. It is its own account."""

    __slots__ = ("_call", "_link", "_number", "_owed")

    def send(self, link: Link, call: ServerCall) -> None:
        """Send the sidecar's call to the hub. Raises CallError: nothing was sent."""
        self._link = link
        self._call = call
        # The size of the answer's last message, whose credit goes back with the status; -1: there is none.
        self._owed = -1
        try:
            self._number = link.start(
                self,
                Kind.CALL,
                call.request,
                subject=self.driver,
                method=self.method,
                node=self.node,
                call=self.call_id,
                timeout_s=self.timeout_s,
                is_unary=self.method in UNARY,
            )
        except TunnelClosed as error:
            raise no_hub(error.why, time.time()) from error

    # ---- the hub's side (`common.session.receiver.Receiver`)

    def took(self, message: bytes) -> None:
        """Give the sidecar a message of the answer, which is not the last one of a unary answer."""
        link = self._link
        number = self._number
        size = len(message)
        self.response_bytes += size
        if size > SIDECAR_MESSAGE_BYTES:
            self._refuse(size)
        else:
            self._call.put(message, lambda _taken: link.consumed(number, size))

    def ended(self, status: Status, message: bytes | None) -> None:
        if message is not None:
            self.response_bytes += len(message)
            if len(message) > SIDECAR_MESSAGE_BYTES:
                self._refuse(len(message))
                return
            self._owed = len(message)
        self.status = status
        self._call.answer(status, message, self._taken)

    def failed(self, error: TunnelClosed | CallTimeout) -> None:
        if isinstance(error, CallTimeout):
            self._end_with(CallTimeout(f"driver {self.driver}"))
        else:
            self._end_with(LinkLost("the hub") if error.sent else no_hub(error.why, time.time()))

    # ---- the sidecar's side (`common.relay.server_call.Callee`)

    def cancel(self) -> None:
        """Cancel the call at the hub: the sidecar does not wait any longer, or the server closes."""
        self._link.cancel(self._number)
        if self._call.cancelled_by is CancelReason.CLOSING:
            self.fail(shutting_down("proxy driver"))
        else:
            self.leave()
        self._call.fail(None)  # with the code of its cancellation

    def _taken(self, delivered: bool) -> None:  # noqa: FBT001  # as `common.relay.connection.Taken`
        if self._owed >= 0:
            self._link.consumed(self._number, self._owed)
        self._link.acknowledge(self._number, delivered=delivered)
        if delivered and self.status is not None:
            self.end(self.status)
        else:
            self.leave()

    # ---- inside

    def _refuse(self, size: int) -> None:
        self._link.consumed(self._number, size)
        self._link.cancel(self._number)
        self._end_with(MessageTooLarge(size, SIDECAR_MESSAGE_BYTES, "an answer", "no stock sidecar takes a larger one"))

    def _end_with(self, error: CallError) -> None:
        self.fail(error)
        self._call.fail(error)


def no_hub(why: str, since: float) -> CallError:
    """The error of a proxy driver that has no link to a hub that leads."""
    return CallError(
        f"the proxy driver has no link to the hub since {timestamp(since)}: {why}; look at the hub's log, and at the "
        f"proxy driver's"
    )
