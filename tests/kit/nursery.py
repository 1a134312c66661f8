"""A nursery: starts a vendor's driver as a process of its own within milliseconds, again and again.

    with Nursery(directory / "vendor.sock") as nursery:
        nursery.start()
        nursery.kill()

A process that has imported everything, but has not used gRPC yet, forks one child per life. A child's driver answers
CreateVolume after a delay that differs from call to call, with success or with an error of its own.
"""

import ctypes
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

from common.status import Code
from tests.kit.answers import Identity, answer_of
from tests.kit.vendor import Refusal, Vendor, VendorCall

ITS_WORDS = "the driver's own words"
"""The text of a child's errors. Any other text was not sent by the driver."""

ITS_CODES = (Code.ALREADY_EXISTS, Code.INTERNAL, Code.RESOURCE_EXHAUSTED, Code.OUT_OF_RANGE)

_LONGEST_S = 0.01
_PR_SET_PDEATHSIG = 1
_ROOT = Path(__file__).parents[2]


class Nursery:
    """Successive lives of a driver on one socket path."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self._child = 0
        self._mother: subprocess.Popen[str] | None = None

    def start(self) -> None:
        assert self._mother is not None
        assert self._mother.stdin is not None
        assert self._mother.stdout is not None
        self._mother.stdin.write(f"{self.socket}\n")
        self._mother.stdin.flush()
        self._child = int(self._mother.stdout.readline())

    def kill(self) -> None:
        os.kill(self._child, signal.SIGKILL)

    def __enter__(self) -> Self:
        self._mother = subprocess.Popen(
            [sys.executable, "-m", "tests.kit.nursery"],
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._mother is not None
        self._mother.communicate(timeout=10)


def _live(socket: Path) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    vendor = Vendor(socket)
    vendor.on("CreateVolume", _create)
    vendor.start()
    sys.stdout.write(f"{os.getpid()}\n")
    sys.stdout.flush()
    while True:
        signal.pause()


def _create(call: VendorCall) -> bytes:
    time.sleep(random.uniform(0, _LONGEST_S))
    if random.random() < 0.3:
        raise Refusal(random.choice(ITS_CODES), ITS_WORDS)
    return bytes(answer_of(Identity(""), call.method, call.data).SerializeToString())


def _main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps
    for line in sys.stdin:
        if os.fork() == 0:
            random.seed()
            _live(Path(line.strip()))
    # When the test ends, children that it did not kill die with this process.


if __name__ == "__main__":
    _main()
