"""The answers of a working CSI driver. Knows no gRPC and keeps no state."""

from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import Message

from common.csi import csi_pb2
from common.csi.methods import METHODS

_GIB = 1 << 30

_RPC = csi_pb2.ControllerServiceCapability.RPC

PATHS = {path.rpartition("/")[2]: path for path in METHODS}
"""`CreateVolume` → `/csi.v1.Controller/CreateVolume`. The names of CSI's methods are distinct."""

METHODS_OF_A_DRIVER = ("CREATE_DELETE_VOLUME", "LIST_VOLUMES", "CREATE_DELETE_SNAPSHOT", "EXPAND_VOLUME")


def path_of(method: str) -> str:
    """Return the path of a method by its name; a path is returned unchanged."""
    return method if method.startswith("/") else PATHS[method]


def methods_of(service: str) -> set[str]:
    return {path for path in METHODS if path.startswith(f"/csi.v1.{service}/")}


@dataclass
class Identity:
    """A driver's answers about itself."""

    name: str  # its GetPluginInfo name
    version: str = "1.2.3"  # its vendor_version
    node_id: str = "node-id"  # its NodeGetInfo node_id
    # Names of ControllerServiceCapability.RPC.
    capabilities: list[str] = field(default_factory=lambda: list(METHODS_OF_A_DRIVER))


def answer_of(identity: Identity, method: str, request: bytes) -> Message:
    """Return the response to a request, with the fields that callers read."""
    known = METHODS[method]
    make = _ANSWERS.get(method.rpartition("/")[2])
    if make is None:
        return known.response()
    made: Message = make(identity, known.request.FromString(request))
    return made


def volume(name: str) -> csi_pb2.CreateVolumeResponse:
    return csi_pb2.CreateVolumeResponse(volume=csi_pb2.Volume(volume_id=f"id-of-{name}", capacity_bytes=_GIB))


def _capability(name: str) -> csi_pb2.ControllerServiceCapability:
    return csi_pb2.ControllerServiceCapability(rpc=_RPC(type=name))


def _plugin_capabilities(_identity: Identity, _request: Any) -> Message:
    service = csi_pb2.PluginCapability.Service(type="CONTROLLER_SERVICE")
    return csi_pb2.GetPluginCapabilitiesResponse(capabilities=[csi_pb2.PluginCapability(service=service)])


def _snapshot(_identity: Identity, request: Any) -> Message:
    made = csi_pb2.Snapshot(snapshot_id=f"id-of-{request.name}", source_volume_id=request.source_volume_id)
    return csi_pb2.CreateSnapshotResponse(snapshot=made)


_ANSWERS: dict[str, Any] = {
    "GetPluginInfo": lambda identity, _: csi_pb2.GetPluginInfoResponse(
        name=identity.name, vendor_version=identity.version
    ),
    "GetPluginCapabilities": _plugin_capabilities,
    "Probe": lambda *_: csi_pb2.ProbeResponse(ready={"value": True}),
    "ControllerGetCapabilities": lambda identity, _: csi_pb2.ControllerGetCapabilitiesResponse(
        capabilities=[_capability(name) for name in identity.capabilities]
    ),
    "NodeGetInfo": lambda identity, _: csi_pb2.NodeGetInfoResponse(node_id=identity.node_id),
    "CreateVolume": lambda _, request: volume(request.name),
    "CreateSnapshot": _snapshot,
    "ControllerExpandVolume": lambda _, request: csi_pb2.ControllerExpandVolumeResponse(
        capacity_bytes=request.capacity_range.required_bytes
    ),
    "GetCapacity": lambda *_: csi_pb2.GetCapacityResponse(available_capacity=_GIB),
}
