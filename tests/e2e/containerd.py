"""A containerd of a node's own, with everything it writes in one directory, the containers it runs, and its kubelet.

Where pods have a network of their own, notes about it are in /var/lib/cni as long as they run.

It runs in a process namespace of its own, whose first process it is: when it ends, however that happens, the kernel
ends its shims and containers. Its mounts are its own as well; the node's come to it, and none goes back, unless
containers are to mount something for the node.
"""

import itertools
import json
import random
import ssl
import subprocess
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.e2e.container_image import IMAGE
from tests.kit.processes import Process, Supervisor, listens_on
from tests.peers.kubelet.kubelet_process import Kubelet

_NAMESPACE = "k8s.io"  # containerd's namespace of whatever a kubelet runs

_APART = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")

_RUN_LIMIT_S = 240.0  # an import of images beside other clusters takes a minute

_WHOLE = "--all of it--"
"""Ends each command's output. ctr cancels its reading of the pipes when the command ends, and so may lose output."""

_MOST_RUNS = 10


class Containerd:
    """One containerd.

    Args:
        directory: for everything; its path must be short.
        tool: finds a program of Debian's packages by name.
        networked: whether pods have a network of their own; otherwise all must use the host's.
        shares: whether the node sees what containers mount for it. It needs file systems that can be stacked (overlay).
        sandbox: the image of the pods' sandboxes.
    """

    def __init__(
        self,
        directory: Path,
        *,
        tool: Callable[[str], Path],
        networked: bool = False,
        shares: bool = False,
        sandbox: str = IMAGE,
    ) -> None:
        self.socket = directory / "cri.sock"
        self._directory = directory
        self._tool = tool
        self._networked = networked
        self._propagation = "unchanged" if shares else "slave"
        self._snapshotter = "overlayfs" if shares else "native"
        self._sandbox = sandbox
        self._numbers = itertools.count(1)

    def start(self, supervisor: Supervisor, *, image: Path) -> Process:
        self._tool("runc")
        self._tool("containerd-shim-runc-v2")
        networks = self._directory / "networks"
        networks.mkdir(parents=True)
        # A network that is configured is all that a Ready node is asked for while every pod uses the host's.
        plugin = self._own_network() if self._networked else {"type": "unused"}
        network = {"cniVersion": "0.4.0", "name": "pods", "plugins": [plugin]}
        (networks / "pods.conflist").write_text(json.dumps(network))
        config = self._directory / "containerd.toml"
        config.write_text(self._configuration(networks))
        command = [*_APART, f"--propagation={self._propagation}", "--", self._tool("containerd"), f"--config={config}"]
        process = supervisor.start("containerd", command, ready=lambda: listens_on(self.socket))
        self._ctr("images", "import", f"--snapshotter={self._snapshotter}", image)
        return process

    def name_by_digest(self) -> dict[str, str]:
        """Give each image a second name, with its digest in place of its tag, as if it came from a registry.

        Returns:
            The digests by the names with tags.
        """
        lines = [line.split() for line in self._ctr("images", "list").splitlines()[1:]]
        found = {name: digest for name, _, digest, *_ in lines if "@" not in name and not name.startswith("sha256:")}
        for name, digest in found.items():
            self._ctr("images", "tag", "--force", name, f"{name.rpartition(':')[0]}@{digest}")
        return found

    def run(self, container: str, *words: str) -> str:
        """Run a command in a container, which has a shell. The command may run again: ctr stops reading when it ends.

        Returns:
            Its standard output.

        Raises:
            AssertionError: it failed, with its output; or ctr lost the output each time.
        """
        for _ in range(_MOST_RUNS):
            number = f"test-{next(self._numbers)}"
            fifos = self._directory / "fifos"
            exec_ = ("tasks", "exec", f"--fifo-dir={fifos}", f"--exec-id={number}", container)
            output = self._ctr(*exec_, "sh", "-c", '"$@" && printf %s "$0"', _WHOLE, *words)
            if output.endswith(_WHOLE):
                return output.removesuffix(_WHOLE)
        raise AssertionError(f"ctr lost the output of {words} {_MOST_RUNS} times")

    def _own_network(self) -> dict[str, object]:
        self._tool("host-local")
        # Its addresses are of a range of its own: each pod's is a route of the host's, and another may run beside.
        subnet = f"10.{random.randint(128, 254)}.{random.randint(0, 255)}.0/24"
        addresses = {
            "type": "host-local",
            "subnet": subnet,
            "dataDir": str(self._directory / "addresses"),
            "routes": [{"dst": "0.0.0.0/0"}],
        }
        return {"type": "ptp", "ipam": addresses}

    def _ctr(self, *words: object) -> str:
        command = [self._tool("ctr"), f"--address={self.socket}", f"--namespace={_NAMESPACE}", *words]
        done = subprocess.run(
            [str(word) for word in command], check=False, capture_output=True, text=True, timeout=_RUN_LIMIT_S
        )
        assert done.returncode == 0, f"ctr {words}: {done.stdout}{done.stderr}"
        return done.stdout

    def _configuration(self, networks: Path) -> str:
        criplugin = 'plugins."io.containerd.grpc.v1.cri"'
        plugins = f'bin_dir = "{self._tool("ptp").parent}"' if self._networked else ""
        return f"""
version = 2
root = "{self._directory / "containers"}"
state = "{self._directory / "state"}"
[grpc]
address = "{self.socket}"
[plugins."io.containerd.internal.v1.opt"]
path = "{self._directory / "opt"}"
[{criplugin}]
sandbox_image = "{self._sandbox}"
# Without it a container's first process may not lower its own score, and no sandbox starts.
restrict_oom_score_adj = true
stream_server_port = "0"
# They go with its directory.
netns_mounts_under_state_dir = true
[{criplugin}.containerd]
snapshotter = "{self._snapshotter}"
[{criplugin}.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
# For pods that name Kata's RuntimeClass: no guest runs here.
[{criplugin}.containerd.runtimes.kata]
runtime_type = "io.containerd.runc.v2"
[{criplugin}.cni]
conf_dir = "{networks}"
{plugins}
"""


class ContainerdKubelet(Kubelet):
    """A kubelet whose pods run.

    Args:
        directory: for everything; its path must be short.
        containerd: what runs them.
        image: the archive of all images.
        kubelet: as `Kubelet` takes it.
    """

    def __init__(self, directory: Path, *, containerd: Containerd, image: Path, **kubelet: Any) -> None:
        super().__init__(directory, **kubelet)
        self._containerd, self._image = containerd, image

    def _start_runtime(self) -> Path:
        self._containerd.start(self._supervisor, image=self._image)
        return self._containerd.socket

    def metrics(self) -> list[str]:
        """The lines of the kubelet's metrics."""
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE  # the kubelet's certificate is its own
        url = f"https://127.0.0.1:{self._port}/metrics"
        with urllib.request.urlopen(url, timeout=10.0, context=context) as answer:
            return str(answer.read(), "utf-8").splitlines()

    def _configuration(self, endpoint: str) -> dict[str, object]:
        # Who runs a command in a pod comes by the API server, which has no certificate for its kubelets.
        anybody = {"anonymous": {"enabled": True}, "webhook": {"enabled": False}}
        # One that speaks JSON with the API server can be answered by a test (`tests.e2e.edgecore_node`).
        return {**super()._configuration(endpoint), "authentication": anybody, "contentType": "application/json"}
