"""A look at what an earlier run has left, while the disk hangs."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from edge.disk.found_volumes import Unreadable
from edge.reports.leftovers import Leftovers


async def test_calls_during_a_look_that_hangs_return_at_once_and_repeat_it_together() -> None:
    left = Unreadable(path=Path("/pods/u1/volumes/v"), reason="it is torn")
    disk, scans = asyncio.Event(), list[None]()

    async def scan() -> Any:
        scans.append(None)
        await disk.wait()
        return SimpleNamespace(unreadable=[left] if len(scans) == 1 else [])

    host = SimpleNamespace(plugin=SimpleNamespace(scan=scan), was_in_step=False)
    leftovers = Leftovers(cast("Any", host), {})
    leftovers.begin([left], [])
    look = asyncio.ensure_future(leftovers.look())
    await asyncio.sleep(0)
    for _ in range(3):
        await leftovers.look()
    assert len(scans) == 1
    disk.set()
    await look
    assert len(scans) == 2
    assert not leftovers
