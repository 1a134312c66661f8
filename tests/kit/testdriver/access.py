"""Access: the layouts of a volume, the capabilities that it can serve, and whether it may be published once more."""

import hashlib
from collections.abc import Iterable

from common.csi import csi_pb2 as pb
from examples.dirdriver import access as base
from examples.dirdriver import errors
from examples.dirdriver.access import MULTI_NODE, Mode, mode_name
from tests.kit.testdriver.state import Use

FILESYSTEM = "filesystem"
"""The third layout, beside `directory` and `block`: a sparse file with a filesystem on a loop device (`--fs=image`)."""

FS_TYPES = ("ext4", "xfs")  # what a FILESYSTEM volume can hold; the first is the default

SEVERAL_TARGETS = MULTI_NODE | {Mode.SINGLE_NODE_MULTI_WRITER}
"""Modes that allow several target paths on one node, for a driver with SINGLE_NODE_MULTI_WRITER (CSI spec, table of
NodePublishVolume)."""


def fs_type_of(capabilities: Iterable[pb.VolumeCapability], layout: str) -> str:
    """The filesystem that a new volume is to hold; empty where it holds none of its own.

    Raises:
        CsiError: INVALID_ARGUMENT if the capabilities name several, or one that this driver cannot make.
    """
    if layout != FILESYSTEM:
        return ""
    named = {capability.mount.fs_type for capability in capabilities} - {""}
    if len(named) > 1:
        raise errors.invalid("volume_capabilities name several fs_types; a volume holds one")
    fs_type = named.pop() if named else FS_TYPES[0]
    if fs_type not in FS_TYPES:
        raise errors.invalid(f"this driver makes the filesystems {', '.join(FS_TYPES)}; choose one as fs_type")
    return fs_type


def unfit(capability: pb.VolumeCapability, layout: str, fs_type: str) -> str:
    """The reason why a volume cannot serve a capability; empty if it can."""
    if reason := base.unfit(capability, layout):
        return reason
    if layout == FILESYSTEM and capability.mount.fs_type not in ("", fs_type):
        return f"the volume holds {fs_type}, not the fs_type asked for"
    return ""


def check_capability(capability: pb.VolumeCapability, layout: str, fs_type: str) -> None:
    if reason := unfit(capability, layout, fs_type):
        raise errors.invalid(reason)


def fingerprint(capability: pb.VolumeCapability, *more: object) -> str:
    """A hash that only equal arguments share. Kept instead of mount_flags, which may be sensitive."""
    text = capability.SerializeToString(deterministic=True) + "\n".join(map(str, more)).encode()
    return hashlib.sha256(text).hexdigest()


def serves_one_node(*uses: Use) -> bool:
    """Whether one of these uses of a volume allows it on one node only."""
    return any(use.mode not in MULTI_NODE for use in uses)


def may_publish(new: Use, existing: Iterable[Use]) -> bool:
    """The table of the CSI spec, NodePublishVolume, for a driver with SINGLE_NODE_MULTI_WRITER.

    Returns:
        Whether the volume is published there already, with these arguments.

    Raises:
        CsiError: ALREADY_EXISTS for the same target with other arguments; FAILED_PRECONDITION for another target in a
            mode that allows one.
    """
    others = [use for use in existing if use.path != new.path]
    for use in existing:
        if use.path == new.path:
            if use.arguments == new.arguments:
                return True
            raise errors.already_exists("the volume is published at target_path with other arguments; unpublish it")
    if others and any(use.mode not in SEVERAL_TARGETS for use in (*others, new)):
        raise errors.precondition(
            f"the volume is published at {others[0].path}; access mode {mode_name(new.mode)} allows one target path"
        )
    return False
