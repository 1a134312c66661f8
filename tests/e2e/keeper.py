"""A keeper: runs a command again whenever it ends, as a kubelet does with a container, until it is told to stop.

    python tests/e2e/keeper.py FILE PAUSE MOST COMMAND…     # the id of the command's process is in FILE

It starts the command again at once, then after PAUSE seconds, then after twice as many, up to MOST; and at once after a
life of twice MOST. Those of the kubelet are 10 s and 300 s.
It dies with whoever started it, and the command with it.
"""

import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.kit.leash import leash


def keep(file: Path, first_s: float, most_s: float, command: list[str]) -> None:
    """Run the command for ever. SIGTERM goes on to it, and when it ends then, so does this."""
    stopping: list[int] = []
    child: subprocess.Popen[bytes] | None = None

    def stop(number: int, _frame: object) -> None:
        stopping.append(number)
        if child is not None:
            child.send_signal(number)

    signal.signal(signal.SIGTERM, stop)
    pause_s = 0.0
    while not stopping:
        began = time.monotonic()
        child = subprocess.Popen([*leash(), *command])
        _note(file, child.pid)
        status = child.wait()
        if not stopping:
            if time.monotonic() - began > 2 * most_s:
                pause_s = 0.0
            sys.stderr.write(f"keeper: {command[0]} ended with status {status}, and starts again in {pause_s:g} s\n")
            time.sleep(pause_s)
            pause_s = min(max(2 * pause_s, first_s), most_s)


def _note(file: Path, pid: int) -> None:
    new = file.with_suffix(".new")
    new.write_text(str(pid))
    new.replace(file)


if __name__ == "__main__":
    keep(Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), sys.argv[4:])
