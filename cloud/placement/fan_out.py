"""A fan-out: a call that the hub answers itself, after calls of its own to nodes."""

import asyncio
from collections.abc import Awaitable, Callable

from cloud.node_call import Caller
from common.status import Status

Answer = tuple[Status, bytes | None]
"""The caller's status and message."""


class FanOut:
    """A call under way at nodes (`cloud.node_call.Reply`). To cancel it ends its task."""

    is_sent = True
    """The hub has read the request, and sends requests of its own."""

    def __init__(self, work: Callable[[], Awaitable[Answer]], caller: Caller, *, name: str) -> None:
        """Begin the work, in a task of this name. The caller gets the answer, or the error."""
        self._task = asyncio.get_running_loop().create_task(_answer(work, caller), name=name)

    def passed_on(self) -> None:
        """Nothing to give back."""

    def acknowledge(self, *, delivered: bool) -> None:
        """Nothing to release."""

    def cancel(self) -> None:
        """End the work."""
        self._task.cancel()


async def _answer(work: Callable[[], Awaitable[Answer]], caller: Caller) -> None:
    try:
        status, message = await work()
    except Exception as error:  # noqa: BLE001  # the caller gets it
        caller.failed(error)
    else:
        caller.ended(status, message)
