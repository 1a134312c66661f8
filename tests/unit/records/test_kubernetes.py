"""The records in a cluster while requests are under way. What a real API server does is in tests/peers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest

from cloud.kube import KubeError
from cloud.records.kubernetes import KubernetesRecords
from cloud.records.records import Change, Kind
from common.database_writer import WriteFailed
from tests.kit.records_suite import KEY, claim
from tests.kit.waiting import settle

if TYPE_CHECKING:
    from cloud.kube import Kube

NODE = Change(Kind.NODE, ("n1",), {"instance": "i", "drivers": []})


class Api:
    """Stands in for `cloud.kube.Kube`: objects by name, and whether a hub leads.

    Answers wait while `answers` is not set. The next one may be lost (`is_lost`).
    """

    def __init__(self) -> None:
        self.objects: dict[str, Any] = {}
        self.answers = asyncio.Event()
        self.answers.set()
        self.leads, self.is_lost = True, False
        self._version = 0

    async def still_leads(self) -> None:
        if not self.leads:
            raise KubeError("write", 0, "", "another hub leads")

    async def get(self, _resource: Any, name: str, _namespace: str) -> Any:
        return self.objects[name]

    async def create(self, _resource: Any, body: Any, _namespace: str) -> Any:
        return await self._put(body["metadata"]["name"], body)

    async def edit(self, _resource: Any, name: str, steps: list[Any], _namespace: str, *, subresource: str = "") -> Any:
        body = dict(self.objects[name])
        assert subresource in ("", "status")
        for step in steps[1:]:
            body[step["path"].removeprefix("/")] = step["value"]
        return await self._put(name, body)

    async def delete(self, _resource: Any, name: str, _namespace: str, **_of: str) -> None:
        del self.objects[name]

    async def _put(self, name: str, body: Any) -> Any:
        self._version += 1
        self.objects[name] = {**body, "metadata": {"name": name, "uid": "u", "resourceVersion": str(self._version)}}
        await self.answers.wait()
        if self.is_lost:
            raise KubeError("write", 0, "", "no answer")
        return self.objects[name]


def records_of(api: Api) -> KubernetesRecords:
    return KubernetesRecords(cast("Kube", api), "default", still_leads=api.still_leads)


async def test_changes_of_a_record_that_come_while_an_earlier_one_is_being_sent_are_written() -> None:
    api = Api()
    records = records_of(api)
    api.answers.clear()
    records.put(Change(Kind.CLAIM, KEY, claim(1)))
    await settle()
    records.put(Change(Kind.CLAIM, KEY, claim(2)))
    written = records.write([Change(Kind.CLAIM, KEY, claim(3))])
    api.answers.set()
    async with asyncio.timeout(5):
        await written
    assert [it["spec"]["since"] for it in api.objects.values()] == [3]
    await records.close()


async def test_the_status_of_a_node_may_wait_and_its_removal_does_not() -> None:
    api = Api()
    records = records_of(api)
    for body in (NODE.body, {**(NODE.body or {}), "instance": "later"}):
        records.put(NODE._replace(body=body))
        await settle()
    assert api.objects["n1"]["status"]["instance"] == "i"
    records.put(NODE._replace(body=None))
    await settle()
    assert api.objects == {}
    await records.close()


async def test_a_hub_that_got_no_answer_and_leads_no_more_writes_nothing_over_the_next_one() -> None:
    api = Api()
    records = records_of(api)
    await records.write([Change(Kind.CLAIM, KEY, claim(1))])
    api.is_lost = True
    with pytest.raises(WriteFailed, match="no answer"):
        await records.write([Change(Kind.CLAIM, KEY, claim(2))])
    api.is_lost = api.leads = False
    ((name, body),) = api.objects.items()
    api.objects[name] = {**body, "spec": {**body["spec"], "node": "n2"}}  # by the next hub
    records.put(Change(Kind.CLAIM, KEY, claim(3)))
    await records.close()  # its last attempt
    assert api.objects[name]["spec"]["node"] == "n2"
