"""Processes of a test: started, watched, killed, started again, and stopped in reverse order.

Rules:

* A process is stopped by its own id only.
* It dies with the test run, however that ends (`tests.kit.leash`, which also says from which thread to start it).
* Our own programs are forked (`tests.kit.prefork`).
* Its output goes to a file of its own, whose end is part of every error.
"""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

from tests.kit import prefork
from tests.kit.leash import leash
from tests.kit.waiting import wait_for

_TAIL_LINES = 30
_STOP_LIMIT_S = 10.0

_LOG_S = 0.25  # a process writes its log every 50 ms (`common.observe.line_writer`), and on a busy machine later


class ProcessDiedError(AssertionError):
    """A process ended while a test waited for it; the message has its exit status and the end of its log."""


class Process:
    """One process and the log file of all its lives.

    Args:
        environment: the whole environment; None: the test run's own.
    """

    def __init__(
        self, name: str, command: Sequence[object], *, log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name  # its name in errors
        self.command = [str(word) for word in command]  # program and arguments, paths among them
        self.log = log  # the file that standard output and standard error are appended to
        self.environment = environment  # the environment of its next life
        self._popen: subprocess.Popen[bytes] | prefork.Forked | None = None

    def start(self) -> None:
        """Start it, again if it ran before; does not wait for anything."""
        if self.running:
            raise RuntimeError(f"{self.name} is running already")
        with self.log.open("ab") as output:
            if prefork.knows(self.command):
                self._popen = prefork.start(self.command, self.environment or os.environ, output)
                return
            self._popen = subprocess.Popen(
                [*leash(), *self.command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self.environment,
                # Ctrl-C is for the test run, which then stops everything in order.
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._started.pid

    @property
    def running(self) -> bool:
        return self._popen is not None and self._popen.poll() is None

    @property
    def exit_status(self) -> int | None:
        """None while it runs; below zero: the signal that ended it."""
        return self._started.poll()

    def output(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def settled_lines(self) -> list[str]:
        """Return the complete lines, with all that it has logged by now, although it writes its log in blocks."""
        if self.running:
            time.sleep(_LOG_S)
        return self.lines()

    def lines(self) -> list[str]:
        """Return the complete lines of its output; the last one may be incomplete."""
        return self.output().rpartition("\n")[0].splitlines()

    def log_tail(self) -> str:
        """Return the last lines of its output, under a heading."""
        lines = self.output().splitlines()[-_TAIL_LINES:]
        return "\n".join([f"--- the end of {self.name}'s log ({self.log}) ---", *lines])

    def wait_until(self, ready: Callable[[], bool], *, what: str = "answer", timeout_s: float = 30.0) -> None:
        """Wait until `ready` is true.

        Raises:
            ProcessDiedError: it ended first.
            NeverCameError: it runs, but did not become ready.
        """

        def look() -> bool:
            if not self.running:
                status = f"exit status {self.exit_status}"
                raise ProcessDiedError(f"{self.name} ended ({status}) before its {what}\n{self.log_tail()}")
            return ready()

        wait_for(look, what=f"{what} of {self.name}", timeout_s=timeout_s, instead=self.log_tail)

    def wait_exit(self, *, timeout_s: float = 30.0) -> int:
        try:
            return self._started.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} still runs after {timeout_s:g} s\n{self.log_tail()}") from None

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, if it still runs."""
        if self.running:
            self._started.send_signal(number)

    def kill(self) -> None:
        """End it at once (SIGKILL), without a clean-up."""
        self.signal(signal.SIGKILL)
        if self._popen is not None:
            self._popen.wait()

    def stop(self) -> None:
        """Ask it to end (SIGTERM), and kill it after 10 s."""
        if self._popen is None:
            return
        self.signal(signal.SIGTERM)
        try:
            self._popen.wait(_STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.kill()

    @property
    def _started(self) -> subprocess.Popen[bytes] | prefork.Forked:
        if self._popen is None:
            raise RuntimeError(f"{self.name} was never started")
        return self._popen


class Supervisor:
    """Starts processes with logs in one directory, and stops them all, the last one first."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self._processes: list[Process] = []

    def start(
        self,
        name: str,
        command: Sequence[object],
        *,
        ready: Callable[[], bool] | None = None,
        timeout_s: float = 30.0,
        environment: Mapping[str, str] | None = None,
    ) -> Process:
        """Start a process, and wait until `ready` is true.

        Raises:
            ProcessDiedError: it ended before that.
            NeverCameError: it did not become ready in time.
        """
        process = Process(name, command, log=self.directory / f"{name}.log", environment=environment)
        process.start()
        self._processes.append(process)
        if ready is not None:
            process.wait_until(ready, what="being ready", timeout_s=timeout_s)
        return process

    def stop(self) -> None:
        while self._processes:
            self._processes.pop().stop()

    def __enter__(self) -> Self:
        """Start nothing; `start` starts the processes one by one."""
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def listens_on(address: Path | int | tuple[str, int]) -> bool:
    """Whether a process accepts connections on this UNIX socket, or this TCP port; without a host, of 127.0.0.1."""
    if isinstance(address, int):
        address = "127.0.0.1", address
    tcp = isinstance(address, tuple)
    with socket.socket(socket.AF_INET if tcp else socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(address if tcp else str(address))
        except OSError:
            return False
    return True
