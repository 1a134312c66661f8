"""A node: a machine of its own with vendors' drivers and an agent, whose link to the hub can be cut."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

from tests.e2e.supervisors import MachineSupervisor, kept
from tests.e2e.vendors import Vendor
from tests.kit import leftovers
from tests.kit.bridge import Agent
from tests.kit.machine import Machine
from tests.kit.peers.deployment import NODE_PERIODS, Deployment
from tests.kit.peers.kube_api import Object
from tests.kit.peers.testdriver import RunningDriver, start_testdriver
from tests.peers.kubelet.recorder import Recorder
from tests.peers.kubelet.tree import EMPTY

_PLUGIN = "kubernetes.io~csi"


class Node(ABC):
    """What nodes of both kinds have.

    Args:
        bridge: whose hub the agent dials.
        peer: finds a peer's binary by name.
    """

    container: Object | None = None  # that of the agent, on a node with a kubelet
    root: Path  # the kubelet's directory, or what the agent has in its place
    relay: Path | None = None  # where the agent has a socket for each driver, for a kubelet

    def __init__(
        self, name: str, directory: Path, logs: Path, *, bridge: Deployment, peer: Callable[[str], Path]
    ) -> None:
        directory.mkdir(parents=True)
        logs.mkdir()
        self.name = name
        self.directory = directory  # for everything but logs; its path must be short
        self.logs = logs  # for the logs of its processes
        self.machine = Machine(directory, self.logs, shares=True)  # where all of the node's processes run
        self.vendors: dict[str, RunningDriver] = {}
        self.recorders: dict[str, Recorder] = {}  # what was asked of those that are watched, by name
        self._peer = peer
        self._bridge = bridge
        self._links = [bridge.start_link(to=hub) for hub in bridge.hubs]
        self._supervisors: list[MachineSupervisor] = []
        self.agent: Agent
        self._agent_command: list[str] = []

    # ---- starting and stopping ---------------------------------------------------------------------------------------

    @abstractmethod
    def start(self) -> None:
        """Boot the machine, and start what is to run there but drivers."""

    def add_vendor(self, vendor: Vendor, *, state: Path | None) -> RunningDriver:
        """Start a vendor's driver, and a registrar that announces it.

        Args:
            state: the state directory that it shares with other nodes; None for one of its own.
        """
        directory, plugin = self.directory / vendor.name, self.root / "plugins" / vendor.name
        directory.mkdir()
        plugin.mkdir(parents=True)
        supervisor = self.supervisor(vendor.name)
        endpoint = plugin / "csi.sock"
        driver = start_testdriver(
            supervisor,
            directory,
            name=vendor.name,
            node_id=self.name,
            flags=vendor.flags,
            socket=directory / "csi.sock" if vendor.watched else endpoint,
            shared_state=state,
        )
        if vendor.watched:
            self.recorders[vendor.name] = recorder = Recorder(driver.socket, look=lambda: EMPTY)
            recorder.listen(endpoint)
        registrar = [
            self._peer("registrar"),
            f"--csi-address={endpoint}",
            f"--kubelet-registration-path={self._called(vendor, endpoint)}",
            f"--plugin-registration-path={self.root / 'plugins_registry'}",
        ]
        supervisor.start("registrar", kept(registrar, file=directory / "registrar.pid"))
        self.vendors[vendor.name] = driver
        return driver

    def _called(self, vendor: Vendor, endpoint: Path) -> Path:
        return self.relay / f"{vendor.name}.sock" if vendor.relayed and self.relay is not None else endpoint

    def supervisor(self, name: str) -> MachineSupervisor:
        """A supervisor of processes on this machine, with logs of its own, who stops them with the node."""
        supervisor = MachineSupervisor(self.logs / name, self.machine)
        self._supervisors.append(supervisor)
        return supervisor

    def stop(self) -> None:
        """Stop everything; what was mounted goes with the machine."""
        for recorder in self.recorders.values():
            recorder.close()
        for supervisor in reversed(self._supervisors):
            supervisor.stop()
        if self.machine.is_on:
            self.machine.power_off()

    def power_off(self, *, loops_of: Path) -> None:
        """End everything at once: the machine has no power.

        Args:
            loops_of: the state directory of the one driver whose loop devices are this node's; no reboot leaves any.
        """
        self.agent.kill()
        for supervisor in self._supervisors:
            supervisor.stop()
        self.machine.power_off(leftovers.loops_below(loops_of))

    def boot(self) -> None:
        self.machine.boot()
        for supervisor in self._supervisors:
            supervisor.start_again()
        self.restart_agent()

    def start_agent(self, *flags: str) -> None:
        """Start the agent for the first time, on the machine, with its links between it and the hubs."""
        self.agent = self._bridge.new_agent(
            self.name,
            of=self.container,
            root=self.root,
            hubs=[link.address for link in self._links],
            directory=self.directory,
            logs=self.logs,
            flags=(*NODE_PERIODS, *flags),
        )
        self._agent_command = self.agent.process.command
        self.restart_agent()

    def restart_agent(self) -> None:
        """Start the agent again after it ended."""
        self.agent.process.command = self.machine.inside(self._agent_command)
        self.agent.start()

    # ---- the link ----------------------------------------------------------------------------------------------------

    def stall(self) -> None:
        """Let nothing through from the agent to the hubs, until `heal`."""
        self._command_links("stall up")

    def cut(self) -> None:
        """Reset the links to the hubs, and refuse new connections; returns when the agent has noticed."""
        self._command_links("cut")
        self.agent.wait_connected(False)

    def heal(self) -> None:
        """Let the agent through again; it dials when it is due."""
        self._command_links("heal")

    def _command_links(self, command: str) -> None:
        for link in self._links:
            link.command(command)

    # ---- pods' volumes -----------------------------------------------------------------------------------------------

    def seen(self, path: Path) -> Path:
        return self.machine.seen(path)

    def published(self, pod: Object, volume: str) -> Path:
        """Where a pod's volume is published, by the name of its PersistentVolume or, inline, of the pod's volume."""
        return self.seen(self.root / "pods" / pod["metadata"]["uid"] / "volumes" / _PLUGIN / volume / "mount")

    @abstractmethod
    def has_volumes(self, pod: Object) -> bool:
        """Whether all volumes of a pod are published, and it runs if anything runs pods here."""

    @abstractmethod
    def write(self, pod: Object, name: str, text: str) -> None:
        """Write a text to a file in one of the pod's volumes, and bring it to the disk; `name` is `VOLUME/FILE`."""

    @abstractmethod
    def read(self, pod: Object, name: str) -> str:
        """Read such a file."""

    @abstractmethod
    def why(self, pod: Object) -> str:
        """Why a pod does not have its volumes, in the words of whoever is to mount them."""

    def left_over(self) -> list[str]:
        found = [f"mount {path}" for path in self.machine.mounts(self.root)]
        return found + [str(path) for path in self.root.glob(f"pods/*/volumes/{_PLUGIN}/*")]

    def tell(self) -> str:
        return "\n".join([f"node {self.name}", *self.left_over(), self.agent.process.log_tail()])
