"""Health (alpha in CSI 1.13): what is wrong with a volume, seen from controller and node, and with the storage.

An empty list says that nothing is known to be wrong (csi.proto, VolumeHealth).
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import cast

from common.csi import csi_pb2 as pb
from examples.dirdriver import names, paging
from examples.dirdriver.access import DIRECTORY
from tests.kit.testdriver import local
from tests.kit.testdriver.state import STAGED, State, Volume

Entry = pb.VolumeHealth.VolumeHealthEntry

VOLUME_CONDITION = cast("pb.ControllerServiceCapability.RPC.Type", 11)
"""A capability of the controller until CSI 1.12; CSI 1.13 reserves the number."""

LOW_SPACE_SHARE = 0.05
"""Below this share of free space the storage is called degraded: sparse files will soon fail to grow."""


class ControllerHealth:
    """The part of csi.v1.Controller that is about health."""

    def __init__(self, state: State) -> None:
        self._state = state

    def ControllerGetVolumeHealth(
        self, request: pb.ControllerGetVolumeHealthRequest
    ) -> pb.ControllerGetVolumeHealthResponse:
        volume = self._state.read().volume(names.require("volume_id", request.volume_id))
        return pb.ControllerGetVolumeHealthResponse(volume_health=self._health(volume))

    def ControllerListVolumeHealth(
        self, request: pb.ControllerListVolumeHealthRequest
    ) -> pb.ControllerListVolumeHealthResponse:
        broken = [volume for volume in self._state.read().listed() if any(_data_faults(self._state, volume))]
        page, token = paging.page(broken, request.max_entries, request.starting_token)
        entries = [self._health(volume) for volume in page]
        return pb.ControllerListVolumeHealthResponse(entries=entries, next_token=token)

    def _health(self, volume: Volume) -> pb.VolumeHealth:
        return pb.VolumeHealth(volume_id=volume.volume_id, health_statuses=_data_faults(self._state, volume))


class NodeHealth:
    """The part of csi.v1.Node that is about health."""

    def __init__(self, state: State, node: str) -> None:
        self._state = state
        self._node = node

    def NodeGetVolumeHealth(self, request: pb.NodeGetVolumeHealthRequest) -> pb.NodeGetVolumeHealthResponse:
        """One volume's health as this node sees it: its data, and whether its mounts are where they should be."""
        book = self._state.read()
        volume = book.volume(names.require("volume_id", request.volume_id))
        missing = [
            Entry(status=pb.INACCESSIBLE, reason="MountMissing", message="the volume is staged, but not mounted")
            for staged in book.found(STAGED, volume_id=volume.volume_id, node=self._node)
            if not local.is_up(self._state, volume, Path(staged.path))
        ]
        found = [*_data_faults(self._state, volume), *missing]
        health = pb.VolumeHealth(volume_id=volume.volume_id, health_statuses=found)
        return pb.NodeGetVolumeHealthResponse(volume_health=health)

    def NodeGetStorageHealth(self, _request: pb.NodeGetStorageHealthRequest) -> pb.NodeGetStorageHealthResponse:
        backend = pb.NodeGetStorageHealthResponse.StorageBackendHealth
        try:
            whole = os.statvfs(self._state.root)
        except OSError:
            found = [backend(status=pb.STORAGE_UNREACHABLE, reason="StateDirectoryMissing", message="it is gone")]
        else:
            full = backend(status=pb.STORAGE_DEGRADED, reason="LowSpace", message="the filesystem is nearly full")
            found = [full] if whole.f_bavail < whole.f_blocks * LOW_SPACE_SHARE else []
        return pb.NodeGetStorageHealthResponse(backend_health=found)


def condition(state: State, volume: Volume) -> bytes:
    """A volume's VolumeCondition until CSI 1.12, as field 2 of its status: `abnormal` (1) and `message` (2)."""
    faults = [fault.message.encode() for fault in _data_faults(state, volume)]
    told = bytes((0x08, bool(faults)))
    for message in faults[:1]:
        told += bytes((0x12, len(message))) + message
    return bytes((0x12, len(told))) + told


def _data_faults(state: State, volume: Volume) -> Iterator[Entry]:
    data = state.data(volume)
    if not data.exists():
        text = "the volume's data is gone from the state directory"
        yield Entry(status=pb.DATA_LOSS, reason="DataMissing", message=text)
    elif volume.layout != DIRECTORY and data.stat().st_size < volume.size_bytes:
        text = "the volume's image is smaller than the volume"
        yield Entry(status=pb.DATA_LOSS, reason="ImageTruncated", message=text)
