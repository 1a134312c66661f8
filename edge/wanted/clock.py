"""The clock of the volume manager: the time, and timers. Tests pass one that they advance by hand."""

import asyncio
import time
from collections.abc import Callable


class Clock:
    """The machine's clock, and the running loop's timers."""

    def time(self) -> float:
        """Return seconds since the epoch, for people and other machines. It may jump."""
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(max(0.0, delay_s), callback)
