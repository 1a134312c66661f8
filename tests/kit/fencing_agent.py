"""The command `csi-bridge`, with a watchdog that a test plays (`tests.kit.fake_watchdog`), and volumes on loop devices.

python -P tests/kit/fencing_agent.py SECONDS edge run …
"""

import os
import struct
import sys
from types import SimpleNamespace

from edge.fencing import fenced_volumes, watchdog

_TIME: list[int] = []


def _ioctl(descriptor: int, _request: int, _argument: bytes) -> bytes:
    os.write(descriptor, b"\0")  # who opens a watchdog pets it
    return struct.pack("i", _TIME[0])


if __name__ == "__main__":
    watchdog.fcntl = SimpleNamespace(ioctl=_ioctl)  # type: ignore[assignment]  # as much of it as is used
    watchdog.LEAST_S = 1  # type: ignore[misc]  # a test cannot wait for 30 s
    fenced_volumes._UNSAFE_MAJORS.clear()
    from cli.main import main

    _TIME.append(int(sys.argv[1]))
    sys.argv[:2] = ["csi-bridge"]
    main()
