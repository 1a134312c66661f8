"""The machine's watchdog: the kernel resets the machine when nobody has petted it for some time.

Source: Documentation/watchdog/watchdog-api.rst of Linux. Opening the device starts it, or pets it if it runs.
"""

import contextlib
import fcntl
import os
import struct
from pathlib import Path
from typing import Final

LEAST_S: Final = 30  # the shortest time that is used: a flush of dirty pages to slow storage takes some seconds

_INT: Final = struct.Struct("i")
_SET_TIMEOUT: Final = 0xC0045706  # WDIOC_SETTIMEOUT
_GET_TIMEOUT: Final = 0x80045707  # WDIOC_GETTIMEOUT


class Watchdog:
    """One watchdog device."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None
        # Seconds without a pet after which it resets the machine, as read from it; 0 before it was opened.
        self.time_s = 0

    @property
    def is_open(self) -> bool:
        return self._descriptor is not None

    def pet(self, longest_s: int = 0) -> None:
        """Let it begin its time anew. Opens it if needed, and raises OSError if its time is too short.

        `longest_s` is the time with which the hub counts: a longer one is set to it. 0: any time will do.
        """
        if self._descriptor is None:
            self._open(longest_s)
        else:
            # Any byte pets it, but for the V of the magic close.
            os.write(self._descriptor, b"\0")

    def close(self, *, stops: bool) -> None:
        """Close it. It stops (the magic close), or it runs on and resets the machine unless somebody opens it."""
        if self._descriptor is not None:
            if stops:
                with contextlib.suppress(OSError):
                    os.write(self._descriptor, b"V")
            os.close(self._descriptor)
            self._descriptor = None

    def _open(self, longest_s: int) -> None:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC)
        self._descriptor = descriptor
        try:
            time_s = self._ask(_GET_TIMEOUT)
            if longest_s and time_s > longest_s:
                time_s = self._ask(_SET_TIMEOUT, longest_s)
        except OSError:
            self.close(stops=not longest_s)
            raise
        if time_s < LEAST_S or 0 < longest_s < time_s:
            self.close(stops=not longest_s)
            raise OSError(f"its time is {time_s} s; set it to {longest_s or LEAST_S} s (wdctl --settimeout)")
        self.time_s = time_s

    def _ask(self, request: int, value: int = 0) -> int:
        assert self._descriptor is not None
        (answer,) = _INT.unpack(fcntl.ioctl(self._descriptor, request, _INT.pack(value)))
        return int(answer)
