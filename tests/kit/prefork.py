"""Starts our programs by forking a process that has imported them: the imports are most of a start's time.

Each test run has one such process, from its first start on. It imports, and runs nothing of the program. When the test
run ends, however that is, its socket closes, it ends, and the kernel ends its children.
"""

import atexit
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO

from common.store import fault_points

PROGRAM = Path(sys.executable).with_name("csi-bridge")

_ENTRIES = {(str(PROGRAM),): "cli.main"} | {
    (sys.executable, "-m", module): module for module in ("tests.kit.testdriver.main", "tests.kit.failing_vendor")
}
"""By the first words of a command: the module whose `main` it runs."""

_IMPORTED = (*_ENTRIES.values(), "cli.process", "cloud.hub_process", "cloud.csi_proxy_driver", "edge.agent")
_MOST_BYTES = 1_048_576
_PR_SET_PDEATHSIG = 1


class Forked:
    """A process that was forked, to its user like a `subprocess.Popen`."""

    def __init__(self, pid: int, ended: socket.socket) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._ended = ended

    def poll(self) -> int | None:
        """Its exit status; None while it runs."""
        return self._read(socket.MSG_DONTWAIT)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end.

        Raises:
            subprocess.TimeoutExpired: it still runs.
        """
        if self.returncode is None:
            self._ended.settimeout(timeout)
        status = self._read(0)
        if status is None:
            raise subprocess.TimeoutExpired(str(PROGRAM), timeout or 0.0)
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def _read(self, flags: int) -> int | None:
        if self.returncode is None:
            with suppress(BlockingIOError, TimeoutError):
                self.returncode = int(self._ended.recv(16, flags))
                self._ended.close()
        return self.returncode


class _Mother:
    """The test run's end of the process that forks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.kit.prefork"],
                stdin=theirs,
                start_new_session=True,
                cwd=Path(__file__).parents[2],
            )
        atexit.register(self._end)

    def start(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        given: IO[bytes],
        output: IO[bytes],
        errors: IO[bytes],
    ) -> Forked:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        order = json.dumps([command, dict(environment), str(Path.cwd())]).encode()
        with self._lock, theirs:
            files = [each.fileno() for each in (given, output, errors, theirs)]
            socket.send_fds(self._socket, [order], files)
            pid = int(self._socket.recv(16))
        return Forked(pid, ours)

    def _end(self) -> None:
        self._socket.close()
        self._process.wait()


_mother = cache(_Mother)


FORKS = True
"""False in the bench: a forked process has the memory of all that the first one has imported, and starts in no time."""


def knows(command: Sequence[str]) -> bool:
    """Whether `start` can start it. It starts nothing in a network of the calling thread's own."""
    return FORKS and _entry(command) is not None and _network() == _HOME


def start(command: Sequence[str], environment: Mapping[str, str], output: IO[bytes]) -> Forked:
    """Start a command in the present directory. Standard output and standard error are one file."""
    with Path(os.devnull).open("rb") as nothing:
        return _mother().start(command, environment, nothing, output, output)


def run(
    *arguments: object, given: str = "", environment: Mapping[str, str] | None = None, timeout_s: float = 60.0
) -> subprocess.CompletedProcess[str]:
    """Run `csi-bridge` to its end, with a text on standard input.

    Raises:
        subprocess.TimeoutExpired: it took longer, and was killed.
    """
    words = [str(word) for word in (PROGRAM, *arguments)]
    with tempfile.TemporaryFile() as text, tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        text.write(given.encode())
        text.seek(0)
        process = _mother().start(words, environment or os.environ, text, output, errors)
        try:
            status = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            raise
        output.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(words, status, output.read().decode(), errors.read().decode())


def _network() -> str:
    return str(Path("/proc/thread-self/ns/net").readlink())


_HOME = _network()


def _entry(command: Sequence[str]) -> tuple[str, Sequence[str]] | None:
    """The module that a command runs, and its arguments."""
    for words, module in _ENTRIES.items():
        if tuple(command[: len(words)]) == words:
            return module, command[len(words) :]
    return None


def _serve(orders: socket.socket) -> str:
    """Fork for each order. Returns in the children, with all set as the order has it: the module to run."""
    running: dict[int, socket.socket] = {}
    woken, wakes = socket.socketpair()
    wakes.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes.fileno())
    while True:
        ready, _, _ = select.select([orders, woken], [], [])
        if woken in ready:
            woken.recv(4096)
            _tell_ends(running)
        if orders not in ready:
            continue
        order, files, _, _ = socket.recv_fds(orders, _MOST_BYTES, 4)
        if not order:
            sys.exit()
        *standard, end = files
        ended = socket.socket(fileno=end)
        pid = os.fork()
        if not pid:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for each in (orders, woken, wakes, ended, *running.values()):
                each.close()
            return _become(standard, *json.loads(order))
        running[pid] = ended
        for file in standard:
            os.close(file)
        orders.send(str(pid).encode())


def _tell_ends(running: dict[int, socket.socket]) -> None:
    with suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            with running.pop(found[0]) as ended, suppress(OSError):
                ended.send(str(os.waitstatus_to_exitcode(found[1])).encode())


def _become(standard: list[int], command: list[str], environment: dict[str, str], directory: str) -> str:
    os.setsid()
    for number, file in enumerate(standard):
        os.dup2(file, number)
        os.close(file)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    importlib.reload(fault_points)  # it reads the environment when it is imported
    module, arguments = _entry(command) or ("", ())
    sys.argv = [module, *arguments]
    return module


def _run(module: str) -> None:
    """Run a program to its end, as Python does, but leave its modules: to take them down is most of a short life."""
    status: object = None
    try:
        importlib.import_module(module).main()
    except SystemExit as end:
        status = end.code
    if isinstance(status, str):
        sys.stderr.write(f"{status}\n")
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status if isinstance(status, int) else bool(status))


if __name__ == "__main__":
    for module in _IMPORTED:
        importlib.import_module(module)
    gc.freeze()
    _run(_serve(socket.socket(fileno=os.dup(0))))
