"""The turns of an agent's streams: a later stream of one kind is served when the node's earlier one has ended.

An agent that renews its certificate has two links for a while, and the network keeps no order between them. Without
turns, an old fact that comes late over the first link would replace a newer one.
"""

import asyncio
from collections.abc import Awaitable, Callable

from common.session.link import Stream

PATIENCE_S = 10.0  # After this time the earlier stream is stopped. Its agent ends it when the later link is up.
Serve = Callable[[Stream], Awaitable[None]]


def in_turns(serve: Serve) -> Serve:
    """Serve the streams of each node one after another by `serve`, which serves one kind."""
    last: dict[str, asyncio.Task[None]] = {}  # the task of the newest stream, by node

    async def in_turn(stream: Stream) -> None:
        assert stream.task is not None
        node = stream.link.peer.name
        task = stream.task
        earlier, last[node] = last.get(node), task
        try:
            if earlier is not None:
                _, late = await asyncio.wait([earlier], timeout=PATIENCE_S)
                if late:
                    earlier.cancel()
                    await asyncio.wait([earlier])
            await serve(stream)
        finally:
            if last.get(node) is task:
                if earlier is not None and not earlier.done():  # this stream ended while it waited
                    last[node] = earlier
                else:
                    del last[node]

    return in_turn
