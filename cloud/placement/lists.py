"""The nodes' lists: asks nodes in the background for all their things of a kind, for the claim store.

Rules:

* One node gets one question of a kind at a time, and none within a minute of the last one.
* At most 20 nodes list at once: the lists of thousands would fill the hub's links with answers that can wait.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial

from cloud.node_call import Call, Caller, Reply
from cloud.placement.claim_store import ClaimStore, ListsTooLarge
from cloud.placement.inventory import Unlisted, take
from common.errors import CallError

log = logging.getLogger("csi_bridge.hub.placement")

_AGAIN_S = 60.0
"""A node gets no second question within this time."""

_AT_ONCE = 20

_Key = tuple[str, str, str]
"""Driver, node and kind."""


class Lists:
    """Asks the nodes of every driver for their lists."""

    def __init__(
        self,
        call: Callable[[str, Call, Caller], Reply],
        store: ClaimStore,
        *,
        now: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        """Lists for a store.

        Args:
            call: sends a call to a node (`cloud.edge_nodes.Nodes.call`).
            store: gets the lists.
            now: seconds since the epoch.
            monotonic: seconds of the monotonic clock.
        """
        self._call, self._store, self._now, self._monotonic = call, store, now, monotonic
        self._asked: dict[_Key, float] = {}
        """When a node was asked last, in seconds of the monotonic clock."""
        self._tasks: dict[_Key, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(_AT_ONCE)

    def ask(self, driver: str, kind: str, nodes: Iterable[str]) -> None:
        """Ask nodes for their lists of a kind, unless they were asked a moment ago."""
        now = self._monotonic()
        for node in nodes:
            key = (driver, node, kind)
            if now - self._asked.get(key, -_AGAIN_S) >= _AGAIN_S and key not in self._tasks:
                self._asked[key] = now
                task = self._tasks[key] = asyncio.create_task(self._take(*key), name=f"list-{node}")
                task.add_done_callback(partial(self._ended, key))

    def forget(self, node: str, driver: str = "") -> None:
        """Drop the questions to a node, or about one driver there."""
        for key in [key for key in self._asked if key[1] == node and driver in ("", key[0])]:
            del self._asked[key]
            if key in self._tasks:
                self._tasks[key].cancel()

    async def settled(self) -> None:
        """Wait until no node is being asked."""
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def close(self) -> None:
        """Ask no more."""
        for task in self._tasks.values():
            task.cancel()
        await self.settled()

    def _ended(self, key: _Key, _: asyncio.Task[None]) -> None:
        self._tasks.pop(key, None)

    async def _take(self, driver: str, node: str, kind: str) -> None:
        try:
            async with self._slots:
                began = self._now()
                things = await take(self._call, driver, node, kind)
            await self._store.listed(driver, node, kind, things, began=began)
        except (CallError, Unlisted, ListsTooLarge) as error:
            log.warning("edge node %s could not list each %s of driver %s: %s", node, kind, driver, error)
        else:
            log.info("edge node %s has listed each %s of driver %s: %d", node, kind, driver, len(things))
