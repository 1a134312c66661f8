"""Calls one registration socket: the two methods of the kubelet's plugin registration.

Rules (kubernetes pkg/kubelet/pluginmanager/operationexecutor):

* One registration uses one connection, so the same process answers GetInfo and gets the result. If the connection ends,
  the registration has failed.
* Each call ends in time, with an answer or with `NotRegistered` and the reason.
"""

import asyncio

from google.protobuf.message import DecodeError, Message

from common.csi.registration_pb2 import InfoRequest, PluginInfo, RegistrationStatus
from common.net.sockets import FileId, file_id
from common.relay.client import Ask, Channel
from common.relay.errors import VendorConnectionError
from common.status import code_name
from edge.registry.registration import NotRegistered, PluginOffer, shorten

_SERVICE = "/pluginregistration.Registration"

# All three are the kubelet's.
_DIAL_LIMIT_S = 10.0
_GET_INFO_LIMIT_S = 1.0
_NOTIFY_LIMIT_S = 5.0

_MAX_ANSWER_BYTES = 65_536  # room for a plugin's name, endpoint and versions


class PluginClient:
    """The client of one registration socket. Always close it."""

    def __init__(self, socket: str, file: FileId) -> None:
        self.socket = socket
        self._file = file
        self._dialled = False
        self._limit: asyncio.Timeout | None = None
        self._channel = Channel(
            socket, max_message_bytes=_MAX_ANSWER_BYTES, identify=self._connected, connect_timeout_s=_DIAL_LIMIT_S
        )

    async def get_info(self) -> tuple[str, PluginOffer]:
        """Return the plugin's type and its offer (for a CSI driver), or raise NotRegistered."""
        body = await self._call("GetInfo", InfoRequest(), _DIAL_LIMIT_S)
        try:
            info = PluginInfo.FromString(body)
        except DecodeError:
            raise NotRegistered("its answer to GetInfo does not parse") from None
        return info.type, PluginOffer(self.socket, self._file, info.name, info.endpoint, tuple(info.supported_versions))

    async def notify(self, *, registered: bool, error: str = "") -> None:
        """Notify the plugin of the registration's result. Raises NotRegistered if it did not confirm."""
        status = RegistrationStatus(plugin_registered=registered, error=error)
        await self._call("NotifyRegistrationStatus", status, _NOTIFY_LIMIT_S)

    async def close(self) -> None:
        await self._channel.close()

    async def _call(self, name: str, request: Message, limit_s: float) -> bytes:
        call = self._channel.call(f"{_SERVICE}/{name}", request.SerializeToString(), timeout_s=limit_s)
        try:
            async with asyncio.timeout(limit_s) as self._limit:
                status, body = await call.unary()
        except TimeoutError:
            raise NotRegistered(f"it does not answer {name}") from None
        except VendorConnectionError as error:
            raise NotRegistered(shorten(str(error))) from error
        if not status.ok:
            raise NotRegistered(f"it answered {name} with {code_name(status.code)}: {shorten(status.message)}")
        return body or b""

    async def _connected(self, _ask: Ask) -> str:
        # The call gets its own time limit after the connection is made.
        if self._dialled or file_id(self.socket) != self._file:
            raise ValueError("another plugin took its place")
        self._dialled = True
        if self._limit is not None and not self._limit.expired():
            self._limit.reschedule(asyncio.get_running_loop().time() + _GET_INFO_LIMIT_S)
        return ""  # no name to check: GetInfo asks for it
