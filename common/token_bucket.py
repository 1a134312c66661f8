"""A token bucket: it gains turns at a rate, holds a burst of them at most, and begins full. Pure."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Bucket:
    """A token bucket.

    Attributes:
        a_second: it gains so many turns a second.
        burst: it holds so many at most.
        at: when its turns were counted, in seconds of a monotonic clock.
        left: the turns that it had then.
    """

    a_second: float
    burst: float
    at: float
    left: float = field(init=False)

    def __post_init__(self) -> None:
        self.left = self.burst

    def count(self, now: float) -> float:
        """Return the turns that it has now."""
        self.left = min(self.burst, self.left + (now - self.at) * self.a_second)
        self.at = now
        return self.left

    def take(self, now: float) -> bool:
        """Take one turn, if there is one."""
        if self.count(now) < 1:
            return False
        self.left -= 1
        return True
