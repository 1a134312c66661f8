"""The class parameters: takes the bridge's own parameters of a StorageClass out of the calls to a vendor's driver.

external-provisioner sends all parameters of a class, and some drivers refuse those that they do not know. The parameter
`DIRECT_VOLUME` is added to the context of the new volume instead.
"""

from collections.abc import Mapping
from typing import Final

from google.protobuf.message import DecodeError

from common.csi import csi_pb2 as csi
from common.csi.volume_context import DIRECT_VOLUME
from common.objects.offline_policy import PARAMETER

_Request = csi.CreateVolumeRequest | csi.GetCapacityRequest | csi.ValidateVolumeCapabilitiesRequest

_CREATE: Final = "/csi.v1.Controller/CreateVolume"

# By method: the request with the parameters of a StorageClass.
_WITH_PARAMETERS: Final[Mapping[str, type[_Request]]] = {
    _CREATE: csi.CreateVolumeRequest,
    "/csi.v1.Controller/GetCapacity": csi.GetCapacityRequest,
    "/csi.v1.Controller/ValidateVolumeCapabilities": csi.ValidateVolumeCapabilitiesRequest,
}

# Only a request with these bytes can have such a parameter.
OFFLINE: Final = PARAMETER.encode()
DIRECT: Final = DIRECT_VOLUME.encode()


def without_own(method: str, request: bytes) -> bytes:
    """A request without the bridge's own parameters. Every other field stays, unknown ones included."""
    kind = _WITH_PARAMETERS.get(method)
    if kind is None:
        return request
    try:
        asked = kind.FromString(request)
    except DecodeError:  # no driver reads it
        return request
    own = [name for name in (PARAMETER, DIRECT_VOLUME) if name in asked.parameters]
    for name in own:
        del asked.parameters[name]
    return asked.SerializeToString() if own else request


def asks_for_direct(method: str, request: bytes) -> bool:
    """Whether a request is to make a direct volume."""
    if method != _CREATE:
        return False
    try:
        asked = csi.CreateVolumeRequest.FromString(request)
    except DecodeError:
        return False
    return asked.parameters[DIRECT_VOLUME].lower() == "true"  # as the agents read the attribute


def as_direct(answer: bytes) -> bytes:
    """An answer to CreateVolume with the attribute of a direct volume. One that does not parse stays as it is."""
    try:
        told = csi.CreateVolumeResponse.FromString(answer)
    except DecodeError:
        return answer
    told.volume.volume_context[DIRECT_VOLUME] = "true"
    return told.SerializeToString()
