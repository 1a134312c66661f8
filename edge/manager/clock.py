"""A clock: what time it is, and who is to be called when; tests have one that they turn by hand."""

import asyncio
import time
from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    """A call to come."""

    def cancel(self) -> None:
        """It is not wanted any more. Harmless after it was called."""


class Clock(Protocol):
    """Two times and a bell."""

    def time(self) -> float:
        """Seconds since the epoch: what people and other machines mean. It may jump."""

    def monotonic(self) -> float:
        """Seconds since some moment: what waits are measured by."""

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        """Call back once, on the loop."""


class LoopClock:
    """The machine's clock, and the running loop's timers."""

    def time(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds since the machine's start."""
        return time.monotonic()

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        """Call back once, on the loop."""
        return asyncio.get_running_loop().call_later(max(0.0, delay_s), callback)
