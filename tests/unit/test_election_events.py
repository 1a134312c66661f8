"""The Events of elections: on the CSIDriver and on the Node, once each, and after an outage of the API server, too."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from cloud.claims.election import FIRST, Elected
from cloud.kube.client import KubeError
from cloud.sources.source import Item, Source
from cloud.upsync.election_events import ElectionEvents
from common.objects.objects import Ref, Stamp
from tests.kit.fake_api import FakeApi
from tests.kit.waiting import settle

DRIVER = "nfs.example.com"
TAKEN_OVER = Elected("n2", 1_700_000_000, 1_700_000_000.5, "edge node n1 was away for 15 s")


class ElectionEventsOfHub:
    """An API server, the hub's copy of its objects, and the Events."""

    def __init__(self) -> None:
        self.api, self.source = FakeApi(), Source()
        self.events = ElectionEvents(self.api, self.source)

    def put(self, kind: str, name: str) -> None:
        body: Any = {"kind": kind, "metadata": {"name": name, "uid": f"uid of {name}"}}
        self.source.update({Ref(kind, "", name): Item(Stamp(f"uid of {name}", "1"), body)})

    async def written(self) -> list[dict[str, Any]]:
        await settle()
        return [it for _, it in sorted(self.api._objects["Event"].items())]


@pytest.fixture
async def hub() -> AsyncIterator[ElectionEventsOfHub]:
    hub = ElectionEventsOfHub()
    yield hub
    await hub.events.close()


async def test_an_election_is_told_on_the_csidriver_and_on_the_node(hub: ElectionEventsOfHub) -> None:
    hub.put("CSIDriver", DRIVER)
    hub.put("Node", "n2")
    hub.events.add(DRIVER, TAKEN_OVER)
    told = await hub.written()
    assert {it["metadata"]["namespace"] for it in told} == {"default"}
    by_kind = {it["involvedObject"]["kind"]: it for it in told}
    assert by_kind.keys() == {"CSIDriver", "Node"}
    assert by_kind["CSIDriver"]["involvedObject"] == {
        "kind": "CSIDriver", "apiVersion": "storage.k8s.io/v1", "name": DRIVER, "uid": f"uid of {DRIVER}",
    }  # fmt: skip
    assert by_kind["CSIDriver"]["related"]["name"] == "n2"
    text = f"edge node n2 serves driver {DRIVER} (epoch 1700000000): edge node n1 was away for 15 s"
    assert [(it["type"], it["reason"], it["message"]) for it in told] == [("Warning", "NodeTookOver", text)] * 2
    assert by_kind["Node"]["firstTimestamp"] == "2023-11-14T22:13:20Z"


async def test_the_first_election_is_no_warning(hub: ElectionEventsOfHub) -> None:
    hub.put("Node", "n2")
    hub.events.add(DRIVER, Elected("n2", 7, 7.0, FIRST))
    (told,) = await hub.written()
    assert (told["type"], told["reason"]) == ("Normal", "NodeElected")


async def test_an_object_that_is_not_there_gets_no_event(hub: ElectionEventsOfHub) -> None:
    hub.events.add(DRIVER, TAKEN_OVER)
    assert await hub.written() == []


async def test_an_event_whose_answer_was_lost_is_written_once(hub: ElectionEventsOfHub) -> None:
    hub.put("CSIDriver", DRIVER)
    hub.events.add(DRIVER, TAKEN_OVER)
    await settle()
    hub.events.add(DRIVER, TAKEN_OVER)
    assert len(await hub.written()) == 1
    assert hub.events.problems() == []


async def test_a_failed_write_is_a_problem_and_tried_again(hub: ElectionEventsOfHub) -> None:
    paused = asyncio.Event()

    async def pause(_seconds: float) -> None:
        await paused.wait()

    hub.events._queue._pause = pause
    hub.put("CSIDriver", DRIVER)
    hub.api.failures["create"] = [KubeError("create events", 0, "", "no answer")]
    hub.events.add(DRIVER, TAKEN_OVER)
    assert await hub.written() == []
    assert hub.events.problems() == ["Kubernetes: create events: no answer"]
    paused.set()
    assert len(await hub.written()) == 1
    assert hub.events.problems() == []


async def test_an_event_that_can_never_be_written_is_dropped(hub: ElectionEventsOfHub) -> None:
    hub.put("CSIDriver", DRIVER)
    hub.api.failures["create"] = [KubeError("create events", 422, "Invalid", "no such field")]
    hub.events.add(DRIVER, TAKEN_OVER)
    assert await hub.written() == []
    assert hub.events.problems() == []


async def test_in_an_outage_the_newest_events_are_kept(hub: ElectionEventsOfHub) -> None:
    async def pause(_seconds: float) -> None:
        await asyncio.Event().wait()

    hub.events._queue._pause = pause
    hub.put("CSIDriver", DRIVER)
    hub.api.failures["create"] = [KubeError("create events", 0, "", "no answer") for _ in range(500)]
    for epoch in range(1, 151):
        hub.events.add(DRIVER, Elected("n2", epoch, float(epoch), "why"))
        await settle()
    waiting = [it["message"] for it in hub.events._waiting.values()]
    assert len(waiting) == 100
    assert "(epoch 51)" in waiting[0]
    assert "(epoch 150)" in waiting[-1]
