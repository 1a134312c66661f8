"""An edge node without a kubelet: hub with manifests, agent with a root directory, and a vendor's driver.

    with EdgeNode(short_dir, tmp_path) as node:
        node.start()
        handle = node.make_volume("data")
        node.write(*volume("data", handle), pod("web", "data"), file="web")
        node.wait_published("web")

Everything is a process of its own. Nothing stays mounted afterwards, even if the test fails.
"""

import contextlib
import json
import os
import subprocess
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Self

import yaml

from cli.edge_volumes import ask
from common.csi import csi_pb2 as csi
from common.errors import BridgeError
from common.net.settings import INSECURE
from common.pages.json_form import plain
from common.store.fault_points import VARIABLE
from edge.volumes import attachment_name
from tests.kit.bridge import Agent, Bridge
from tests.kit.machine import Machine
from tests.kit.operator import hub_state
from tests.kit.peers.testdriver import RunningDriver, start_testdriver
from tests.kit.processes import Process, Supervisor, listens_on
from tests.kit.sidecar import Sidecar
from tests.kit.testdriver.call_log import Call
from tests.kit.waiting import wait_for

Object = dict[str, Any]

NODE = "n1"
DRIVER = "dirdriver.csi"
_LIMIT_S = 30.0
_MIB = 1 << 20


class EdgeNode:
    """The node; a context manager."""

    driver: RunningDriver  # the vendor's driver
    agent: Agent

    def __init__(self, directory: Path, logs: Path, *, reboots: bool = False) -> None:
        """Make a node with nothing running.

        Args:
            directory: for all files, with a path short enough for sockets.
            logs: for the processes' logs.
            reboots: it gets a mount namespace of its own, and can be switched off.
        """
        self.machine = Machine(directory, logs) if reboots else None  # runs agent and driver, if it can be switched off
        self.directory = directory
        self.root = directory / "kubelet"
        self.manifests = directory / "manifests"  # the directory from which the hub reads the objects
        self.manifests.mkdir()
        self.bridge = Bridge(directory, logs)  # hub and agent
        self._logs = logs
        self._supervisor = _VendorSupervisor(logs / "vendor", self.machine)
        self._flags: tuple[str, ...] = ()
        self._commands: dict[Process, list[str]] = {}  # the command of each process, without the machine's

    def start(self, *flags: str, driver_flags: Iterable[str] = ("--no-attach",), hub_flags: Iterable[str] = ()) -> None:
        """Start vendor, hub and agent. Wait until the driver is registered and the agent has the hub's objects."""
        if self.machine is not None:
            self.machine.boot()
        self.start_vendor(driver_flags)
        self.write(csi_driver(attach="--no-attach" not in driver_flags), file="driver")
        self.bridge.start_hub(f"--manifests={self.manifests}", *hub_flags)
        self.start_agent(*flags)

    def start_vendor(self, flags: Iterable[str]) -> None:
        """Start the vendor's driver for the first time."""
        self.driver = start_testdriver(self._supervisor, self.directory, name=DRIVER, node_id=NODE, flags=tuple(flags))

    def start_agent(self, *flags: str, wait: bool = True) -> None:
        """Start the agent for the first time."""
        self._flags = (f"--root-dir={self.root}", *flags)
        hub, sockets = self.bridge.hub.address, [self.driver.socket]
        self.agent = Agent(NODE, hub, sockets, self.directory, self._logs, self._flags)
        self.bridge.members.append(self.agent)
        self._commands = {self.agent.process: self.agent.process.command}
        self._start(self.agent.process)
        if wait:
            self.agent.wait_ready()
        if wait:
            self.wait_told()

    def restart_agent(self, *, fault_point: str = "", wait: bool = True) -> None:
        """Start the agent again, after it ended; with a fault point it dies there."""
        environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
        self.agent.process.environment = environment | ({VARIABLE: fault_point} if fault_point else {})
        self._start(self.agent.process)
        if wait:
            self.agent.wait_ready()

    def drop_flags(self, start: str) -> None:
        """Leave the agent's flags that begin so out at its next start."""
        words = self._commands[self.agent.process]
        self._commands[self.agent.process] = [word for word in words if not word.startswith(start)]

    def start_driver(self) -> None:
        """Start the vendor's driver again, after it ended."""
        self._commands.setdefault(self.driver.process, self._supervisor.own_commands[0])
        self._start(self.driver.process)
        self.driver.process.wait_until(lambda: listens_on(self.driver.socket), what="being ready")

    def power_off(self) -> None:
        """Kill agent and driver, and remove all mounts and loop devices, as a power cut does."""
        assert self.machine is not None
        self.agent.kill()
        self.driver.process.kill()
        self.machine.power_off(self._loop_devices())

    def boot(self, *, driver: bool = True, wait: bool = True) -> None:
        """Start the machine, the driver and the agent.

        Args:
            driver: start the driver too; False: the test starts it.
            wait: wait until the agent serves.
        """
        assert self.machine is not None
        self.machine.boot()
        if driver:
            self.start_driver()
        self.restart_agent(wait=wait)

    def seen(self, path: Path) -> Path:
        return self.machine.seen(path) if self.machine is not None else path

    def _start(self, process: Process) -> None:
        command = self._commands[process]
        process.command = self.machine.inside(command) if self.machine is not None else list(command)
        process.start()

    # ---- objects -----------------------------------------------------------------------------------------------------

    def make_volume(self, name: str, *, size_bytes: int = 16 * _MIB, block: bool = False, shared: bool = False) -> str:
        mode = "MULTI_NODE_MULTI_WRITER" if shared else "SINGLE_NODE_WRITER"
        capability = csi.VolumeCapability(access_mode={"mode": mode}, **({"block": {}} if block else {"mount": {}}))
        request = csi.CreateVolumeRequest(
            name=name, capacity_range={"required_bytes": size_bytes}, volume_capabilities=[capability]
        )
        with Sidecar(self.driver.socket) as sidecar:
            outcome = sidecar.call("CreateVolume", request)
        assert outcome.ok, outcome.refusal
        return str(outcome.answer.volume.volume_id)

    def write(self, *objects: Object, file: str) -> None:
        """Write objects to a file of the manifests; replaces its content."""
        new = self.manifests / f".{file}.new"
        new.write_text(yaml.safe_dump_all(objects) or "# nothing\n")  # an empty file is broken
        new.replace(self.manifests / f"{file}.yaml")

    def remove(self, file: str) -> None:
        (self.manifests / f"{file}.yaml").unlink()

    # ---- state -------------------------------------------------------------------------------------------------------

    def state(self) -> Object:
        state: Object = plain(ask(self.agent.socket))
        return state

    def volumes(self, pod: str) -> list[Object]:
        """Return the agent's report of one pod's volumes; none while the agent does not answer."""
        with contextlib.suppress(BridgeError):
            return [volume for volume in self.state()["volumes"] if volume["pod"] == pod]
        return []

    def problems(self) -> list[str]:
        """Return the problems that the hub reports, without the warning of --insecure."""
        return [problem for problem in hub_state(self.bridge.hub.uds)["problems"] if problem != INSECURE]

    def wait_told(self) -> None:
        self._wait(lambda: self.state()["as_of"] is not None, "word of the hub's")

    def wait_published(self, pod: str, *, count: int = 1, timeout_s: float = _LIMIT_S) -> list[Path]:
        def look() -> list[Object]:
            found = self.volumes(pod)
            return found if len(found) == count and all(each["state"] == "published" for each in found) else []

        found = wait_for(look, what=f"published volume of {pod}", timeout_s=timeout_s, instead=self.tell)
        return [Path(each["path"]) for each in sorted(found, key=lambda each: str(each["volume"]))]

    def wait_clean(self, *, timeout_s: float = _LIMIT_S) -> None:
        """Wait until nothing is left of any volume: no mount, no file, no loop device, no row."""
        wait_for(lambda: not self.left_over(), what="clean node", timeout_s=timeout_s, instead=self.tell)

    def left_over(self) -> list[str]:
        found = [f"mount {path}" for path in self.mounts()]
        own = self.root / "plugins/kubernetes.io/csi"
        try:
            places = [*self.root.glob("pods/*"), *own.glob("*/*"), *own.glob("volumeDevices/*/*")]
        except FileNotFoundError as error:  # a directory went while it was listed
            return [str(error)]
        kept = {own / "volumeDevices" / each for each in ("staging", "publish")}
        found += [str(path.relative_to(self.root)) for path in places if path not in kept]
        found += [f"loop device of {line}" for line in self._loops()]
        try:
            found += [f"row {volume['volume']} is {volume['state']}" for volume in self.state()["volumes"]]
        except BridgeError as error:  # whether there are rows is unknown
            found.append(str(error))
        return found

    def mounts(self) -> list[str]:
        """Return the mount points below the root directory, in the order in which they were mounted."""
        if self.machine is not None:
            return self.machine.mounts(self.root)
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
        return [path for line in lines if (path := line.split(" ")[4]).startswith(f"{self.root}/")]

    def wipe_mounts(self) -> None:
        if mounts := self.mounts():
            # An umount that outlives the driver may be first.
            subprocess.run(["umount", "--lazy", *reversed(mounts)], check=False)

    def calls(self) -> list[Call]:
        """Return the calls to the vendor's Node service that change something, in the order in which they began."""
        methods = (
            "NodeStageVolume",
            "NodePublishVolume",
            "NodeUnpublishVolume",
            "NodeUnstageVolume",
            "NodeExpandVolume",
        )
        return sorted((call for method in methods for call in self.driver.calls(method)), key=lambda call: call.start)

    def _loops(self) -> list[str]:
        return [file for _, file in self._attached() if file.startswith(str(self.root))]

    def _loop_devices(self) -> list[str]:
        """Return the loop devices on files of this node and on its other loop devices; holders come first."""
        found = [(device, file) for device, file in self._attached() if file.startswith(str(self.directory))]
        return [device for device, _ in sorted(found, key=lambda one: not one[1].startswith(str(self.root)))]

    def _attached(self) -> list[tuple[str, str]]:
        listed = subprocess.run(["losetup", "--list", "--noheadings", "--output=NAME,BACK-FILE"], check=True,
                                capture_output=True, text=True)  # fmt: skip
        return [(name, file.strip()) for line in listed.stdout.splitlines() for name, _, file in [line.partition(" ")]]

    def _wait(self, look: Callable[[], bool], what: str) -> None:
        def quietly() -> bool:
            with contextlib.suppress(BridgeError):
                return look()
            return False

        wait_for(quietly, what=what, timeout_s=_LIMIT_S, instead=self.tell)

    def tell(self) -> str:
        """Return calls, leftovers and the agent's report, for a failure's message."""
        calls = [f"{call.method} {call.code} {call.fields}" for call in self.calls()]
        state = ""
        with contextlib.suppress(BridgeError):
            state = json.dumps(self.state()["volumes"], indent=1)
        return "\n".join([*calls, *self.left_over(), state, self.agent.process.log_tail()])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        try:
            self.bridge.__exit__(*failure)
        finally:
            if self.machine is None:
                self._supervisor.stop()  # first: a call that the agent has left behind may still mount
                self.wipe_mounts()
            elif self.machine.is_on:
                self.power_off()


class _VendorSupervisor(Supervisor):
    """Starts the vendor's processes on the node's machine."""

    def __init__(self, directory: Path, machine: Machine | None) -> None:
        super().__init__(directory)
        self._machine = machine
        self.own_commands: list[list[str]] = []

    def start(self, name: str, command: Sequence[object], **more: Any) -> Process:
        self.own_commands.append([str(word) for word in command])
        return super().start(name, self._machine.inside(command) if self._machine is not None else command, **more)


def csi_driver(*, attach: bool = False, **spec: Any) -> Object:
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSIDriver",
        "metadata": {"name": DRIVER},
        "spec": {"attachRequired": attach, **spec},
    }


def volume(
    name: str,
    handle: str,
    *,
    mode: str = "ReadWriteOnce",
    block: bool = False,
    size: str = "16Mi",
    source: Object | None = None,
    **spec: Any,
) -> list[Object]:
    """Return a PersistentVolume `pv-NAME` and its claim NAME, bound to each other."""
    both = {"accessModes": [mode], "storageClassName": "", "volumeMode": "Block" if block else "Filesystem"}
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": f"pv-{name}"},
            "spec": {
                **both,
                "capacity": {"storage": size},
                "claimRef": {"namespace": "default", "name": name},
                "csi": {"driver": DRIVER, "volumeHandle": handle, **(source or {})},
                **spec,
            },
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {**both, "volumeName": f"pv-{name}", "resources": {"requests": {"storage": size}}},
        },
    ]


def pod(name: str, *claims: str, block: Iterable[str] = (), read_only: bool = False, **spec: Any) -> Object:
    """Return a pod of this node with volumes `v-CLAIM`; those in `block` are used as devices."""
    devices = set(block)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "nodeName": NODE,
            "containers": [
                {
                    "name": "c",
                    "image": "none",
                    "volumeMounts": [
                        {"name": f"v-{each}", "mountPath": f"/{each}"} for each in claims if each not in devices
                    ],
                    "volumeDevices": [
                        {"name": f"v-{each}", "devicePath": f"/dev/{each}"} for each in claims if each in devices
                    ],
                }
            ],
            "volumes": [
                {"name": f"v-{each}", "persistentVolumeClaim": {"claimName": each, "readOnly": read_only}}
                for each in claims
            ],
            **spec,
        },
    }


def attachment(handle: str, pv: str, *, node: str = NODE, named_after: str = NODE, attached: bool = True) -> Object:
    """Return the VolumeAttachment of a volume to a node, or one with the name of another node's."""
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "VolumeAttachment",
        "metadata": {"name": attachment_name(DRIVER, handle, named_after)},
        "spec": {"attacher": DRIVER, "nodeName": node, "source": {"persistentVolumeName": pv}},
        "status": {"attached": attached},
    }
