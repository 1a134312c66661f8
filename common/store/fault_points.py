"""Fault points: named places at which a test kills the agent or the hub, to prove that a restart repairs their state.

`CSI_BRIDGE_FAULT_POINT=stage.before-call` kills the process (SIGKILL) when it first reaches that point;
`stage.before-call:3` at the third time. Without the variable, a point costs one comparison.

A point is named after the step that passes it, and what it lies before or after. `tests/kit/fault_points.py` lists all
of them.
"""

import os
import signal

VARIABLE = "CSI_BRIDGE_FAULT_POINT"

_WANTED, _, _count = os.environ.get(VARIABLE, "").partition(":")
_left = int(_count) if _count.isdecimal() else 1


def reach(point: str) -> None:
    """Kill the process if a test has chosen this point."""
    global _left  # noqa: PLW0603  # one process, one death
    if point != _WANTED:
        return
    _left -= 1
    if _left <= 0:
        os.kill(os.getpid(), signal.SIGKILL)
