"""Another user: runs the real command under a user id of its own. Only root can."""

import sys

NOBODY_ELSE = 12345
"""A user id that no account has."""

# The modules come before the change: where they are installed another user may not be able to read them.
_PROGRAM = """
import os, sys
from cli import main, process, status
from cloud import csi_proxy_driver
os.setgroups([])
os.setuid(int(sys.argv.pop(1)))
main.main()
"""


def as_user(uid: int) -> list[str]:
    """What to write instead of `csi-bridge`, for `driver` and `status`."""
    return [sys.executable, "-c", _PROGRAM, str(uid)]
