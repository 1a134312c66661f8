"""A fault point: a named place where a test lets the agent die, to prove that a restart mends whatever that leaves.

`CSI_BRIDGE_FAULT_POINT=stage.before-call` kills the process (SIGKILL) when it gets there first;
`stage.before-call:3` at the third time. Unset, a point costs one comparison. All points are in docs/recovery.md.
"""

import os
import signal

VARIABLE = "CSI_BRIDGE_FAULT_POINT"

_WANTED, _, _count = os.environ.get(VARIABLE, "").partition(":")
_left = int(_count) if _count.isdecimal() else 1


def reach(point: str) -> None:
    """The process is at this point; it dies here if a test wants it."""
    global _left  # noqa: PLW0603  # one process, one death
    if point != _WANTED:
        return
    _left -= 1
    if _left <= 0:
        os.kill(os.getpid(), signal.SIGKILL)
