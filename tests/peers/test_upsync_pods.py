"""What nodes without a kubelet tell of their pods, written to a real API server."""

import asyncio
from typing import Any

import pytest

from cloud.kube.client import connect
from cloud.upsync.pod_writer import PodWriter
from common.objects.objects import Ref
from tests.kit.peers import manifests
from tests.kit.peers.control_plane import ControlPlane

Body = dict[str, Any]

MOUNTED = {"type": "csi-bridge.io/VolumesMounted", "status": "True", "reason": "Mounted"}
WAITING = {**MOUNTED, "status": "False", "reason": "Waiting", "message": "data: no driver"}
UNMOUNTED = {**MOUNTED, "status": "False", "reason": "Unmounted"}
RELEASED = {"type": "csi-bridge.io/VolumesReleased", "status": "True", "reason": "Unmounted"}


@pytest.fixture
def node(control_plane: ControlPlane, namespace: str) -> str:
    name = f"node-{namespace}"
    control_plane.api.create(manifests.node(name, annotations={"csi-bridge.io/made-by": "hub"}))
    return name


def create(control_plane: ControlPlane, namespace: str, node: str, **metadata: Any) -> Body:
    pod = manifests.pod("web", namespace=namespace, nodeName=node)
    pod["metadata"] |= metadata
    return control_plane.api.create(pod)


def told(pod: Body, *conditions: Body) -> Body:
    return {"metadata": {"uid": pod["metadata"]["uid"]}, "status": {"conditions": list(conditions)}}


def ours(pod: Body) -> list[Body]:
    names = ("type", "status", "reason", "message")
    found = [it for it in pod["status"]["conditions"] if it["type"].startswith("csi-bridge.io/")]
    assert all(it["lastTransitionTime"] for it in found)
    return [{name: it[name] for name in names if name in it} for it in found]


def now(control_plane: ControlPlane, namespace: str) -> Body | None:
    return control_plane.api.get("Pod", "web", namespace=namespace)


async def test_a_pods_conditions_are_written_once_and_those_of_others_stay(
    control_plane: ControlPlane, namespace: str, node: str
) -> None:
    api, ref = control_plane.api, Ref("Pod", namespace, "web")
    pod = await asyncio.to_thread(create, control_plane, namespace, node)
    theirs = {"status": {"conditions": [{"type": "example.com/theirs", "status": "True"}]}}
    await asyncio.to_thread(api.patch_status, "Pod", "web", theirs, namespace=namespace)
    async with connect(str(control_plane.admin_kubeconfig())) as kube:
        writer = PodWriter(kube)
        for condition in (WAITING, MOUNTED):
            await writer.write(node, ref, told(pod, condition))
            written = await asyncio.to_thread(now, control_plane, namespace)
            assert written is not None
            assert ours(written) == [condition]
            assert "example.com/theirs" in [it["type"] for it in written["status"]["conditions"]]
        await writer.write(node, ref, told(pod, MOUNTED))
        again = await asyncio.to_thread(now, control_plane, namespace)
        assert again is not None
        assert again["metadata"]["resourceVersion"] == written["metadata"]["resourceVersion"]


async def test_a_pod_that_is_being_deleted_ends_when_its_node_has_released_it(
    control_plane: ControlPlane, namespace: str, node: str
) -> None:
    api, ref = control_plane.api, Ref("Pod", namespace, "web")
    pod = await asyncio.to_thread(create, control_plane, namespace, node)
    async with connect(str(control_plane.admin_kubeconfig())) as kube:
        writer = PodWriter(kube)
        await asyncio.to_thread(api.delete, "Pod", "web", namespace=namespace)
        await writer.write(node, ref, told(pod, UNMOUNTED))
        waiting = await asyncio.to_thread(now, control_plane, namespace)
        assert waiting is not None
        assert waiting["metadata"]["deletionTimestamp"]
        await writer.write(node, ref, told(pod, UNMOUNTED, RELEASED))
        assert await asyncio.to_thread(now, control_plane, namespace) is None
        await writer.write(node, ref, told(pod, UNMOUNTED, RELEASED))
        following = await asyncio.to_thread(create, control_plane, namespace, node)
        await writer.write(node, ref, told(pod, UNMOUNTED, RELEASED))
        there = await asyncio.to_thread(now, control_plane, namespace)
        assert there is not None
        assert there["metadata"]["uid"] == following["metadata"]["uid"]
        assert ours({"status": {"conditions": [], **there["status"]}}) == []


async def test_a_finalizer_keeps_a_pod_and_is_waited_for_without_a_word(
    control_plane: ControlPlane, namespace: str, node: str
) -> None:
    api, ref = control_plane.api, Ref("Pod", namespace, "web")
    pod = await asyncio.to_thread(create, control_plane, namespace, node, finalizers=["csi-bridge.io/test"])
    await asyncio.to_thread(api.delete, "Pod", "web", namespace=namespace)
    async with connect(str(control_plane.admin_kubeconfig())) as kube:
        writer = PodWriter(kube)
        for _ in range(2):
            await writer.write(node, ref, told(pod, UNMOUNTED, RELEASED))
        kept = await asyncio.to_thread(now, control_plane, namespace)
        assert kept is not None
        assert kept["metadata"]["deletionGracePeriodSeconds"] == 0
        version = kept["metadata"]["resourceVersion"]
        await writer.write(node, ref, told(pod, UNMOUNTED, RELEASED))
        kept = await asyncio.to_thread(now, control_plane, namespace)
        assert kept is not None
        assert kept["metadata"]["resourceVersion"] == version
    await asyncio.to_thread(api.patch, "Pod", "web", {"metadata": {"finalizers": None}}, namespace=namespace)
