"""A token bucket: it gains turns at a rate, holds a burst of them at most, and begins full. Pure."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Bucket:
    """A token bucket."""

    a_second: float  # the turns that it gains
    burst: float  # the most turns that it holds
    at: float  # when its turns were counted, in seconds of a monotonic clock
    left: float = field(init=False)  # the turns that it had then

    def __post_init__(self) -> None:
        self.left = self.burst

    def count(self, now: float) -> float:
        self.left = min(self.burst, self.left + (now - self.at) * self.a_second)
        self.at = now
        return self.left

    def take(self, now: float) -> bool:
        if self.count(now) < 1:
            return False
        self.left -= 1
        return True
