"""What nodes tell of events, written to a real API server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from cloud.kube.client import Kube, connect
from cloud.upsync.event_writer import EventWriter
from common.objects.objects import Ref
from tests.kit.peers.control_plane import ControlPlane

Body = dict[str, Any]


SINCE = "2026-11-22T00:00:00Z"


@asynccontextmanager
async def kube_of(control_plane: ControlPlane) -> AsyncIterator[Kube]:
    async with connect(str(control_plane.admin_kubeconfig())) as kube:
        yield kube


def event(about: Body, *, count: int = 1, minute: int = 0) -> Body:
    return {
        "involvedObject": about,
        "reason": "FailedMount",
        "message": "no driver",
        "type": "Warning",
        "count": count,
        "firstTimestamp": SINCE,
        "lastTimestamp": f"2026-11-22T00:{minute:02}:00Z",
        "source": {"component": "csi-bridge-edge", "host": "n1"},
        "reportingComponent": "csi-bridge-edge",
        "reportingInstance": "n1",
    }


def pod(namespace: str) -> Body:
    return {"apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": "gone", "uid": "u-1"}


async def test_an_event_is_one_object_for_its_cause_of_what_is_gone_too(
    control_plane: ControlPlane, namespace: str
) -> None:
    ref, about = Ref("Event", namespace, "gone.17a2b3"), pod(namespace)
    async with kube_of(control_plane) as kube:
        writer = EventWriter(kube)
        for count, minute in ((1, 0), (3, 7), (2, 4), (1, 9)):
            await writer.write("n1", ref, event(about, count=count, minute=minute))
    (found,) = await asyncio.to_thread(control_plane.api.all, "Event", namespace=namespace)
    assert found["involvedObject"] == about
    assert (found["count"], found["firstTimestamp"], found["lastTimestamp"]) == (3, SINCE, "2026-11-22T00:09:00Z")
    assert (found["source"]["host"], found["reportingInstance"]) == ("n1", "n1")


async def test_an_event_of_a_node_is_in_the_namespace_default(control_plane: ControlPlane, namespace: str) -> None:
    ref = Ref("Event", "default", f"{namespace}.17a2b3")
    about = {"apiVersion": "v1", "kind": "Node", "name": namespace, "uid": namespace}
    async with kube_of(control_plane) as kube:
        await EventWriter(kube).write(namespace, ref, event(about))
    found = await asyncio.to_thread(control_plane.api.get, "Event", ref.name, namespace="default")
    assert found is not None
    assert found["involvedObject"] == about


async def test_an_event_of_a_namespace_that_is_gone_or_going_is_dropped(control_plane: ControlPlane) -> None:
    api = control_plane.api
    going = await asyncio.to_thread(control_plane.new_namespace)
    kept = {"name": "kept", "namespace": going, "finalizers": ["csi-bridge.io/test"]}
    await asyncio.to_thread(api.create, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": kept})
    await asyncio.to_thread(api.delete, "Namespace", going)
    try:
        async with kube_of(control_plane) as kube:
            for name in (going, f"{going}-never"):
                await EventWriter(kube).write("n1", Ref("Event", name, "gone.17a2b3"), event(pod(name)))
        assert await asyncio.to_thread(api.get, "Event", "gone.17a2b3", namespace=going) is None
    finally:
        change = {"metadata": {"finalizers": None}}
        await asyncio.to_thread(api.patch, "ConfigMap", "kept", change, namespace=going)


async def test_an_event_that_the_api_server_does_not_take_is_dropped(
    control_plane: ControlPlane, namespace: str
) -> None:
    volume = {"apiVersion": "v1", "kind": "PersistentVolume", "name": "v", "uid": "u-1"}
    wrong_time = {**event(pod(namespace)), "lastTimestamp": "yesterday"}
    async with kube_of(control_plane) as kube:
        writer = EventWriter(kube)
        await writer.write("n1", Ref("Event", namespace, "v.17a2b3"), event(volume))
        await writer.write("n1", Ref("Event", namespace, "gone.17a2b3"), wrong_time)
    assert await asyncio.to_thread(control_plane.api.all, "Event", namespace=namespace) == []
