"""An SSH server of a bench, on an address of its own, with keys in its directory. It knows nothing of CSI."""

import getpass
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.kit.ports import free_ports
from tests.kit.processes import Supervisor, listens_on

_SSHD_DIRECTORY = Path("/run/sshd")
"""Without it root's sshd does not start; only the system's service makes it otherwise. It stays: others may use it."""
_SYSTEM_PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/usr/local/sbin:/sbin"  # sshd is on root's PATH only


@contextmanager
def ssh_server(here: Path, host: str) -> Iterator[list[object]]:
    """Run an SSH server at an address, with keys and logs in a directory. Yield the client's command for forwarding.

    Each side closes a connection after 20 s of silence, as the bridge does.
    """
    (port,) = free_ports(1)
    for key in ("host", "user"):
        keygen = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", here / key]
        subprocess.run(keygen, check=True, stdout=subprocess.DEVNULL)
    server = here / "sshd_config"
    server.write_text(
        f"ListenAddress {host}:{port}\nHostKey {here}/host\nAuthorizedKeysFile {here}/user.pub\nPidFile none\n"
        "StrictModes no\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin prohibit-password\n"
        "StreamLocalBindUnlink yes\nClientAliveInterval 10\nClientAliveCountMax 1\n"
    )
    client: list[object] = [
        "ssh", "-N", "-F", "none", "-i", here / "user", "-p", port, f"{getpass.getuser()}@{host}",
        "-o", "StrictHostKeyChecking=no", "-o", f"UserKnownHostsFile={here}/known", "-o", "ExitOnForwardFailure=yes",
        "-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes",
        "-o", "ServerAliveInterval=10", "-o", "ServerAliveCountMax=1", "-o", "ConnectTimeout=10",
    ]  # fmt: skip
    with suppress(OSError):  # sshd says so if it is missing
        _SSHD_DIRECTORY.mkdir(mode=0o755, exist_ok=True)
    with Supervisor(here) as supervisor:
        sshd = shutil.which("sshd", path=_SYSTEM_PATH)  # its whole path: it starts itself again for each connection
        supervisor.start("sshd", [sshd, "-D", "-e", "-f", server], ready=lambda: listens_on((host, port)))
        yield client
