"""An account: one call at one hop, from its arrival to the metric and the log line of its end.

Rules:

* `end`, `fail` or `leave` closes it. Only the first of these counts.
* The call of a hop is its account: it builds on this class.
* Closing is cheap: it adds to plain numbers, and leaves the formatting and writing of the line to a thread
  (`common.observe.line_writer`). An account is not changed after that.
"""

import asyncio
import logging
import time
from bisect import bisect_left
from dataclasses import replace

from common.errors import status_of
from common.observe import logs
from common.observe.metrics import CALL_BUCKETS_S, Metrics
from common.status import Code, Origin, Status

# A caller that leaves after this share of its time ran out of time. Less than 1: each hop counts from its own start.
_SPENT = 0.9


class Accounts:
    """What the accounts of one hop's calls have in common."""

    __slots__ = ("log", "metrics", "origin")

    def __init__(self, metrics: Metrics, log: logging.Logger, *, origin: Origin) -> None:
        self.metrics = metrics
        self.log = log.name
        self.origin = origin


class Account:
    """One call at one hop. `call_id` is the same at every hop, and `response_bytes` the size of all answers."""

    __slots__ = ("accounts", "began", "call_id", "driver", "is_over", "method", "node", "request_bytes",
                 "response_bytes", "status", "timeout_s")  # fmt: skip

    def __init__(
        self, accounts: Accounts, driver: str, method: str, call_id: str, node: str, *, timeout_s: float | None
    ) -> None:
        """Open it for a call that arrives now. `node` is empty while it is not known; `timeout_s` None: no end."""
        accounts.metrics.calls_in_flight += 1
        self.accounts = accounts
        self.timeout_s = timeout_s
        self.driver = driver
        self.method = method
        self.call_id = call_id
        self.node = node
        self.status: Status | None = None
        self.request_bytes = self.response_bytes = 0
        self.began = time.monotonic()
        self.is_over = False

    def end(self, status: Status) -> None:
        if self.is_over:
            return
        self.is_over = True
        self.status = status
        driver = self.driver
        method = self.method
        metrics = self.accounts.metrics
        duration_s = time.monotonic() - self.began
        metrics.calls_in_flight -= 1
        durations = metrics.durations.get((driver, method, status.code)) or metrics.find(driver, method, status.code)
        durations.counts[bisect_left(CALL_BUCKETS_S, duration_s)] += 1
        durations.sum_s += duration_s
        if logs.calls is None:
            return
        # A vendor's message may have megabytes, a caller's method as much as a header may have, and the line may wait.
        method = method[: logs.LONGEST_MESSAGE_CHARS]
        if len(status.message) > logs.LONGEST_MESSAGE_CHARS:
            status = replace(status, message=status.message[: logs.LONGEST_MESSAGE_CHARS + 1])
        logs.calls.add((self.accounts.log, time.time(), duration_s, self.node, driver, method, self.call_id, status,
                        self.request_bytes, self.response_bytes))  # fmt: skip

    def fail(self, error: BaseException | None) -> None:
        """Close the account of a call that ended with an error, as in `status_of()`; with a cancelled task, as left."""
        if isinstance(error, asyncio.CancelledError):
            self.leave()
        else:
            self.end(status_of(error, self.accounts.origin))

    def leave(self) -> None:
        """Close the account of a call whose caller left: CANCELLED, or DEADLINE_EXCEEDED if its time was up."""
        if self.timeout_s is not None and time.monotonic() - self.began >= self.timeout_s * _SPENT:
            self.end(Status(Code.DEADLINE_EXCEEDED, "the caller's time was up", self.accounts.origin))
        else:
            self.end(Status(Code.CANCELLED, "the caller did not wait", self.accounts.origin))
