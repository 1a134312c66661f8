"""A probe of a CSI socket: asks for its driver, whether this is ready, and how a harmless call ends."""

from pathlib import Path

from google.protobuf.message import DecodeError

from common.csi.csi_pb2 import GetPluginInfoResponse, ProbeResponse
from common.csi.reports import GET_PLUGIN_INFO, PROBE
from common.errors import BridgeError
from common.relay.client import Channel
from common.relay.errors import VendorConnectionError
from common.status import Status, code_name

# A read, which a driver may not have: UNIMPLEMENTED is an answer as well.
GET_CAPACITY = "/csi.v1.Controller/GetCapacity"

_TIMEOUT_S = 10.0  # the provisioner's for its first calls


async def identify(path: Path) -> tuple[GetPluginInfoResponse, bool]:
    try:
        info = GetPluginInfoResponse.FromString(await _answer(path, GET_PLUGIN_INFO))
        probe = ProbeResponse.FromString(await _answer(path, PROBE))
    except DecodeError as error:
        raise BridgeError("its answers do not parse") from error
    return info, not probe.HasField("ready") or probe.ready.value


async def _answer(path: Path, method: str) -> bytes:
    status, body = await call(path, method)
    if not status.ok:
        raise BridgeError(f"it answered {method} with {code_name(status.code)}: {status.message}")
    return body or b""


async def call(path: Path, method: str) -> tuple[Status, bytes | None]:
    channel = Channel(path, max_message_bytes=4 << 20)
    try:
        return await channel.call(method, b"", timeout_s=_TIMEOUT_S).unary()
    except VendorConnectionError as error:
        raise BridgeError(str(error)) from error
    finally:
        await channel.close()
