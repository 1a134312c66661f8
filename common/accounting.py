"""An account: one call at one hop, from its arrival to the metric and the log line of its end.

Rules:

* An account needs no task and no `with` block: `Accounts.begin` opens it, and `end`, `fail` or `leave` closes it. Only
  the first of these counts.
* A task that serves one call only may use the account as a context manager. Then the call's fields are in each log line
  of the task, and the end of the block closes the account.
* Closing is cheap: it adds to plain numbers, and leaves the formatting and writing of the line to a thread
  (`common.line_writer`). An account is not changed after that.
"""

import asyncio
import logging
import time
from typing import Self

from common.errors import status_of
from common.logs import bind, log_call
from common.metrics import Metrics
from common.status import Code, Origin, Status

_SPENT = 0.9
"""A caller that leaves after this share of its time ran out of time. Less than 1: each hop counts from its own start,
and the cancel may have travelled faster than the call."""


class Accounts:
    """Opens the accounts of one hop's calls.

    Attributes:
        metrics: the metrics of the process.
        log: the logger of the calls' lines.
        origin: this hop.
    """

    __slots__ = ("log", "metrics", "origin")

    def __init__(self, metrics: Metrics, log: logging.Logger, *, origin: Origin) -> None:
        self.metrics = metrics
        self.log = log
        self.origin = origin

    def begin(
        self, driver: str, method: str, call_id: str, *, node: str = "", timeout_s: float | None = None
    ) -> "Account":
        """Open the account of a call that has just arrived. `call_id` is the same at every hop.

        `node` is empty if it is not known yet. Without `timeout_s` the caller waits for ever.
        """
        self.metrics.calls_in_flight += 1
        return Account(self, driver, method, call_id, node, timeout_s=timeout_s)


class Account:
    """One call at one hop.

    Attributes:
        driver: the driver's name.
        method: the gRPC path.
        call_id: the same at every hop.
        node: the edge node, once it is known.
        status: how the call ended here. A `with` block may set it; otherwise the block's end tells.
        request_bytes: the request's size.
        response_bytes: the size of all answers.
        began: when the call arrived, on the monotonic clock.
        ended_at: when the call ended, in seconds since the epoch; 0.0 before.
        duration_s: from the call's arrival to its end.
    """

    __slots__ = (
        "_accounts",
        "_timeout_s",
        "began",
        "call_id",
        "driver",
        "duration_s",
        "ended_at",
        "method",
        "node",
        "request_bytes",
        "response_bytes",
        "status",
    )

    def __init__(
        self, accounts: Accounts, driver: str, method: str, call_id: str, node: str, *, timeout_s: float | None
    ) -> None:
        self._accounts = accounts
        self._timeout_s = timeout_s
        self.driver = driver
        self.method = method
        self.call_id = call_id
        self.node = node
        self.status: Status | None = None
        self.request_bytes = 0
        self.response_bytes = 0
        self.began = time.monotonic()
        self.ended_at = self.duration_s = 0.0

    def end(self, status: Status) -> None:
        """Close the account of a call that ended with this status."""
        if self.ended_at:
            return
        accounts = self._accounts
        self.status = status
        self.duration_s = time.monotonic() - self.began
        self.ended_at = time.time()
        accounts.metrics.calls_in_flight -= 1
        accounts.metrics.observe_call(self.driver, self.method, status.code, self.duration_s)
        log_call(accounts.log, self)

    def fail(self, error: BaseException | None) -> None:
        """Close the account of a call that ended with an error, as in `status_of()`; with a cancelled task, as left."""
        if isinstance(error, asyncio.CancelledError):
            self.leave()
        else:
            self.end(status_of(error, self._accounts.origin))

    def leave(self) -> None:
        """Close the account of a call whose caller left: CANCELLED, or DEADLINE_EXCEEDED if its time was up."""
        if self._timeout_s is not None and time.monotonic() - self.began >= self._timeout_s * _SPENT:
            self.end(Status(Code.DEADLINE_EXCEEDED, "the caller's time was up", self._accounts.origin))
        else:
            self.end(Status(Code.CANCELLED, "the caller did not wait", self._accounts.origin))

    def log_fields(self) -> dict[str, str]:
        """The fields of each log line of the call (`common.logs.About`)."""
        fields = {"node": self.node, "driver": self.driver, "method": self.method, "call_id": self.call_id}
        return fields if self.node and self.driver else {name: value for name, value in fields.items() if value}

    def __enter__(self) -> Self:
        bind(self)
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if self.status is not None:
            self.end(self.status)
        else:
            self.fail(error)
