"""The transports of this loop, which must be closed before the loop ends, so that no socket outlives it."""

import asyncio


async def transports_closed() -> None:
    """Wait for the transports. Each closes after its link: when the peer closes, or after `LINGER_S`."""
    transports = vars(asyncio.get_running_loop())["_transports"]  # asyncio's own list, by descriptor
    while any(vars(it)["_sock"] is not None for it in transports.values()):  # noqa: ASYNC110  # asyncio gives no event
        await asyncio.sleep(0.001)
