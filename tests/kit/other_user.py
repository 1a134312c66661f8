"""Another user: runs the real command under another user id. Only root can."""

import sys

NOBODY_ELSE = 12345  # a user id without an account

# Imported before the change: another user may not be able to read the installed modules.
_PROGRAM = """
import os, sys
from cli import main, process
from cli.operators import status
from cloud import csi_proxy_driver
os.setgroups([])
os.setuid(int(sys.argv.pop(1)))
main.main()
"""


def as_user(uid: int) -> list[str]:
    """Return the command that replaces `csi-bridge`, for `driver` and `status`."""
    return [sys.executable, "-c", _PROGRAM, str(uid)]
