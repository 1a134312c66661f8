"""Health (alpha in CSI 1.13): what is wrong with a volume, seen from controller and node, and with the storage.

An empty list says that nothing is known to be wrong (csi.proto, VolumeHealth).
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from common.csi import csi_pb2 as pb
from tests.kit.testdriver import local, names, paging
from tests.kit.testdriver.access import Layout
from tests.kit.testdriver.calls import Routes
from tests.kit.testdriver.driver import Driver
from tests.kit.testdriver.records import Phase, Volume

Entry = pb.VolumeHealth.VolumeHealthEntry

LOW_SPACE_SHARE = 0.05
"""Below this share of free space the storage is called degraded: sparse files will soon fail to grow."""


class ControllerHealth:
    """The part of csi.v1.Controller that is about health."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def routes(self) -> Routes:
        """The methods of this part."""
        return {"ControllerGetVolumeHealth": self.get, "ControllerListVolumeHealth": self.list}

    def get(self, request: pb.ControllerGetVolumeHealthRequest) -> pb.ControllerGetVolumeHealthResponse:
        """One volume's health."""
        volume = self._driver.volume(names.require("volume_id", request.volume_id))
        return pb.ControllerGetVolumeHealthResponse(volume_health=_health(volume, data_faults(self._driver, volume)))

    def list(self, request: pb.ControllerListVolumeHealthRequest) -> pb.ControllerListVolumeHealthResponse:
        """A page of the volumes that something is wrong with."""
        length = paging.page_length(request.max_entries)
        after = paging.start_after(request.starting_token)
        with self._driver.state.reading() as tables:
            volumes = tables.volumes.page(after, -1, phase=Phase.READY, ephemeral=False)
        faults = {volume.seq: list(data_faults(self._driver, volume)) for volume in volumes}
        page, token = paging.cut([volume for volume in volumes if faults[volume.seq]], length)
        entries = [_health(volume, faults[volume.seq]) for volume in page]
        return pb.ControllerListVolumeHealthResponse(entries=entries, next_token=token)


class NodeHealth:
    """The part of csi.v1.Node that is about health."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def routes(self) -> Routes:
        """The methods of this part."""
        return {"NodeGetVolumeHealth": self.get_volume, "NodeGetStorageHealth": self.get_storage}

    def get_volume(self, request: pb.NodeGetVolumeHealthRequest) -> pb.NodeGetVolumeHealthResponse:
        """One volume's health as this node sees it: its data, and whether its mounts are where they should be."""
        volume = self._driver.volume(names.require("volume_id", request.volume_id))
        found = [*data_faults(self._driver, volume), *self._mount_faults(volume)]
        return pb.NodeGetVolumeHealthResponse(volume_health=_health(volume, found))

    def _mount_faults(self, volume: Volume) -> Iterator[Entry]:
        with self._driver.state.reading() as tables:
            staging = tables.stagings.get(volume_id=volume.volume_id, node_id=self._driver.node)
        if staging is not None and not local.is_up(self._driver, volume, Path(staging.path)):
            yield Entry(
                status=pb.INACCESSIBLE,
                reason="MountMissing",
                message="the volume is staged, but not mounted or attached",
            )

    def get_storage(self, _request: pb.NodeGetStorageHealthRequest) -> pb.NodeGetStorageHealthResponse:
        """Whether the state directory is there, and has space."""
        backend = pb.NodeGetStorageHealthResponse.StorageBackendHealth
        try:
            whole = os.statvfs(self._driver.pool.root)
        except OSError:
            lost = backend(
                status=pb.STORAGE_UNREACHABLE, reason="StateDirectoryMissing", message="the state directory is gone"
            )
            return pb.NodeGetStorageHealthResponse(backend_health=[lost])
        low = whole.f_bavail < whole.f_blocks * LOW_SPACE_SHARE
        full = backend(
            status=pb.STORAGE_DEGRADED,
            reason="LowSpace",
            message="the filesystem of the state directory is nearly full",
        )
        return pb.NodeGetStorageHealthResponse(backend_health=[full] if low else [])


def condition(driver: Driver, volume: Volume) -> bytes:
    """A volume's VolumeCondition until CSI 1.12, as field 2 of its status: `abnormal` (1) and `message` (2)."""
    faults = [fault.message.encode() for fault in data_faults(driver, volume)]
    told = bytes((0x08, bool(faults)))
    for message in faults[:1]:
        told += bytes((0x12, len(message))) + message
    return bytes((0x12, len(told))) + told


def data_faults(driver: Driver, volume: Volume) -> Iterator[Entry]:
    """What is wrong with a volume's data."""
    data = driver.pool.data(volume)
    if not data.exists():
        yield Entry(
            status=pb.DATA_LOSS, reason="DataMissing", message="the volume's data is gone from the state directory"
        )
    elif volume.layout is not Layout.DIRECTORY and data.stat().st_size < volume.size_bytes:
        yield Entry(
            status=pb.DATA_LOSS, reason="ImageTruncated", message="the volume's image is smaller than the volume"
        )


def _health(volume: Volume, faults: Iterable[Entry]) -> pb.VolumeHealth:
    return pb.VolumeHealth(volume_id=volume.volume_id, health_statuses=faults)
