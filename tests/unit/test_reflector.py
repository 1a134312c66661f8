"""A reflector: its copy is what the API server has, whatever becomes of lists and watches."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from cloud.kube.client import RESOURCES, KubeError
from cloud.sources.cluster import reflector
from cloud.sources.cluster.reflector import Reflector
from tests.kit.fake_api import FakeApi
from tests.kit.waiting import settle, until

NODES = RESOURCES["Node"]
DOWN = KubeError("list nodes", 0, "", "nobody answers")
EXPIRED = KubeError("watch nodes", 410, "Expired", "too old resource version")


class Copy:
    """Names and labels; a list counts when it is whole."""

    def __init__(self) -> None:
        self.has: dict[str, str] = {}
        self.lists = 0
        self._listed: dict[str, str] = {}

    def begin(self) -> None:
        self._listed = {}

    def add(self, body: Mapping[str, Any]) -> None:
        self._listed |= _entry(body)

    def end(self) -> None:
        self.has, self.lists = self._listed, self.lists + 1

    def take(self, body: Mapping[str, Any], *, is_gone: bool) -> None:
        if is_gone:
            del self.has[body["metadata"]["name"]]
        else:
            self.has |= _entry(body)


@pytest.fixture
def api() -> FakeApi:
    return FakeApi()


def _entry(body: Mapping[str, Any]) -> dict[str, str]:
    return {body["metadata"]["name"]: body["metadata"].get("labels", {}).get("is", "")}


def node(name: str, label: str = "") -> dict[str, Any]:
    return {"kind": "Node", "metadata": {"name": name, "labels": {"is": label}}}


class Waits:
    """What was waited for."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.over = asyncio.Event()  # nobody waits while this is set
        self.over.set()

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)
        await asyncio.sleep(0)
        await self.over.wait()


@asynccontextmanager
async def reflected(
    api: FakeApi, *, begun: Callable[[Copy, Waits], object] | None = None, fails: bool = False, waits: bool = False
) -> AsyncIterator[tuple[Reflector, Copy, Waits]]:
    """A reflector that has come to rest, or has `begun` where a failure lets it never rest.

    If it `fails`, its copy takes no object of a list. If it `waits`, its first wait goes on.
    """
    copy, waited = Copy(), Waits()
    if fails:
        copy.add = _fail  # type: ignore[method-assign]  # a bug
    if waits:
        waited.over.clear()
    made = Reflector(api, NODES, copy, pause=waited)
    task = asyncio.create_task(made.run())
    try:
        await (settle() if begun is None else until(lambda: begun(copy, waited)))
        yield made, copy, waited
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_long_list_comes_in_parts_and_counts_when_it_is_whole(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abcde":
        api.put(node(name))
    monkeypatch.setattr(reflector, "PAGE", 2)
    async with reflected(api) as (_, copy, _waits):
        assert sorted(copy.has) == list("abcde")
        assert [it for it in api.asked if it.startswith("list")] == ["list nodes 2"] * 3


async def test_a_list_that_breaks_off_takes_nothing_away(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    api.put(node("a"))
    api.put(node("b"))
    monkeypatch.setattr(reflector, "PAGE", 1)
    async with reflected(api) as (_, copy, _waits):
        api.failures["watch"] = [EXPIRED]
        api.failures["list"] = [DOWN] * 3
        api.cut()
        await settle()
        assert sorted(copy.has) == ["a", "b"]
        assert copy.lists == 2


async def test_a_token_that_is_too_old_makes_one_list_of_all(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    api.put(node("a"))
    api.put(node("b"))

    listing = api.list

    async def list_and_forget(*args: Any, **options: Any) -> Any:
        page = await listing(*args, **options)
        api.bookmark("Node")
        api.forget()
        return page

    monkeypatch.setattr(api, "list", list_and_forget)
    monkeypatch.setattr(reflector, "PAGE", 1)
    async with reflected(api, begun=lambda copy, _waits: copy.lists) as (_, copy, _waits):
        assert sorted(copy.has) == ["a", "b"]
        assert api.asked[:3] == ["list nodes 1", "list nodes 1", "list nodes 0"]


async def test_a_watch_that_ends_goes_on_where_it_was(api: FakeApi) -> None:
    api.put(node("a"))
    async with reflected(api) as (_, copy, _waits):
        api.put(node("b"))
        await settle()
        api.cut()
        api.put(node("c"))
        api.drop("Node", "a")
        await settle()
        assert sorted(copy.has) == ["b", "c"]
        assert copy.lists == 1
        assert api.asked == ["list nodes 250", "watch nodes 1", "watch nodes 2"]


async def test_a_bookmark_spares_a_list(api: FakeApi) -> None:
    api.put(node("a"))
    async with reflected(api) as (_, copy, _waits):
        api.bookmark("Node")
        await settle()
        api.forget()
        api.cut()
        await settle()
        assert copy.lists == 1


async def test_a_server_that_is_away_is_named_and_asked_again_with_growing_distance(api: FakeApi) -> None:
    api.put(node("a"))
    api.failures["list"] = [DOWN] * 8
    async with reflected(api) as (made, copy, waits):
        for _ in range(5):
            await settle()
        assert copy.has == {"a": ""}
        assert made.trouble == ""
        assert len(waits.seconds) == 8
        assert all(0.25 <= first <= 0.5 for first in waits.seconds[:1])
        assert waits.seconds[-1] >= 15.0


async def test_what_it_cannot_do_is_said_until_it_can(api: FakeApi) -> None:
    api.failures["list"] = [DOWN]
    async with reflected(api, waits=True) as (made, _copy, waits):
        assert "nobody answers" in made.trouble
        waits.over.set()
        await settle()
        assert made.trouble == ""


async def test_after_trouble_a_watch_that_is_open_is_enough_to_be_in_step(api: FakeApi) -> None:
    async with reflected(api) as (made, _copy, _waits):
        api.failures["watch"] = [DOWN]
        api.cut()
        await settle()
        assert made.trouble == ""


@pytest.mark.parametrize("error", [DOWN, EXPIRED], ids=["broken off", "all to be listed again"])
async def test_a_watch_that_fails_whenever_it_is_open_is_asked_for_with_growing_distance(
    error: KubeError, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    api = FakeApi()
    api.failures["event"] = [error] * 8
    async with reflected(api) as (made, copy, waits):
        assert len(waits.seconds) == 8
        assert waits.seconds[-1] >= 15.0
        assert len([it for it in caplog.records if it.levelname == "WARNING"]) <= 1
        api.put(node("a"))
        await settle()
        assert (made.trouble, copy.has) == ("", {"a": ""})
        api.failures["event"] = [error]
        api.put(node("b"))
        await settle()
        assert waits.seconds[-1] <= 0.5  # what is heard between two failures counts


async def test_what_was_said_of_a_watch_is_taken_back_as_soon_as_it_is_open_and_logged_when_it_works(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    api = FakeApi()
    api.failures["event"] = [DOWN]
    async with reflected(api) as (made, _copy, _waits):
        assert made.trouble == ""
        assert [it.levelname for it in caplog.records] == ["WARNING"]
        api.bookmark("Node")
        await settle()
        assert [it.levelname for it in caplog.records] == ["WARNING", "INFO"]


async def test_a_watch_that_was_quiet_to_its_end_has_worked(api: FakeApi) -> None:
    api.failures["event"] = [DOWN] * 8
    async with reflected(api) as (_, _copy, waits):
        api.cut()
        await settle()
        assert len(waits.seconds) == 9
        assert waits.seconds[-1] <= 0.5


async def test_a_watch_that_says_nothing_and_ends_at_once_is_not_asked_for_all_the_time(api: FakeApi) -> None:
    async with reflected(api) as (_, _copy, waits):
        for _ in range(3):
            api.cut()
            await settle()
        assert len(waits.seconds) == 3


async def test_what_nobody_foresaw_is_logged_once_and_tried_again_with_growing_distance(
    api: FakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    api.put(node("a"))
    begun = lambda _copy, waits: waits.seconds and waits.seconds[-1] >= 15.0  # noqa: E731  # a condition
    async with reflected(api, fails=True, begun=begun) as (_made, _copy, waits):
        assert waits.seconds[0] <= 0.5
        assert len([it for it in caplog.records if it.exc_info]) == 1


async def test_a_change_that_nobody_foresaw_makes_a_list(api: FakeApi) -> None:
    api.put(node("a"))
    async with reflected(api) as (made, copy, _waits):
        copy.take = _fail  # type: ignore[method-assign]  # a bug
        api.put(node("a", "new"))
        await settle()
        assert (copy.has, copy.lists) == ({"a": "new"}, 2)
        assert made.trouble == ""


async def test_a_mistake_is_told_to_people_until_the_copy_is_in_step_again(api: FakeApi) -> None:
    api.put(node("a"))
    async with reflected(api, fails=True, waits=True) as (made, copy, waits):
        assert made.trouble == "following nodes failed because of a bug in CSI Bridge; see the hub's log"
        del copy.add  # the bug is mended
        waits.over.set()
        await settle()
        assert (made.trouble, copy.has) == ("", {"a": ""})


def _fail(_body: Mapping[str, Any]) -> None:
    raise ZeroDivisionError


async def test_words_of_a_newer_server_are_passed_over(api: FakeApi) -> None:
    async with reflected(api) as (_, copy, _waits):
        api.tell("PAUSED", "Node", {"metadata": {"name": "x"}})
        api.put(node("a"))
        await settle()
        assert copy.has == {"a": ""}
