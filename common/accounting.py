"""An account: what one hop notes of one call, its metric and its line in the log, written after the answer has left."""

import asyncio
import logging
import time
from dataclasses import dataclass, field

from common.logs import call_context, log_call
from common.metrics import Metrics
from common.status import Code, Origin, Status


@dataclass(slots=True)
class Account:
    """One call at one hop.

    Attributes:
        driver: the driver's name.
        method: the gRPC path.
        call_id: the same at every hop.
        node: the edge node, once it is known.
        status: how the call ended here; until somebody says so, its caller did not wait.
        request_bytes: the request's size.
        response_bytes: the size of all answers.
    """

    driver: str
    method: str
    call_id: str
    node: str
    status: Status
    request_bytes: int = 0
    response_bytes: int = 0
    began: float = field(default_factory=time.monotonic)


class Accounted:
    """`with Accounted(…) as account`: accounts for the call inside the block, which sets `status` before its end."""

    __slots__ = ("_account", "_log", "_metrics")

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
    ) -> None:
        """What is known when the call arrives; `origin` is the hop."""
        self._metrics = metrics
        self._log = log
        unanswered = Status(Code.CANCELLED, "the caller did not wait", origin)
        self._account = Account(driver, method, call_id, node, unanswered)

    def __enter__(self) -> Account:
        self._metrics.calls_in_flight.inc()
        return self._account

    def __exit__(self, *_error: object) -> None:
        self._metrics.calls_in_flight.dec()
        duration_s = time.monotonic() - self._account.began
        # Not now: the answer is about to leave, and formatting a line takes longer than sending it.
        asyncio.get_running_loop().call_soon(_write, self._metrics, self._log, self._account, duration_s)


def _write(metrics: Metrics, log: logging.Logger, account: Account, duration_s: float) -> None:
    metrics.observe_call(account.driver, account.method, account.status.code, duration_s)
    with call_context(node=account.node, driver=account.driver, method=account.method, call_id=account.call_id):
        log_call(
            log,
            account.status,
            duration_s=duration_s,
            request_bytes=account.request_bytes,
            response_bytes=account.response_bytes,
        )
