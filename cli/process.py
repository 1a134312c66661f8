"""A process: how each long-running command starts, drains and stops.

The first SIGTERM or SIGINT drains the process, and the second stops it at once. The exit code is 2 if a setting cannot
be used, and 1 after any other failure.
"""

import asyncio
import contextlib
import gc
import logging
import resource
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import TypeVar

import uvloop

from common.errors import BridgeError, LeadershipLost, SettingsError
from common.net.settings import INSECURE, ProcessSettings, describe
from common.net.tcp import overlook_lost_handshakes
from common.observe import logs
from common.observe.version import SOFTWARE

# New objects between two garbage collections. Python's default of 700 costs a busy process 5 % (measured).
_GC_OBJECTS = 20_000

S = TypeVar("S", bound=ProcessSettings)

log = logging.getLogger("csi_bridge")


def run(
    settings: S,
    main: Callable[[S, asyncio.Event], Awaitable[None]],
    *,
    name: str,
    named: Callable[[SettingsError], SettingsError],
) -> None:
    """Run `main(settings, stopping)` until a signal sets `stopping` and the process has drained; then exit."""
    lines = logs.configure(log_format=settings.log_format, level=settings.log_level, verbosity=settings.verbosity)
    log.info("%s %s starts: %s", name, SOFTWARE, describe(settings))
    if settings.insecure and settings.tls_cert is None:
        log.warning("%s", INSECURE)
    _take_all_descriptors()
    try:
        uvloop.run(_until_stopped(settings, main))
    except SettingsError as error:
        log.error("%s cannot start: %s", name, named(error))  # noqa: TRY400  # the operator's mistake, not a bug
        sys.exit(2)
    except LeadershipLost as error:
        log.error("%s ends: %s", name, error)  # noqa: TRY400  # no bug
        sys.exit(1)
    except BridgeError:  # nobody expects it, so the traceback is wanted
        log.exception("%s failed", name)
        sys.exit(1)
    except asyncio.CancelledError:
        log.warning("%s was stopped before it had drained", name)
        sys.exit(1)
    else:
        log.info("%s has stopped", name)
    finally:
        lines.flush()


def _take_all_descriptors() -> None:
    # As Go's programs do. Many systems begin with 1,024, for the sake of select(2), which nothing here uses. A hub has
    # a descriptor for each agent, and strangers could fill so small a table.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # a container may forbid it
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


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
