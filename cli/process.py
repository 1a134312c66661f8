"""A process: how each long-running command starts, drains and stops.

The first SIGTERM or SIGINT drains the process, and the second stops it at once. The exit code is 2 if a setting cannot
be used, and 1 after any other failure.
"""

import asyncio
import gc
import logging
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import TypeVar

import uvloop

from common import logs
from common.errors import SettingsError
from common.settings import INSECURE, ProcessSettings, describe
from common.transport import overlook_lost_handshakes
from common.version import SOFTWARE

_GC_OBJECTS = 20_000
"""New objects between two garbage collections. Python's default of 700 costs a busy process 5 % (measured)."""

S = TypeVar("S", bound=ProcessSettings)

log = logging.getLogger("csi_bridge")


def run(
    settings: S,
    main: Callable[[S, asyncio.Event], Awaitable[None]],
    *,
    name: str,
    named: Callable[[SettingsError], SettingsError],
) -> None:
    """Run `main(settings, stopping)` until a signal sets `stopping` and the process has drained; then exit.

    Args:
        settings: for `main`.
        main: the process.
        name: its name in the log.
        named: adds the variable to an error that names a flag.
    """
    logs.configure(log_format=settings.log_format, level=settings.log_level, verbosity=settings.verbosity)
    log.info("%s %s starts: %s", name, SOFTWARE, describe(settings))
    if settings.insecure and settings.tls_cert is None:
        log.warning("%s", INSECURE)
    try:
        uvloop.run(_until_stopped(settings, main))
    except SettingsError as error:
        log.error("%s cannot start: %s", name, named(error))  # noqa: TRY400  # the operator's mistake, not a bug
        sys.exit(2)
    except asyncio.CancelledError:
        log.warning("%s was stopped before it had drained", name)
        sys.exit(1)
    log.info("%s has stopped", name)


async def _until_stopped(settings: S, main: Callable[[S, asyncio.Event], Awaitable[None]]) -> None:
    # Loaded modules stay for the life of the process: the garbage collector need not look at them again.
    gc.freeze()
    gc.set_threshold(_GC_OBJECTS)
    loop = asyncio.get_running_loop()
    overlook_lost_handshakes(loop)
    stopping = asyncio.Event()
    task = asyncio.current_task()
    assert task is not None

    def on_signal() -> None:
        if stopping.is_set():
            task.cancel()
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    await main(settings, stopping)
