"""What is in use: the volumes that stand in each Node's `status.volumesInUse`, as far as the hub knows; and who waits.

An agent stages a volume for the first time when the hub has confirmed that the volume stands there
(docs/csi-contract.md#volumesinuse-comes-before-staging). What the hub knows is of its present life: whether an earlier
one wrote what it had stored, only the API server can say. While a request is under way, and after one without an
answer, only that stands there which does so before it and after it.
"""

import asyncio
from collections import defaultdict
from collections.abc import Collection


class InUse:
    """The volumes of all nodes."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        self._written: dict[str, frozenset[str]] = {}
        self._waiting: defaultdict[str, list[tuple[frozenset[str], asyncio.Future[None]]]] = defaultdict(list)

    def begin(self, node: str, volumes: Collection[str]) -> None:
        """These are being written: until that has been answered, of what stood there only they do for certain."""
        self._written[node] = self._written.get(node, frozenset()).intersection(volumes)

    def note(self, node: str, volumes: Collection[str]) -> None:
        """These stand in the Node now; in one that is lost since `begin` nothing does, whatever was answered."""
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
        """Whether these stand there."""
        return self._written.get(node, frozenset()).issuperset(volumes)

    async def wait(self, node: str, volumes: Collection[str]) -> None:
        """Wait until these stand there, or `end`."""
        if not self.has(node, volumes):
            done = asyncio.get_running_loop().create_future()
            self._waiting[node].append((frozenset(volumes), done))
            await done

    def lose(self, node: str) -> None:
        """The Node is gone: nothing stands there."""
        self._written.pop(node, None)

    def end(self, node: str) -> None:
        """Nothing is written of the node any more: nobody waits for it."""
        self.lose(node)
        for _, done in self._waiting.pop(node, []):
            if not done.done():
                done.set_result(None)
