"""A secret reader: reads what is in use and nothing else, and claims to know only what it was told."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from cloud.kube import KubeError
from cloud.sync.secret_reader import REFRESH_S, SecretReader
from common.objects import Ref
from tests.support.fake_api import FakeApi

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SECRET = Ref("Secret", "default", "s")
BODY = {"kind": "Secret", "metadata": {"name": "s", "namespace": "default"}, "data": {}}


class World:
    """An API server, a reader and a clock that a test turns."""

    def __init__(self) -> None:
        self.api = FakeApi()
        self.now = 1000.0
        self.found: list[tuple[Ref, bool]] = []
        self.reader = SecretReader(self.api, self._note, now=lambda: self.now)

    def _note(self, ref: Ref, body: dict[str, Any] | None) -> None:
        self.found.append((ref, body is not None))

    async def turn(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds
        self.reader.use(Ref("Secret", "default", "waker"))
        await settle()
        self.reader.release(Ref("Secret", "default", "waker"))
        self.found = [it for it in self.found if it[0] == SECRET]


@asynccontextmanager
async def reading() -> AsyncIterator[World]:
    world = World()
    task = asyncio.create_task(world.reader.run())
    try:
        yield world
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


async def test_one_in_use_is_read_at_once_and_again_every_minute() -> None:
    async with reading() as world:
        world.api.put(BODY)
        assert not world.reader.knows(SECRET)
        world.reader.use(SECRET)
        await settle()
        assert world.found == [(SECRET, True)]
        assert world.reader.knows(SECRET)
        await world.turn(REFRESH_S - 1)
        assert world.found == [(SECRET, True)]
        await world.turn(2)
        assert world.found == [(SECRET, True)] * 2


async def test_one_that_nobody_uses_any_more_is_not_read_and_not_known() -> None:
    async with reading() as world:
        world.reader.use(SECRET)
        await settle()
        world.reader.release(SECRET)
        await world.turn(10 * REFRESH_S)
        assert world.found == [(SECRET, False)]
        assert not world.reader.knows(SECRET)


async def test_that_there_is_none_is_known_when_the_server_says_so() -> None:
    async with reading() as world:
        world.reader.use(SECRET)
        await settle()
        assert world.found == [(SECRET, False)]
        assert world.reader.knows(SECRET)
        assert world.reader.problems() == []


async def test_without_an_answer_nothing_is_known_and_it_is_asked_for_soon_again() -> None:
    async with reading() as world:
        world.api.put(BODY)
        world.api.failures["get"] = [KubeError("get Secret default/s", 0, "", "nobody answers")]
        world.reader.use(SECRET)
        await settle()
        assert world.found == []
        assert not world.reader.knows(SECRET)
        assert "nobody answers" in world.reader.problems()[0]
        await world.turn(6)
        assert world.found == [(SECRET, True)]
        assert world.reader.problems() == []


async def test_a_server_that_fails_later_takes_nothing_away() -> None:
    async with reading() as world:
        world.api.put(BODY)
        world.reader.use(SECRET)
        await settle()
        world.api.failures["get"] = [KubeError("get", 403, "Forbidden", "no"), KubeError("get", 500, "", "no")] * 3
        await world.turn(REFRESH_S + 1)
        await world.turn(REFRESH_S + 1)
        assert world.found == [(SECRET, True)]
        assert world.reader.knows(SECRET)


async def test_one_that_may_not_be_read_holds_nobody_up_and_is_named() -> None:
    async with reading() as world:
        world.api.failures["get"] = [KubeError("get", 403, "Forbidden", "hub may not get secrets")]
        world.reader.use(SECRET)
        await settle()
        assert world.found == [(SECRET, False)]
        assert world.reader.knows(SECRET)
        assert "hub may not get secrets" in world.reader.problems()[0]


async def test_one_released_while_it_is_read_is_not_told() -> None:
    async with reading() as world:
        world.api.put(BODY)
        world.reader.use(SECRET)
        await asyncio.sleep(0)
        world.reader.release(SECRET)
        await settle()
        assert world.found == []
