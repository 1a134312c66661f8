"""A CSINode writer: the drivers that a node tells of stand in its CSINode, and those of others stay."""

from typing import Any

import pytest

from cloud.kube.client import RESOURCES, KubeError, Resource
from cloud.upsync.csinode_writer import CSINodeWriter
from common.objects.objects import Ref
from tests.kit.fake_api import FakeApi

CSI_NODE = Ref("CSINode", "", "n1")

Body = dict[str, Any]


class StrictApi(FakeApi):
    """Refuses what the API server refuses of a CSINode (validation.ValidateCSINodeUpdate)."""

    def __init__(self) -> None:
        super().__init__()
        self.count_changes = True  # whether it lets `allocatable` change in place
        self.refused_id = ""  # a node id that it does not take

    async def patch(
        self, resource: Resource, name: str, change: Body, namespace: str = "", *, subresource: str = ""
    ) -> Body:
        if resource.kind == "CSINode" and "spec" in change:
            old = {it["name"]: it for it in (await self.get(resource, name))["spec"]["drivers"] or ()}
            for entry in change["spec"]["drivers"]:
                self._check(old.get(entry["name"], entry), entry)
        return await super().patch(resource, name, change, namespace, subresource=subresource)

    def _check(self, old: Body, new: Body) -> None:
        fixed = [{**it, "allocatable": None} if self.count_changes else it for it in (old, new)]
        if fixed[0] != fixed[1] or (self.refused_id and new["nodeID"] == self.refused_id):
            raise KubeError("patch CSINode n1", 422, "Invalid", "the API server rejects spec.drivers")


class CSINodeWrites:
    """An API server with a Node, and a writer."""

    def __init__(self) -> None:
        self.api = StrictApi()
        self.api.put({"kind": "Node", "metadata": {"name": "n1", "uid": "u1"}})
        self.now = 1000.0
        self.writer = CSINodeWriter(self.api, now=lambda: self.now)

    async def write(self, *entries: Body) -> None:
        await self.tell({"spec": {"drivers": list(entries)}})

    async def tell(self, fact: Body | None) -> None:
        """What is to go goes: it is looked at again when the writer says."""
        while (again_s := await self.writer.write("n1", CSI_NODE, fact)) is not None:
            self.now += again_s

    async def found(self) -> Body:
        return await self.api.get(RESOURCES["CSINode"], "n1")

    async def entries(self) -> list[Body]:
        entries: list[Body] = (await self.found())["spec"]["drivers"]
        return entries

    async def ids(self) -> dict[str, str]:
        return {it["name"]: it["nodeID"] for it in await self.entries()}

    def writes(self) -> list[str]:
        return [it for it in self.api.asked if not it.startswith("get")]


@pytest.fixture
def kube() -> CSINodeWrites:
    return CSINodeWrites()


def entry(name: str, node_id: str = "id", *, keys: tuple[str, ...] = (), count: int | None = None) -> Body:
    allocatable = {"allocatable": {"count": count}} if count is not None else {}
    return {"name": name, "nodeID": node_id, "topologyKeys": list(keys), **allocatable}


def somebodys(*entries: Body, **metadata: Any) -> Body:
    return {"kind": "CSINode", "metadata": {"name": "n1", **metadata}, "spec": {"drivers": list(entries)}}


OWNER = {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u1"}


async def test_a_csinode_that_is_missing_is_made_and_belongs_to_its_node(kube: CSINodeWrites) -> None:
    await kube.write(entry("d", keys=("zone",), count=3), entry("e"))
    found = await kube.found()
    assert found["metadata"]["ownerReferences"] == [OWNER]
    marks = {"csi-bridge.io/made-by": "hub", "csi-bridge.io/drivers": '["d","e"]'}
    assert found["metadata"]["annotations"] == marks
    assert await kube.entries() == [entry("d", keys=("zone",), count=3), entry("e")]


async def test_what_is_so_already_is_not_written_whatever_its_order(kube: CSINodeWrites) -> None:
    await kube.write(entry("d", keys=("a", "b")), entry("e"))
    before = kube.writes()
    await kube.write(entry("e"), entry("d", keys=("b", "a")))
    assert kube.writes() == before


async def test_without_the_node_it_is_tried_again(kube: CSINodeWrites) -> None:
    kube.api.drop("Node", "n1")
    with pytest.raises(KubeError):
        await kube.write(entry("d"))
    kube.api.put({"kind": "Node", "metadata": {"name": "n1", "uid": "u2"}})
    await kube.write(entry("d"))
    assert (await kube.found())["metadata"]["ownerReferences"] == [{**OWNER, "uid": "u2"}]


async def test_a_csinode_of_a_node_that_is_gone_gets_the_new_node_for_its_owner(kube: CSINodeWrites) -> None:
    another = {"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "u9"}
    kube.api.put(somebodys(entry("d"), ownerReferences=[{**OWNER, "uid": "u0"}, another]))
    await kube.write(entry("d"))
    assert (await kube.found())["metadata"]["ownerReferences"] == [another, OWNER]


async def test_a_death_between_removing_and_adding_loses_nothing(kube: CSINodeWrites) -> None:
    await kube.write(entry("d"))
    patch = kube.api.patch

    async def last(*args: Any, **options: Any) -> Body:
        body = await patch(*args, **options)
        kube.api.patch = patch  # type: ignore[method-assign]  # as it was
        kube.api.failures["patch"] = [KubeError("patch", 0, "", "nobody answers")]
        return body

    kube.api.patch = last  # type: ignore[method-assign]  # nobody answers after the first that is taken
    with pytest.raises(KubeError):
        await kube.write(entry("d", "id-2"))
    assert await kube.entries() == []
    await kube.write(entry("d", "id-2"))
    assert await kube.ids() == {"d": "id-2"}
    await kube.write()
    assert await kube.entries() == []


async def test_where_that_cannot_change_in_place_the_entry_is_removed_and_added(kube: CSINodeWrites) -> None:
    kube.api.count_changes = False
    await kube.write(entry("d", count=3))
    await kube.write(entry("d", count=4))
    assert await kube.entries() == [entry("d", count=4)]


async def test_entries_of_the_hub_go_when_they_are_not_told_any_more_and_others_stay(kube: CSINodeWrites) -> None:
    kube.api.put(somebodys(entry("other"), entry("both")))
    await kube.write(entry("d"), entry("both"))
    assert await kube.ids() == {"other": "id", "both": "id", "d": "id"}
    await kube.write()
    assert await kube.ids() == {"other": "id", "both": "id"}
    assert "csi-bridge.io/drivers" not in (await kube.found())["metadata"]["annotations"]


async def test_an_old_entry_of_a_driver_that_the_node_tells_of_becomes_the_hubs(kube: CSINodeWrites) -> None:
    kube.api.put(somebodys(entry("d", "old")))
    await kube.write(entry("d", "new"))
    assert await kube.ids() == {"d": "new"}
    await kube.write()
    assert await kube.ids() == {}


async def test_a_node_that_tells_nothing_any_more_loses_the_hubs_entries_also_without_its_node(
    kube: CSINodeWrites,
) -> None:
    kube.api.put(somebodys(entry("other")))
    await kube.write(entry("d"))
    kube.api.drop("Node", "n1")
    await kube.tell(None)
    assert await kube.ids() == {"other": "id"}


async def test_a_node_that_tells_nothing_gets_no_csinode(kube: CSINodeWrites) -> None:
    await kube.tell(None)
    assert kube.writes() == []


async def test_a_change_that_is_not_taken_after_the_old_entry_went_holds_up_no_other(kube: CSINodeWrites) -> None:
    await kube.write(entry("a"), entry("b"))
    kube.api.refused_id = "bad"
    with pytest.raises(KubeError, match="the API server rejects"):
        await kube.write(entry("a", "bad"), entry("b", "id-2"))
    assert await kube.ids() == {"b": "id-2"}


async def test_what_another_one_writes_meanwhile_is_not_lost(kube: CSINodeWrites) -> None:
    await kube.write(entry("d"))
    patch = kube.api.patch

    async def late(*args: Any, **options: Any) -> Body:
        kube.api.patch = patch  # type: ignore[method-assign]  # as it was
        kube.api.put(somebodys(entry("d"), entry("other"), ownerReferences=[OWNER]))
        return await patch(*args, **options)

    kube.api.patch = late  # type: ignore[method-assign]  # another one is quicker
    with pytest.raises(KubeError) as caught:
        await kube.write(entry("d"), entry("e"))
    assert caught.value.code == 409
    await kube.write(entry("d"), entry("e"))
    assert await kube.ids() == {"d": "id", "other": "id", "e": "id"}
    assert kube.writer.problems() == []


async def test_an_entry_that_the_node_does_not_tell_of_stays_for_a_while_and_goes_if_it_stays_so(
    kube: CSINodeWrites,
) -> None:
    await kube.write(entry("d"), entry("e"))
    told: Body = {"spec": {"drivers": [entry("e")]}}
    assert await kube.writer.write("n1", CSI_NODE, told) == 120.0
    kube.now += 50
    assert await kube.writer.write("n1", CSI_NODE, None) == 70.0
    assert await kube.ids() == {"d": "id", "e": "id"}
    kube.now += 70
    assert await kube.writer.write("n1", CSI_NODE, None) == 50.0
    assert await kube.ids() == {"e": "id"}
    kube.now += 50
    assert await kube.writer.write("n1", CSI_NODE, None) is None
    assert await kube.ids() == {}


async def test_a_driver_that_is_told_of_again_has_kept_its_entry_and_has_all_its_time_anew(kube: CSINodeWrites) -> None:
    await kube.write(entry("d"))
    assert await kube.writer.write("n1", CSI_NODE, None) == 120.0
    before = kube.writes()
    kube.now += 119
    await kube.write(entry("d"))
    assert kube.writes() == before
    kube.now += 119
    assert await kube.writer.write("n1", CSI_NODE, None) == 120.0


async def test_a_driver_of_a_node_that_was_not_written_for_a_while_has_all_its_time_anew(kube: CSINodeWrites) -> None:
    await kube.write(entry("d"))
    assert await kube.writer.write("n1", CSI_NODE, None) == 120.0
    kube.writer.forget("n1", CSI_NODE)
    kube.now += 119
    assert await kube.writer.write("n1", CSI_NODE, None) == 120.0
