"""A reader on demand: reads what is in use and nothing else, and claims to know only what it was told."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from cloud.kube.client import KubeError, Resource
from cloud.sources.cluster.on_demand import REFRESH_S, OnDemand, SecretReader
from common.objects.objects import Ref
from common.observe import logs
from tests.kit.fake_api import FakeApi
from tests.kit.waiting import settle

SECRET = Ref("Secret", "default", "s")
BODY = {"kind": "Secret", "metadata": {"name": "s", "namespace": "default"}, "data": {}}


class ReadOnDemand:
    """An API server, a reader and a clock that a test turns."""

    def __init__(self) -> None:
        self.api = FakeApi()
        self.now = 1000.0
        self.found: list[tuple[Ref, bool]] = []
        self.mistakes: list[Exception] = []
        self.lets_go = False
        self.due: list[tuple[float, Callable[[], None]]] = []
        self.reader = OnDemand(SecretReader(self.api), self._note, later=self._later)

    def _later(self, seconds: float, call: Callable[[], None]) -> None:
        self.due.append((self.now + seconds, call))

    def _note(self, ref: Ref, body: dict[str, Any] | None) -> None:
        if self.lets_go:
            self.reader.release(ref)
        if self.mistakes:
            raise self.mistakes.pop(0)
        self.found.append((ref, body is not None))

    async def asking(self) -> None:
        """Until the API server is asked for the first time."""
        while not self.api.asked:  # noqa: ASYNC110  # the fake tells nobody
            await asyncio.sleep(0)

    async def turn(self, seconds: float) -> None:
        self.now += seconds
        due = [it for it in self.due if it[0] <= self.now]
        self.due = [it for it in self.due if it[0] > self.now]
        for _, call in due:
            call()
        await settle()


@pytest.fixture
async def cluster() -> AsyncIterator[ReadOnDemand]:
    cluster = ReadOnDemand()
    yield cluster
    await cluster.reader.close()


async def test_one_in_use_is_read_at_once_and_again_every_minute(cluster: ReadOnDemand) -> None:
    cluster.api.put(BODY)
    assert not cluster.reader.knows(SECRET)
    cluster.reader.use(SECRET)
    await settle()
    assert cluster.found == [(SECRET, True)]
    assert cluster.reader.knows(SECRET)
    await cluster.turn(REFRESH_S - 1)
    assert cluster.found == [(SECRET, True)]
    await cluster.turn(2)
    assert cluster.found == [(SECRET, True)] * 2


async def test_that_there_is_none_is_known_until_nobody_uses_it_any_more(cluster: ReadOnDemand) -> None:
    cluster.reader.use(SECRET)
    await settle()
    assert cluster.reader.knows(SECRET)
    assert cluster.reader.problems() == []
    cluster.reader.release(SECRET)
    await cluster.turn(10 * REFRESH_S)
    assert cluster.found == [(SECRET, False)]
    assert not cluster.reader.knows(SECRET)


async def test_a_server_that_fails_later_takes_nothing_away(cluster: ReadOnDemand) -> None:
    cluster.api.put(BODY)
    cluster.reader.use(SECRET)
    await settle()
    cluster.api.failures["get"] = [KubeError("get", 403, "Forbidden", "no"), KubeError("get", 500, "", "no")] * 3
    await cluster.turn(REFRESH_S + 1)
    await cluster.turn(REFRESH_S + 1)
    assert cluster.found == [(SECRET, True)]
    assert cluster.reader.knows(SECRET)


@pytest.mark.parametrize("code", [403, 500, 0], ids=["forbidden", "a broken server", "no object"])
async def test_one_that_cannot_be_read_is_not_known_to_be_gone_and_is_named(cluster: ReadOnDemand, code: int) -> None:
    failures = [KubeError("get Secret default/s", code, "", "hub may not get secrets")]
    if code:
        cluster.api.failures["get"] = failures
    else:
        cluster.mistakes = [*failures]
    cluster.reader.use(SECRET)
    await settle()
    assert cluster.found == []
    assert not cluster.reader.knows(SECRET)
    (problem,) = cluster.reader.problems()
    assert problem.startswith("Secret default/s cannot be read, and nodes keep their copy of it: Kubernetes: ")
    assert problem.endswith("hub may not get secrets")
    await cluster.turn(2)
    assert cluster.found == [(SECRET, False)]
    assert cluster.reader.knows(SECRET)
    assert cluster.reader.problems() == []


async def test_one_released_while_it_is_read_is_not_told(cluster: ReadOnDemand) -> None:
    cluster.api.put(BODY)
    cluster.reader.use(SECRET)
    await cluster.asking()
    cluster.reader.release(SECRET)
    await settle()
    assert cluster.found == []


async def test_one_that_waits_does_not_hold_up_another(cluster: ReadOnDemand) -> None:
    cluster.api.put(BODY)
    slow = Ref("Secret", "default", "slow")
    released = asyncio.Event()
    get = cluster.api.get

    async def get_slowly(resource: Resource, name: str, namespace: str = "") -> dict[str, Any]:
        if name == "slow":
            await released.wait()
        return await get(resource, name, namespace)

    cluster.api.get = get_slowly  # type: ignore[method-assign]  # one answer takes long
    cluster.reader.use(slow)
    await settle()
    cluster.reader.use(SECRET)
    await settle()
    assert cluster.reader.knows(SECRET)
    assert not cluster.reader.knows(slow)
    released.set()


async def test_one_that_is_wanted_anew_while_it_is_read_is_read_again(cluster: ReadOnDemand) -> None:
    cluster.api.put(BODY)
    cluster.reader.use(SECRET)
    await cluster.asking()
    cluster.reader.use(SECRET)
    await settle()
    assert cluster.found == [(SECRET, True)]
    assert cluster.api.asked == ["get secrets s"] * 2


@pytest.mark.parametrize(
    ("mistake", "problem", "tracebacks"),
    [
        (
            KubeError("get", 0, "", "nobody answers"),
            "and nodes keep their copy of it: Kubernetes: get: nobody answers",
            0,
        ),
        (ZeroDivisionError(), "because of a bug in CSI Bridge; see the hub's log", 1),
    ],
    ids=["a failure", "a bug"],
)
async def test_what_fails_is_told_once_and_tried_again_with_growing_distance(
    cluster: ReadOnDemand, caplog: pytest.LogCaptureFixture, mistake: Exception, problem: str, tracebacks: int
) -> None:
    cluster.api.put(BODY)
    cluster.mistakes = [mistake] * 3
    cluster.reader.use(SECRET)
    await settle()
    assert not cluster.reader.knows(SECRET)
    (told,) = cluster.reader.problems()
    assert told.startswith("Secret default/s cannot be read")
    assert told.endswith(problem)
    for seconds in (1, 2, 3):
        await cluster.turn(seconds)
        assert cluster.found == []
    await cluster.turn(2)
    assert cluster.reader.knows(SECRET)
    assert (cluster.found, cluster.reader.problems()) == ([(SECRET, True)], [])
    assert len(caplog.records) == 1
    assert len([it for it in caplog.records if it.exc_info]) == tracebacks


async def test_what_nobody_foresaw_takes_nothing_away_and_brings_nothing_back(cluster: ReadOnDemand) -> None:
    cluster.api.put(BODY)
    cluster.reader.use(SECRET)
    await settle()
    cluster.mistakes = [ZeroDivisionError()]
    await cluster.turn(REFRESH_S + 1)
    assert cluster.reader.knows(SECRET)

    cluster.lets_go, cluster.mistakes = True, [ZeroDivisionError()]
    await cluster.turn(2)
    asked = len(cluster.api.asked)
    await cluster.turn(10 * REFRESH_S)
    assert len(cluster.api.asked) == asked
    assert cluster.reader.problems() == []


async def test_a_read_that_fails_is_no_line_of_the_node_that_used_the_object_first(
    cluster: ReadOnDemand,
) -> None:
    """Else the node's allowance of log lines would hold back what the hub's own rights cause."""
    peers: list[str | None] = []

    class Getter(SecretReader):
        async def get(self, ref: Ref) -> tuple[dict[str, Any] | None, float]:
            peers.append(logs._peer.get())
            return await super().get(ref)

    reader = OnDemand(Getter(cluster.api), cluster._note, later=cluster._later)

    async def stream() -> None:
        logs.bind_peer("edge n1")
        reader.use(SECRET)

    await asyncio.create_task(stream())
    await settle()
    assert peers == [None]
    await reader.close()
