"""Nodes of the installed cluster: machines whose /etc, /opt, /run and /var/lib are their own."""

import os
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.e2e.containerd import Containerd, ContainerdKubelet
from tests.e2e.installed.images import BIN
from tests.e2e.installed.network import add_address
from tests.e2e.supervisors import MachineSupervisor
from tests.kit import leftovers
from tests.kit.machine import Machine
from tests.kit.processes import Process

_OWN = ("opt", "run", "var/lib")
_ROOT = Path("/var/lib/kubelet")
_LIMIT_S = 60.0


class Node:
    """A machine that is on.

    Args:
        directory: for everything but logs; its path must be short.
        logs: for the logs of its processes.
        dns: the address of the cluster's DNS.
    """

    def __init__(self, name: str, directory: Path, logs: Path, *, dns: str) -> None:
        self.name, self.directory = name, directory
        logs.mkdir(parents=True)
        directory.mkdir(parents=True)
        self.resolv_conf = directory / "etc/resolv.conf"
        self.machine = Machine(directory, logs, shares=True)
        self.supervisor = MachineSupervisor(logs, self.machine)
        shutil.copytree("/etc", directory / "etc", symlinks=True, ignore_dangling_symlinks=True)
        self.resolv_conf.unlink(missing_ok=True)
        self.resolv_conf.write_text(f"nameserver {dns}\n")
        for path in _OWN:
            (directory / path).mkdir(parents=True)
        (directory / "opt/csi-bridge").symlink_to(BIN.parent)

    def boot(self) -> None:
        self.machine.boot()
        for path in ("etc", *_OWN):
            self.run("mount", "--bind", str(self.directory / path), f"/{path}")

    def run(self, *words: str) -> str:
        command = self.machine.inside(words)
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_LIMIT_S)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def type(self, commands: str, where: Path) -> str:
        return self.run("sh", "-c", f"set -e; cd {shlex.quote(str(where))}; {commands}")

    def path(self, path: str) -> Path:
        """Where the test finds a file of the node's own folders."""
        return self.directory / path.lstrip("/")

    def stop(self) -> None:
        self.supervisor.stop()
        if self.machine.is_on:
            self.machine.power_off()
        leftovers.clear(self.directory)


class KubeletNode(Node):
    """A machine with a kubelet and containerd.

    Args:
        address: its own, of the test's network.
        peer: finds a peer's binary by name.
        tool: finds a program of Debian's packages by name.
        image: the archive of all images.
        sandbox: the image of the pods' sandboxes.
    """

    digests: dict[str, str]  # the digest of each image, by its name; once it has booted

    def __init__(
        self,
        name: str,
        directory: Path,
        logs: Path,
        *,
        dns: str,
        address: str,
        peer: Callable[[str], Path],
        tool: Callable[[str], Path],
        kubeconfig: Path,
        image: Path,
        sandbox: str,
    ) -> None:
        super().__init__(name, directory, logs, dns=dns)
        self._address = address
        self._containerd = Containerd(directory, tool=tool, networked=True, shares=True, sandbox=sandbox)
        self.kubelet = _Kubelet(
            directory, peer=peer, node=name, kubeconfig=kubeconfig, supervisor=self.supervisor,
            containerd=self._containerd, image=image, address=address, dns=dns, resolv_conf=self.resolv_conf,
        )  # fmt: skip

    def boot(self) -> None:
        super().boot()
        add_address(self._address)
        self.kubelet.start()
        self.digests = self._containerd.name_by_digest()


class _Kubelet(ContainerdKubelet):
    """A kubelet whose root directory is where everybody looks for it."""

    def __init__(self, directory: Path, *, address: str, dns: str, resolv_conf: Path, **kubelet: Any) -> None:
        super().__init__(directory, **kubelet)
        self._address, self._dns, self._resolv_conf = address, dns, resolv_conf
        self.root = directory / "var/lib/kubelet"

    def _flags(self) -> list[str]:
        return [f"--root-dir={_ROOT}", f"--node-ip={self._address}"]

    def _configuration(self, endpoint: str) -> dict[str, object]:
        return {
            **super()._configuration(endpoint),
            "address": self._address,
            "clusterDNS": [self._dns],
            "clusterDomain": "cluster.local",
            "resolvConf": str(self._resolv_conf),
        }


class OwnNode(Node):
    """A machine without a kubelet. What its owner starts is started as systemd would."""

    def start_unit(self, name: str) -> Process:
        """Start a unit of /etc/systemd/system, with the settings of its EnvironmentFile."""
        unit = dict(_assignments(self.path(f"etc/systemd/system/{name}.service")))
        told = dict(_assignments(self.path(unit["EnvironmentFile"])))
        _, *words = unit["ExecStart"].split()
        self.path(f"run/{unit['RuntimeDirectory']}").mkdir(exist_ok=True)
        self.path(f"var/lib/{unit['StateDirectory']}").mkdir(parents=True, exist_ok=True)
        return self.supervisor.start(
            name, ["/opt/csi-bridge/bin/csi-bridge", *words], environment={**os.environ, **told}
        )


def _assignments(path: Path) -> list[tuple[str, str]]:
    lines = [it for it in path.read_text().splitlines() if "=" in it and not it.startswith("#")]
    return [(name, value) for name, _, value in (it.partition("=") for it in lines)]
