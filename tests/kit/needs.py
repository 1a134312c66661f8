"""The needs of tests: a reason to skip reads "needs X: how to get it", and the end of the run counts the reasons.

In a required run (`CSI_BRIDGE_REQUIRE_PEERS=1`) `tests/conftest.py` fails a skipped test whose need can be installed.
"""

import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.peers import build

ROOT = "needs root: sudo make test"
GO = "needs Go 1.26 or newer on PATH: install Go"
PEER = "needs peers that are not built: make peers"
XFS = "needs a kernel with xfs"
PODMAN = "needs podman on PATH"
CLONE = "needs git, and a clone of the repository"

PACKAGES = {
    "iptables": "iptables",
    "mkfs.ext4": "e2fsprogs",
    "mkfs.xfs": "xfsprogs",
    "openssl": "openssl",
    "setpriv": "util-linux",
    "setsid": "util-linux",
    "systemd-analyze": "systemd",
    "tc": "iproute2",
    "tinyproxy": "tinyproxy-bin",
}
"""Program → Debian's package."""

_INSTALLABLE = re.compile(r": (make peers|install Go|apt-get install \S+)$")
_ONE_PEER = re.compile(r"^needs \S+, a peer that is not built: .*")


def program(name: str) -> str:
    """Return the reason of a test that lacks a program; empty if it is here."""
    return "" if shutil.which(name) else f"needs {name}: apt-get install {PACKAGES[name]}"


def root() -> str:
    """Return the reason of a test that lacks root's rights; empty if this is root."""
    return "" if os.geteuid() == 0 else ROOT


def capability(number: int, name: str) -> str:
    """Return the reason of a test that lacks a Linux capability (capabilities(7)); empty if this process has it."""
    if has_capability(number):
        return ""
    return ROOT if os.geteuid() else f"needs {name}, which this root has not"


def has_capability(number: int) -> bool:
    """Whether this process, and so a driver that it starts, has a Linux capability (capabilities(7))."""
    found = re.search(r"^CapEff:\s*([0-9a-f]+)$", Path("/proc/self/status").read_text(), re.MULTILINE)
    return bool(found and int(found[1], 16) >> number & 1)


def clone() -> str:
    """Return the reason of a test that lacks the tree's history; empty if it is here."""
    return "" if shutil.which("git") and (Path(__file__).parents[2] / ".git").exists() else CLONE


def loop_devices() -> str:
    """Return the reason of a test that lacks loop devices; empty if they are here."""
    return "" if Path("/dev/loop-control").exists() else "needs loop devices"


def tun() -> str:
    """Return the reason of a test that lacks TUN devices; empty if they are here."""
    return "" if Path("/dev/net/tun").exists() else "needs /dev/net/tun"


def kernel_xfs() -> str:
    """Return the reason of a test that lacks xfs in the kernel; empty if it is here."""
    return "" if "xfs" in Path("/proc/filesystems").read_text() else XFS


def peer(name: str) -> str:
    return f"needs {name}, a peer that is not built: make peers"


def on_path(name: str) -> str:
    """Return the reason of a test that lacks a peer that no module proxy serves."""
    return f"needs {name} on PATH: install it by hand, no Go module proxy serves it"


def needs_kubernetes(oldest: str) -> pytest.MarkDecorator:
    """Return a mark that skips a test on a Kubernetes before a version such as "1.35"."""
    running, needed = ([int(part) for part in re.findall(r"\d+", it)[:2]] for it in (build.KUBERNETES, oldest))
    return pytest.mark.skipif(running < needed, reason=f"needs Kubernetes {oldest} or newer")


def skip_without(*reasons: str) -> pytest.MarkDecorator:
    """Return a mark that skips a test for the first of these reasons that is not empty."""
    reason = next(filter(None, reasons), "")
    return pytest.mark.skipif(bool(reason), reason=reason)


def is_installable(reason: str) -> bool:
    """Whether a run that requires everything can insist on it."""
    return _INSTALLABLE.search(reason) is not None


def summary(reasons: Sequence[str]) -> list[str]:
    """Return lines that count the reasons of all skipped tests, the most frequent first."""
    counts: dict[str, int] = {}
    for each in reasons:
        group = _ONE_PEER.sub(PEER, each)
        counts[group] = counts.get(group, 0) + 1
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [f"{count:5} {reason}" for reason, count in ordered]


_MOUNTS = capability(21, "CAP_SYS_ADMIN")

needs_mounts = skip_without(_MOUNTS)
needs_loops = skip_without(_MOUNTS, loop_devices(), program("mkfs.ext4"))
needs_xfs = skip_without(kernel_xfs(), program("mkfs.xfs"))
