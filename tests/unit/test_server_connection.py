"""A connection of the server, on the loop that the processes run on."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import uvloop

from common.relay.server_connection import ServerConnection, _Request

if TYPE_CHECKING:
    from common.relay.server import Server
    from common.relay.server_call import ServerCall

LONG_AGO_S = 60.0


class Callee:
    """Serves calls that never end."""

    def __init__(self) -> None:
        self.left = 0

    def cancelled(self) -> None:
        self.left += 1


def test_calls_that_come_together_after_their_deadlines_end_and_so_does_no_connection() -> None:
    """For a time in the past, uvloop's `call_at` returns a handle that has no time."""
    callee = Callee()

    def handler(_call: ServerCall) -> Callee:
        return callee

    async def come() -> None:
        owner = SimpleNamespace(settings=None, handler=handler, call_began=lambda: None)
        connection, loop = ServerConnection(cast("Server", owner)), asyncio.get_running_loop()
        made: Any = connection
        made._loop = loop
        for stream_id, late_s in ((1, LONG_AGO_S), (3, 2 * LONG_AGO_S), (5, LONG_AGO_S)):
            request = _Request("/csi.v1.Controller/CreateVolume", 0.1, loop.time() - late_s, 1024)
            connection._dispatch(stream_id, request, b"")
        assert callee.left == 0
        for _ in range(3):
            await asyncio.sleep(0)
        assert callee.left == 3

    uvloop.run(come())
