"""An account: what one hop notes of one call, its metric and its line in the log, written after the answer has left."""

import asyncio
import logging
import time
from dataclasses import dataclass, field

from common.errors import status_of
from common.logs import bind, log_call
from common.metrics import Metrics
from common.status import Code, Origin, Status

_SPENT = 0.9
"""A caller that goes with so much of its time spent went because of it: on its way to this hop its cancel may have been
quicker than its call, and both hops count from their own start."""


@dataclass(slots=True)
class Account:
    """One call at one hop.

    Attributes:
        driver: the driver's name.
        method: the gRPC path.
        call_id: the same at every hop.
        node: the edge node, once it is known.
        status: how the call ended here, if the block says so; otherwise its end does.
        request_bytes: the request's size.
        response_bytes: the size of all answers.
    """

    driver: str
    method: str
    call_id: str
    node: str
    status: Status | None = None
    request_bytes: int = 0
    response_bytes: int = 0
    began: float = field(default_factory=time.monotonic)

    def log_fields(self) -> dict[str, str]:
        """What stands in every line of the log that is written while it is under way (`common.logs.About`)."""
        fields = {"node": self.node, "driver": self.driver, "method": self.method, "call_id": self.call_id}
        return fields if self.node and self.driver else {name: value for name, value in fields.items() if value}


class Accounted:
    """`with Accounted(…) as account`: accounts for the call inside the block, which sets `status` before its end.

    What ends the block without a status is counted as what the caller is told of it: an error as `status_of()` has it,
    a cancelled task as a caller that did not wait, or that had no time left.
    """

    __slots__ = ("_account", "_log", "_metrics", "_origin", "_timeout_s")

    def __init__(
        self,
        metrics: Metrics,
        log: logging.Logger,
        *,
        origin: Origin,
        driver: str,
        method: str,
        call_id: str,
        node: str = "",
        timeout_s: float | None = None,
    ) -> None:
        """What is known when the call arrives; `origin` is the hop, `timeout_s` what is left of the caller's time."""
        self._metrics = metrics
        self._log = log
        self._origin = origin
        self._timeout_s = timeout_s
        self._account = Account(driver, method, call_id, node)

    def __enter__(self) -> Account:
        self._metrics.calls_in_flight.inc()
        bind(self._account)
        return self._account

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        self._metrics.calls_in_flight.dec()
        account = self._account
        duration_s = time.monotonic() - account.began
        status = account.status or self._status_of(error, duration_s)
        # Not now: the answer is about to leave, and formatting a line takes longer than sending it.
        asyncio.get_running_loop().call_soon(_write, self._metrics, self._log, account, status, duration_s)

    def _status_of(self, error: BaseException | None, duration_s: float) -> Status:
        if not isinstance(error, asyncio.CancelledError):
            return status_of(error, self._origin)
        if self._timeout_s is not None and duration_s >= self._timeout_s * _SPENT:
            return Status(Code.DEADLINE_EXCEEDED, "the caller's time was up", self._origin)
        return Status(Code.CANCELLED, "the caller did not wait", self._origin)


def _write(metrics: Metrics, log: logging.Logger, account: Account, status: Status, duration_s: float) -> None:
    metrics.observe_call(account.driver, account.method, status.code, duration_s)
    log_call(
        log,
        status,
        duration_s=duration_s,
        request_bytes=account.request_bytes,
        response_bytes=account.response_bytes,
    )
