"""A site of the laboratory: a cluster in the cloud, a driver on an edge node, a line between them, one way over it.

The ways:

    bridge              the stock sidecars call a proxy driver; the node has the agent and no kubelet.
    ssh                 the stock sidecars call a UNIX socket that `ssh -R`, which the node runs, leads to the driver's.
    node-deployment     the sidecars run on the node, external-provisioner with --node-deployment.

With the last two the node has a kubelet. It, and sidecars on the node, talk to the API server over the line.

Rules:

* Sidecars have the flags of deploy/, but for `Row.retry_max`; hub, proxy driver and agent have their defaults.
* A sidecar that ends is started again as a kubelet does with a container, and ssh at once.
* Whoever uses a site is in the cloud's network.
"""

import os
import re
import shutil
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from bench.peers import find_peer
from tests.e2e.supervisors import KUBELET_S, KeepingSupervisor
from tests.kit.bridge import Bridge
from tests.kit.certificates import SERVER_AUTH, Authority
from tests.kit.deployed import hub_roles
from tests.kit.leftovers import clear
from tests.kit.peers import manifests
from tests.kit.peers.cluster_node import HUB
from tests.kit.peers.control_plane import ControlPlane
from tests.kit.peers.sanity import SanityReport, run_sanity
from tests.kit.peers.sidecars import Sidecars
from tests.kit.peers.testdriver import start_testdriver
from tests.kit.ports import free_ports
from tests.kit.processes import Process, Supervisor, listens_on
from tests.lab.rows import Row
from tests.lab.ssh_server import ssh_server
from tests.lab.wire import CLOUD, GATEWAY, Wire
from tests.peers.kubelet.kubelet_process import Kubelet
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
    "csi-resizer",
    "csi-snapshotter",
    "snapshot-controller",
    "csi-sanity",
)
PROGRAMS = ("ip", "tc", "iptables", "tinyproxy", "nc", "ssh", "sshd")
NODE, DRIVER = "edge-1", "lab.csi"
WAYS = ("bridge", "ssh", "node-deployment")

_DEFAULTS = ("--keepalive=10s", "--hello-timeout=30s", "--drain-timeout=25s")
"""Of every member of the bridge; the tests' own are shorter."""

_RESTART_S = 1.0, 1.0
_SLOW_S = 300.0
_LONG_S = 24 * 3600.0
_ANSWERED = re.compile(r'"GRPC response".*? err="rpc error: code = (\w+) ')
_NOT_FINAL = {"Canceled", "DeadlineExceeded", "Unavailable", "ResourceExhausted", "Aborted"}
"""Codes after which a sidecar knows that it does not know (external-provisioner, `checkError`)."""


class Site:
    """The site of one row and way; a context manager.

    Attributes:
        wire: the line.
        api: the cluster, as its administrator sees it.
        vendor: the driver.
        socket: what the sidecars call.
    """

    def __init__(self, directory: Path, row: Row, way: str) -> None:
        """Begin with nothing running.

        Args:
            directory: for all files, with a short path.
            row: the line.
            way: one of `WAYS`.
        """
        self._directory, self._row, self._way = directory, row, way
        self._logs = directory / "logs"
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.callback(clear, self._directory)
            self.wire = stack.enter_context(Wire(**self._row.wire))
            stack.enter_context(self.wire.at("cloud"))
            self._start(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *failure: object) -> None:
        self._stack.close()

    @property
    def _is_local(self) -> bool:
        """Whether the sidecars run on the node."""
        return self._way == "node-deployment"

    # ---- starting ----------------------------------------------------------------------------------------------------

    def _start(self, stack: ExitStack) -> None:
        plane = self._directory / "plane"
        plane.mkdir()
        self._plane = ControlPlane(plane, peer=find_peer, nodes=(NODE,), host=CLOUD)
        stack.callback(self._plane.stop)
        self._plane.start()
        self.api = self._plane.api
        self._cloud = stack.enter_context(KeepingSupervisor(self._logs / "cloud", KUBELET_S))
        self._edge = stack.enter_context(_Elsewhere(self._logs / "edge", self.wire, "edge"))
        self._sidecars = self._cloud
        if self._is_local:
            self._sidecars = stack.enter_context(_AtEdge(self._logs / "sidecars", self.wire))
        self._proxy = self._start_proxy(stack) if self._row.proxied else ""
        self.vendor = start_testdriver(self._edge, self._directory, name=DRIVER, node_id=NODE, flags=("--no-attach",))
        self.api.create(manifests.csi_driver(DRIVER, attachRequired=False))
        self.api.create(manifests.storage_class(DRIVER, wait_for_consumer=True, allowVolumeExpansion=True))
        of_cluster = Sidecars(control_plane=self._plane, supervisor=self._cloud, peer=find_peer)
        of_cluster.install_snapshot_kinds()
        if self._is_local:
            self._let_see_nodes("snapshot-controller")
        of_cluster.start_snapshot_controller(f"--enable-distributed-snapshotting={self._is_local}".lower())
        self.api.create(manifests.snapshot_class(DRIVER))
        self.socket = {"bridge": self._bridge, "ssh": self._ssh, "node-deployment": self._node_deployment}[self._way](
            stack
        )
        self._plane.wait_registered(DRIVER, NODE)
        self._start_sidecars()

    def _let_see_nodes(self, account: str) -> None:
        """Give the snapshot-controller the right that its published role leaves out."""
        role = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": "lab-sees-nodes"}}
        rules = [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch"]}]
        self.api.create({**role, "kind": "ClusterRole", "rules": rules})
        whose = {"kind": "ServiceAccount", "name": account, "namespace": "kube-system"}
        what = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "lab-sees-nodes"}
        self.api.create({**role, "kind": "ClusterRoleBinding", "subjects": [whose], "roleRef": what})

    def _start_proxy(self, stack: ExitStack) -> str:
        supervisor = stack.enter_context(_Elsewhere(self._logs / "gateway", self.wire, "gateway"))
        settings, (port,) = self._directory / "tinyproxy.conf", free_ports(1)
        settings.write_text(f"Port {port}\nListen {GATEWAY}\nTimeout 600\n")
        address = GATEWAY, port
        supervisor.start(
            "tinyproxy", [shutil.which("tinyproxy"), "-d", "-c", settings], ready=lambda: listens_on(address)
        )
        return f"{GATEWAY}:{port}"

    def _bridge(self, stack: ExitStack) -> Path:
        self._plane.apply(hub_roles())
        kubeconfig = self._plane.service_account_kubeconfig("csi-bridge", HUB)
        authority = Authority(self._directory, lifetime_s=_LONG_S)
        served = authority.issue(
            "csi-bridge:hub",
            "csi-bridge:hubs",
            file="hub",
            addresses=[CLOUD],
            purposes=[SERVER_AUTH],
            lifetime_s=_LONG_S,
        )
        bridge = stack.enter_context(Bridge(self._directory, self._logs))
        hub = bridge.start_hub(f"--kubeconfig={kubeconfig}", *served.flags, *_DEFAULTS, host=CLOUD)
        flags = [
            f"--hub=wss://{hub.address}",
            *authority.edge(NODE, lifetime_s=_LONG_S).flags,
            f"--root-dir={self._directory / 'root'}",
            *_DEFAULTS,
            *([f"--proxy=http://{self._proxy}"] if self._proxy else []),
        ]
        with self.wire.at("edge"):
            bridge.start_agent(NODE, self.vendor.socket, flags=flags)
        return bridge.start_proxy(DRIVER, *_DEFAULTS).socket

    def _ssh(self, stack: ExitStack) -> Path:
        here, socket = self._directory / "ssh", self._directory / "far.sock"
        here.mkdir(mode=0o700)
        client = stack.enter_context(ssh_server(here, CLOUD))
        through = ["-o", f"ProxyCommand=nc -X connect -x {self._proxy} %h %p"] if self._proxy else []
        command = [*client, *through, "-R", f"{socket}:{self.vendor.socket}"]
        keeper = stack.enter_context(_AtEdge(self._logs / "tunnel", self.wire, _RESTART_S))
        keeper.start("ssh", command, ready=lambda: listens_on(socket), timeout_s=_SLOW_S)
        self._start_kubelet(stack)
        return socket

    def _node_deployment(self, stack: ExitStack) -> Path:
        self._start_kubelet(stack)
        return self.vendor.socket

    def _start_kubelet(self, stack: ExitStack) -> None:
        self._plane.await_kubelet(NODE)
        kubelet = _StockKubelet(
            self._directory / "k",
            peer=find_peer,
            node=NODE,
            kubeconfig=self._plane.node_kubeconfig(NODE),
            supervisor=_Elsewhere(self._logs / "kubelet", self.wire, "edge", self._proxy_variables()),
        )
        stack.callback(kubelet.stop)
        kubelet.start()
        self.api.wait_until("Node", NODE, _is_ready, what="ready", timeout_s=_SLOW_S)
        recorder = Recorder(self.vendor.socket, look=lambda: EMPTY)  # it only serves the registration
        stack.callback(recorder.close)
        registry = kubelet.root / "plugins_registry"
        RegistrarStandIn(recorder, driver=DRIVER, endpoint=self.vendor.socket, registry=registry).register()

    def _start_sidecars(self) -> None:
        local = ("--node-deployment",) if self._is_local else ()
        variables = {"NODE_NAME": NODE, **(self._proxy_variables() if self._is_local else {})}
        sidecars = Sidecars(control_plane=self._plane, supervisor=self._sidecars, peer=find_peer)
        flags = {
            "csi-provisioner": ("--strict-topology", *local),
            "csi-resizer": (),
            "csi-snapshotter": tuple(f"{flag}=true" for flag in local),
        }
        for name, own in flags.items():
            of_all = ("--timeout=60s", f"--retry-interval-max={self._row.retry_max}")
            sidecars.start(name, self.socket, *of_all, *own, variables=variables)

    def _proxy_variables(self) -> dict[str, str]:
        return {"HTTPS_PROXY": f"http://{self._proxy}"} if self._proxy else {}

    # ---- what happened -----------------------------------------------------------------------------------------------

    def sanity(self, *, direct: bool) -> SanityReport:
        """Run csi-sanity, on the driver's own socket or on the sidecars'."""
        return run_sanity(
            find_peer("csi-sanity"),
            self._directory / ("sanity-direct" if direct else "sanity"),
            endpoint=self.vendor.socket,
            controller_endpoint=None if direct else self.socket,
            timeout_s=1800.0,
        )

    def new_namespace(self) -> str:
        return self._plane.new_namespace()

    def sidecars_errors(self) -> Counter[str]:
        """The errors that sidecars were told by their socket, by code."""
        return Counter(code for line in self._sidecars_lines() for code in _ANSWERED.findall(line))

    def final_errors_told(self) -> Counter[str]:
        """The same, of the codes that say how a call ended."""
        return Counter({code: times for code, times in self.sidecars_errors().items() if code not in _NOT_FINAL})

    def restarts(self) -> int:
        """How often a sidecar ended and was started again."""
        return sum(line.startswith("keeper: ") for line in self._sidecars_lines())

    def _sidecars_lines(self) -> list[str]:
        files = self._sidecars.directory.glob("csi-*.log")
        return [line for file in files for line in file.read_text(errors="replace").splitlines()]


class _Elsewhere(Supervisor):
    """Starts processes on another side of the line."""

    def __init__(self, directory: Path, wire: Wire, side: str, variables: dict[str, str] | None = None) -> None:
        super().__init__(directory)
        self._wire, self._side, self._variables = wire, side, variables or {}

    def start(self, name: str, command: Sequence[object], **more: Any) -> Process:
        more.setdefault("environment", {**os.environ, **self._variables})
        with self._wire.at(self._side):
            return super().start(name, command, **more)


class _AtEdge(KeepingSupervisor):
    """The same for the edge, and keeps them running."""

    def __init__(self, directory: Path, wire: Wire, pauses_s: tuple[float, float] = KUBELET_S) -> None:
        super().__init__(directory, pauses_s)
        self._wire = wire

    def start(self, name: str, command: Sequence[object], **more: Any) -> Process:
        with self._wire.at("edge"):
            return super().start(name, command, **more)


class _StockKubelet(Kubelet):
    """A kubelet with the periods of a usual one: its requests cross the line."""

    def _configuration(self, endpoint: str) -> dict[str, object]:
        quick = {"syncFrequency", "nodeStatusUpdateFrequency", "volumeStatsAggPeriod"}
        return {name: value for name, value in super()._configuration(endpoint).items() if name not in quick}


def _is_ready(node: dict[str, Any]) -> bool:
    conditions: list[dict[str, Any]] = node.get("status", {}).get("conditions", [])
    return any(it["type"] == "Ready" and it["status"] == "True" for it in conditions)
