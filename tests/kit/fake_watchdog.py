"""A watchdog device that a test plays: a named pipe. Each byte pets it, and a `V` stops it."""

import os
import select
import threading
import time
from collections.abc import Callable
from pathlib import Path


class FakeWatchdog:
    """One watchdog. It does not run before the first byte.

    Attributes:
        path: of the pipe.
    """

    def __init__(self, path: Path, time_s: float, reset: Callable[[], None]) -> None:
        """Make the pipe.

        Args:
            time_s: seconds without a byte after which it resets the machine.
            reset: resets it; called in a thread.
        """
        self.path, self._time_s, self._reset = path, time_s, reset
        self.resets = 0  # how often its time has ended
        os.mkfifo(path)
        self._pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End it. It resets nothing any more."""
        self._is_over.set()
        self._thread.join()
        os.close(self._pipe)

    def _run(self) -> None:
        ends_at = float("inf")
        while not self._is_over.is_set():
            readable, _, _ = select.select([self._pipe], [], [], 0.05)
            now = time.monotonic()
            if readable:
                petted = os.read(self._pipe, 1 << 16)
                ends_at = float("inf") if petted.endswith(b"V") else now + self._time_s
            elif now >= ends_at:
                self.resets += 1
                ends_at = float("inf")
                self._reset()
