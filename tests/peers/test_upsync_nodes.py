"""What nodes tell of themselves, on a real API server and with the controllers that read it."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from cloud.kube.client import RESOURCES, Kube, KubeError, connect
from cloud.sync.in_use import InUse
from cloud.upsync.csinode_writer import CSINodeWriter
from cloud.upsync.heartbeats import Heartbeats
from cloud.upsync.node_writer import NodeWriter
from common.objects.objects import Ref
from tests.kit.peers.control_plane import ControlPlane
from tests.kit.waiting import until

Body = dict[str, Any]

_LIMIT_S = 60.0
NODES, CSI_NODES, LEASES = RESOURCES["Node"], RESOURCES["CSINode"], RESOURCES["Lease"]
IDS = "csi.volume.kubernetes.io/nodeid"


@pytest.fixture
def node(control_plane: ControlPlane, namespace: str) -> Iterator[str]:
    yield namespace
    control_plane.api.delete("Node", namespace)


@pytest.fixture
async def kube(control_plane: ControlPlane) -> AsyncIterator[Kube]:
    async with connect(str(control_plane.admin_kubeconfig())) as made:
        yield made


async def write(writer: NodeWriter | CSINodeWriter, node: str, kind: str, fact: Body | None) -> None:
    """Write, as the queue does: again while another one is quicker."""
    for _ in range(20):
        try:
            await writer.write(node, Ref(kind, "", node), fact)
        except KubeError as error:
            if error.code != 409:
                raise
            await asyncio.sleep(0.1)
        else:
            return
    pytest.fail("it is never written")


@asynccontextmanager
async def heart_of(kube: Kube, node: str) -> AsyncIterator[Heartbeats]:
    heartbeats = Heartbeats(kube)
    heartbeats.up(node)
    try:
        yield heartbeats
    finally:
        await heartbeats.close()


async def is_missing(kube: Kube, *where: Any) -> bool:
    try:
        await kube.get(*where)
    except KubeError as error:
        return error.is_missing
    return False


def driver(name: str, node_id: str, *, keys: tuple[str, ...] = (), count: int | None = None) -> Body:
    allocatable = {"allocatable": {"count": count}} if count is not None else {}
    return {"name": name, "nodeID": node_id, "topologyKeys": list(keys), **allocatable}


async def ready_of(kube: Kube, node: str) -> str:
    conditions = (await kube.get(NODES, node)).get("status", {}).get("conditions") or []
    return next((str(it["status"]) for it in conditions if it["type"] == "Ready"), "")


async def test_a_change_for_another_object_of_that_name_is_refused(kube: Kube, node: str) -> None:
    await write(NodeWriter(kube, InUse()), node, "Node", {})
    namespace = "kube-node-lease"
    lease = {"metadata": {"name": node, "namespace": namespace}, "spec": {"holderIdentity": "x"}}
    await kube.create(LEASES, lease, namespace)
    another: Body = {"uid": "another"}
    with pytest.raises(KubeError, match=r"metadata\.uid"):
        await kube.patch(NODES, node, {"metadata": another, "status": {"volumesInUse": ["v"]}}, subresource="status")
    with pytest.raises(KubeError, match=r"metadata\.uid"):
        await kube.patch(LEASES, node, {"metadata": another, "spec": {"holderIdentity": "y"}}, namespace)
    assert "volumesInUse" not in (await kube.get(NODES, node)).get("status", {})
    found = await kube.get(LEASES, node, namespace)
    assert found["spec"]["holderIdentity"] == "x"
    await kube.delete(LEASES, node, namespace, uid=found["metadata"]["uid"])


async def test_a_csinode_follows_what_its_node_tells(kube: Kube, node: str) -> None:
    await write(NodeWriter(kube, InUse()), node, "Node", {})
    now = [0.0]
    writer = CSINodeWriter(kube, now=lambda: now[0])
    other = driver("other.example", "x", keys=("k",))

    async def entries(*told: Body) -> list[Body]:
        await write(writer, node, "CSINode", {"spec": {"drivers": list(told)}})
        found: list[Body] = (await kube.get(CSI_NODES, node))["spec"]["drivers"] or []
        return [{**it, "topologyKeys": it.get("topologyKeys") or []} for it in found]

    assert await entries() == []
    somebodys = {"spec": {"drivers": [other]}}
    await kube.patch(CSI_NODES, node, somebodys)
    for told in (
        driver("d.example", "id-1"),
        driver("d.example", "id-1", count=3),
        driver("d.example", "id-1", count=4),
        driver("d.example", "id-1"),
        driver("d.example", "id-2", keys=("zone",), count=5),
        driver("d.example", "id-2", keys=("zone", "rack")),
    ):
        assert await entries(told) == [other, told]
        version = (await kube.get(CSI_NODES, node))["metadata"]["resourceVersion"]
        assert await entries(told) == [other, told]
        assert (await kube.get(CSI_NODES, node))["metadata"]["resourceVersion"] == version
    await write(writer, node, "CSINode", None)
    assert len((await kube.get(CSI_NODES, node))["spec"]["drivers"]) == 2
    now[0] += 120.0
    await write(writer, node, "CSINode", None)
    found = await kube.get(CSI_NODES, node)
    assert found["spec"]["drivers"] == [other]
    assert "csi-bridge.io/drivers" not in found["metadata"].get("annotations", {})


async def test_how_many_volumes_a_driver_takes_changes_without_the_entry_going(kube: Kube, node: str) -> None:
    await write(NodeWriter(kube, InUse()), node, "Node", {})
    writer = CSINodeWriter(kube)
    await write(writer, node, "CSINode", {"spec": {"drivers": [driver("d.example", "id", count=3)]}})
    version = (await kube.get(CSI_NODES, node))["metadata"]["resourceVersion"]
    seen = []

    async def watch() -> None:
        async for what, body in kube.watch(CSI_NODES, version, for_s=30):
            if what == "MODIFIED" and body["metadata"]["name"] == node:
                seen.append([it["nodeID"] for it in body["spec"]["drivers"] or ()])

    watching = asyncio.create_task(watch())
    await write(writer, node, "CSINode", {"spec": {"drivers": [driver("d.example", "id", count=4)]}})
    await write(writer, node, "CSINode", {"spec": {"drivers": [driver("d.example", "id-2", count=4)]}})

    async def all_seen() -> bool:
        return len(seen) >= 3

    await until(all_seen, "three changes", within_s=_LIMIT_S)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    assert seen == [["id"], [], ["id-2"]]


@pytest.mark.slow
async def test_a_heart_makes_a_node_ready_and_its_lease_and_csinode_go_with_it(kube: Kube, node: str) -> None:
    async with heart_of(kube, node) as heartbeats:
        await write(NodeWriter(kube, InUse()), node, "Node", {})
        await write(CSINodeWriter(kube), node, "CSINode", {"spec": {"drivers": [driver("d.example", "id")]}})

        async def is_welcome() -> bool:
            taints = (await kube.get(NODES, node)).get("spec", {}).get("taints") or []
            return await ready_of(kube, node) == "True" and not taints

        await until(is_welcome, "a Node that is ready and has no taint", within_s=_LIMIT_S)
        lease = await kube.get(LEASES, node, "kube-node-lease")
        assert lease["spec"]["holderIdentity"] == node

        async def is_renewed() -> bool:
            now = await kube.get(LEASES, node, "kube-node-lease")
            return bool(now["spec"]["renewTime"] > lease["spec"]["renewTime"])

        await until(is_renewed, "a renewal", within_s=_LIMIT_S)
        assert heartbeats.problems() == []
    uid = (await kube.get(NODES, node))["metadata"]["uid"]
    await kube.delete(NODES, node, uid=uid)
    await until(lambda: is_missing(kube, LEASES, node, "kube-node-lease"), "the end of the Lease", within_s=_LIMIT_S)
    await until(lambda: is_missing(kube, CSI_NODES, node), "the end of the CSINode", within_s=_LIMIT_S)


@pytest.mark.slow
async def test_a_node_is_lost_some_time_after_its_end_and_ready_when_it_is_back(kube: Kube, node: str) -> None:
    await write(NodeWriter(kube, InUse()), node, "Node", {})

    async def is_(status: str) -> bool:
        return await ready_of(kube, node) == status

    async with heart_of(kube, node) as heartbeats:
        await until(lambda: is_("True"), "a node that is ready", within_s=_LIMIT_S)
        await asyncio.sleep(58)  # the controller-manager's grace is 50 s
        assert await is_("True")
        heartbeats.down(node)
        await asyncio.sleep(15)
        assert await is_("True")
        await until(lambda: is_("Unknown"), "what Kubernetes says of a node that is lost", within_s=_LIMIT_S)
        heartbeats.up(node)
        await until(lambda: is_("True"), "a node that is back", within_s=_LIMIT_S)
