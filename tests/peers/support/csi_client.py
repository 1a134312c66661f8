"""A small CSI client of the tests' own: the calls that a test makes by hand, and those of livenessprobe and health-monitor.

Two sidecars are not on the module proxy; what they ask of a driver is written down in the contract (A.7, A.8) and done
here with the same limits.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

import grpc

from common.csi import csi_pb2, csi_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PROBE_TIMEOUT_S = 3.0
"""livenessprobe's ``--probe-timeout``: for the connection and the call together (contract A.7)."""

SEQUENCE_TIMEOUT_S = 1.0
"""external-health-monitor's context for all of its Identity and capability calls together (contract A.8)."""


@contextlib.contextmanager
def connected(socket: Path) -> Iterator[grpc.Channel]:
    """A connection of its own to a CSI socket, with the authority that the sidecars send."""
    # Without its own subchannel pool grpcio would hand out a connection that an earlier channel made.
    options = [("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(f"unix://{socket}", options) as channel:
        yield channel


def probe(socket: Path) -> bool:
    """What livenessprobe does at each of the kubelet's checks: a new connection and one Probe, within 3 s.

    Returns:
        Whether the driver says that it is ready. ``ready`` unset counts as ready (CSI spec, ProbeResponse).

    Raises:
        grpc.RpcError: it would be an HTTP 500, and the kubelet would kill the container.
    """
    with connected(socket) as channel:
        answer = csi_pb2_grpc.IdentityStub(channel).Probe(csi_pb2.ProbeRequest(), timeout=PROBE_TIMEOUT_S)
    return answer.ready.value or not answer.HasField("ready")


def identify_as_health_monitor(socket: Path) -> str:
    """What external-health-monitor does at its start, after its Probe: five calls in a context of one second.

    Returns:
        The driver's name.

    Raises:
        grpc.RpcError: it would exit.
    """
    with connected(socket) as channel:
        grpc.channel_ready_future(channel).result(PROBE_TIMEOUT_S)  # its dial is not part of the context
        identity, controller = csi_pb2_grpc.IdentityStub(channel), csi_pb2_grpc.ControllerStub(channel)
        deadline = time.monotonic() + SEQUENCE_TIMEOUT_S

        def ask(call: Any, request: Any) -> Any:
            return call(request, timeout=deadline - time.monotonic())

        info = ask(identity.GetPluginInfo, csi_pb2.GetPluginInfoRequest())
        ask(identity.GetPluginCapabilities, csi_pb2.GetPluginCapabilitiesRequest())
        for _ in range(3):
            ask(controller.ControllerGetCapabilities, csi_pb2.ControllerGetCapabilitiesRequest())
    return str(info.name)


def vendor_answers(socket: Path) -> bool:
    """Whether a call that is not answered from a cache comes back with a word of the vendor's own."""
    request = csi_pb2.ValidateVolumeCapabilitiesRequest()
    try:
        with connected(socket) as channel:
            csi_pb2_grpc.ControllerStub(channel).ValidateVolumeCapabilities(request, timeout=PROBE_TIMEOUT_S)
    except grpc.RpcError as error:
        # Without a volume id every driver refuses it (CSI spec): whatever the bridge says is one of the other two.
        return error.code() not in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}
    return True


def volume_ids(socket: Path) -> list[str]:
    """The volumes that a driver lists, on its own socket or through the bridge."""
    with connected(socket) as channel:
        answer = csi_pb2_grpc.ControllerStub(channel).ListVolumes(csi_pb2.ListVolumesRequest(), timeout=PROBE_TIMEOUT_S)
    return [entry.volume.volume_id for entry in answer.entries]
