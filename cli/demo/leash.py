"""A leash: what a child process is started with, so that it dies with the process that started it, however that ends.

The kernel's parent-death signal is tied to the thread that started the child: start it from one that lives as long as
the child must.
"""

import functools
import shutil
import subprocess


@functools.cache
def leash() -> tuple[str, ...]:
    """The words to put before a command; none where there is no setpriv(1) of util-linux."""
    # Not preexec_fn: Python code between fork and exec can deadlock beside threads, and Python warns of it.
    words = (shutil.which("setpriv") or "", "--pdeathsig", "KILL", "--")
    return words if words[0] and _works(words) else ()


def _works(words: tuple[str, ...]) -> bool:
    # BusyBox has a setpriv too, which does not know the flag.
    return subprocess.run([*words, "true"], check=False, capture_output=True).returncode == 0  # noqa: S603  # our own
