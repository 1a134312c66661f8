"""A chain: a driver behind a bridge, with a socket in front of it for the load.

A form says which processes the bridge has. Several chains can stand before one driver and take turns under one load:
bridges, three bare relays (the floor), and the shortest bridge.
"""

import functools
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.figure import NotMeasured
from common.csi import csi_pb2 as csi
from common.status import Code
from tests.kit.bridge import Bridge, Member
from tests.kit.certificates import Authority, Pem
from tests.kit.ports import free_ports
from tests.kit.processes import Supervisor, listens_on
from tests.kit.sidecar import Outcome, Sidecar
from tests.kit.waiting import wait_for

Command = tuple[str, ...]
"""The command of the load generator: a program and its first arguments."""

Pids = Mapping[str, int]
"""Process ids, by hop."""

DRIVER = "load.csi-bridge.io"
NODE = "n1"

_FLOOR = Path(__file__).with_name("floor.py")
_SHORTEST = Path(__file__).with_name("shortest") / "run.py"

_NO_VOLUME = csi.DeleteVolumeRequest(volume_id="none")


class Form(Enum):
    """The processes of a bridge. The value is their name in tables."""

    SPLIT = "bridge"
    """Proxy driver, hub and agent: three processes."""
    ONE_PROCESS = "one process"
    """The hub serves the driver's socket itself; the agent is a second process."""


@dataclass(frozen=True)
class Chain:
    """A running chain.

    Attributes:
        socket: the socket for the load.
        members: the process of each hop: `proxy` (not in one process), `hub` and `agent`.
    """

    socket: Path
    members: Mapping[str, Member]

    @property
    def processes(self) -> Pids:
        """The process id of each hop."""
        return {name: member.process.pid for name, member in self.members.items()}


@contextmanager
def driver(directory: Path, loadgen: Command, *flags: str) -> Iterator[Path]:
    """Run the load generator's driver, and yield its socket."""
    socket = directory / "v.sock"
    with Supervisor(directory) as supervisor:
        serve = [*loadgen, "serve", f"--endpoint=unix://{socket}", f"--name={DRIVER}", *flags]
        supervisor.start("driver", serve, ready=lambda: listens_on(socket))
        yield socket


@contextmanager
def chain(
    directory: Path,
    vendor: Path,
    *flags: str,
    form: Form = Form.SPLIT,
    authority: Authority | None = None,
    placement: str = "auto",
    node: str | None = None,
    delay: str = "",
    kind: type[Bridge] = Bridge,
) -> Iterator[Chain]:
    """Run a bridge to the driver at a socket.

    Args:
        directory: for its sockets, state and logs; it must not exist.
        vendor: the driver's socket.
        flags: further flags of every member.
        form: the processes.
        authority: signs the certificates of the agent's link; None: it has no TLS.
        placement: the proxy driver's.
        node: the proxy driver's `--nodeid`.
        delay: of the agent's link, each way.
        kind: starts the members.
    """
    directory.mkdir()
    hub_flags = authority.hub().flags if authority is not None else []
    with kind(directory, directory) as bridge:
        if form is Form.ONE_PROCESS:
            socket = directory / "csi.sock"
            options = f"{DRIVER}=unix://{socket},placement={placement}" + (f",nodeid={node}" if node else "")
            hub = bridge.start_hub(f"--serve={options}", *hub_flags, *flags)
        else:
            hub = bridge.start_hub(*hub_flags, *flags)
        link = bridge.start_link(delay=delay) if delay else None
        if authority is not None:
            agent_flags = [f"--hub=wss://{hub.address}", *authority.edge(NODE).flags, *flags]
        else:
            agent_flags = [*flags]
        agent = bridge.start_agent(NODE, vendor, flags=agent_flags, through=link.address if link is not None else None)
        members: dict[str, Member] = {"hub": hub, "agent": agent}
        if form is Form.SPLIT:
            proxy = bridge.start_proxy(DRIVER, f"--placement={placement}", *flags, node=node)
            socket, members = proxy.socket, {"proxy": proxy, **members}
        with Sidecar(socket) as sidecar:
            wait_for(lambda: _vendor_answers(sidecar.call("GetCapacity")), what="answer through the bridge")
        yield Chain(socket, members)


def files_of(pem: Pem) -> tuple[Path, ...]:
    """Return the files of CA, certificate and key."""
    return pem.ca, pem.cert, pem.key


@contextmanager
def relays(directory: Path, vendor: Path, authority: Authority | None = None) -> Iterator[tuple[Path, Pids]]:
    """Run three bare relays, the floor, with TLS between the last two if `authority` is given.

    Yield the socket in front of them and their process ids.
    """
    directory.mkdir()
    hops = ("agent", "hub", "proxy")
    stops = [vendor, *(directory / f"{hop}.sock" for hop in hops)]
    tls: dict[str, tuple[object, ...]] = {}
    if authority is not None:
        tls = {"agent": ("accepts", *files_of(authority.hub())), "hub": ("dials", *files_of(authority.edge(NODE)))}
    with Supervisor(directory) as supervisor:
        pids = {}
        for hop, (target, source) in zip(hops, pairwise(stops), strict=True):
            relay = [sys.executable, _FLOOR, source, target, *tls.get(hop, ())]
            pids[hop] = supervisor.start(hop, relay, ready=partial(listens_on, source)).pid
        yield stops[-1], pids


@contextmanager
def shortest(directory: Path, vendor: Path, authority: Authority | None = None) -> Iterator[tuple[Path, Pids]]:
    """Run the shortest bridge to the driver at a socket, with TLS on the agent's link if `authority` is given."""
    directory.mkdir()
    (port,) = free_ports(1)
    program = [sys.executable, _SHORTEST]
    hub_files, agent_files = map(files_of, (authority.hub(), authority.edge(NODE))) if authority else ((), ())
    uds, endpoint = directory / "hub.sock", directory / "csi.sock"
    with Supervisor(directory) as supervisor:
        hub = supervisor.start("hub", [*program, "hub", uds, port, *hub_files], ready=lambda: listens_on(port))
        agent = supervisor.start("agent", [*program, "agent", vendor, port, NODE, *agent_files])
        words = [*program, "proxy", endpoint, uds, DRIVER, NODE]
        proxy = supervisor.start("proxy", words, ready=lambda: listens_on(endpoint))
        with Sidecar(endpoint) as sidecar:
            wait_for(lambda: sidecar.call("DeleteVolume", _NO_VOLUME).ok, what="answer through the shortest bridge")
        yield endpoint, {"proxy": proxy.pid, "hub": hub.pid, "agent": agent.pid}


@functools.cache
def lacks(form: Form) -> str:
    """Return why this version of csi-bridge has no such form; empty if it has."""
    if form is Form.SPLIT:
        return ""
    program = Path(sys.executable).with_name("csi-bridge")
    words = subprocess.run([program, "hub", "--help"], check=True, capture_output=True, text=True).stdout
    return "" if "--serve" in words else "the hub has no --serve"


def run_load(loadgen: Command, sockets: Mapping[str, Path], flags: Sequence[str]) -> dict[str, Any]:
    """Return the report of a load on all sockets, which take turns.

    Raises:
        NotMeasured: a call failed, or none was made.
    """
    targets = [f"--socket={name}=unix://{path}" for name, path in sockets.items()]
    done = subprocess.run([*loadgen, "run", *targets, *flags], check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise NotMeasured(f"the load generator ended with exit status {done.returncode}: {done.stderr.strip()}")
    result: dict[str, Any] = json.loads(done.stdout)
    for name, target in result["targets"].items():
        if target["errors"]:
            raise NotMeasured(f"calls to {name} failed: {target['error_messages']}")
        operations = target["operations"]["count"]
        calls = {method: of["calls"] for method, of in target["methods"].items()}
        if not operations or {*calls.values()} != {operations}:
            raise NotMeasured(f"{name}: {operations} operations came to their end, of these calls: {calls}")
    return result


def cpu_us(pid: int) -> float:
    """Return the CPU time of a process so far, in microseconds, to the kernel's full precision."""
    return time.clock_gettime_ns(~pid << 3 | 2) / 1000  # its CPUCLOCK_SCHED, as clock_getcpuclockid(3) makes it


def _vendor_answers(outcome: Outcome) -> bool:
    return outcome.ok or outcome.refusal[0] == Code.UNIMPLEMENTED
