"""A forwarded call: one CSI call of a sidecar, on its way to the hub and back. It needs no task.

It has two ends: the server's call (`common.relay.server_call.Callee`), and a stream of the link to the hub
(`common.receiver.Receiver`).

Rules:

* The credit of a message goes back when the caller's socket has taken it: a slow caller slows the vendor.
* The hub learns whether the caller's socket has taken the whole answer. Until then the agent keeps a create's
  answer for the retry.
"""

from collections.abc import Callable

from common.accounting import Account
from common.csi.methods import UNARY
from common.errors import CallError, CallTimeout, LinkLost, MessageTooLarge, TunnelClosed
from common.link import Link
from common.messages import Kind
from common.receiver import Receiver
from common.relay.server_call import ServerCall
from common.status import Status

SIDECAR_MESSAGE_BYTES = 4 * 1_048_576
"""The largest answer that a stock sidecar takes: grpc-go's default, which no sidecar raises."""


class ForwardedCall(Receiver):
    """One call under way."""

    __slots__ = ("_account", "_call", "_link", "_number", "_size", "_unreachable")

    def __init__(
        self, call: ServerCall, account: Account, link: Link, *, node: str, unreachable: Callable[[str], CallError]
    ) -> None:
        """Send a call to the hub, for a node if `node` is not empty.

        `unreachable` makes the error for a call of which nothing was sent, because the link has ended for this reason.

        Raises:
            CallError: nothing was sent.
        """
        self._call, self._account, self._link, self._unreachable = call, account, link, unreachable
        self._size = 0
        try:
            self._number = link.start(
                self,
                Kind.CALL,
                call.request,
                subject=account.driver,
                method=call.method,
                node=node,
                call=account.call_id,
                timeout_s=call.timeout_s,
                is_unary=call.method in UNARY,
            )
        except TunnelClosed as error:
            raise unreachable(error.why) from error

    # ---- the hub's side (`common.receiver.Receiver`)

    def took(self, message: bytes) -> None:
        """Give the sidecar a message of the answer."""
        link, number, size = self._link, self._number, len(message)
        self._account.response_bytes += size
        if size > SIDECAR_MESSAGE_BYTES:
            link.consumed(number, size)
            link.cancel(number)
            self._fail(MessageTooLarge(size, SIDECAR_MESSAGE_BYTES, "an answer", "no stock sidecar takes a larger one"))
        else:
            self._call.put(message, lambda _taken: link.consumed(number, size))

    def ended(self, status: Status, message: bytes | None) -> None:
        """Give the sidecar the status, and the answer's last message."""
        if message is not None:
            if len(message) > SIDECAR_MESSAGE_BYTES:
                self.took(message)
            else:
                self._size = len(message)
                self._account.response_bytes += self._size
        self._account.status = status
        self._call.answer(status, message, self._taken)

    def failed(self, error: TunnelClosed | CallTimeout) -> None:
        """Tell the sidecar that the link ended first, or that its time is up."""
        if isinstance(error, CallTimeout):
            self._fail(CallTimeout(f"driver {self._account.driver}"))
        else:
            self._fail(LinkLost("the hub") if error.sent else self._unreachable(error.why))

    # ---- the sidecar's side (`common.relay.server_call.Callee`)

    def cancelled(self) -> None:
        """Cancel the call at the hub: the sidecar does not wait any longer, or the server closes."""
        self._link.cancel(self._number)
        self._account.leave()
        self._call.fail(None)

    def _fail(self, error: CallError) -> None:
        self._account.fail(error)
        self._call.fail(error)

    def _taken(self, delivered: bool) -> None:  # noqa: FBT001  # as `common.relay.connection.Taken`
        if self._size:
            self._link.consumed(self._number, self._size)
        self._link.acknowledge(self._number, delivered=delivered)
        if delivered and self._account.status is not None:
            self._account.end(self._account.status)
        else:
            self._account.leave()
