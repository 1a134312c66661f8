"""An event writer: one event for each cause, whose count only grows, and nobody else's is touched."""

from typing import Any

import pytest

from cloud.kube.client import RESOURCES, KubeError
from cloud.upsync.event_writer import EventWriter
from common.objects.objects import Ref
from tests.kit.fake_api import FakeApi

Body = dict[str, Any]

REF = Ref("Event", "default", "web.17a2b3")
ABOUT = {"apiVersion": "v1", "kind": "Pod", "namespace": "default", "name": "web", "uid": "u-1"}


@pytest.fixture
def api() -> FakeApi:
    return FakeApi()


@pytest.fixture
def writer(api: FakeApi) -> EventWriter:
    return EventWriter(api)


def told(count: int = 1, minute: int = 0, **more: Any) -> Body:
    return {
        "involvedObject": ABOUT,
        "reason": "FailedMount",
        "message": "no driver",
        "type": "Warning",
        "count": count,
        "firstTimestamp": "2026-11-22T00:00:00Z",
        "lastTimestamp": f"2026-11-22T00:{minute:02}:00Z",
        "source": {"component": "csi-bridge-edge", "host": "n1"},
        "reportingComponent": "csi-bridge-edge",
        "reportingInstance": "n1",
        **more,
    }


async def written(api: FakeApi) -> Body:
    return await api.get(RESOURCES["Event"], REF.name, REF.namespace)


async def test_a_new_event_is_created_as_it_was_told(api: FakeApi, writer: EventWriter) -> None:
    await writer.write("n1", REF, told())
    assert api.asked == ["create events web.17a2b3"]
    found = await written(api)
    assert (found["metadata"]["name"], found["metadata"]["namespace"]) == ("web.17a2b3", "default")
    assert {name: found[name] for name in told()} == told()


async def test_the_same_again_is_no_change(api: FakeApi, writer: EventWriter) -> None:
    await writer.write("n1", REF, told())
    before = await written(api)
    await writer.write("n1", REF, told())
    assert await written(api) == before
    assert not any(asked.startswith("patch") for asked in api.asked)


async def test_a_patch_is_of_the_event_that_was_looked_at(api: FakeApi, writer: EventWriter) -> None:
    await writer.write("n1", REF, told())
    old = await written(api)
    api.put({**old, "count": 4})

    async def get_old(*_: Any) -> Body:
        return old

    api.get = get_old  # type: ignore[method-assign]  # as if somebody wrote just after it
    with pytest.raises(KubeError):
        await writer.write("n1", REF, told(2, 1))


@pytest.mark.parametrize(
    "other",
    [
        {"reportingInstance": "n2", "reportingComponent": "csi-bridge-edge"},
        {"reportingComponent": "kubelet"},
        {"message": "another"},
        {"involvedObject": {**ABOUT, "uid": "another"}},
        {"involvedObject": {**ABOUT, "name": "another"}},
    ],
)
async def test_another_event_of_the_name_stays_as_it_is(api: FakeApi, writer: EventWriter, other: Body) -> None:
    theirs = api.put({**told(), **other, "kind": "Event", "metadata": {"namespace": "default", "name": REF.name}})
    await writer.write("n1", REF, told(7, 7))
    assert await written(api) == theirs


async def test_a_node_speaks_in_its_own_name(api: FakeApi, writer: EventWriter) -> None:
    lie = {"source": {"component": "kubelet", "host": "n2"}, "reportingComponent": "default-scheduler"}
    await writer.write("n1", REF, told(**lie, reportingInstance="n2"))
    found = await written(api)
    assert found["source"] == {"component": "csi-bridge-edge", "host": "n1"}
    assert (found["reportingComponent"], found["reportingInstance"]) == ("csi-bridge-edge", "n1")


@pytest.mark.parametrize(
    "error",
    [
        KubeError("create", 0, "", "nobody answers"),
        KubeError("create", 403, "Forbidden", 'cannot create resource "events"'),
        KubeError("create", 409, "Conflict", "a quota changed"),
        KubeError("create", 429, "TooManyRequests", "later"),
        KubeError("create", 500, "InternalError", "a webhook failed"),
    ],
)
async def test_what_may_come_right_is_tried_again(api: FakeApi, writer: EventWriter, error: KubeError) -> None:
    api.failures["create"] = [error]
    with pytest.raises(KubeError):
        await writer.write("n1", REF, told())


@pytest.mark.parametrize("last", ["", "yesterday", "9999"])
async def test_a_last_time_that_is_none_raises_nothing(api: FakeApi, writer: EventWriter, last: str) -> None:
    await writer.write("n1", REF, told(1, 3))
    await writer.write("n1", REF, told(1, lastTimestamp=last))
    assert (await written(api))["lastTimestamp"] == "2026-11-22T00:03:00Z"
