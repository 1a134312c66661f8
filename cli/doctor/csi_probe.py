"""A probe of a CSI socket: asks for its driver, whether this is ready, and how a harmless call ends."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.message import DecodeError

from common.csi.csi_pb2 import GetPluginInfoResponse, ProbeResponse
from common.errors import BridgeError
from common.relay.client import Channel
from common.relay.errors import VendorConnectionError
from common.reports import GET_PLUGIN_CAPABILITIES, GET_PLUGIN_INFO, PROBE
from common.status import Status, code_name
from common.topology import has_topology

GET_CAPACITY = "/csi.v1.Controller/GetCapacity"
"""A read, which a driver may not have: UNIMPLEMENTED is an answer as well."""

_TIMEOUT_S = 10.0
"""The provisioner's timeout for its first calls."""

_MOST_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Identity:
    """The driver at a CSI socket.

    Attributes:
        name: its name, from GetPluginInfo.
        version: its vendor version.
        ready: its answer to Probe; None: the answer does not set `ready`.
    """

    name: str
    version: str
    ready: bool | None


@asynccontextmanager
async def channel(path: Path) -> AsyncIterator[Channel]:
    """A connection for as long as the block lasts."""
    made = Channel(path, max_message_bytes=_MOST_BYTES)
    try:
        yield made
    finally:
        await made.close()


async def identify(path: Path) -> Identity:
    """Return the driver at a socket.

    Raises:
        BridgeError: no driver answers there, or its answers do not parse.
    """
    async with channel(path) as driver:
        info = await _asked(driver, GET_PLUGIN_INFO)
        probe = await _asked(driver, PROBE)
    try:
        said, ready = GetPluginInfoResponse.FromString(info), ProbeResponse.FromString(probe)
    except DecodeError as error:
        raise BridgeError("its answers do not parse") from error
    return Identity(said.name, said.vendor_version, ready.ready.value if ready.HasField("ready") else None)


async def has_own_topology(path: Path) -> bool:
    """Whether a driver has a topology of its own.

    Raises:
        BridgeError: it does not answer, or its answer does not parse.
    """
    async with channel(path) as driver:
        capabilities = await _asked(driver, GET_PLUGIN_CAPABILITIES)
    try:
        return has_topology(capabilities)
    except ValueError as error:
        raise BridgeError(str(error)) from error


async def call(path: Path, method: str) -> Status:
    """Make a call with an empty request, and return its status.

    Raises:
        BridgeError: the driver does not answer.
    """
    async with channel(path) as driver:
        try:
            status, _ = await driver.call(method, b"", timeout_s=_TIMEOUT_S).unary()
        except VendorConnectionError as error:
            raise BridgeError(str(error)) from error
        return status


async def _asked(driver: Channel, method: str) -> bytes:
    try:
        status, body = await driver.call(method, b"", timeout_s=_TIMEOUT_S).unary()
    except VendorConnectionError as error:
        raise BridgeError(str(error)) from error
    if not status.ok:
        raise BridgeError(f"it answered {method} with {code_name(status.code)}: {status.message}")
    return body or b""
