"""Two hubs in place of one, whose leader is killed in the middle of each test: `make e2e-hubs`."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from tests.e2e.supervisors import kept
from tests.kit.bridge import Hub

HUBS = int(os.environ.get("CSI_BRIDGE_E2E_HUBS", "1"))  # how many hubs the cluster has

_AWAY_S = 6  # how long a hub that has ended stays away: longer than a lease, so that the other one takes over

_MIDDLE_S = 6.0  # the first kill after a test's begin: the first claims and pods are under way

_NEXT_S = 25.0  # from one kill to the next, so that a longer test loses several leaders

_LOOK_S = 0.5


def keep(hub: Hub) -> None:
    """Let the hub start again after a while whenever it ends."""
    late = ["sh", "-c", f'sleep {_AWAY_S}; exec "$@"', "hub", *hub.process.command]
    hub.process.command = [str(word) for word in kept(late, file=_pid_file(hub), pauses_s=(0.1, 0.1))]


@contextlib.contextmanager
def losing_leaders(hubs: Sequence[Hub]) -> Iterator[None]:
    """Kill the hub that leads, again and again, while the block runs; nothing, if there is only one hub."""
    over = threading.Event()
    thread = threading.Thread(target=_strike, args=(hubs, over), name="killer of leaders")
    if len(hubs) > 1:
        thread.start()
    try:
        yield
    finally:
        over.set()
        if len(hubs) > 1:
            thread.join()


def _strike(hubs: Sequence[Hub], over: threading.Event) -> None:
    wait_s = _MIDDLE_S
    while not over.wait(wait_s):
        leaders = [hub for hub in hubs if _leads(hub)]
        wait_s = _NEXT_S if leaders else _LOOK_S
        for leader in leaders:
            os.kill(int(_pid_file(leader).read_text()), signal.SIGKILL)


def _leads(hub: Hub) -> bool:
    try:
        with urlopen(f"http://{hub.http}/readyz/active", timeout=5) as answer:
            return bool(answer.status == 200)
    except (URLError, OSError):
        return False


def _pid_file(hub: Hub) -> Path:
    return hub.process.log.with_suffix(".pid")
