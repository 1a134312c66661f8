"""A kubelet's plugin, in this process, on a real gRPC server, with the answers that a test sets.

It records the notifications that it gets.

    with Plugin(directory / "d-reg.sock", name="d.test", endpoint=vendor.socket) as plugin:
        ...  # start an agent, and look at plugin.told
"""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

import grpc

from common.csi.registration_pb2 import PluginInfo, RegistrationStatus, RegistrationStatusResponse

SERVICE = "/pluginregistration.Registration"


_STOP_S = 10.0


class Plugin(grpc.GenericRpcHandler):
    """A registration socket.

    Attributes:
        info: its answer to GetInfo; None: the call hangs.
    """

    def __init__(
        self,
        socket: Path,
        *,
        name: str = "vendor.test",
        endpoint: Path | str = "",
        kind: str = "CSIPlugin",
        versions: tuple[str, ...] = ("1.0.0",),
    ) -> None:
        self.socket = socket  # the path of the socket
        self.info: PluginInfo | bytes | None = PluginInfo(
            type=kind, name=name, endpoint=str(endpoint), supported_versions=versions
        )
        self.refusal = ""  # the text of an INTERNAL error for GetInfo; empty: it answers `info`
        self.confirms = True  # it accepts notifications; False: it answers UNAVAILABLE
        self.told: list[RegistrationStatus] = []  # the notifications about its registration
        self.asked = 0  # the number of GetInfo calls
        self._ended = threading.Event()
        self._server: grpc.Server | None = None

    def start(self) -> None:
        """Listen; replaces a file at the path."""
        self.socket.unlink(missing_ok=True)
        self._server = grpc.server(ThreadPoolExecutor(8))
        self._server.add_generic_rpc_handlers((self,))
        self._server.add_insecure_port(f"unix://{self.socket}")
        self._server.start()

    def stop(self, *, leave_file: bool = False) -> None:
        """End; a killed plugin leaves its file."""
        aside = self.socket.with_name(f".{self.socket.name}")
        if leave_file:
            self.socket.rename(aside)
        self._ended.set()
        if self._server is not None:
            self._server.stop(grace=0).wait(_STOP_S)  # with None, grpc itself waits, now and then for ever
            self._server = None
        if leave_file:
            aside.rename(self.socket)
        else:
            self.socket.unlink(missing_ok=True)
        self._ended.clear()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def service(self, details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[bytes, bytes] | None":
        """Return the handler of a method."""
        methods = {f"{SERVICE}/GetInfo": self._get_info, f"{SERVICE}/NotifyRegistrationStatus": self._notify}
        method = methods.get(details.method)
        return grpc.unary_unary_rpc_method_handler(method) if method is not None else None

    def _get_info(self, _request: bytes, context: grpc.ServicerContext) -> bytes:
        self.asked += 1
        if self.refusal:
            context.abort(grpc.StatusCode.INTERNAL, self.refusal)
        if self.info is None:
            self._ended.wait()
            return b""
        return self.info if isinstance(self.info, bytes) else self.info.SerializeToString()

    def _notify(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        if not self.confirms:
            context.abort(grpc.StatusCode.UNAVAILABLE, "not now")
        self.told.append(RegistrationStatus.FromString(request))
        return RegistrationStatusResponse().SerializeToString()
