"""A cluster for Kubernetes' own storage tests: a node with a kubelet, a driver, and two ways to it."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tests.e2e import container_image
from tests.e2e.kubelet_node import KubeletNode
from tests.e2e.supervisors import KeepingSupervisor
from tests.e2e.upstream.suite import IMAGES, Spec, Suite
from tests.e2e.vendors import Vendor
from tests.kit import leftovers
from tests.kit.peers import csi_client, manifests
from tests.kit.peers.control_plane import ControlPlane
from tests.kit.peers.deployment import Deployment
from tests.kit.peers.sidecars import Sidecars
from tests.kit.processes import Supervisor

NODE = "localhost"  # the API server asks for a kubelet by its node's name when somebody wants to run a command in a pod

DRIVER = Vendor(
    name="dirdriver.csi",
    flags=("--fs=image", "--mutable-parameter=tier", "--max-volumes-per-node=64"),
    nodes=(NODE,),
    pinned=NODE,
    csi_driver={
        "attachRequired": True,
        "podInfoOnMount": True,
        "fsGroupPolicy": "File",
        "storageCapacity": True,
        "volumeLifecycleModes": ["Persistent", "Ephemeral"],
    },
)
"""The driver on which the specs run, with all that it can."""

_RETRIES = ("--retry-interval-start=500ms", "--retry-interval-max=10s")
_CAPACITY = ("--enable-capacity", "--capacity-for-immediate-binding", "--capacity-ownerref-level=-1")

_SIDECARS = {
    "csi-provisioner": ("--timeout=60s", "--feature-gates=Topology=true", "--strict-topology", *_CAPACITY, *_RETRIES),
    "csi-attacher": ("--timeout=60s", *_RETRIES),
    "csi-resizer": ("--timeout=60s", *_RETRIES),
    "csi-snapshotter": _RETRIES,
}
"""Each sidecar's flags, which are the same in both ways."""


_ATTRIBUTES = (
    {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "VolumeAttributesClass",
        "metadata": {"name": DRIVER.name},
        "driverName": DRIVER.name,
        "parameters": {"tier": "gold"},
    },
    # What the provisioner's own project publishes leaves this out.
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "attributes"},
        "rules": [{"apiGroups": ["storage.k8s.io"], "resources": ["volumeattributesclasses"], "verbs": ["get"]}],
    },
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "attributes"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "attributes"},
        "subjects": [{"kind": "ServiceAccount", "name": "csi-provisioner", "namespace": "default"}],
    },
)
"""A class of attributes that volumes can change to, and leave for the provisioner to read it."""


class UpstreamCluster:
    """See the module.

    Args:
        directory: for everything but logs; its path must be short.
        logs: for logs and reports.
        peer: finds a peer's binary or published file by name.
        tool: finds a program of Debian's packages by name.
    """

    _node: KubeletNode

    def __init__(
        self, directory: Path, logs: Path, *, peer: Callable[[str], Path], tool: Callable[[str], Path]
    ) -> None:
        self._directory = directory
        self._logs = logs
        self._peer = peer
        self._tool = tool
        plane = directory / "plane"
        plane.mkdir()
        self._plane = ControlPlane(plane, peer=peer, nodes=[NODE])
        self._bridge = Deployment(directory, logs)
        self._cluster = Supervisor(logs / "cluster")
        self._running = Supervisor(logs / "runs")

    def start(self) -> None:
        """Start the control plane, the hub, and the node with the driver and without an agent."""
        self._tool("mkfs.xfs")
        image = self._directory / "image.tar"
        container_image.write_archive(
            image, busybox=self._tool("busybox"), programs=[self._peer("agnhost")], entrypoints=IMAGES
        )
        self._plane.start()
        self._plane.start_scheduler()
        cluster = self._sidecars(self._cluster)
        cluster.install_snapshot_kinds()
        cluster.start_snapshot_controller()
        self._bridge.install(self._plane)
        self._node = KubeletNode(
            NODE,
            self._directory / "node",
            self._logs / "node",
            bridge=self._bridge,
            peer=self._peer,
            plane=self._plane,
            tool=self._tool,
            image=image,
            networked=True,
        )
        self._node.start_kubelet()
        self._plane.api.create(DRIVER.manifest())
        # Growing ext4 while it is mounted needs a capability that few containers have, this machine's among them.
        parameters = {"csi.storage.k8s.io/fstype": "xfs"}
        self._plane.api.create(manifests.storage_class(DRIVER.name, parameters=parameters))
        for manifest in _ATTRIBUTES:
            self._plane.api.create(manifest)
        self._node.add_vendor(DRIVER, state=None)
        self._plane.wait_registered(DRIVER.name, NODE)

    @contextlib.contextmanager
    def direct(self) -> Iterator[None]:
        """While the sidecars are on the driver's own socket, and no agent runs."""
        with self._sidecars_on(self._node.vendors[DRIVER.name].socket, "direct"):
            yield

    @contextlib.contextmanager
    def bridged(self) -> Iterator[None]:
        """While the sidecars are on the socket of a proxy driver, and an agent carries their calls to the driver.

        Raises:
            AssertionError: a member of the bridge complained.
        """
        self._node.start_agent()
        proxy = self._bridge.start_proxy(DRIVER.name)
        proxy.process.wait_until(
            lambda: csi_client.is_ready(csi_client.probe(proxy.socket)), what="Identity of the driver"
        )
        with self._sidecars_on(proxy.socket, "bridge"):
            yield
        assert not self._bridge.complaints(), "\n".join(self._bridge.complaints())

    def run(self, name: str, *, focus: Sequence[str], processes: int = 4) -> dict[str, Spec]:
        """Run specs, as `Suite.run`."""
        suite = Suite(
            self._logs / "suite", peer=self._peer, driver=DRIVER.name, kubeconfig=self._plane.admin_kubeconfig()
        )
        return suite.run(name, self._running, focus=focus, processes=processes)

    def stop(self) -> None:
        """Stop everything, the last one first, and detach the loop devices of volumes that are left."""
        self._running.stop()
        self._bridge.stop()
        if hasattr(self, "_node"):
            self._node.stop()
            leftovers.clear(self._node.directory)
        self._cluster.stop()
        self._plane.stop()

    @contextlib.contextmanager
    def _sidecars_on(self, socket: Path, name: str) -> Iterator[None]:
        with KeepingSupervisor(self._logs / f"sidecars-{name}") as keeper:
            sidecars = self._sidecars(keeper)
            for sidecar, flags in _SIDECARS.items():
                sidecars.start(sidecar, socket, *flags, variables={"NAMESPACE": "default"})
            yield

    def _sidecars(self, supervisor: Supervisor) -> Sidecars:
        return Sidecars(control_plane=self._plane, supervisor=supervisor, peer=self._peer)
