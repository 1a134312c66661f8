"""Names: checks of names, ids and paths in requests, and the driver's own ids."""

import re
import uuid

from examples.dirdriver import errors

_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
"""A topology value becomes the value of a label of the Node object (CSI spec, Topology.segments)."""


def new_id(kind: str) -> str:
    return f"{kind}-{uuid.uuid4().hex}"


def is_label_value(value: str) -> bool:
    return _LABEL_VALUE.fullmatch(value) is not None


def require(field: str, value: str) -> str:
    """The value of a REQUIRED string field. An empty one is INVALID_ARGUMENT."""
    if not value:
        raise errors.invalid(f"{field} is missing: the CSI spec requires it")
    return value


def require_path(field: str, value: str) -> str:
    """The value of a REQUIRED path. It must be absolute (CSI spec, NodePublishVolumeRequest.target_path)."""
    require(field, value)
    if not value.startswith("/") or ".." in value.split("/"):
        raise errors.invalid(f"{field} must be an absolute path without '..'")
    return value.rstrip("/") or "/"
