"""The test driver as a vendor's driver, with its call log."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.peers.support import csi_client
from tests.support.processes import listens_on
from tests.support.testdriver.call_log import Call, read_calls

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.processes import Process, Supervisor


@dataclass(frozen=True, kw_only=True)
class RunningDriver:
    """One running test driver.

    Attributes:
        name: the driver's name.
        socket: where it listens.
        state: its state directory.
        own: where its faults and its records are: the state directory, unless it shares that with others.
        process: for tests that kill it.
    """

    name: str
    socket: Path
    state: Path
    own: Path
    process: Process

    @property
    def volumes(self) -> list[str]:
        """The ids of the volumes that it lists on its own socket, sorted."""
        return csi_client.volume_ids(self.socket)

    def calls(self, method: str) -> list[Call]:
        """The calls of a method that reached it, in the order in which they began."""
        return [call for call in read_calls(_call_log(self.own)) if call.method == method]

    def directories(self) -> list[Path]:
        """The directories that hold the volumes' data."""
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
        *("-m", "tests.support.testdriver.main"),
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


def _call_log(own: Path) -> Path:
    return own / "calls.jsonl"


def _fault_file(own: Path) -> Path:
    return own / "faults"
