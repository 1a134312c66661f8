"""The volumes in use: those in each Node's `status.volumesInUse`, as far as the hub knows, and the waiters for them.

An agent stages a volume for the first time when the hub has confirmed that the volume stands there
(docs/csi-contract.md#volumesinuse-comes-before-staging). The hub learns this anew after each start: only the API server
knows which facts an earlier run has written. During a request, and after one without an answer, only the volumes that
stand there before and after it count.
"""

import asyncio
from collections import defaultdict
from collections.abc import Collection


class InUse:
    """The volumes in use on all nodes."""

    def __init__(self) -> None:
        self._written: dict[str, frozenset[str]] = {}
        self._waiting: defaultdict[str, list[tuple[frozenset[str], asyncio.Future[None]]]] = defaultdict(list)

    def begin(self, node: str, volumes: Collection[str]) -> None:
        """Note that these volumes are being written. Until the answer, only they count, if they stood there."""
        self._written[node] = self._written.get(node, frozenset()).intersection(volumes)

    def note(self, node: str, volumes: Collection[str]) -> None:
        """Note that these volumes stand in the Node, and wake waiters; not if the Node was lost since `begin`."""
        if node not in self._written:
            return
        self._written[node] = frozenset(volumes)
        waiting = self._waiting.pop(node, [])
        for wanted, done in waiting:
            if not self.has(node, wanted):
                self._waiting[node].append((wanted, done))
            elif not done.done():
                done.set_result(None)

    def has(self, node: str, volumes: Collection[str]) -> bool:
        return self._written.get(node, frozenset()).issuperset(volumes)

    async def wait(self, node: str, volumes: Collection[str]) -> None:
        """Wait until these volumes stand there, or until `end`."""
        if not self.has(node, volumes):
            done = asyncio.get_running_loop().create_future()
            self._waiting[node].append((frozenset(volumes), done))
            await done

    def lose(self, node: str) -> None:
        self._written.pop(node, None)

    def end(self, node: str) -> None:
        """Wake all waiters: the hub writes no more for this node."""
        self.lose(node)
        for _, done in self._waiting.pop(node, []):
            if not done.done():
                done.set_result(None)
