"""Supervisors of other kinds than the tests' usual one: of a machine's processes, and of processes kept alive."""

import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.kit.machine import Machine
from tests.kit.processes import Process, Supervisor
from tests.kit.waiting import wait_for

_KEEPER = Path(__file__).with_name("keeper.py")


class MachineSupervisor(Supervisor):
    def __init__(self, directory: Path, machine: Machine) -> None:
        super().__init__(directory)
        self._machine = machine
        self._commands: list[tuple[Process, list[object]]] = []

    def start(self, name: str, command: Sequence[object], **more: Any) -> Process:
        process = super().start(name, self._machine.inside(command), **more)
        self._commands.append((process, list(command)))
        return process

    def stop(self) -> None:
        """End all at once, as when the machine loses its power."""
        for process, _ in reversed(self._commands):
            process.kill()

    def start_again(self) -> None:
        """Start all again, on the machine as it was booted since."""
        for process, command in self._commands:
            process.command = self._machine.inside(command)
            process.start()


KUBELET_S = 10.0, 300.0  # the kubelet's pauses before it starts a container again: the first, and the longest


class KeepingSupervisor(Supervisor):
    """Starts processes that are started again whenever they end.

    Args:
        directory: for their logs.
        pauses_s: the first pause and the longest (`tests.e2e.keeper`).
    """

    def __init__(self, directory: Path, pauses_s: tuple[float, float] = (1.0, 1.0)) -> None:
        super().__init__(directory)
        self._pauses_s = pauses_s

    def start(self, name: str, command: Sequence[object], **more: Any) -> Process:
        return super().start(name, kept(command, file=self._file(name), pauses_s=self._pauses_s), **more)

    def kill(self, name: str) -> None:
        """End a process at once, or as soon as it lives again; its keeper starts it anew."""

        def strike() -> bool:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid(name), signal.SIGKILL)
                return True
            return False

        wait_for(strike, what=f"life of {name}")

    def pid(self, name: str) -> int:
        """The id of a process in its present life."""
        return int(self._file(name).read_text())

    def _file(self, name: str) -> Path:
        return self.directory / f"{name}.pid"


def kept(command: Sequence[object], *, file: Path, pauses_s: tuple[float, float] = (1.0, 1.0)) -> list[object]:
    """A command with a keeper, who notes the id of its process in a file."""
    return [sys.executable, _KEEPER, file, *pauses_s, *command]
