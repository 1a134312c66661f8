"""An account: one call at one hop, written to the metrics and the log after the answer has left."""

import asyncio
import logging
import time
from dataclasses import dataclass, field

from common.errors import status_of
from common.logs import bind, log_call
from common.metrics import Metrics
from common.status import Code, Origin, Status

_SPENT = 0.9
"""A caller that leaves after this share of its time ran out of time. Less than 1: each hop counts from its own start,
and the cancel may have travelled faster than the call."""


@dataclass(slots=True)
class Account:
    """One call at one hop.

    Attributes:
        driver: the driver's name.
        method: the gRPC path.
        call_id: the same at every hop.
        node: the edge node, once it is known.
        status: how the call ended here; None: the end of the `with` block tells.
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
        """The fields of each log line that is written during the call (`common.logs.About`)."""
        fields = {"node": self.node, "driver": self.driver, "method": self.method, "call_id": self.call_id}
        return fields if self.node and self.driver else {name: value for name, value in fields.items() if value}


class Accounted:
    """Accounts for the call inside a `with` block, which sets `account.status` before it ends.

    If the block sets no status, its end counts: an error as in `status_of()`, a cancelled task as CANCELLED, or as
    DEADLINE_EXCEEDED if the caller's time was up.
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
        """An account of a call that has just arrived; `origin` is this hop, `timeout_s` the caller's remaining time."""
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
