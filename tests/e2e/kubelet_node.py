"""A node with a stock kubelet and containerd: its pods run. The agent only observes."""

from collections.abc import Callable
from pathlib import Path

from edge.disk.layout import PLUGIN
from tests.e2e.containerd import Containerd, ContainerdKubelet
from tests.e2e.node import Node
from tests.kit.deployed import container, relaying_agent, with_flags
from tests.kit.guest import Guest
from tests.kit.peers.control_plane import ControlPlane
from tests.kit.peers.deployment import Deployment
from tests.kit.peers.kube_api import Object
from tests.kit.waiting import wait_for

_READY_LIMIT_S = 180.0


class KubeletNode(Node):
    """See the module, and `Node`.

    Args:
        plane: the control plane, which knows the node by name.
        tool: finds a program of Debian's packages by name.
        image: the archive of the image of all containers.
        networked: whether pods have a network of their own.
    """

    def __init__(
        self,
        name: str,
        directory: Path,
        logs: Path,
        *,
        bridge: Deployment,
        peer: Callable[[str], Path],
        plane: ControlPlane,
        tool: Callable[[str], Path],
        image: Path,
        networked: bool = False,
    ) -> None:
        super().__init__(name, directory, logs, bridge=bridge, peer=peer)
        self.container = container("agent")
        self._plane = plane
        self._containerd = Containerd(directory, tool=tool, networked=networked)
        self._kubelet = ContainerdKubelet(
            directory,
            peer=peer,
            node=name,
            kubeconfig=self._kubeconfig(),
            supervisor=self.supervisor("node"),
            containerd=self._containerd,
            image=image,
        )
        self.root = self._kubelet.root
        self.relay = self.root / "plugins" / "csi-bridge"
        self.run_dir = directory / "run"
        """Where Kata looks for its direct volumes."""
        self._mounts = 0  # the lines of the kubelet's log before its last start

    def _kubeconfig(self) -> Path:
        return self._plane.node_kubeconfig(self.name)

    def start(self) -> None:
        """Boot the machine, start runtime, kubelet and agent, and wait until the node is Ready."""
        self.start_kubelet()
        added = [it for it in relaying_agent()["args"] if it.startswith(("--relay-dir=", "--direct-runtime="))]
        self.start_agent(*with_flags(added, relay_dir=self.relay), f"--direct-run-dir={self.run_dir}")

    def start_kubelet(self) -> None:
        """The same without an agent."""
        self.machine.boot()
        self._plane.await_kubelet(self.name)
        self._kubelet.start()
        self._plane.api.wait_until("Node", self.name, _is_ready, what="ready", timeout_s=_READY_LIMIT_S)

    def restart_kubelet(self) -> None:
        self._kubelet.kill()
        self._mounts = len(self._kubelet.process.lines())
        self._kubelet.start_again()

    def has_logged(self, text: str) -> bool:
        """Whether a line of the kubelet's log contains this."""
        return text in self._kubelet.process.output()

    def wait_mounted_again(self, volume: str) -> None:
        """Wait until the restarted kubelet has mounted a volume again, by the name of its PersistentVolume."""
        wait_for(
            lambda: any(
                "MountVolume.SetUp succeeded" in line and volume in line
                for line in self._kubelet.process.lines()[self._mounts :]
            ),
            what=f"volume {volume} that is mounted again",
            timeout_s=_READY_LIMIT_S,
            instead=self.tell,
        )

    def answered(self, driver: str, method: str) -> bool:
        """Whether the kubelet has had an OK of a driver to a method of its Node service."""
        labels = f'driver_name="{driver}",grpc_status_code="OK",method_name="/csi.v1.Node/{method}"'
        return any(line.startswith("csi_operations_seconds_count{" + labels) for line in self._kubelet.metrics())

    def guest(self, pod: Object, volume: str) -> Guest:
        """A guest of a pod, by the name of its PersistentVolume."""
        target = self.root / "pods" / pod["metadata"]["uid"] / "volumes" / PLUGIN / volume / "mount"
        return Guest(self.run_dir, target, inside=self.machine.inside)

    def has_volumes(self, pod: Object) -> bool:
        """Whether it runs: the kubelet starts no container before all volumes are published."""
        return bool(pod.get("status", {}).get("phase") == "Running" and _container(pod))

    def run(self, pod: Object, *words: str) -> str:
        return self._containerd.run(_container(pod), *words)

    def write(self, pod: Object, name: str, text: str) -> None:
        self.run(pod, "sh", "-c", 'printf %s "$1" > "$0" && sync', f"/{name}", text)

    def read(self, pod: Object, name: str) -> str:
        return self.run(pod, "cat", f"/{name}")

    def why(self, pod: Object) -> str:
        meta = pod["metadata"]
        return "\n".join(self._plane.api.events(meta["name"], namespace=meta["namespace"]))

    def size_bytes(self, pod: Object, volume: str) -> int:
        blocks, size = self.run(pod, "stat", "-f", "-c", "%b %S", f"/{volume}").split()
        return int(blocks) * int(size)

    def write_device(self, pod: Object, volume: str, text: str) -> None:
        self.run(pod, "sh", "-c", 'printf %s "$1" | dd of="$0" conv=notrunc,fsync', f"/dev/{volume}", text)

    def read_device(self, pod: Object, volume: str, length: int) -> str:
        return self.run(pod, "dd", f"if=/dev/{volume}", f"bs={length}", "count=1")

    def tell(self) -> str:
        return f"{super().tell()}\n{self._kubelet.process.log_tail()}"


def _container(pod: Object) -> str:
    """The id of a pod's only container; empty while there is none."""
    statuses = pod.get("status", {}).get("containerStatuses") or [{}]
    return str(statuses[0].get("containerID", "")).removeprefix("containerd://")


def _is_ready(node: Object) -> bool:
    conditions = node.get("status", {}).get("conditions", [])
    return any(it["type"] == "Ready" and it["status"] == "True" for it in conditions)
