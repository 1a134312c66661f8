"""Keeps the watchdog process running (`edge.fencing.watchdog`).

It is started without asyncio's and subprocess' classes: their objects end or lose a process that outlives them, and the
watchdog is to outlive its agent.
"""

import asyncio
import logging
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from edge.disk.own_thread import in_own_thread
from edge.fencing.watchdog import READY

log = logging.getLogger("csi_bridge.edge.fence")

_START_AGAIN_S: Final = 2.0
"""Before a watchdog that has ended is started again."""


class WatchdogKeeper:
    """The keeper of one agent's watchdog.

    Attributes:
        pid: the id of a process that watches; None while none does.
    """

    def __init__(self, state_dir: Path, root: Path, reset: Path | None, log_format: str = "auto") -> None:
        """Start nothing yet.

        Args:
            state_dir: the agent's.
            root: `--root-dir`.
            reset: the file that resets the machine; None: it is never reset.
            log_format: the agent's `--log-format`.
        """
        self._log_format = log_format
        self._paths = (state_dir.absolute(), root.absolute(), reset or "")
        self.pid: int | None = None

    async def run(self, name: str, stop_s: float, ready: Callable[[], Awaitable[None]]) -> None:
        """Start it, and again whenever it ends. Cancelling leaves it alone.

        Args:
            name: names the agent's start.
            stop_s: seconds after the lease's end in which all writers must have stopped.
            ready: called each time it watches.
        """
        while True:
            try:
                await self._run_once(name, stop_s, ready)
            except OSError as error:
                log.warning("the watchdog process cannot be started, and no volume with fence is mounted: %s", error)
            finally:
                self.pid = None
            await asyncio.sleep(_START_AGAIN_S)

    async def _run_once(self, name: str, stop_s: float, ready: Callable[[], Awaitable[None]]) -> None:
        pid, told = self._start([*map(str, self._paths), f"{stop_s:g}", name, self._log_format])
        if await in_own_thread(told, name="start of the watchdog") == READY:
            self.pid = pid
            await ready()
        log.warning("the watchdog process ended with status %d", await _end_of(pid))

    @staticmethod
    def _start(arguments: list[str]) -> tuple[int, Callable[[], bytes]]:
        """Start the process. Returns its id, and a function that waits for its first line."""
        begin, end = os.pipe()
        try:
            pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-m", "edge.fencing.watchdog", *arguments],
                {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, end, 1),
                ],
                setsid=True,
            )
        except OSError:
            os.close(begin)
            raise
        finally:
            os.close(end)

        def first_line() -> bytes:
            with open(begin, "rb") as told:  # noqa: PTH123  # a descriptor has no path
                return told.readline()

        return pid, first_line


async def _end_of(pid: int) -> int:
    """The status with which a child process ends."""
    ended, descriptor = asyncio.Event(), os.pidfd_open(pid)
    loop = asyncio.get_running_loop()
    try:
        loop.add_reader(descriptor, ended.set)
        await ended.wait()
        _, status = os.waitpid(pid, os.WNOHANG)  # noqa: ASYNC222  # it has ended
        return os.waitstatus_to_exitcode(status)
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
