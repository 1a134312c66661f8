"""A tunnel: a whole bridge in front of one vendor's socket, with a link that can be cut."""

import urllib.request
from pathlib import Path

from tests.kit.bridge import Bridge, Member
from tests.kit.operator import node_state
from tests.kit.peers import csi_client
from tests.kit.ports import free_ports
from tests.kit.waiting import wait_for

_REDIAL_LIMIT_S = 60.0  # an agent dials again at least every 30 s (`common.links.uplink`), and the machine may be busy


class Tunnel:
    """One hub, one proxy driver, and one edge agent behind a lab link.

    Args:
        bridge: to which the members are added, and who stops them.
        driver: the vendor driver's name.
        vendor: the vendor's socket.
        node: the edge node's name.

    Attributes:
        hub, agent, proxy: the processes, for tests that kill one.
    """

    def __init__(self, bridge: Bridge, *, driver: str, vendor: Path) -> None:
        self._bridge, self._vendor = bridge, vendor
        self.in_hub = bool(bridge.serves)  # whether the proxy driver runs inside the hub
        self._http = dict(zip(("hub", "agent", "proxy"), free_ports(3), strict=True))
        self.hub = bridge.start_hub(self._http_flag("hub"))
        self._directory = self.hub.uds.parent
        self._link = bridge.start_link()
        self.agent = bridge.start_agent("edge-1", vendor, flags=[self._http_flag("agent")], through=self._link.address)
        self.proxy = bridge.start_proxy(driver, self._http_flag("proxy"))
        self.socket = self.proxy.socket  # the proxy driver's CSI socket, which sidecars call
        self.wait_until_known()
        self.wait_until_up()

    # ---- the link ----------------------------------------------------------------------------------------------------

    def cut(self) -> None:
        """Reset the agent's connection and refuse new ones; returns when agent and hub have noticed."""
        self._link.command("cut")
        self.agent.wait_connected(False)
        wait_for(
            lambda: not node_state(self.hub.uds, self.agent.node)["connected"],
            what=f"end of the hub's link to {self.agent.node}",
            instead=self.hub.process.log_tail,
        )

    def silence(self) -> None:
        """Lose the agent's connection without telling either end, as a NAT that forgot it; a new one gets through."""
        self._link.command("rebind")

    def heal(self) -> None:
        """Let the agent through again. It dials when it is due, so this does not wait: `wait_until_up` does."""
        self._link.command("heal")

    # ---- signs of life -----------------------------------------------------------------------------------------------

    def wait_until_known(self) -> None:
        """Wait until the proxy driver is ready to be asked who it is."""
        self.proxy.process.wait_until(
            lambda: csi_client.is_ready(csi_client.probe(self.socket)), what="Identity of the vendor's driver"
        )

    def wait_until_up(self) -> None:
        """Wait until a call reaches the vendor and comes back."""
        wait_for(
            lambda: csi_client.vendor_answers(self.socket),
            what="answer of the vendor's through the bridge",
            timeout_s=_REDIAL_LIMIT_S,
            instead=self._bridge.log_tails,
        )

    def log_tails(self) -> str:
        return self._bridge.log_tails()

    def calls_in_flight(self) -> dict[str, int]:
        """How many calls each process has taken and not yet answered, by its own metrics."""
        return {name: _gauge(self._http[name], "csi_bridge_calls_in_flight") for name in self._processes}

    # ---- the end -----------------------------------------------------------------------------------------------------

    def stop(self) -> dict[str, int]:
        """Ask all to end (SIGTERM), whoever calls first.

        Returns:
            The exit status of each.
        """
        statuses = {}
        for name, member in self._processes.items():
            member.ask_to_stop()
            statuses[name] = member.process.wait_exit()
        return statuses

    def leftovers(self) -> list[str]:
        """What they have left behind at their end: sockets other than the vendor's, and complaints of Python's."""
        sockets = [str(path) for path in self._directory.rglob("*") if path.is_socket() and path != self._vendor]
        complaints = [
            f"{member.process.name}: {line}"
            for member in self._processes.values()
            for line in member.process.output().splitlines()
            if not line.startswith("{") or "never retrieved" in line or "was destroyed" in line
        ]
        return sockets + complaints

    @property
    def _processes(self) -> dict[str, Member]:
        inside: dict[str, Member] = {"agent": self.agent, "hub": self.hub}
        return inside if self.in_hub else {"proxy": self.proxy, **inside}

    def _http_flag(self, name: str) -> str:
        return f"--http=127.0.0.1:{self._http[name]}"


def _gauge(port: int, name: str) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5.0) as answer:
        lines = answer.read().decode().splitlines()
    (value,) = (line.split()[1] for line in lines if line.startswith(f"{name} "))
    return int(float(value))
