"""A real kubelet on loopback, with a root directory of its own and a runtime that runs nothing.

Rules:

* Its periods are shortened where it lets us: what it does stays the same, and a record takes seconds.
* It needs no cgroups and no network. All it writes is in one directory, but for empty ones in /var/lib and /var/log.
* It works in an empty directory of its own: of a container without a log path it removes "*" from where it works.
* What it left mounted is unmounted at the end, below its root and nowhere else.
"""

import json
import urllib.request
from collections.abc import Callable
from pathlib import Path

from tests.kit.leftovers import clear
from tests.kit.ports import free_ports
from tests.kit.processes import Process, Supervisor, listens_on

IMAGE = "nothing:1"  # the one image that the runtime knows

_READY_LIMIT_S = 60.0


class Kubelet:
    """One kubelet and its runtime.

    Args:
        peer: finds a peer's binary by name.
        kubeconfig: how it reaches its API server.
        supervisor: who starts both processes; its own by default.
    """

    def __init__(
        self,
        directory: Path,
        *,
        peer: Callable[[str], Path],
        node: str,
        kubeconfig: Path,
        supervisor: Supervisor | None = None,
    ) -> None:
        self.directory = directory  # for everything; its path must be short, sockets lie in it
        self.node = node
        self.root = directory / "root"
        self._peer = peer
        self._kubeconfig = kubeconfig
        self._supervisor = supervisor or Supervisor(directory / "logs")
        self._port, self._healthz_port = free_ports(2)
        self._process: Process | None = None

    @property
    def process(self) -> Process:
        assert self._process is not None, "the kubelet was not started"
        return self._process

    @property
    def workplace(self) -> Path:
        return self.directory / "empty"

    def start(self) -> None:
        """Start both, and wait until the kubelet takes pods."""
        self.root.mkdir(parents=True)
        endpoint = f"unix://{self._start_runtime()}"
        config = self.directory / "kubelet.json"
        config.write_text(json.dumps(self._configuration(endpoint), indent=2))
        self.workplace.mkdir()
        command = [
            "env",
            f"--chdir={self.workplace}",
            self._peer("kubelet"),
            f"--config={config}",
            f"--kubeconfig={self._kubeconfig}",
            f"--cert-dir={self.directory / 'pki'}",
            f"--hostname-override={self.node}",
            "--v=2",
            *self._flags(),
        ]
        self._process = self._supervisor.start("kubelet", command, ready=self._healthy, timeout_s=_READY_LIMIT_S)

    def kill(self) -> None:
        """End the kubelet at once; pods stay as they are."""
        self.process.kill()

    def start_again(self) -> None:
        """Start a kubelet that was killed."""
        self.process.start()
        self.process.wait_until(self._healthy, what="health", timeout_s=_READY_LIMIT_S)

    def stop(self) -> None:
        self._supervisor.stop()
        clear(self.directory)

    def _start_runtime(self) -> Path:
        socket = self.directory / "cri.sock"
        command = [self._peer("fakeruntime"), f"--endpoint=unix://{socket}", f"--image={IMAGE}"]
        self._supervisor.start("fakeruntime", command, ready=lambda: listens_on(socket))
        return socket

    def _flags(self) -> list[str]:
        """Flags that another kind of kubelet may need otherwise."""
        return [f"--root-dir={self.root}"]

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._healthz_port}/healthz", timeout=2.0) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def _configuration(self, endpoint: str) -> dict[str, object]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "containerRuntimeEndpoint": endpoint,
            "address": "127.0.0.1",
            "port": self._port,
            "healthzBindAddress": "127.0.0.1",
            "healthzPort": self._healthz_port,
            "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            # No cgroups, no limits, nothing that depends on how full the machine is.
            "failCgroupV1": False,
            "cgroupDriver": "cgroupfs",
            "cgroupsPerQOS": False,
            "enforceNodeAllocatable": [],
            "failSwapOn": False,
            "localStorageCapacityIsolation": False,
            "evictionHard": {"memory.available": "1Mi"},
            "podLogsDir": str(self.directory / "pod-logs"),
            # Shorter than upstream's 1 min, 10 s and 1 min: pods are looked at again, volumesInUse is reported and
            # volumes are measured soon.
            "syncFrequency": "2s",
            "nodeStatusUpdateFrequency": "1s",
            "volumeStatsAggPeriod": "5s",
        }
