"""A network of the test's own: what listens in it can be reached from nowhere else, and no port or address is taken."""

import contextlib
import ctypes
import os
import subprocess
from collections.abc import Iterator

_CLONE_NEWNET = 0x4000_0000


@contextlib.contextmanager
def own_network() -> Iterator[None]:
    """While this lasts the calling thread, and each process that it starts, is in a network namespace of its own."""
    libc = ctypes.CDLL(None, use_errno=True)
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        _check(libc.unshare(_CLONE_NEWNET))
        try:
            subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
            yield
        finally:
            _check(libc.setns(before, _CLONE_NEWNET))
    finally:
        os.close(before)


def add_address(address: str) -> None:
    subprocess.run(["ip", "address", "replace", f"{address}/32", "dev", "lo"], check=True)


def _check(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
