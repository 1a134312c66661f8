"""Commands: runs external programs of the node (mount, losetup, cp …)."""

import shutil
import subprocess
from collections.abc import Container

from examples.dirdriver import errors


def run(*command: str, tell: bool = True, accept: Container[int] = (0,)) -> str:
    """Run a program and return its standard output. `accept` are the exit codes that mean success.

    Without `tell`, an error does not quote the program's output: its arguments are sensitive.

    Raises:
        CsiError: FAILED_PRECONDITION if the program is not installed, INTERNAL if it fails.
    """
    if shutil.which(command[0]) is None:
        raise errors.precondition(f"{command[0]} is not installed on this node")
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)  # noqa: S603  # no shell
    if done.returncode not in accept:
        said = " ".join(done.stderr.split()) if tell else ""
        raise errors.internal(f"{command[0]} failed with exit code {done.returncode}: {said or 'see the kernel log'}")
    return done.stdout
