"""A claim cluster: Kubernetes with stock sidecars and three ways to a vendor's driver, each with a driver of its own.

    direct    the sidecars and the node's kubelet call the driver's own socket.
    relayed   the sidecars call a proxy driver; the kubelet calls the agent's relay (--registration=observe).
    alone     the sidecars call a proxy driver; the driver's node has no kubelet, and the agent mounts.

Rules:

* All is stock except the limits of requests per second of the controller-manager (20), the kubelet (50) and the
  sidecars (5). They only add waiting, and are lifted unless the cluster is asked to keep them.
* The kubelet reports its volumes in use every second instead of every ten: its waiting would hide the rest.
* The driver is the load generator's: it requires attaching, answers at once, and makes real mounts.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import psutil

from bench.chain import Command, cpu_us
from bench.cluster_objects import NAMESPACE, Object, create_all, with_kube
from bench.peers import find_peer
from cloud.kube.client import RESOURCES, Body, Kube
from tests.kit import leftovers
from tests.kit.bridge import Agent, Bridge, Proxy
from tests.kit.deployed import hub_roles
from tests.kit.peers import csi_client, manifests
from tests.kit.peers.cluster_node import HUB
from tests.kit.peers.control_plane import ControlPlane
from tests.kit.peers.sidecars import Sidecars
from tests.kit.processes import Supervisor, listens_on
from tests.kit.testdriver.call_log import Call, read_calls
from tests.kit.waiting import wait_for
from tests.peers.kubelet.kubelet_process import IMAGE, Kubelet
from tests.peers.kubelet.recorder import Recorder
from tests.peers.kubelet.registrar_stand_in import RegistrarStandIn
from tests.peers.kubelet.tree import EMPTY

PEERS = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kubelet",
    "fakeruntime",
    "csi-provisioner",
    "csi-attacher",
)

_KUBELET_NODE, _OWN_NODE = "k1", "o1"
_SLOW_S = 300.0

_SIDECAR_FLAGS = ("--timeout=60s", "--retry-interval-max=1m")
"""As in deploy/."""

_NO_LIMIT = ("--kube-api-qps=1000", "--kube-api-burst=1000")


Costs = dict[str, float]
"""CPU time by process, in microseconds."""


@dataclass
class Way:
    """One of the three ways.

    Attributes:
        name: `direct`, `relayed` or `alone`.
        driver: the driver's name, and that of its storage class.
        node: the driver's node.
        calls: its call log.
        proxy: the proxy driver, if there is one.
        agent: the agent of its node, if there is one.
        pods: the number of pods that have had a volume so far.
    """

    name: str
    driver: str
    node: str
    calls: Path
    proxy: Proxy | None = None
    agent: Agent | None = None
    pods: int = 0


@dataclass
class Batch:
    """Claims that were created at once, and a pod for each.

    Attributes:
        bound_s: for each claim, the time from its creation until it was Bound.
        published_s: for each pod, the time from its creation until the driver had published its volume.
        bound_cpu_us: the CPU time meanwhile of all processes (`all`), and of each hop of the bridge on this way.
        published_cpu_us: the same of the pods.
    """

    bound_s: list[float] = field(default_factory=list)
    published_s: list[float] = field(default_factory=list)
    bound_cpu_us: Costs = field(default_factory=dict)
    published_cpu_us: Costs = field(default_factory=dict)


class ClaimCluster:
    """The cluster; a context manager.

    Attributes:
        ways: by name.
    """

    def __init__(self, directory: Path, loadgen: Command, *, delay: str = "", limited: bool = False) -> None:
        """Begin with nothing running.

        Args:
            directory: for all files, with a short path; it does not exist yet.
            loadgen: the load generator.
            delay: one-way delay of the link between each agent and the hub; empty: no relay and no delay.
            limited: keep the stock limits of requests per second.
        """
        directory.mkdir()
        self.ways: dict[str, Way] = {}
        self._directory, self._loadgen, self._delay, self._limited = directory, loadgen, delay, limited
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.callback(leftovers.clear, self._directory)
            self._start(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *failure: object) -> None:
        self._stack.close()

    # ---- starting ----------------------------------------------------------------------------------------------------

    def _start(self, stack: ExitStack) -> None:
        lifted = () if self._limited else _NO_LIMIT
        self._plane = ControlPlane(
            self._directory / "plane", peer=find_peer, nodes=(_KUBELET_NODE,), manager_flags=lifted
        )
        stack.callback(self._plane.stop)
        self._plane.start()
        self._admin = str(self._plane.admin_kubeconfig())
        self._supervisor = stack.enter_context(Supervisor(self._directory / "logs"))
        self._plane.apply(hub_roles())
        hub = self._plane.service_account_kubeconfig("csi-bridge", HUB)
        self._bridge = stack.enter_context(Bridge(self._directory, self._directory / "logs"))
        self._bridge.start_hub(f"--kubeconfig={hub}", "--keepalive=10s")
        self._start_ways(stack)
        for way in self.ways.values():
            self._wait_registered(way)
            self._start_sidecars(way, lifted)

    def _start_ways(self, stack: ExitStack) -> None:
        self._kubelet = _kubelet(self._directory / "k", self._plane, limited=self._limited)
        stack.callback(self._kubelet.stop)
        self._kubelet.start()
        self._plane.api.wait_until("Node", _KUBELET_NODE, _is_ready, what="ready", timeout_s=_SLOW_S)
        self._start_direct(stack)
        self._start_relayed(stack)
        self._start_alone("alone", _OWN_NODE)

    def _start_direct(self, stack: ExitStack) -> None:
        way, vendor = self._start_driver("direct", _KUBELET_NODE)
        self._register(way, vendor, stack)

    def _start_relayed(self, stack: ExitStack) -> None:
        way, vendor = self._start_driver("relayed", _KUBELET_NODE)
        relay = self._directory / "relay"
        flags = ("--registration=observe", f"--root-dir={self._kubelet.root}", f"--relay-dir={relay}")
        way.agent = self._start_agent(way, vendor, *flags)
        endpoint = relay / f"{way.driver}.sock"
        wait_for(endpoint.exists, what="relay", timeout_s=_SLOW_S, instead=way.agent.process.log_tail)
        self._register(way, endpoint, stack)

    def _start_alone(self, name: str, node: str, within: Sequence[str] = ()) -> None:
        way, vendor = self._start_driver(name, node)
        way.agent = self._start_agent(way, vendor, f"--root-dir={self._own_root(way)}", within=within)

    def _own_root(self, way: Way) -> Path:
        """Return the root directory of an agent that mounts."""
        return self._directory / f"own-{way.name}"

    def _start_driver(self, name: str, node: str) -> tuple[Way, Path]:
        """Start the driver of a way; return the way so far and the driver's socket."""
        place = self._directory / name
        place.mkdir()
        way = Way(name, f"{name}.csi-bridge.io", node, place / "calls.jsonl")
        socket = place / "csi.sock"
        command = [
            *self._loadgen,
            "serve",
            f"--endpoint=unix://{socket}",
            f"--name={way.driver}",
            f"--node={node}",
            f"--mounts={place / 'volumes'}",
            f"--call-log={way.calls}",
            "--attach",
        ]
        self._supervisor.start(f"driver-{name}", command, ready=lambda: listens_on(socket))
        driver = {"metadata": {"name": way.driver}, "spec": {"attachRequired": True}}
        self._plane.api.create({"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", **driver})
        self._plane.api.create(manifests.storage_class(way.driver))
        self.ways[name] = way
        return way, socket

    def _start_agent(self, way: Way, vendor: Path, *flags: str, within: Sequence[str] = ()) -> Agent:
        link = self._bridge.start_link(delay=self._delay) if self._delay else None
        return self._bridge.start_agent(
            way.node,
            vendor,
            flags=("--keepalive=10s", *flags),
            through=link.address if link is not None else None,
            within=within,
        )

    def _register(self, way: Way, endpoint: Path, stack: ExitStack) -> None:
        """Register a driver with the kubelet, which then calls it at `endpoint`."""
        recorder = Recorder(endpoint, look=lambda: EMPTY)  # it only serves the registration
        stack.callback(recorder.close)
        registry = self._kubelet.root / "plugins_registry"
        RegistrarStandIn(recorder, driver=way.driver, endpoint=endpoint, registry=registry).register()

    def _wait_registered(self, way: Way) -> None:
        self._plane.api.wait_until(
            "CSINode",
            way.node,
            lambda it: any(driver["name"] == way.driver for driver in it["spec"].get("drivers") or ()),
            what=f"with driver {way.driver}",
            timeout_s=_SLOW_S,
        )

    def _start_sidecars(self, way: Way, flags: Iterable[str]) -> None:
        socket = self._directory / way.name / "csi.sock"
        if way.agent is not None:
            way.proxy = proxy = self._bridge.start_proxy(way.driver, "--keepalive=10s")
            socket = proxy.socket
            proxy.process.wait_until(
                lambda: csi_client.is_ready(csi_client.probe(proxy.socket)), what="Identity", timeout_s=_SLOW_S
            )
        sidecars = Sidecars(control_plane=self._plane, supervisor=self._supervisor, peer=find_peer)
        sidecars.start(
            "csi-provisioner", socket, *_SIDECAR_FLAGS, "--strict-topology", *flags, log_name=f"provisioner-{way.name}"
        )
        sidecars.start("csi-attacher", socket, *_SIDECAR_FLAGS, *flags, log_name=f"attacher-{way.name}")

    # ---- claims ------------------------------------------------------------------------------------------------------

    def run(self, way: Way, count: int, *, meanwhile: Callable[[], None] = lambda: None) -> Batch:
        """Create `count` claims at once; when all are bound, a pod for each. Then run `meanwhile`, and delete all.

        Raises:
            ProcessDiedError: the agent has ended.
        """
        return with_kube(self._admin, lambda kube: self._run(kube, way, count, meanwhile))

    async def _run(self, kube: Kube, way: Way, count: int, meanwhile: Callable[[], None]) -> Batch:
        batch = asyncio.create_task(self._batch(kube, way, count, meanwhile))
        while not batch.done():
            if way.agent is not None:
                way.agent.process.wait_until(lambda: True, what="part of this batch")  # it fails if the agent has ended
            await asyncio.wait([batch], timeout=1.0)
        return batch.result()

    async def _batch(self, kube: Kube, way: Way, count: int, meanwhile: Callable[[], None]) -> Batch:
        batch = Batch()
        names = [f"{way.name}-{way.pods + number}" for number in range(count)]
        way.pods += count
        async with asyncio.timeout(_SLOW_S):
            before = self._costs(way)
            claims = await self._bind(kube, way, names, batch)
            between = self._costs(way)
            pods = await self._publish(kube, way, claims, batch)
            after = self._costs(way)
        batch.bound_cpu_us = {name: us - before[name] for name, us in between.items()}
        batch.published_cpu_us = {name: us - between[name] for name, us in after.items()}
        meanwhile()
        async with asyncio.timeout(_SLOW_S):
            for body in [*pods, *claims.values()]:
                metadata = body["metadata"]
                await kube.delete(RESOURCES[body["kind"]], metadata["name"], NAMESPACE, uid=metadata["uid"])
            while await self._is_left(kube, way):  # noqa: ASYNC110  # no event tells it
                await asyncio.sleep(0.2)
        return batch

    def _costs(self, way: Way) -> Costs:
        """Return the CPU time so far of all processes that this one has started, and of the bridge's hops."""
        hops = {"hub": self._bridge.hub, "proxy driver": way.proxy, "agent": way.agent}
        every = {process.pid for process in psutil.Process().children(recursive=True)}
        found = {name: cpu_us(member.process.pid) for name, member in hops.items() if member is not None}
        return {"all": sum(map(_cpu_us, every)), **found}

    async def _bind(self, kube: Kube, way: Way, names: list[str], batch: Batch) -> dict[str, Body]:
        """Create claims and wait until all are bound; return them by the id of their volumes."""
        resource = RESOURCES["PersistentVolumeClaim"]
        made: dict[str, tuple[float, Body]] = {}
        bound: dict[str, float] = {}

        def note(body: Body) -> None:
            made[body["metadata"]["name"]] = time.time(), body

        async def watch(version: str) -> None:
            while len(bound) < len(names):  # the API server may end a watch at any time
                async for _, body in kube.watch(resource, version, for_s=int(_SLOW_S)):
                    metadata = body.get("metadata") or {}
                    version = metadata.get("resourceVersion") or version
                    if metadata.get("name") in names and body["status"].get("phase") == "Bound":
                        bound.setdefault(metadata["name"], time.time())
                    if len(bound) == len(names):
                        break

        page = await kube.list(resource, limit=1)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(watch(page.version))
            claims = [manifests.claim(name, namespace=NAMESPACE, storage_class=way.driver) for name in names]
            await create_all(kube, claims, at_once=len(claims), made=note)
        batch.bound_s = [bound[name] - made[name][0] for name in names]
        # The provisioner names a volume by its claim's UID, and the load generator uses the name as the id.
        return {f"pvc-{body['metadata']['uid']}": body for _, body in made.values()}

    async def _publish(self, kube: Kube, way: Way, claims: dict[str, Body], batch: Batch) -> list[Body]:
        """Create a pod for each claim, wait until all are published, and return the pods."""
        made: dict[str, tuple[float, Body]] = {}

        def note(body: Body) -> None:
            made[body["metadata"]["name"]] = time.time(), body

        pods = [_pod(body["metadata"]["name"], way.node) for body in claims.values()]
        await create_all(kube, pods, at_once=len(pods), made=note)
        while self._seen(way, "NodePublishVolume") < way.pods:  # noqa: ASYNC110  # no event tells it
            await asyncio.sleep(0.05)
        ended = {call.fields["volume_id"]: call.end for call in done(way, "NodePublishVolume")}
        for handle, claim in claims.items():
            end = ended[handle]
            assert end is not None
            batch.published_s.append(end - made[claim["metadata"]["name"]][0])
        return [body for _, body in made.values()]

    def _seen(self, way: Way, method: str) -> int:
        """Return the number of volumes for which a method was done."""
        # The log is parsed only when all lines may be there: the bench must not disturb the measurement.
        if not way.calls.exists() or way.calls.read_bytes().count(f'"{method}"'.encode()) < 2 * way.pods:
            return 0
        return len({call.fields["volume_id"] for call in done(way, method)})

    async def _is_left(self, kube: Kube, way: Way) -> bool:
        """Whether anything is left of the way's volumes."""
        if self._seen(way, "NodeUnstageVolume") < way.pods:
            return True
        volumes = (await kube.list(RESOURCES["PersistentVolume"], limit=0)).items
        attachments = (await kube.list(RESOURCES["VolumeAttachment"], limit=0)).items
        return bool(volumes or attachments)


def _cpu_us(pid: int) -> float:
    """Return a process's CPU time; 0 if it has ended."""
    try:
        return cpu_us(pid)
    except OSError:
        return 0.0


def done(way: Way, method: str) -> list[Call]:
    return [call for call in read_calls(way.calls) if call.method == method and call.code == "OK" and call.end]


def _pod(name: str, node: str) -> Object:
    """Return a pod with the claim of its name; its container runs as soon as it has its volume."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "nodeName": node,
            "terminationGracePeriodSeconds": 0,
            "tolerations": [{"operator": "Exists"}],
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "containers": [
                {
                    "name": "c",
                    "image": IMAGE,
                    "imagePullPolicy": "Never",
                    "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                }
            ],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": name}}],
        },
    }


class _QuickKubelet(Kubelet):
    """A kubelet without a limit of its requests to the API server."""

    def _configuration(self, endpoint: str) -> dict[str, object]:
        return {**super()._configuration(endpoint), "kubeAPIQPS": 1000, "kubeAPIBurst": 1000}


def _kubelet(directory: Path, plane: ControlPlane, *, limited: bool) -> Kubelet:
    make: Callable[..., Kubelet] = Kubelet if limited else _QuickKubelet
    return make(directory, peer=find_peer, node=_KUBELET_NODE, kubeconfig=plane.node_kubeconfig(_KUBELET_NODE))


def _is_ready(node: Object) -> bool:
    conditions: list[dict[str, Any]] = node.get("status", {}).get("conditions", [])
    return any(it["type"] == "Ready" and it["status"] == "True" for it in conditions)
