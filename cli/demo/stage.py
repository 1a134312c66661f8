"""The stage: hub, proxy driver, agent and example driver as processes of this machine, and a cable that can be cut."""

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

NODE = "edge-1"
DRIVER = "dirdriver.csi"

_READY_S = 30.0
"""How long the processes may take to find each other: seconds, on a slow machine."""


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
        """Take connections."""
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
    """The processes, in a directory that goes with them."""

    def __init__(self, directory: Path, cable: Cable, hub_port: int) -> None:
        self.directory = directory
        self.cable = cable
        self._hub_port = hub_port
        self._processes: list[tuple[str, subprocess.Popen[bytes]]] = []

    @property
    def volumes(self) -> Path:
        """Where the example driver keeps its volumes."""
        return self.directory / "storage" / "volumes"

    @property
    def faults(self) -> Path:
        """The example driver's faults, read at every call."""
        return self.directory / "storage" / "faults"

    @property
    def sidecar_socket(self) -> str:
        """What a sidecar in the cloud dials."""
        return f"unix://{self.directory}/cloud-csi.sock"

    @property
    def vendor_socket(self) -> str:
        """What the kubelet at the edge dials."""
        return f"unix://{self.directory}/edge-csi.sock"

    def raise_curtain(self) -> None:
        """Start every process."""
        at = self.directory
        hub = f"unix://{at}/hub.sock"
        driver = f"--endpoint {self.vendor_socket} --state-dir {at}/storage --node-id {NODE} --drivername {DRIVER}"
        self._start("dirdriver", "examples.dirdriver.main", driver)
        self._start(
            "hub",
            "cli",
            f"hub --uds {hub} --listen 127.0.0.1:{self._hub_port} --insecure --state-dir {at}/hub",
        )
        self._start(
            "edge agent",
            "cli",
            f"edge run --node {NODE} --hub ws://127.0.0.1:{self.cable.port} --insecure --driver {self.vendor_socket} "
            f"--state-dir {at}/edge --status unix://{at}/edge.sock",
        )
        self._start(
            "proxy driver",
            "cli",
            f"driver --drivername {DRIVER} --endpoint {self.sidecar_socket} --hub-endpoint {hub} "
            f"--state-dir {at}/driver",
        )

    async def until(self, ready: Callable[[], Awaitable[bool]], what: str) -> None:
        """Wait for something.

        Raises:
            DemoError: it did not come, or a process ended.
        """
        try:
            async with asyncio.timeout(_READY_S):
                while not await ready():
                    self._check()
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise DemoError(f"{what} did not happen within {_READY_S:g} s") from None

    def drop_curtain(self) -> None:
        """Stop every process, gently first."""
        for _, process in reversed(self._processes):
            process.send_signal(signal.SIGTERM)
        for _, process in reversed(self._processes):
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start(self, name: str, module: str, arguments: str) -> None:
        command = [sys.executable, "-m", module, *arguments.split(" ")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        with (self.directory / f"{name.replace(' ', '-')}.log").open("wb") as output:
            process = subprocess.Popen(  # noqa: S603  # our own commands
                command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, start_new_session=True, env=environment
            )
        self._processes.append((name, process))

    def _check(self) -> None:
        for name, process in self._processes:
            if process.poll() is not None:
                text = (self.directory / f"{name.replace(' ', '-')}.log").read_text(errors="replace")
                raise DemoError(f"the {name} ended with exit code {process.returncode}:\n{text[-2000:]}")


@asynccontextmanager
async def stage() -> AsyncIterator[Stage]:
    """A stage that leaves nothing behind, whatever happens on it."""
    directory = Path(tempfile.mkdtemp(prefix="csi-bridge-demo-"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    cable = Cable(port)
    await cable.lay()
    found = Stage(directory, cable, port)
    try:
        found.raise_curtain()
        yield found
    finally:
        await cable.remove()
        found.drop_curtain()
        shutil.rmtree(directory, ignore_errors=True)
