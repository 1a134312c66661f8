"""The stage: hub, proxy driver, agent and example driver as processes, and a cable between agent and hub."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from cli.demo.leash import leash
from edge.disk.mounts import read_table

NODE = "edge-1"
DRIVER = "dirdriver.csi"

_READY_S = 30.0
"""How long the processes may take to find each other: seconds, on a slow machine."""

_STOP_S = 5.0
"""How long the processes may take to stop, before they are killed: seconds, for all of them."""


class DemoError(Exception):
    """The demo cannot go on; the text says why."""


class Cable:
    """The network between agent and hub: a TCP relay that can be cut and mended."""

    def __init__(self, hub_port: int) -> None:
        self._hub_port = hub_port
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._relays: set[asyncio.Task[None]] = set()
        self._is_cut = False
        self.port = 0

    async def lay(self) -> None:
        """Begin to accept connections."""
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        """Break every connection, and each new one."""
        self._is_cut = True
        for writer in self._writers:
            writer.transport.abort()

    def mend(self) -> None:
        """Let connections through again."""
        self._is_cut = False

    async def remove(self) -> None:
        """Cut it for good."""
        self.cut()
        if self._server is not None:
            self._server.close()
        await asyncio.gather(*self._relays, return_exceptions=True)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._relays.add(task)
        task.add_done_callback(self._relays.discard)
        if self._is_cut:
            writer.transport.abort()
            return
        try:
            hub_reader, hub_writer = await asyncio.open_connection("127.0.0.1", self._hub_port)
        except OSError:
            writer.transport.abort()
            return
        ends = {writer, hub_writer}
        self._writers |= ends
        await asyncio.gather(_copy(reader, hub_writer), _copy(hub_reader, writer))
        self._writers -= ends


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.close()


class Stage:
    """The demo's processes, with their directory.

    Attributes:
        directory: the directory with all state and sockets.
        cable: the network between agent and hub.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._hub_port = free.getsockname()[1]
        self.cable = Cable(self._hub_port)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._commands: dict[str, list[str]] = {}

    @property
    def volumes(self) -> Path:
        """The directory of the example driver's volumes."""
        return self.directory / "storage" / "volumes"

    @property
    def manifests(self) -> Path:
        """The directory from which the hub reads Kubernetes objects."""
        return self.directory / "manifests"

    @property
    def kubelet(self) -> Path:
        """The directory in which the edge agent does a kubelet's work."""
        return self.directory / "kubelet"

    @property
    def agent_socket(self) -> Path:
        """The edge agent's status socket."""
        return self.directory / "edge.sock"

    @property
    def sidecar_socket(self) -> Path:
        """The proxy driver's socket, for sidecars in the cloud."""
        return self.directory / "cloud-csi.sock"

    @property
    def vendor_socket(self) -> Path:
        """The socket of the vendor's driver, at the edge."""
        return self.directory / "edge-csi.sock"

    async def raise_curtain(self) -> None:
        """Lay the cable and start every process."""
        await self.cable.lay()
        self.manifests.mkdir()
        at, hub, vendor = self.directory, f"unix://{self.directory}/hub.sock", f"unix://{self.vendor_socket}"
        self._start(
            "dirdriver",
            "examples.dirdriver.main",
            *(f"--endpoint={vendor}", f"--state-dir={at}/storage", f"--node-id={NODE}", f"--drivername={DRIVER}"),
        )
        self._start(
            "hub",
            "cli",
            *("hub", f"--uds={hub}", f"--listen=127.0.0.1:{self._hub_port}", "--insecure", f"--state-dir={at}/hub"),
            f"--manifests={self.manifests}",
        )
        self._start(
            "edge agent",
            "cli",
            *("edge", "run", f"--node={NODE}", f"--hub=ws://127.0.0.1:{self.cable.port}", "--insecure"),
            *(f"--driver={vendor}", f"--state-dir={at}/edge", f"--status=unix://{self.agent_socket}"),
            f"--root-dir={self.kubelet}",
        )
        self._start(
            "proxy driver",
            "cli",
            *("driver", f"--drivername={DRIVER}", f"--endpoint=unix://{self.sidecar_socket}"),
            *(f"--hub-endpoint={hub}", f"--state-dir={at}/driver"),
        )

    async def until(self, ready: Callable[[], Awaitable[bool]], what: str) -> None:
        """Wait until `ready` is true.

        Raises:
            DemoError: the time is up, or a process ended.
        """
        try:
            async with asyncio.timeout(_READY_S):
                while not await ready():
                    self._check()
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise DemoError(f"{what} did not happen within {_READY_S:g} s") from None

    def drop_curtain(self) -> None:
        """Stop every process, with SIGTERM first, and unmount the pods' volumes."""
        started = list(reversed(self._processes.values()))
        for process in started:
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGCONT)  # a paused process would not see SIGTERM
        give_up = time.monotonic() + _STOP_S
        for process in started:
            try:
                process.wait(timeout=max(0.0, give_up - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.unmount()

    def kill(self, *names: str) -> None:
        """End processes as a power cut does."""
        for name in names:
            process = self._processes.pop(name)
            process.kill()
            process.wait()

    def pause(self, name: str) -> None:
        """Let a process hang until `resume`."""
        self._processes[name].send_signal(signal.SIGSTOP)

    def resume(self, name: str) -> None:
        """Let a paused process go on."""
        self._processes[name].send_signal(signal.SIGCONT)

    def start_again(self, name: str) -> None:
        """Start a process that was killed."""
        self._spawn(name)

    def unmount(self) -> int:
        """Unmount everything below the kubelet's directory, as a reboot does. Returns the number of mounts."""
        found = read_table(self.kubelet).within(self.kubelet)
        for path in reversed(found):
            subprocess.run(["umount", "--lazy", path], check=False, capture_output=True)  # noqa: S603, S607  # the system's
        return len(found)

    def _start(self, name: str, module: str, *arguments: str) -> None:
        # -P: import nothing from the current directory.
        self._commands[name] = [*leash(), sys.executable, "-P", "-m", module, *arguments]
        self._spawn(name)

    def _spawn(self, name: str) -> None:
        with self._log(name).open("ab") as output:
            self._processes[name] = subprocess.Popen(  # noqa: S603  # our own commands
                self._commands[name],
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env=_environment(),
            )

    def _log(self, name: str) -> Path:
        return self.directory / f"{name.replace(' ', '-')}.log"

    def _check(self) -> None:
        for name, process in self._processes.items():
            if process.poll() is not None:
                text = self._log(name).read_text(errors="replace")
                raise DemoError(f"the {name} ended with exit code {process.returncode}:\n{text[-2000:]}")


def _environment() -> dict[str, str]:
    """This process's environment, without variables that set flags of the demo's processes."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CSI_BRIDGE_", "DIRDRIVER_"))}
    return {**kept, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


@asynccontextmanager
async def stage() -> AsyncIterator[Stage]:
    """A stage that is removed at the end of the block, also after an error."""
    with tempfile.TemporaryDirectory(prefix="csi-bridge-demo-", ignore_cleanup_errors=True) as name:
        found = Stage(Path(name))
        try:
            await found.raise_curtain()
            yield found
        finally:
            await found.cable.remove()
            found.drop_curtain()
