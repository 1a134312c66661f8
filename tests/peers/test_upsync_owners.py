"""The hub, a kubelet and an operator own fields of the same objects of a real API server: each keeps its own."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from cloud.kube.client import RESOURCES, Kube, KubeError, connect, patch_found
from cloud.sync.in_use import InUse
from cloud.upsync.claim_writer import ClaimWriter
from cloud.upsync.csinode_writer import CSINodeWriter
from cloud.upsync.handover import HandOver, Removal
from cloud.upsync.heartbeats import Heartbeats
from cloud.upsync.node_writer import NodeWriter
from cloud.upsync.writer import FactWriter
from common.objects.objects import Ref
from tests.kit.peers import manifests
from tests.kit.peers.control_plane import ControlPlane
from tests.kit.peers.kube_api import KubeApi

Body = dict[str, Any]

CLAIM, IDS = "PersistentVolumeClaim", "csi.volume.kubernetes.io/nodeid"
SINCE = "2026-11-22T00:00:00Z"
MARK = {"key": "csi-bridge.io/edge", "value": "agent", "effect": "NoSchedule"}
SLOW = {"key": "example.com/slow", "value": "yes", "effect": "PreferNoSchedule"}


@pytest.fixture
def node(control_plane: ControlPlane, namespace: str) -> Iterator[str]:
    yield namespace
    control_plane.api.delete("Node", namespace)


@pytest.fixture
async def kube(control_plane: ControlPlane) -> AsyncIterator[Kube]:
    async with connect(str(control_plane.admin_kubeconfig())) as made:
        yield made


class Operator:
    """An operator, who applies what the objects of one node shall have, and takes it back by applying nothing."""

    def __init__(self, api: KubeApi, node: str, owner: Body) -> None:
        self._api, self._node, self._owner = api, node, owner

    def apply(self, site: str) -> None:
        metadata = {"labels": {"example.com/site": site}, "annotations": {"example.com/note": site}}
        self._put("v1", "Node", metadata=metadata)
        self._put("v1", "Node", status={"conditions": [condition("example.com/Checked", site)]})
        entry = {"name": "operator.example", "nodeID": "o", "topologyKeys": ["example.com/site"]}
        owned = {**metadata, "ownerReferences": [self._owner]}
        self._put("storage.k8s.io/v1", "CSINode", metadata=owned, spec={"drivers": [entry]})

    def taint(self) -> None:
        self._api.patch("Node", self._node, {"spec": {"taints": [MARK, SLOW]}})

    def withdraw(self) -> None:
        self._put("v1", "Node")
        self._put("v1", "Node", status={})
        self._put("storage.k8s.io/v1", "CSINode")

    def _put(self, version: str, kind: str, *, metadata: Body | None = None, **fields: Body) -> None:
        named = {"name": self._node, **(metadata or {})}
        body = {"apiVersion": version, "kind": kind, "metadata": named, **fields}
        self._api.apply(body, manager="operator", status="status" in fields)


def condition(kind: str, message: str) -> Body:
    times = {"lastHeartbeatTime": SINCE, "lastTransitionTime": SINCE}
    return {"type": kind, "status": "True", "reason": "Said", "message": message, **times}


def kubelet_says(api: KubeApi, node: str, message: str) -> None:
    """A condition and a driver, with its id, as a kubelet writes them: into the lists that it finds."""
    found = api.get("Node", node) or {}
    others = [it for it in found["status"].get("conditions") or [] if it["type"] != "DiskPressure"]
    api.patch_status("Node", node, {"status": {"conditions": [*others, condition("DiskPressure", message)]}})
    ids = {**json.loads(found["metadata"]["annotations"][IDS]), "kubelet.example": message}
    api.patch("Node", node, {"metadata": {"annotations": {IDS: json.dumps(ids)}}})
    drivers = (api.get("CSINode", node) or {})["spec"]["drivers"] or []
    for added in ([], [{"name": "kubelet.example", "nodeID": message}]):
        others = [it for it in drivers if it["name"] != "kubelet.example"]
        api.patch("CSINode", node, {"spec": {"drivers": [*others, *added]}})


class Hub:
    """The writers of a hub, and what they were told last."""

    def __init__(self, kube: Kube, node: str) -> None:
        self.now = 0.0
        self._node = node
        self._writers: dict[str, FactWriter] = {
            "Node": NodeWriter(kube, InUse(), labels={MARK["key"]: MARK["value"]}, taints=[MARK]),
            "CSINode": CSINodeWriter(kube, now=lambda: self.now),
        }

    async def tell(self, node_id: str, *drivers: str, capacity: str = "4") -> None:
        ids = {"annotations": {IDS: json.dumps(dict.fromkeys(drivers, node_id))}, "labels": {"d.example/zone": "a"}}
        status = {"volumesInUse": [f"kubernetes.io/csi/{it}^v" for it in drivers], "capacity": {"cpu": capacity}}
        await self._write("Node", {"metadata": ids, "status": status})
        entries = [{"name": it, "nodeID": node_id, "topologyKeys": ["d.example/zone"]} for it in drivers]
        await self._write("CSINode", {"spec": {"drivers": entries}})

    async def tell_nothing(self) -> None:
        for kind in ("Node", "CSINode"):
            await self._write(kind, None)

    async def _write(self, kind: str, fact: Body | None) -> None:
        again_s: float | None = 0.0
        while again_s is not None:
            self.now += again_s
            again_s = await written(self._writers[kind], Ref(kind, "", self._node), fact)


async def written(writer: FactWriter, ref: Ref, fact: Body | None) -> float | None:
    """Write as the queue does: again while another one is quicker."""
    for _ in range(20):
        try:
            return await writer.write(ref.name, ref, fact)
        except KubeError as error:
            if error.code != 409:
                raise
            await asyncio.sleep(0.1)
    pytest.fail("it is never written")


def owned(api: KubeApi, node: str) -> dict[str, Any]:
    """What each of the three has in the Node and the CSINode."""
    found, csi_node = api.get("Node", node) or {}, api.get("CSINode", node) or {}
    metadata, status, of_csi_node = found["metadata"], found["status"], csi_node["metadata"]
    said = {it["type"]: it["message"] for it in status.get("conditions") or []}
    taints = {it["key"] for it in found["spec"].get("taints") or []}
    drivers = {it["name"]: it["nodeID"] for it in csi_node["spec"]["drivers"] or []}
    ids = json.loads(metadata["annotations"].get(IDS) or "{}")
    return {
        "operator": (
            metadata["labels"].get("example.com/site"),
            metadata["annotations"].get("example.com/note"),
            said.get("example.com/Checked"),
            (of_csi_node.get("labels") or {}).get("example.com/site"),
            [it["kind"] for it in of_csi_node["ownerReferences"] if it["kind"] != "Node"],
            drivers.get("operator.example"),
        ),
        "taint": SLOW["key"] in taints,
        "kubelet": (said.get("DiskPressure"), drivers.get("kubelet.example"), ids.get("kubelet.example")),
        "hub": (
            metadata["labels"].get("d.example/zone"),
            metadata["labels"].get(MARK["key"]),
            MARK["key"] in taints,
            {name: id_ for name, id_ in ids.items() if name.endswith("d.example")},
            {name: id_ for name, id_ in drivers.items() if name.endswith("d.example")},
            status.get("volumesInUse"),
            status["capacity"]["cpu"],
            "Ready" in said,
            [it["uid"] for it in of_csi_node["ownerReferences"] if it["kind"] == "Node"] == [metadata["uid"]],
        ),
    }


@pytest.fixture
def operator(control_plane: ControlPlane, namespace: str, node: str) -> Operator:
    made = control_plane.api.create(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": f"{namespace}-owner"}}
    )
    owner = {"apiVersion": "v1", "kind": "Namespace", "name": f"{namespace}-owner", "uid": made["metadata"]["uid"]}
    return Operator(control_plane.api, node, owner)


def hubs(node_id: str, *drivers: str, capacity: str = "4") -> tuple[Any, ...]:
    ids, in_use = dict.fromkeys(drivers, node_id), [f"kubernetes.io/csi/{it}^v" for it in drivers]
    return "a", "agent", True, ids, ids, in_use or None, capacity, True, True


def operators(site: str | None) -> tuple[Any, ...]:
    has = site is not None
    return site, site, site, site, ["Namespace"] if has else [], "o" if has else None


async def test_each_owner_of_a_node_and_its_csinode_keeps_its_fields_when_another_changes_or_withdraws_its_own(
    control_plane: ControlPlane, kube: Kube, node: str, operator: Operator
) -> None:
    api, hub, hearts = control_plane.api, Hub(kube, node), Heartbeats(kube)
    await hub.tell("id-1", "d.example")
    hearts.up(node)
    await asyncio.to_thread(api.wait_until, "Node", node, _is_ready, what="ready")
    await hearts.close()

    def look() -> dict[str, Any]:
        return owned(api, node)

    await asyncio.to_thread(operator.apply, "north")
    await asyncio.to_thread(operator.taint)
    await asyncio.to_thread(kubelet_says, api, node, "k-1")
    expected = {
        "operator": operators("north"),
        "taint": True,
        "kubelet": ("k-1", "k-1", "k-1"),
        "hub": hubs("id-1", "d.example"),
    }
    assert await asyncio.to_thread(look) == expected

    await hub.tell("id-2", "d.example", "more.d.example", capacity="8")
    expected["hub"] = hubs("id-2", "d.example", "more.d.example", capacity="8")
    assert await asyncio.to_thread(look) == expected

    await asyncio.to_thread(operator.apply, "south")
    expected["operator"] = operators("south")
    assert await asyncio.to_thread(look) == expected

    await asyncio.to_thread(kubelet_says, api, node, "k-2")
    expected["kubelet"] = ("k-2", "k-2", "k-2")
    assert await asyncio.to_thread(look) == expected

    await hub.tell("id-2", "d.example", capacity="8")
    expected["hub"] = hubs("id-2", "d.example", capacity="8")
    assert await asyncio.to_thread(look) == expected

    await asyncio.to_thread(operator.withdraw)
    expected["operator"] = operators(None)
    assert await asyncio.to_thread(look) == expected

    await asyncio.to_thread(operator.apply, "west")
    expected["operator"] = operators("west")
    await hub.tell_nothing()
    *first, _ids, _entries, in_use, capacity, ready, owner = hubs("id-2", "d.example", capacity="8")
    expected["hub"] = (*first, {}, {}, in_use, capacity, ready, owner)
    assert await asyncio.to_thread(look) == expected


async def test_a_hand_over_leaves_what_a_kubelet_and_an_operator_own(
    control_plane: ControlPlane, kube: Kube, node: str, operator: Operator
) -> None:
    api, hub = control_plane.api, Hub(kube, node)
    await hub.tell("id-1", "d.example")
    await asyncio.to_thread(operator.apply, "north")
    await asyncio.to_thread(operator.taint)
    await asyncio.to_thread(kubelet_says, api, node, "k-1")
    addresses = {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}
    await asyncio.to_thread(api.patch_status, "Node", node, {"status": addresses})
    before = await asyncio.to_thread(owned, api, node)
    await written(HandOver(kube), Ref("Node", "", node), None)
    after = await asyncio.to_thread(owned, api, node)
    assert {**after, "hub": None} == {**before, "hub": None}
    zone, label, has_taint, *rest = after["hub"]
    assert (zone, label, has_taint) == ("a", None, False)
    assert tuple(rest) == before["hub"][3:]
    await written(Removal(kube), Ref("Node", "", node), None)  # it is a kubelet's now, so nothing is deleted
    await hub.tell_nothing()
    assert await asyncio.to_thread(owned, api, node) == after


async def test_a_write_that_comes_after_anothers_is_refused_and_none_makes_a_deleted_node_again(
    control_plane: ControlPlane, kube: Kube, node: str, operator: Operator
) -> None:
    hub = Hub(kube, node)
    await hub.tell("id-1", "d.example")
    await asyncio.to_thread(operator.apply, "north")
    found = [await kube.get(RESOURCES[kind], node) for kind in ("Node", "CSINode")]
    await hub.tell("id-2", "d.example")
    for kind, subresource, change in (
        ("Node", "status", {"status": {"conditions": [condition("Ready", "late")]}}),
        ("CSINode", "", {"spec": {"drivers": []}}),
    ):
        late = next(it for it in found if it["kind"] == kind)
        with pytest.raises(KubeError) as caught:
            await patch_found(kube, RESOURCES[kind], late, change, subresource=subresource)
        assert caught.value.code == 409
    await kube.delete(RESOURCES["Node"], node, uid=found[0]["metadata"]["uid"])
    await hub.tell_nothing()
    for writer in (HandOver(kube), Removal(kube)):
        await written(writer, Ref("Node", "", node), None)
    change = {"status": {"conditions": [condition("Ready", "late")]}}
    with pytest.raises(KubeError) as caught:
        await patch_found(kube, RESOURCES["Node"], found[0], change, subresource="status")
    assert caught.value.is_missing
    assert await asyncio.to_thread(control_plane.api.get, "Node", node) is None


def _is_ready(node: Body) -> bool:
    return any(it["type"] == "Ready" and it["status"] == "True" for it in node["status"].get("conditions") or [])


# ---- claims ----------------------------------------------------------------------------------------------------------


class AllClosures:
    """Closures in which each node uses every claim."""

    is_ready = True

    def holds(self, node: str, ref: Ref) -> bool:
        return bool(node and ref)


async def test_each_owner_of_a_claim_keeps_its_fields_when_another_changes_or_withdraws_its_own(
    control_plane: ControlPlane, kube: Kube, namespace: str
) -> None:
    api, ref, writer = control_plane.api, Ref(CLAIM, namespace, "data"), ClaimWriter(kube, AllClosures())
    claim = await asyncio.to_thread(_bound, api, namespace)
    named = {"apiVersion": "v1", "kind": CLAIM, "metadata": {"name": "data", "namespace": namespace}}

    def operator(said: str) -> None:
        metadata = {**named["metadata"], "labels": {"example.com/said": said} if said else {}}
        api.apply({**named, "metadata": metadata}, manager="operator")
        conditions = [{**_condition("example.com/Backup"), "message": said}] if said else []
        api.apply({**named, "status": {"conditions": conditions}}, manager="operator", status=True)

    def resizer(status: str, size: str) -> None:
        change = {"allocatedResources": {"storage": size}, "allocatedResourceStatuses": {"storage": status}}
        conditions = [{**_condition("FileSystemResizePending")}]
        body = {**named, "status": {**change, "conditions": conditions}}
        api.apply(body, manager="resizer", status=True)

    async def tell(size: str, resize_status: str = "", *conditions: Body) -> None:
        status = {
            "capacity": {"storage": size},
            "allocatedResources": {"storage": "2Gi"},
            **({"allocatedResourceStatuses": {"storage": resize_status}} if resize_status else {}),
            "conditions": list(conditions),
        }
        metadata, spec = {"uid": claim["metadata"]["uid"]}, {"volumeName": claim["spec"]["volumeName"]}
        await written(writer, ref, {"metadata": metadata, "spec": spec, "status": status})

    async def look() -> tuple[Any, ...]:
        found = await asyncio.to_thread(api.get, CLAIM, "data", namespace=namespace)
        assert found is not None
        status, labels = found["status"], found["metadata"].get("labels") or {}
        said = {it["type"]: it.get("message", "") for it in status.get("conditions") or []}
        resizing = (status.get("allocatedResourceStatuses") or {}).get("storage")
        return labels.get("example.com/said"), said, resizing, status["capacity"]["storage"]

    error = {**_condition("NodeResizeError"), "message": "no"}
    pending = {"FileSystemResizePending": ""}
    await asyncio.to_thread(resizer, "NodeResizePending", "2Gi")
    await asyncio.to_thread(operator, "weekly")
    await tell("1Gi", "NodeResizeInProgress", error)
    backup = {"example.com/Backup": "weekly"}
    assert await look() == ("weekly", {**pending, **backup, "NodeResizeError": "no"}, "NodeResizeInProgress", "1Gi")
    await asyncio.to_thread(operator, "")
    assert await look() == (None, {**pending, "NodeResizeError": "no"}, "NodeResizeInProgress", "1Gi")
    await asyncio.to_thread(operator, "daily")
    await tell("2Gi")
    assert await look() == ("daily", {"example.com/Backup": "daily"}, None, "2Gi")


def _condition(kind: str) -> Body:
    return {"type": kind, "status": "True", "lastTransitionTime": SINCE}


def _bound(api: KubeApi, namespace: str) -> Body:
    volume = f"pv-{namespace}"
    api.create(manifests.persistent_volume(volume, driver="d.csi", handle="h", storageClassName="none"))
    api.create(manifests.claim("data", namespace=namespace, storage_class="none", volumeName=volume))
    return api.wait_until(
        CLAIM, "data", lambda it: it["status"].get("phase") == "Bound", what="bound", namespace=namespace
    )
