"""The tries of one step: when a step that failed may be tried again, as the kubelet spaces its tries."""

from dataclasses import dataclass

from common.links.backoff import Backoff

# 500 ms, doubled up to 2 min 2 s (kubernetes pkg/util/goroutinemap/exponentialbackoff/exponential_backoff.go,
# initialDurationBeforeRetry and maxDurationBeforeRetry).
KUBELET = Backoff(first_s=0.5, most_s=122.0)


@dataclass(slots=True)
class Tries:
    """The tries of one step."""

    ready_at: float = 0.0  # the next try may begin at this time of the monotonic clock
    failures: int = 0
    _counted: int = 0  # failures since the last `retry_now`: these make the wait longer

    def failed(self, now: float) -> None:
        self.failures += 1
        self._counted += 1
        self.ready_at = now + KUBELET.wait_s(self._counted)

    def retry_now(self) -> None:
        """Something that the step needs has changed: it may be tried at once, and soon again if that fails."""
        self.ready_at = 0.0
        self._counted = 0
