"""A back-off: when a step that failed may be tried again, as the kubelet spaces its tries."""

from dataclasses import dataclass

FIRST_S = 0.5
"""After the first failure (kubernetes pkg/util/goroutinemap/exponentialbackoff, initialDurationBeforeRetry)."""

MOST_S = 122.0
"""Between two tries at most: 2 min 2 s (the same file, maxDurationBeforeRetry)."""


@dataclass(slots=True)
class Backoff:
    """The tries of one step.

    Attributes:
        ready_at: from when on it may be tried, by the monotonic clock.
        failures: in a row.
    """

    ready_at: float = 0.0
    failures: int = 0
    _wait_s: float = 0.0

    def failed(self, now: float) -> None:
        """It failed: the next try is twice as far away."""
        self.failures += 1
        self._wait_s = min(self._wait_s * 2, MOST_S) if self._wait_s else FIRST_S
        self.ready_at = now + self._wait_s

    def retry_now(self) -> None:
        """What it needs has changed: it may be tried at once, and if that fails soon again."""
        self.ready_at = 0.0
        self._wait_s = 0.0
