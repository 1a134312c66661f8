"""A stand-in of node-driver-registrar: registers a driver's socket and keeps the kubelet's answer.

docs/csi-contract.md#how-a-driver-registers-with-a-node has the protocol.
"""

from pathlib import Path

from common.csi import registration_pb2 as pb
from common.relay.server import Server, ServerCall
from common.status import Code, Origin, Status
from tests.kit.waiting import wait_for
from tests.peers.kubelet.recorder import Recorder


class RegistrarStandIn:
    """Registers one driver, as often as asked.

    Args:
        recorder: whose thread serves.
        endpoint: the socket that the node is to call.
        registry: the node's directory of registration sockets.
    """

    def __init__(self, recorder: Recorder, *, driver: str, endpoint: Path, registry: Path) -> None:
        self.told: list[str] = []  # what the node said of each registration: an empty text, or why it refused
        self._recorder = recorder
        self._driver = driver
        self._endpoint = endpoint
        self._socket = registry / f"{driver}-reg.sock"
        self._server: Server | None = None

    def register(self) -> None:
        """Serve the registration socket, and wait until the node has said yes."""
        before = len(self.told)
        self._server = self._recorder.serve(self._socket, self._answer)
        self.wait_told(before + 1)
        assert not self.told[-1], f"{self._driver} was refused: {self.told[-1]}"

    def wait_told(self, times: int) -> None:
        """Wait until the node has answered so many registrations."""
        wait_for(
            lambda: len(self.told) >= times, what=f"registration of {self._driver}, number {times}", timeout_s=60.0
        )

    def unregister(self) -> None:
        """Take the registration socket away."""
        if self._server is not None:
            self._recorder.run(self._server.close())
            self._server = None

    async def _answer(self, call: ServerCall) -> None:
        if call.method.endswith("/GetInfo"):
            info = pb.PluginInfo(
                type="CSIPlugin", name=self._driver, endpoint=str(self._endpoint), supported_versions=["1.0.0"]
            )
            answer = info.SerializeToString()
        else:
            status = pb.RegistrationStatus.FromString(call.request)
            self.told.append("" if status.plugin_registered else status.error or "no reason given")
            answer = pb.RegistrationStatusResponse().SerializeToString()
        await call.send(answer)
        call.finish(Status(Code.OK, origin=Origin.VENDOR))
