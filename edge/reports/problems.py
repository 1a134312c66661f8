"""The problems of this node that people must solve: found every few seconds, logged once each, and told to the hub.

A problem counts when two looks in a row find it: at the start, and while a driver restarts, not everything is known at
once.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

log = logging.getLogger("csi_bridge.edge")

LOOK_S = 5.0  # the interval between two looks


class Problems:
    """The problems of one node."""

    def __init__(self) -> None:
        self.standing: list[str] = []  # those that count, a sentence each

    async def run(self, look: Callable[[], Awaitable[list[str]]], *, changed: Callable[[], None]) -> None:
        before: list[str] = []
        while True:
            now = await look()
            standing = [problem for problem in dict.fromkeys(now) if problem in before]
            for problem in standing:
                if problem not in self.standing:
                    log.warning("%s", problem)
            if standing != self.standing:
                self.standing = standing
                changed()
            before = now
            await asyncio.sleep(LOOK_S)
