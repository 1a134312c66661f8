"""A thread of its own: for what may hang in the kernel, in a dead file system or device, and is to hang there alone.

The threads that the event loop keeps for everybody are few: six that hang would stop all local work of the agent. And
the process waits for them when it ends, which it does not for these.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

T = TypeVar("T")


def in_own_thread(work: Callable[[], T], *, name: str) -> asyncio.Future[T]:
    """Do something that blocks. Cancelling only ends the waiting.

    Returns:
        What comes of it, once the thread has ended.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[T] = loop.create_future()
    ended.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody may be waiting any more

    def tell(settle: Callable[[], None]) -> None:
        if not ended.done():
            settle()

    def run() -> None:
        try:
            settle = partial(ended.set_result, work())
        except BaseException as error:  # noqa: BLE001  # it is the waiter's
            settle = partial(ended.set_exception, error)
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(tell, settle)

    threading.Thread(target=run, name=name, daemon=True).start()
    return ended
