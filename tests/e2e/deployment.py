"""A deployment: the bridge and the stock sidecars as deploy/ starts them, on this machine.

The arguments, the environment and the ServiceAccounts are those of the manifests. What differs is named here: paths,
addresses and kubeconfigs, and pauses that a test would wait for (`QUICKER`, `NODE_PERIODS`).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.kit.bridge import Agent, Bridge, Hub, Proxy
from tests.kit.deployed import DEPLOY, arguments, container, with_flags
from tests.kit.ports import free_ports

if TYPE_CHECKING:
    from tests.kit.peers.control_plane import ControlPlane

SIDECARS: Final = ("csi-provisioner", "csi-attacher", "csi-resizer", "csi-snapshotter")

NODE_PERIODS: Final = ("--volume-republish-interval=2s", "--volume-stats-interval=5s")
"""Of an agent: as short as those of the tests' kubelet."""

QUICKER: Final = {"retry_interval_max": "10s"}
"""Of every sidecar: after an outage a test waits this long."""

_PROGRAM: Final = Path(sys.executable).with_name("csi-bridge")


class Deployment(Bridge):
    """See the module.

    Args:
        directory: for sockets, state and certificates; its path must be short.
        logs: for the members' logs.
        plane: the cluster, once it is started.
    """

    def __init__(self, directory: Path, logs: Path, *, plane: ControlPlane) -> None:
        super().__init__(directory, logs)
        self._plane = plane

    def install(self) -> None:
        """Give the hub and the sidecars their ServiceAccounts and roles, and start the hub."""
        self._plane.apply(DEPLOY / "cloud/base/hub-rbac.yaml")
        self._plane.apply(DEPLOY / "cloud/base/admission.yaml")
        self._plane.apply(DEPLOY / "cloud/driver/rbac.yaml")
        self.hub = Hub(self._directory, self._logs, ())
        (port,) = free_ports(1)
        self.hub.process.command = [
            str(_PROGRAM),
            *with_flags(
                arguments(container("cloud/base/hub.yaml", "hub")),
                uds=f"unix://{self.hub.uds}",
                listen=self.hub.address,
                kubeconfig=self._plane.service_account_kubeconfig("csi-bridge", "csi-bridge-hub"),
                state_dir=self.hub_state,
                http=f"127.0.0.1:{port}",
                **self._tls("hub", "127.0.0.1"),
            ),
        ]
        self._start(self.hub)

    @property
    def hub_state(self) -> Path:
        return self._directory / "hub"

    def start_proxy(self, driver: str, *flags: str, node: str | None = None, cache: bytes | None = None) -> Proxy:
        assert cache is None, "deploy/ gives it an empty directory"
        directory = self._directory / f"p{len(self._proxies)}"
        proxy = Proxy(driver, "", None, directory, self._logs, ())
        (port,) = free_ports(1)
        proxy.process.command = [
            str(_PROGRAM),
            *with_flags(
                arguments(container("cloud/driver/driver.yaml", "driver"), DRIVER_NAME=driver),
                endpoint=f"unix://{proxy.socket}",
                hub_endpoint=f"wss://{self.hub.address}",
                state_dir=proxy.cache.parent,
                http=f"127.0.0.1:{port}",
                **self._tls("driver", driver),
            ),
            *([f"--nodeid={node}"] if node else []),
            *flags,
        ]
        self._proxies.append(proxy)
        self._start(proxy)
        return proxy

    def new_agent(
        self, node: str, directory: Path, logs: Path, *, registration: str, hub: str, root: Path, flags: tuple[str, ...]
    ) -> Agent:
        """An agent that is not started yet.

        Args:
            node: its node's name.
            directory: for its state and its status.
            logs: for its log.
            registration: `observe`: as the DaemonSet starts it; `own`: as the systemd unit does.
            hub: the address that it dials.
            root: the kubelet's directory, or what is in its place.
            flags: further flags.
        """
        agent = Agent(node, hub, [], directory, logs, ())
        places = {"root_dir": root, "state_dir": directory / node, "status": f"unix://{agent.socket}"}
        places |= self._tls("edge", node)
        how = _by_daemon_set if registration == "observe" else _by_systemd
        command, environment = how(node, f"wss://{hub}", places)
        agent.process.command = [str(_PROGRAM), *command, *flags]
        agent.process.environment = {**os.environ, **environment}
        self.members.append(agent)
        return agent

    def _tls(self, role: str, name: str) -> dict[str, Any]:
        script = [str(DEPLOY / "certificates.sh"), str(self._directory / "certificates"), role, name]
        made = Path(subprocess.run(script, check=True, capture_output=True, text=True).stdout.strip())
        return {"tls_ca": made / "ca.crt", "tls_cert": made / "tls.crt", "tls_key": made / "tls.key"}


def _by_daemon_set(node: str, hub: str, places: dict[str, Any]) -> tuple[list[str], dict[str, str]]:
    """Arguments and environment of an agent on a node with a kubelet."""
    args = arguments(container("edge/base/agent.yaml", "agent"), NODE_NAME=node, HUB=hub)
    return with_flags(args, **places), {}


def _by_systemd(node: str, hub: str, places: dict[str, Any]) -> tuple[list[str], dict[str, str]]:
    """Arguments and environment of an agent on a node without one."""
    unit = (DEPLOY / "edge/csi-bridge-edge.service").read_text()
    (command,) = re.findall("^ExecStart=(.*)$", unit, re.MULTILINE)
    told = dict(re.findall("^([A-Z_]+)=(.*)$", (DEPLOY / "edge/edge.env").read_text(), re.MULTILINE))
    # systemd makes the directories of state and status, where the agent looks for them by itself.
    here = {"node": node, "hub": hub, **places}
    changed = {f"CSI_BRIDGE_EDGE_{name.upper()}": str(value) for name, value in here.items()}
    assert set(told) - set(changed) == {"CSI_BRIDGE_EDGE_DURABILITY"}
    return command.split()[1:], told | changed
