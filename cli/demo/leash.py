"""A leash: the command prefix that makes a child process die with its parent, even if the parent is killed.

The kernel's parent-death signal belongs to the thread that started the child. So start the child from a thread that
lives as long as the child.
"""

import functools
import shutil
import subprocess


@functools.cache
def leash() -> tuple[str, ...]:
    """The words to put before a command; none if util-linux' setpriv(1) is missing."""
    # Not preexec_fn: Python code between fork and exec can deadlock beside threads, and Python warns of it.
    words = (shutil.which("setpriv") or "", "--pdeathsig", "KILL", "--")
    return words if words[0] and _works(words) else ()


def _works(words: tuple[str, ...]) -> bool:
    # BusyBox has a setpriv too, which does not know the flag.
    return subprocess.run([*words, "true"], check=False, capture_output=True).returncode == 0  # noqa: S603  # our own
