"""What is in use: known when it was written, waited for until then, and by nobody when nothing is written any more."""

import asyncio

from cloud.sync.in_use import InUse


def begun() -> InUse:
    """Two nodes are being written."""
    in_use = InUse()
    for node in ("n1", "n2"):
        in_use.begin(node, [])
    return in_use


async def test_who_waits_hears_when_all_that_he_wants_stands_there() -> None:
    in_use = begun()
    waiting = asyncio.create_task(in_use.wait("n1", ["a", "b"]))
    for volumes in (["a"], ["b"], ["c"]):
        in_use.note("n1", volumes)
        await asyncio.sleep(0)
        assert not waiting.done()
    in_use.note("n2", ["a", "b"])
    in_use.note("n1", ["a", "b", "c"])
    await asyncio.wait_for(waiting, 5)


async def test_what_stands_there_is_not_waited_for() -> None:
    in_use = begun()
    await in_use.wait("n1", [])
    in_use.note("n1", ["a", "b"])
    await in_use.wait("n1", ["a"])
    assert in_use.has("n1", ["b"])
    assert not in_use.has("n1", ["c"])


async def test_in_a_node_that_is_gone_nothing_stands_and_who_waits_waits_on() -> None:
    in_use = begun()
    in_use.note("n1", ["a"])
    waiting = asyncio.create_task(in_use.wait("n1", ["a", "b"]))
    await asyncio.sleep(0)
    in_use.lose("n1")
    assert not in_use.has("n1", ["a"])
    await asyncio.sleep(0)
    assert not waiting.done()
    in_use.end("n1")
    await asyncio.wait_for(waiting, 5)


async def test_what_was_written_to_a_node_that_is_gone_since_stands_nowhere() -> None:
    in_use = begun()
    waiting = asyncio.create_task(in_use.wait("n1", ["a"]))
    await asyncio.sleep(0)
    in_use.lose("n1")
    in_use.note("n1", ["a"])
    assert not in_use.has("n1", ["a"])
    in_use.begin("n1", ["a"])
    await asyncio.sleep(0)
    assert not waiting.done()
    in_use.note("n1", ["a"])
    await asyncio.wait_for(waiting, 5)


async def test_one_who_gave_up_waiting_is_in_nobodys_way() -> None:
    in_use = begun()
    waiting = asyncio.create_task(in_use.wait("n1", ["a"]))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    in_use.note("n1", ["a"])
    in_use.end("n1")
