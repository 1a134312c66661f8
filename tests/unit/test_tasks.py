"""Long-lived tasks: their ends are logged, and the failure of one is the failure of their owner."""

import asyncio
import logging

import pytest

from common.observe.tasks import supervised
from tests.kit.waiting import settle


async def forever() -> None:
    await asyncio.Event().wait()


async def work(ended: list[str]) -> None:
    try:
        await forever()
    finally:
        ended.append("work")


async def test_tasks_end_with_their_block(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    ended: list[str] = []

    async with supervised() as tasks:
        tasks.start(work(ended), name="work")
        await asyncio.sleep(0)
    assert ended == ["work"]
    assert "task work was stopped" in caplog.messages


async def test_a_task_that_fails_ends_the_block_with_its_error_and_stops_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ended: list[str] = []

    async def fail() -> None:
        raise ValueError("it broke")

    async def own() -> None:
        async with supervised() as tasks:
            tasks.start(work(ended), name="other")
            tasks.start(fail(), name="fail")
            await forever()

    with pytest.raises(ValueError, match="it broke"):
        await own()
    assert ended == ["work"]
    assert "task fail failed: it broke" in caplog.messages


async def test_of_two_failures_the_first_is_raised_and_both_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(text: str) -> None:
        raise ValueError(text)

    async def own() -> None:
        async with supervised() as tasks:
            tasks.start(fail("first"), name="one")
            tasks.start(fail("second"), name="two")
            await forever()

    with pytest.raises(ValueError, match="first"):
        await own()
    assert caplog.messages == ["task one failed: first", "task two failed: second"]


async def test_a_task_that_ends_by_itself_is_logged_and_ends_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def short() -> None:
        return None

    async with supervised() as tasks:
        tasks.start(short(), name="short")
        await settle()
    assert caplog.messages == ["task short ended"]


async def test_an_error_of_the_block_itself_stops_the_tasks() -> None:
    ended: list[str] = []

    async def own() -> None:
        async with supervised() as tasks:
            tasks.start(work(ended), name="work")
            await asyncio.sleep(0)
            raise KeyError("mine")

    with pytest.raises(KeyError):
        await own()
    assert ended == ["work"]


async def test_an_owner_that_is_cancelled_is_cancelled() -> None:
    async def own() -> None:
        async with supervised() as tasks:
            tasks.start(forever(), name="work")
            await forever()

    owner = asyncio.get_running_loop().create_task(own())
    await asyncio.sleep(0)
    owner.cancel()
    with pytest.raises(asyncio.CancelledError):
        await owner


async def marks_left_by(*failing: str) -> int:
    """How often this task counts as cancelled when a block has ended with the error of one of these tasks."""

    async def fail(text: str) -> None:
        raise ValueError(text)

    async def own() -> None:
        async with supervised() as tasks:
            for text in failing:
                tasks.start(fail(text), name=text)
            await forever()

    with pytest.raises(ValueError, match=failing[0]):
        await own()
    owner = asyncio.current_task()
    assert owner is not None
    return owner.cancelling()


async def test_a_failure_leaves_no_mark_on_the_owner() -> None:
    assert await marks_left_by("one") == 0
    assert await marks_left_by("one", "two") == 0


async def test_an_owner_that_is_cancelled_just_as_a_task_fails_stays_cancelled() -> None:
    """Whoever ends a stream for good must not see it opened again (`common.links.standing`) because of a failure."""

    async def fail() -> None:
        raise ValueError("it broke")

    async def own() -> None:
        async with supervised() as tasks:
            tasks.start(fail(), name="work").add_done_callback(lambda _: owner.cancel())
            await forever()

    owner = asyncio.create_task(own())
    with pytest.raises(asyncio.CancelledError):
        await owner


@pytest.mark.parametrize("error", [KeyError("mine"), None], ids=["with an error", "well"])
async def test_a_task_that_fails_while_the_block_ends_changes_nothing(error: Exception | None) -> None:
    async def fail_at_last() -> None:
        try:
            await forever()
        finally:
            raise ValueError("it broke")

    async def own() -> None:
        async with supervised() as tasks:
            tasks.start(fail_at_last(), name="work")
            await asyncio.sleep(0)
            if error is not None:
                raise error

    (ended,) = await asyncio.gather(asyncio.create_task(own()), return_exceptions=True)
    assert ended is error


async def test_short_tasks_end_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def fail() -> None:
        raise OSError("the disk is gone")

    async def own() -> None:
        async with supervised(quiet=True) as tasks:
            await tasks.start(asyncio.sleep(0), name="short")
            tasks.start(forever(), name="stopped")
            tasks.start(fail(), name="fail")
            await forever()

    with pytest.raises(OSError, match="the disk is gone"):
        await own()
    assert [it for it in caplog.records if it.name == "csi_bridge.tasks"] == []
