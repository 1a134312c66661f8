"""The test driver as a vendor's driver, with its call log."""

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from common.csi import csi_pb2 as csi
from tests.kit.peers import csi_client
from tests.kit.processes import Process, Supervisor, listens_on
from tests.kit.requests import create
from tests.kit.sidecar import Sidecar
from tests.kit.testdriver.call_log import Call, read_calls
from tests.kit.waiting import wait_for


@dataclass(frozen=True, kw_only=True)
class RunningDriver:
    """One running test driver."""

    name: str
    socket: Path  # where it listens
    state: Path  # its state directory
    own: Path  # where its faults and its records are: the state directory, unless it shares that with others
    process: Process  # for tests that kill it

    @property
    def volumes(self) -> list[str]:
        return csi_client.volume_ids(self.socket)

    def calls(self, method: str) -> list[Call]:
        return [call for call in read_calls(_call_log(self.own)) if call.method == method]

    def directories(self) -> list[Path]:
        return sorted(path for path in (self.state / "volumes").iterdir())

    def set_faults(self, *faults: str) -> None:
        """Misbehave like this from the next call on; without any, no more."""
        new = self.own / "faults.new"
        new.write_text("\n".join(faults))
        new.replace(_fault_file(self.own))


def start_testdriver(
    supervisor: Supervisor,
    directory: Path,
    *,
    name: str,
    node_id: str = "edge-1",
    flags: tuple[str, ...] = (),
    socket: Path | None = None,
    shared_state: Path | None = None,
) -> RunningDriver:
    """Start a test driver with its socket and its state in a directory, and wait until it answers.

    Args:
        supervisor: who stops it.
        directory: for its socket and state; its path must be short.
        name: the driver's name.
        node_id: what it calls its node.
        flags: further flags of the program.
        socket: where it listens, if not in the directory.
        shared_state: a state directory that exists and is several drivers'.
    """
    socket, own = socket or directory / "vendor.sock", directory / "vendor"
    own.mkdir()
    state = shared_state or own
    command = [
        sys.executable,
        *("-m", "tests.kit.testdriver.main"),
        f"--endpoint=unix://{socket}",
        f"--state-dir={state}",
        f"--node-id={node_id}",
        f"--drivername={name}",
        f"--call-log={_call_log(own)}",
        f"--fault-file={_fault_file(own)}",
        *flags,
    ]
    process = supervisor.start("testdriver", command, ready=lambda: listens_on(socket))
    return RunningDriver(name=name, socket=socket, state=state, own=own, process=process)


def start_on_each(
    nodes: Iterable[str], supervisor: Supervisor, directory: Path, *, name: str, flags: tuple[str, ...] = ()
) -> dict[str, RunningDriver]:
    """Start a test driver for each node, in a directory of the node's name. Returns them by node."""
    found = {}
    for node in nodes:
        (directory / node).mkdir()
        found[node] = start_testdriver(supervisor, directory / node, name=name, node_id=node, flags=flags)
    return found


def make_on(node: str, sidecar: Sidecar, *, driver: str) -> str:
    """Make a volume on a node of several with a test driver, as soon as the hub knows the node. Returns its id."""
    term = csi.Topology(segments={f"topology.{driver}/node": node})
    mount = csi.VolumeCapability(mount={}, access_mode={"mode": "SINGLE_NODE_WRITER"})
    wanted = csi.TopologyRequirement(requisite=[term], preferred=[term])
    asked = create(f"on-{node}", accessibility_requirements=wanted, volume_capabilities=[mount])
    told: list[object] = []

    def make() -> str:
        outcome = sidecar.call("CreateVolume", asked)
        told[:] = [outcome.answer if outcome.ok else outcome.refusal]
        return str(outcome.answer.volume.volume_id) if outcome.ok else ""

    return wait_for(make, what=f"volume on {node}", timeout_s=60.0, instead=lambda: told)


def _call_log(own: Path) -> Path:
    return own / "calls.jsonl"


def _fault_file(own: Path) -> Path:
    return own / "faults"
