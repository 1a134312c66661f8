"""Settling: tells of many changes once, some time after the first of them."""

import asyncio
from collections.abc import Callable


class Settling:
    """Calls `tell` some seconds after a change."""

    def __init__(self, tell: Callable[[], None], settle_s: float) -> None:
        self._tell = tell
        self._settle_s = settle_s
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def changed(self) -> None:
        if self._timer is None and not self._closed:
            self._timer = asyncio.get_running_loop().call_later(self._settle_s, self._settled)

    def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _settled(self) -> None:
        self._timer = None
        self._tell()
