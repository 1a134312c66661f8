"""For each driver of a node with a kubelet, a socket on which the kubelet calls the driver through the agent.

A kubelet writes the answer of NodeGetInfo into CSINode and Node. If a driver has no topology of its own, the relay adds
the node's segment to that answer (`common.objects.topology`;
docs/csi-contract.md#the-bridges-topology-for-vendors-without-one).

Rules:

* A driver's socket is `DIRECTORY/NAME.sock`. It exists as soon as the driver has told its name. A socket left by a
  killed agent is replaced.
* A call goes to the driver as bytes with its remaining time, and ends with the driver's own status. Only the answer of
  NodeGetInfo is changed, and calls about direct volumes are answered in the driver's place (`edge.beside`).
* If the driver did not answer, the call ends with UNAVAILABLE, a little before the kubelet's time is up: the kubelet
  takes the outcome as unknown, says it in an Event of the pod, and tries again. Such a call, or one whose caller is
  gone, is cancelled at the driver too.
* An agent that stops removes the sockets and lets running calls end. A kubelet dials again for each call.
"""

import asyncio
import contextlib
import functools
import logging
import os
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from common.csi.reports import NODE_GET_INFO
from common.errors import CallError, CallTimeout, VendorBroken, shutting_down, status_of
from common.net.sockets import FileId, file_id, listen_unix
from common.objects.topology import is_tied
from common.relay.errors import PeerGone
from common.relay.server import CancelReason, Server, ServerCall, ServerSettings, in_task
from common.session.deadlines import before_the_caller
from common.status import Code, Origin, Status
from edge.calls.drivers import Driver
from edge.registry.driver_registry import DriverRegistry
from edge.registry.driver_services import find_driver
from edge.registry.registration import PluginOffer, check_name
from edge.settings import AgentSettings

log = logging.getLogger("csi_bridge.edge.kubelet_relay")

_LOOK_S = 5.0  # the interval at which the sockets are checked, and missing ones are made again
_SOCKET_MODE = 0o600  # a kubelet runs as root


@dataclass(frozen=True, slots=True)
class _Served:
    server: Server
    file: FileId


class KubeletRelay:
    """The sockets of one directory. `run()` it as a task, then `close()` it."""

    def __init__(
        self,
        directory: Path,
        settings: AgentSettings,
        registry: DriverRegistry,
        # Takes a driver's name, a method and a request. Returns the answer, or None if it is the driver's to give.
        answer: Callable[[str, str, bytes], Awaitable[bytes | None]] | None = None,
    ) -> None:
        self._directory = directory
        self._own_answer = answer
        self._node = settings.node
        self._limit = settings.max_message_bytes
        self._registry = registry
        self._served: dict[str, _Served] = {}
        self._troubles: dict[str, str] = {}
        self._tied: set[str] = set()  # drivers whose last NodeGetInfo answer to a kubelet contained the node's segment
        self._news = asyncio.Event()
        self._stopping = False
        registry.subscribe(self._news.set)

    def socket_of(self, name: str) -> Path:
        return self._directory / f"{name}.sock"

    def served(self, name: str) -> str:
        return str(self.socket_of(name)) if name in self._served else ""

    def holds(self, endpoint: str) -> bool:
        return os.path.realpath(os.path.dirname(endpoint)) == os.path.realpath(self._directory)  # noqa: PTH120  # a text

    def problems(self, registrations: Iterable[PluginOffer]) -> list[str]:
        found = [f"driver {name} has no relay socket: {why}" for name, why in sorted(self._troubles.items())]
        found += [
            f"driver {name} has a topology of its own, but reported it only after the kubelet had asked: the CSINode "
            f"also lists the bridge's topology key, and no claim can be placed on this node; restart its "
            f"node-driver-registrar"
            for name in sorted(self._tied)
            if self._registry.has_topology(name)
        ]
        return found + [why for offer in registrations if (why := self._misled(offer))]

    def _misled(self, offer: PluginOffer) -> str:
        name = offer.name
        endpoint = offer.endpoint
        socket = self.socket_of(offer.name)
        remedy = f"give its node-driver-registrar --kubelet-registration-path={socket}"
        if not self.holds(endpoint):
            if not self._registry.lacks_topology(name):
                return ""
            return (
                f"driver {name} has no topology of its own and registers with the kubelet as {endpoint}, not through "
                f"the relay: no topology key ties its volumes to this node; {remedy}"
            )
        if Path(endpoint).name != socket.name:
            return f"driver {name} registers with the kubelet as {endpoint}, which is another driver's; {remedy}"
        if name in self._served or name in self._troubles:
            return ""
        return (
            f"driver {name} registers with the kubelet through the relay, but it was not found or does not answer: if "
            f"its socket is not plugins/<directory>/csi.sock, name the socket with the agent's --driver"
        )

    # ---- run and close -----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        while not self._stopping:
            self._news.clear()
            await self._compare_sockets()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await self._news.wait()

    async def drain(self) -> None:
        self._stopping = True
        await asyncio.gather(*(served.server.drain() for served in self._served.values()))

    async def close(self) -> None:
        self._stopping = True
        await asyncio.gather(*(self._close_socket(name) for name in list(self._served)))

    async def _compare_sockets(self) -> None:
        wanted = self._registry.names
        for name in self._served.keys() - wanted:
            await self._close_socket(name)
            log.info("driver %s is gone, and so is its relay socket", name)
        self._troubles = {name: why for name, why in self._troubles.items() if name in wanted}
        for name in sorted(wanted):
            if self._stopping:
                return
            served = self._served.get(name)
            if served is not None and served.file != file_id(str(self.socket_of(name))):
                log.warning("the relay socket of driver %s was removed; it is created again", name)
                await self._close_socket(name)
                served = None
            if served is None:
                await self._open_socket(name)

    async def _open_socket(self, name: str) -> None:
        path = self.socket_of(name)
        try:
            check_name(name)
            self._directory.mkdir(mode=0o755, parents=True, exist_ok=True)
            sock = listen_unix(path, mode=_SOCKET_MODE)
        except (OSError, ValueError) as error:
            self._troubles[name] = error.strerror or str(error) if isinstance(error, OSError) else str(error)
            return
        try:
            settings = ServerSettings(max_message_bytes=self._limit, on_error=self._on_error, origin=Origin.EDGE)
            server = Server(in_task(functools.partial(self._answer, name)), settings)
            await server.listen(sock)
        except BaseException:
            sock.close()
            raise
        self._troubles.pop(name, None)
        self._served[name] = _Served(server, file_id(str(path)))
        log.info("a kubelet finds driver %s at %s", name, path)

    async def _close_socket(self, name: str) -> None:
        if (served := self._served.pop(name, None)) is not None:
            await served.server.close()

    # ---- calls -------------------------------------------------------------------------------------------------------

    async def _answer(self, name: str, call: ServerCall) -> None:
        limit_s = before_the_caller(call.timeout_s)
        try:
            async with asyncio.timeout(limit_s):
                await self._pass_on(name, find_driver(self._registry.drivers, name, self._node, call.method), call)
        except TimeoutError:
            raise VendorBroken(name, self._node, f"it did not answer {call.method} within {limit_s:.3g} s") from None

    async def _pass_on(self, name: str, driver: Driver, call: ServerCall) -> None:
        if (
            self._own_answer is not None
            and (own := await self._own_answer(name, call.method, call.request)) is not None
        ):
            await call.send(own)
            call.finish(Status(Code.OK))
            return
        if call.method == NODE_GET_INFO:
            status, body = await driver.node_info(
                call.request,
                timeout_s=call.timeout_s,
                to=name,
                announced=functools.partial(self._registry.has_topology, name),
            )
            if body is not None:
                (self._tied.add if is_tied(body) else self._tied.discard)(name)
                await call.send(body)
            call.finish(status)
            return
        answer = driver.stream(call.method, call.request, timeout_s=call.timeout_s, to=name)
        async with contextlib.aclosing(answer):
            async for item in answer:
                if isinstance(item, Status):
                    call.finish(item)
                    return
                await call.send(item)

    def _on_error(self, error: BaseException | CancelReason | None) -> Status:
        if isinstance(error, CancelReason):
            cut = shutting_down("edge agent") if error is CancelReason.CLOSING else CallTimeout("the driver")
            return status_of(cut, Origin.EDGE)
        if isinstance(error, CallError):
            log.warning("a kubelet's call was not answered by its driver: %s", error)
        elif error is not None and not isinstance(error, PeerGone):
            log.error("a kubelet's call failed inside the edge agent", exc_info=error)
        return status_of(error, Origin.EDGE)
