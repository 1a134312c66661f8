"""A tunnel: another program's way from a UNIX socket to the driver's, for comparison with the bridge in the same run.

`ssh -L` forwards a UNIX socket through a server of its own on loopback, with keys in the bench's directory. chisel
forwards TCP only, so a bare relay (`bench/floor.py`) stands at each end. Neither knows of CSI: they lose calls with
their connection.
"""

import getpass
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path

from tests.kit.ports import free_ports
from tests.kit.processes import ProcessDiedError, Supervisor, listens_on
from tests.kit.waiting import NeverCameError

_FLOOR = Path(__file__).with_name("floor.py")
_SSHD_DIRECTORY = Path("/run/sshd")
"""Without it root's sshd does not start; only the system's service makes it otherwise. It stays: others may use it."""
_SYSTEM_PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/usr/local/sbin:/sbin"
"""sshd is on root's PATH only."""


@contextmanager
def relays(directory: Path, vendor: Path) -> Iterator[tuple[Path, list[int]]]:
    """Run three bare relays, the floor. Yield the socket in front of them and their process ids."""
    stops = [vendor, *(directory / f"floor{number}.sock" for number in range(1, 4))]
    with Supervisor(directory) as supervisor:
        pids = []
        for target, source in pairwise(stops):
            relay = [sys.executable, _FLOOR, source, target]
            pids.append(supervisor.start(source.stem, relay, ready=partial(listens_on, source)).pid)
        yield stops[-1], pids


@contextmanager
def tunnels(directory: Path, vendor: Path) -> Iterator[dict[str, Path | str]]:
    """Run the tunnels that this machine has. Yield by name the socket of each, or the reason why there is none."""
    found: dict[str, Path | str] = {}
    with ExitStack() as opened:
        for name, (tunnel, programs) in _TUNNELS.items():
            if absent := [each for each in programs if not shutil.which(each, path=_SYSTEM_PATH)]:
                found[name] = f"{absent[0]} is not on the PATH"
                continue
            try:
                found[name] = opened.enter_context(tunnel(directory, vendor))
            except (ProcessDiedError, NeverCameError) as error:
                found[name] = f"it does not run: {str(error).strip().splitlines()[-1]}"
        yield found


@contextmanager
def _ssh(directory: Path, vendor: Path) -> Iterator[Path]:
    here, socket = directory / "ssh", directory / "ssh.sock"
    here.mkdir(mode=0o700)
    with ssh_server(here, "127.0.0.1") as client, Supervisor(here) as supervisor:
        supervisor.start("ssh", [*client, "-L", f"{socket}:{vendor}"], ready=lambda: listens_on(socket))
        yield socket


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


@contextmanager
def _chisel(directory: Path, vendor: Path) -> Iterator[Path]:
    here, socket = directory / "chisel", directory / "chisel.sock"
    here.mkdir()
    server, near, far = free_ports(3)
    with Supervisor(here) as supervisor:
        relay = [sys.executable, _FLOOR]
        supervisor.start("far", [*relay, f"127.0.0.1:{far}", vendor], ready=lambda: listens_on(far))
        serve = ["chisel", "server", "--host=127.0.0.1", f"--port={server}"]
        supervisor.start("server", serve, ready=lambda: listens_on(server))
        forward = f"127.0.0.1:{near}:127.0.0.1:{far}"
        dial = ["chisel", "client", f"http://127.0.0.1:{server}", forward]
        supervisor.start("client", dial, ready=lambda: listens_on(near))
        supervisor.start("near", [*relay, socket, f"127.0.0.1:{near}"], ready=lambda: listens_on(socket))
        yield socket


_TUNNELS = {"ssh -L": (_ssh, ("ssh", "sshd", "ssh-keygen")), "chisel": (_chisel, ("chisel",))}
"""By name: how to start each tunnel, and the programs that it needs."""
