"""A request: the CSI requests that the tests make over and over, with what the spec requires and no more."""

from common.csi import csi_pb2


def create(name: str, **fields: object) -> csi_pb2.CreateVolumeRequest:
    """A CreateVolume."""
    return csi_pb2.CreateVolumeRequest(name=name, **fields)  # type: ignore[arg-type]  # passed on


def create_of_bytes(name: str, size: int) -> csi_pb2.CreateVolumeRequest:
    """A CreateVolume that is exactly so many bytes long on the wire."""
    request = create(name)
    filler = size - request.ByteSize()
    while request.ByteSize() != size:
        request.parameters["filler"] = "x" * filler
        filler -= request.ByteSize() - size
    return request


def delete(name: str) -> csi_pb2.DeleteVolumeRequest:
    """A DeleteVolume of the volume that the test vendor makes under a name."""
    return csi_pb2.DeleteVolumeRequest(volume_id=f"id-of-{name}")
