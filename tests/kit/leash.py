"""A leash: the command prefix that makes a child process die with its parent, even if the parent is killed.

The kernel's parent-death signal belongs to the thread that started the child. So start the child from a thread that
lives as long as the child.
"""

import functools
import subprocess
from contextlib import suppress


@functools.cache
def leash() -> tuple[str, ...]:
    """The words to put before a command; none without util-linux' setpriv(1). BusyBox' does not know the flag."""
    # Not preexec_fn: Python code between fork and exec can deadlock beside threads, and Python warns of it.
    words = ("setpriv", "--pdeathsig", "KILL", "--")
    with suppress(OSError, subprocess.CalledProcessError):
        subprocess.run([*words, "true"], check=True, capture_output=True)
        return words
    return ()
