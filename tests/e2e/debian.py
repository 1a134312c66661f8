"""Programs of Debian's packages that a node needs: found on PATH, or installed where root runs this."""

import functools
import os
import shutil
import subprocess
from pathlib import Path

PACKAGES = {
    "containerd": "containerd",
    "ctr": "containerd",
    "containerd-shim-runc-v2": "containerd",
    "runc": "runc",
    "busybox": "busybox-static",
    "ptp": "containernetworking-plugins",
    "host-local": "containernetworking-plugins",
    "mkfs.xfs": "xfsprogs",
    "ip": "iproute2",
}
"""Program → the package that it is in."""

_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/lib/cni"
_INSTALL_LIMIT_S = 600


def find(name: str) -> Path | None:
    """A program, or None where it is neither installed nor to be had."""
    return _which(name) or (_which(name) if _install() else None)


def _which(name: str) -> Path | None:
    found = shutil.which(name) or shutil.which(name, path=_SYSTEM_PATH)
    return Path(found) if found else None


@functools.cache
def _install() -> bool:
    """Install all packages, once in a test run; whether that worked."""
    apt = _which("apt-get")
    if apt is None or os.geteuid() != 0:
        return False
    install = [str(apt), "install", "--yes", "--no-install-recommends", *sorted(set(PACKAGES.values()))]
    return _runs(install) or (_runs([str(apt), "update"]) and _runs(install))


def _runs(command: list[str]) -> bool:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(
        command,
        check=False,
        capture_output=True,
        env=environment,
        timeout=_INSTALL_LIMIT_S,
        stdin=subprocess.DEVNULL,
    )
    return done.returncode == 0
