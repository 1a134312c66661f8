"""The requests and answers of csi.v1.Node, field by field (docs/csi-contract.md#fields-of-node-calls).

Each field of each request equals the kubelet's (kubernetes pkg/volume/csi: csi_client.go, csi_attacher.go,
csi_mounter.go, csi_block.go, expander.go). All functions are pure.
"""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, TypeVar, cast

from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from common.csi import csi_pb2 as pb
from common.observe.metrics import VolumeStats
from edge.disk.volume_data import encode_map
from edge.volumes import PodVolume, Volume

TOKENS_KEY = "csi.storage.k8s.io/serviceAccount.tokens"

# By audience: `token` and `expirationTimestamp`, as in the status of a TokenRequest.
Tokens = Mapping[str, Mapping[str, str]]


class Has(IntEnum):
    """Capabilities of a node service (`NodeServiceCapability.RPC.Type`). Number 4 is reserved since CSI 1.13."""

    STAGE_UNSTAGE_VOLUME = 1
    GET_VOLUME_STATS = 2
    EXPAND_VOLUME = 3
    VOLUME_CONDITION = 4
    SINGLE_NODE_MULTI_WRITER = 5
    VOLUME_MOUNT_GROUP = 6
    GET_VOLUME_HEALTH = 7


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a call needs that is read when it is made. Its text shows none of it."""

    publish_context: Mapping[str, str] = field(default_factory=dict, repr=False)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    tokens: Tokens | None = field(default=None, repr=False)


M = TypeVar("M", bound=Message)

_Mode = pb.VolumeCapability.AccessMode.Mode

_MODES = {
    "ReadWriteOnce": _Mode.SINGLE_NODE_WRITER,
    "ReadWriteOncePod": _Mode.SINGLE_NODE_WRITER,
    "ReadOnlyMany": _Mode.MULTI_NODE_READER_ONLY,
    "ReadWriteMany": _Mode.MULTI_NODE_MULTI_WRITER,
}

# For a driver with SINGLE_NODE_MULTI_WRITER.
_MULTI_WRITER_MODES = _MODES | {
    "ReadWriteOnce": _Mode.SINGLE_NODE_MULTI_WRITER,
    "ReadWriteOncePod": _Mode.SINGLE_NODE_SINGLE_WRITER,
}

# The kubelet marks block volumes with this file system type, so it treats a PV with this type as a block volume.
_BLOCK_FS_TYPE = "block"


def stage(wanted: PodVolume, target: str, capabilities: AbstractSet[int], inputs: Inputs) -> pb.NodeStageVolumeRequest:
    volume = wanted.volume
    return pb.NodeStageVolumeRequest(
        volume_id=volume.handle,
        publish_context=inputs.publish_context,
        staging_target_path=target,
        volume_capability=_pods_capability(wanted, capabilities),
        secrets=inputs.secrets,
        volume_context=volume.attributes,
    )


def publish(
    wanted: PodVolume,
    target: str,
    staging_target: str,  # empty if the driver does not stage; a block volume has one under any driver
    capabilities: AbstractSet[int],
    inputs: Inputs,
) -> pb.NodePublishVolumeRequest:
    volume = wanted.volume
    context, told = dict(volume.attributes), dict(inputs.secrets)  # csi-contract.md#pod-information-goes-into-a-copy
    if volume.rules.pod_info:
        context |= _pod_info(wanted)
    if volume.rules.token_audiences and not volume.block:
        (told if volume.rules.tokens_in_secrets else context)[TOKENS_KEY] = encode_map(inputs.tokens or {}).decode()
    return pb.NodePublishVolumeRequest(
        volume_id=volume.handle,
        publish_context={} if volume.ephemeral else inputs.publish_context,
        staging_target_path="" if volume.ephemeral else staging_target,
        target_path=target,
        volume_capability=_pods_capability(wanted, capabilities),
        readonly=wanted.read_only,
        secrets=told,
        volume_context=context,
    )


def expand(
    volume: Volume,
    path: str,
    staging_target: str,
    capabilities: AbstractSet[int],
    inputs: Inputs,
    *,
    required_bytes: int,
) -> pb.NodeExpandVolumeRequest:
    return pb.NodeExpandVolumeRequest(
        volume_id=volume.handle,
        volume_path=path,
        capacity_range=pb.CapacityRange(required_bytes=required_bytes),
        staging_target_path=staging_target,
        volume_capability=_capability(volume, capabilities),
        secrets=inputs.secrets,
    )


def check_expanded(answer: bytes) -> None:
    """Raise ValueError if a driver's answer to NodeExpandVolume does not parse. Nobody reads the size in it."""
    _decoded(pb.NodeExpandVolumeResponse, answer)


def read_stats(answer: bytes, capabilities: AbstractSet[int]) -> VolumeStats | None:
    """Return the driver's answer; None if it is empty."""
    # A driver with VOLUME_CONDITION tells the condition in field 2, which CSI 1.13 no longer has. Without that field,
    # the volume is healthy, as for the kubelet.
    response = _decoded(pb.NodeGetVolumeStatsResponse, answer)
    tells_condition = Has.VOLUME_CONDITION in capabilities
    if not response.usage and not tells_condition:
        return None
    counts: dict[str, Any] = {}
    for usage in response.usage:
        if usage.unit == pb.VolumeUsage.BYTES:
            counts |= {
                "available_bytes": usage.available,
                "capacity_bytes": usage.total,
                "used_bytes": usage.used,
            }
        elif usage.unit == pb.VolumeUsage.INODES:
            counts |= {"inodes_free": usage.available, "inodes": usage.total, "inodes_used": usage.used}
    abnormal, message = _condition(response) if tells_condition else (None, "")
    return VolumeStats(**counts, abnormal=abnormal, message=message)


def read_health(answer: bytes) -> tuple[bool, str]:
    response = _decoded(pb.NodeGetVolumeHealthResponse, answer)
    found = response.volume_health.health_statuses
    return bool(found), "; ".join(f"{entry.reason}: {entry.message}".strip(": ") for entry in found)


def wants_fs_group(wanted: PodVolume, capabilities: AbstractSet[int]) -> bool:
    # supportsFSGroup of csi_mounter.go
    volume = wanted.volume
    policy = volume.rules.fs_group_policy
    if wanted.pod.fs_group is None or wanted.read_only or Has.VOLUME_MOUNT_GROUP in capabilities:
        return False
    if policy != "ReadWriteOnceWithFSType":
        return policy == "File"
    alone = volume.ephemeral or not {"ReadWriteOnce", "ReadWriteOncePod"}.isdisjoint(volume.access_modes)
    return bool(volume.fs_type) and alone


def sensitive(volume: Volume, inputs: Inputs) -> frozenset[str]:
    """Return the values of a request that must not be shown if the driver repeats them in an error."""
    tokens = (token.get("token", "") for token in (inputs.tokens or {}).values())
    return frozenset((*inputs.publish_context.values(), *inputs.secrets.values(), *tokens, *volume.mount_options))


def _pods_capability(wanted: PodVolume, capabilities: AbstractSet[int]) -> pb.VolumeCapability:
    pod = wanted.pod
    return _capability(wanted.volume, capabilities, fs_group=pod.fs_group, selinux_label=wanted.selinux_context)


def _capability(
    volume: Volume, capabilities: AbstractSet[int], *, fs_group: int | None = None, selinux_label: str = ""
) -> pb.VolumeCapability:
    mode = pb.VolumeCapability.AccessMode(mode=_access_mode(volume, capabilities))
    if volume.block or volume.fs_type == _BLOCK_FS_TYPE:
        return pb.VolumeCapability(block=pb.VolumeCapability.BlockVolume(), access_mode=mode)
    flags = [] if volume.ephemeral else list(volume.mount_options)
    if selinux_label:
        flags.append(f'context="{selinux_label}"')
    delegated = fs_group is not None and Has.VOLUME_MOUNT_GROUP in capabilities
    return pb.VolumeCapability(
        mount=pb.VolumeCapability.MountVolume(
            fs_type=volume.fs_type, mount_flags=flags, volume_mount_group=str(fs_group) if delegated else ""
        ),
        access_mode=mode,
    )


def _access_mode(volume: Volume, capabilities: AbstractSet[int]) -> pb.VolumeCapability.AccessMode.Mode:
    modes = _MULTI_WRITER_MODES if Has.SINGLE_NODE_MULTI_WRITER in capabilities else _MODES
    first = volume.access_modes[0] if volume.access_modes and not volume.ephemeral else "ReadWriteOnce"
    return modes.get(first, _Mode.UNKNOWN)


def _pod_info(wanted: PodVolume) -> dict[str, str]:
    pod = wanted.pod
    return {
        "csi.storage.k8s.io/pod.name": pod.name,
        "csi.storage.k8s.io/pod.namespace": pod.namespace,
        "csi.storage.k8s.io/pod.uid": pod.uid,
        "csi.storage.k8s.io/serviceAccount.name": pod.service_account,
        "csi.storage.k8s.io/ephemeral": "true" if wanted.volume.ephemeral else "false",
    }


def _condition(response: pb.NodeGetVolumeStatsResponse) -> tuple[bool, str]:
    abnormal = False
    message = ""
    for outer in _unknown(response):
        if outer.field_number != 2 or outer.wire_type != 2:
            continue
        # A ProbeRequest is a message without fields: it parses all of the condition's fields as unknown.
        for part in _unknown(_decoded(pb.ProbeRequest, outer.data)):
            if (part.field_number, part.wire_type) == (1, 0):
                abnormal = bool(part.data)
            elif (part.field_number, part.wire_type) == (2, 2):
                message = part.data.decode(errors="replace")
    return abnormal, message


def _unknown(message: Message) -> Iterable[Any]:
    return cast("Iterable[Any]", UnknownFieldSet(message))  # types-protobuf does not know that it can be iterated


def _decoded(kind: type[M], raw: bytes) -> M:
    try:
        return kind.FromString(raw)
    except DecodeError as error:
        raise ValueError(f"its answer is not a {kind.__name__}") from error
