"""The records in a cluster while requests are under way. What a real API server does is in tests/peers."""

import asyncio
import copy
import gc
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from cloud.kube.client import Kube, KubeError, ListPage
from cloud.records.kubernetes import KubernetesRecords
from cloud.records.objects import place_of
from cloud.records.records import Body, Change, Key, RecordKind
from cloud.sync.fact_kinds import Fact
from cloud.sync.fact_table import FactTable
from common.errors import SettingsError
from common.objects.objects import Stamp
from common.objects.sole_use import sole_use
from common.store.database_writer import WriteFailed
from tests.kit.records_suite import KEY, claim
from tests.kit.trusting import TRUSTING
from tests.kit.waiting import settle

NODE = Change(RecordKind.NODE, ("n1",), {"instance": "i", "drivers": []})


class Api:
    """Stands in for `cloud.kube.client.Kube`: objects by name, and whether a hub leads. A watch shows what a test
    `tell`s.

    Answers wait while `answers` is not set. The next one may be lost (`is_lost`).
    """

    def __init__(self, *objects: Any) -> None:
        self.objects: dict[str, Any] = {it["metadata"]["name"]: it for it in objects}
        self._events: dict[str, asyncio.Queue[tuple[str, Any]]] = defaultdict(asyncio.Queue)
        self.answers = asyncio.Event()
        self.answers.set()
        self.leads, self.is_lost = True, False
        self._version = 10

    async def list(self, resource: Any, **_of: Any) -> ListPage:
        return ListPage([it for it in self.objects.values() if it["kind"] == resource.kind], str(self._version), "")

    async def watch(self, resource: Any, _version: str, **_of: Any) -> AsyncIterator[tuple[str, Any]]:
        while True:
            yield await self._events[resource.kind].get()

    async def tell(self, what: str, body: Any) -> None:
        self._events[body["kind"]].put_nowait((what, body))
        await settle()

    async def patch(self, _resource: Any, name: str, change: Any, _namespace: str) -> Any:
        assert change["metadata"]["uid"] == self.objects[name]["metadata"]["uid"]
        return await self._put(name, self.objects[name])

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

    async def edit(
        self, _resource: Any, name: str, steps: "list[Any]", _namespace: str, *, subresource: str = ""
    ) -> Any:
        body = copy.deepcopy(self.objects[name])
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


def standby_of(api: Api) -> KubernetesRecords:
    records = KubernetesRecords(cast("Kube", api), "default")
    records.open()
    return records


async def records_of(api: Api) -> KubernetesRecords:
    """The records of a hub that leads."""
    records = standby_of(api)
    await lead(records, api)
    return records


async def lead(records: KubernetesRecords, api: Api) -> None:
    leading = asyncio.create_task(records.lead(cast("Kube", api), api.still_leads))
    await settle()
    for body in list(api.objects.values()):
        await api.tell("MODIFIED", body)
    await leading


async def test_changes_of_a_record_that_come_while_an_earlier_one_is_being_sent_are_written() -> None:
    api = Api()
    records = await records_of(api)
    api.answers.clear()
    records.put(Change(RecordKind.CLAIM, KEY, claim(1)))
    await settle()
    records.put(Change(RecordKind.CLAIM, KEY, claim(2)))
    written = records.write([Change(RecordKind.CLAIM, KEY, claim(3))])
    api.answers.set()
    async with asyncio.timeout(5):
        await written
    assert [it["spec"]["since"] for it in api.objects.values()] == [3]
    await records.close()


async def test_requests_that_fail_together_end_each_change_once() -> None:
    api, bugs = Api(), list[Any]()
    asyncio.get_running_loop().set_exception_handler(lambda _loop, it: bugs.append(it))
    records = await records_of(api)
    api.answers.clear()
    a, b = (Change(RecordKind.CLAIM, ("d", name), claim(1)) for name in "ab")
    written = [records.write([a, b]), records.write([b])]
    await settle()
    api.is_lost = True
    api.answers.set()
    assert [type(it) for it in await asyncio.gather(*written, return_exceptions=True)] == [WriteFailed, WriteFailed]
    await settle()
    gc.collect()
    assert bugs == []
    await records.close()


async def test_the_status_of_a_node_may_wait_and_its_first_write_and_its_removal_do_not() -> None:
    api = Api()
    records = await records_of(api)
    records.put(NODE)
    await settle()
    assert api.objects == {}  # a takeover has enough to do
    await records.write([NODE])
    records.put(NODE._replace(body={**(NODE.body or {}), "instance": "later"}))
    await settle()
    assert api.objects["n1"]["status"]["instance"] == "i"
    records.put(NODE._replace(body=None))
    await settle()
    assert api.objects == {}
    await records.close()


async def test_a_hub_that_ends_waits_for_the_requests_under_way_and_begins_none_for_a_status() -> None:
    api = Api()
    records = await records_of(api)
    api.answers.clear()
    sent = records.write([NODE])
    await settle()
    waiting = records.write([NODE._replace(body={**(NODE.body or {}), "instance": "later"})])
    closing = asyncio.create_task(records.close())
    await settle()
    assert not closing.done()
    api.answers.set()
    await closing
    assert isinstance(waiting.exception(), WriteFailed)
    assert sent.done()
    assert api.objects["n1"]["status"]["instance"] == "i"


async def test_a_hub_that_got_no_answer_and_leads_no_more_writes_nothing_over_the_next_one() -> None:
    api = Api()
    records = await records_of(api)
    await records.write([Change(RecordKind.CLAIM, KEY, claim(1))])
    api.is_lost = True
    with pytest.raises(WriteFailed, match="no answer"):
        await records.write([Change(RecordKind.CLAIM, KEY, claim(2))])
    api.is_lost = api.leads = False
    ((name, body),) = api.objects.items()
    api.objects[name] = {**body, "spec": {**body["spec"], "node": "n2"}}  # by the next hub
    records.put(Change(RecordKind.CLAIM, KEY, claim(3)))
    await records.close()  # its last attempt
    assert api.objects[name]["spec"]["node"] == "n2"


CLAIM = Change(RecordKind.CLAIM, KEY, claim(1))
PLACE = place_of(RecordKind.CLAIM, KEY)


def other_claim(version: int, **labels: str) -> dict[str, Any]:
    """The claim as another hub writes it: its call is at another node."""
    metadata = {"name": PLACE.name, "uid": "u", "resourceVersion": str(version), "labels": labels}
    spec = {"driver": KEY[0], "name": KEY[1], **claim(2), "node": "n2"}
    return {**of_kind("VolumePlacement", PLACE.name, spec), "metadata": metadata}


def of_kind(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    """An object as another hub writes it."""
    metadata = {"name": name, "uid": f"u-{name}", "resourceVersion": "99"}
    return {"apiVersion": "csi-bridge.io/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}


@pytest.mark.parametrize("leads", [True, False])
async def test_what_another_hub_has_changed_is_written_over_only_by_a_hub_that_leads(leads: bool) -> None:
    api = Api()
    records = await records_of(api)
    records.watch(RecordKind.CLAIM, lambda _key: CLAIM)
    await records.write([CLAIM])
    api.leads = leads
    api.objects[PLACE.name] = changed = other_claim(99)
    await api.tell("MODIFIED", changed)
    assert api.objects[PLACE.name]["spec"]["node"] == ("n1" if leads else "n2")
    await records.close()


async def test_an_edited_record_that_cannot_be_read_is_written_again() -> None:
    api = Api()
    records = await records_of(api)
    records.watch(RecordKind.CLAIM, lambda _key: CLAIM)
    await records.write([CLAIM])
    api.objects[PLACE.name] = edited = {**other_claim(99), "spec": {"node": "n2"}}
    await api.tell("MODIFIED", edited)
    assert api.objects[PLACE.name]["spec"]["node"] == "n1"
    await records.close()


async def test_records_of_an_older_copy_that_was_restored_under_a_hub_are_written_again() -> None:
    api = Api(other_claim(7))
    records = await records_of(api)
    records.watch(RecordKind.CLAIM, lambda _key: CLAIM)
    await records.write([CLAIM])
    api.objects[PLACE.name] = other_claim(0)
    listed = records._copies["VolumePlacement"]
    listed.begin()
    listed.add(other_claim(0))
    listed.end()
    await settle()
    assert api.objects[PLACE.name]["spec"]["node"] == "n1"
    await records.close()


async def test_a_claim_that_an_earlier_hub_has_written_late_is_never_written_over_and_its_owner_takes_it() -> None:
    api = Api()
    records = await records_of(api)
    taken: list[Any] = []
    records.watch(RecordKind.CLAIM, lambda _key: CLAIM, lambda key, body: taken.append((key, body["node"])) is None)
    await api.tell("ADDED", other_claim(5))  # gone before this hub began: there was none then
    assert taken == []
    api.objects[PLACE.name] = late = other_claim(15)
    with pytest.raises(WriteFailed, match="another hub has written it"):  # the watch has not shown it yet
        await records.write([CLAIM])
    assert api.objects[PLACE.name] == late
    await api.tell("ADDED", late)
    assert taken == [(KEY, "n2")]
    await records.write([CLAIM._replace(body=None)])  # it is a record like any other now
    assert api.objects == {}
    await records.close()


async def test_a_late_claim_that_its_owner_does_not_want_goes() -> None:
    api = Api()
    records = await records_of(api)

    def adopt(_key: Key, _body: Body) -> bool:
        records.put(CLAIM._replace(body=None))
        return True

    records.watch(RecordKind.CLAIM, lambda _key: CLAIM, adopt)
    api.objects[PLACE.name] = other_claim(15)
    await api.tell("ADDED", api.objects[PLACE.name])
    await settle()
    assert api.objects == {}
    await records.close()


@pytest.mark.parametrize("leads", [True, False])
async def test_a_node_that_an_earlier_hub_has_written_late_goes_and_its_denial_stays(leads: bool) -> None:
    api = Api()
    records = await records_of(api)
    known = Change(RecordKind.CERTIFICATES, NODE.key, {"certificates": ["newer"]})
    records.watch(RecordKind.NODE, lambda key: NODE if key == NODE.key else Change(RecordKind.NODE, key, None))
    records.watch(
        RecordKind.CERTIFICATES, lambda key: known if key == NODE.key else Change(RecordKind.CERTIFICATES, key, None)
    )
    records.watch(RecordKind.DENIAL, lambda key: Change(RecordKind.DENIAL, key, None))
    api.leads = leads
    late = [of_kind("EdgeNode", node, {"node": node, "certificates": []}) for node in ("n1", "n2")]
    late.append(of_kind("Denial", place_of(RecordKind.DENIAL, ("node", "n2")).name, {"kind": "node", "value": "n2"}))
    for each in late:
        api.objects[each["metadata"]["name"]] = each
        await api.tell("ADDED", each)
    first, forgotten, denial = (each["metadata"]["name"] for each in late)
    is_newer = "spec/certificates" in api.objects[first]
    assert (is_newer, forgotten in api.objects, denial in api.objects) == (leads, not leads, True)
    await records.close()


async def test_a_claim_that_the_watch_shows_after_this_hub_has_removed_it_stays_removed() -> None:
    api = Api()
    records = await records_of(api)
    taken: list[Any] = []
    records.watch(RecordKind.CLAIM, lambda _key: CLAIM, lambda key, _body: taken.append(key) is None)
    await records.write([CLAIM])
    (made,) = api.objects.values()
    await records.write([CLAIM._replace(body=None)])
    await api.tell("ADDED", made)
    await api.tell("DELETED", made)
    await settle()
    assert (taken, api.objects) == ([], {})
    await records.close()


async def test_a_hub_works_with_no_records_of_a_hub_whose_lease_is_in_another_namespace() -> None:
    api = Api()
    records = await records_of(api)
    await records.write([CLAIM])
    (made,) = api.objects.values()
    assert made["metadata"]["labels"] == {"csi-bridge.io/hub": "default"}
    await api.tell("ADDED", {**other_claim(99, **{"csi-bridge.io/hub": "b"}), "metadata": other(made)})
    with pytest.raises(WriteFailed, match="whose Lease is in the namespace b"):
        await records.write([CLAIM])
    with pytest.raises(SettingsError, match="give --leader-election-namespace=b"):
        await records_of(Api(other_claim(99, **{"csi-bridge.io/hub": "b"})))
    await records.close()


def other(made: dict[str, Any]) -> dict[str, Any]:
    """The metadata of an object of the hub in the namespace b."""
    return {**made["metadata"], "name": "other", "labels": {"csi-bridge.io/hub": "b"}}


async def test_a_standby_leads_once_its_watch_has_shown_all_that_was_accepted_before() -> None:
    api = Api(other_claim(7))
    records = standby_of(api)
    await settle()
    leading = asyncio.create_task(records.lead(cast("Kube", api), api.still_leads))
    await settle()
    (last,) = api.objects.values()  # with the hub's annotation, so to say
    await api.tell("MODIFIED", {**other_claim(8), "spec": {**last["spec"], "node": "n3"}})
    assert not leading.done()
    await api.tell("MODIFIED", {**last, "spec": {**last["spec"], "node": "n4"}})
    await leading
    assert records.take(RecordKind.CLAIM, lambda _key, body: body["node"]) == ["n4"]
    await records.close()


async def test_a_standby_whose_watch_is_silent_lists_anew_when_it_begins_to_lead() -> None:
    """The server at the other end may be lost, with the leader's machine: TCP tells that only after a minute."""
    api = Api(other_claim(7))
    records = KubernetesRecords(cast("Kube", api), "default", retry_s=0.01)
    records.open()
    await settle()
    api.objects[PLACE.name]["spec"]["node"] = "n3"
    async with asyncio.timeout(5):
        await records.lead(cast("Kube", api), api.still_leads)
    assert records.take(RecordKind.CLAIM, lambda _key, body: body["node"]) == ["n3"]
    await records.close()


async def test_an_object_that_cannot_be_read_stops_no_standby() -> None:
    unreadable = {**other_claim(7), "spec": {"driver": "d"}}
    with pytest.raises(SettingsError, match="cannot be read"):
        await records_of(Api(unreadable))
    api = Api(unreadable)
    records = standby_of(api)
    await settle()
    api.objects[PLACE.name] = mended = other_claim(8)  # by the hub that leads
    await api.tell("MODIFIED", mended)
    await lead(records, api)
    await records.close()


async def test_an_own_change_whose_answer_was_lost_is_nobody_elses(caplog: pytest.LogCaptureFixture) -> None:
    api = Api()
    records = await records_of(api)
    records.watch(RecordKind.CLAIM, lambda _key: CLAIM)
    await records.write([CLAIM])
    api.is_lost = True
    with pytest.raises(WriteFailed, match="no answer"):
        await records.write([CLAIM._replace(body=claim(2))])
    api.is_lost = False
    await api.tell("MODIFIED", api.objects[PLACE.name])
    assert api.objects[PLACE.name]["spec"]["since"] == 1
    assert "somebody else" not in caplog.text
    await records.close()


async def test_a_write_of_a_hub_that_stood_still_has_failed_unless_it_is_a_claim_which_the_next_hub_takes() -> None:
    """No conflict shows the next hub, which has not written the object and will write its own state over it."""
    api = Api()
    records = await records_of(api)
    api.leads = False
    with pytest.raises(WriteFailed, match="another hub leads"):
        await records.write([NODE])
    await records.write([CLAIM])
    records.put(NODE)
    await records.close()


async def test_a_hub_that_stood_still_while_another_one_took_the_lead_confirms_no_use_of_a_volume() -> None:
    """Each node has an object of its own, so no conflict shows the other hub."""
    api = Api()
    paused, later = await records_of(api), await records_of(api)
    nodes, others = (FactTable(its, TRUSTING, guarded_only=True) for its in (paused, later))
    claim, body = sole_use("d", "v"), {"spec": {"driver": "d", "volumeHandle": "v"}}
    await others.put("n2", claim, Fact(Stamp("", "1"), body))
    api.answers.clear()
    asked = asyncio.create_task(nodes.put("n1", claim, Fact(Stamp("", "1"), body)))
    await settle()
    assert api.objects.keys() == {"n1", "n2"}
    api.leads = False
    api.answers.set()
    with pytest.raises(WriteFailed, match="another hub leads"):
        await asked
    assert nodes.stamps("n1") == {}  # nor is its agent in step
    await asyncio.gather(paused.close(), later.close())
