"""A local bridge: hub, agent and proxy driver in this process, on real sockets, for tests that look inside.

    async with LocalBridge(short_dir, vendor.socket) as bridge:
        assert (await bridge.call("GetCapacity")).ok

Each of the two hops has a lab link, so that a test can cut it; with the proxy driver inside the hub, the edge's alone.
"""

import asyncio
import contextlib
from collections.abc import Coroutine
from pathlib import Path
from typing import Self

from cli.process_options import DRIVER_OPTIONS, EDGE_OPTIONS, HUB_OPTIONS
from cloud import csi_proxy_driver, hub_process
from common.relay.client import Channel
from common.relay.errors import VendorConnectionError
from common.status import Status
from edge import agent
from tests.kit.answers import path_of
from tests.kit.ports import free_ports
from tests.lab.link import Link

_WAIT_S = 0.005
_DRIVER = "vendor.test"


class LocalBridge:
    """Runs all processes' `run` as tasks of this loop."""

    def __init__(self, directory: Path, vendor: Path, *, in_hub: bool = False) -> None:
        self._directory, self._vendor, self._in_hub = directory, vendor, in_hub
        self._socket = directory / "csi.sock"
        self._stopping = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._stack = contextlib.AsyncExitStack()
        self._channel = Channel(self._socket, max_message_bytes=4 << 20)
        self.links: list[Link] = []  # between agent and hub, and between proxy driver and hub

    async def call(self, method: str, request: bytes = b"", *, timeout_s: float | None = None) -> Status:
        """Return the status of a sidecar's call.

        Raises:
            VendorConnectionError: the proxy driver could not be reached.
        """
        status, _ = await self._channel.call(path_of(method), request, timeout_s=timeout_s).unary()
        return status

    async def wait_routed(self) -> None:
        while True:
            with contextlib.suppress(VendorConnectionError):
                if (await self.call("GetCapacity")).ok:
                    return
            await asyncio.sleep(_WAIT_S)

    async def cut(self) -> None:
        for link in self.links:
            await link.cut()
            link.heal()

    async def __aenter__(self) -> Self:
        (port,) = free_ports(1)
        uds, states = self._directory / "hub.sock", self._directory / "state"
        hub = HUB_OPTIONS.read(
            {
                "uds": f"unix://{uds}",
                "listen": f"127.0.0.1:{port}",
                "insecure": "true",
                "state_dir": str(states / "hub"),
                **({"serve": [f"{_DRIVER}=unix://{self._socket}"]} if self._in_hub else {}),
            }
        )
        self._start(hub_process.run(hub, self._stopping), "hub")
        while not uds.exists():  # noqa: ASYNC110  # a file has no event
            await asyncio.sleep(_WAIT_S)
        await self._start_link(f"127.0.0.1:{port}", "127.0.0.1:0")
        edge = EDGE_OPTIONS.read(
            {
                "node": "n1",
                "hub": f"ws://{self.links[0].address}",
                "insecure": "true",
                "driver": [f"unix://{self._vendor}"],
                "state_dir": str(states / "edge"),
                "root_dir": str(states / "kubelet"),
                "status": f"unix://{self._directory / 'edge.sock'}",
            }
        )
        self._start(agent.run(edge, self._stopping), "agent")
        if not self._in_hub:
            await self._start_link(f"unix://{uds}", f"unix://{self._directory}/l.sock")
            proxy = DRIVER_OPTIONS.read(
                {
                    "drivername": _DRIVER,
                    "endpoint": f"unix://{self._socket}",
                    "hub_endpoint": self.links[1].address,
                    "state_dir": str(states / "proxy"),
                }
            )
            self._start(csi_proxy_driver.run(proxy, self._stopping), "proxy")
        await self.wait_routed()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()
        self._stopping.set()
        await asyncio.gather(*self._tasks)
        await self._stack.aclose()

    async def _start_link(self, to: str, listen: str) -> None:
        self.links.append(await self._stack.enter_async_context(Link(to=to, listen=listen)))

    def _start(self, run: Coroutine[object, object, None], name: str) -> None:
        self._tasks.append(asyncio.create_task(run, name=name))
