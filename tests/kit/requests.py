"""The CSI requests that many tests make, with the fields that the spec requires and no more."""

from common.csi import csi_pb2


def create(name: str, **fields: object) -> csi_pb2.CreateVolumeRequest:
    return csi_pb2.CreateVolumeRequest(name=name, **fields)  # type: ignore[arg-type]  # passed on


def create_at(name: str, segments: dict[str, str], **fields: object) -> csi_pb2.CreateVolumeRequest:
    """Return a CreateVolumeRequest as external-provisioner sends it with --strict-topology."""
    term = csi_pb2.Topology(segments=segments)
    wanted = csi_pb2.TopologyRequirement(requisite=[term], preferred=[term])
    return create(name, accessibility_requirements=wanted, **fields)


def create_of_bytes(name: str, size: int) -> csi_pb2.CreateVolumeRequest:
    """Return a CreateVolumeRequest of exactly `size` bytes on the wire."""
    request = create(name)
    filler = size - request.ByteSize()
    while request.ByteSize() != size:
        request.parameters["filler"] = "x" * filler
        filler -= request.ByteSize() - size
    return request


def delete(name: str) -> csi_pb2.DeleteVolumeRequest:
    """Return a DeleteVolumeRequest for the volume that the test vendor creates under a name."""
    return csi_pb2.DeleteVolumeRequest(volume_id=f"id-of-{name}")
