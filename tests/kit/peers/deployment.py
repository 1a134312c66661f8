"""A deployment: the bridge as deploy/ starts it, on this machine.

The arguments, the environment and the ServiceAccounts are those of the manifests. What differs is named here: paths,
addresses and kubeconfigs, and pauses that a test would wait for (`QUICKER`, `NODE_PERIODS`).
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from tests.kit.bridge import PATIENT, Agent, Bridge, Hub, Proxy, Served
from tests.kit.deployed import (
    DEPLOY,
    WITH_FILES,
    arguments,
    container,
    driver_roles,
    hub_roles,
    policies,
    with_flags,
)
from tests.kit.peers.control_plane import ControlPlane
from tests.kit.ports import free_ports

Object = dict[str, Any]

SIDECARS: Final = ("csi-provisioner", "csi-attacher", "csi-resizer", "csi-snapshotter")

NODE_PERIODS: Final = ("--volume-republish-interval=2s", "--volume-stats-interval=5s")
"""Of an agent: as short as those of the tests' kubelet."""

QUICKER: Final = {"retry_interval_max": "10s"}  # of every sidecar: after an outage a test waits this long

SHORT_LEASE: Final = (
    "--leader-election-namespace=csi-bridge",
    "--leader-election-lease-duration=4s",
    "--leader-election-renew-deadline=3s",
    "--leader-election-retry-period=500ms",
)
"""Of each of several hubs: a test waits until another one leads."""

_PROGRAM: Final = Path(sys.executable).with_name("csi-bridge")


class Deployment(Bridge):
    def __init__(self, directory: Path, logs: Path) -> None:
        super().__init__(directory, logs)
        self.hubs: list[Hub] = []  # the hubs; `hub` is the first

    @property
    def hub_state(self) -> Path:
        return self._directory / "hub"

    def install(
        self,
        plane: ControlPlane,
        hubs: int = 1,
        edgecore: bool = False,
        kept: Callable[[Hub], None] | None = None,
    ) -> None:
        """Give hubs and sidecars their ServiceAccounts and roles in a cluster, and start the hubs that follow it.

        Args:
            plane: the cluster's control plane.
            hubs: how many.
            edgecore: whether the hub writes the CSINodes of nodes with EdgeCore.
            kept: may change how each of several hubs is started.
        """
        values = {**WITH_FILES, "hub": {**WITH_FILES["hub"], "edgecoreNodes": edgecore}}
        plane.apply([*hub_roles(), *driver_roles(), *policies(values)])
        kubeconfig = plane.service_account_kubeconfig("csi-bridge", "csi-bridge-hub")
        for _ in range(hubs):
            self.start_hub_of(
                container("hub", values),
                kubeconfig=kubeconfig,
                flags=PATIENT if hubs == 1 else SHORT_LEASE,
                kept=kept,
            )

    def start_hub_of(
        self,
        hub: Object,
        *,
        kubeconfig: Path | None = None,
        serves: str = "",
        flags: Sequence[str] = PATIENT,
        kept: Callable[[Hub], None] | None = None,
    ) -> None:
        """Start a hub.

        Args:
            hub: its container.
            kubeconfig: how it reaches the cluster that it follows; None: there is none.
            serves: the driver that it serves itself; `start_proxy` then returns that proxy driver.
            flags: further flags.
            kept: may change how it is started.
        """
        socket, self.serves = self._directory / "served.sock", serves
        directory, logs = self._directory, self._logs
        if self.hubs:
            directory, logs = (it / f"hub-{len(self.hubs)}" for it in (directory, logs))
            directory.mkdir()
            logs.mkdir()
        new = Hub(directory, logs, (), sockets=[socket] if serves else [])
        self.hubs.append(new)
        self.hub = self.hubs[0]
        changed: dict[str, object] = {
            "uds": f"unix://{new.uds}",
            "listen": new.address,
            "kubeconfig": kubeconfig,
            "state_dir": directory / "hub",
            "http": (http := _free_address()),
            **self._tls("hub", "127.0.0.1"),
            **({"serve": f"{serves}=unix://{socket}"} if serves else {}),
        }
        args = with_flags(arguments(hub), **changed)
        if kubeconfig is None:
            args.remove("--kubeconfig=None")
        new.process.command = [str(_PROGRAM), *args, *flags]
        new.http = http
        if kept is not None:
            kept(new)
        self._start(new)
        if serves:
            self._served = Served(serves, self.hub, socket)
            self._proxies.append(self._served)

    def start_proxy(self, driver: str, *flags: str, node: str | None = None, cache: bytes | None = None) -> Proxy:
        assert cache is None, "deploy/ gives it an empty directory"
        if self._served is not None:
            return super().start_proxy(driver)
        directory = self._directory / f"p{len(self._proxies)}"
        proxy = Proxy(driver, "", None, directory, self._logs, ())
        proxy.process.command = [
            str(_PROGRAM),
            *with_flags(
                arguments(container("driver")),
                drivername=driver,
                endpoint=f"unix://{proxy.socket}",
                hub_endpoint=f"wss://{self.hub.address}",
                state_dir=proxy.cache.parent,
                http=_free_address(),
                **self._tls("driver", driver),
            ),
            *(f"--hub-endpoint=wss://{it.address}" for it in self.hubs[1:]),
            *([f"--nodeid={node}"] if node else []),
            *flags,
        ]
        self._proxies.append(proxy)
        self._start(proxy)
        return proxy

    def new_agent(
        self,
        node: str,
        *,
        of: Object | None,
        root: Path,
        hubs: Sequence[str] = (),
        directory: Path | None = None,
        logs: Path | None = None,
        flags: Sequence[str] = (),
        **changed: object,
    ) -> Agent:
        """An agent that is not started yet.

        Args:
            of: its container, as on a node with a kubelet; None: it is that of the systemd unit.
            root: the kubelet's directory, or what is in its place.
            hubs: the addresses that it dials, if not those of the hubs.
            directory: for its state and its status, if not the deployment's.
            logs: for its log, if not the deployment's.
            flags: further flags.
            changed: flags of the container with other values.
        """
        directory = directory or self._directory
        address = " ".join(f"wss://{it}" for it in hubs or [it.address for it in self.hubs])
        agent = Agent(node, "", [], directory, logs or self._logs, ())
        changed |= {"root_dir": root, "state_dir": directory / node, "status": f"unix://{agent.socket}"}
        changed |= self._tls("edge", node)
        if of is None:
            command, environment = _by_systemd(node, address, changed)
        else:
            command = with_flags(arguments(of, NODE_NAME=node), **changed)
            environment = {"CSI_BRIDGE_EDGE_HUB": address}
        agent.process.command = [str(_PROGRAM), *command, *flags]
        agent.process.environment = {**os.environ, **environment}
        self.members.append(agent)
        return agent

    def _tls(self, role: str, name: str) -> dict[str, Any]:
        script = [str(DEPLOY / "certificates.sh"), str(self._directory / "certificates"), role, name]
        made = Path(subprocess.run(script, check=True, capture_output=True, text=True).stdout.strip())
        return {"tls_ca": made / "ca.crt", "tls_cert": made / "tls.crt", "tls_key": made / "tls.key"}


def _free_address() -> str:
    (port,) = free_ports(1)
    return f"127.0.0.1:{port}"


def _by_systemd(node: str, hub: str, places: dict[str, object]) -> tuple[list[str], dict[str, str]]:
    """Arguments and environment of an agent on a node without a kubelet."""
    unit = (DEPLOY / "edge/csi-bridge-edge.service").read_text()
    (command,) = re.findall("^ExecStart=(.*)$", unit, re.MULTILINE)
    told = dict(re.findall("^([A-Z_]+)=(.*)$", (DEPLOY / "edge/edge.env").read_text(), re.MULTILINE))
    # systemd makes the directories of state and status, where the agent looks for them by itself.
    here = {"node": node, "hub": hub, **places}
    changed = {f"CSI_BRIDGE_EDGE_{name.upper()}": str(value) for name, value in here.items()}
    assert set(told) - set(changed) == {"CSI_BRIDGE_EDGE_DURABILITY"}
    return command.split()[1:], told | changed
