"""Access: what a volume is made of, which capabilities it can serve, and whether it may be published once more."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from common.csi import csi_pb2 as pb
from examples.dirdriver import access as base
from examples.dirdriver import errors
from examples.dirdriver.access import MULTI_NODE, Mode, mode_name


class Layout(StrEnum):
    """What a volume is made of on disk."""

    DIRECTORY = "directory"
    """A directory, published by bind mount (`--fs=directory`)."""
    FILESYSTEM = "filesystem"
    """A sparse file that holds a filesystem, on a loop device (`--fs=image`)."""
    BLOCK = "block"
    """A sparse file on a loop device, published as a raw block device."""


SINGLE_NODE = frozenset(
    {
        Mode.SINGLE_NODE_WRITER,
        Mode.SINGLE_NODE_READER_ONLY,
        Mode.SINGLE_NODE_SINGLE_WRITER,
        Mode.SINGLE_NODE_MULTI_WRITER,
    }
)
"""Modes that allow a volume on one node at a time."""

SEVERAL_TARGETS = MULTI_NODE | {Mode.SINGLE_NODE_MULTI_WRITER}
"""Modes that allow several target paths on one node, for a driver with SINGLE_NODE_MULTI_WRITER (CSI spec, table of
NodePublishVolume)."""

FS_TYPES = ("ext4", "xfs")
"""Filesystems that a FILESYSTEM volume can hold; the first is the default."""


def layout_of(capabilities: Sequence[pb.VolumeCapability], *, filesystem: Layout) -> Layout:
    """The layout for a new volume; `filesystem` for access type mount (`--fs`)."""
    return Layout(base.layout_of(capabilities, filesystem=filesystem))


def fs_type_of(capabilities: Iterable[pb.VolumeCapability], layout: Layout) -> str:
    """The filesystem that a new volume is to hold; empty where it holds none of its own.

    Raises:
        CsiError: INVALID_ARGUMENT if the capabilities name several.
    """
    if layout is not Layout.FILESYSTEM:
        return ""
    named = {capability.mount.fs_type for capability in capabilities} - {""}
    if len(named) > 1:
        raise errors.invalid("volume_capabilities name several fs_types; a volume holds one")
    return named.pop() if named else FS_TYPES[0]


def unfit(capability: pb.VolumeCapability, layout: Layout, fs_type: str) -> str:
    """Why a volume cannot serve a capability; empty if it can.

    Args:
        capability: with access type and mode.
        layout: the volume's.
        fs_type: what the volume holds, empty if nothing of its own.
    """
    if reason := base.unfit(capability, layout):
        return reason
    if layout is Layout.FILESYSTEM and capability.mount.fs_type not in ("", fs_type):
        return f"the volume holds {fs_type}, not the fs_type asked for"
    return ""


def check_capability(capability: pb.VolumeCapability, layout: Layout, fs_type: str) -> None:
    """Refuse a capability that the volume cannot serve.

    Raises:
        CsiError: INVALID_ARGUMENT saying why.
    """
    if reason := unfit(capability, layout, fs_type):
        raise errors.invalid(reason)


def fingerprint(capability: pb.VolumeCapability) -> str:
    """A hash that only equal capabilities share. Kept instead of mount_flags, which may be sensitive."""
    return hashlib.sha256(capability.SerializeToString(deterministic=True)).hexdigest()


@dataclass(frozen=True, slots=True)
class Use:
    """One publication of a volume on this node, as the table of the CSI spec sees it.

    Attributes:
        target: the target path (T of the table).
        arguments: fingerprint of everything else but secrets (P of the table).
        mode: the access mode.
    """

    target: str
    arguments: str
    mode: int


def may_publish(new: Use, existing: Iterable[Use]) -> bool:
    """The table of the CSI spec, NodePublishVolume, for a driver with SINGLE_NODE_MULTI_WRITER.

    Returns:
        Whether the volume is published there already, with these arguments.

    Raises:
        CsiError: ALREADY_EXISTS for the same target with other arguments; FAILED_PRECONDITION for another target in a
            mode that allows one.
    """
    others = []
    for use in existing:
        if use.target != new.target:
            others.append(use)
        elif use.arguments == new.arguments:
            return True
        else:
            raise errors.already_exists(
                "the volume is published at target_path with other arguments; unpublish it first"
            )
    if any(use.mode not in SEVERAL_TARGETS for use in (*others, new)) and others:
        raise errors.precondition(
            f"the volume is published at {others[0].target}; access mode {mode_name(new.mode)} allows one target path"
        )
    return False
