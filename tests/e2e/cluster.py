"""The cluster of the end-to-end tests, with stock sidecars, a hub, and nodes of both kinds.

Everything is real: etcd, kube-apiserver with RBAC on, controller-manager, scheduler, snapshot-controller, the stock
sidecars, kubelets, containerd; hub and sidecars each run with a ServiceAccount of their own. Nodes and vendors' drivers
are started when a test first asks for them, and stay until the end.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from common.csi import csi_pb2 as csi
from tests.e2e import container_image
from tests.e2e.edgecore_node import EdgeCoreNode
from tests.e2e.kubelet_node import KubeletNode
from tests.e2e.lost_leaders import HUBS, keep
from tests.e2e.own_node import OwnNode
from tests.e2e.supervisors import KeepingSupervisor
from tests.e2e.vendors import EDGECORE, KUBELETS, OWN, Vendor
from tests.kit.bridge import Proxy, UnforeseenError
from tests.kit.deployed import container
from tests.kit.peers import csi_client, manifests
from tests.kit.peers.control_plane import ControlPlane
from tests.kit.peers.deployment import QUICKER, SIDECARS, Deployment
from tests.kit.peers.kube_api import KubeApi
from tests.kit.peers.sidecars import Sidecars
from tests.kit.peers.testdriver import RunningDriver
from tests.kit.sidecar import Sidecar


@dataclass(frozen=True, kw_only=True)
class Driver:
    """A vendor's driver in the cluster."""

    vendor: Vendor  # whose
    proxy: Proxy
    keeper: KeepingSupervisor  # who starts the stock sidecars on its socket again when they end
    on: dict[str, RunningDriver]  # the driver's processes, by node

    @property
    def name(self) -> str:
        return self.vendor.name

    @property
    def pinned(self) -> RunningDriver:
        """The process that serves the sidecars' calls, of a driver that has one."""
        assert self.vendor.pinned is not None, f"each node of {self.name} serves its own"
        return self.on[self.vendor.pinned]

    @property
    def state(self) -> Path:
        """The state directory that its processes share, of a driver where they do."""
        return self.pinned.state

    def make_volume(self, name: str, *, size_bytes: int = 64 << 20) -> str:
        """Let the vendor make a volume of which the cluster knows nothing; its id."""
        request = csi.CreateVolumeRequest(
            name=name,
            capacity_range={"required_bytes": size_bytes},
            volume_capabilities=[{"access_mode": {"mode": "SINGLE_NODE_WRITER"}, "mount": {}}],
        )
        with Sidecar(self.pinned.socket) as sidecar:
            outcome = sidecar.call("CreateVolume", request)
        assert outcome.ok, outcome.refusal
        return str(outcome.answer.volume.volume_id)

    def directories(self) -> list[str]:
        """The ids of the volumes that there is data of, on all nodes."""
        return sorted({path.name for process in self.on.values() for path in process.directories()})

    def places(self, handle: str) -> list[str]:
        return [node for node in self.on if handle in self.directories_on(node)]

    def directories_on(self, node: str) -> list[str]:
        return [path.name for path in self.on[node].directories()]


class Cluster:
    """See the module.

    Args:
        directory: for everything but logs; its path must be short.
        logs: for the logs of all processes but the control plane's.
        peer: finds a peer's binary or published file by name.
        tool: finds a program of Debian's packages by name.
    """

    api: KubeApi  # the cluster, as its administrator sees it

    def __init__(
        self, directory: Path, logs: Path, *, peer: Callable[[str], Path], tool: Callable[[str], Path]
    ) -> None:
        self._directory = directory
        self._peer = peer
        self._tool = tool
        self._logs = logs
        plane = directory / "plane"
        plane.mkdir()
        self.plane = ControlPlane(plane, peer=peer, nodes=(*KUBELETS, EDGECORE))
        self.bridge = Deployment(directory, self._logs)  # hub, proxy drivers and agents
        self._nodes: dict[str, KubeletNode | OwnNode] = {}
        self._drivers: dict[str, Driver] = {}
        self._keepers: list[KeepingSupervisor] = []
        self._image = directory / "busybox.tar"

    # ---- starting and stopping ---------------------------------------------------------------------------------------

    def start(self) -> None:
        container_image.write_archive(self._image, busybox=self._tool("busybox"))
        self.plane.start()
        self.plane.start_scheduler()
        self.api = self.plane.api
        sidecars = self.sidecars(self._keeper("cluster"))
        sidecars.install_snapshot_kinds()
        sidecars.start_snapshot_controller()
        self.bridge.install(self.plane, edgecore=True, hubs=HUBS, kept=keep if HUBS > 1 else None)
        if HUBS > 1:
            self.bridge.foresee("keeper: ")

    def stop(self) -> None:
        """Stop everything, the last one first.

        Raises:
            UnforeseenError: a member of the bridge complained.
        """
        for keeper in reversed(self._keepers):
            keeper.stop()
        self.bridge.stop()
        for node in self._nodes.values():
            node.stop()
        self.plane.stop()
        if complaints := self.bridge.complaints():
            raise UnforeseenError("\n".join(complaints))

    # ---- nodes and drivers -------------------------------------------------------------------------------------------

    def node(self, name: str) -> KubeletNode | OwnNode:
        """A node, started if this is the first to ask for it."""
        if name not in self._nodes:
            directory = self._directory / "nodes" / name
            made: KubeletNode | OwnNode
            if name != OWN:
                kind = EdgeCoreNode if name == EDGECORE else KubeletNode
                made = kind(
                    name,
                    directory,
                    self._logs / name,
                    bridge=self.bridge,
                    peer=self._peer,
                    plane=self.plane,
                    tool=self._tool,
                    image=self._image,
                )
            else:
                made = OwnNode(name, directory, self._logs / name, bridge=self.bridge, peer=self._peer, api=self.api)
            self._nodes[name] = made
            made.start()
        return self._nodes[name]

    @property
    def own(self) -> OwnNode:
        found = self.node(OWN)
        assert isinstance(found, OwnNode)
        return found

    def driver(self, vendor: Vendor) -> Driver:
        """A vendor's driver in the cluster, on all of its nodes; installed if this is the first to ask for it."""
        if vendor.name not in self._drivers:
            self._drivers[vendor.name] = self._install(vendor)
        return self._drivers[vendor.name]

    def _install(self, vendor: Vendor) -> Driver:
        self.api.create(vendor.manifest())
        self.api.create(
            manifests.storage_class(vendor.name, wait_for_consumer=vendor.is_local, allowVolumeExpansion=True)
        )
        self.api.create(manifests.snapshot_class(vendor.name))
        state = None if vendor.is_local else self._directory / "shared" / vendor.name
        if state is not None:
            state.mkdir(parents=True)
        processes = {name: self.node(name).add_vendor(vendor, state=state) for name in vendor.nodes}
        for name in vendor.nodes:
            self.plane.wait_registered(vendor.name, name)
        proxy = self.bridge.start_proxy(vendor.name, *vendor.proxy_flags, node=vendor.pinned)
        proxy.process.wait_until(
            lambda: csi_client.is_ready(csi_client.probe(proxy.socket)), what="Identity of the vendor's driver"
        )
        keeper = self._keeper(vendor.name)
        sidecars = self.sidecars(keeper)
        for name in SIDECARS:
            sidecars.start_deployed(container(name), proxy.socket, **QUICKER)
        return Driver(vendor=vendor, proxy=proxy, keeper=keeper, on=processes)

    def sidecars(self, keeper: KeepingSupervisor) -> Sidecars:
        return Sidecars(control_plane=self.plane, supervisor=keeper, peer=self._peer)

    def _keeper(self, name: str) -> KeepingSupervisor:
        keeper = KeepingSupervisor(self._logs / name)
        self._keepers.append(keeper)
        return keeper

    def tell(self) -> str:
        return "\n".join(node.tell() for node in self._nodes.values())
