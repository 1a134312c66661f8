"""A node with the agent alone. What runs its containers is its owner's business: the tests use the published paths."""

import contextlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from cli.edge_volumes import ask
from common.errors import BridgeError
from common.pages.json_form import plain
from tests.e2e.node import Node
from tests.kit.guest import Guest
from tests.kit.peers.deployment import Deployment
from tests.kit.peers.kube_api import KubeApi, Object

_KNOWN_LIMIT_S = 60.0


class OwnNode(Node):
    """See the module, and `Node`.

    Args:
        api: the cluster, as its administrator sees it.
    """

    def __init__(
        self, name: str, directory: Path, logs: Path, *, bridge: Deployment, peer: Callable[[str], Path], api: KubeApi
    ) -> None:
        super().__init__(name, directory, logs, bridge=bridge, peer=peer)
        self.root = directory / "root"
        self.run_dir = directory / "run"
        """Where the runtime of pods with the RuntimeClass `kata` looks for its direct volumes."""
        self._api = api

    def start(self) -> None:
        """Boot the machine, start the agent, and wait until the hub has made the Node."""
        self.root.mkdir()
        self.machine.boot()
        self.start_agent("--direct-runtime=kata=go:3.20", f"--direct-run-dir={self.run_dir}")
        self._api.wait_until("Node", self.name, lambda _: True, what="made", timeout_s=_KNOWN_LIMIT_S)

    def has_volumes(self, pod: Object) -> bool:
        uid, wanted = pod["metadata"]["uid"], len(pod["spec"]["volumes"])
        states = [it["state"] for it in self.volumes() if it["uid"] == uid]
        return states == ["published"] * wanted

    def start_containers(self, pods: Iterable[Object]) -> None:
        """Say of the pods here that they run, if they have their volumes: it is no business of the agent's."""
        for pod in pods:
            conditions = pod["status"].get("conditions", [])
            is_new = pod["spec"].get("nodeName") == self.name and pod["status"]["phase"] == "Pending"
            if is_new and self.has_volumes(pod):
                ready = [{"type": it, "status": "True"} for it in ("ContainersReady", "Ready")]
                status = {"phase": "Running", "conditions": [*conditions, *ready]}
                meta = pod["metadata"]
                self._api.patch_status("Pod", meta["name"], {"status": status}, namespace=meta["namespace"])

    def guest(self, pod: Object, volume: str) -> Guest:
        (found,) = (it for it in self.volumes() if (it["uid"], it["volume"]) == (pod["metadata"]["uid"], volume))
        return Guest(self.run_dir, Path(found["path"]), inside=self.machine.inside)

    def write(self, pod: Object, name: str, text: str) -> None:
        path = self._path(pod, name)
        path.write_text(text)
        os.sync()

    def read(self, pod: Object, name: str) -> str:
        return self._path(pod, name).read_text()

    def why(self, pod: Object) -> str:
        return "\n".join(it["error"] for it in self.volumes() if it["uid"] == pod["metadata"]["uid"])

    def size_bytes(self, pod: Object, volume: str) -> int:
        found = os.statvfs(self._path(pod, volume))
        return found.f_blocks * found.f_frsize

    def write_device(self, pod: Object, volume: str, text: str) -> None:
        with self._device(pod, volume).open("r+b", buffering=0) as device:
            device.write(text.encode())
            os.fsync(device.fileno())

    def read_device(self, pod: Object, volume: str, length: int) -> str:
        with self._device(pod, volume).open("rb") as device:
            return device.read(length).decode()

    def volumes(self) -> list[Object]:
        """What the agent says of its pods' volumes; nothing while it does not answer."""
        with contextlib.suppress(BridgeError):
            found: list[Object] = plain(ask(self.agent.socket).volumes)
            return found
        return []

    def left_over(self) -> list[str]:
        """What is left of pods' volumes, on the disk and in the agent's books."""
        return super().left_over() + [f"{it['volume']} of {it['pod']} is {it['state']}" for it in self.volumes()]

    def tell(self) -> str:
        return f"{super().tell()}\n{self.volumes()}"

    def _device(self, pod: Object, volume: str) -> Path:
        """Where a block volume's device is: what the pod is given is a link to it, and true on the machine alone."""
        device = self.seen(self._path(pod, volume).readlink())
        assert device.is_block_device(), f"{device} is no block device"
        return device

    def _path(self, pod: Object, name: str) -> Path:
        volume, _, file = name.partition("/")
        (found,) = (it for it in self.volumes() if (it["uid"], it["volume"]) == (pod["metadata"]["uid"], volume))
        return self.seen(Path(found["path"])) / file if file else self.seen(Path(found["path"]))
