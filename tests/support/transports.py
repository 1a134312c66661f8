"""Transports of this loop: what a test waits for before its loop ends, so that no socket outlives it."""

import asyncio


async def transports_closed() -> None:
    """Wait for the transports, which close behind their links: when the peer does, or after `LINGER_S`."""
    transports = vars(asyncio.get_running_loop())["_transports"]  # asyncio's own list, by descriptor
    while any(vars(it)["_sock"] is not None for it in transports.values()):  # noqa: ASYNC110  # asyncio tells nobody
        await asyncio.sleep(0.001)
