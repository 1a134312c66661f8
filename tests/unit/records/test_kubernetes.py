"""The records in a cluster while requests are under way. What a real API server does is in tests/peers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest

from cloud.kube import KubeError
from cloud.records.kubernetes import KubernetesRecords
from cloud.records.objects import place_of
from cloud.records.records import Change, Kind
from common.database_writer import WriteFailed
from common.errors import SettingsError
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
        if name not in self.objects:
            raise KubeError("get", 404, "NotFound", "there is none")
        return self.objects[name]

    async def create(self, _resource: Any, body: Any, _namespace: str) -> Any:
        if body["metadata"]["name"] in self.objects:
            raise KubeError("create", 409, "AlreadyExists", "there is one")
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
        its = {"uid": f"u{self._version}", **body["metadata"], "resourceVersion": str(self._version)}
        self.objects[name] = {**body, "metadata": its}
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


CLAIM = Change(Kind.CLAIM, KEY, claim(1))
PLACE = place_of(Kind.CLAIM, KEY)


def other_claim(version: int, **labels: str) -> dict[str, Any]:
    """The claim as another hub writes it: its call is at another node."""
    metadata = {"name": PLACE.name, "uid": "u", "resourceVersion": str(version), "labels": labels}
    spec = {"driver": KEY[0], "name": KEY[1], **claim(2), "node": "n2"}
    return {"apiVersion": "csi-bridge.io/v1alpha1", "kind": "VolumePlacement", "metadata": metadata, "spec": spec}


@pytest.mark.parametrize("leads", [True, False])
async def test_what_another_hub_has_changed_is_written_over_only_by_a_hub_that_leads(leads: bool) -> None:
    api = Api()
    records = records_of(api)
    records.watch(Kind.CLAIM, lambda _key: CLAIM)
    await records.write([CLAIM])
    api.leads = leads
    api.objects[PLACE.name] = changed = other_claim(9)
    records.seen(PLACE.resource, changed, is_gone=False)
    await settle()
    assert api.objects[PLACE.name]["spec"]["node"] == ("n1" if leads else "n2")
    await records.close()


async def test_an_edited_record_that_cannot_be_read_is_written_again() -> None:
    api = Api()
    records = records_of(api)
    records.watch(Kind.CLAIM, lambda _key: CLAIM)
    await records.write([CLAIM])
    api.objects[PLACE.name] = edited = {**other_claim(9), "spec": {"node": "n2"}}
    records.seen(PLACE.resource, edited, is_gone=False)
    await settle()
    assert api.objects[PLACE.name]["spec"]["node"] == "n1"
    await records.close()


async def test_records_of_an_older_copy_that_was_restored_under_a_hub_are_written_again() -> None:
    api = Api()
    records = records_of(api)
    records.watch(Kind.CLAIM, lambda _key: CLAIM)
    api.objects[PLACE.name] = other_claim(7)
    records.load(PLACE.resource, [other_claim(7)])
    await records.write([CLAIM])
    api.objects[PLACE.name] = other_claim(0)
    records.compare(PLACE.resource, [other_claim(0)])
    await settle()
    assert api.objects[PLACE.name]["spec"]["node"] == "n1"
    await records.close()


async def test_a_claim_that_an_earlier_hub_has_written_late_is_never_written_over_and_its_owner_takes_it() -> None:
    api = Api()
    records = records_of(api)
    taken: list[Any] = []
    records.watch(Kind.CLAIM, lambda _key: CLAIM, lambda key, body: taken.append((key, body["node"])) is None)
    api.objects[PLACE.name] = late = other_claim(5)
    with pytest.raises(WriteFailed, match="another hub has written it"):  # the watch has not shown it yet
        await records.write([CLAIM])
    assert api.objects[PLACE.name] == late
    records.seen(PLACE.resource, late, is_gone=False)
    assert taken == [(KEY, "n2")]
    await records.write([CLAIM._replace(body=None)])  # it is a record like any other now
    assert api.objects == {}
    await records.close()


async def test_a_claim_that_the_watch_shows_after_this_hub_has_removed_it_stays_removed() -> None:
    api = Api()
    records = records_of(api)
    taken: list[Any] = []
    records.watch(Kind.CLAIM, lambda _key: CLAIM, lambda key, _body: taken.append(key) is None)
    await records.write([CLAIM])
    (made,) = api.objects.values()
    await records.write([CLAIM._replace(body=None)])
    records.seen(PLACE.resource, made, is_gone=False)
    records.seen(PLACE.resource, made, is_gone=True)
    await settle()
    assert (taken, api.objects) == ([], {})
    await records.close()


async def test_a_hub_works_with_no_records_of_a_hub_whose_lease_is_in_another_namespace() -> None:
    api = Api()
    records = records_of(api)
    await records.write([CLAIM])
    (made,) = api.objects.values()
    assert made["metadata"]["labels"] == {"csi-bridge.io/hub": "default"}
    records.seen(
        PLACE.resource, {**other_claim(9, **{"csi-bridge.io/hub": "b"}), "metadata": other(made)}, is_gone=False
    )
    with pytest.raises(WriteFailed, match="whose Lease is in the namespace b"):
        await records.write([CLAIM])
    with pytest.raises(SettingsError, match="give --leader-election-namespace=b"):
        records_of(api).load(PLACE.resource, [other_claim(9, **{"csi-bridge.io/hub": "b"})])
    await records.close()


def other(made: dict[str, Any]) -> dict[str, Any]:
    """The metadata of an object of the hub in the namespace b."""
    return {**made["metadata"], "name": "other", "labels": {"csi-bridge.io/hub": "b"}}
