"""The Identity service: who the driver is, what it can do, whether it is well."""

import os
from collections.abc import Iterator

from google.protobuf.wrappers_pb2 import BoolValue

from common.csi import csi_pb2 as pb
from examples.dirdriver import capabilities, errors
from examples.dirdriver.calls import Routes
from examples.dirdriver.driver import Driver

VERSION = "1.0.0"
"""All processes of one version report the same capabilities (CSI spec), given the same switches."""


class Identity:
    """csi.v1.Identity."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def routes(self) -> Routes:
        """The methods of this service."""
        return {
            "GetPluginInfo": self.get_plugin_info,
            "GetPluginCapabilities": self.get_plugin_capabilities,
            "Probe": self.probe,
        }

    def get_plugin_info(self, _request: pb.GetPluginInfoRequest) -> pb.GetPluginInfoResponse:
        """Name and version."""
        settings = self._driver.settings
        return pb.GetPluginInfoResponse(
            name=settings.driver_name, vendor_version=VERSION, manifest={"filesystem": settings.filesystem}
        )

    def get_plugin_capabilities(self, _request: pb.GetPluginCapabilitiesRequest) -> pb.GetPluginCapabilitiesResponse:
        """What the switches add up to; volumes grow while they are in use."""
        return pb.GetPluginCapabilitiesResponse(capabilities=self._capabilities())

    def _capabilities(self) -> Iterator[pb.PluginCapability]:
        for service in capabilities.chosen(capabilities.PLUGIN, self._driver.settings):
            yield pb.PluginCapability(service=pb.PluginCapability.Service(type=service))
        online = pb.PluginCapability.VolumeExpansion.ONLINE
        yield pb.PluginCapability(volume_expansion=pb.PluginCapability.VolumeExpansion(type=online))

    def probe(self, _request: pb.ProbeRequest) -> pb.ProbeResponse:
        """Whether the state directory can be written.

        Raises:
            CsiError: FAILED_PRECONDITION if not (CSI spec, Probe Errors).
        """
        if not os.access(self._driver.settings.state_dir, os.W_OK | os.X_OK):
            raise errors.precondition("the driver's state directory cannot be written; see --state-dir")
        return pb.ProbeResponse(ready=BoolValue(value=True))
