"""The agent's sync streams: one brings objects from the hub into the metastore, one sends the node's facts to the hub.

Both run on each link, with a lower priority than calls, and begin with a comparison of digests. An agent beside a
kubelet opens one other stream instead, which only tells the hub of this mode.
"""

import asyncio

from common.link import Link, Stream
from common.messages import Kind, Priority
from common.standing import Standing
from common.sync_stream import Telling, learn
from edge.metastore import Metastore

# The interval at which the agent writes that its objects are current. One row a minute wears out no flash disk.
_REFRESH_S = 60.0


class SyncStreams:
    """Both streams of one agent. `up()` and `down()` follow the link."""

    def __init__(self, metastore: Metastore) -> None:
        self._metastore = metastore
        self._streams = (
            Standing(Kind.SYNC, self._learn, priority=Priority.SYNC),
            Standing(Kind.FACTS, self._tell, priority=Priority.SYNC),
        )

    def up(self, link: Link) -> None:
        for stream in self._streams:
            stream.up(link)

    def down(self) -> None:
        for stream in self._streams:
            stream.down()

    async def _learn(self, stream: Stream) -> None:
        objects = self._metastore.objects
        refreshing = asyncio.get_running_loop().create_task(self._refresh(), name="age of the metastore")
        try:
            await learn(stream, objects)
        finally:
            refreshing.cancel()
            objects.out_of_step()

    async def _refresh(self) -> None:
        while True:
            await asyncio.sleep(_REFRESH_S)
            await self._metastore.objects.still_in_step()

    async def _tell(self, stream: Stream) -> None:
        facts = self._metastore.facts
        telling = Telling(stream, facts, hear=facts.hear)
        unlisten = facts.listen(telling.changed)
        try:
            await telling.run()
        finally:
            unlisten()


def observe_stream() -> Standing:
    return Standing(Kind.OBSERVE, _hold, priority=Priority.SYNC)


async def _hold(stream: Stream) -> None:
    async for _ in stream:  # no message comes
        pass
