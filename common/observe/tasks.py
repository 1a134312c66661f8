"""A task: work with a name and an owner, and a logged end if it is long-lived."""

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager

from common.errors import LeadershipLost

log = logging.getLogger("csi_bridge.tasks")


class Tasks:
    """The tasks of one block. Made by `supervised`."""

    def __init__(self, *, quiet: bool) -> None:
        owner = asyncio.current_task()
        assert owner is not None
        self._owner, self._cancels, self._quiet = owner, owner.cancelling(), quiet
        self._tasks: set[asyncio.Task[object]] = set()
        self._failure: BaseException | None = None
        self._is_over = False

    def start(self, work: Coroutine[object, object, object], *, name: str) -> asyncio.Task[object]:
        """Start work. If it fails, the owner is cancelled and raises the failure."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def stop(self) -> None:
        self._is_over = True  # an owner that was cancelled from now on would lose the block's own error
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def check(self) -> None:
        """Raise the first failure, if the owner was cancelled for that alone."""
        # If another task cancels the owner, too, that must not be lost.
        if self._failure is not None and self._owner.uncancel() <= self._cancels:
            raise self._failure from None

    def _ended(self, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if not self._quiet:
            _log_end(task, error)
        if error is not None and self._failure is None and not self._is_over:
            self._failure = error
            self._owner.cancel()


def _log_end(task: asyncio.Task[object], error: BaseException | None) -> None:
    if task.cancelled():
        log.debug("task %s was stopped", task.get_name())
    elif error is None:
        log.info("task %s ended", task.get_name())
    else:
        is_bug = not isinstance(error, LeadershipLost)
        log.error("task %s failed: %s", task.get_name(), error, exc_info=error if is_bug else None)


@asynccontextmanager
async def supervised(*, quiet: bool = False) -> AsyncIterator[Tasks]:
    """A block with tasks that end with it. If one of them fails, the block ends with its error.

    With `quiet` no end is logged: the tasks are short, and the block's owner tells of its error.
    """
    tasks = Tasks(quiet=quiet)
    try:
        yield tasks
    except asyncio.CancelledError:
        tasks.check()
        raise
    finally:
        await tasks.stop()
