"""Access: the capabilities that a volume can serve."""

from collections.abc import Sequence

from common.csi import csi_pb2 as pb
from examples.dirdriver import errors

Mode = pb.VolumeCapability.AccessMode.Mode  # the access modes of the CSI spec

MULTI_NODE = frozenset({Mode.MULTI_NODE_READER_ONLY, Mode.MULTI_NODE_SINGLE_WRITER, Mode.MULTI_NODE_MULTI_WRITER})
"""Modes that allow a volume on several nodes."""

DIRECTORY = "directory"  # the layout of a filesystem volume: a directory, published by bind mount
BLOCK = "block"  # the layout of a block volume: a sparse file on a loop device, published as a raw device

BIND_FLAGS = frozenset(
    {"ro", "rw", "suid", "nosuid", "dev", "nodev", "exec", "noexec", "noatime", "nodiratime", "relatime"}
)
"""Mount flags of a bind mount. All others belong to the filesystem below it."""


def layout_of(capabilities: Sequence[pb.VolumeCapability], *, filesystem: str = DIRECTORY) -> str:
    """The layout for a new volume. `filesystem` is the one for access type `mount`."""
    if not capabilities:
        raise errors.invalid("volume_capabilities is missing: the CSI spec requires it")
    kinds = {capability.WhichOneof("access_type") for capability in capabilities}
    if kinds == {"block"}:
        return BLOCK
    if kinds == {"mount"}:
        return filesystem
    raise errors.invalid("volume_capabilities must all be of access type block, or all of access type mount")


def unfit(capability: pb.VolumeCapability, layout: str) -> str:
    """The reason why a volume of this layout cannot serve a capability. Returns an empty string if it can."""
    kind = capability.WhichOneof("access_type")
    mode = capability.access_mode.mode
    if kind is None or mode == Mode.UNKNOWN:
        return f"volume_capability has no access {'type' if kind is None else 'mode'}"
    if (kind == "block") != (layout == BLOCK):
        return f"a {layout} volume cannot be accessed as {kind}"
    # Two nodes would put two loop devices, with two page caches, on one file.
    if mode not in Mode.values() or (mode in MULTI_NODE and layout != DIRECTORY):
        return f"a {layout} volume cannot keep access mode {mode_name(mode)}"
    if layout == DIRECTORY and capability.mount.fs_type:
        return "a directory volume has no filesystem of its own: leave fs_type empty"
    if layout == DIRECTORY and not BIND_FLAGS.issuperset(capability.mount.mount_flags):
        return "mount_flags holds a flag that a bind mount cannot have"
    return ""


def check_capability(capability: pb.VolumeCapability, layout: str) -> None:
    if reason := unfit(capability, layout):
        raise errors.invalid(reason)


def mode_name(mode: int) -> str:
    """The mode's name in csi.proto, or its number if this version of the spec has no name for it."""
    return Mode.Name(Mode.ValueType(mode)) if mode in Mode.values() else str(mode)
