"""A bridge in front of one vendor socket: hub, proxy driver and edge agent as processes, and the link between them."""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import urllib.request
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc

from tests.lab.remote import RemoteLink
from tests.peers.support import csi_client
from tests.peers.support.ports import free_ports
from tests.peers.support.processes import listens_on
from tests.peers.support.waiting import wait_for

if TYPE_CHECKING:
    from tests.peers.support.processes import Process, Supervisor

_PROGRAM = Path(sys.executable).with_name("csi-bridge")

_REDIAL_LIMIT_S = 45.0
"""An agent dials again at least every 30 s (`common.uplink`), and the machine may be busy."""


class Bridge:
    """One hub, one proxy driver, and one edge agent behind a link that can be cut.

    Args:
        supervisor: who stops the processes.
        directory: for sockets and state; its path must be short.
        driver: the vendor driver's name.
        vendor: the vendor's socket.
        node: the edge node's name.

    Attributes:
        hub, agent, proxy: the processes, for tests that kill one.
        socket: the proxy driver's CSI socket, which sidecars call.
    """

    hub: Process
    agent: Process
    proxy: Process

    def __init__(
        self, supervisor: Supervisor, directory: Path, *, driver: str, vendor: Path, node: str = "edge-1"
    ) -> None:
        self.driver, self.vendor, self.node = driver, vendor, node
        self.socket = directory / "csi.sock"
        self._supervisor, self._directory = supervisor, directory
        self._uds, self._status = directory / "hub.sock", directory / "edge.sock"
        self._link: RemoteLink | None = None
        self._http: dict[str, int] = {}

    def start(self) -> None:
        """Start all of it, and wait until the proxy driver knows the vendor's driver."""
        (port, *http) = free_ports(4)
        self._http = dict(zip(("hub", "agent", "proxy"), http, strict=True))
        self.hub = self._supervisor.start(
            "hub",
            [
                _PROGRAM,
                "hub",
                f"--uds=unix://{self._uds}",
                f"--listen=127.0.0.1:{port}",
                "--insecure",
                f"--state-dir={self._directory / 'hub'}",
                f"--http=127.0.0.1:{self._http['hub']}",
            ],
            ready=lambda: listens_on(self._uds) and listens_on(port),
        )
        self._link = RemoteLink(to=f"127.0.0.1:{port}")
        self.agent = self._supervisor.start(
            "agent",
            [
                _PROGRAM,
                "edge",
                "run",
                f"--node={self.node}",
                f"--hub=ws://{self._link.address}",
                "--insecure",
                f"--driver=unix://{self.vendor}",
                f"--state-dir={self._directory / 'edge'}",
                f"--status=unix://{self._status}",
                f"--http=127.0.0.1:{self._http['agent']}",
            ],
        )
        self.proxy = self._supervisor.start(
            "proxy",
            [
                _PROGRAM,
                "driver",
                f"--drivername={self.driver}",
                f"--endpoint=unix://{self.socket}",
                f"--hub-endpoint=unix://{self._uds}",
                f"--state-dir={self._directory / 'proxy'}",
                f"--http=127.0.0.1:{self._http['proxy']}",
            ],
        )
        self.wait_until_known()
        self.wait_until_up()

    def stop(self) -> None:
        """End the link; the processes end with their supervisor."""
        if self._link is not None:
            self._link.close()

    # ---- the link ----------------------------------------------------------------------------------------------------

    def cut(self) -> None:
        """Reset the agent's connection and refuse new ones; returns when the agent has noticed."""
        assert self._link is not None
        self._link.command("cut")
        wait_for(lambda: not self.status()["connected"], what="end of the agent's link", instead=self.agent.log_tail)

    def heal(self) -> None:
        """Let the agent through again. It dials when it is due, so this does not wait: `wait_until_up` does."""
        assert self._link is not None
        self._link.command("heal")

    # ---- signs of life -----------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """What the agent says of itself on its status socket."""
        connection = _UnixConnection(self._status)
        with contextlib.closing(connection):
            connection.request("GET", "/status")
            state: dict[str, Any] = json.loads(connection.getresponse().read())
        return state

    def calls_in_flight(self) -> dict[str, int]:
        """How many calls each of the three processes has taken and not yet answered, by its own metrics."""
        return {name: self._gauge(port, "csi_bridge_calls_in_flight") for name, port in self._http.items()}

    def wait_until_known(self) -> None:
        """Wait until the proxy driver is ready to be asked who it is."""
        self.proxy.wait_until(self._is_known, what="Identity of the vendor's driver")

    def wait_until_up(self) -> None:
        """Wait until a call reaches the vendor and comes back."""
        wait_for(
            lambda: csi_client.vendor_answers(self.socket),
            what="answer of the vendor's through the bridge",
            timeout_s=_REDIAL_LIMIT_S,
            instead=self.log_tails,
        )

    def log_tails(self) -> str:
        """The ends of all three logs."""
        return "\n".join(process.log_tail() for process in (self.hub, self.proxy, self.agent))

    def _gauge(self, port: int, name: str) -> int:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5.0) as answer:
            lines = answer.read().decode().splitlines()
        (value,) = (line.split()[1] for line in lines if line.startswith(f"{name} "))
        return int(float(value))

    def _is_known(self) -> bool:
        try:
            return csi_client.probe(self.socket)
        except grpc.RpcError:
            return False


class _UnixConnection(HTTPConnection):
    """HTTP over a UNIX socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("edge", timeout=5.0)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))
