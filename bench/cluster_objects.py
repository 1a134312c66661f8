"""The objects that a bench creates in an API server for many nodes, and the requests that create them.

Each node has five pods, of which one has a volume. The hub needs no more of them. Two labels, the containers and their
environment only give the pods a realistic size.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from cloud.kube.client import RESOURCES, Kube, connect

Object = dict[str, Any]
_T = TypeVar("_T")

DRIVER = "load.csi-bridge.io"
NAMESPACE = "default"
MARK = "bench.csi-bridge.io/mark"
"""An annotation with a number, which is changed to see when the change arrives."""

PODS = 5
_AT_ONCE = 32
"""Requests at the same time. More are not faster, and the API server is measured beside the hub."""


def node_name(number: int) -> str:
    """Return a node's name."""
    return f"e{number}"


def csi_driver() -> Object:
    """Return the CSIDriver of all volumes."""
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSIDriver",
        "metadata": {"name": DRIVER},
        "spec": {"attachRequired": False},
    }


def nodes(numbers: Iterable[int]) -> Iterator[Object]:
    """Yield bare Nodes, as another program than the hub would create them."""
    for number in numbers:
        yield {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node_name(number)}}


def objects_of_nodes(numbers: Iterable[int]) -> Iterator[Object]:
    """Yield the objects of each of these nodes: its pods, and the claim and the volume of the first."""
    for number in numbers:
        node = node_name(number)
        yield from _volume(node)
        for pod in range(PODS):
            yield _pod(f"{node}-{pod}", node, claim=node if not pod else "")


def _volume(name: str) -> Iterator[Object]:
    both = {"accessModes": ["ReadWriteOnce"], "storageClassName": "", "volumeMode": "Filesystem"}
    yield {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"pv-{name}"},
        "spec": {
            **both,
            "capacity": {"storage": "1Gi"},
            "claimRef": {"namespace": NAMESPACE, "name": name},
            "persistentVolumeReclaimPolicy": "Retain",
            "csi": {"driver": DRIVER, "volumeHandle": f"id-{name}", "fsType": "ext4"},
        },
    }
    yield {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {**both, "volumeName": f"pv-{name}", "resources": {"requests": {"storage": "1Gi"}}},
    }


def _pod(name: str, node: str, *, claim: str) -> Object:
    mounts = [{"name": "data", "mountPath": "/data"}] if claim else []
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}] if claim else []
    container = {
        "name": "main",
        "image": "registry.example/shop/till:1.17.3",
        "args": ["--listen=:8080", "--store=/data", "--log-format=json"],
        "env": [{"name": f"SETTING_{number}", "value": f"value {number}"} for number in range(4)],
        "ports": [{"name": "http", "containerPort": 8080}],
        "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "128Mi"}},
        "livenessProbe": {"httpGet": {"path": "/healthz", "port": "http"}},
        "volumeMounts": mounts,
    }
    labels = {"app.kubernetes.io/name": "till", "app.kubernetes.io/instance": node}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels},
        "spec": {
            "nodeName": node,
            "containers": [container],
            "volumes": volumes,
            "tolerations": [{"operator": "Exists"}],
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
        },
    }


# ---- at the API server -----------------------------------------------------------------------------------------------


def with_kube(kubeconfig: str, work: Callable[[Kube], Coroutine[Any, Any, _T]]) -> _T:
    """Run `work` with a client for a kubeconfig."""

    async def connected() -> _T:
        async with connect(kubeconfig) as kube:
            return await work(kube)

    return asyncio.run(connected())


async def create_all(
    kube: Kube, bodies: Iterable[Object], *, at_once: int = _AT_ONCE, made: Callable[[Object], None] = lambda _: None
) -> None:
    """Create objects.

    Args:
        kube: the client.
        bodies: the objects.
        at_once: requests at the same time.
        made: called with each object as the API server has answered it.
    """
    left = iter(bodies)

    async def work() -> None:
        for body in left:
            namespace = body["metadata"].get("namespace", "")
            made(await kube.create(RESOURCES[body["kind"]], body, namespace))

    async with asyncio.TaskGroup() as tasks:
        for _ in range(at_once):
            tasks.create_task(work())


async def count(kube: Kube, kind: str) -> int:
    """Return the number of objects of a kind."""
    found, more = 0, ""
    while True:
        page = await kube.list(RESOURCES[kind], limit=1000, more=more)
        found, more = found + len(page.items), page.more
        if not more:
            return found


async def change_claims(kube: Kube, claims: Sequence[str], *, per_s: float, first: int) -> dict[int, float]:
    """Change one claim after another; return the time of each request since the epoch, by mark.

    The marks begin with `first`.
    """
    asked: dict[int, float] = {}

    async def change(mark: int, claim: str) -> None:
        asked[mark] = time.time()
        await mark_object(kube, "PersistentVolumeClaim", claim, mark, NAMESPACE)

    began = time.monotonic()
    async with asyncio.TaskGroup() as tasks:
        for number, claim in enumerate(claims):
            await asyncio.sleep(began + number / per_s - time.monotonic())
            tasks.create_task(change(first + number, claim))
    return asked


async def mark_object(kube: Kube, kind: str, name: str, mark: int, namespace: str = "") -> None:
    """Change an object's mark."""
    await kube.patch(RESOURCES[kind], name, {"metadata": {"annotations": {MARK: str(mark)}}}, namespace)
