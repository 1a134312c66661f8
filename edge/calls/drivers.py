"""A vendor's CSI driver on its UNIX socket: its answers about itself, and calls to it.

Rules:

* A driver's name is the one in its answer to GetPluginInfo. It is asked again when its socket's file changes, and from
  time to time. Its last answers hold while it is away.
* On each new connection the driver is asked for its name first. A call for a driver that another one has replaced at
  the same socket is not sent.
* If a driver has no topology of its own, Kubernetes gets the node's segment in its NodeGetInfo
  (`common.objects.topology`). The driver's report to the hub stays unchanged.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

from google.protobuf.message import DecodeError

from common.csi.csi_pb2 import GetPluginInfoResponse
from common.csi.reports import (
    ESSENTIAL_METHODS,
    GET_PLUGIN_CAPABILITIES,
    GET_PLUGIN_INFO,
    NODE_GET_INFO,
    REPORTED_METHODS,
    Answer,
    DriverReport,
)
from common.errors import CallError, VendorBroken
from common.net.sockets import FileId, file_id
from common.objects.topology import has_topology, told_node_info
from common.observe.tasks import supervised
from common.parsers import LONGEST_NAME_CHARS
from common.relay.client import Ask, Channel
from common.relay.errors import VendorConnectionError, VendorUnreachable
from common.status import Code, Status, code_name
from edge.calls.driver_call import PARSE_OFF_LOOP_BYTES, blame, parsed

log = logging.getLogger("csi_bridge.edge.drivers")

_ASK_TIMEOUT_S = 10.0  # the limit for one Identity or capability call: the sidecars' own

# Answers that tell a driver's abilities. Any other code is a passing trouble, and the driver is asked again.
_LASTING = {Code.OK, Code.UNIMPLEMENTED}

_LOOK_S = 1.0  # the interval at which a socket is checked: a driver's restart is noticed within a second

# The interval at which a running driver is asked again. Capabilities change only with a restart, so this finds odd
# cases. A driver's volume limit may change more often; then its CSIDriver object gives the interval.
ASK_AGAIN_S = 60.0

# The interval for a driver that could not answer everything, for example while it waits for a metadata service.
_ASK_SOON_S = 5.0


class Driver:
    """The driver at one socket. `watch()` it as a task; `report` has its last answers."""

    def __init__(
        self,
        socket: Path,
        node: str,
        *,
        max_message_bytes: int,
        changed: Callable[[], None],  # called for a new report or file of the socket, and after the first try to ask
        channel: Channel | None = None,
    ) -> None:
        self.socket = socket
        self.path = str(socket)
        self.node = node
        self.named = False  # whether an operator named the socket
        # Whether the driver's node plugin is at another socket, present or away. Then Node is not called here.
        self.node_plugin_is_elsewhere = False
        self.report: DriverReport | None = None
        self.trouble = "not asked yet"  # why the driver could not be asked last time; empty if it could
        self.away = ""  # why no connection to it could be made last time; empty if one could
        self._file: FileId = None  # the socket's file when it was asked last time
        self.asked = False  # whether it was asked since the agent's start, with or without an answer
        self.ask_every_s = ASK_AGAIN_S  # the interval in seconds at which it is asked again while it runs
        self._changed = changed
        self.channel = channel or Channel(socket, max_message_bytes=max_message_bytes, identify=_name)

    @property
    def name(self) -> str:
        return self.report.driver if self.report is not None else self.path

    def __str__(self) -> str:
        return (
            f"driver {self.report.driver} at {self.path}" if self.report is not None else f"the driver at {self.path}"
        )

    # ---- calls -------------------------------------------------------------------------------------------------------

    async def unary(
        self,
        method: str,
        request: bytes,
        *,
        timeout_s: float | None,
        to: str = "",
        may_begin: Callable[[], bool] | None = None,  # asked when the request is about to leave
    ) -> tuple[Status, bytes | None]:
        """Make a call with one answer, to the driver named `to`, or to any at the socket. Cancelling cancels it.

        Raises CallError, also if the driver does not answer in time.
        """
        try:
            async with asyncio.timeout(timeout_s):
                call = self.channel.call(method, request, timeout_s=timeout_s, driver=to, may_begin=may_begin)
                status, body = await call.unary()
        except TimeoutError:
            why = f"it did not answer {method} within {timeout_s:g} s"
            raise VendorBroken(to or self.name, self.node, why) from None
        except VendorConnectionError as error:
            raise blame(to or self.name, self.node, error) from error
        await self._check(method, body)
        return status, body

    async def node_info(
        self,
        request: bytes,
        *,
        timeout_s: float | None,
        to: str,
        announced: Callable[[], bool],  # whether it is known to have a topology, whatever this socket answers
    ) -> tuple[Status, bytes | None]:
        """Call NodeGetInfo and return the answer for Kubernetes, with the node's segment where needed."""
        # It is asked now whether it has a topology: the keys are hard to change once Kubernetes has them.
        self.channel.check_socket()  # Kubernetes keeps the answer, and a replaced driver may go on
        status, body = await self.unary(NODE_GET_INFO, request, timeout_s=timeout_s, to=to)
        if body is None:
            return status, None
        said, capabilities = await self.unary(GET_PLUGIN_CAPABILITIES, b"", timeout_s=_ASK_TIMEOUT_S, to=to)
        if said.code not in _LASTING:
            why = f"it answered GetPluginCapabilities with {code_name(said.code)}: {said.message}"
            raise VendorBroken(to, self.node, why)
        own = has_topology(capabilities or b"") or announced()
        return status, told_node_info(body, self.node, own_topology=own)

    async def stream(
        self, method: str, request: bytes, *, timeout_s: float | None, to: str = ""
    ) -> AsyncGenerator[bytes | Status, None]:
        """Make a call with any number of answers: yields them, then the vendor's status. Closing cancels it."""
        call = self.channel.call(method, request, timeout_s=timeout_s, driver=to)
        try:
            async for message in call:
                await self._check(method, message)
                yield message
            yield call.status
        except VendorConnectionError as error:
            raise blame(to or self.name, self.node, error) from error
        finally:
            call.cancel()

    async def _check(self, method: str, message: bytes | None) -> None:
        if message is not None and len(message) > PARSE_OFF_LOOP_BYTES:
            await asyncio.to_thread(parsed, self.name, self.node, method, message)
        else:
            parsed(self.name, self.node, method, message)

    # ---- answers about itself ----------------------------------------------------------------------------------------

    async def watch(self) -> None:
        async with supervised() as tasks:
            tasks.start(self._watch_file(), name=f"look at {self.path}")
            while True:
                seen = file_id(self.path)
                self.channel.check_socket()
                await self._ask()
                waited_s = 0.0
                had_connection = self.channel.connected
                while waited_s < self._ask_again_s() and file_id(self.path) == seen:
                    await asyncio.sleep(_LOOK_S)
                    waited_s += _LOOK_S
                    if had_connection and not self.channel.connected:  # a killed driver leaves its file
                        break

    async def _watch_file(self) -> None:
        # During a question, too: a driver that hangs at it may have a successor. And each time: a dial may have begun
        # before the file changed, and ended after.
        while True:
            self.channel.check_socket()
            await asyncio.sleep(_LOOK_S)

    async def close(self) -> None:
        await self.channel.close()

    def _ask_again_s(self) -> float:
        if self.trouble or self.report is None:
            return _LOOK_S
        return self.ask_every_s if len(self.report.answers) == len(REPORTED_METHODS) else _ASK_SOON_S

    async def _ask(self) -> None:
        before = self.asked, self.report, self.away, self._file
        self._file = file_id(str(self.socket))
        try:
            self._answered(await self._identify())
        except CallError as error:
            self.trouble = error.why if isinstance(error, VendorBroken) else str(error)
            self.away = self.trouble if isinstance(error.__cause__, VendorUnreachable) else ""
        self.asked = True
        if (self.asked, self.report, self.away, self._file) != before:
            self._changed()

    def _answered(self, report: DriverReport) -> None:
        if self.trouble or report != self.report:
            log.info("driver %s answers at %s", report.driver, self.socket)
        if self.report is not None and self.report.driver != report.driver:
            log.warning(
                "the driver at %s was %s and now calls itself %s", self.socket, self.report.driver, report.driver
            )
        self.trouble = ""
        self.away = ""
        self.report = report

    async def _identify(self) -> DriverReport:
        name = ""
        answers: dict[str, Answer] = {}
        for method in REPORTED_METHODS:
            status, body = await self.unary(method, b"", timeout_s=_ASK_TIMEOUT_S, to=name)
            if method == GET_PLUGIN_INFO:
                try:
                    name = _name_in(status, body)
                except ValueError as error:
                    raise VendorBroken(str(self.socket), self.node, str(error)) from error
            if status.code in _LASTING:
                answers[method] = Answer(status.code, status.message, body or b"")
            elif method in ESSENTIAL_METHODS:  # most calls work without the others
                raise VendorBroken(name, self.node, f"it answered {method} with {code_name(status.code)}")
        return DriverReport(name, self.node, answers)


async def _name(ask: Ask) -> str:
    return _name_in(*await ask(GET_PLUGIN_INFO, b"").unary())


def _name_in(status: Status, body: bytes | None) -> str:
    if not status.ok:
        raise ValueError(f"it does not give its name: it answered GetPluginInfo with {code_name(status.code)}")
    try:
        name = GetPluginInfoResponse.FromString(body or b"").name
    except DecodeError:
        raise ValueError("it does not give its name: its answer to GetPluginInfo does not parse") from None
    if not name:
        raise ValueError("it gives no name")
    if len(name) > LONGEST_NAME_CHARS:
        raise ValueError(f"it gives a name of {len(name)} characters; CSI allows 63")
    return name
