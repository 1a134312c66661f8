"""A time limit: ends each of many calls that lasts longer than a limit, which is the same for all.

They end in the order in which they began, so one timer serves all of them.
"""

import asyncio
from collections import OrderedDict
from typing import Protocol


class Limited(Protocol):
    """Something that may last `limit_s` at most."""

    def expire(self) -> None:
        """Its time is up."""


class TimeLimit:
    """Watches everything that began and has not ended.

    Attributes:
        limit_s: how long each may last.
    """

    __slots__ = ("_timer", "_until", "limit_s")

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._until: OrderedDict[Limited, float] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, item: Limited) -> None:
        """Call `item.expire()` after `limit_s`, unless `end` comes first."""
        loop = asyncio.get_running_loop()
        until = self._until[item] = loop.time() + self.limit_s
        if self._timer is None:
            self._timer = loop.call_at(until, self._look)

    def end(self, item: Limited) -> None:
        """Watch no more. It may have ended before."""
        self._until.pop(item, None)

    def _look(self) -> None:
        """Expire what is due, and come back for the next one."""
        loop = asyncio.get_running_loop()
        self._timer = None
        while self._until:
            item, until = next(iter(self._until.items()))
            if until > loop.time():
                self._timer = loop.call_at(until, self._look)
                return
            del self._until[item]
            item.expire()
