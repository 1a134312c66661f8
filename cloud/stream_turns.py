"""The turns of an agent's streams: a later stream of one kind is served when the node's earlier one has ended.

An agent that renews its certificate has two links for a while, and the network keeps no order between them. Without
turns, an old fact that comes late over the first link would replace a newer one.
"""

import asyncio
from collections.abc import Awaitable, Callable

from common.link import Stream

PATIENCE_S = 10.0  # After this time the earlier stream is stopped. Its agent ends it when the later link is up.
Serve = Callable[[Stream], Awaitable[None]]


class StreamTurns:
    """Serves the streams of each node and kind one after another."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, int], asyncio.Task[None]] = {}  # the task of the newest stream, by node and kind

    def of(self, serve: Serve) -> Serve:
        """Return `serve` with turns."""

        async def in_turn(stream: Stream) -> None:
            assert stream.opened is not None
            assert stream.task is not None
            key, task = (stream.link.peer.name, stream.opened.kind), stream.task
            earlier, self._last[key] = self._last.get(key), task
            try:
                if earlier is not None:
                    _, late = await asyncio.wait([earlier], timeout=PATIENCE_S)
                    if late:
                        earlier.cancel()
                        await asyncio.wait([earlier])
                await serve(stream)
            finally:
                if self._last.get(key) is task:
                    del self._last[key]

        return in_turn
