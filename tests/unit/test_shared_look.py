"""A shared look: few looks serve many, and nobody is told what was seen before they asked."""

import asyncio

import pytest

from edge.manager.shared_look import SharedLook
from tests.kit.waiting import settle


class Scene:
    """Something to look at; a look takes until `let` says so."""

    def __init__(self) -> None:
        self.there = "first"
        self.looks: list[asyncio.Future[None]] = []
        self.shared = SharedLook(self._look)

    async def _look(self) -> str:
        there = self.there
        self.looks.append(asyncio.get_running_loop().create_future())
        await self.looks[-1]
        return there

    def ask(self) -> asyncio.Task[str]:
        return asyncio.create_task(self.shared())

    async def let(self, number: int, error: Exception | None = None) -> None:
        """Let a look come to its end."""
        await settle()
        if error is None:
            self.looks[number].set_result(None)
        else:
            self.looks[number].set_exception(error)
        await settle()


async def test_who_comes_while_somebody_looks_is_served_by_the_next_look_with_all_others() -> None:
    scene = Scene()
    first = scene.ask()
    await settle()
    scene.there = "second"
    later = [scene.ask() for _ in range(20)]

    await scene.let(0)
    assert first.result() == "first"
    assert not any(one.done() for one in later)
    await scene.let(1)
    assert [one.result() for one in later] == ["second"] * 20
    assert len(scene.looks) == 2


async def test_who_comes_when_nobody_looks_gets_a_look_of_their_own() -> None:
    scene = Scene()
    for number, there in enumerate(("one", "two")):
        scene.there = there
        asked = scene.ask()
        await scene.let(number)
        assert asked.result() == there


async def test_a_look_that_fails_fails_for_one_and_the_next_looks_again() -> None:
    scene = Scene()
    first = scene.ask()
    await settle()
    second, third = scene.ask(), scene.ask()

    await scene.let(0)
    await scene.let(1, OSError("unreadable"))
    await scene.let(2)

    assert first.result() == third.result() == "first"
    with pytest.raises(OSError, match="unreadable"):
        second.result()


async def test_cancelling_who_looks_leaves_the_others_theirs() -> None:
    scene = Scene()
    first, second = scene.ask(), scene.ask()
    await settle()

    first.cancel()
    await scene.let(1)

    assert first.cancelled()
    assert second.result() == "first"


async def test_what_was_seen_is_not_kept_once_nobody_waits_for_it() -> None:
    scene = Scene()
    asked = scene.ask()
    await scene.let(0)

    assert asked.result() == "first"
    assert scene.shared._found is None
