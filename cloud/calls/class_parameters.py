"""The class parameters: takes the bridge's own parameters of a StorageClass out of the calls to a vendor's driver.

external-provisioner sends all parameters of a class, and some drivers refuse those that they do not know.
"""

from collections.abc import Mapping
from typing import Final

from google.protobuf.message import DecodeError

from common.csi import csi_pb2 as csi
from common.objects.offline_policy import PARAMETER

_Request = csi.CreateVolumeRequest | csi.GetCapacityRequest | csi.ValidateVolumeCapabilitiesRequest

# By method: the request with the parameters of a StorageClass.
_WITH_PARAMETERS: Final[Mapping[str, type[_Request]]] = {
    "/csi.v1.Controller/CreateVolume": csi.CreateVolumeRequest,
    "/csi.v1.Controller/GetCapacity": csi.GetCapacityRequest,
    "/csi.v1.Controller/ValidateVolumeCapabilities": csi.ValidateVolumeCapabilitiesRequest,
}

OWN: Final = PARAMETER.encode()  # only a request with these bytes can have such a parameter


def without_own(method: str, request: bytes) -> bytes:
    """A request without the bridge's own parameters. Every other field stays, unknown ones included."""
    kind = _WITH_PARAMETERS.get(method)
    if kind is None:
        return request
    try:
        asked = kind.FromString(request)
    except DecodeError:  # no driver reads it
        return request
    if PARAMETER not in asked.parameters:
        return request
    del asked.parameters[PARAMETER]
    return asked.SerializeToString()
