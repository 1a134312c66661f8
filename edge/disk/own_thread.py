"""Runs one blocking call in a thread of its own, for calls that may hang in a dead file system or device.

The event loop's own threads are few: six that hang would stop all local work of the agent. The process also waits for
them when it ends. It does not wait for the threads made here.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import ParamSpec, TypeVar

from edge.volume_errors import VolumeError, words

P = ParamSpec("P")
T = TypeVar("T")


async def apart(blame: type[VolumeError], work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run blocking work on a volume. An OSError becomes a `blame`."""
    try:
        return await in_own_thread(partial(work, *args, **kwargs), name="volume")
    except OSError as error:
        raise blame(words(error)) from error


def in_own_thread(work: Callable[[], T], *, name: str) -> asyncio.Future[T]:
    """Start `work` in a daemon thread; return a future. Cancelling it ends the waiting, not the thread."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[T] = loop.create_future()
    ended.add_done_callback(lambda done: done.cancelled() or done.exception())  # the caller may have stopped waiting

    def tell(settle: Callable[[], None]) -> None:
        if not ended.done():
            settle()

    def run() -> None:
        try:
            settle = partial(ended.set_result, work())
        except BaseException as error:  # noqa: BLE001  # the waiter gets it
            settle = partial(ended.set_exception, error)
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(tell, settle)

    threading.Thread(target=run, name=name, daemon=True).start()
    return ended
