"""Figures beside the real kubelet: the same driver, one pod after another, in turns, on the same machine.

The kubelet has the periods of its defaults. Its clock starts when the API server has answered that there is a pod. The
agent's clock starts when the pod's YAML gets its name among the manifests, so the hub is part of its time. Both stop
when the driver has answered NodePublishVolume, by the driver's own log.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

from bench.chain import Command
from bench.figure import Figure, at_share, of_samples
from bench.load_node import LoadNode, cpu_s
from bench.peers import find_peer, missing_peers
from bench.progress import say
from cloud.sources.manifests.manifest_files import SETTLE_S
from tests.kit.edge_node import DRIVER, Object, csi_driver, pod, volume
from tests.kit.peers.control_plane import ControlPlane
from tests.kit.peers.kube_api import KubeApi
from tests.kit.testdriver.call_log import Call
from tests.kit.waiting import wait_for
from tests.peers.kubelet.kubelet_process import IMAGE, Kubelet
from tests.peers.kubelet.recorder import Recorder
from tests.peers.kubelet.registrar_stand_in import RegistrarStandIn

_TIMES = 50
_IDLE_S = 15.0
_SLOW_S = 120.0
_NODE = "bench-node"
_PEERS = ("etcd", "kube-apiserver", "kube-controller-manager", "kubelet", "fakeruntime")
_LARGE_BYTES = 300
"""A chunk on the link of at least this size carries an object: pings and acknowledgements are smaller."""


def beside_kubelet(directory: Path, _loadgen: Command) -> list[Figure]:
    """Measure from a pod to its mounted volume, and the CPU time of that."""
    missing = missing_peers(*_PEERS) if os.geteuid() == 0 else "only root can mount"
    if missing:
        return [Figure("pod known to volume published", f"left out: {missing}")]
    with LoadNode(directory) as node:
        node.start_cloud()
        ours = _handles(node, "agent")
        node.write(*(each for name, handle in ours.items() for each in volume(name, handle)), file="volumes")
        node.start_agent()
        with _cluster(directory, node.driver.socket) as cluster:
            theirs = _handles(node, "kubelet")
            cluster.add_volumes(theirs)
            say(f"kubelet: the cluster runs; {_TIMES} pods by each way, one after another")
            return _measure(node, cluster, list(ours.items()), list(theirs.items()))


@dataclass
class _Way:
    """The times of one volume.

    Attributes:
        total_s: from the pod to the end of NodePublishVolume.
        driver_s: the driver's part of it.
        hub_s: until the first object left the hub.
    """

    total_s: float
    driver_s: float
    hub_s: float = 0.0


def _measure(
    node: LoadNode, cluster: "_Cluster", ours: list[tuple[str, str]], theirs: list[tuple[str, str]]
) -> list[Figure]:
    costs = _Costs(node.agent.process.pid, cluster.kubelet.process.pid, node.bridge.hub.process.pid)
    agent: list[_Way] = []
    kubelet: list[_Way] = []
    for (name, handle), (other, other_handle) in zip(ours, theirs, strict=True):
        new, ready = _written(node, pod(f"p-{name}", name), file=f"p-{name}")
        new.rename(ready)
        began = time.time() + SETTLE_S  # before that the hub may see half a file
        agent.append(_way(node, handle, began))
        agent[-1].hub_s = _left_hub(node, began) - began
        cluster.api.create(cluster.pod(f"p-{other}", other))
        kubelet.append(_way(node, other_handle, time.time()))
    for (name, _), (other, _) in zip(ours, theirs, strict=True):
        node.remove(f"p-{name}")
        cluster.api.delete("Pod", f"p-{other}", namespace="default")
    _wait_unstaged(node, [handle for _, handle in [*ours, *theirs]])
    wait_for(lambda: not cluster.api.all("Pod", namespace="default"), what="end of all pods", timeout_s=_SLOW_S)
    agent_ms, kubelet_ms, hub_ms = costs.a_cycle_ms()
    return [
        _beside("p50", agent, kubelet, 0.5),
        _beside("p99", agent, kubelet, 0.99),
        _parts(agent, kubelet),
        Figure(
            f"CPU time a mount cycle of {_TIMES}, agent",
            f"{agent_ms:.1f} ms (hub {hub_ms:.1f})",
            details={"agent": agent_ms, "kubelet": kubelet_ms, "hub": hub_ms},
            samples=[agent_ms],
            peers={"kubelet": f"{kubelet_ms:.1f} ms, with all else it does for a pod"},
        ),
    ]


def _beside(name: str, agent: list[_Way], kubelet: list[_Way], share: float) -> Figure:
    ours, theirs = (at_share([way.total_s for way in ways], share) for ways in (agent, kubelet))
    figure = of_samples(
        f"pod known to volume published, {name} of {_TIMES}",
        [ours / theirs],
        "x the kubelet's",
        at_most=1,
        note=f"{ours * 1000:.0f} ms",
        peers={"kubelet": f"{theirs * 1000:.0f} ms"},
    )
    figure.details = {"agent_ms": _ms(agent), "kubelet_ms": _ms(kubelet)} if share == 0.5 else {}
    return figure


def _parts(agent: list[_Way], kubelet: list[_Way]) -> Figure:
    hub, driver = (at_share([getattr(way, part) for way in agent], 0.5) for part in ("hub_s", "driver_s"))
    rest = at_share([way.total_s - way.hub_s - way.driver_s for way in agent], 0.5)
    theirs, their_driver = (
        at_share(values, 0.5)
        for values in ([way.total_s - way.driver_s for way in kubelet], [way.driver_s for way in kubelet])
    )
    measured = f"{hub * 1000:.0f} / {rest * 1000:.0f} / {driver * 1000:.0f} ms"
    beside = {"kubelet": f"kubelet / driver: {theirs * 1000:.0f} / {their_driver * 1000:.0f} ms"}
    return Figure("of that hub / agent / driver, p50", measured, peers=beside)


def _ms(ways: list[_Way]) -> list[int]:
    return [round(way.total_s * 1000) for way in ways]


class _Costs:
    """CPU time of processes from now on, without their idle share."""

    def __init__(self, *pids: int) -> None:
        self._processes = [psutil.Process(pid) for pid in pids]
        before = self._now()
        time.sleep(_IDLE_S)
        self._began, self._cpu_s = time.monotonic(), self._now()
        self._idle = [(now - then) / _IDLE_S for now, then in zip(self._cpu_s, before, strict=True)]

    def a_cycle_ms(self) -> list[float]:
        """Return the CPU time of each process per pod that came and went since."""
        past_s = time.monotonic() - self._began
        spent = zip(self._now(), self._cpu_s, self._idle, strict=True)
        return [(now - then - idle * past_s) / _TIMES * 1000 for now, then, idle in spent]

    def _now(self) -> list[float]:
        return [cpu_s(process) for process in self._processes]


# ---- volumes of both -------------------------------------------------------------------------------------------------


def _handles(node: LoadNode, prefix: str) -> dict[str, str]:
    """Create volumes of the driver, and return their handles by name."""
    names = [f"{prefix}{number:02}" for number in range(_TIMES)]
    return {name: node.make_volume(name, size_bytes=1 << 20) for name in names}


def _written(node: LoadNode, *objects: Object, file: str) -> tuple[Path, Path]:
    """Write a manifest under a temporary name; return that path and the final one."""
    new = node.manifests / f".{file}.new"
    new.write_text(yaml.safe_dump_all(objects))
    return new, node.manifests / f"{file}.yaml"


def _way(node: LoadNode, handle: str, began: float) -> _Way:
    """Wait until a volume is published, and return its times."""

    def ended() -> list[Call]:
        return [call for call in _calls(node, handle, "NodePublishVolume") if call.end and call.code == "OK"]

    published = wait_for(ended, what=f"publication of {handle}", timeout_s=_SLOW_S, instead=node.agent.process.log_tail)
    calls = _calls(node, handle, "NodeStageVolume") + published
    assert published[0].end is not None
    return _Way(published[0].end - began, sum((call.end or call.start) - call.start for call in calls))


def _left_hub(node: LoadNode, began: float) -> float:
    chunks = [chunk for chunk in list(node.meter.chunks) if chunk.at >= began and chunk.down]
    return next((chunk.at for chunk in chunks if chunk.size_bytes >= _LARGE_BYTES), began)


def _calls(node: LoadNode, handle: str, method: str) -> list[Call]:
    return [call for call in node.driver.calls(method) if call.fields["volume_id"] == handle]


def _wait_unstaged(node: LoadNode, handles: list[str]) -> None:
    def done() -> bool:
        calls = [call for call in node.driver.calls("NodeUnstageVolume") if call.end and call.code == "OK"]
        return {call.fields["volume_id"] for call in calls} >= set(handles)

    wait_for(done, what="end of all volumes", timeout_s=_SLOW_S, instead=node.agent.process.log_tail)


# ---- the kubelet -----------------------------------------------------------------------------------------------------


class _DefaultKubelet(Kubelet):
    """A kubelet with upstream's periods, because its cost is measured."""

    def _configuration(self, endpoint: str) -> dict[str, object]:
        hurried = {"syncFrequency", "nodeStatusUpdateFrequency", "volumeStatsAggPeriod"}
        return {key: value for key, value in super()._configuration(endpoint).items() if key not in hurried}


@dataclass
class _Cluster:
    """A cluster with one node."""

    api: KubeApi
    kubelet: Kubelet

    def add_volumes(self, handles: dict[str, str]) -> None:
        """Create PersistentVolumes of the driver with bound claims."""
        self.api.create(csi_driver())
        for name, handle in handles.items():
            for each in volume(name, handle):
                self.api.create(each)
        for name in handles:
            self.api.wait_until(
                "PersistentVolumeClaim", name, lambda it: it["status"].get("phase") == "Bound", what="bound",
                namespace="default",
            )  # fmt: skip

    def pod(self, name: str, claim: str) -> Object:
        """Return a pod of this node; its container runs as soon as it has its volume."""
        made = pod(
            name, claim, nodeName=_NODE, tolerations=[{"operator": "Exists"}], terminationGracePeriodSeconds=0,
            enableServiceLinks=False, automountServiceAccountToken=False,
        )  # fmt: skip
        made["spec"]["containers"][0] |= {"image": IMAGE, "imagePullPolicy": "Never"}
        return made


@contextmanager
def _cluster(directory: Path, vendor: Path) -> Iterator[_Cluster]:
    """Run a control plane and a kubelet with which the driver is registered."""
    plane = ControlPlane(directory / "plane", peer=find_peer, nodes=(_NODE,))
    kubelet: Kubelet | None = None
    recorder = Recorder(vendor, look=frozenset)  # it only serves the registration
    try:
        plane.start()
        kubelet = _DefaultKubelet(directory / "k", peer=find_peer, node=_NODE, kubeconfig=plane.node_kubeconfig(_NODE))
        kubelet.start()
        plane.api.wait_until("Node", _NODE, _is_ready, what="ready", timeout_s=_SLOW_S)
        registry = kubelet.root / "plugins_registry"
        RegistrarStandIn(recorder, driver=DRIVER, endpoint=vendor, registry=registry).register()
        yield _Cluster(plane.api, kubelet)
    finally:
        if kubelet is not None:
            kubelet.stop()
        plane.stop()
        recorder.close()


def _is_ready(node: Object) -> bool:
    conditions: list[dict[str, Any]] = node.get("status", {}).get("conditions", [])
    return any(it["type"] == "Ready" and it["status"] == "True" for it in conditions)
