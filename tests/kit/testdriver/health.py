"""Health (alpha in CSI 1.13): a volume whose data is gone has DATA_LOSS; an empty list says that nothing is wrong."""

from typing import cast

from common.csi import csi_pb2 as pb
from examples.dirdriver import names, paging
from tests.kit.testdriver.state import State, Volume

VOLUME_CONDITION = cast("pb.ControllerServiceCapability.RPC.Type", 11)
"""A capability of the controller until CSI 1.12; CSI 1.13 reserves the number."""

_LOST = "the volume's data is gone from the state directory"


class Health:
    """The parts of csi.v1.Controller and csi.v1.Node that are about health."""

    def __init__(self, state: State) -> None:
        self._state = state

    def ControllerGetVolumeHealth(
        self, request: pb.ControllerGetVolumeHealthRequest
    ) -> pb.ControllerGetVolumeHealthResponse:
        return pb.ControllerGetVolumeHealthResponse(volume_health=self._named(request.volume_id))

    def ControllerListVolumeHealth(
        self, request: pb.ControllerListVolumeHealthRequest
    ) -> pb.ControllerListVolumeHealthResponse:
        broken = [volume for volume in self._state.read().listed() if not self._state.data(volume).exists()]
        page, token = paging.page(broken, request.max_entries, request.starting_token)
        entries = [self._health(volume) for volume in page]
        return pb.ControllerListVolumeHealthResponse(entries=entries, next_token=token)

    def NodeGetVolumeHealth(self, request: pb.NodeGetVolumeHealthRequest) -> pb.NodeGetVolumeHealthResponse:
        return pb.NodeGetVolumeHealthResponse(volume_health=self._named(request.volume_id))

    def NodeGetStorageHealth(self, _request: pb.NodeGetStorageHealthRequest) -> pb.NodeGetStorageHealthResponse:
        return pb.NodeGetStorageHealthResponse()

    def _named(self, volume_id: str) -> pb.VolumeHealth:
        return self._health(self._state.read().volume(names.require("volume_id", volume_id)))

    def _health(self, volume: Volume) -> pb.VolumeHealth:
        lost = pb.VolumeHealth.VolumeHealthEntry(status=pb.DATA_LOSS, reason="DataMissing", message=_LOST)
        found = [] if self._state.data(volume).exists() else [lost]
        return pb.VolumeHealth(volume_id=volume.volume_id, health_statuses=found)


def condition(state: State, volume: Volume) -> bytes:
    """A volume's VolumeCondition until CSI 1.12, as field 2 of its status: `abnormal` (1) and `message` (2)."""
    lost = not state.data(volume).exists()
    told = bytes((0x08, lost)) + (bytes((0x12, len(_LOST))) + _LOST.encode() if lost else b"")
    return bytes((0x12, len(told))) + told
