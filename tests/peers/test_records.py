"""The records in a real API server: what every implementation does, and what others may do to the objects."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, cast

import pytest

from cloud.kube.client import Kube, KubeError, Resource, connect, find
from cloud.records.kubernetes import KubernetesRecords
from cloud.records.objects import RESOURCES, RecordPlace, place_of
from cloud.records.records import Change, RecordKind
from common.store.database_writer import WriteFailed
from tests.kit.peers.control_plane import ControlPlane
from tests.kit.records_suite import KEY, RecordsSuite, Reopen, claim, found

A, B, C = (Change(RecordKind.CLAIM, ("d", name), claim(1.0)) for name in "abc")
PLACE = place_of(*A[:2])


@pytest.fixture
async def kube(control_plane: ControlPlane) -> AsyncIterator[Kube]:
    """A client of the API server, which has no records."""
    async with connect(str(control_plane.admin_kubeconfig())) as kube:
        for resource in RESOURCES:
            while True:
                try:
                    page = await kube.list(resource, limit=0)
                    break
                except KubeError:  # it does not serve the new kind yet
                    await asyncio.sleep(0.1)
            for body in page.items:
                metadata = body["metadata"]
                await kube.delete(resource, metadata["name"], metadata.get("namespace", ""), uid=metadata["uid"])
        yield kube


class Lagging:
    """A client of an API server whose watches are behind."""

    def __init__(self, kube: Kube) -> None:
        self.list, self._kube = kube.list, kube

    async def watch(self, resource: Resource, version: str, *, for_s: int) -> AsyncIterator[tuple[str, Any]]:
        async for event in self._kube.watch(resource, version, for_s=for_s):
            await asyncio.sleep(0.05)
            yield event


class Hub:
    """The records of a hub, and whether it leads."""

    def __init__(self, kube: Kube, namespace: str, *, lags: bool = False) -> None:
        self.leads, self.asked = True, 0
        self.records = KubernetesRecords(cast("Kube", Lagging(kube)) if lags else kube, namespace, retry_s=0.1)
        self.records.open()
        self._kube = kube

    async def lead(self) -> None:
        await self.records.lead(self._kube, self._still_leads)

    async def _still_leads(self) -> None:
        self.asked += 1
        if not self.leads:
            raise KubeError("write", 0, "", "another hub leads")


async def eventually(read: Callable[[], Awaitable[str]], value: str) -> None:
    async with asyncio.timeout(30.0):
        while await read() != value:  # noqa: ASYNC110  # the API server tells nobody here
            await asyncio.sleep(0.05)


async def watch_ends(hub: Hub) -> None:
    for each in hub.records._copies.values():
        await each.close()


@pytest.fixture
async def hub(kube: Kube, namespace: str) -> AsyncIterator[Hub]:
    hub = Hub(kube, namespace)
    await hub.lead()
    yield hub
    await hub.records.close()


class TestKubernetes(RecordsSuite):
    @pytest.fixture
    async def reopen(self, kube: Kube, namespace: str) -> AsyncIterator[Reopen]:
        async with AsyncExitStack() as opened:

            async def again() -> KubernetesRecords:
                await opened.aclose()
                hub = Hub(kube, namespace)
                await hub.lead()
                opened.push_async_callback(hub.records.close)
                return hub.records

            yield again


async def test_after_a_change_that_fails_the_rest_of_the_write_is_not_sent(
    hub: Hub, kube: Kube, namespace: str
) -> None:
    bad = Change(RecordKind.CLAIM, B.key, {"state": "no state"})
    with pytest.raises(WriteFailed, match=r"the records in the cluster cannot be written: .*spec\.state"):
        await hub.records.write([A, bad, C])
    assert "spec.state" in hub.records.trouble
    await hub.records.write([Change(RecordKind.CLAIM, ("d", "d"), claim(2.0))])
    assert hub.records.trouble == ""
    await hub.records.close()
    after = Hub(kube, namespace)
    await after.lead()
    assert set(found(after.records)) == {A.key, ("d", "d")}
    await after.records.close()


async def test_a_hub_that_leads_writes_its_own_state_over_that_of_others_after_it_has_asked_who_leads(
    hub: Hub, kube: Kube
) -> None:
    await hub.records.write([A])
    foreign = [{"op": "replace", "path": "/spec/node", "value": "n2"}]
    await kube.edit(PLACE.resource, PLACE.name, foreign)
    await hub.records.write([A._replace(body=claim(3.0))])
    assert (await kube.get(PLACE.resource, PLACE.name))["spec"]["node"] == "n1"
    assert hub.asked in (0, 1)  # 0: the watch was faster


async def test_a_hub_that_leads_no_more_changes_nothing_that_another_one_has_written(
    hub: Hub, kube: Kube, namespace: str
) -> None:
    await hub.records.write([B])
    other = Hub(kube, namespace)
    await other.lead()
    hub.leads = False
    await watch_ends(hub)
    await other.records.write([A, B._replace(body=claim(2.0))])
    with pytest.raises(WriteFailed, match="another hub has written it"):
        await hub.records.write([A._replace(body=claim(9.0))])
    with pytest.raises(WriteFailed, match="another hub leads"):
        await hub.records.write([B._replace(body=None)])
    await other.records.close()
    assert (await kube.get(PLACE.resource, PLACE.name))["spec"]["since"] == 1.0


async def test_what_somebody_else_changes_or_deletes_is_written_again_as_its_owner_has_it(hub: Hub, kube: Kube) -> None:
    kept = {A.key: A}
    hub.records.watch(RecordKind.CLAIM, lambda key: kept.get(key, Change(RecordKind.CLAIM, key, None)))
    await hub.records.write([A, B])

    async def node(place: RecordPlace = PLACE) -> str:
        found = await find(kube, place.resource, place.name)
        return found["spec"]["node"] if found is not None else ""

    await kube.edit(PLACE.resource, PLACE.name, [{"op": "replace", "path": "/spec/node", "value": "n2"}])
    await eventually(node, "n1")
    before = (await kube.get(PLACE.resource, PLACE.name))["metadata"]["uid"]
    await kube.delete(PLACE.resource, PLACE.name, uid=before)
    await eventually(node, "n1")
    assert (await kube.get(PLACE.resource, PLACE.name))["metadata"]["uid"] != before
    other = place_of(*B[:2])
    await kube.edit(other.resource, other.name, [{"op": "replace", "path": "/spec/node", "value": "n2"}])
    await eventually(lambda: node(other), "")  # its owner has none
    assert hub.asked >= 3  # it might have been the next hub


async def test_an_object_that_is_no_record_stops_the_hub_at_its_start(kube: Kube, namespace: str) -> None:
    body = {"apiVersion": "csi-bridge.io/v1alpha1", "kind": "VolumePlacement", "metadata": {"name": "mine"}}
    await kube.create(PLACE.resource, {**body, "spec": {"driver": "d", "name": "a", "state": "open"}})
    hub = Hub(kube, namespace)
    with pytest.raises(Exception, match="VolumePlacement mine has the record of"):
        await hub.lead()
    await hub.records.close()


async def test_a_key_of_any_text_has_an_object(hub: Hub) -> None:
    keys = [KEY, ("d", ""), ("d", "x" * 900), ("d", "\u0001")]
    for key in keys:
        await hub.records.write([Change(RecordKind.CLAIM, key, claim(1.0))])


async def test_the_records_of_a_node_stand_in_one_object_which_goes_with_the_last_of_them(
    hub: Hub, kube: Kube, namespace: str
) -> None:
    fence = Change(RecordKind.FENCE, ("n1",), {"mark": "m", "at": 1.0, "why": "burnt", "in_use": ["v"]})
    node = Change(
        RecordKind.NODE, ("n1",), {"connected": True, "drivers": [{"driver": "d", "node": "n1", "answers": {}}]}
    )
    place = place_of(RecordKind.NODE, ("n1",))
    await asyncio.gather(hub.records.write([fence, node]), hub.records.write([node]))
    body = await kube.get(place.resource, place.name)
    assert body["spec"] == {
        "node": "n1",
        "facts": {},
        "fence": {"mark": "m", "at": 1.0, "why": "burnt", "inUse": ["v"]},
    }
    assert body["status"]["drivers"][0]["driver"] == "d"
    hub.records.put(node._replace(body={"connected": False, "drivers": []}))  # too soon after the last one
    await hub.records.write([fence._replace(body=None)])
    assert (await kube.get(place.resource, place.name))["status"]["connected"]
    await hub.records.write([node._replace(body=None)])
    with pytest.raises(KubeError, match="not found"):
        await kube.get(place.resource, place.name)


@pytest.mark.slow
async def test_a_node_whose_object_somebody_deletes_during_a_write_has_all_its_records_again(
    hub: Hub, kube: Kube
) -> None:
    node = Change(RecordKind.NODE, ("n1",), {"connected": True, "drivers": [{"driver": "d", "answers": {}}]})
    fence = Change(RecordKind.FENCE, ("n1",), {"mark": "m", "at": 1.0, "why": "burnt"})
    hub.records.watch(RecordKind.NODE, lambda _key: node)
    await hub.records.write([node])
    place = place_of(RecordKind.NODE, ("n1",))
    await watch_ends(hub)  # the write is faster
    await kube.delete(place.resource, place.name, uid=(await kube.get(place.resource, place.name))["metadata"]["uid"])
    await hub.records.write([fence])

    async def drivers() -> str:
        body = await kube.get(place.resource, place.name)
        return f"{body['spec']['fence']['why']} {len((body.get('status') or {}).get('drivers', ()))}"

    await eventually(drivers, "burnt 1")


async def test_a_standby_takes_over_with_the_last_changes_of_the_hub_before_it_and_misses_no_late_one(
    hub: Hub, kube: Kube, namespace: str
) -> None:
    denial = Change(RecordKind.DENIAL, ("node", "n1"), {"at": 1.0, "why": "stolen"})
    for turn in range(5):
        await hub.records.write([A, B, denial])
        standby = Hub(kube, namespace, lags=True)
        for each in standby.records._copies.values():
            await each._complete.wait()
        for number in range(20):
            last = hub.records.write(
                [A._replace(body=claim(number)), Change(RecordKind.CLAIM, ("d", f"{turn}"), claim(1))]
            )
        await hub.records.write([B._replace(body=None), denial._replace(body=None)])
        await last
        await standby.lead()
        assert found(standby.records) == {
            A.key: claim(19),
            **{("d", f"{number}"): claim(1) for number in range(turn + 1)},
        }
        assert found(standby.records, RecordKind.DENIAL) == {}
        await standby.records.close()
    standby, late = Hub(kube, namespace), []
    await standby.lead()
    standby.records.watch(
        RecordKind.CLAIM, lambda key: Change(RecordKind.CLAIM, key, None), lambda *it: late.append(it) is None
    )
    await hub.records.write([C])

    async def taken() -> str:
        return "".join(key[1] for key, _body in late)

    await eventually(taken, "c")
    await standby.records.close()
