"""Reconnects leave nothing behind: no task, no file descriptor, no thread, however many there were."""

import asyncio
import gc
import os
import re
import threading
from collections import Counter
from pathlib import Path

import psutil
import pytest

from common.links.backoff import Backoff
from common.links.dial import dial
from common.messages import Kind
from common.net.endpoint import Endpoint
from common.observe.version import introduce
from common.session.limits import Limits
from tests.kit.bridge import Bridge
from tests.kit.linked import Peer
from tests.kit.local_bridge import LocalBridge
from tests.kit.requests import create
from tests.kit.transports import transports_closed
from tests.kit.vendor import Vendor
from tests.kit.waiting import wait_for

_WARM_UP = 5

_NUMBER = re.compile(r"\d+")

_POOL = min(32, (os.cpu_count() or 1) + 4)  # threads of an event loop's pool (ThreadPoolExecutor)

often = pytest.mark.parametrize(
    "times", [15, pytest.param(1_000, marks=[pytest.mark.endurance, pytest.mark.timeout(600)])]
)


def _held() -> tuple[Counter[str], int, Counter[str]]:
    """The tasks by kind of name, the file descriptors, and the threads by kind of name, of this process.

    A kind of name has no numbers: which of a link's standing streams opens first, and so which number it gets, is
    chance. The vendor's server makes a thread when one is needed.
    """
    gc.collect()
    tasks = Counter(_NUMBER.sub("", task.get_name()) for task in asyncio.all_tasks())
    threads = Counter(_NUMBER.sub("", it.name) for it in threading.enumerate() if not it.name.startswith("vendor"))
    return tasks, len(list(Path("/proc/self/fd").iterdir())), threads


async def _settled(
    wanted: tuple[Counter[str], int, Counter[str]] | None = None,
) -> tuple[Counter[str], int, Counter[str]]:
    """What is held once it is as wanted, or once nothing has moved for half a second."""
    last, still = _held(), 0
    for _ in range(200):
        if last == wanted or still == 10:
            break
        await asyncio.sleep(0.05)
        now = _held()
        still = still + 1 if now == last and wanted is None else 0
        last = now
    return last


async def _fill_pool() -> None:
    """Start every thread that the loop's pool may have: it starts one whenever no other happens to be idle."""
    barrier = threading.Barrier(_POOL)
    await asyncio.gather(*(asyncio.to_thread(barrier.wait) for _ in range(_POOL)))


@pytest.mark.slow
@often
async def test_reconnects_of_agent_and_proxy_leave_tasks_and_descriptors_as_they_were(
    short_dir: Path, vendor: Vendor, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("common.links.uplink.FIRST_REDIAL_S", 0.001)
    monkeypatch.setattr("common.links.uplink.REDIAL", Backoff(first_s=0.002, most_s=30.0))
    async with LocalBridge(short_dir, vendor.socket) as bridge:

        async def reconnect(number: int) -> None:
            call = asyncio.create_task(
                bridge.call("CreateVolume", create(f"v-{number}").SerializeToString(), timeout_s=10.0)
            )
            await asyncio.sleep(0)
            await bridge.cut()
            await call
            await bridge.wait_routed()

        await _fill_pool()
        for number in range(_WARM_UP):
            await reconnect(number)
        before = await _settled()
        accepted = [link.stats.accepted for link in bridge.links]
        for number in range(times):
            await reconnect(_WARM_UP + number)
        after = await _settled(before)
        assert all(link.stats.accepted >= count + times for link, count in zip(bridge.links, accepted, strict=True))
        assert (after[0], after[2]) == (before[0], before[2])
        # A busy machine may still close a descriptor of the warm-up, which `before` has counted.
        assert after[1] <= before[1]


@often
def test_links_that_come_and_go_leave_the_hubs_descriptors_and_threads_as_they_were(bridge: Bridge, times: int) -> None:
    hub = bridge.start_hub()
    host, port = hub.address.split(":")
    process = psutil.Process(hub.process.pid)

    async def visit(number: int) -> None:
        hello = introduce("edge", f"n{number % 10}", instance=f"i{number % 10}", boot=number)
        endpoint = Endpoint(f"ws://{hub.address}", host=host, port=int(port))
        link = await dial(endpoint, hello, Peer(accepts=False), limits=Limits())
        link.open(Kind.REPORT)
        if number % 2:
            link.goodbye("done", "just looking")
        else:
            link.writer.abort("gone without a word")  # type: ignore[attr-defined]  # it is a WebSocket here
        await link.wait_closed()

    async def visits(numbers: range) -> None:
        for number in numbers:
            await visit(number)
        await transports_closed()

    asyncio.run(visits(range(_WARM_UP)))
    hub.wait_logged(" is gone: ", times=_WARM_UP)
    files, threads = process.num_fds(), process.num_threads()
    asyncio.run(visits(range(_WARM_UP, _WARM_UP + times)))
    wait_for(
        lambda: process.num_fds() <= files and process.num_threads() <= threads + _POOL,
        what=f"end of what was there beyond {files} descriptors and {threads} threads",
        instead=lambda: (process.num_fds(), process.num_threads()),
    )
    hub.wait_logged(" is gone: ", times=_WARM_UP + times)
    assert len(hub.logged(" is gone: ")) == _WARM_UP + times
