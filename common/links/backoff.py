"""A back-off: the seconds to wait between tries, which grow with each failure up to a limit.

It reads no clock, waits for nothing and counts nothing: the caller counts the failures in a row.
"""

from collections.abc import Callable
from dataclasses import dataclass

_MOST_DOUBLINGS = 64  # enough for any limit; a larger power may be no float


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """The waits between the tries of one thing."""

    first_s: float
    most_s: float  # before jitter
    jitter: Callable[[float], float] = float  # by default none; for many clients, which must not try in step

    def wait_s(self, failures: int) -> float:
        """The seconds to wait after so many failures in a row; at least one."""
        return self.jitter(min(self.first_s * 2.0 ** min(failures - 1, _MOST_DOUBLINGS), self.most_s))
