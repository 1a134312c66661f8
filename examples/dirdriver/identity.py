"""The Identity service: the driver's name, capabilities and health."""

import os
from collections.abc import Iterable

from google.protobuf.wrappers_pb2 import BoolValue

from common.csi import csi_pb2 as pb
from examples.dirdriver import errors
from examples.dirdriver.settings import Settings

VERSION = "1.0.0"  # all processes of one version report the same capabilities (CSI spec)

Service = pb.PluginCapability.Service


class Identity:
    """csi.v1.Identity."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def GetPluginInfo(self, _request: pb.GetPluginInfoRequest) -> pb.GetPluginInfoResponse:
        return pb.GetPluginInfoResponse(name=self._settings.driver_name, vendor_version=VERSION)

    def GetPluginCapabilities(self, _request: pb.GetPluginCapabilitiesRequest) -> pb.GetPluginCapabilitiesResponse:
        found = [pb.PluginCapability(service=Service(type=kind)) for kind in self.services()]
        growth = pb.PluginCapability.VolumeExpansion(type=pb.PluginCapability.VolumeExpansion.ONLINE)
        return pb.GetPluginCapabilitiesResponse(capabilities=[*found, pb.PluginCapability(volume_expansion=growth)])

    def services(self) -> Iterable[pb.PluginCapability.Service.Type]:
        return Service.CONTROLLER_SERVICE, Service.VOLUME_ACCESSIBILITY_CONSTRAINTS

    def Probe(self, _request: pb.ProbeRequest) -> pb.ProbeResponse:
        """Check that the driver can write to its state directory (CSI spec, Probe Errors)."""
        if not os.access(self._settings.state_dir, os.W_OK | os.X_OK):
            raise errors.precondition("the driver's state directory cannot be written; see --state-dir")
        return pb.ProbeResponse(ready=BoolValue(value=True))
