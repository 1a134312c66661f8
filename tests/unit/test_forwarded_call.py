"""A forwarded call, as its account has it: how the sidecar's call ended, in the metrics and in the log."""

import logging

import pytest

from cloud.proxy.forwarded_call import ForwardedCall
from common.observe.accounting import Accounts
from common.observe.metrics import Metrics
from common.relay.server import CancelReason
from common.status import Code, Origin


class Ends:
    """Stands in for the link and for the server's call."""

    def __init__(self, reason: CancelReason) -> None:
        self.request, self.cancelled_by = b"", reason

    def start(self, *_: object, **__: object) -> int:
        return 1

    def cancel(self, _number: int) -> None:
        """The hub is told."""

    def fail(self, _error: Exception | None) -> None:
        """The sidecar gets the server's status."""


@pytest.mark.parametrize(
    ("reason", "code"),
    [(CancelReason.CLOSING, Code.UNAVAILABLE), (CancelReason.CALLER_LOST, Code.CANCELLED)],
)
def test_a_call_that_was_cut_is_noted_with_the_code_of_who_cut_it(reason: CancelReason, code: Code) -> None:
    accounts = Accounts(Metrics(), logging.getLogger("csi_bridge.test"), origin=Origin.PROXY)
    call = ForwardedCall(accounts, "d", "/csi.v1.Controller/CreateVolume", "c-1", "", timeout_s=60.0)
    ends = Ends(reason)
    call.send(ends, ends)  # type: ignore[arg-type]  # stands in for both
    call.cancel()
    assert call.status is not None
    assert call.status.code == code
