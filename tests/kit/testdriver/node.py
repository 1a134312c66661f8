"""The Node service's own: capabilities, who and where the node is, stats, growing."""

from pathlib import Path

from common.csi import csi_pb2 as pb
from examples.dirdriver import errors, mounts, sizes
from examples.dirdriver.topology import topology_of
from tests.kit.testdriver import capabilities, local, names
from tests.kit.testdriver.access import Layout
from tests.kit.testdriver.calls import Routes
from tests.kit.testdriver.driver import Driver
from tests.kit.testdriver.records import Staging, Volume
from tests.kit.testdriver.usage import usage_of


class Node:
    """The part of csi.v1.Node that is neither staging, publishing nor health."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def routes(self) -> Routes:
        """The methods of this part."""
        return {
            "NodeGetCapabilities": self.get_capabilities,
            "NodeGetInfo": self.get_info,
            "NodeGetVolumeStats": self.get_stats,
            "NodeExpandVolume": self.expand,
        }

    def get_capabilities(self, _request: pb.NodeGetCapabilitiesRequest) -> pb.NodeGetCapabilitiesResponse:
        """What the switches add up to."""
        rpc = pb.NodeServiceCapability.RPC
        chosen = capabilities.chosen(capabilities.NODE, self._driver.settings)
        return pb.NodeGetCapabilitiesResponse(
            capabilities=[pb.NodeServiceCapability(rpc=rpc(type=kind)) for kind in chosen]
        )

    def get_info(self, _request: pb.NodeGetInfoRequest) -> pb.NodeGetInfoResponse:
        """Who this node is, and where."""
        driver = self._driver
        return pb.NodeGetInfoResponse(
            node_id=driver.node,
            max_volumes_per_node=driver.settings.max_volumes_per_node,
            accessible_topology=topology_of(driver.topology_key, driver.node) if driver.settings.topology else None,
        )

    def get_stats(self, request: pb.NodeGetVolumeStatsRequest) -> pb.NodeGetVolumeStatsResponse:
        """How full a volume is, at a path where it is staged or published."""
        volume_id = names.require("volume_id", request.volume_id)
        if not request.volume_path:
            raise errors.invalid("volume_path is missing: the CSI spec requires it")
        volume = self._driver.volume(volume_id)
        path = Path(request.volume_path)
        if not self._is_at(volume, path) or (volume.layout is not Layout.BLOCK and mounts.mounted_at(path) is None):
            raise errors.not_found(f"volume {volume_id} is neither staged nor published at volume_path")
        return pb.NodeGetVolumeStatsResponse(usage=usage_of(volume, path))

    def expand(self, request: pb.NodeExpandVolumeRequest) -> pb.NodeExpandVolumeResponse:
        """Let a volume that is in use take the size that ControllerExpandVolume gave it; OK if it has it."""
        driver = self._driver
        volume_id = names.require("volume_id", request.volume_id)
        if not request.volume_path:
            raise errors.invalid("volume_path is missing: the CSI spec requires it")
        volume = driver.volume(volume_id, request.volume_capability)
        staging = self._staging(volume)
        # The kubelet names a block volume's device or its own link to it: any path will do.
        if staging is None or not (volume.layout is Layout.BLOCK or self._is_at(volume, Path(request.volume_path))):
            raise errors.not_found(f"volume {volume_id} is neither staged nor published at volume_path")
        sizes.check_range(request.capacity_range)
        if request.capacity_range.required_bytes > volume.size_bytes:
            raise errors.out_of_range(f"volume {volume_id} is smaller than that; ControllerExpandVolume comes first")
        local.grow(driver, volume, Path(staging.path))
        return pb.NodeExpandVolumeResponse(capacity_bytes=volume.size_bytes)

    def _staging(self, volume: Volume) -> Staging | None:
        with self._driver.state.reading() as tables:
            return tables.stagings.get(volume_id=volume.volume_id, node_id=self._driver.node)

    def _is_at(self, volume: Volume, path: Path) -> bool:
        """Whether the volume was staged or published at a path. Only links above it are followed."""
        node = self._driver.node
        with self._driver.state.reading() as tables:
            paths = [item.path for item in tables.stagings.all(volume_id=volume.volume_id, node_id=node)]
            paths += [item.target for item in tables.publications.all(volume_id=volume.volume_id, node_id=node)]
        return mounts.canonical(path) in {mounts.canonical(Path(known)) for known in paths}
