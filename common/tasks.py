"""A task: long-lived work with a name, an owner and a logged end."""

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager

from common.errors import LeadershipLost

log = logging.getLogger("csi_bridge.tasks")


class Tasks:
    """The long-lived tasks of one process. Made by `supervised`."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[object]] = set()
        self._owner = asyncio.current_task()
        self.failure: BaseException | None = None

    def start(self, work: Coroutine[object, object, object], *, name: str) -> asyncio.Task[object]:
        """Start work that should not end by itself. If it fails, the owner is cancelled and raises the failure."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def stop(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            log.debug("task %s was stopped", task.get_name())
            return
        error = task.exception()
        if error is None:
            log.info("task %s ended", task.get_name())
            return
        is_bug = not isinstance(error, LeadershipLost)
        log.error("task %s failed: %s", task.get_name(), error, exc_info=error if is_bug else None)
        if self.failure is None and self._owner is not None:
            self.failure = error
            self._owner.cancel()


@asynccontextmanager
async def supervised() -> AsyncIterator[Tasks]:
    """A block with long-lived tasks that end with it. If one of them fails, the block ends with its error."""
    tasks = Tasks()
    try:
        yield tasks
    except asyncio.CancelledError:
        if tasks.failure is not None:
            raise tasks.failure from None
        raise
    finally:
        await tasks.stop()
