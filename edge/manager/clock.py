"""The clock of the volume manager: the time, and timers. Tests pass one that they advance by hand."""

import asyncio
import time
from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    """A scheduled call."""

    def cancel(self) -> None:
        """Cancel the call. Does nothing after the call was made."""


class Clock(Protocol):
    """Gives the time, and calls back later."""

    def time(self) -> float:
        """Return seconds since the epoch, for people and other machines. It may jump."""

    def monotonic(self) -> float:
        """Return seconds since a fixed moment, for measuring waits."""

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        """Call `callback` once, on the loop."""


class LoopClock:
    """The machine's clock, and the running loop's timers."""

    def time(self) -> float:
        """Return seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Return seconds since the machine's start."""
        return time.monotonic()

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        """Call `callback` once, on the loop."""
        return asyncio.get_running_loop().call_later(max(0.0, delay_s), callback)
