"""A keeper: runs a command again whenever it ends, as a kubelet does with a container, until it is told to stop.

    python tests/e2e/keeper.py FILE COMMAND…        # the id of the command's process is in FILE

It dies with whoever started it, and the command with it.
"""

import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.kit.leash import leash

_PAUSE_S = 1.0
"""The kubelet's first pause is 10 s; it doubles up to 5 minutes."""


def keep(file: Path, command: list[str]) -> None:
    """Run the command for ever. SIGTERM goes on to it, and when it ends then, so does this."""
    stopping: list[int] = []
    child: subprocess.Popen[bytes] | None = None

    def stop(number: int, _frame: object) -> None:
        stopping.append(number)
        if child is not None:
            child.send_signal(number)

    signal.signal(signal.SIGTERM, stop)
    while not stopping:
        child = subprocess.Popen([*leash(), *command])
        _note(file, child.pid)
        status = child.wait()
        if not stopping:
            sys.stderr.write(f"keeper: {command[0]} ended with status {status}, and starts again\n")
            time.sleep(_PAUSE_S)


def _note(file: Path, pid: int) -> None:
    new = file.with_suffix(".new")
    new.write_text(str(pid))
    new.replace(file)


if __name__ == "__main__":
    keep(Path(sys.argv[1]), sys.argv[2:])
