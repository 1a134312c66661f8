"""The Identity service: the example driver's, with the capabilities that the switches turn on."""

from collections.abc import Iterable

from common.csi import csi_pb2 as pb
from examples.dirdriver import identity as base
from tests.kit.testdriver import capabilities
from tests.kit.testdriver.calls import Routes
from tests.kit.testdriver.settings import Settings


class Identity(base.Identity):
    """csi.v1.Identity."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._switches = settings

    def routes(self) -> Routes:
        """The methods of this service."""
        return {
            "GetPluginInfo": self.GetPluginInfo,
            "GetPluginCapabilities": self.GetPluginCapabilities,
            "Probe": self.Probe,
        }

    def GetPluginInfo(self, request: pb.GetPluginInfoRequest) -> pb.GetPluginInfoResponse:  # noqa: N802  # csi.proto's
        """Name, version, and the kind of filesystem volumes."""
        answer = super().GetPluginInfo(request)
        answer.manifest["filesystem"] = self._switches.filesystem
        return answer

    def services(self) -> Iterable[pb.PluginCapability.Service.Type]:
        """The services and features that are on."""
        return capabilities.chosen(capabilities.PLUGIN, self._switches)
