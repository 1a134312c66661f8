"""A wish: what a CreateVolume request asks for, checked, and whether an existing volume grants it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from common.csi import csi_pb2 as pb
from examples.dirdriver import errors, sizes, topology
from tests.kit.testdriver import access, filesystems, names
from tests.kit.testdriver.access import Layout
from tests.kit.testdriver.records import Content, Volume
from tests.kit.testdriver.settings import Settings

RESERVED_PREFIX = "csi.storage.k8s.io/"
"""Kubernetes' own keys: `--extra-create-metadata` adds them to parameters, the kubelet to volume contexts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """A checked CreateVolume request.

    Attributes:
        name: the idempotency key.
        layout: what the volume has to be made of.
        fs_type: the filesystem it has to hold; empty for none.
        capabilities: all of which it has to serve.
        size: the range of sizes.
        parameters: JSON with sorted keys.
        mutable_parameters: JSON with sorted keys.
        source_kind: `volume`, `snapshot` or empty.
        source_id: what to copy.
        places: where it may live.
    """

    name: str
    layout: Layout
    fs_type: str
    capabilities: tuple[pb.VolumeCapability, ...]
    size: pb.CapacityRange
    parameters: str
    mutable_parameters: str
    source_kind: str
    source_id: str
    places: pb.TopologyRequirement


def canonical(value: Mapping[str, str]) -> str:
    """A map as JSON that is equal for equal maps."""
    return json.dumps(dict(value), sort_keys=True)


def parse_wish(request: pb.CreateVolumeRequest, settings: Settings) -> Wish:
    """Check a request as far as it can be without looking at anything else.

    Raises:
        CsiError: INVALID_ARGUMENT or OUT_OF_RANGE (CSI spec, CreateVolume Errors).
    """
    name = names.require_name(request.name, limits=settings.limits)
    layout = access.layout_of(request.volume_capabilities, filesystem=settings.filesystem)
    fs_type = access.fs_type_of(request.volume_capabilities, layout)
    if fs_type and fs_type not in access.FS_TYPES:
        raise errors.invalid(f"this driver makes the filesystems {', '.join(access.FS_TYPES)}; choose one as fs_type")
    for capability in request.volume_capabilities:
        access.check_capability(capability, layout, fs_type)
    names.check_map("parameters", request.parameters, limits=settings.limits)
    check_mutable(request.mutable_parameters, settings)
    sizes.check_range(request.capacity_range)
    kind, source_id = _source(request.volume_content_source)
    return Wish(
        name=name,
        layout=layout,
        fs_type=fs_type,
        capabilities=tuple(request.volume_capabilities),
        size=request.capacity_range,
        parameters=canonical(request.parameters),
        mutable_parameters=canonical(request.mutable_parameters),
        source_kind=kind,
        source_id=source_id,
        places=request.accessibility_requirements if settings.topology else pb.TopologyRequirement(),
    )


def check_mutable(parameters: Mapping[str, str], settings: Settings) -> None:
    """Refuse mutable parameters that `--mutable-parameter` does not name; Kubernetes' own keys are let through.

    Raises:
        CsiError: INVALID_ARGUMENT; nothing may have been applied then (CSI spec, ControllerModifyVolume).
    """
    names.check_map("mutable_parameters", parameters, limits=settings.limits)
    asked = {name for name in parameters if not name.startswith(RESERVED_PREFIX)}
    if unknown := sorted(asked - set(settings.mutable_parameters)):
        accepted = ", ".join(settings.mutable_parameters) or "none"
        raise errors.invalid(f"mutable_parameters: {', '.join(unknown)} cannot be modified; accepted: {accepted}")


def _source(source: pb.VolumeContentSource) -> tuple[str, str]:
    match source.WhichOneof("type"):
        case "snapshot":
            return "snapshot", names.require("volume_content_source.snapshot.snapshot_id", source.snapshot.snapshot_id)
        case "volume":
            return "volume", names.require("volume_content_source.volume.volume_id", source.volume.volume_id)
    return "", ""


def check_source(wish: Wish, source: Content) -> None:
    """Refuse to copy something into a volume of another kind.

    Raises:
        CsiError: INVALID_ARGUMENT (CSI spec: unsupported volume_content_source).
    """
    if source.layout is not wish.layout:
        raise errors.invalid(
            f"volume_content_source is a {source.layout} volume, and a {wish.layout} volume is asked for"
        )
    if source.fs_type != wish.fs_type:
        raise errors.invalid(f"volume_content_source holds {source.fs_type}, and {wish.fs_type} is asked for")


def wished_size(wish: Wish, source: Content | None, settings: Settings) -> int:
    """The size of the volume to be made, in bytes; never smaller than what is copied into it.

    Raises:
        CsiError: OUT_OF_RANGE.
    """
    smallest = max(filesystems.smallest_bytes(wish.fs_type), source.size_bytes if source else 0)
    return sizes.choose_size(
        wish.size,
        smallest=smallest,
        largest=settings.largest_volume_bytes,
        default=sizes.DEFAULT_BYTES,
        step=1 if wish.layout is Layout.DIRECTORY else sizes.BLOCK_BYTES,
    )


def check_granted(wish: Wish, volume: Volume, topology_key: str) -> None:
    """Refuse a repeated request whose name is taken by a volume that does not grant it.

    Mutable parameters are left out: ControllerModifyVolume may have changed them since.

    Raises:
        CsiError: ALREADY_EXISTS saying what differs (CSI spec, CreateVolume Errors).
    """
    fit = (access.unfit(capability, volume.layout, volume.fs_type) for capability in wish.capabilities)
    differences = {
        "capacity_range": not sizes.fits(volume.size_bytes, wish.size),
        "volume_capabilities": volume.layout is not wish.layout or any(fit),
        "parameters": volume.parameters != wish.parameters,
        "volume_content_source": (volume.source_kind, volume.source_id) != (wish.source_kind, wish.source_id),
        "accessibility_requirements": not topology.allowed(wish.places, topology_key, volume.node),
    }
    if different := [name for name, differs in differences.items() if differs]:
        raise errors.already_exists(
            f"a volume of this name exists as {volume.volume_id}, with another {', '.join(different)}; "
            "delete it or use another name"
        )
